"""Finds stop texts in a stream of text and holds back only what may still become one.

An automaton over all stops at once (Aho and Corasick's): its state is the longest end of the text
so far that begins some stop, so its depth is exactly what must be held back.  Knows no tokens.
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Automaton:
    """Transitions of all stops; node 0 is the root."""

    edges: tuple[dict[str, int], ...]
    fallback: tuple[int, ...]
    """[num_nodes] the longest proper end of the node's text that is a node too."""
    depth: tuple[int, ...]
    """[num_nodes] length of the node's text, in characters."""
    longest_stop: tuple[str, ...]
    """[num_nodes] the longest stop that the node's text ends with; empty: none."""


@lru_cache(maxsize=256)
def automaton(stops: tuple[str, ...]) -> Automaton:
    """The automaton of these stops, none of them empty."""
    edges: list[dict[str, int]] = [{}]
    depth, longest = [0], [""]
    for stop in stops:
        assert stop, stops
        node = 0
        for character in stop:
            if character not in edges[node]:
                edges[node][character] = len(edges)
                edges.append({})
                depth.append(depth[node] + 1)
                longest.append("")
            node = edges[node][character]
        longest[node] = stop
    fallback = [0] * len(edges)
    waiting = deque(edges[0].values())
    while waiting:
        node = waiting.popleft()
        longest[node] = longest[node] or longest[fallback[node]]
        for character, child in edges[node].items():
            behind = fallback[node]
            while behind and character not in edges[behind]:
                behind = fallback[behind]
            fallback[child] = edges[behind].get(character, 0)
            waiting.append(child)
    return Automaton(
        edges=tuple(edges),
        fallback=tuple(fallback),
        depth=tuple(depth),
        longest_stop=tuple(longest),
    )


class StopMatcher:
    """Filters one output.

    Of several stops in one piece the one that begins first wins, and of those that begin
    together the shortest, which was complete first.
    """

    __slots__ = ("_automaton", "_held", "_node", "matched")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._automaton = automaton(stops)
        self._node = 0
        self._held = ""
        """The end of the text so far that begins some stop."""
        self.matched: str | None = None
        """The stop that was found; nothing follows it."""

    def feed(self, piece: str, *, may_match: bool = True) -> str:
        """What may go out now; the text before the stop, once `matched` is set.

        Without `may_match`, stops that are complete within this piece are ordinary text; what only
        begins in it may become one with a later piece.
        """
        edges, fallback = self._automaton.edges, self._automaton.fallback
        depths, longest_stop = self._automaton.depth, self._automaton.longest_stop
        text = self._held + piece
        node, position = self._node, len(self._held)
        first_start = len(text)
        for character in piece:
            while node and character not in edges[node]:
                node = fallback[node]
            node = edges[node].get(character, 0)
            position += 1
            stop = longest_stop[node] if may_match else ""
            if stop and position - len(stop) < first_start:
                first_start, self.matched = position - len(stop), stop
            if self.matched is not None and position - depths[node] >= first_start:
                # Whatever may still be found begins later.
                break
        if self.matched is not None:
            self._held = ""
            return text[:first_start]
        while node and not edges[node]:
            # A whole stop that did not count: only its end may still begin another.
            node = fallback[node]
        self._node = node
        held_from = len(text) - depths[node]
        self._held = text[held_from:]
        return text[:held_from]

    def finish(self) -> str:
        """The text held back, at an end without a match."""
        held, self._held, self._node = self._held, "", 0
        return held
