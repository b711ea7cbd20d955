"""Hypothesis strategies for every message of protos.plan, always consistent in themselves."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st

from protos.plan import (
    TOKEN_FROM_STEP_BEFORE,
    BatchPlan,
    BatchResult,
    Envelope,
    Fault,
    Hello,
    Message,
    NewRow,
    Ping,
    Ready,
    Remap,
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

sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100, width=32),
    top_k=uint32,
    top_p=st.floats(0, 1, width=32),
    min_p=st.floats(0, 1, width=32),
    seed=st.integers(0, 2**63 - 1),
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
)


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    """A plan of up to six rows, some of them seen for the first time."""
    rows = draw(st.lists(ids, max_size=6, unique=True))
    prefix_lens = draw(columns(st.integers(0, 5), len(rows)))
    extend_lens = draw(columns(st.integers(1, 4), len(rows)))
    num_tokens = sum(extend_lens)
    new = [at for at in range(len(rows)) if draw(st.booleans())]
    return BatchPlan(
        step_id=draw(step_ids),
        rows=array("i", rows),
        prefix_lens=prefix_lens,
        extend_lens=extend_lens,
        samples=bytes(draw(st.integers(0, 1)) for _ in rows),
        input_ids=draw(columns(ids | st.just(TOKEN_FROM_STEP_BEFORE), num_tokens)),
        out_slots=draw(columns(ids, num_tokens)),
        new_rows=tuple(
            NewRow(
                row=rows[at],
                prefix_slots=draw(columns(ids, prefix_lens[at])),
                sampling=draw(sampling),
            )
            for at in new
        ),
        remaps=tuple(draw(st.lists(remaps, max_size=3))),
        freed_rows=draw(any_column),
    )


remaps = st.builds(Remap, row=ids, start=ids, slots=any_column)
results = st.builds(
    BatchResult,
    step_id=step_ids,
    token_ids=any_column,
    forward_ns=uint64,
    peak_rss_bytes=uint64,
)

messages: st.SearchStrategy[Message] = st.one_of(
    hellos,
    st.builds(Ready),
    plans(),
    results,
    st.builds(Fault, step_id=step_ids, message=text),
    st.builds(Ping, instance_id=uint64),
)
envelopes = st.builds(Envelope, epoch=uint64, message=messages)
