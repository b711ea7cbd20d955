"""One output cut anywhere, against a plain search in the whole text: stream, unary, reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer_svc.text_output import StopRules, TextOutput
from tokenizer_svc.tokenizers.table_decoder import TableDecoder

TABLE = [
    b"a",
    b"b",
    b"ab",
    b" window.",
    "漢".encode()[:2],
    "漢".encode()[2:],
    "漢b".encode(),
    b"",
    b"x",
]
STOP_ID = TABLE.index(b"x")
STOPS = st.lists(st.text("ab漢 .\ufffd", min_size=1, max_size=4), max_size=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a client is told of an output."""

    text: str
    num_ids: int
    matched_text: str | None
    matched_token_id: int | None


def output_for(rules: StopRules) -> TextOutput:
    return TextOutput(TableDecoder(TABLE, skipped_ids=frozenset()), rules)


def text_of(ids: Sequence[int], *, final: bool) -> str:
    """The text that these ids complete."""
    data = b"".join(TABLE[i] for i in ids)
    if not final:
        for num_cut in (2, 1):  # an unfinished character of this table has two bytes or one
            if "漢".encode()[:num_cut] == data[-num_cut:]:
                data = data[:-num_cut]
                break
    return data.decode("utf-8", "replace")


def first_stop(text: str, stops: Sequence[str], *, from_end: int) -> tuple[int, str] | None:
    """Of the stops whose last character lies at `from_end` or later: first, then shortest."""
    found = []
    for stop in stops:
        start = text.find(stop, max(0, from_end + 1 - len(stop)))
        if start >= 0:
            found.append((start, len(stop), stop))
    start, _, stop = min(found, default=(-1, 0, ""))
    return (start, stop) if stop else None


def expected(ids: Sequence[int], rules: StopRules) -> Ended:
    """The rules as text_output.py states them, by plain searches in the whole text."""
    before = ""
    for n, token_id in enumerate(ids, start=1):
        is_stop_id = token_id in rules.token_ids
        text = text_of(ids[: n - is_stop_id], final=is_stop_id)
        found = (
            first_stop(text, rules.texts, from_end=len(before)) if n > rules.min_tokens else None
        )
        if is_stop_id:
            return Ended(
                text=text[: found[0]] if found else text,
                num_ids=n,
                matched_text=None,
                matched_token_id=token_id,
            )
        if found:
            return Ended(
                text=text[: found[0]], num_ids=n, matched_text=found[1], matched_token_id=None
            )
        before = text
    text = text_of(ids, final=True)
    may_match = len(ids) > rules.min_tokens
    found = first_stop(text, rules.texts, from_end=len(before)) if may_match else None
    return Ended(
        text=text[: found[0]] if found else text,
        num_ids=len(ids),
        matched_text=found[1] if found else None,
        matched_token_id=None,
    )


def fed(output: TextOutput, ids: Sequence[int], sizes: Sequence[int]) -> tuple[Ended, list[str]]:
    """What comes out when the ids arrive in portions of these sizes, over and over."""
    pieces: list[str] = []
    at = num_ids = 0
    while at < len(ids) and not output.stopped:
        size = sizes[len(pieces) % len(sizes)]
        piece, num_taken = output.feed(ids[at : at + size])
        pieces.append(piece)
        num_ids += num_taken
        at += size
    pieces.append(output.finish())
    ended = Ended(
        text="".join(pieces),
        num_ids=num_ids,
        matched_text=output.matched_text,
        matched_token_id=output.matched_token_id,
    )
    return ended, pieces


@settings(max_examples=1500)
@given(
    ids=st.lists(st.integers(0, len(TABLE) - 1), max_size=25),
    stops=STOPS,
    min_tokens=st.integers(0, 6),
    stop_ids=st.sampled_from([frozenset(), frozenset({STOP_ID})]),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
)
# field cases 67, 68, 69, 71
def test_stream_and_unary_equal_a_plain_search(
    ids: list[int],
    stops: list[str],
    min_tokens: int,
    stop_ids: frozenset[int],
    sizes: list[int],
):
    rules = StopRules(texts=tuple(stops), token_ids=stop_ids, min_tokens=min_tokens)
    wanted = expected(ids, rules)
    unary, _ = fed(output_for(rules), ids, [len(ids) + 1])
    assert unary == wanted
    streamed, _ = fed(output_for(rules), ids, sizes)
    assert streamed == wanted


@given(ids=st.lists(st.integers(0, len(TABLE) - 2), max_size=25), stops=STOPS)
# field case 70
def test_held_back_is_only_what_may_become_a_stop(ids: list[int], stops: list[str]):
    output, text = output_for(StopRules(texts=tuple(stops))), ""
    for n, token_id in enumerate(ids, start=1):
        text += output.feed([token_id])[0]
        if output.stopped:
            break
        whole = text_of(ids[:n], final=False)
        ends = [whole[at:] for at in range(len(whole))]
        possible = [end for end in ends if any(stop.startswith(end) for stop in stops)]
        assert text == whole.removesuffix(max(possible, key=len, default=""))


@pytest.mark.parametrize(
    ("stops", "text", "matched"),
    [
        (("indo",), " w", "indo"),
        (("dow", "ind"), " w", "ind"),
        ((" window", " w"), "", " w"),
        ((".",), " window", "."),
        (("windows",), " window.", None),
    ],
)
# field case 67
def test_stops_inside_one_token(stops: tuple[str, ...], text: str, matched: str | None):
    output = output_for(StopRules(texts=stops))
    ids = [TABLE.index(b" window.")]
    assert fed(output, ids, [1])[0] == Ended(
        text=text, num_ids=1, matched_text=matched, matched_token_id=None
    )


@pytest.mark.parametrize("num_tokens", [2, 3, 7])
# field case 68
def test_a_stop_over_many_tokens_never_shows(num_tokens: int):
    stop = "a漢b漢a漢b漢"[:num_tokens]
    table = [character.encode() for character in stop] + [b"y"]
    for last, visible in ((num_tokens - 1, ""), (num_tokens, stop[:-1] + "y")):
        output = TextOutput(
            TableDecoder(table, skipped_ids=frozenset()), StopRules(texts=(stop, "zz"))
        )
        ended, pieces = fed(output, [*range(num_tokens - 1), last], [1])
        assert ended.text == visible
        assert pieces[: num_tokens - 1] == [""] * (num_tokens - 1)
        assert ended.matched_text == (None if visible else stop)
