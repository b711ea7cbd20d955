"""POST /preheat: prefixes that are computed into the cache, as AdminService.Preheat does it."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from protos.errors import InvalidRequest
from protos.radixd.v1 import admin_pb2 as pb
from protos.radixd.v1 import inference_pb2
from tokenizer_svc.http.bodies import Body, Int64, Natural, schema_ref
from tokenizer_svc.http.bodies_chat import ChatMessageBody, TemplateFields
from tokenizer_svc.http.json_body import BodyReader
from tokenizer_svc.http.to_request import chat_prompt
from tokenizer_svc.http.watch import while_connected
from tokenizer_svc.preheat import Preheater
from tokenizer_svc.tenancy import current_caller

_LEVELS = {"none": pb.PIN_LEVEL_NONE, "soft": pb.PIN_LEVEL_SOFT, "hard": pb.PIN_LEVEL_HARD}


class ChatPrefix(TemplateFields):
    """The beginning of a conversation."""

    messages: list[ChatMessageBody]
    """Without any the prefix fails, by itself like any other that cannot be computed."""


def as_chat(value: object) -> object:
    """A list of messages alone is a conversation."""
    return {"messages": value} if isinstance(value, list) else value


Chat = Annotated[
    ChatPrefix,
    BeforeValidator(as_chat),
    WithJsonSchema(
        {
            "anyOf": [
                schema_ref("ChatPrefix"),
                {"type": "array", "items": schema_ref("ChatMessageBody")},
            ]
        }
    ),
]


class PreheatBody(Body):
    """POST /preheat."""

    prefixes: list[str] | None = None
    chats: list[Chat] | None = None
    tokens: list[list[Int64]] | None = None
    cache_domain: str | None = None
    pin: Literal["none", "soft", "hard"] | None = None
    ttl_s: Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="Of the pin, after its last hit."
    )
    ttl_ms: Natural | None = Field(None, description="The same as ttl_s, in milliseconds.")


class Preheats:
    """Each prefix succeeds or fails on its own; the reply says of each what became of it."""

    def __init__(self, preheater: Preheater, *, read: BodyReader) -> None:
        self._preheater = preheater
        self._read = read

    async def preheat(self, request: Request) -> ASGIApp:
        """Warms prefixes."""
        body = await self._read(request, PreheatBody)
        work = self._preheater.preheat(
            _message(body), tenant=current_caller().tenant, deadline_s=None
        )
        prefixes = await while_connected(request.receive, work)
        return JSONResponse({"prefixes": [_prefix_body(prefix) for prefix in prefixes]})


def _message(body: PreheatBody) -> pb.PreheatRequest:
    ttl_ms = body.ttl_ms
    if body.ttl_s is not None:
        if ttl_ms is not None:
            raise InvalidRequest("ttl_ms", "excludes ttl_s; a pin has one time to live")
        ttl_ms = max(1, round(body.ttl_s * 1000))
    chats = [chat_prompt(chat.messages, chat) for chat in body.chats or ()]
    tokens = [inference_pb2.TokenIds(ids=ids) for ids in body.tokens or ()]
    message = pb.PreheatRequest(prefixes=body.prefixes or (), chats=chats, tokens=tokens)
    if body.cache_domain is not None:
        message.cache_domain = body.cache_domain
    if body.pin is not None:
        message.pin = _LEVELS[body.pin]
    if ttl_ms is not None:
        message.ttl_ms = ttl_ms
    return message


def _prefix_body(prefix: pb.PreheatedPrefix) -> dict[str, Any]:
    return dict(_fields_of(prefix))


def _fields_of(prefix: pb.PreheatedPrefix) -> Iterator[tuple[str, Any]]:
    """The counts always; the words where there are any."""
    for field in prefix.DESCRIPTOR.fields:
        value = getattr(prefix, field.name)
        if value or field.name.endswith("_tokens"):
            yield field.name, value
