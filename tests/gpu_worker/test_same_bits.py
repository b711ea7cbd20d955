"""A token's logits, to the last bit, over random batches: company, chunks, cached prefixes, shared
stems, drafts, threads and the places of slots change nothing, on each backend in each precision."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.backend import Backend
from gpu_worker.blocks import FloatArray
from gpu_worker.step import IntArray
from tests.gpu_worker.backends import needs_compiler
from tests.gpu_worker.random_models import (
    BEYOND_LLAMA,
    MAX_LENGTH,
    NATIVE,
    SHAPES,
    TORCH,
    Kind,
    Piece,
    all_logits,
    make_backend,
    make_step,
)

STEMS = (0, 1, 5, 63, 64, 65, 130, 255, 256, 257, 319, 320, 512, 530)
"""Lengths around the blocks of 64 keys and the splits of 256 that attention is cut into."""
NUM_SLOTS = 12_000
ALL_SHAPES = SHAPES | BEYOND_LLAMA


@dataclass(frozen=True, slots=True)
class Plan:
    """A row to be: how much it shares with the others, and how its tokens come."""

    share: float
    """Of the stem."""
    num_own: int
    cached: bool
    """Whether what it shares is read from the slots of the row that brought the stem."""
    most: int
    """Of its tokens in a step."""
    branch: int
    """Rows of one branch go on with the same tokens."""


PLANS = st.lists(
    st.builds(
        Plan,
        st.sampled_from((1.0, 1.0, 0.5, 0.98)),
        st.sampled_from((1, 2, 3, 15, 16, 17, 33, 64, 70)),
        st.booleans(),
        st.sampled_from((1, 1, 3, 16, 17, 64, 1000)),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=18,  # more than attend to a shared stem together
)


@dataclass(slots=True)
class Row:
    """A row under way."""

    tokens: tuple[int, ...]
    slots: IntArray
    begin: int
    most: int


@cache
def reference(shape: str, kind: Kind, tokens: tuple[int, ...]) -> FloatArray:
    """Each token's logits when the text is computed alone, in one go, by one thread."""
    return all_logits(backend(shape, kind, 1), tokens)


@cache
def backend(shape: str, kind: Kind, num_threads: int) -> Backend:
    return make_backend(ALL_SHAPES[shape], kind, num_slots=NUM_SLOTS, num_threads=num_threads)


@pytest.fixture(scope="module", autouse=True)
def _let_go():
    yield
    reference.cache_clear()
    backend.cache_clear()


def text(shape: str, length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(ALL_SHAPES[shape].vocab_size), k=length)


def rows_of(shape: str, stem_len: int, plans: Sequence[Plan], free: list[int]) -> list[Row]:
    """The row that brings the stem, and the others."""

    def take(count: int) -> list[int]:
        taken = free[:count]
        del free[:count]
        return taken

    stem = text(shape, stem_len + 1, seed=stem_len)
    first = Row(tuple(stem), np.array(take(len(stem)), np.int32), 0, 100)
    rows = [first]
    for plan in plans:
        shared = int(plan.share * stem_len)
        tokens = (*stem[:shared], *text(shape, plan.num_own, seed=1000 + plan.branch))
        begin = shared if plan.cached else 0
        slots = [*first.slots[:begin].tolist(), *take(len(tokens) - begin)]
        rows.append(Row(tokens, np.array(slots, np.int32), begin, plan.most))
    return rows


def next_piece(row: Row, draw: random.Random) -> Piece:
    # Small cuts where the text is the row's own; an uncached stem would take long in them.
    most = row.most if len(row.tokens) - row.begin <= 70 else max(row.most, 50)
    end = min(row.begin + draw.randint(1, most), len(row.tokens))
    begin, row.begin = row.begin, end
    num_samples = draw.choice((0, 1, 1, end - begin))
    return Piece(tokens=row.tokens, slots=row.slots, begin=begin, end=end, num_samples=num_samples)


def check(shape: str, kind: Kind, found: FloatArray, pieces: Sequence[Piece]) -> None:
    start = 0
    for piece in pieces:
        wanted = reference(shape, kind, piece.tokens)[piece.end - piece.num_samples : piece.end]
        mine = found[start : start + piece.num_samples]
        start += piece.num_samples
        assert np.isfinite(wanted).all()
        assert np.array_equal(mine, wanted), (piece.begin, piece.end, len(pieces))
    assert start == len(found)


def run(shape: str, kind: Kind, stem_len: int, plans: Sequence[Plan], seed: int) -> None:
    """Computes the stem, then the rest in steps of random company; every sample is looked at."""
    draw = random.Random(seed)
    computing = backend(shape, kind, 1 + seed % 3)
    # References first: those of one thread use the same pool.
    free = list(range(1, NUM_SLOTS + 1))
    if seed % 2:
        draw.shuffle(free)
    rows = rows_of(shape, stem_len, plans, free)
    for row in rows:
        reference(shape, kind, row.tokens)
    computing.forget()
    live, step_of_stem = rows[:1], True
    while live:
        together = live if draw.random() < 0.5 else draw.sample(live, draw.randint(1, len(live)))
        pieces = [next_piece(row, draw) for row in together]
        check(shape, kind, computing.forward(make_step(pieces)), pieces)
        live = [row for row in live if row.begin < len(row.tokens)]
        if not live and step_of_stem:
            live, step_of_stem = rows[1:], False


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", NATIVE, ids=str)
@needs_compiler
@settings(max_examples=6)
@given(stem_len=st.sampled_from(STEMS), plans=PLANS, seed=st.integers(0, 2**16))
def test_native(kind: Kind, shape: str, stem_len: int, plans: list[Plan], seed: int) -> None:
    # field cases 20, 99, 100
    run(shape, kind, stem_len, plans, seed)


@pytest.mark.parametrize("shape", ["grouped", "ungrouped", *BEYOND_LLAMA])
@settings(max_examples=3)
@given(stem_len=st.sampled_from(STEMS[:8]), plans=PLANS, seed=st.integers(0, 2**16))
def test_torch(shape: str, stem_len: int, plans: list[Plan], seed: int) -> None:
    run(shape, TORCH, stem_len, plans, seed)


@needs_compiler
@pytest.mark.parametrize("kind", NATIVE, ids=str)
def test_a_shared_stem_is_read_together(kind: Kind) -> None:
    """Rows that decode behind the same slots, more of them than attend together."""
    whole = MAX_LENGTH - 10
    for num_rows in (2, 15, 16, 17, 33):
        plans = [Plan(1.0, 9, cached=True, most=1, branch=row) for row in range(num_rows)]
        run("grouped", kind, whole, plans, seed=num_rows)


@pytest.mark.parametrize("kind", [TORCH, *NATIVE], ids=str)
@needs_compiler
def test_an_unwritten_slot_shows(kind: Kind) -> None:
    """The poison that the other tests rely on."""
    computing = backend("grouped", kind, 1)
    computing.forget()
    slots = np.array([3, 900, 4], np.int32)
    stranger = Piece(tokens=[1, 2, 3], slots=slots, begin=2, end=3, num_samples=1)
    assert np.isnan(computing.forward(make_step([stranger]))).all()
