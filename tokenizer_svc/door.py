"""What every public call passes: keys are shown, bytes become a message, errors become statuses.

gRPC's own way ends a call whose bytes do not parse with an INTERNAL error that names nothing, and
one whose handler fails with the exception's text.  Neither happens behind this interceptor.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from protos.errors import (
    InternalFault,
    InvalidRequest,
    RadixdError,
    TooManyStreams,
    Unavailable,
    Unsupported,
)
from tokenizer_svc.bad_bytes import field_with_bad_utf8
from tokenizer_svc.client_streams import ClientStreams, host_of_peer
from tokenizer_svc.paced_context import PacedContext
from tokenizer_svc.status import to_status
from tokenizer_svc.tenancy import Access, set_caller

PUBLIC_PREFIX = "/radixd.v1."

log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Behavior = Callable[[Any, Context], Awaitable[Any]]


class Door(grpc.aio.ServerInterceptor):
    """Asks who calls, parses, maps errors, counts calls, refuses new ones while draining."""

    def __init__(self, access: Access, *, streams: ClientStreams, slow_reader_s: float) -> None:
        """`slow_reader_s`: a client that takes nothing of its stream for so long is cut."""
        self._access = access
        self._streams = streams
        self._slow_reader_s = slow_reader_s
        self.num_calls = 0
        """Public calls in progress."""
        self._is_draining = False

    def close(self) -> None:
        """Refuses every public call from now on; those in progress go on."""
        self._is_draining = True

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wraps the handlers of the public package; of health and reflection, which take no key,
        only calls that last are counted."""
        handler: Any = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or not method.startswith(PUBLIC_PREFIX):
            return self._counted(handler)
        request_class = _request_class(method)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._wrapped(handler.unary_stream, request_class, method),
                response_serializer=_or_bytes(handler.response_serializer),
            )
        return grpc.unary_unary_rpc_method_handler(
            self._wrapped(handler.unary_unary, request_class, method),
            response_serializer=_or_bytes(handler.response_serializer),
        )

    def _counted(self, handler: Any) -> Handler:
        """The same, each call of a stream one of its address's."""
        if handler is None or not handler.response_streaming:
            return handler  # type: ignore[no-any-return]
        behavior = handler.stream_stream or handler.unary_stream

        async def call(asked: Any, context: Context) -> None:
            try:
                leave = self._streams.enter("", host_of_peer(context.peer()))
            except TooManyStreams as problem:
                await context.abort_with_status(to_status(problem))
            context.add_done_callback(lambda _: leave())  # type: ignore[arg-type]
            if not inspect.isasyncgenfunction(behavior):
                await behavior(asked, context)
                return
            async for reply in behavior(asked, context):
                await context.write(reply)

        kind = (
            grpc.stream_stream_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_stream_rpc_method_handler
        )
        return kind(call, handler.request_deserializer, handler.response_serializer)

    def _wrapped(
        self, behavior: Behavior, request_class: type[Message], method: str
    ) -> Callable[[bytes, Context], Awaitable[Any]]:
        async def call(data: bytes, context: Context) -> Any:
            self.num_calls += 1
            paced: Any = PacedContext(context, slow_reader_s=self._slow_reader_s)
            try:
                if self._is_draining:
                    raise Unavailable("the server is shutting down")
                # Before anything of the request is looked at: a stranger learns nothing from it.
                caller = self._access.caller(method, context.invocation_metadata() or ())
                set_caller(caller)
                leave = self._streams.enter(caller.tenant, host_of_peer(context.peer()))
                # Once its last byte is sent: a client that does not read has a call until then.
                context.add_done_callback(lambda _: leave())  # type: ignore[arg-type]
                return await behavior(parse(data, request_class), paced)
            except RadixdError as error:
                problem: RadixdError = error
            except Exception as error:
                # The client has gone; the write that failed is no fault of ours.  It may fail a
                # moment before the context knows why.
                if context.done() or isinstance(error, grpc.aio.InternalError):
                    raise asyncio.CancelledError from None
                log.exception("call_failed", method=method)
                problem = InternalFault("an unexpected fault in the server; its log says more")
            finally:
                self.num_calls -= 1
                paced.close()
            # Not the sentence, which may quote what the client sent.
            field = getattr(problem, "field", None)
            log.debug("call_refused", method=method, reason=problem.reason, field=field)
            await paced.settle()
            try:
                await context.abort_with_status(to_status(problem))
            except grpc.aio.InternalError:
                raise asyncio.CancelledError from None  # as above: nobody is left to be told

        return call


def parse(data: bytes, request_class: type[Message]) -> Any:
    """The message in these bytes.

    Raises:
        InvalidRequest: they are none; names the field where a string is not UTF-8.
        Unsupported: a field of a later schema is set.
    """
    try:
        message = request_class.FromString(data)
    except DecodeError:
        field = field_with_bad_utf8(data, request_class.DESCRIPTOR)  # type: ignore[arg-type]
        if field is None:
            name = request_class.DESCRIPTOR.full_name
            raise InvalidRequest("request", f"its bytes are no {name}") from None
        raise InvalidRequest(field, "not valid UTF-8") from None
    _refuse_unknown_fields(message)
    return message


def _or_bytes(serializer: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A long reply is bytes already, written where it holds up nobody."""
    return lambda reply: reply if isinstance(reply, bytes) else serializer(reply)


def _refuse_unknown_fields(message: Message) -> None:
    """Fields of a later schema would be accepted without effect; their sender is to know."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        number, name = unknown[0].field_number, message.DESCRIPTOR.full_name
        raise Unsupported(f"field {number} of {name} is not known to this server")
    # As deep as the schema, whose messages do not hold themselves.
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if field.is_repeated else (value,):
            _refuse_unknown_fields(part)


def _request_class(method: str) -> type[Message]:
    name = method.removeprefix("/").replace("/", ".")
    found = descriptor_pool.Default().FindMethodByName(name)
    return message_factory.GetMessageClass(found.input_type)
