"""Chooses whom to cut back when the pool is full.  Sees requests; frees nothing itself.

A policy is one function from a non-empty list of running requests to the victim.
"""

from collections.abc import Callable

from scheduler_svc.core.request import Request

RetractionPolicy = Callable[[list[Request]], Request]


def progress(running: list[Request]) -> Request:
    """Whoever has generated least goes first, preheats before all; among equals the newest.

    The request that is furthest along is never chosen while another runs, so one request
    always reaches its end, and with it all of them do.
    """
    return min(
        running,
        key=lambda request: (
            not request.submission.preheat,
            request.num_outputs + request.num_pending,
            -request.arrival,
        ),
    )


RETRACTION_POLICIES: dict[str, RetractionPolicy] = {"progress": progress}
