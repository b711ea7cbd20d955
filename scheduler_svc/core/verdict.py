"""Why the next request was not admitted: the numbers, for whoever asks."""

from __future__ import annotations

from typing import NamedTuple

from scheduler_svc.core.views import WaitingReason


class Verdict(NamedTuple):
    """Of the candidate at which the last admission stopped."""

    request_id: str
    """Empty: nobody was looked at."""
    reason: WaitingReason
    needed_pages: int = 0
    """What it and everything that runs are expected to need beyond what they hold."""
    promised_pages: int = 0
    """Of those, what is promised to those that run."""
    available_pages: int = 0
