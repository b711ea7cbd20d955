"""Every error radixd raises on purpose, and the one table from error to gRPC status.

RadixdError
├── InvalidRequest          INVALID_ARGUMENT     a field is wrong; names the field
├── PromptTooLarge          RESOURCE_EXHAUSTED   longer than the pool can ever hold
├── QueueFull               RESOURCE_EXHAUSTED   as many wait as may wait; try again later
├── TooManyStreams          RESOURCE_EXHAUSTED   one client has as many calls as it may
├── SlowReader              RESOURCE_EXHAUSTED   the client takes its stream too slowly
├── DuplicateRequestId      ALREADY_EXISTS       a live request has this id
├── UnknownRequestId        NOT_FOUND            no live request has this id
├── DeadlineExceeded        DEADLINE_EXCEEDED    the deadline passed before the first token
├── RequestCancelled        CANCELLED            cancelled before the first token
├── Unauthenticated         UNAUTHENTICATED      the call carries no key that is known
├── PermissionDenied        PERMISSION_DENIED    the key is known, and is not one for this
├── Unavailable             UNAVAILABLE          starting, draining, or a service is away
├── Unsupported             UNIMPLEMENTED        a field or value this build does not serve
├── InternalFault           INTERNAL             a defect; the message says what is known
├── ModelError              (start-up)           a model file is missing, truncated or foreign
└── WireError               (internal)           bytes that are no message of ours
"""

from enum import IntEnum


class StatusCode(IntEnum):
    """gRPC's canonical codes, so that this floor needs no grpc."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


def first_line(error: BaseException) -> str:
    """What an error of anybody's code says first, for a line of ours; its kind if it is silent."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class RadixdError(Exception):
    """Base of all; the message is a sentence for people, without names from the code."""

    code = StatusCode.INTERNAL
    reason = "INTERNAL"
    """The ErrorInfo.reason a client may branch on."""


class InvalidRequest(RadixdError):
    """A field of the request is wrong."""

    code = StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FIELD"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class PromptTooLarge(RadixdError):
    """The prompt is longer than the pool can ever hold."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "PROMPT_TOO_LARGE"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class QueueFull(RadixdError):
    """As many requests wait as may wait."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "QUEUE_FULL"

    retry_after_ms = 1000


class TooManyStreams(RadixdError):
    """One client has as many calls in progress as it may."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "TOO_MANY_STREAMS"

    retry_after_ms = 1000


class SlowReader(RadixdError):
    """The client takes nothing of its stream for too long."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = "SLOW_READER"


class DuplicateRequestId(RadixdError):
    """A live request has this id."""

    code = StatusCode.ALREADY_EXISTS
    reason = "DUPLICATE_REQUEST_ID"


class UnknownRequestId(RadixdError):
    """No live request has this id."""

    code = StatusCode.NOT_FOUND
    reason = "UNKNOWN_REQUEST_ID"


class DeadlineExceeded(RadixdError):
    """The deadline passed before the first token."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE"


class RequestCancelled(RadixdError):
    """Cancelled before the first token."""

    code = StatusCode.CANCELLED
    reason = "CANCELLED"


class Unauthenticated(RadixdError):
    """The call carries no key that is known."""

    code = StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDenied(RadixdError):
    """The key is known, and is not one for this."""

    code = StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class Unavailable(RadixdError):
    """Starting, draining, or a service behind is away."""

    code = StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class Unsupported(RadixdError):
    """A field or value this build does not serve."""

    code = StatusCode.UNIMPLEMENTED
    reason = "UNSUPPORTED"


class InternalFault(RadixdError):
    """A defect of ours; the message says what is known."""


class ModelError(RadixdError):
    """A model cannot be loaded; the message names the file and what is wrong with it."""

    reason = "MODEL"

    def __init__(self, path: object, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


class WireError(RadixdError):
    """Bytes that are no message of ours."""

    reason = "WIRE"
