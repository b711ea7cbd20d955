"""Why the next request was not admitted, for whoever asks; `explain` counts what it lacks."""

from __future__ import annotations

from typing import NamedTuple

from scheduler_svc.core.views import WaitingReason


class Verdict(NamedTuple):
    """Of the candidate at which the last admission stopped."""

    request_id: str
    """Empty: nobody was looked at."""
    reason: WaitingReason
