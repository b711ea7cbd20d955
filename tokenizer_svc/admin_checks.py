"""Checks of what operators ask, each refusal naming its field; needs neither model nor scheduler.

What a policy may be set to is the scheduler's to judge, as it alone knows them all.
"""

import math
from typing import TypeVar

from protos.errors import InvalidRequest
from protos.radixd.v1 import admin_pb2 as pb
from protos.radixd.v1 import policy_pb2

MAX_NODES = 100_000
MAX_REQUESTS = 100_000
MAX_SESSIONS = 100_000
MAX_PIN_IDS = 1024
MAX_PIN_ID_LENGTH = 128
MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 3_600_000

_DEFAULT_NUMBER = 1000
"""Of nodes, of requests, of sessions, and of milliseconds between two looks at the books."""

Question = TypeVar(
    "Question",
    pb.DumpTreeRequest,
    pb.ListRequestsRequest,
    pb.ListSessionsRequest,
    pb.WatchStatsRequest,
)


def max_nodes(request: pb.DumpTreeRequest) -> int:
    """Most nodes to show."""
    return _number(request, "max_nodes", 1, MAX_NODES)


def max_requests(request: pb.ListRequestsRequest) -> int:
    """Most requests to list."""
    return _number(request, "max_requests", 1, MAX_REQUESTS)


def max_sessions(request: pb.ListSessionsRequest) -> int:
    """Most sessions to list."""
    return _number(request, "max_sessions", 1, MAX_SESSIONS)


def interval_s(request: pb.WatchStatsRequest) -> float:
    """Time between two looks."""
    return _number(request, "interval_ms", MIN_INTERVAL_MS, MAX_INTERVAL_MS) / 1000


def check_unpin(request: pb.UnpinRequest) -> None:
    """Either ids or all."""
    if request.all and request.pin_ids:
        raise InvalidRequest("all", "pin_ids must be empty then; give one of the two")
    if not request.all and not request.pin_ids:
        raise InvalidRequest("pin_ids", "empty; at least one id is needed, or all")
    if len(request.pin_ids) > MAX_PIN_IDS:
        raise InvalidRequest("pin_ids", f"{len(request.pin_ids)} ids; at most {MAX_PIN_IDS}")
    for i, pin_id in enumerate(request.pin_ids):
        if not 1 <= len(pin_id) <= MAX_PIN_ID_LENGTH:
            raise InvalidRequest(
                f"pin_ids[{i}]", f"{len(pin_id)} characters; 1 to {MAX_PIN_ID_LENGTH} are allowed"
            )


def check_policies(policies: policy_pb2.Policies) -> None:
    """At least one policy, and every number finite."""
    given = policies.ListFields()
    if not given:
        raise InvalidRequest("policies", "none is set; at least one is needed")
    for field, value in given:
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"policies.{field.name}", f"{value:g} is no finite number")
    if "" in policies.chunk_sizes:
        raise InvalidRequest("policies.chunk_sizes", "the name of a class is empty")


def _number(request: Question, field: str, least: int, most: int) -> int:
    if not request.HasField(field):
        return _DEFAULT_NUMBER
    value: int = getattr(request, field)
    if not least <= value <= most:
        raise InvalidRequest(field, f"{value} is not in {least}..{most}")
    return value
