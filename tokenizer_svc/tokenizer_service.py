"""radixd.v1.TokenizerService: text to ids and back, exactly as generations do it."""

from collections.abc import Sequence

import grpc

from protos.errors import InvalidRequest
from protos.radixd.v1 import tokenizer_pb2 as pb
from protos.radixd.v1 import tokenizer_pb2_grpc as pb_grpc
from tokenizer_svc.field_checks import check_ids
from tokenizer_svc.long_replies import SLICE_IDS, tokenize_response
from tokenizer_svc.tokenizer_pool import TokenizerPool
from tokenizer_svc.validation import MAX_PROMPT_IDS, read_prompt


class TokenizerService(pb_grpc.TokenizerServiceServicer):
    """Works without a scheduler."""

    def __init__(self, *, pool: TokenizerPool, max_prompt_bytes: int) -> None:
        self._pool = pool
        self._max_prompt_bytes = max_prompt_bytes

    async def Tokenize(  # noqa: N802
        self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.TokenizeResponse | bytes:
        """The ids a generation with this prompt would begin with; many of them as bytes already."""
        prompt = read_prompt(request, max_prompt_bytes=self._max_prompt_bytes)
        ids = await self._pool.encode(prompt)
        if len(ids) <= SLICE_IDS:
            return pb.TokenizeResponse(ids=ids)
        return await self._pool.aside(lambda: tokenize_response(ids))

    async def Detokenize(  # noqa: N802
        self, request: pb.DetokenizeRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.DetokenizeResponse:
        """The text of these ids with nothing before them."""
        skips = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        text = await text_of_ids(self._pool, request.ids, "ids", skip_special_tokens=skips)
        return pb.DetokenizeResponse(text=text)


async def text_of_ids(
    pool: TokenizerPool, ids: Sequence[int], field: str, *, skip_special_tokens: bool
) -> str:
    """The text of a caller's ids with nothing before them.

    Raises:
        InvalidRequest: too many, or one outside the vocabulary; names the field.
    """
    if len(ids) > MAX_PROMPT_IDS:
        raise InvalidRequest(field, f"{len(ids)} ids; at most {MAX_PROMPT_IDS}")
    check_ids(ids, field, vocab_size=pool.tokenizer.num_ids)
    (text,) = await pool.decode_all([list(ids)], skip_special_tokens=skip_special_tokens)
    return text
