"""Errors of radixd as google.rpc.Status: a code, a sentence, and details a program can read."""

import grpc
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from protos.errors import RadixdError

ERROR_DOMAIN = "radixd"
_MAX_MESSAGE_LENGTH = 1024
"""Details travel as headers, which have 8 KB in all; messages may quote what a client sent."""


def to_status(error: RadixdError) -> grpc.Status:
    """The status a call ends with for this error."""
    message = _shortened(str(error))
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)]
    field = getattr(error, "field", None)
    if field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_shortened(field), description=_shortened(getattr(error, "message", message))
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    retry_after_ms = getattr(error, "retry_after_ms", None)
    if retry_after_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(retry_after_ms)
        details.append(retry)
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=message)
    for detail in details:
        status.details.add().Pack(detail)
    return rpc_status.to_status(status)  # type: ignore[no-any-return]


def _shortened(text: str) -> str:
    if len(text) <= _MAX_MESSAGE_LENGTH:
        return text
    return text[: _MAX_MESSAGE_LENGTH - 3] + "..."
