"""radixd.v1.InferenceService: text for prompts, streamed or whole."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc

from protos.errors import UnknownRequestId
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as pb
from protos.radixd.v1 import inference_pb2_grpc as pb_grpc
from tokenizer_svc.choices import Choices
from tokenizer_svc.delivery import ChoicePiece
from tokenizer_svc.generation_request import GenerationRequest
from tokenizer_svc.live_request import Outcome
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.paced_context import PacedContext
from tokenizer_svc.replies import StreamReplies, unary_reply
from tokenizer_svc.request_owners import RequestOwners
from tokenizer_svc.said_aside import SaidAside, is_long, is_long_reply
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.sink import Collected
from tokenizer_svc.tenancy import current_caller
from tokenizer_svc.tokenizer_pool import TokenizerPool
from tokenizer_svc.validation import read_request

_MAX_REPLY_MARGIN_S = 0.2

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceService(pb_grpc.InferenceServiceServicer):
    """Reads requests, runs their choices, writes replies; the tenant is the caller's."""

    def __init__(
        self,
        *,
        choices: Choices,
        live: LiveRequests,
        link: SchedulerLink,
        owners: RequestOwners,
        pool: TokenizerPool,
        max_prompt_bytes: int,
    ) -> None:
        self._choices = choices
        self._live = live
        self._link = link
        self._owners = owners
        self._pool = pool
        self._max_prompt_bytes = max_prompt_bytes

    async def Generate(self, request: pb.GenerateRequest, context: PacedContext) -> None:  # noqa: N802
        """Streams the continuation; written and not yielded, so that leaving is noticed at once."""
        checked = self._read(request)
        deadline_s = deadline(context, checked.timeout_ms)
        replies = StreamReplies(checked)
        told = SaidAside(
            replies.reply,
            context,
            is_long=is_long,
            aside=self._pool.aside,
            say_long=replies.long_reply,
        )
        with self._owners.owned(checked.request_id, checked.tenant):
            async with context.while_read():
                await self._choices.run(checked, told, deadline_s=deadline_s)

    async def GenerateUnary(  # noqa: N802
        self, request: pb.GenerateUnaryRequest, context: Context
    ) -> bytes:
        """The same as one reply, in bytes."""
        checked = self._read(request)
        deadline_s = deadline(context, checked.timeout_ms)
        pieces: Collected[ChoicePiece] = Collected()
        with self._owners.owned(checked.request_id, checked.tenant):
            await self._choices.run(checked, pieces, deadline_s=deadline_s)
        if not is_long_reply(pieces.values):
            return unary_reply(checked, pieces.values)
        return await self._pool.aside(lambda: unary_reply(checked, pieces.values))

    async def Cancel(  # noqa: N802
        self, request: pb.CancelRequest, context: Context
    ) -> pb.CancelResponse:
        """Ends all choices of a request; its call then ends with what there is so far."""
        self.cancel(request.request_id)
        return pb.CancelResponse()

    def cancel(self, request_id: str) -> None:
        """The same for the caller of any door.

        Raises:
            UnknownRequestId: no request with this id is live, or it is somebody else's.
        """
        lives = self._live.find_all(request_id)
        if not self._owners.may_see(current_caller(), request_id):
            # In the words of `find`: that somebody else uses this id is nobody's business.
            raise UnknownRequestId(f"request_id: no request with the id {request_id!r} is live")
        for live in lives:
            self._link.cancel(live, Outcome(ending=internal.ENDING_CANCELLED))

    def _read(self, request: pb.GenerateRequest | pb.GenerateUnaryRequest) -> GenerationRequest:
        checked = read_request(request, max_prompt_bytes=self._max_prompt_bytes)
        return replace(checked, tenant=current_caller().tenant)


def deadline(context: Context | PacedContext, timeout_ms: int | None) -> float | None:
    """When a call must be over, on the event loop's clock; None: never.

    The deadline of the gRPC call is taken a little early: once it has passed, nothing more reaches
    the client, and the partial output is to reach it.
    """
    left_s = [] if timeout_ms is None else [timeout_ms / 1000]
    call_left_s = context.time_remaining()
    if call_left_s is not None:
        left_s.append(call_left_s - min(_MAX_REPLY_MARGIN_S, call_left_s / 10))
    if not left_s:
        return None
    return asyncio.get_running_loop().time() + min(left_s)
