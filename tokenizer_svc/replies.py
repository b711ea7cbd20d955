"""Pieces of a generation as messages of the public schema."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from protos.plan import LogprobColumns
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.delivery import ChoicePiece, Usage
from tokenizer_svc.generate import Finish, Piece
from tokenizer_svc.generation_request import GenerationRequest
from tokenizer_svc.long_replies import SLICE_PIECES, SLICE_ROWS, in_slices
from tokenizer_svc.token_log import rows

_CHOICES = pb.GenerateUnaryResponse.CHOICES_FIELD_NUMBER
_LENGTH_DELIMITED = 2


class StreamReplies:
    """The messages of one stream, in order."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._is_first = True

    def reply(self, each: ChoicePiece) -> pb.GenerateResponse:
        """The next one."""
        request, piece = self._request, each.piece
        reply = pb.GenerateResponse(
            request_id=request.request_id,
            text=piece.text,
            token_ids=piece.token_ids,
            choice=each.choice,
        )
        if self._is_first or each.usage is not None:
            reply.seed = request.sampling.seed
        self._is_first = False
        if not piece.is_plain:
            _set_others(reply, each)
        return reply

    def long_reply(self, each: ChoicePiece) -> bytes:
        """The same in bytes, with pauses."""
        piece, kind = each.piece, pb.GenerateResponse
        bare = replace(piece, logprobs=None, prompt_ids=None, prompt_logprobs=None)
        said = [self.reply(replace(each, piece=bare)).SerializeToString()]
        said += _slices(kind, "logprobs", piece.token_ids, piece.logprobs)
        said += _slices(kind, "prompt_logprobs", *_of_prompt(piece))
        return b"".join(said)


def _set_others(reply: pb.GenerateResponse, each: ChoicePiece) -> None:
    """What most pieces do not have, and every token is a piece."""
    piece = each.piece
    if piece.reasoning_text:
        reply.reasoning_text = piece.reasoning_text
    if piece.tool_calls:
        reply.tool_calls.extend(_tool_calls(piece))
    if piece.logprobs is not None:
        reply.logprobs.extend(_token_logprobs(piece.token_ids, piece.logprobs))
    if piece.prompt_ids is not None:
        reply.prompt_logprobs.extend(_token_logprobs(*_of_prompt(piece)))
    if piece.finish is not None:
        _set_finish(reply, piece.finish)
    if each.usage is not None:
        _set_usage(reply.usage, each.usage)


def unary_reply(request: GenerationRequest, pieces: Sequence[ChoicePiece]) -> bytes:
    """The whole generation as one GenerateUnaryResponse: what the stream would have said, joined;
    with pauses where that is long."""
    by_choice: list[list[Piece]] = [[] for _ in range(request.n)]
    for part in in_slices(pieces, SLICE_PIECES):
        for each in part:
            by_choice[each.choice].append(each.piece)
    usage = pieces[-1].usage
    assert usage is not None
    reply = pb.GenerateUnaryResponse(request_id=request.request_id, seed=request.sampling.seed)
    _set_usage(reply.usage, usage)
    said = [reply.SerializeToString(), *_whole(pb.GenerateUnaryResponse, by_choice[0])]
    for each in pieces:
        said += _slices(pb.GenerateUnaryResponse, "prompt_logprobs", *_of_prompt(each.piece))
    for kept in by_choice if request.n > 1 else ():
        said += _nested(_CHOICES, b"".join(_whole(pb.Choice, kept)))
    return b"".join(said)


def _whole(kind: Any, pieces: Sequence[Piece]) -> Iterator[bytes]:
    """One choice from all its pieces, in parts: one after the other they are one message."""
    finish = pieces[-1].finish
    assert finish is not None
    reply = kind(
        text="".join([piece.text for piece in pieces]),
        reasoning_text="".join([piece.reasoning_text for piece in pieces]),
    )
    _set_finish(reply, finish)
    yield reply.SerializeToString()
    for part in in_slices(pieces, SLICE_PIECES):
        reply = kind()
        for piece in part:
            reply.token_ids.extend(piece.token_ids)
            reply.tool_calls.extend(_tool_calls(piece))
        yield reply.SerializeToString()
    for piece in pieces:
        yield from _slices(kind, "logprobs", piece.token_ids, piece.logprobs)


def _slices(
    kind: Any, field: str, ids: Sequence[int], columns: LogprobColumns | None
) -> Iterator[bytes]:
    """These log probabilities as a field of a message that has nothing else."""
    for part in in_slices(_token_logprobs(ids, columns), SLICE_ROWS):
        yield kind(**{field: part}).SerializeToString()


def _nested(field_number: int, data: bytes) -> tuple[bytes, bytes]:
    """A message in bytes as the field of another one."""
    head, size = bytearray(), len(data)
    head.append(field_number << 3 | _LENGTH_DELIMITED)
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head), data


def _tool_calls(piece: Piece) -> list[pb.ToolCall]:
    return [
        pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
        for call in piece.tool_calls
    ]


def _of_prompt(piece: Piece) -> "tuple[Sequence[int], LogprobColumns | None]":
    """The tokens that have log probabilities, and those."""
    return () if piece.prompt_ids is None else piece.prompt_ids[1:], piece.prompt_logprobs


def _token_logprobs(
    token_ids: Sequence[int], columns: LogprobColumns | None
) -> Iterator[pb.TokenLogprobs]:
    """One for each id, where log probabilities were asked for."""
    for token_id, logprob, likeliest in rows(token_ids, columns):
        top = [pb.TopLogprob(token_id=i, logprob=p) for i, p in likeliest]
        yield pb.TokenLogprobs(token_id=token_id, logprob=logprob, top=top)


def _set_finish(
    reply: pb.GenerateResponse | pb.GenerateUnaryResponse | pb.Choice, finish: Finish
) -> None:
    reply.finish_reason = finish.reason  # type: ignore[assignment]
    reply.finish_message = finish.message
    if finish.matched_stop is not None:
        reply.matched_stop = finish.matched_stop
    elif finish.matched_token_id is not None:
        reply.matched_token_id = finish.matched_token_id


def _set_usage(message: pb.Usage, usage: Usage) -> None:
    message.prompt_tokens = usage.num_prompt_tokens
    message.completion_tokens = usage.num_output_tokens
    message.cached_tokens = usage.num_cached_tokens
    message.reasoning_tokens = usage.num_reasoning_tokens
