"""From a step's logits to its tokens, row after row.  Not here: how one token is drawn."""

from __future__ import annotations

from array import array

from gpu_worker.backend import FloatArray
from gpu_worker.logprobs import LogprobRecorder
from gpu_worker.row_table import RowTable, Step
from gpu_worker.sampler import sample_token
from protos.plan import LogprobColumns


def sample_step(
    table: RowTable, step: Step, logits: FloatArray
) -> tuple[array[int], LogprobColumns | None]:
    """The token of each sampling row, remembered in the table, and what rows asked to know of it.

    logits: [num_sampling_rows, vocab] in plan order.
    """
    token_ids, recorder = array("i"), LogprobRecorder()
    sampling_rows = [row for row in step.rows if row.samples]
    for row, raw in zip(sampling_rows, logits, strict=True):
        sampling = table.sampling(row.row)
        adjusted = sampling.adjusted(raw, row.length)
        token_id = sample_token(adjusted, sampling.params, row.length)
        if sampling.params.logprobs >= 0:
            recorder.add(raw, token_id, sampling.params.logprobs)
        table.record(row.row, token_id)
        token_ids.append(token_id)
    return token_ids, recorder.columns()
