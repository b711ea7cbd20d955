"""Pieces of a generation as messages of the public schema."""

from array import array
from collections.abc import Iterator, Sequence

from protos.plan import LogprobColumns
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.delivery import ChoicePiece, Usage
from tokenizer_svc.generate import Finish, Piece
from tokenizer_svc.generation_request import GenerationRequest


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
        reply.prompt_logprobs.extend(_prompt_logprobs(piece))
    if piece.finish is not None:
        _set_finish(reply, piece.finish)
    if each.usage is not None:
        _set_usage(reply.usage, each.usage)


def unary_reply(
    request: GenerationRequest, pieces: Sequence[ChoicePiece]
) -> pb.GenerateUnaryResponse:
    """The whole generation as one message: what the stream would have said, joined."""
    reply = pb.GenerateUnaryResponse(request_id=request.request_id, seed=request.sampling.seed)
    _fill(reply, [each.piece for each in pieces if each.choice == 0])
    for each in pieces:
        reply.prompt_logprobs.extend(_prompt_logprobs(each.piece))
    if request.n > 1:
        for choice in range(request.n):
            _fill(reply.choices.add(), [each.piece for each in pieces if each.choice == choice])
    usage = pieces[-1].usage
    assert usage is not None
    _set_usage(reply.usage, usage)
    return reply


def _fill(reply: pb.GenerateUnaryResponse | pb.Choice, pieces: Sequence[Piece]) -> None:
    """One choice from all its pieces."""
    reply.text = "".join([piece.text for piece in pieces])
    reply.reasoning_text = "".join([piece.reasoning_text for piece in pieces])
    for piece in pieces:
        reply.token_ids.extend(piece.token_ids)
        reply.tool_calls.extend(_tool_calls(piece))
        reply.logprobs.extend(_token_logprobs(piece.token_ids, piece.logprobs))
    finish = pieces[-1].finish
    assert finish is not None
    _set_finish(reply, finish)


def _tool_calls(piece: Piece) -> list[pb.ToolCall]:
    return [
        pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
        for call in piece.tool_calls
    ]


def _prompt_logprobs(piece: Piece) -> Iterator[pb.TokenLogprobs]:
    if piece.prompt_ids is None:
        return iter(())
    return _token_logprobs(piece.prompt_ids[1:], piece.prompt_logprobs)


def _token_logprobs(
    token_ids: "array[int]", columns: LogprobColumns | None
) -> Iterator[pb.TokenLogprobs]:
    """One for each id, where log probabilities were asked for."""
    if columns is None or not token_ids:
        return
    k = len(columns.top_ids) // len(token_ids)
    tops = list(zip(columns.top_ids, columns.top_logprobs, strict=True))
    for at, (token_id, logprob) in enumerate(zip(token_ids, columns.chosen, strict=True)):
        top = [pb.TopLogprob(token_id=i, logprob=p) for i, p in tops[at * k : at * k + k]]
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
