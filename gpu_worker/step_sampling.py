"""From a step's logits to its tokens, row after row.  Not here: how one token is drawn."""

from __future__ import annotations

from array import array

from gpu_worker.blocks import FloatArray
from gpu_worker.logprobs import LogprobRecorder
from gpu_worker.row_table import RowTable
from gpu_worker.sampler import sample_token
from gpu_worker.step import IntArray, Step, StepRow
from protos.plan import LogprobColumns, RowFault


def sample_step(
    table: RowTable, step: Step, logits: FloatArray
) -> tuple[array[int], bytes, LogprobColumns | None]:
    """Tokens of all sampling rows, how many each sampled (see BatchResult.num_sampled), and what
    rows asked to know of them.  The table remembers the tokens.

    logits: [sum(num_logits), vocab] in plan order.
    """
    token_ids, num_sampled, recorder = array("i"), bytearray(), LogprobRecorder()
    for row in step.rows:
        if row.num_samples:
            first = row.first_logit + row.num_logits - row.num_samples
            sampled = _sample_row(table, row, step.drafts(row), logits[first:], recorder)
            table.record(row, sampled)
            token_ids.extend(sampled)
            num_sampled.append(len(sampled))
    has_one_each = len(token_ids) == len(num_sampled)
    return token_ids, b"" if has_one_each else bytes(num_sampled), recorder.columns()


def row_faults(table: RowTable, step: Step) -> tuple[RowFault, ...]:
    """Rows of a step that cannot go on; what they sampled means nothing."""
    return tuple(
        RowFault(row=row.row, message=problem)
        for row in step.rows
        if (problem := table.sampling(row.row).problem)
    )


def _sample_row(
    table: RowTable,
    row: StepRow,
    drafts: IntArray,
    logits: FloatArray,
    recorder: LogprobRecorder,
) -> list[int]:
    """Tokens of a row whose logits come first: one, and another for each draft that was right."""
    sampling = table.sampling(row.row)
    sampled: list[int] = []
    while True:
        raw, length = logits[len(sampled)], row.length - len(drafts) + len(sampled)
        token_id = sample_token(sampling.adjusted(raw, length), sampling.params, length)
        if sampling.params.logprobs >= 0:
            recorder.add(raw, token_id, sampling.params.logprobs)
        sampling.record(token_id)
        sampled.append(token_id)
        if len(sampled) > len(drafts) or drafts[len(sampled) - 1] != token_id:
            return sampled
