"""Grammars of constrained outputs: what may follow, as a function of the tokens so far.

The one place that knows the library (llguidance), with one set of limits: the front tries each
grammar here before a request goes on, and what it accepted the worker can run.  Not here: what
clients write (the front makes grammars of it), sampling.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from protos.errors import RadixdError
from radixd.chassis.vocabulary import Vocabulary

if TYPE_CHECKING:
    import llguidance

_MAX_KEPT = 64
"""Compiled grammars that are kept for the next row with the same one."""
_MAX_KEPT_CHARACTERS = 16 << 20
"""Of their texts; a compiled one takes some seven times as much."""
_MAX_STATES, _MAX_STEP_FUEL = 50_000, 100_000
"""Below the library's own: an expression that explodes shows within 0.5 s instead of 2.4."""
_LONGEST_FORCED = 32
"""In bytes: tokens longer than that are not chosen for text that is certain."""
_REASON = re.compile(r"^error: (.+)$", re.MULTILINE)
"""Below a drawing of the expression."""


class GrammarError(RadixdError):
    """A grammar that cannot be read or met, or is too complex; one line that says why."""

    reason = "GRAMMAR"


class Grammars:
    """Compiles grammars over one vocabulary."""

    def __init__(
        self, vocabulary: Vocabulary, *, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        """`vocab_size`: of the model, whose rows beyond the vocabulary stand for nothing.

        Raises:
            GrammarError: the model has no end of sequence, so that no output could end.
        """
        # Here, as neither the scheduler nor a worker without such a request needs the library.
        import llguidance

        if not eos_token_ids:
            raise GrammarError("the model has no end of sequence")
        entries = vocabulary.entries[:vocab_size]
        tokens = _Tokens(
            entries + (b"",) * (vocab_size - len(entries)),
            [i for i in sorted(vocabulary.special_ids) if i < vocab_size],
            eos_token_ids[0],
        )
        self._library = llguidance
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(tokens), vocab_size, eos_token=list(eos_token_ids)
        )
        # A verbose error would put the output's text into logs.
        self._limits = llguidance.LLParserLimits(
            max_lexer_states=_MAX_STATES, step_lexer_fuel=_MAX_STEP_FUEL, verbose_errors=False
        )
        self._kept: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def matcher(self, grammar: str) -> Matcher:
        """A matcher at the beginning of an output.

        Raises:
            GrammarError: the grammar cannot be read, or is too complex.
        """
        compiled = self._kept.pop(grammar, None)
        if compiled is None:
            compiled = self._library.LLMatcher(
                self._tokens, grammar, log_level=0, limits=self._limits
            )
            _check(compiled)
        self._kept[grammar] = compiled
        while len(self._kept) > _MAX_KEPT or sum(map(len, self._kept)) > _MAX_KEPT_CHARACTERS:
            self._kept.popitem(last=False)
        # Copies share what the lexer finds out, up to its limit: after trouble it begins anew.
        return Matcher(compiled.deep_copy(), lambda: self._kept.pop(grammar, None))


class Matcher:
    """Where one output is in its grammar."""

    __slots__ = ("_on_error", "_state")

    def __init__(self, state: llguidance.LLMatcher, on_error: Callable[[], object]) -> None:
        self._state = state
        self._on_error = on_error

    def copy(self) -> Matcher:
        """Another one at the same place."""
        return Matcher(self._state.deep_copy(), self._on_error)

    def mask(self) -> bytes:
        """[vocab_size bits, rounded up] which tokens may follow, the lowest bit first.

        Ends of sequence are among them exactly where the output is complete, and alone where
        nothing else can follow.

        Raises:
            GrammarError: nothing can follow, or finding out is too complex.
        """
        mask = self._state.compute_bitmask()
        self._check()
        return mask

    def take(self, token_ids: Iterable[int]) -> None:
        """Goes on by these tokens; behind the end of the output none matters.

        Raises:
            GrammarError: they cannot follow.
        """
        state = self._state
        for token_id in token_ids:
            if state.is_stopped() or not state.consume_token(token_id):
                break
        self._check()

    @property
    def is_complete(self) -> bool:
        """Whether the output may end here."""
        return self._state.is_accepting()

    def _check(self) -> None:
        # In an error the mask is that of an output that is complete.
        if self._state.is_error():
            self._on_error()
            _check(self._state)


def allowed_ids(mask: bytes) -> list[int]:
    """The token ids of a mask, ascending."""
    return [
        8 * at + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1
    ]


def _check(state: llguidance.LLMatcher) -> None:
    if state.is_error():
        raise GrammarError(_one_line(state.get_error()))


def _one_line(problem: str) -> str:
    """The library's words, without its drawings."""
    if "NoExtension" in problem:
        return "no text can meet it"
    if reason := _REASON.search(problem):
        return f"invalid regular expression: {reason[1]}"
    return " ".join(problem.replace("<non-verbose/>", "").split())[:300]


class _Tokens:
    """The vocabulary as the library takes it."""

    bos_token_id = None

    def __init__(
        self, tokens: tuple[bytes, ...], special_token_ids: list[int], eos_token_id: int
    ) -> None:
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id
        special = set(special_token_ids)
        # By number: with no spelling, as some have, one stands for all where one may follow.
        self.tokens = tuple(
            f"<{i}>".encode() if i in special else entry for i, entry in enumerate(tokens)
        )
        self._ids = {
            entry: i
            for i, entry in reversed(list(enumerate(tokens)))
            if entry and len(entry) <= _LONGEST_FORCED and i not in special
        }

    def __call__(self, text: bytes | str) -> list[int]:
        """Text that is certain as tokens: the longest at each place."""
        data = text.encode() if isinstance(text, str) else text
        found, at = [], 0
        while at < len(data):
            for size in range(min(_LONGEST_FORCED, len(data) - at), 0, -1):
                token_id = self._ids.get(data[at : at + size])
                if token_id is not None:
                    found.append(token_id)
                    at += size
                    break
            else:
                return found  # the library goes on by itself
        return found
