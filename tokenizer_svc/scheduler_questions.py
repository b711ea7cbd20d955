"""The unary questions to the scheduler, and what it means when one is not answered.

Not here: the stream of requests, which is `scheduler_link`, and public words for the answers.
"""

from typing import Any

import grpc

from protos.errors import InternalFault, InvalidRequest, RadixdError, Unavailable, UnknownRequestId
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from protos.radixd.v1 import admin_pb2 as pb

ANSWER_TIMEOUT_S = 10.0

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class SchedulerQuestions:
    """Each method raises RadixdError where there is no answer; `tenant` None means all tenants."""

    def __init__(self, stub: pb_grpc.SchedulerServiceStub) -> None:
        self._stub: Any = stub

    async def stats(self) -> internal.GetStatsResponse:
        """The books."""
        reply = await _answer(self._stub.GetStats, internal.GetStatsRequest())
        assert isinstance(reply, internal.GetStatsResponse)
        return reply

    async def flush(self) -> internal.FlushCacheResponse:
        """Forgets every cached prefix."""
        reply = await _answer(self._stub.FlushCache, internal.FlushCacheRequest())
        assert isinstance(reply, internal.FlushCacheResponse)
        return reply

    async def tree(self, max_nodes: int) -> internal.DumpTreeResponse:
        """The radix tree, parents first."""
        reply = await _answer(self._stub.DumpTree, internal.DumpTreeRequest(max_nodes=max_nodes))
        assert isinstance(reply, internal.DumpTreeResponse)
        return reply

    async def pins(self, tenant: str | None) -> pb.ListPinsResponse:
        """The pins, without texts."""
        reply = await _answer(self._stub.ListPins, internal.ListPinsRequest(tenant=tenant))
        assert isinstance(reply, pb.ListPinsResponse)
        return reply

    async def unpin(self, request: pb.UnpinRequest, tenant: str | None) -> pb.UnpinResponse:
        """Removes pins."""
        question = internal.UnpinRequest(pin_ids=request.pin_ids, all=request.all, tenant=tenant)
        reply = await _answer(self._stub.Unpin, question)
        assert isinstance(reply, pb.UnpinResponse)
        return reply

    async def sessions(self, max_sessions: int, tenant: str | None) -> pb.ListSessionsResponse:
        """Sessions, least recently used first."""
        question = pb.ListSessionsRequest(max_sessions=max_sessions, tenant=tenant)
        reply = await _answer(self._stub.ListSessions, question)
        assert isinstance(reply, pb.ListSessionsResponse)
        return reply

    async def close_session(self, session: str, cache_domain: str, tenant: str | None) -> bool:
        """Forgets a session; whether there was one."""
        question = pb.CloseSessionRequest(session=session, cache_domain=cache_domain, tenant=tenant)
        reply = await _answer(self._stub.CloseSession, question)
        assert isinstance(reply, pb.CloseSessionResponse)
        return reply.found

    async def requests(self, max_requests: int, tenant: str | None) -> pb.ListRequestsResponse:
        """Live requests."""
        question = pb.ListRequestsRequest(max_requests=max_requests, tenant=tenant)
        reply = await _answer(self._stub.ListRequests, question)
        assert isinstance(reply, pb.ListRequestsResponse)
        return reply

    async def explain(self, request_id: str, tenant: str | None) -> pb.ExplainResponse:
        """Why a request is where it is; by the scheduler's id of it or by its client's."""
        question = internal.ExplainRequest(request_id=request_id, tenant=tenant)
        reply = await _answer(self._stub.Explain, question)
        assert isinstance(reply, pb.ExplainResponse)
        return reply

    async def policy(self) -> pb.GetPolicyResponse:
        """The policies in force and those there are."""
        reply = await _answer(self._stub.GetPolicy, pb.GetPolicyRequest())
        assert isinstance(reply, pb.GetPolicyResponse)
        return reply

    async def set_policy(self, request: pb.SetPolicyRequest) -> pb.SetPolicyResponse:
        """Changes policies, all of the given ones or none."""
        reply = await _answer(self._stub.SetPolicy, request)
        assert isinstance(reply, pb.SetPolicyResponse)
        return reply


async def _answer(method: Any, question: Any) -> Any:
    try:
        return await method(question, timeout=ANSWER_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        raise _meaning(error.code(), error.details() or "") from None


def _meaning(code: grpc.StatusCode, details: str) -> RadixdError:
    """The scheduler's status in public words; its sentences are made for people, too."""
    if code in _AWAY:
        return Unavailable("the scheduler is away; try again later")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Unavailable("the scheduler has too much to do; try again later")
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return Unavailable(details or "the model worker is away; try again later")
    if code is grpc.StatusCode.NOT_FOUND:
        return UnknownRequestId(details or "request_id: no such request")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        field, colon, problem = details.partition(": ")
        return InvalidRequest(field, problem) if colon else InvalidRequest("request", details)
    return InternalFault("the scheduler could not answer; its log says more")
