"""The scheduler's books in the words of the public schema, asked for once where many watch.

Not here: who may see which tenant's part of them; `admin_service` leaves out the others'.
"""

import asyncio
from collections.abc import Awaitable, Callable

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import admin_pb2 as pb
from radixd.chassis.memory import peak_rss_bytes

SHARED_FOR_S = 0.05
"""Watchers that ask within this time get one answer, so that many cost the scheduler as one."""


class Books:
    """Asks the scheduler for its books."""

    def __init__(self, ask: Callable[[], Awaitable[internal.GetStatsResponse]]) -> None:
        """`ask` raises RadixdError where there is no answer."""
        self._ask = ask
        self._question: asyncio.Task[pb.GetStatsResponse] | None = None
        self._asked_s = 0.0

    async def now(self) -> pb.GetStatsResponse:
        """The books as they are; peak memory includes this process."""
        reply = public_stats(await self._ask())
        reply.peak_rss_bytes["tokenizer_svc"] = peak_rss_bytes()
        return reply

    async def lately(self) -> pb.GetStatsResponse:
        """As `now`, or the answer somebody else got a moment ago; a copy of the caller's own."""
        now_s = asyncio.get_running_loop().time()
        question = self._question
        if question is None or (question.done() and now_s - self._asked_s > SHARED_FOR_S):
            question = self._question = asyncio.create_task(self.now())
            # With nobody left to hear of it, a failure is nobody's.
            question.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._asked_s = now_s
        # A watcher that leaves must not take the answer from the others.
        answer = await asyncio.shield(question)
        copy = pb.GetStatsResponse()
        copy.CopyFrom(answer)
        return copy


def public_stats(stats: internal.GetStatsResponse) -> pb.GetStatsResponse:
    """The scheduler's books in the words of the public schema."""
    return pb.GetStatsResponse(
        model=_model(stats.model),
        slots=_slots(stats),
        requests=_requests(stats),
        tokens=_tokens(stats),
        num_steps=stats.counters["steps"],
        uptime_ms=stats.uptime_ms,
        worker_connected=stats.worker_connected,
        peak_rss_bytes=dict(stats.peak_rss_bytes),
        waiting_by_reason=dict(stats.waiting_by_reason),
        # The same messages on both sides.
        economy=stats.economy,
        histograms=dict(stats.histograms),
        tenants=dict(stats.tenants),
        step_profile=stats.step_profile,
        num_sessions=stats.num_sessions,
        session_tokens=stats.session_tokens,
    )


def _model(model: internal.Model) -> pb.ModelInfo:
    return pb.ModelInfo(
        name=model.model_id,
        vocab_size=model.vocab_size,
        max_length=model.max_length,
        eos_token_ids=model.eos_token_ids,
        device=model.device,
        kv_dtype=model.kv_dtype,
        kind=model.kind,
        weights=model.weights,
    )


def _slots(stats: internal.GetStatsResponse) -> pb.SlotBooks:
    return pb.SlotBooks(
        total=stats.num_slots,
        free=stats.free,
        private=stats.private,
        evictable=stats.evictable,
        locked=stats.locked,
        in_flight=stats.in_flight,
        page_size=stats.page_size,
        num_tree_nodes=stats.num_tree_nodes,
    )


def _requests(stats: internal.GetStatsResponse) -> pb.RequestBooks:
    counters = stats.counters
    return pb.RequestBooks(
        running=stats.num_running,
        waiting=stats.num_waiting,
        submitted=counters["submitted"],
        finished=counters["finished"],
        rejected=counters["rejected"],
        cancelled=counters["cancelled"],
        expired=counters["expired"],
        failed=counters["failed"],
        retractions=counters["retractions"],
    )


def _tokens(stats: internal.GetStatsResponse) -> pb.TokenCounters:
    counters = stats.counters
    return pb.TokenCounters(
        prompt=counters["prompt_tokens"],
        cached=counters["cached_tokens"],
        generated=counters["generated_tokens"],
        computed=counters["computed_tokens"],
        recomputed=counters["recomputed_tokens"],
        preheated=counters["preheated_tokens"],
        evicted=counters["evicted_tokens"],
        drafted=counters["drafted_tokens"],
        accepted=counters["accepted_tokens"],
    )
