"""Steps that ask for everything once, so that no request waits for a compiler.

They read and write the dump slot alone.  Not here: recording (decode_graphs).
"""

from array import array

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

_PROMPT_TOKENS = 80
"""More than a tile of a prompt's queries has."""
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
    """A prompt that is scored, and a draft, on rows that are all free before and after."""
    num_tokens = min(_PROMPT_TOKENS, max_length - 2)
    for plan in _plans(num_tokens) if num_tokens > 0 else ():
        runner.settle()
        runner.begin(table.apply(plan)).sampled()
    table.reset()
    runner.forget()


def _plans(num_tokens: int) -> tuple[BatchPlan, BatchPlan]:
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
