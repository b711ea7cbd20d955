"""Text that comes in pieces, for readers written as if all of it were there.

A reader is a generator that yields wherever it needs a character that has not come yet.  As it
sees one text and never where that was cut, what it finds cannot depend on the cuts.
"""

import re
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Reader = Generator[None, None, T]
"""Yields to wait for more text; returns what it found."""

SPACE = " \t\r\n"
_STRUCTURE = re.compile(r'[{}"]|[^\[\],:0-9+\-.aeflnrstuE \t\r\n]')
"""What matters of JSON outside its strings, and what cannot be there."""
_END_OF_RUN = re.compile(r'["\\]')


class IncomingText:
    """The text that is not taken yet, and how far a reader has got in it."""

    __slots__ = ("_text", "at", "is_ended")

    def __init__(self) -> None:
        self._text = ""
        self.is_ended = False
        """True: nothing more comes."""
        self.at = 0
        """The reader's next character; positions change at `take` alone."""

    def add(self, piece: str) -> None:
        """More of it."""
        self._text += piece

    def end(self) -> None:
        """Nothing more comes."""
        self.is_ended = True

    @property
    def seen(self) -> str:
        """All that has come and is not taken."""
        return self._text

    def since(self, start: int) -> str:
        """What lies between a position and the reader."""
        return self._text[start : self.at]

    def take(self) -> str:
        """What the reader has passed; it is gone afterwards."""
        passed, self._text = self._text[: self.at], self._text[self.at :]
        self.at = 0
        return passed

    def take_all(self) -> str:
        """What has come; it is gone afterwards."""
        self.at = len(self._text)
        return self.take()

    def more(self) -> Reader[bool]:
        """Waits for another piece; False at the end."""
        if not self.is_ended:
            yield
        return not self.is_ended

    def next(self) -> Reader[str]:
        """The character that comes next; "" at the end.  Steps over nothing."""
        while self.at >= len(self._text):
            if not (yield from self.more()):
                break
        return self._text[self.at : self.at + 1]

    def skip_any(self, characters: str) -> Reader[None]:
        """Steps over these characters, as many as come."""
        while (yield from self.next()) and self._text[self.at] in characters:
            self.at += 1

    def skip(self, literal: str) -> Reader[bool]:
        """Steps over this text where it comes next; waits no longer than it may still come."""
        while True:
            come = self._text[self.at : self.at + len(literal)]
            if come == literal:
                self.at += len(literal)
                return True
            if not literal.startswith(come) or not (yield from self.more()):
                return False

    def skip_closing(self, mark: str) -> Reader[None]:
        """Steps over this mark where it comes next, or over as much as came before all ended."""
        if not (yield from self.skip(mark)) and self.is_ended:
            rest = self._text[self.at :]
            self.at += len(rest) if mark.startswith(rest) else 0

    def until(self, literal: str, *, within: int) -> Reader[str | None]:
        """Steps over this text and returns what came before it; None: not `within` characters."""
        start = self.at
        while True:
            limit = start + within + len(literal)
            found = self._text.find(literal, start, limit)
            if found >= 0:
                self.at = found + len(literal)
                return self._text[start:found]
            if len(self._text) >= limit or not (yield from self.more()):
                return None

    def json_object(self) -> Reader[str | None]:
        """Steps over what looks like one JSON object; None: none begins here, or it never ends.

        Only braces and strings are looked at; whether it is JSON is for others to say.  What
        cannot be of any, a mark that closes a broken one for instance, is not stepped over.
        """
        start, depth = self.at, 0
        if (yield from self.next()) != "{":
            return None
        while True:
            found = _STRUCTURE.search(self._text, self.at)
            if found is None:
                self.at = len(self._text)
                if not (yield from self.next()):
                    return None
                continue
            if found[0] not in '{}"':
                self.at = found.start()
                return None
            self.at = found.end()
            if found[0] == '"':
                yield from self._rest_of_string()
                continue
            depth += 1 if found[0] == "{" else -1
            if depth == 0:
                return self.since(start)

    def _rest_of_string(self) -> Reader[None]:
        while True:
            found = _END_OF_RUN.search(self._text, self.at)
            self.at = len(self._text) if found is None else found.end()
            if found is not None and found[0] == '"':
                return
            if not (yield from self.next()):
                return
            if found is not None:
                self.at += 1  # whatever is escaped
