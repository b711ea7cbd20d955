"""How a request ended, in the scheduler's words, as what the client gets: a finish or an error."""

from protos.errors import (
    DeadlineExceeded,
    DuplicateRequestId,
    InternalFault,
    InvalidRequest,
    PromptTooLarge,
    QueueFull,
    RadixdError,
)
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as public
from tokenizer_svc.live_request import Outcome

FINISH_REASONS: dict[int, int] = {
    internal.ENDING_STOP: public.FINISH_REASON_STOP,
    internal.ENDING_LENGTH: public.FINISH_REASON_LENGTH,
    internal.ENDING_DEADLINE: public.FINISH_REASON_DEADLINE,
    internal.ENDING_POOL_FULL: public.FINISH_REASON_POOL_FULL,
    internal.ENDING_CANCELLED: public.FINISH_REASON_CANCELLED,
}
"""Endings that are results; a deadline without any token is not."""

_SUBMIT_FIELDS = {
    "max_tokens": "sampling.max_tokens",
    "stop_token_ids": "sampling.stop_token_ids",
    "ignore_eos": "sampling.ignore_eos",
}


def finish_reason(outcome: Outcome, *, num_tokens: int, prompt_field: str) -> int:
    """The public FinishReason of a generation that ended with this many tokens.

    Raises:
        RadixdError: the ending is not a result.
    """
    if outcome.ending == internal.ENDING_DEADLINE and num_tokens == 0:
        raise DeadlineExceeded(outcome.message or "the deadline passed before the first token")
    if outcome.ending in FINISH_REASONS:
        return FINISH_REASONS[outcome.ending]
    raise refusal(outcome, prompt_field=prompt_field)


def refusal(outcome: Outcome, *, prompt_field: str) -> RadixdError:
    """The error for an ending that is no result of a generation."""
    message = outcome.message
    field = public_field(outcome.field, prompt_field)
    if outcome.ending == internal.ENDING_REJECTED_INVALID or outcome.field == "constraint":
        return InvalidRequest(field, message or "it cannot be served")
    if outcome.ending == internal.ENDING_REJECTED_TOO_LARGE:
        return PromptTooLarge(field, message or "more tokens than the pool can hold")
    if outcome.ending == internal.ENDING_REJECTED_QUEUE_FULL:
        return QueueFull(message or "too many requests are waiting")
    if outcome.ending == internal.ENDING_REJECTED_DUPLICATE_ID:
        return DuplicateRequestId(message or "request_id: a request with this id is live")
    if outcome.ending == internal.ENDING_DEADLINE:
        return DeadlineExceeded(message or "the deadline passed")
    return InternalFault(message or "the request failed")


def public_field(field: str, prompt_field: str) -> str:
    """The public name of a field of the scheduler's Submit."""
    if field in ("", "prompt", "prompt_ids"):
        return prompt_field
    return _SUBMIT_FIELDS.get(field, field)
