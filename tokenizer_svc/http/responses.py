"""POST /v1/responses, as far as it is text: one answer, whole or as a stream of named events."""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from protos.errors import RadixdError
from tokenizer_svc.delivery import ChoicePiece, Usage
from tokenizer_svc.generate import Piece
from tokenizer_svc.http import field_names
from tokenizer_svc.http.answers import ending, id_header, usage_body
from tokenizer_svc.http.bodies import DEFAULT_TEMPERATURE
from tokenizer_svc.http.bodies_responses import ResponseBody
from tokenizer_svc.http.errors import error_body, status_of
from tokenizer_svc.http.gateway import Gateway
from tokenizer_svc.http.generations import Asked
from tokenizer_svc.http.response_events import ResponseOutput
from tokenizer_svc.http.response_request import response_request
from tokenizer_svc.http.sse import EventStream
from tokenizer_svc.http.token_texts import TokenTexts
from tokenizer_svc.http.watch import while_connected
from tokenizer_svc.said_aside import SaidAside, is_long
from tokenizer_svc.sink import Discarded, Sink

_FAILURES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""By status; OpenAI has a closed list of them."""


class Responses:
    """Answers conversations in the words of the Responses API."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> ASGIApp:
        """Generates."""
        gateway = self._gateway
        body = await gateway.read(request, ResponseBody)
        model = gateway.models.named(body.model)
        asked = gateway.generations.read(response_request(body), field_names.RESPONSES)
        reply = _Reply(body, asked, model=model, texts=gateway.texts)
        headers = id_header(asked.request.request_id)
        if not body.stream:
            await while_connected(request.receive, self._tell(reply, asked, Discarded()))
            return await gateway.whole(
                lambda: reply.body, is_long=reply.is_long_whole, headers=headers
            )
        return EventStream(
            partial(self._tell, reply, asked),
            keep_alive_s=gateway.keep_alive_s,
            headers=headers,
            say_error=reply.error_events,
        )

    async def _tell(self, reply: "_Reply", asked: Asked, events: Sink[bytes]) -> None:
        aside = self._gateway.pool.aside
        told = SaidAside(reply.events, events, is_long=reply.is_long, aside=aside)
        await self._gateway.generations.run(asked, told)


class _Reply:
    """The words of one response; `body` is what it has come to."""

    def __init__(self, body: ResponseBody, asked: Asked, *, model: str, texts: TokenTexts) -> None:
        self._texts = texts
        self._most_calls = 1 if body.parallel_tool_calls is False else None
        self._num_calls = 0
        self._output = ResponseOutput(asked.request.request_id, is_told=body.stream is True)
        self._is_open = False
        sampling = asked.request.sampling
        self.body: dict[str, Any] = {
            "id": f"resp_{asked.request.request_id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "model": model,
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            # As they were given: what the request holds has been through 32 bits.
            "temperature": DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "top_logprobs": max(sampling.logprobs, 0),
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "text": _text_options(body),
            "tool_choice": _tool_choice(body),
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            "truncation": "disabled",
            "seed": sampling.seed,
        }

    @property
    def is_long_whole(self) -> bool:
        """The event loop has no time to write all of it."""
        return self._output.is_long

    def is_long(self, each: ChoicePiece) -> bool:
        """The event loop has no time for it; the last one says all again."""
        return is_long(each) or (each.usage is not None and self.is_long_whole)

    def error_events(self, error: RadixdError) -> bytes:
        """What ends a stream that has begun, as OpenAI's servers say it.

        Its documents have the fields of the first event at the top, its clients raise where there
        is an `error`; both are there.
        """
        said = error_body(error)
        fields = {name: said["error"][name] for name in ("code", "message", "param")}
        first = self._output.named("error", **fields, **said)
        if not self._is_open:
            return first
        code = _FAILURES.get(status_of(error), "server_error")
        self.body |= {
            "status": "failed",
            "error": {"code": code, "message": fields["message"]},
            "output": self._output.closed_items,
        }
        return first + self._output.named("response.failed", response=self.body)

    def events(self, each: ChoicePiece) -> bytes:
        """What this piece lets be said."""
        return b"".join(self._events(each))

    def _events(self, each: ChoicePiece) -> Iterator[bytes]:
        if not self._is_open:
            self._is_open = True
            yield self._output.named("response.created", response=self.body)
            yield self._output.named("response.in_progress", response=self.body)
        yield from self._said(each.piece)
        if each.usage is not None:
            yield from self._end(each.piece, each.usage)

    def _said(self, piece: Piece) -> Iterator[bytes]:
        if piece.reasoning_text:
            yield from self._output.reasoning(piece.reasoning_text)
        logprobs = list(self._texts.entries(piece.token_ids, piece.logprobs))
        if piece.text or (logprobs and self._output.is_in_text):
            yield from self._output.text(piece.text, logprobs)
        for call in piece.tool_calls[: self._room_for_calls()]:
            self._num_calls += 1
            yield from self._output.call(call)

    def _room_for_calls(self) -> int | None:
        return None if self._most_calls is None else self._most_calls - self._num_calls

    def _end(self, piece: Piece, usage: Usage) -> Iterator[bytes]:
        end = ending(piece.finish)
        is_cut = end["finish_reason"] == "length"
        status = "incomplete" if is_cut else "completed"
        if not self._output.items:
            # An answer without a word is a message, too.
            yield from self._output.text("", [])
        yield from self._output.close(status=status)
        costs = usage_body([usage])
        self.body |= {
            "status": status,
            "incomplete_details": _cut_short(end) if is_cut else None,
            "output": self._output.items,
            "usage": {
                "input_tokens": costs["prompt_tokens"],
                "input_tokens_details": costs["prompt_tokens_details"],
                "output_tokens": costs["completion_tokens"],
                "output_tokens_details": costs["completion_tokens_details"],
                "total_tokens": costs["total_tokens"],
            },
        }
        yield self._output.named(f"response.{status}", response=self.body)


def _cut_short(end: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI has one word for a length, a deadline and a cancellation; the message tells them."""
    message = end.get("finish_message")
    return {"reason": "max_output_tokens"} | ({"message": message} if message else {})


def _text_options(body: ResponseBody) -> dict[str, Any]:
    if body.text is None or body.text.format is None:
        return {"format": {"type": "text"}}
    return body.text.model_dump(by_alias=True, exclude_none=True)


def _tool_choice(body: ResponseBody) -> str | dict[str, str]:
    choice = body.tool_choice
    if choice is None:
        return "auto"
    return choice.mode or {"type": "function", "name": choice.function.name}
