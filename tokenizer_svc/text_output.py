"""Token ids of one output to the text a client may see, and the moment it must stop.

The rule for every ending: whatever ended the output (a stop text, a stop token, the model's end
of sequence) is not in the text; every id generated up to and including it is in the ids.

With min_tokens the output ends with token number min_tokens + 1 at the earliest.  Stop tokens see
to that in the sampler, which cannot draw them before; stop texts here: one whose last character
comes out with one of the first min_tokens tokens is ordinary text, wherever it began, and one
that is complete only later counts, even if it began among them.  A character comes out with the
token that completes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokenizer_svc.stop_strings import StopMatcher
from tokenizer_svc.tokenizers.tokenizer import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """What ends an output besides its length."""

    texts: tuple[str, ...] = ()
    token_ids: frozenset[int] = frozenset()
    """Including the model's end-of-sequence tokens, unless those are to be ignored."""
    min_tokens: int = 0
    spelled_ids: Mapping[int, str] = field(default_factory=dict)
    """Those of token_ids that the client named by their spelling."""


class TextOutput:
    """The text of one output, piece by piece; the same text however the ids were cut into calls."""

    __slots__ = (
        "_decoder",
        "_matcher",
        "_num_fed",
        "_rules",
        "matched_text",
        "matched_token_id",
    )

    def __init__(self, decoder: Decoder, rules: StopRules) -> None:
        self._decoder = decoder
        self._rules = rules
        self._matcher = StopMatcher(rules.texts) if rules.texts else None
        self._num_fed = 0
        self.matched_text: str | None = None
        self.matched_token_id: int | None = None

    @property
    def stopped(self) -> bool:
        """A stop text or stop token was found: no id after it counts."""
        return self.matched_text is not None or self.matched_token_id is not None

    def feed(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """The new text, and how many of the ids belong to the output (fewer once stopped)."""
        assert not self.stopped
        if self._matcher is None and self._rules.token_ids.isdisjoint(token_ids):
            return self._decoder.feed(token_ids), len(token_ids)
        pieces = []
        num_ids = 0
        for token_id in token_ids:
            num_ids += 1
            self._num_fed += 1
            if token_id in self._rules.token_ids:
                self._match_token(token_id)
                pieces.append(self._ended())
                break
            pieces.append(self._filtered(self._decoder.feed((token_id,))))
            if self.stopped:
                break
        return "".join(pieces), num_ids

    def finish(self) -> str:
        """What is still held back, at an ending that no stop brought about."""
        return "" if self.stopped else self._ended()

    @property
    def _may_match(self) -> bool:
        return self._num_fed > self._rules.min_tokens

    def _match_token(self, token_id: int) -> None:
        self.matched_text = self._rules.spelled_ids.get(token_id)
        if self.matched_text is None:
            self.matched_token_id = token_id

    def _filtered(self, text: str) -> str:
        if self._matcher is None:
            return text
        text = self._matcher.feed(text, may_match=self._may_match)
        self.matched_text = self._matcher.matched
        return text

    def _ended(self) -> str:
        """An unfinished character comes out as U+FFFD; it may complete a stop text, too."""
        tail = self._decoder.finish()
        if self._matcher is None:
            return tail
        text = self._matcher.feed(tail, may_match=self._may_match)
        if self._matcher.matched is None:
            return text + self._matcher.finish()
        if self.matched_token_id is None:
            self.matched_text = self._matcher.matched
        return text
