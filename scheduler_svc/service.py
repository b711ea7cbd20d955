"""The scheduler's gRPC face: fronts attach, operators ask.  Knows neither slots nor the worker.

Runs on the event loop; everything about requests is posted to the engine loop and comes back from
it as deliveries.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import structlog

from protos.errors import InvalidRequest, RadixdError
from protos.plan import Hello
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc
from protos.radixd.v1 import admin_pb2
from scheduler_svc import answers
from scheduler_svc.engine_loop import Ask, Cancel, Delivery, EngineLoop, Submit
from scheduler_svc.front import Front
from scheduler_svc.policy_translation import (
    changes_from_proto,
    families_to_proto,
    policies_to_proto,
)
from scheduler_svc.translation import rejection, submission_from_proto
from scheduler_svc.view_translation import (
    explanation_to_proto,
    pin_to_proto,
    request_to_proto,
    session_to_proto,
)

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["SchedulerService"].full_name

DEFAULT_MAX_LISTED = 1000
MOST_LISTED = 100_000

_FULL_INBOX_PAUSE_S = 0.005
log = structlog.get_logger()
_Answer = TypeVar("_Answer")
_Context = grpc.aio.ServicerContext[Any, Any]


class Engine(Protocol):
    """`scheduler_svc.engine_loop.EngineLoop`, as far as the service needs it."""

    def post(self, command: Submit | Cancel | Ask) -> bool:
        """Hands in a command; False when too many wait already."""

    def leave(self, front_id: int) -> None:
        """Gives up all of a front's requests."""


class SchedulerService(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Serves any number of fronts."""

    def __init__(
        self,
        engine: Engine,
        *,
        epoch: int,
        started_ns: int,
        on_worker: Callable[[Hello | None], None],
    ) -> None:
        """`on_worker` is told, on the event loop, who is attached whenever that changes."""
        self._epoch = epoch
        self._started_ns = started_ns
        self._on_worker = on_worker
        self._engine = engine
        self._fronts: dict[int, Front] = {}
        self._num_fronts_ever = 0
        self._hello: Hello | None = None

    def deliver(self, delivery: Delivery) -> None:
        """Passes news on to the fronts they are for.  On the event loop."""
        if delivery.worker_changed:
            self._hello = delivery.hello
            self._on_worker(delivery.hello)
            for front in self._fronts.values():
                front.tell_worker(delivery.hello)
        for front_id, outputs in delivery.outputs.items():
            addressee = self._fronts.get(front_id)
            if addressee is not None:
                addressee.tell_outputs(outputs)

    def end_streams(self) -> None:
        """Ends every front's stream; the fronts carry their requests to the next scheduler."""
        for front in self._fronts.values():
            front.over.set()

    async def Attach(  # noqa: N802 (named by the schema)
        self, request_iterator: Any, context: _Context
    ) -> None:
        """One front's stream, until either side ends it."""
        self._num_fronts_ever += 1
        front = Front(self._num_fronts_ever, self._hello)
        self._fronts[front.front_id] = front
        front_log = log.bind(front_id=front.front_id, peer=context.peer())
        front_log.info("front_attached")
        try:
            await context.write(pb.AttachResponse(welcome=pb.Welcome(epoch=self._epoch)))
            await self._converse(front, request_iterator, context)
        finally:
            del self._fronts[front.front_id]
            self._engine.leave(front.front_id)
            front_log.info("front_left")
        # Last, as a status waits behind what the other side has not read.
        if front.is_too_slow:
            front_log.warning("front_cut", reason="it does not read its stream")
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "the stream was not read fast enough"
            )
        elif front.over.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the scheduler is stopping")

    async def GetStats(  # noqa: N802
        self, request: pb.GetStatsRequest, context: object
    ) -> pb.GetStatsResponse:
        """The books as they are between two turns."""
        stats = await self._ask(answers.stats)
        stats.uptime_ms = (time.monotonic_ns() - self._started_ns) // 1_000_000
        return stats

    async def FlushCache(  # noqa: N802
        self, request: pb.FlushCacheRequest, context: object
    ) -> pb.FlushCacheResponse:
        """Forgets every cached prefix."""
        flushed_tokens = await self._ask(answers.flush)
        log.info("cache_flushed", num_tokens=flushed_tokens)
        return pb.FlushCacheResponse(flushed_tokens=flushed_tokens)

    async def DumpTree(  # noqa: N802
        self, request: pb.DumpTreeRequest, context: object
    ) -> pb.DumpTreeResponse:
        """The prefix tree, parents first."""
        nodes, num_left_out = await self._ask(
            lambda engine: answers.tree(engine, request.max_nodes)
        )
        return answers.tree_to_proto(nodes, num_left_out)

    async def ListPins(  # noqa: N802
        self, request: pb.ListPinsRequest, context: object
    ) -> admin_pb2.ListPinsResponse:
        """Pins that hold, oldest first."""
        tenant = _tenant(request)
        pins = await self._ask(lambda engine: answers.pins(engine, tenant))
        return admin_pb2.ListPinsResponse(pins=map(pin_to_proto, pins))

    async def Unpin(  # noqa: N802
        self, request: pb.UnpinRequest, context: _Context
    ) -> admin_pb2.UnpinResponse:
        """Removes pins; what they kept stays cached."""
        if request.all and request.pin_ids:
            await _abort(context, InvalidRequest("pin_ids", "must be empty where all is set"))
        pin_ids, every, tenant = list(request.pin_ids), request.all, _tenant(request)
        removed, unknown = await self._ask(
            lambda engine: answers.unpin(engine, pin_ids, every=every, tenant=tenant)
        )
        return admin_pb2.UnpinResponse(removed=removed, unknown=unknown)

    async def ListSessions(  # noqa: N802
        self, request: admin_pb2.ListSessionsRequest, context: _Context
    ) -> admin_pb2.ListSessionsResponse:
        """Sessions, least recently used first."""
        most, tenant = await _most_listed(request, "max_sessions", context), _tenant(request)
        views, num_left_out = await self._ask(lambda engine: answers.sessions(engine, most, tenant))
        return admin_pb2.ListSessionsResponse(
            sessions=map(session_to_proto, views), num_left_out=num_left_out
        )

    async def CloseSession(  # noqa: N802
        self, request: admin_pb2.CloseSessionRequest, context: object
    ) -> admin_pb2.CloseSessionResponse:
        """Forgets a session; what it kept stays cached."""
        name, domain, tenant = request.session, request.cache_domain, _tenant(request)
        found = await self._ask(
            lambda engine: answers.close_session(engine, name, cache_domain=domain, tenant=tenant)
        )
        return admin_pb2.CloseSessionResponse(found=found)

    async def ListRequests(  # noqa: N802
        self, request: admin_pb2.ListRequestsRequest, context: _Context
    ) -> admin_pb2.ListRequestsResponse:
        """Live requests: those that run, then those that wait."""
        most, tenant = await _most_listed(request, "max_requests", context), _tenant(request)
        views, num_left_out = await self._ask(lambda engine: answers.requests(engine, most, tenant))
        return admin_pb2.ListRequestsResponse(
            requests=map(request_to_proto, views), num_left_out=num_left_out
        )

    async def Explain(  # noqa: N802
        self, request: pb.ExplainRequest, context: _Context
    ) -> admin_pb2.ExplainResponse:
        """Why a request is where it is."""
        request_id, tenant = request.request_id, _tenant(request)
        try:
            explanation, now_ns = await self._ask(
                lambda engine: answers.explain(engine, request_id, tenant)
            )
        except RadixdError as error:
            await _abort(context, error)
        return explanation_to_proto(explanation, now_ns)

    async def GetPolicy(  # noqa: N802
        self, request: admin_pb2.GetPolicyRequest, context: object
    ) -> admin_pb2.GetPolicyResponse:
        """Every policy in force, and every name that may be set."""
        config = await self._ask(lambda engine: engine.config)
        return admin_pb2.GetPolicyResponse(
            policies=policies_to_proto(config), families=families_to_proto()
        )

    async def SetPolicy(  # noqa: N802
        self, request: admin_pb2.SetPolicyRequest, context: _Context
    ) -> admin_pb2.SetPolicyResponse:
        """Changes the policies that are given, all of them or none."""
        try:
            changes = changes_from_proto(request.policies)
            config = await self._ask(lambda engine: answers.set_policy(engine, changes))
        except RadixdError as error:
            await _abort(context, error)
        return admin_pb2.SetPolicyResponse(policies=policies_to_proto(config))

    async def _converse(self, front: Front, requests: Any, context: _Context) -> None:
        """Returns when the front is done, or it is over with it; reads and writes meanwhile."""
        tasks = [
            asyncio.create_task(self._read(front, requests)),
            asyncio.create_task(self._write(front, context)),
            asyncio.create_task(front.over.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, front: Front, requests: Any) -> None:
        async for request in requests:
            kind = request.WhichOneof("body")
            if kind == "submit":
                await self._submit(front, request.submit)
            elif kind == "cancel":
                command = Cancel(
                    front_id=front.front_id,
                    request_id=request.cancel.request_id,
                    finished=request.cancel.finished,
                )
                await self._post(command)

    async def _submit(self, front: Front, submit: pb.Submit) -> None:
        try:
            submission = submission_from_proto(submit, time.monotonic_ns())
        except InvalidRequest as error:
            front.tell_outputs([rejection(submit.request_id, error)])
        else:
            await self._post(Submit(front_id=front.front_id, submission=submission))

    async def _write(self, front: Front, context: _Context) -> None:
        while True:
            await context.write(await front.next_message())

    async def _post(self, command: Submit | Cancel | Ask) -> None:
        """Waits while the inbox is full, so that gRPC makes the sender wait in its turn."""
        while not self._engine.post(command):
            await asyncio.sleep(_FULL_INBOX_PAUSE_S)

    async def _ask(self, question: Callable[[EngineLoop], _Answer]) -> _Answer:
        answer: Future[_Answer] = Future()
        await self._post(Ask(question=question, answer=answer))
        return await asyncio.wrap_future(answer)


def _tenant(
    request: pb.ListPinsRequest
    | pb.UnpinRequest
    | pb.ExplainRequest
    | admin_pb2.ListRequestsRequest
    | admin_pb2.ListSessionsRequest
    | admin_pb2.CloseSessionRequest,
) -> str | None:
    """Whose things are asked for; None: everybody's."""
    return request.tenant if request.HasField("tenant") else None


async def _most_listed(request: Any, field: str, context: _Context) -> int:
    """How much is to be listed; ends the call where that cannot be."""
    most: int = getattr(request, field) if request.HasField(field) else DEFAULT_MAX_LISTED
    if not 1 <= most <= MOST_LISTED:
        await _abort(context, InvalidRequest(field, f"{most} is not in 1..{MOST_LISTED}"))
    return most


async def _abort(context: _Context, error: RadixdError) -> NoReturn:
    """Ends the call with the error's code; the details are its text, "field: problem" at best."""
    await context.abort(grpc.StatusCode[error.code.name], str(error))
    raise AssertionError("abort raises")
