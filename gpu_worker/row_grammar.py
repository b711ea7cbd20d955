"""What rows with a grammar may say next, as a function of the tokens they have said.

Trouble of one row stays its own: it is remembered, and its request ends as failed while the step
goes on.  Needs no numpy.  Not here: the library, drawing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from protos.errors import RadixdError
from protos.plan import NewRow
from radixd.chassis.grammars import GrammarError, Grammars, Matcher
from radixd.chassis.vocabulary import Vocabulary


class RowGrammar:
    """Where one live row is in its grammar."""

    __slots__ = ("_matcher", "problem")

    def __init__(self, matcher: Matcher | None, problem: str = "") -> None:
        self._matcher = matcher
        self.problem = problem
        """Why the row cannot go on; empty: it can."""

    def mask(self) -> bytes | None:
        """[vocab_size bits] the tokens that may follow, ends of sequence where it is complete.
        None: it cannot go on, and what is sampled means nothing."""
        if self._matcher is None:
            return None
        try:
            return self._matcher.mask()
        except GrammarError as error:
            self._fail(error)
            return None

    def masks(self, drafts: Sequence[int]) -> list[bytes | None]:
        """[drafts + 1] the masks now and behind each draft, should it be sampled; None where it
        cannot go on, or nothing can come that far."""
        masks = [self.mask()]
        ahead = None if self._matcher is None else self._matcher.copy()
        for draft in drafts:
            mask = masks[-1]
            try:
                if ahead is None or mask is None or not mask[draft // 8] >> draft % 8 & 1:
                    ahead = None
                else:
                    ahead.take((draft,))
                masks.append(None if ahead is None else ahead.mask())
            except GrammarError:  # when the draft is sampled, `record` meets it again
                ahead = None
                masks.append(None)
        return masks

    def record(self, token_id: int) -> None:
        """Goes on by a token that the row just sampled."""
        if self._matcher is None:
            return
        try:
            self._matcher.take((token_id,))
        except GrammarError as error:
            self._fail(error)

    def _fail(self, error: RadixdError) -> None:
        self._matcher = None
        self.problem = f"it cannot be followed: {error}"


class RowGrammars:
    """Opens the grammars of rows; the vocabulary is read once, when the first one asks."""

    def __init__(
        self,
        read: Callable[[], Vocabulary | None],
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
    ) -> None:
        self._read = read
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._grammars: Grammars | None = None
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Reads the vocabulary beside what else goes on, so that no step waits for it."""
        threading.Thread(target=self._warm, name="grammars", daemon=True).start()

    def open(self, new: NewRow) -> RowGrammar:
        """The grammar of a new row, behind the output that its context holds."""
        try:
            matcher = self._opened().matcher(new.sampling.grammar)
            matcher.take(new.context_ids[new.num_prompt :])
        except RadixdError as error:
            return RowGrammar(None, f"it cannot be followed: {error}")
        return RowGrammar(matcher)

    def _warm(self) -> None:
        try:
            self._opened()
        except RadixdError:
            return  # whoever asks for a grammar will hear of it

    def _opened(self) -> Grammars:
        with self._lock:
            if self._grammars is None:
                vocabulary = self._read()
                if vocabulary is None:
                    raise GrammarError("the model's files do not tell what its tokens spell")
                self._grammars = Grammars(
                    vocabulary, vocab_size=self._vocab_size, eos_token_ids=self._eos_token_ids
                )
            return self._grammars


def no_vocabulary() -> None:
    """Of an engine whose model came without files."""
    return
