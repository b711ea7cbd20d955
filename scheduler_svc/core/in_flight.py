"""What is remembered of a plan until the worker answers it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_svc.core.request import Request
from scheduler_svc.core.stems import IntArray, put_back


class PlannedRow(NamedTuple):
    """What a plan in flight does for one request."""

    request: Request
    extend_len: int
    num_samples: int
    """Tokens it may sample: none, one, or one more than there are drafts."""
    drafts: array[int] | None = None
    """The last inputs of a row that decodes, if they are guesses."""
    num_scored: int = 0
    """Tokens of its prompt whose log probability comes back."""


@dataclass(frozen=True, slots=True)
class PlanInFlight:
    """A plan that was sent and not answered."""

    step_id: int
    decodes: list[Request]
    """One token each; they come first in the plan, in the order of `entries`."""
    rows: list[PlannedRow]
    """The other rows, in plan order."""
    num_prefill_tokens: int
    num_prefill_pairs: int = 0
    """See core.step_time."""
    num_verified_tokens: int = 0
    """Inputs of decoding rows among `rows`: their last tokens and the drafts behind them."""
    num_drafts: int = 0
    num_scored: int = 0
    """Prompt tokens whose log probability comes back."""
    sent_alone_ns: int | None = None
    """When it was planned, if nothing else was in flight then."""
    entries: IntArray | None = None
    """[decodes] of each entry of the plan, which of `decodes` it is; None: in their order."""

    def decodes_as_planned(self) -> list[Request]:
        """`decodes` in the order of the plan."""
        if self.entries is None:
            return self.decodes
        return [self.decodes[place] for place in self.entries]

    def tokens_of_decodes(self, token_ids: array[int]) -> array[int]:
        """The tokens of `decodes`, in their order; others may follow.

        token_ids: what the plan sampled.
        """
        if self.entries is None:
            return token_ids
        return put_back(token_ids[: len(self.decodes)], self.entries)


class PendingRemap(NamedTuple):
    """A row that must learn its new slots with the next plan."""

    request: Request
    first_page: int
    num_pages: int
