"""radixd.v1.AdminService: the scheduler's books in public words, with token ids as text."""

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

import grpc

from protos.errors import InternalFault, InvalidRequest, Unavailable
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import admin_pb2 as pb
from protos.radixd.v1 import admin_pb2_grpc as pb_grpc
from protos.wire import unpack_ids
from radixd.chassis.memory import peak_rss_bytes
from tokenizer_svc.inference_service import deadline
from tokenizer_svc.preheat import Preheater
from tokenizer_svc.tokenizer_pool import TokenizerPool

DEFAULT_MAX_NODES = 1000
MAX_NODES = 100_000
_ANSWER_TIMEOUT_S = 10.0

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")


class SchedulerQuestions(Protocol):
    """The unary calls of radixd.scheduler.v1.SchedulerService, as its stub has them."""

    GetStats: Any
    FlushCache: Any
    DumpTree: Any


class AdminService(pb_grpc.AdminServiceServicer):
    """Asks the scheduler; decodes and translates its answers."""

    def __init__(
        self, *, scheduler: SchedulerQuestions, pool: TokenizerPool, preheater: Preheater
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._preheater = preheater

    async def GetStats(  # noqa: N802
        self, request: pb.GetStatsRequest, context: Context
    ) -> pb.GetStatsResponse:
        """The books; peak memory includes this process."""
        call = self._scheduler.GetStats(internal.GetStatsRequest(), timeout=_ANSWER_TIMEOUT_S)
        reply = public_stats(await _answer(call))
        reply.peak_rss_bytes["tokenizer_svc"] = peak_rss_bytes()
        return reply

    async def Preheat(  # noqa: N802
        self, request: pb.PreheatRequest, context: Context
    ) -> pb.PreheatResponse:
        """Each prefix succeeds or fails on its own."""
        deadline_s = deadline(context, None)
        return pb.PreheatResponse(
            prefixes=await self._preheater.preheat(request, deadline_s=deadline_s)
        )

    async def FlushCache(  # noqa: N802
        self, request: pb.FlushCacheRequest, context: Context
    ) -> pb.FlushCacheResponse:
        """Forgets every cached prefix."""
        call = self._scheduler.FlushCache(internal.FlushCacheRequest(), timeout=_ANSWER_TIMEOUT_S)
        answer = await _answer(call)
        return pb.FlushCacheResponse(flushed_tokens=answer.flushed_tokens)

    async def DumpTree(  # noqa: N802
        self, request: pb.DumpTreeRequest, context: Context
    ) -> pb.DumpTreeResponse:
        """The tree; a character that a split cuts in two shows as U+FFFD on both sides."""
        max_nodes = request.max_nodes if request.HasField("max_nodes") else DEFAULT_MAX_NODES
        if not 1 <= max_nodes <= MAX_NODES:
            raise InvalidRequest("max_nodes", f"{max_nodes} is not in 1..{MAX_NODES}")
        question = internal.DumpTreeRequest(max_nodes=max_nodes)
        answer = await _answer(self._scheduler.DumpTree(question, timeout=_ANSWER_TIMEOUT_S))
        ids = [unpack_ids(node.token_ids, typecode="I") for node in answer.nodes]
        texts = await self._pool.decode_all(ids, skip_special_tokens=False)
        reply = pb.DumpTreeResponse(num_left_out=answer.num_left_out)
        for node, token_ids, text in zip(answer.nodes, ids, texts, strict=True):
            reply.nodes.add(
                parent=node.parent,
                token_ids=token_ids,
                text=text,
                locked=node.locked,
                hits=node.hits,
                cache_domain=node.cache_domain,
            )
        return reply


async def _answer(call: Awaitable[T]) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise Unavailable("the scheduler is away; try again later") from None
        raise InternalFault("the scheduler could not answer; its log says more") from None


def public_stats(stats: internal.GetStatsResponse) -> pb.GetStatsResponse:
    """The scheduler's books in the words of the public schema."""
    counters = stats.counters
    model = stats.model
    return pb.GetStatsResponse(
        model=pb.ModelInfo(
            name=model.model_id,
            vocab_size=model.vocab_size,
            max_length=model.max_length,
            eos_token_ids=model.eos_token_ids,
            device=model.device,
            kv_dtype=model.kv_dtype,
            kind=model.kind,
        ),
        slots=pb.SlotBooks(
            total=stats.num_slots,
            free=stats.free,
            private=stats.private,
            evictable=stats.evictable,
            locked=stats.locked,
            in_flight=stats.in_flight,
            page_size=stats.page_size,
            num_tree_nodes=stats.num_tree_nodes,
        ),
        requests=pb.RequestBooks(
            running=stats.num_running,
            waiting=stats.num_waiting,
            submitted=counters["submitted"],
            finished=counters["finished"],
            rejected=counters["rejected"],
            cancelled=counters["cancelled"],
            expired=counters["expired"],
            failed=counters["failed"],
            retractions=counters["retractions"],
        ),
        tokens=pb.TokenCounters(
            prompt=counters["prompt_tokens"],
            cached=counters["cached_tokens"],
            generated=counters["generated_tokens"],
            computed=counters["computed_tokens"],
            recomputed=counters["recomputed_tokens"],
            preheated=counters["preheated_tokens"],
            evicted=counters["evicted_tokens"],
        ),
        num_steps=counters["steps"],
        uptime_ms=stats.uptime_ms,
        worker_connected=stats.worker_connected,
        peak_rss_bytes=dict(stats.peak_rss_bytes),
    )
