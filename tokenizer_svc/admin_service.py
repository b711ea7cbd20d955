"""radixd.v1.AdminService: the scheduler's answers in public words, with token ids as text.

A caller that is bound to a tenant sees what is its own; `tenancy` has decided who that is.
"""

from array import array
from typing import Any

import grpc

from protos.errors import InvalidRequest
from protos.radixd.v1 import admin_pb2 as pb
from protos.radixd.v1 import admin_pb2_grpc as pb_grpc
from protos.wire import unpack_ids
from tokenizer_svc import admin_checks as checks
from tokenizer_svc.books import Books
from tokenizer_svc.front_requests import FrontRequests
from tokenizer_svc.inference_service import deadline
from tokenizer_svc.preheat import Preheater
from tokenizer_svc.scheduler_questions import SchedulerQuestions
from tokenizer_svc.stats_watch import StatsWatch
from tokenizer_svc.tenancy import Caller, check_sees, current_caller
from tokenizer_svc.tokenizer_pool import TokenizerPool
from tokenizer_svc.validation import check_request_id, check_session, read_cache_domain

Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(pb_grpc.AdminServiceServicer):
    """Asks the scheduler; decodes and translates its answers."""

    def __init__(
        self,
        *,
        questions: SchedulerQuestions,
        pool: TokenizerPool,
        preheater: Preheater,
        requests: FrontRequests,
    ) -> None:
        self._questions = questions
        self._books = Books(questions.stats)
        self._pool = pool
        self._preheater = preheater
        self._requests = requests
        self._watch = StatsWatch()

    def close(self) -> None:
        """Ends the calls that would otherwise never end."""
        self._watch.close()

    async def GetStats(  # noqa: N802
        self, request: pb.GetStatsRequest, context: Context
    ) -> pb.GetStatsResponse:
        """The books."""
        return _seen_by(current_caller(), await self._books.now())

    async def WatchStats(  # noqa: N802
        self, request: pb.WatchStatsRequest, context: Context
    ) -> None:
        """The books at once and every interval; silent while the scheduler is away later on."""
        interval_s, caller = checks.interval_s(request), current_caller()

        async def tell(stats: pb.GetStatsResponse) -> None:
            await context.write(pb.WatchStatsResponse(stats=_seen_by(caller, stats)))

        await self._watch.watch(self._books.lately, tell, interval_s=interval_s)

    async def Preheat(  # noqa: N802
        self, request: pb.PreheatRequest, context: Context
    ) -> pb.PreheatResponse:
        """Each prefix succeeds or fails on its own."""
        deadline_s, tenant = deadline(context, None), current_caller().tenant
        prefixes = await self._preheater.preheat(request, tenant=tenant, deadline_s=deadline_s)
        return pb.PreheatResponse(prefixes=prefixes)

    async def FlushCache(  # noqa: N802
        self, request: pb.FlushCacheRequest, context: Context
    ) -> pb.FlushCacheResponse:
        """Forgets every cached prefix."""
        answer = await self._questions.flush()
        return pb.FlushCacheResponse(flushed_tokens=answer.flushed_tokens)

    async def DumpTree(  # noqa: N802
        self, request: pb.DumpTreeRequest, context: Context
    ) -> pb.DumpTreeResponse:
        """The tree; a character that a split cuts in two shows as U+FFFD on both sides."""
        answer = await self._questions.tree(checks.max_nodes(request))
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
                tenant=node.tenant,
            )
        return reply

    async def ListPins(  # noqa: N802
        self, request: pb.ListPinsRequest, context: Context
    ) -> pb.ListPinsResponse:
        """The pins, with the text they begin with."""
        reply = await self._questions.pins(current_caller().sees)
        ids = [array("I", pin.first_token_ids) for pin in reply.pins]
        texts = await self._pool.decode_all(ids, skip_special_tokens=False)
        for pin, text in zip(reply.pins, texts, strict=True):
            pin.text = text
        return reply

    async def Unpin(  # noqa: N802
        self, request: pb.UnpinRequest, context: Context
    ) -> pb.UnpinResponse:
        """Removes pins; somebody else's are unknown ones."""
        checks.check_unpin(request)
        return await self._questions.unpin(request, current_caller().sees)

    async def ListRequests(  # noqa: N802
        self, request: pb.ListRequestsRequest, context: Context
    ) -> pb.ListRequestsResponse:
        """Live requests as the scheduler sees them."""
        return await self._questions.requests(checks.max_requests(request), _asked_of(request))

    async def ListSessions(  # noqa: N802
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """Sessions as the scheduler knows them."""
        return await self._questions.sessions(checks.max_sessions(request), _asked_of(request))

    async def CloseSession(  # noqa: N802
        self, request: pb.CloseSessionRequest, context: Context
    ) -> pb.CloseSessionResponse:
        """Forgets a session; somebody else's is an unknown one."""
        check_session(request.session)
        domain, tenant = read_cache_domain(request.cache_domain), _asked_of(request)
        found = await self._questions.close_session(request.session, domain, tenant)
        return pb.CloseSessionResponse(found=found)

    async def Explain(  # noqa: N802
        self, request: pb.ExplainRequest, context: Context
    ) -> pb.ExplainResponse:
        """What the front knows of a request that has not reached the scheduler, or its answer."""
        caller, request_id = current_caller(), request.request_id
        check_request_id(request_id)
        explained = self._requests.explain(caller, request_id)
        if explained is not None:
            return explained
        name = self._requests.name_for_scheduler(caller, request_id)
        answer = await self._questions.explain(name, caller.sees)
        self._requests.leave_out_others(caller, answer)
        return answer

    async def GetPolicy(  # noqa: N802
        self, request: pb.GetPolicyRequest, context: Context
    ) -> pb.GetPolicyResponse:
        """What is in force and what there is."""
        return await self._questions.policy()

    async def SetPolicy(  # noqa: N802
        self, request: pb.SetPolicyRequest, context: Context
    ) -> pb.SetPolicyResponse:
        """Changes policies; the scheduler says which it cannot take."""
        checks.check_policies(request.policies)
        try:
            return await self._questions.set_policy(request)
        except InvalidRequest as error:
            field = error.field.removeprefix("policies.")
            raise InvalidRequest(f"policies.{field}", error.message) from None


def _asked_of(
    request: pb.ListRequestsRequest | pb.ListSessionsRequest | pb.CloseSessionRequest,
) -> str | None:
    """Whose things are asked for; None: everybody's.

    Raises:
        PermissionDenied: somebody else's.
    """
    caller = current_caller()
    if not request.HasField("tenant"):
        return caller.sees
    check_sees(caller, request.tenant, "tenant")
    return request.tenant


def _seen_by(caller: Caller, stats: pb.GetStatsResponse) -> pb.GetStatsResponse:
    """The books without other tenants' parts; changes and returns the message."""
    if caller.sees is not None:
        for tenant in set(stats.tenants) - {caller.sees}:
            del stats.tenants[tenant]
    return stats
