"""What tests say to a front, in few words."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.tokenizers.byte_tokenizer import GO, SCRIPT


def script(output: str | bytes | Iterable[int]) -> pb.TokenIds:
    """A prompt after which the fake model says exactly this, and then the end of sequence."""
    if isinstance(output, str):
        output = output.encode()
    return pb.TokenIds(ids=[ord("p"), SCRIPT, *output, GO])


@dataclass(kw_only=True)
class Streamed:
    """A stream that has ended."""

    messages: list[pb.GenerateResponse]

    @property
    def text(self) -> str:
        return "".join(message.text for message in self.messages)

    @property
    def token_ids(self) -> list[int]:
        return [i for message in self.messages for i in message.token_ids]

    @property
    def last(self) -> pb.GenerateResponse:
        return self.messages[-1]


async def stream(served: Any, **request: Any) -> Streamed:
    """The whole stream of one request."""
    call = served.inference.Generate(pb.GenerateRequest(**request), timeout=20)
    return Streamed(messages=[message async for message in call])


async def unary(served: Any, **request: Any) -> pb.GenerateUnaryResponse:
    """The same request as one reply."""
    return await served.inference.GenerateUnary(pb.GenerateUnaryRequest(**request), timeout=20)


@dataclass(kw_only=True)
class Refusal:
    """An error as clients read it."""

    code: grpc.StatusCode
    message: str
    reason: str
    field: str | None
    retry_after_ms: int | None


def refusal(error: grpc.aio.AioRpcError) -> Refusal:
    """The rich error in a call's end."""
    status: status_pb2.Status | None = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None, error
    info = error_details_pb2.ErrorInfo()
    bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    found = {d.TypeName(): d for d in status.details}
    assert found["google.rpc.ErrorInfo"].Unpack(info)
    assert info.domain == "radixd"
    has_field = "google.rpc.BadRequest" in found and found["google.rpc.BadRequest"].Unpack(bad)
    has_retry = "google.rpc.RetryInfo" in found and found["google.rpc.RetryInfo"].Unpack(retry)
    return Refusal(
        code=error.code(),
        message=error.details() or "",
        reason=info.reason,
        field=bad.field_violations[0].field if has_field else None,
        retry_after_ms=retry.retry_delay.ToMilliseconds() if has_retry else None,
    )


async def refused(call: Any) -> Refusal:
    """The refusal of a call that must be refused."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return refusal(error)
    raise AssertionError("the call was served")


async def wait_until(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    """Returns once the condition holds; fails after the time."""
    give_up_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_s, "it did not happen in time"
        await asyncio.sleep(0.005)
