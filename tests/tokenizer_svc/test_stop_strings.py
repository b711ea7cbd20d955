"""The stop matcher against a plain search, and what it holds back."""

from hypothesis import given
from hypothesis import strategies as st

from tokenizer_svc.stop_strings import StopMatcher

ALPHABET = "ab"
TEXTS = st.text(ALPHABET, max_size=30)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)


def expected(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    """The definition: after each piece, the stop that begins first, of those the shortest."""
    text = ""
    for piece in pieces:
        text += piece
        found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
        if found:
            start, _, stop = min(found)
            return text[:start], stop
    return text, None


@given(pieces=st.lists(TEXTS, max_size=12), stops=STOPS)
def test_equals_a_plain_search(pieces: list[str], stops: list[str]):
    matcher = StopMatcher(tuple(stops))
    out, whole = "", ""
    for piece in pieces:
        whole += piece
        out += matcher.feed(piece)
        if matcher.matched is not None:
            break
        # field case 70: what is held back is exactly the longest end that may become a stop.
        held = whole[len(out) :]
        ends = [whole[i:] for i in range(len(whole))]
        possible = [end for end in ends if any(stop.startswith(end) for stop in stops)]
        assert held == max(possible, key=len, default="")
    else:
        out += matcher.finish()
    assert (out, matcher.matched) == expected(pieces, stops)


@given(pieces=st.lists(TEXTS, max_size=12), stops=STOPS, num_early=st.integers(0, 12))
def test_what_is_complete_too_early_is_ordinary_text(
    pieces: list[str], stops: list[str], num_early: int
):
    """The definition: only a stop whose last character is in a later piece counts."""
    matcher = StopMatcher(tuple(stops))
    whole, out, wanted = "", "", None
    for n, piece in enumerate(pieces):
        num_before, whole = len(whole), whole + piece
        out += matcher.feed(piece, may_match=n >= num_early)
        if n >= num_early:
            found = [
                (end - len(stop), len(stop), stop)
                for stop in stops
                for end in range(num_before + 1, len(whole) + 1)
                if whole[:end].endswith(stop)
            ]
            if found:
                start, _, wanted = min(found)
                assert out == whole[:start]
                break
        held = whole[len(out) :]
        ends = [whole[i:] for i in range(len(whole) + 1)]
        possible = [end for end in ends if any(_begins(stop, end) for stop in stops)]
        assert held == max(possible, key=len, default="")
    else:
        assert out + matcher.finish() == whole
    assert matcher.matched == wanted


def _begins(stop: str, text: str) -> bool:
    """Whether the stop goes on after this text."""
    return stop != text and stop.startswith(text)


def test_a_stop_that_was_held_back_comes_out_once():
    matcher = StopMatcher(("Bern:", "\n"))
    pieces = [matcher.feed(piece) for piece in (" ", "Be", "rn", "?")]
    assert pieces == [" ", "", "", "Bern?"]  # field case 69


# field case 84
def test_many_long_stops_cost_little_for_each_character():
    stops = tuple("a" * n + "b" for n in range(240, 256))
    matcher = StopMatcher(stops)
    text = "a" * 20_000
    assert matcher.feed(text) + matcher.finish() == text
