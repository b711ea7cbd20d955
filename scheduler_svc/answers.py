"""Answers to operators' questions, formed in the engine loop's thread; they change no request.

Each works before the first worker has connected, when there is no core to ask: then the lobby
holds whoever waits.
"""

from collections.abc import Mapping, Sequence

import structlog

from protos.errors import UnknownRequestId
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from radixd.chassis.memory import peak_rss_bytes
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import TreeNodeView
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.views import (
    Explanation,
    PinView,
    RequestView,
    SessionView,
    WaitingReason,
)
from scheduler_svc.engine_loop import EngineLoop
from scheduler_svc.policy_translation import difference, refusal
from scheduler_svc.translation import model_to_proto, tree_node_to_proto
from scheduler_svc.view_translation import (
    economy_to_proto,
    histogram_to_proto,
    step_profile_to_proto,
    tenant_to_proto,
)

DEFAULT_MAX_NODES = 1000
log = structlog.get_logger()


def stats(engine: EngineLoop) -> pb.GetStatsResponse:
    """The books; all zero but those who wait before the first worker has connected."""
    answer = pb.GetStatsResponse(
        worker_connected=engine.hello is not None,
        num_running=engine.num_running,
        num_waiting=engine.num_waiting,
    )
    answer.counters["worker_messages_malformed"] = engine.link.num_malformed
    answer.counters["worker_messages_ignored"] = engine.link.num_ignored
    answer.peak_rss_bytes["scheduler_svc"] = peak_rss_bytes()
    answer.peak_rss_bytes["gpu_worker"] = engine.link.worker_peak_rss_bytes
    answer.step_profile.CopyFrom(step_profile_to_proto(engine.profile))
    if engine.core is None:
        answer.waiting_by_reason.update({reason.name: 0 for reason in WaitingReason})
        answer.waiting_by_reason[WaitingReason.NO_WORKER.name] = len(engine.lobby)
    else:
        _add_pool(answer, engine.core)
        _add_economy(answer, engine.core, engine.now_ns())
    return answer


def _add_pool(answer: pb.GetStatsResponse, core: Scheduler) -> None:
    books = core.slot_books()
    answer.num_slots = books.total
    answer.free = books.free
    answer.private = books.private
    answer.evictable = books.evictable
    answer.locked = books.locked
    answer.in_flight = books.in_flight
    answer.page_size = core.config.page_size
    answer.num_tree_nodes = core.num_tree_nodes
    answer.num_sessions = core.num_sessions
    answer.session_tokens = core.num_session_tokens
    answer.model.CopyFrom(model_to_proto(core.state.hello))


def _add_economy(answer: pb.GetStatsResponse, core: Scheduler, now_ns: int) -> None:
    answer.counters.update(core.counters())
    answer.economy.CopyFrom(economy_to_proto(core.economy(now_ns)))
    for name, histogram in core.histograms().items():
        answer.histograms[name].CopyFrom(histogram_to_proto(histogram))
    for tenant, view in core.tenant_books().items():
        answer.tenants[tenant].CopyFrom(tenant_to_proto(view))
    answer.waiting_by_reason.update(core.waiting_by_reason())


def flush(engine: EngineLoop) -> int:
    """Forgets every cached prefix; returns the tokens forgotten."""
    return engine.core.flush() if engine.core is not None else 0


def tree(engine: EngineLoop, max_nodes: int) -> tuple[list[TreeNodeView], int]:
    """The tree's nodes and how many did not fit under `max_nodes` (0: the default)."""
    if engine.core is None:
        return [], 0
    return engine.core.dump_tree(max_nodes or DEFAULT_MAX_NODES)


def tree_to_proto(nodes: Sequence[TreeNodeView], num_left_out: int) -> pb.DumpTreeResponse:
    """A dumped tree as its message."""
    return pb.DumpTreeResponse(
        nodes=[tree_node_to_proto(node) for node in nodes], num_left_out=num_left_out
    )


def pins(engine: EngineLoop, tenant: str | None) -> list[PinView]:
    """The pins of a tenant, or of all (None), oldest first."""
    if engine.core is None:
        return []
    return engine.core.list_pins(engine.now_ns(), tenant)


def unpin(
    engine: EngineLoop, pin_ids: Sequence[str], *, every: bool, tenant: str | None
) -> tuple[list[str], list[str]]:
    """Removes pins of a tenant, or of any (None); the ids removed, and those unknown."""
    if engine.core is None:
        return [], list(pin_ids)
    removed, unknown = engine.core.unpin(pin_ids, engine.now_ns(), every=every, tenant=tenant)
    if removed:
        log.info("pins_removed", num_pins=len(removed), tenant=tenant)
    return removed, unknown


def sessions(
    engine: EngineLoop, max_sessions: int, tenant: str | None
) -> tuple[list[SessionView], int]:
    """Sessions of a tenant, or of all (None), least recently used first; how many did not fit."""
    if engine.core is None:
        return [], 0
    views = engine.core.list_sessions(engine.now_ns(), tenant)
    return views[:max_sessions], max(0, len(views) - max_sessions)


def close_session(engine: EngineLoop, name: str, *, cache_domain: str, tenant: str | None) -> bool:
    """Forgets a session of a tenant, or those of any (None); whether there was one."""
    if engine.core is None:
        return False
    return engine.core.close_session(
        name, engine.now_ns(), cache_domain=cache_domain, tenant=tenant
    )


def requests(
    engine: EngineLoop, max_requests: int, tenant: str | None
) -> tuple[list[RequestView], int]:
    """Live requests of a tenant, or of all (None), and how many did not fit."""
    keeper = engine.lobby if engine.core is None else engine.core
    return keeper.list_requests(engine.now_ns(), max_requests, tenant)


def explain(engine: EngineLoop, request_id: str, tenant: str | None) -> tuple[Explanation, int]:
    """Why a request is where it is, and at what time that was so.

    Raises:
        UnknownRequestId: it is neither live nor among the last that ended, or another tenant's.
    """
    now_ns = engine.now_ns()
    keeper = engine.lobby if engine.core is None else engine.core
    explanation = keeper.explain(request_id, now_ns, tenant)
    if explanation is None:
        raise UnknownRequestId(f"no request {request_id!r} is live or ended lately")
    return explanation, now_ns


def set_policy(engine: EngineLoop, changes: Mapping[str, object]) -> SchedulerConfig:
    """Changes policies; the configuration afterwards.

    Raises:
        InvalidRequest: names the field of the request; nothing has changed.
    """
    before = engine.config
    try:
        after = engine.set_policy(changes)
    except ValueError as error:
        raise refusal(error) from None
    old, new = difference(before, after)
    if new:
        # Here and not where it was asked: whoever asked may have left meanwhile.
        log.info("policy_changed", old=old, new=new)
    return after
