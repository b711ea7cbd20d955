"""The small scheduler with what operators ask of one: pins, requests, explanations, policies.

It writes down what reaches it, answers with the messages it holds, and refuses when told to.
"""

from typing import Any

import grpc

from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.v1 import admin_pb2, policy_pb2
from tests.tokenizer_svc.fake_scheduler import FakeScheduler


class OperatorScheduler(FakeScheduler):
    """Tests change its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []
        self.num_looks = 0
        self.victims: list[str] = []
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.pins = admin_pb2.ListPinsResponse()
        self.policies = policy_pb2.Policies(waiting_order="adaptive")
        self.books = pb.GetStatsResponse(worker_connected=True)

    async def GetStats(self, request: Any, context: Any) -> pb.GetStatsResponse:  # noqa: N802
        self.num_looks += 1
        await self._take(request, context)
        return self.books

    async def ListPins(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        return self.pins

    async def Unpin(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        return admin_pb2.UnpinResponse(removed=request.pin_ids[:1], unknown=request.pin_ids[1:])

    async def ListSessions(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        session = admin_pb2.Session(session="mine", num_turns=2)
        return admin_pb2.ListSessionsResponse(sessions=[session], num_left_out=4)

    async def CloseSession(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        return admin_pb2.CloseSessionResponse(found=request.session == "mine")

    async def ListRequests(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        view = admin_pb2.RequestView(request_id="mine", state=admin_pb2.REQUEST_STATE_DECODE)
        return admin_pb2.ListRequestsResponse(requests=[view], num_left_out=3)

    async def Explain(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        victims = [admin_pb2.VictimScore(request_id=name, score=[1.0]) for name in self.victims]
        return admin_pb2.ExplainResponse(summary=f"of {request.request_id}", victims=victims)

    async def GetPolicy(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        families = [policy_pb2.PolicyFamily(name="waiting_order")]
        return admin_pb2.GetPolicyResponse(policies=self.policies, families=families)

    async def SetPolicy(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._take(request, context)
        self.policies.MergeFrom(request.policies)
        return admin_pb2.SetPolicyResponse(policies=self.policies)

    async def _take(self, request: Any, context: Any) -> None:
        self.asked.append(request)
        if self.refusal is not None:
            await context.abort(*self.refusal)
