"""What all replies say alike: how a choice ended, what it cost, and whole choices from pieces."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from protos.plan import LogprobColumns
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.delivery import ChoicePiece, Usage
from tokenizer_svc.generate import Finish
from tokenizer_svc.tokenizers.tokenizer import ToolCall

_REASONS: dict[int, str] = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
}
_CUT_SHORT = "length"
"""For what OpenAI has no word; finish_message says it."""
_CUT_SHORT_BY: dict[int, str] = {
    pb.FINISH_REASON_DEADLINE: "the deadline passed",
    pb.FINISH_REASON_POOL_FULL: "the pool is full",
    pb.FINISH_REASON_CANCELLED: "it was cancelled",
}


@dataclass(slots=True, kw_only=True)
class WholeChoice:
    """A choice as its pieces make it up."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    token_ids: "array[int]" = field(default_factory=lambda: array("I"))
    logprobs: LogprobColumns | None = None
    finish: Finish | None = None

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)


@dataclass(slots=True, kw_only=True)
class Whole:
    """All choices of one request."""

    choices: list[WholeChoice]
    usage: Usage
    prompt: "tuple[array[int], LogprobColumns] | None" = None
    """Ids and log probabilities of the prompt, where these were asked for."""


def whole(pieces: Iterable[ChoicePiece]) -> Whole:
    """All pieces of a request, put together."""
    choices: dict[int, WholeChoice] = {}
    usage = prompt = None
    for each in pieces:
        piece = each.piece
        choice = choices.setdefault(each.choice, WholeChoice())
        choice.texts.append(piece.text)
        choice.reasoning.append(piece.reasoning_text)
        choice.tool_calls.extend(piece.tool_calls)
        choice.token_ids.extend(piece.token_ids)
        choice.logprobs = _joined(choice.logprobs, piece.logprobs)
        choice.finish = piece.finish or choice.finish
        usage = each.usage or usage
        if piece.prompt_ids is not None and piece.prompt_logprobs is not None:
            prompt = piece.prompt_ids, piece.prompt_logprobs
    assert usage is not None
    ordered = [choice for _, choice in sorted(choices.items())]
    return Whole(choices=ordered, usage=usage, prompt=prompt)


def id_header(request_id: str) -> dict[str, str]:
    """The header that names a request; an id that is not ASCII is percent-encoded there."""
    return {"x-request-id": request_id if request_id.isascii() else quote(request_id)}


def ending(finish: Finish | None) -> dict[str, Any]:
    """How a choice ended; all null while it goes on."""
    if finish is None:
        return {"finish_reason": None}
    matched = finish.matched_stop
    said: dict[str, Any] = {
        "finish_reason": _REASONS.get(finish.reason, _CUT_SHORT),
        "stop_reason": finish.matched_token_id if matched is None else matched,
    }
    if message := finish.message or _CUT_SHORT_BY.get(finish.reason):
        said["finish_message"] = message
    return said


def usage_body(usages: Sequence[Usage]) -> dict[str, Any]:
    """What these requests cost in all."""
    num_prompt = sum(usage.num_prompt_tokens for usage in usages)
    num_output = sum(usage.num_output_tokens for usage in usages)
    num_reasoning = sum(usage.num_reasoning_tokens for usage in usages)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.num_cached_tokens for usage in usages)
        },
        "completion_tokens_details": {"reasoning_tokens": num_reasoning},
    }


def tool_call_body(call: ToolCall) -> dict[str, Any]:
    """A call of a function."""
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _joined(so_far: LogprobColumns | None, more: LogprobColumns | None) -> LogprobColumns | None:
    if so_far is None or more is None:
        return so_far if more is None else _copy(more)
    so_far.chosen.extend(more.chosen)
    so_far.top_ids.extend(more.top_ids)
    so_far.top_logprobs.extend(more.top_logprobs)
    return so_far


def _copy(columns: LogprobColumns) -> LogprobColumns:
    return LogprobColumns(
        chosen=columns.chosen[:],
        top_ids=columns.top_ids[:],
        top_logprobs=columns.top_logprobs[:],
    )
