"""Paged attention: against a plain softmax in float64, its own reference, and itself in company.

Tolerances are for results of size 1: float32 sums a few hundred products; float16 has 11 bits, and
in fp8 pools the product takes float16 too.
"""

import dataclasses

import pytest
import torch

from gpu_worker.device.attention_plan import Stem
from kernels.attention_inputs import AttentionRules, WorkItems, Workspace, workspace_for
from kernels.paged_attention import paged_attention, paged_attention_reference
from tests.kernels.batches import Batch, Shape, batch, cut, softmax_attention
from tests.kernels.lone_rows import interpret_rows_alone

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
FP8_TOLERANCE = 4e-3


def rules(shape: Shape, **special: float) -> AttentionRules:
    return AttentionRules(scale=shape.head_dim**-0.5, **special)  # type: ignore[arg-type]


def assert_right(given: Batch, work: WorkItems, asked: AttentionRules) -> None:
    lse = torch.full(given.query.shape[:2], torch.nan)
    reference_lse = lse.clone()
    out = paged_attention(given.query, given.kv, work, asked, lse=lse)
    reference = paged_attention_reference(given.query, given.kv, work, asked, lse=reference_lse)
    wanted, wanted_lse = softmax_attention(given, asked)
    atol = TOLERANCE[given.shape.dtype]
    if given.shape.kind == "fp8":
        atol = FP8_TOLERANCE
    torch.testing.assert_close(reference.double(), wanted, atol=atol, rtol=0)
    torch.testing.assert_close(out.double(), wanted, atol=atol, rtol=0)
    torch.testing.assert_close(reference_lse.double(), wanted_lse, atol=1e-5, rtol=0)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=max(1e-5, atol), rtol=0)


def num_read(work: WorkItems) -> int:
    """Positions of all items."""
    parts = (work.stems, work) if work.stems else (work,)
    return sum(int((part.items[:, 4] - part.items[:, 3]).sum()) for part in parts)


@pytest.mark.parametrize("groups", range(1, 9))
def test_decode_shares_keys_among_any_group_of_heads(groups: int) -> None:
    shape = Shape(heads=2 * groups, kv_heads=2, lengths=(1, 40, 65), queries=(1, 1, 1))
    given = batch(shape)
    assert_right(given, cut(given, split=32), rules(shape))


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("kind", ["none", "int8", "fp8"])
def test_decode_reads_pages_of_any_size_and_kind(page_size: int, kind: str) -> None:
    shape = Shape(page_size=page_size, kind=kind)  # type: ignore[arg-type]
    given = batch(shape)
    assert_right(given, cut(given), rules(shape))


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_heads_of_any_size(head_dim: int) -> None:
    shape = Shape(heads=3, kv_heads=1, head_dim=head_dim, lengths=(70, 1), queries=(1, 1))
    given = batch(shape)
    assert_right(given, cut(given), rules(shape))


def test_half_precision() -> None:
    shape = Shape(dtype=torch.float16, page_size=16)
    given = batch(shape)
    assert_right(given, cut(given), rules(shape))


@pytest.mark.parametrize("kind", ["none", "int8", "fp8"])
def test_extend_is_causal_behind_its_prefix(kind: str) -> None:
    shape = Shape(lengths=(1, 17, 63, 64, 65, 130), queries=(1, 17, 5, 64, 1, 33), kind=kind)  # type: ignore[arg-type]
    given = batch(shape)
    assert_right(given, cut(given, block_queries=64), rules(shape))


@pytest.mark.parametrize("split", [16, 48, 1 << 20])
def test_a_context_is_cut_anywhere(split: int) -> None:
    shape = Shape(lengths=(130, 47, 1), queries=(9, 1, 1))
    given = batch(shape)
    assert_right(given, cut(given, split=split), rules(shape))


@pytest.mark.parametrize("window", [1, 40, 64, 500])
def test_a_window_hides_what_lies_behind_it(window: int) -> None:
    shape = Shape(page_size=16, queries=(1, 17, 5, 64, 1, 33))
    given = batch(shape)
    assert_right(given, cut(given, window=window), rules(shape, window=window))


def test_scores_are_capped() -> None:
    shape = Shape()
    given = batch(shape)
    given.query *= 20
    assert_right(given, cut(given), rules(shape, soft_cap=3.0))


STEMS = (
    Stem(first_row=0, num_rows=6, begin=0, end=96),
    Stem(first_row=0, num_rows=3, begin=96, end=160),
    Stem(first_row=3, num_rows=3, begin=96, end=144),
    Stem(first_row=3, num_rows=2, begin=144, end=176),
)
STEM_LENGTHS = (165, 200, 233, 190, 181, 150, 77)


@pytest.mark.parametrize(("kind", "stem_block"), [("none", 64), ("int8", 0)])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_shared_stems_are_read_once_for_all_their_rows(
    kind: str, stem_block: int, num_drafts: int
) -> None:
    shape = Shape(
        page_size=16,
        kind=kind,  # type: ignore[arg-type]
        lengths=STEM_LENGTHS,
        queries=(1 + num_drafts,) * 7,
        stems=STEMS,
    )
    given = batch(shape)
    work = cut(given, block_queries=32, stem_block=stem_block)
    assert_right(given, work, rules(shape))
    apart = cut(dataclasses.replace(given, shape=dataclasses.replace(shape, stems=())))
    read, read_apart = num_read(work), num_read(apart)
    assert read < 0.65 * read_apart


def test_a_row_has_the_same_bits_alone_and_in_company(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret_rows_alone(monkeypatch)
    shape = Shape(page_size=16, lengths=(130, 65, 17, 200), queries=(1, 1, 1, 1))
    given = batch(shape)
    together = paged_attention(given.query, given.kv, cut(given), rules(shape))
    for index, (length, offset) in enumerate(
        zip(shape.lengths, given.rows.table_offset, strict=True)
    ):
        alone = dataclasses.replace(
            given,
            shape=dataclasses.replace(shape, lengths=(length,), queries=(1,)),
            query=given.query[index : index + 1],
            kv=dataclasses.replace(given.kv, page_table=given.kv.page_table[offset:]),
            rows=batch(dataclasses.replace(shape, lengths=(length,), queries=(1,))).rows,
        )
        out = paged_attention(alone.query, alone.kv, cut(alone), rules(shape))
        assert torch.equal(out[0], together[index])


@pytest.mark.parametrize("window", [0, 30])
def test_a_prompt_has_the_same_bits_whole_and_in_chunks(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpret_rows_alone(monkeypatch)
    shape = Shape(lengths=(100,), queries=(40,))
    asked = rules(shape, window=window)

    def attended(given: Batch) -> torch.Tensor:
        work = cut(given, block_queries=64, window=window)
        return paged_attention(given.query, given.kv, work, asked)

    given = batch(shape)
    parts = []
    for length, queries in ((80, given.query[:20]), (100, given.query[20:])):
        chunk_shape = dataclasses.replace(shape, lengths=(length,), queries=(20,))
        rows = batch(chunk_shape).rows
        parts.append(attended(dataclasses.replace(given, query=queries, rows=rows)))
    assert torch.equal(torch.cat(parts), attended(given))


def test_what_lies_past_the_items_is_not_read() -> None:
    """As when a captured graph has room for more items than a step has."""
    shape = Shape()
    given = batch(shape)
    work = cut(given)
    wanted = paged_attention(given.query, given.kv, work, rules(shape))
    room = torch.full((len(work.items) + 9, 8), 12345, dtype=torch.int32)
    room[: len(work.items)] = work.items
    padded = dataclasses.replace(work, items=room)
    assert torch.equal(paged_attention(given.query, given.kv, padded, rules(shape)), wanted)


def test_a_workspace_serves_any_launch_that_fits_in_it() -> None:
    """Whatever an earlier launch left there, and though it is larger than needed."""
    shape = Shape()
    given = batch(shape)
    work = cut(given)
    room = workspace_for(work.num_partials + 3, given.query)
    room.out.fill_(torch.nan)
    room.lse.fill_(torch.nan)
    out = paged_attention(given.query, given.kv, work, rules(shape), workspace=room)
    assert torch.equal(out, paged_attention(given.query, given.kv, work, rules(shape)))
    small = Workspace(out=room.out[: work.num_partials - 1], lse=room.lse)
    with pytest.raises(ValueError, match=r"workspace.out .* for 5 partial rows"):
        paged_attention(given.query, given.kv, work, rules(shape), workspace=small)


def test_a_token_of_no_item_keeps_what_was_there() -> None:
    shape = Shape(lengths=(80, 20), queries=(1, 1))
    given = batch(shape)
    work = cut(given)
    query = torch.cat([given.query, given.query[:1]])
    start = torch.cat([work.merge_start, work.merge_start[-1:]])
    out = torch.full_like(query, 7.0)
    paged_attention(
        query, given.kv, dataclasses.replace(work, merge_start=start), rules(shape), out
    )
    assert (out[2] == 7.0).all()
    assert not (out[:2] == 7.0).any()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"query": torch.zeros(6, 5, 32)}, "5 heads do not divide among 2"),
        ({"query": torch.zeros(6, 6, 16)}, "keys and values of 32"),
        ({"query": torch.zeros(6, 32, 6).transpose(1, 2)}, "heads of 6|query"),
        ({"work": {"block_queries": 24}}, "block_queries 24"),
        ({"work": {"merge_start": torch.zeros(3, dtype=torch.int32)}}, "merge_start"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, object], named: str) -> None:
    shape = Shape()
    given = batch(shape)
    work = dataclasses.replace(cut(given), **change.get("work", {}))  # type: ignore[arg-type]
    query = change.get("query", given.query)
    with pytest.raises(ValueError, match=named):
        paged_attention(query, given.kv, work, rules(shape))  # type: ignore[arg-type]
