"""POST /tokenize and /detokenize, exactly as generations do it."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from protos.errors import InvalidRequest
from protos.radixd.v1 import tokenizer_pb2 as pb
from tokenizer_svc.generation_request import ChatPrompt
from tokenizer_svc.http import field_names
from tokenizer_svc.http.bodies import Body, Int64
from tokenizer_svc.http.bodies_chat import ChatMessageBody, TemplateFields
from tokenizer_svc.http.field_names import in_words_of
from tokenizer_svc.http.json_body import BodyReader
from tokenizer_svc.http.json_reply import JsonReply, json_text
from tokenizer_svc.http.models import Models
from tokenizer_svc.http.to_request import chat_prompt
from tokenizer_svc.long_replies import SLICE_IDS, json_ids
from tokenizer_svc.tokenizer_pool import TokenizerPool
from tokenizer_svc.tokenizer_service import text_of_ids
from tokenizer_svc.validation import read_prompt


class TokenizeBody(TemplateFields):
    """POST /tokenize: one of prompt and messages."""

    model: str | None = None
    prompt: Annotated[str, Field(json_schema_extra={"minLength": 1})] | None = None
    messages: list[ChatMessageBody] | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[Int64]
    skip_special_tokens: bool | None = None


class Tokens:
    """Works without a scheduler."""

    def __init__(
        self, *, pool: TokenizerPool, models: Models, read: BodyReader, max_prompt_bytes: int
    ) -> None:
        self._pool = pool
        self._models = models
        self._read = read
        self._max_prompt_bytes = max_prompt_bytes

    async def tokenize(self, request: Request) -> ASGIApp:
        """The ids a generation with this prompt would begin with."""
        body = await self._read(request, TokenizeBody)
        self._models.named(body.model)
        with in_words_of(field_names.TOKENIZE):
            prompt = read_prompt(_message(body), max_prompt_bytes=self._max_prompt_bytes)
            if isinstance(prompt, ChatPrompt) and body.add_generation_prompt is not None:
                prompt = replace(prompt, add_generation_prompt=body.add_generation_prompt)
            ids = await self._pool.encode(prompt)
        rest = json_text({"count": len(ids), "max_model_len": self._models.max_length})
        tokens = (
            json_ids(ids)
            if len(ids) <= SLICE_IDS
            else await self._pool.aside(lambda: json_ids(ids))
        )
        content = b'{"tokens":%b,%b' % (tokens, rest[1:].encode())
        return JsonReply(content)

    async def detokenize(self, request: Request) -> ASGIApp:
        """The text of these ids with nothing before them; also under vLLM's name for it."""
        body = await self._read(request, DetokenizeBody)
        self._models.named(body.model)
        skips = body.skip_special_tokens is not False
        text = await text_of_ids(self._pool, body.tokens, "tokens", skip_special_tokens=skips)
        return JSONResponse({"text": text, "prompt": text})


def _message(body: TokenizeBody) -> pb.TokenizeRequest:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("prompt", "one of prompt and messages is needed")
    if body.messages is not None:
        return pb.TokenizeRequest(chat=chat_prompt(body.messages, body))
    for name in TemplateFields.model_fields:
        if getattr(body, name) is not None:
            raise InvalidRequest(name, "only for messages; a prompt is taken as it stands")
    return pb.TokenizeRequest(text=body.prompt)
