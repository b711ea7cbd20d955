"""Answers to operators' questions, formed in the engine loop's thread; they change no request."""

from collections.abc import Sequence

from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from radixd.chassis.memory import peak_rss_bytes
from scheduler_svc.core.messages import TreeNodeView
from scheduler_svc.engine_loop import EngineLoop
from scheduler_svc.translation import model_to_proto, tree_node_to_proto

DEFAULT_MAX_NODES = 1000


def stats(engine: EngineLoop) -> pb.GetStatsResponse:
    """The books; all zero before the first worker has connected."""
    answer = pb.GetStatsResponse(
        worker_connected=engine.hello is not None,
        num_running=engine.num_running,
        num_waiting=engine.num_waiting,
    )
    answer.counters["worker_messages_malformed"] = engine.link.num_malformed
    answer.counters["worker_messages_ignored"] = engine.link.num_ignored
    answer.peak_rss_bytes["scheduler_svc"] = peak_rss_bytes()
    answer.peak_rss_bytes["gpu_worker"] = engine.link.worker_peak_rss_bytes
    core = engine.core
    if core is None:
        return answer
    books = core.slot_books()
    answer.num_slots = books.total
    answer.free = books.free
    answer.private = books.private
    answer.evictable = books.evictable
    answer.locked = books.locked
    answer.in_flight = books.in_flight
    answer.page_size = core.state.config.page_size
    answer.num_tree_nodes = core.num_tree_nodes
    answer.model.CopyFrom(model_to_proto(core.state.hello))
    for name, value in core.counters().items():
        answer.counters[name] = value
    return answer


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
