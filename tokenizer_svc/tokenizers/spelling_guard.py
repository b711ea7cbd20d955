"""Keeps control tokens that callers spell from becoming control tokens."""

import re
import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""No text means them, and no control token has them."""
_MARK_LENGTH = 12


def fresh_mark() -> str:
    """A text that nobody can have written: drawn anew by every call, from 32**12."""
    return "".join(secrets.choice(_NONCHARACTERS) for _ in range(_MARK_LENGTH))


class SpellingGuard:
    """Breaks the spellings of control tokens in texts with a mark, and takes the mark out again.

    The mark survives trimming and changes of case, and it is drawn anew for every conversation,
    so that no message can contain it.
    """

    def __init__(self, spellings: Iterable[str]) -> None:
        self._spelling, self._openings, self._max_open = _patterns(tuple(spellings))
        self.mark = fresh_mark()

    def protect(self, text: str) -> str:
        """The text with a mark inside every spelling of a control token."""
        while self._spelling.search(text):  # again where one spelling lies inside another
            text = self._spelling.sub(self._broken, text)
        tails = (text[at:] for at in range(max(0, len(text) - self._max_open), len(text)))
        # A message may end like the start of a control token that the template would complete.
        return text + self.mark if any(tail in self._openings for tail in tails) else text

    def protect_all(self, value: Any) -> Any:
        """A value as JSON has them, with every text in it protected, names of members too."""
        if isinstance(value, str):
            return self.protect(value)
        if isinstance(value, Mapping):
            return {self.protect(name): self.protect_all(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.protect_all(each) for each in value]
        return value

    def restore(self, text: str) -> str:
        """The text without marks."""
        return text.replace(self.mark, "")

    def _broken(self, match: re.Match[str]) -> str:
        spelled = match.group()
        return spelled[0] + self.mark + spelled[1:]


@lru_cache(maxsize=8)
def _patterns(spellings: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str], int]:
    """Any spelling; how one may begin without being complete; the longest of these beginnings."""
    breakable = [spelling for spelling in spellings if len(spelling) > 1]
    openings = frozenset(text[:n] for text in breakable for n in range(1, len(text)))
    return re.compile(any_of(breakable)), openings, max(map(len, openings), default=0)


def any_of(texts: Iterable[str]) -> str:
    """A regular expression for any of these texts, the longest first; never matches for none.

    It is written as the tree of their beginnings.  A plain choice would try all of them at every
    place: seconds a megabyte, with Python's lock held, for the hundreds that some models have.
    """
    root = _Beginnings()
    for text in filter(None, texts):
        node = root
        for character in text:
            node = node.setdefault(character, _Beginnings())
        node[""] = _Beginnings()
    return _choice(root) or "(?!)"


class _Beginnings(dict[str, "_Beginnings"]):
    """What may follow a beginning, by its first character; "": it may end here."""


def _choice(node: _Beginnings) -> str:
    options = []
    for first, following in node.items():
        written, child = re.escape(first), following
        while len(child) == 1 and "" not in child:
            ((character, child),) = child.items()
            written += re.escape(character)
        if first:
            options.append(written + _choice(child))
    if len(options) == 1 and "" not in node:
        return options[0]
    return f"(?:{'|'.join(options)}){'?' if '' in node else ''}" if options else ""
