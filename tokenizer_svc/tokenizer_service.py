"""radixd.v1.TokenizerService: text to ids and back, exactly as generations do it."""

import grpc

from protos.errors import InvalidRequest
from protos.radixd.v1 import tokenizer_pb2 as pb
from protos.radixd.v1 import tokenizer_pb2_grpc as pb_grpc
from tokenizer_svc.tokenizer_pool import TokenizerPool
from tokenizer_svc.validation import MAX_PROMPT_IDS, check_ids, read_prompt


class TokenizerService(pb_grpc.TokenizerServiceServicer):
    """Works without a scheduler."""

    def __init__(self, *, pool: TokenizerPool, max_prompt_bytes: int) -> None:
        self._pool = pool
        self._max_prompt_bytes = max_prompt_bytes

    async def Tokenize(  # noqa: N802
        self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.TokenizeResponse:
        """The ids a generation with this prompt would begin with."""
        prompt = read_prompt(request, max_prompt_bytes=self._max_prompt_bytes)
        return pb.TokenizeResponse(ids=await self._pool.encode(prompt))

    async def Detokenize(  # noqa: N802
        self, request: pb.DetokenizeRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.DetokenizeResponse:
        """The text of these ids with nothing before them."""
        if len(request.ids) > MAX_PROMPT_IDS:
            raise InvalidRequest("ids", f"{len(request.ids)} ids; at most {MAX_PROMPT_IDS}")
        check_ids(request.ids, "ids", vocab_size=self._pool.tokenizer.num_ids)
        skips = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        texts = await self._pool.decode_all([list(request.ids)], skip_special_tokens=skips)
        return pb.DetokenizeResponse(text=texts[0])
