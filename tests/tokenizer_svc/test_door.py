"""The door of gRPC where a call ends badly: what is logged as a fault of ours, and what is not."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import structlog

from protos.errors import InvalidRequest
from tokenizer_svc.client_streams import ClientStreams
from tokenizer_svc.door import Door
from tokenizer_svc.tenancy import OpenDoor


class CutCall:
    """A context whose client has gone, before gRPC says so."""

    def __init__(self, *, can_be_told: bool = True) -> None:
        self.status: Any = None
        self._can_be_told = can_be_told

    def done(self) -> bool:
        return False

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def add_done_callback(self, callback: Any) -> None:
        pass  # this call has no end

    async def write(self, message: Any) -> None:
        raise grpc.aio.InternalError("a batch failed")

    async def abort_with_status(self, status: Any) -> None:
        if not self._can_be_told:
            raise grpc.aio.InternalError("a batch failed")
        self.status = status


async def called(behavior: Any, *, can_be_told: bool = True) -> CutCall:
    """A stream that does this behind the door, to its end."""
    door = Door(OpenDoor(), streams=ClientStreams(most=0), slow_reader_s=5)

    async def handler_of(_: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(behavior)

    details: Any = SimpleNamespace(method="/radixd.v1.InferenceService/Generate")
    behind: Any = await door.intercept_service(handler_of, details)
    context = CutCall(can_be_told=can_be_told)
    try:
        await behind.unary_stream(b"", context)
    finally:
        assert door.num_calls == 0
    return context


async def test_a_write_that_fails_before_grpc_knows_that_the_client_left_is_no_fault():
    async def write(request: Any, context: Any) -> None:
        await context.write("piece")

    with structlog.testing.capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await called(write)
    assert not logs


async def test_a_refusal_that_nobody_hears_is_no_fault():
    async def refuse(request: Any, context: Any) -> None:
        raise InvalidRequest("n", "too many")

    with structlog.testing.capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await called(refuse, can_be_told=False)
    assert [entry["event"] for entry in logs] == ["call_refused"]


async def test_a_defect_is_logged_and_tells_the_client_nothing():
    async def fail(request: Any, context: Any) -> None:
        raise ZeroDivisionError("a secret")

    with structlog.testing.capture_logs() as logs:
        context = await called(fail)
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert [entry["event"] for entry in errors] == ["call_failed"]
    assert context.status.code is grpc.StatusCode.INTERNAL
    assert "secret" not in context.status.details
