"""Reads GBNF, llama.cpp's notation for grammars, into expressions.  Judges no grammar.

    root ::= "yes" | [a-z]+ ("," ws [^,\\n]){2,4}   # a comment
    ws   ::= " "?

Characters, not bytes: a class, a negated class and `.` stand for one character each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizer_svc.constraints.form_error import FormError

MAX_DEPTH = 64
"""Of parentheses inside each other."""
MAX_REPEATS = 10_000
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"} | {same: same for same in "\\\"[]-^'/."}
_LAST_CHARACTER = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly this; may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of these ranges, both ends included; `negated`: of none of them."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """What another rule stands for."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of these."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """So many times; `most` None: without limit."""

    item: Expression
    least: int
    most: int | None


Expression = Text | Chars | Ref | Sequence | Choice | Repeat

_REPEATS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(text: str) -> dict[str, Expression]:
    """The rules by name, in their order.

    Raises:
        FormError: it is no such grammar; says in which line.
    """
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Expression]:
        rules: dict[str, Expression] = {}
        self._skip(newlines=True)
        while self._next():
            name = self._name()
            self._skip()
            if not self._text.startswith("::=", self._at):
                raise self._wrong("`::=` was expected")
            if name in rules:
                raise self._wrong(f"a second rule `{name}`")
            self._at += 3
            self._skip(newlines=True)
            rules[name] = self._choice()
            if self._next() not in ("", "\n", "\r"):
                raise self._wrong(f"`{self._next()}` was not expected")
            self._skip(newlines=True)
        return rules

    def _choice(self) -> Expression:
        items = [self._sequence()]
        while self._bar_follows():
            self._at += 1
            self._skip(newlines=True)
            items.append(self._sequence())
        return items[0] if len(items) == 1 else Choice(tuple(items))

    def _bar_follows(self) -> bool:
        before = self._at
        self._skip(newlines=True)  # a line may go on with a bar
        if self._next() == "|":
            return True
        self._at = before
        return False

    def _sequence(self) -> Expression:
        items: list[Expression] = []
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
            self._skip(newlines=self._depth > 0)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self) -> Expression | None:
        character = self._next()
        if character == '"':
            return self._literal()
        if character == "[":
            return self._class()
        if character == "(":
            return self._group()
        if character == ".":
            self._at += 1
            return Chars(((0, _LAST_CHARACTER),))
        return Ref(self._name()) if _is_of_name(character) else None

    def _group(self) -> Expression:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"more than {MAX_DEPTH} parentheses inside each other")
        self._skip(newlines=True)
        inside = self._choice()
        self._skip(newlines=True)
        if self._next() != ")":
            raise self._wrong("`)` was expected")
        self._at += 1
        self._depth -= 1
        return inside

    def _repeated(self, item: Expression) -> Expression:
        self._skip(newlines=self._depth > 0)
        sign = self._next()
        if sign in _REPEATS:
            self._at += 1
            return Repeat(item, *_REPEATS[sign])
        if sign != "{":
            return item
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : max(end, self._at)].partition(",")
        if end < 0 or not least.strip().isdecimal() or not (most.strip() or "0").isdecimal():
            raise self._wrong("a number of repeats such as {2}, {2,} or {2,5} was expected")
        self._at = end + 1
        fewest = int(least)
        largest = (int(most) if most.strip() else None) if comma else fewest
        if (largest or fewest) > MAX_REPEATS or (largest is not None and largest < fewest):
            raise self._wrong(f"repeats go from fewest to most, at most {MAX_REPEATS}")
        return Repeat(item, fewest, largest)

    def _literal(self) -> Text:
        self._at += 1
        found = []
        while self._next() != '"':
            found.append(self._character())
        self._at += 1
        return Text("".join(found))

    def _class(self) -> Chars:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        ranges = []
        while self._next() != "]":
            first = last = ord(self._character())
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = ord(self._character())
            if last < first:
                raise self._wrong("a range goes from its lower to its higher end")
            ranges.append((first, last))
        self._at += 1
        if not ranges:
            raise self._wrong("a class has at least one character")
        return Chars(tuple(ranges), negated)

    def _character(self) -> str:
        character = self._next()
        self._at += 1
        if character != "\\":
            if character in ("", "\n"):
                raise self._wrong("a literal or class does not end")
            return character
        kind = self._next()
        self._at += 1
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        digits = self._text[self._at : self._at + _HEX_ESCAPES.get(kind, 0)]
        self._at += len(digits)
        if not digits or len(digits) != _HEX_ESCAPES[kind] or not _is_hex(digits):
            raise self._wrong(f"`\\{kind}{digits}` is no known escape")
        value = int(digits, 16)
        if value > _LAST_CHARACTER or 0xD800 <= value < 0xE000:
            raise self._wrong(f"`\\{kind}{digits}` is no character")
        return chr(value)

    def _name(self) -> str:
        start = self._at
        while _is_of_name(self._next()):
            self._at += 1
        if self._at == start:
            raise self._wrong("the name of a rule was expected")
        return self._text[start : self._at]

    def _skip(self, *, newlines: bool = False) -> None:
        while character := self._next():
            if character == "#":
                end = self._text.find("\n", self._at)
                self._at = end if end >= 0 else len(self._text)
            elif character in " \t" or (newlines and character in "\r\n"):
                self._at += 1
            else:
                return

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _wrong(self, problem: str) -> FormError:
        line = self._text.count("\n", 0, min(self._at, len(self._text))) + 1
        return FormError(f"line {line}: {problem}")


def _is_of_name(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in ("-", "_"))


def _is_hex(digits: str) -> bool:
    return all(digit in "0123456789abcdefABCDEF" for digit in digits)
