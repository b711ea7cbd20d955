"""Takes one output apart while it comes: thoughts, calls of tools, and the text that is left.

Stop texts act before it, on the text as the model wrote it.  Joined, its pieces do not depend on
how that text was cut.  What only looks like a call is text, to the last character.  White space
before a call and behind the last, and line ends around thoughts, belong to the marks: they are in
no text.
"""

import hashlib
import re
import string
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tokenizer_svc.chat.call_formats import CallFormat, FoundCall
from tokenizer_svc.chat.chat_format import ChatFormat, Thoughts
from tokenizer_svc.chat.incoming_text import SPACE, IncomingText, Reader
from tokenizer_svc.tokenizers.tokenizer import ToolCall

_ID_CHARACTERS = string.digits + string.ascii_letters
_ID_LENGTH, _SHORT_ID_LENGTH = 24, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What is new of an output."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserRules:
    """What to look for; by default nothing, and all of the output is text."""

    calls: CallFormat | None = None
    """None: no calls."""
    names: Collection[str] = ()
    """Of the functions that may be called."""
    id_seed: str = ""
    """Ids of calls are a function of this and of their order."""
    thoughts: Thoughts | None = None
    """None: no thoughts."""
    separates_thoughts: bool = False
    """False: thoughts stay in the text as they are, and no call is looked for in them."""
    begins_with_calls: bool = False
    """True: an answer that does not begin with a call, as a grammar writes it, has a form instead,
    and is text to its end."""
    begins_in_thoughts: bool = False
    """True: the prompt has opened them already."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens and have to be seen all the same."""
        return ChatFormat(calls=self.calls, thoughts=self.thoughts).markers


class OutputParser:
    """Parses one output; the same whether it comes in one piece or in many."""

    def __init__(self, rules: ParserRules) -> None:
        self._rules = rules
        self._text = IncomingText()
        self._new_text: list[str] = []
        self._new_reasoning: list[str] = []
        self._new_calls: list[ToolCall] = []
        self._num_calls = 0
        self._is_after_call = False
        """Nothing but white space came since the last call."""
        self._is_only_text = False
        """Nothing is looked for any more, and nothing is held back."""
        self.is_thinking = rules.thoughts is not None and rules.separates_thoughts
        """Thoughts that are taken out of the text may still come, or have not ended yet."""
        self.has_thoughts = self.is_thinking and rules.begins_in_thoughts
        """There are such thoughts."""
        self._reader = self._read()

    @property
    def has_calls(self) -> bool:
        """True once a call was found."""
        return self._num_calls > 0

    def feed(self, text: str) -> Parsed:
        """What this text completes."""
        if self._is_only_text:
            return Parsed(text=text)
        self._text.add(text)
        return self._advanced()

    def finish(self) -> Parsed:
        """What is still held back, at the end."""
        self._text.end()
        return self._advanced()

    def _advanced(self) -> Parsed:
        next(self._reader, None)
        parsed = Parsed(
            text="".join(self._new_text),
            reasoning="".join(self._new_reasoning),
            tool_calls=tuple(self._new_calls),
        )
        self._new_text, self._new_reasoning, self._new_calls = [], [], []
        return parsed

    def _read(self) -> Reader[None]:
        if self._rules.thoughts is not None:
            yield from self._read_thoughts(self._rules.thoughts)
        if self._rules.calls is not None:
            yield from self._read_answer(self._rules.calls)
        self._is_only_text = True
        while True:
            self._pass_text(self._text.take_all())
            if not (yield from self._text.more()):
                return

    def _read_thoughts(self, marks: Thoughts) -> Reader[None]:
        text = self._text
        if not self._rules.begins_in_thoughts:
            yield from text.skip_any(SPACE)
            if not (yield from text.skip(marks.opening)):
                text.at = 0
                self.is_thinking = False
                return
        closing = (marks.closing,)
        if not self._rules.separates_thoughts:
            if (yield from self._pass_up_to(closing, self._pass_text)):
                yield from text.skip(marks.closing)
                self._pass_text(text.take())
            return
        self.has_thoughts = True
        yield from text.skip_any("\n")
        text.take()
        if (yield from self._pass_up_to(closing, self._pass_thought, blank="\n")):
            yield from text.skip(marks.closing)
            self.is_thinking = False
            yield from text.skip_any("\n")
            text.take()
        else:
            text.take_all()

    def _read_answer(self, calls: CallFormat) -> Reader[None]:
        text = self._text
        must_begin = self._rules.begins_with_calls
        may_be_bare = calls.is_bare and not must_begin
        while True:
            comes = may_be_bare and (yield from self._comes_bare())
            if must_begin:
                comes = yield from self._comes_as_written(calls)
            elif not comes:
                comes = yield from self._pass_up_to(calls.starts, self._pass_text, blank=SPACE)
            if not comes:
                break
            found = yield from calls.read(text, self._rules.names)
            may_be_bare = calls.is_bare and bool(found)
            passed = text.take()
            if not found:
                self._pass_text(passed)
            for call in found:
                self._pass_call(call, calls)
            if must_begin and not found:
                break
            must_begin = False
        if self._is_after_call:
            text.take_all()

    def _comes_bare(self) -> Reader[bool]:
        """Steps to an object without an opening, where one comes next."""
        text = self._text
        yield from text.skip_any(SPACE)
        if self._is_after_call and (yield from text.skip(";")):
            yield from text.skip_any(SPACE)
        if (yield from text.next()) == "{":
            return True
        text.at = 0
        return False

    def _comes_as_written(self, calls: CallFormat) -> Reader[bool]:
        """True where a call begins to the letter as a grammar writes it; steps over nothing.

        An answer of a form may well look like a bare call that was written in another way.
        """
        for name in self._rules.names:
            is_there = yield from self._text.skip(calls.written(name)[0])
            self._text.at = 0
            if is_there:
                return True
        return False

    def _pass_up_to(
        self, marks: Sequence[str], sink: Callable[[str], None], *, blank: str = ""
    ) -> Reader[bool]:
        """Passes text on up to one of the marks, and steps to it; False: none came.

        What may still become a mark waits, and so do these blank characters before it, and at the
        end of all.
        """
        text = self._text
        mark = re.compile("|".join(map(re.escape, marks)))
        while True:
            found = mark.search(text.seen)
            num_open = 0 if found or text.is_ended else _num_open(text.seen, marks)
            end = found.start() if found else len(text.seen) - num_open
            text.at = len(text.seen[:end].rstrip(blank))
            num_blank = end - text.at
            sink(text.take())
            if found:
                text.at = num_blank
                return True
            if text.is_ended:
                return False
            yield from text.more()

    def _pass_text(self, text: str) -> None:
        if text:
            self._is_after_call = False
            self._new_text.append(text)

    def _pass_thought(self, text: str) -> None:
        self._new_reasoning.append(text)

    def _pass_call(self, call: FoundCall, calls: CallFormat) -> None:
        self._is_after_call = True
        call_id = _call_id(f"{self._rules.id_seed}:{self._num_calls}", is_short=calls.short_ids)
        self._num_calls += 1
        self._new_calls.append(ToolCall(id=call_id, name=call.name, arguments=call.arguments))


def _num_open(text: str, marks: Sequence[str]) -> int:
    """The length of the longest end of the text that begins a mark."""
    longest = min(max(map(len, marks)) - 1, len(text))
    for length in range(longest, 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


def _call_id(seed: str, *, is_short: bool) -> str:
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest())
    characters = []
    for _ in range(_SHORT_ID_LENGTH if is_short else _ID_LENGTH):
        number, at = divmod(number, len(_ID_CHARACTERS))
        characters.append(_ID_CHARACTERS[at])
    return ("" if is_short else "call_") + "".join(characters)
