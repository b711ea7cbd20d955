"""The log probabilities of one prompt as they come from the scheduler, chunk after chunk.

Complete before the first output token.  When a scheduler goes with some of them, the next one
computes all of them anew: part of a prompt cannot be told apart from another part.
"""

from array import array

from protos.errors import WireError
from protos.plan import LogprobColumns


class PromptScores:
    """Grows to one entry for each prompt token but the first."""

    __slots__ = ("_columns", "_num_wanted", "num_top")

    def __init__(self, *, num_prompt: int, num_top: int) -> None:
        self.num_top = num_top
        """Alternatives of each token."""
        self._num_wanted = num_prompt - 1
        self.restart()

    def restart(self) -> None:
        """Forgets all of them: they come again, from the first."""
        self._columns = LogprobColumns(
            chosen=array("f"), top_ids=array("i"), top_logprobs=array("f")
        )

    def extend(self, columns: LogprobColumns) -> None:
        """Adds those of the next tokens, with `num_top` alternatives each.

        Raises:
            WireError: they are more than the prompt has.
        """
        if len(self._columns.chosen) + len(columns.chosen) > self._num_wanted:
            raise WireError(f"more log probabilities than the {self._num_wanted} of the prompt")
        self._columns.chosen.extend(columns.chosen)
        self._columns.top_ids.extend(columns.top_ids)
        self._columns.top_logprobs.extend(columns.top_logprobs)

    @property
    def is_complete(self) -> bool:
        """All of them have come."""
        return len(self._columns.chosen) == self._num_wanted

    def columns(self) -> LogprobColumns | None:
        """All of them; None before they are complete."""
        return self._columns if self.is_complete else None
