"""What is remembered of a plan until the worker answers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from scheduler_svc.core.request import Request


class PlannedRow(NamedTuple):
    """What a plan in flight does for one request."""

    request: Request
    extend_len: int
    samples: bool


@dataclass(frozen=True, slots=True)
class PlanInFlight:
    """A plan that was sent and not answered."""

    step_id: int
    decodes: list[Request]
    """One token each; they come first in the plan."""
    rows: list[PlannedRow]
    """The other rows, in plan order."""
    num_prefill_tokens: int


class PendingRemap(NamedTuple):
    """A row that must learn its new slots with the next plan."""

    request: Request
    first_page: int
    num_pages: int
