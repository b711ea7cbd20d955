"""Errors as OpenAI's clients read them: a status, and {"error": {message, type, param, code}}.

Not here: which field of the body a field of the schema is, which is in `field_names`.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protos.errors import PromptTooLarge, RadixdError, StatusCode
from tokenizer_svc.fit import ContextExceeded

MAX_MESSAGE_LENGTH = 1024
"""Messages may quote what a client sent."""
RETRY_AFTER_S = 1

_STATUS: Mapping[StatusCode, int] = MappingProxyType(
    {
        StatusCode.CANCELLED: 409,
        StatusCode.INVALID_ARGUMENT: 400,
        StatusCode.DEADLINE_EXCEEDED: 408,  # the request set it itself, so that it is no 504
        StatusCode.NOT_FOUND: 404,
        StatusCode.ALREADY_EXISTS: 409,
        StatusCode.PERMISSION_DENIED: 403,
        StatusCode.RESOURCE_EXHAUSTED: 429,
        StatusCode.UNIMPLEMENTED: 400,
        StatusCode.INTERNAL: 500,
        StatusCode.UNAVAILABLE: 503,
        StatusCode.UNAUTHENTICATED: 401,
    }
)
_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        409: "conflict_error",
        429: "rate_limit_error",
        500: "server_error",
        503: "server_error",
    }
)
_TRY_AGAIN = (429, 503)


class HttpRefusal(Exception):
    """A request that HTTP itself refuses, before there is anything of radixd's to ask about."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers


class ClientGone(Exception):
    """The client has closed its connection, or was cut: nobody is left to answer."""


def status_of(error: RadixdError | HttpRefusal) -> int:
    """The status of the reply."""
    if isinstance(error, HttpRefusal):
        return error.status
    if isinstance(error, PromptTooLarge):
        return 400  # it never fits; 429 would have clients try again
    return _STATUS[error.code]


def headers_of(error: RadixdError | HttpRefusal) -> dict[str, str]:
    """Headers that come with it."""
    status = status_of(error)
    headers = dict(error.headers) if isinstance(error, HttpRefusal) else {}
    if status in _TRY_AGAIN:
        retry_after_ms = getattr(error, "retry_after_ms", RETRY_AFTER_S * 1000)
        headers.setdefault("retry-after", str(math.ceil(retry_after_ms / 1000)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def error_body(error: RadixdError | HttpRefusal) -> dict[str, Any]:
    """The body of the reply, or the event that ends a stream."""
    if isinstance(error, HttpRefusal):
        code, param = error.code, error.param
    else:
        code, param = error.reason.lower(), getattr(error, "field", None)
    if isinstance(error, ContextExceeded | PromptTooLarge):
        code = "context_length_exceeded"  # by which clients know to send less
    return {
        "error": {
            "message": _shortened(str(error)),
            "type": _TYPES.get(status_of(error), "invalid_request_error"),
            "param": None if param is None else _shortened(param),
            "code": code,
        }
    }


def _shortened(text: str) -> str:
    if len(text) <= MAX_MESSAGE_LENGTH:
        return text
    return text[: MAX_MESSAGE_LENGTH - 3] + "..."
