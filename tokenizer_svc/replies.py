"""Pieces of a generation as messages of the public schema."""

from collections.abc import Iterator, Sequence

from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.generate import Finish, Piece
from tokenizer_svc.generation_request import GenerationRequest


def stream_reply(
    request: GenerationRequest, piece: Piece, *, with_seed: bool
) -> pb.GenerateResponse:
    """One message of the stream."""
    reply = pb.GenerateResponse(
        request_id=request.request_id, text=piece.text, token_ids=piece.token_ids
    )
    reply.logprobs.extend(_token_logprobs(piece))
    if piece.finish is not None:
        _set_finish(reply, piece.finish)
    if with_seed or piece.finish is not None:
        reply.seed = request.sampling.seed
    return reply


def unary_reply(request: GenerationRequest, pieces: Sequence[Piece]) -> pb.GenerateUnaryResponse:
    """The whole generation as one message: what the stream would have said, joined."""
    reply = pb.GenerateUnaryResponse(
        request_id=request.request_id,
        text="".join([piece.text for piece in pieces]),
        seed=request.sampling.seed,
    )
    for piece in pieces:
        reply.token_ids.extend(piece.token_ids)
        reply.logprobs.extend(_token_logprobs(piece))
    finish = pieces[-1].finish
    assert finish is not None
    _set_finish(reply, finish)
    return reply


def _token_logprobs(piece: Piece) -> Iterator[pb.TokenLogprobs]:
    """One for each id of the piece, where log probabilities were asked for."""
    columns = piece.logprobs
    if columns is None or not piece.token_ids:
        return
    k = len(columns.top_ids) // len(piece.token_ids)
    tops = list(zip(columns.top_ids, columns.top_logprobs, strict=True))
    for at, (token_id, logprob) in enumerate(zip(piece.token_ids, columns.chosen, strict=True)):
        top = [pb.TopLogprob(token_id=i, logprob=p) for i, p in tops[at * k : at * k + k]]
        yield pb.TokenLogprobs(token_id=token_id, logprob=logprob, top=top)


def _set_finish(reply: pb.GenerateResponse | pb.GenerateUnaryResponse, finish: Finish) -> None:
    reply.finish_reason = finish.reason  # type: ignore[assignment]
    reply.finish_message = finish.message
    if finish.matched_stop is not None:
        reply.matched_stop = finish.matched_stop
    elif finish.matched_token_id is not None:
        reply.matched_token_id = finish.matched_token_id
    reply.usage.prompt_tokens = finish.num_prompt_tokens
    reply.usage.completion_tokens = finish.num_output_tokens
    reply.usage.cached_tokens = finish.num_cached_tokens
