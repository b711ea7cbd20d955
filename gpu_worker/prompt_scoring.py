"""From a step's logits to the log probabilities of prompts.  Samples nothing.

Of the raw distribution, like those of sampled tokens: what a row asks of its sampler plays no part.
"""

from gpu_worker.blocks import FloatArray
from gpu_worker.logprobs import LogprobRecorder
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from protos.plan import NOT_SCORED, LogprobColumns


def score_prompts(table: RowTable, step: Step, logits: FloatArray) -> LogprobColumns | None:
    """Of each token that is scored, in plan order; None where none is.

    One row of logits after the other: float64 for all of a chunk would take twice its logits.

    logits: [sum(num_logits), vocab] in plan order.
    """
    if not len(step.next_ids):
        return None
    recorder = LogprobRecorder()
    for row in step.rows:
        num_top = table.sampling(row.row).params.prompt_logprobs
        next_ids = step.next_ids[row.logit_tokens]
        for at, next_id in enumerate(next_ids.tolist(), row.first_logit):
            if next_id != NOT_SCORED:
                recorder.add(logits[at], next_id, num_top)
    return recorder.columns()
