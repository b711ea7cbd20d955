"""The last requests that ended, for those who ask why afterwards."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from scheduler_svc.core.messages import Ending, Submission
from scheduler_svc.core.request import Event, Request

MOST_REMEMBERED = 512


class Ended(NamedTuple):
    """What is worth remembering of a request; its tokens are not."""

    request_id: str
    client_request_id: str
    tenant: str
    priority: int
    workload: str
    is_preheat: bool
    num_prompt: int
    num_outputs: int
    num_computed: int
    cached_tokens: int | None
    num_retractions: int
    num_drafted: int
    num_accepted: int
    submitted_ns: int
    ending: Ending
    events: tuple[Event, ...]


class MemoryOfEnded:
    """A bounded memory; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._ended: deque[Ended] = deque(maxlen=MOST_REMEMBERED)

    def remember(self, request: Request, ending: Ending) -> None:
        """It ended, with what it had computed at that moment."""
        submission: Submission = request.submission
        self._ended.append(
            Ended(
                request_id=request.request_id,
                client_request_id=submission.client_request_id,
                tenant=submission.tenant,
                priority=submission.priority,
                workload=submission.workload,
                is_preheat=submission.preheat,
                num_prompt=request.num_prompt,
                num_outputs=request.num_outputs,
                num_computed=request.num_computed,
                cached_tokens=request.cached_tokens,
                num_retractions=request.num_retractions,
                num_drafted=request.num_drafted,
                num_accepted=request.num_accepted,
                submitted_ns=request.submitted_ns,
                ending=ending,
                events=tuple(request.events),
            )
        )

    def find(self, request_id: str, tenant: str | None) -> Ended | None:
        """The last one of this id, the scheduler's or its client's, of a tenant (None: of any)."""
        for ended in reversed(self._ended):
            is_named = request_id in (ended.request_id, ended.client_request_id)
            if is_named and tenant in (None, ended.tenant):
                return ended
        return None
