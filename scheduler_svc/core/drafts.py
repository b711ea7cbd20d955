"""Guesses what a request says next: what followed when the same was said before.  Decides nothing.

Two places are asked.  First the radix tree, below the request's own path: whoever had the same
tokens up to here went on in some way, and the whole context agrees.  Then the request's own tokens:
where their last three, or two, occurred before (prompt lookup: Saxena, 2023).  A guess is followed
for as long as it holds, so each known token costs one comparison and two entries of an index.

Every token that becomes known also judges the guess that was made for it, whether anybody computed
with the guess or not: so a drafter knows its worth before it costs anything.
"""

from __future__ import annotations

from array import array
from itertools import islice

from scheduler_svc.core.radix_node import TOKEN_BYTES, Lease, RadixNode

MOST_READ = 32
"""Tokens read from the tree at once."""

MOST_CHILDREN = 32
"""Continuations looked at where the tree branches; the oldest ones."""

MOST_A_CALL = 512
"""Known tokens taken in by one call, so that a long prompt holds up no step."""

MOST_INDEXED = 1 << 15
"""Of the tokens known at first sight, only so many of the last ones are looked at."""

FIRST_RATES = (0.08, 0.5, 0.5, 0.55, 0.75, 0.75, 0.75, 0.85, 0.85, 0.85, 0.85, 0.85, 0.95)
"""How often a guess holds whose last so many tokens agreed, before anything is known of the request
itself; the last entry is for that many and more.  Of 5855 tokens that the built-in model answered
to 24 questions, greedily and at temperature 0.7."""

LEARNING = 0.125
"""Weight of the newest guess in its rate."""

_FIRM = 3
"""Tokens that agree, from which on a guess is not given up for what a look-up finds."""

_WHOLE_CONTEXT = len(FIRST_RATES) - 1
_NOWHERE: array[int] = array("i")


class Drafter:
    """What one request may say next, and how often such guesses held."""

    __slots__ = (
        "_at",
        "_matched",
        "_num_indexed",
        "_num_judged",
        "_pairs",
        "_rates",
        "_source",
        "_tokens",
        "_triples",
        "_without",
    )

    def __init__(self, tokens: array[int]) -> None:
        """`tokens`: of the request; read, never changed, and looked at again when it has grown."""
        self._tokens = tokens
        self._triples: dict[tuple[int, ...], int] = {}
        """Three tokens to where the text went on after them."""
        self._pairs: dict[tuple[int, ...], int] = {}
        self._num_indexed = max(1, len(tokens) - MOST_INDEXED)
        self._source = _NOWHERE
        """The guess is read from here, beginning with entry `_at`; at its end there is none."""
        self._at = 0
        self._matched = 0
        """Tokens before the guess that agree, _WHOLE_CONTEXT for all."""
        self._num_judged = len(tokens)
        self._rates = list(FIRST_RATES)
        self._without = -1
        """Version of the tree in which this request has left all paths."""

    def look(self, lease: Lease | None, tree_version: int, page_size: int) -> None:
        """Takes in the tokens that became known, and looks for a guess where there is none.

        lease: of the request's on a prefix of its tokens, in a tree of this version.
        """
        self._judge()
        self._index()
        is_firm = self._at < len(self._source) and self._matched >= _FIRM
        if is_firm and self._source is not self._tokens:
            return
        if lease is not None and not lease.node.dead and self._without != tree_version:
            found = continuation(lease, self._tokens, page_size)
            if found:
                self._source, self._at, self._matched = found, 0, _WHOLE_CONTEXT
                return
            self._without = tree_version  # more tokens lead no path back: it need not look again
        if not is_firm:
            self._look_up()

    def odds(self, most: int) -> list[float]:
        """[n <= most] the chance that the next 1, 2, .. n tokens are all as guessed."""
        if self._at >= len(self._source):
            return []
        if self._source is not self._tokens:
            most = min(most, len(self._source) - self._at)
        odds, chance = [], 1.0
        for matched in range(self._matched, self._matched + most):
            chance *= self._rates[min(matched, _WHOLE_CONTEXT)]
            odds.append(chance)
        return odds

    def drafts(self, num_tokens: int) -> array[int]:
        """[num_tokens] the guess; at most as many as there are odds.

        A guess from near the end of the request's own tokens goes on with itself, as a text that
        repeats does (Ziv and Lempel, 1977).
        """
        drafts = self._source[self._at : self._at + num_tokens]
        period = len(self._source) - self._at
        while len(drafts) < num_tokens:
            assert self._source is self._tokens
            drafts.append(drafts[-period])
        return drafts

    def _judge(self) -> None:
        """Follows the guess through the tokens that became known, and past one that differs: texts
        that are copied are edited, too."""
        tokens = self._tokens
        for position in range(self._num_judged, len(tokens)):
            if self._at >= len(self._source):
                break
            matched = min(self._matched, _WHOLE_CONTEXT)
            if self._source[self._at] != tokens[position]:
                self._rates[matched] -= self._rates[matched] * LEARNING
                self._matched = 0
            else:
                self._rates[matched] += (1.0 - self._rates[matched]) * LEARNING
                self._matched += 1
            self._at += 1
        self._num_judged = len(tokens)

    def _index(self) -> None:
        """All but the last tokens, which are to be found elsewhere."""
        tokens, start = self._tokens, self._num_indexed
        end = max(start, min(len(tokens) - 1, start + MOST_A_CALL))
        for position in range(start, end):
            last = tuple(tokens[max(0, position - 2) : position + 1])
            self._triples[last] = self._pairs[last[-2:]] = position + 1
        self._num_indexed = end

    def _look_up(self) -> None:
        """Where the last tokens occurred before; the last time, should there be several."""
        tokens = self._tokens
        at, matched = self._triples.get(tuple(tokens[-3:])), 3
        if at is None:
            at, matched = self._pairs.get(tuple(tokens[-2:])), 2
        if at is not None:
            self._source, self._at, self._matched = tokens, at, matched


def continuation(lease: Lease, tokens: array[int], page_size: int) -> array[int]:
    """[n <= MOST_READ] what followed these tokens in the tree; where it branches, the way that was
    used last.  Empty where the tree has nothing behind them.

    lease: on a prefix of `tokens`.
    """
    node, found = lease.node, b""
    rest = tokens[lease.num_pages * page_size :].tobytes()
    while len(found) < MOST_READ * TOKEN_BYTES:
        child = _next(node, rest, page_size * TOKEN_BYTES)
        if child is None:
            break
        if len(rest) < len(child.key):
            if not child.key.startswith(rest):
                return _NOWHERE
            found += child.key[len(rest) :]
            rest = b""
        elif rest.startswith(child.key):
            rest = rest[len(child.key) :]
        else:
            return _NOWHERE
        node = child
    return _NOWHERE if rest else array("i", found[: MOST_READ * TOKEN_BYTES])


def _next(node: RadixNode, rest: bytes, page_bytes: int) -> RadixNode | None:
    """The child that goes on with the next page of these tokens, or with as much as there is."""
    if len(rest) >= page_bytes:
        return node.children.get(rest[:page_bytes])
    children = islice(node.children.values(), MOST_CHILDREN)
    fitting = [child for child in children if child.key.startswith(rest)]
    return max(fitting, key=_last_used, default=None)


def _last_used(node: RadixNode) -> tuple[int, int]:
    return node.last_used, node.serial
