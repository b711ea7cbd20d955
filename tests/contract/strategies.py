"""Hypothesis strategies for every message of protos.plan, always consistent in themselves."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st

from protos.plan import (
    NOT_SCORED,
    TOKEN_FROM_STEP_BEFORE,
    BatchPlan,
    BatchResult,
    Envelope,
    Fault,
    Hello,
    LogprobColumns,
    Message,
    NewRow,
    Ping,
    Ready,
    Remap,
    RowFault,
    SamplingParams,
)

MAX_INT32 = 2**31 - 1

uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)
step_ids = st.integers(0, 2**40)
ids = st.integers(0, MAX_INT32)
text = st.text(max_size=20)


def columns(elements: st.SearchStrategy[int], length: int) -> st.SearchStrategy[array[int]]:
    """Columns of exactly this length."""
    values = st.lists(elements, min_size=length, max_size=length)
    return values.map(lambda numbers: array("i", numbers))


any_column = st.integers(0, 6).flatmap(lambda length: columns(ids, length))

biases = st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=4).map(
    lambda bias_of: tuple(sorted(bias_of.items()))
)

sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100, width=32),
    top_k=uint32,
    top_p=st.floats(0, 1, width=32),
    min_p=st.floats(0, 1, width=32),
    seed=st.integers(0, 2**63 - 1),
    min_tokens=st.just(0) | uint32,
    repetition_penalty=st.just(1.0) | st.floats(0.125, 10, width=32),
    presence_penalty=st.just(0.0) | st.floats(-2, 2, width=32),
    frequency_penalty=st.just(0.0) | st.floats(-2, 2, width=32),
    logprobs=st.integers(-1, 20),
    logit_bias=st.just(()) | biases,
    prompt_logprobs=st.integers(-1, 20),
    grammar=st.just("") | text,
)

hellos = st.builds(
    Hello,
    instance_id=uint64,
    model_id=text,
    model_hash=text,
    vocab_size=st.integers(1, MAX_INT32),
    eos_token_ids=st.lists(ids, max_size=4).map(tuple),
    num_slots=st.integers(1, MAX_INT32),
    max_rows=st.integers(1, MAX_INT32),
    max_length=st.integers(1, MAX_INT32),
    kv_dtype=text,
    device=text,
    kind=text,
    kv_bytes_per_slot=uint32,
    weights=text,
    least_stem_tokens=uint32,
)


@st.composite
def new_rows(draw: st.DrawFn, row: int, prefix_len: int, known_len: int) -> NewRow:
    """A row on its first step, with the context that its sampling needs; `known_len` of its inputs
    are no drafts."""
    params = draw(sampling)
    context_ids, num_prompt = array("i"), draw(uint32)
    if params.needs_context:
        context_ids = draw(columns(ids, prefix_len + known_len + draw(st.integers(0, 3))))
        num_prompt = draw(st.integers(1, len(context_ids)))
    elif params.min_tokens:
        num_prompt = draw(st.integers(1, MAX_INT32))
    return NewRow(
        row=row,
        prefix_slots=draw(columns(ids, prefix_len)),
        sampling=params,
        num_prompt=num_prompt,
        context_ids=context_ids,
        suppressed_ids=tuple(draw(any_column)) if params.min_tokens else (),
    )


@st.composite
def stems(draw: st.DrawFn, num_rows: int) -> array[int]:
    """Up to two stems of neighbouring rows."""
    column = array("i")
    for _ in range(draw(st.integers(0, 2)) if num_rows > 1 else 0):
        first = draw(st.integers(0, num_rows - 2))
        begin = draw(st.integers(0, MAX_INT32 - 1))
        counts, ends = st.integers(2, num_rows - first), st.integers(begin + 1, MAX_INT32)
        column.extend((first, draw(counts), begin, draw(ends)))
    return column


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    """A plan of up to six rows, some of them seen for the first time."""
    rows = draw(st.lists(ids, max_size=6, unique=True))
    prefix_lens = draw(columns(st.integers(0, 5), len(rows)))
    extend_lens = draw(columns(st.integers(1, 4), len(rows)))
    samples = bytes(draw(st.integers(0, extend_len)) for extend_len in extend_lens)
    known_lens = [e - max(0, n - 1) for e, n in zip(extend_lens, samples, strict=True)]
    num_tokens = sum(extend_lens)
    new = [at for at in range(len(rows)) if draw(st.booleans())]
    return BatchPlan(
        step_id=draw(step_ids),
        rows=array("i", rows),
        prefix_lens=prefix_lens,
        extend_lens=extend_lens,
        samples=samples,
        input_ids=draw(columns(ids | st.just(TOKEN_FROM_STEP_BEFORE), num_tokens)),
        out_slots=draw(columns(ids, num_tokens)),
        new_rows=tuple(draw(new_rows(rows[at], prefix_lens[at], known_lens[at])) for at in new),
        remaps=tuple(draw(st.lists(remaps, max_size=3))),
        freed_rows=draw(any_column),
        next_ids=draw(columns(ids | st.just(NOT_SCORED), draw(st.sampled_from([0, num_tokens])))),
        stems=draw(stems(len(rows))),
    )


row_faults = st.builds(RowFault, row=uint32, message=text)
remaps = st.builds(Remap, row=ids, start=ids, slots=any_column)
logprobs = st.floats(max_value=0.0, width=32)


@st.composite
def logprob_columns(draw: st.DrawFn, num_asked: int) -> LogprobColumns | None:
    """Of so many tokens; None where nobody asked."""
    if not num_asked:
        return None
    top_ids = draw(any_column)
    chosen = draw(st.lists(logprobs, min_size=num_asked, max_size=num_asked))
    top = draw(st.lists(logprobs, min_size=len(top_ids), max_size=len(top_ids)))
    return LogprobColumns(chosen=array("f", chosen), top_ids=top_ids, top_logprobs=array("f", top))


@st.composite
def results(draw: st.DrawFn) -> BatchResult:
    """A result; some of its rows asked for log probabilities."""
    num_sampled = bytes(draw(st.lists(st.integers(1, 3), max_size=3)))
    length = sum(num_sampled) if num_sampled else draw(st.integers(0, 6))
    token_ids = draw(columns(ids, length))
    return BatchResult(
        step_id=draw(step_ids),
        token_ids=token_ids,
        forward_ns=draw(uint64),
        peak_rss_bytes=draw(uint64),
        logprobs=draw(logprob_columns(draw(st.integers(0, len(token_ids))))),
        prompt_logprobs=draw(logprob_columns(draw(st.integers(0, 4)))),
        num_sampled=num_sampled,
        phases_ns=tuple(draw(st.lists(uint64, max_size=5))),
        row_faults=tuple(draw(st.lists(row_faults, max_size=2))),
    )


messages: st.SearchStrategy[Message] = st.one_of(
    hellos,
    st.builds(Ready),
    plans(),
    results(),
    st.builds(Fault, step_id=step_ids, message=text),
    st.builds(Ping, instance_id=uint64),
)
envelopes = st.builds(Envelope, epoch=uint64, message=messages)
