"""Steps that ask for everything once, so that no request waits for a compiler.

They write the dump slot alone, and read what no request wrote yet.  Not here: recording
(decode_graphs).
"""

from array import array
from collections.abc import Iterator

from gpu_worker.device.step_inputs import SPLIT
from gpu_worker.row_table import RowTable
from gpu_worker.step_runner import StepRunner
from protos.plan import (
    DUMP_SLOT,
    NOT_SCORED,
    TOKEN_FROM_STEP_BEFORE,
    BatchPlan,
    NewRow,
    SamplingParams,
)

_PROMPT_TOKENS = 160
"""More than a tile of a prompt's queries has, and than products of blocks take one by one."""
_FEW_TOKENS = 20
"""More than decodes of few rows have, and few enough for products of blocks."""
_LONG_PREFIX = 2 * SPLIT
"""A context of parts that are merged."""
EVERYTHING = SamplingParams(
    temperature=1.0,
    top_k=2,
    top_p=0.9,
    min_p=0.01,
    min_tokens=3,
    repetition_penalty=1.1,
    logprobs=1,
    logit_bias=((0, 1.0),),
    prompt_logprobs=1,
)
"""That a row may ask of its sampling, but for a grammar."""


def warm_up(table: RowTable, runner: StepRunner, max_length: int) -> None:
    """A prompt that is scored, a draft, a short prompt, and a token behind a long prefix, on rows
    that are all free before and after."""
    num_tokens = min(_PROMPT_TOKENS, max_length - 2)
    for plan in _plans(num_tokens, max_length) if num_tokens > 0 else ():
        runner.settle()
        runner.begin(table.apply(plan)).sampled()
    table.reset()
    runner.forget()


def _plans(num_tokens: int, max_length: int) -> Iterator[BatchPlan]:
    yield from _scored_and_drafted(num_tokens)
    prefixes = (0, min(_LONG_PREFIX, max_length - 1))
    counts = (min(_FEW_TOKENS, num_tokens), 1)
    for step_id, (prefix, count) in enumerate(zip(prefixes, counts, strict=True), 2):
        tokens = array("i", [0]) * count
        new = NewRow(
            row=0,
            prefix_slots=array("i", [DUMP_SLOT + 1]) * prefix,
            sampling=SamplingParams(),
        )
        yield BatchPlan(
            step_id=step_id,
            rows=array("i", [0]),
            prefix_lens=array("i", [prefix]),
            extend_lens=array("i", [count]),
            samples=b"\1",
            input_ids=tokens,
            out_slots=array("i", [DUMP_SLOT]) * count,
            new_rows=(new,),
            freed_rows=array("i", [0]),
        )


def _scored_and_drafted(num_tokens: int) -> tuple[BatchPlan, BatchPlan]:
    prompt = array("i", [0]) * num_tokens
    new = NewRow(
        row=0,
        prefix_slots=array("i"),
        sampling=EVERYTHING,
        num_prompt=num_tokens,
        context_ids=prompt,
        suppressed_ids=(0,),
    )
    next_ids = prompt[:]
    next_ids[-1] = NOT_SCORED
    first = BatchPlan(
        step_id=0,
        rows=array("i", [0]),
        prefix_lens=array("i", [0]),
        extend_lens=array("i", [num_tokens]),
        samples=b"\1",
        input_ids=prompt,
        out_slots=array("i", [DUMP_SLOT]) * num_tokens,
        new_rows=(new,),
        freed_rows=array("i"),
        next_ids=next_ids,
    )
    second = BatchPlan(
        step_id=1,
        rows=array("i", [0]),
        prefix_lens=array("i", [num_tokens]),
        extend_lens=array("i", [2]),
        samples=b"\2",
        input_ids=array("i", [TOKEN_FROM_STEP_BEFORE, 0]),
        out_slots=array("i", [DUMP_SLOT] * 2),
        freed_rows=array("i"),
    )
    return first, second
