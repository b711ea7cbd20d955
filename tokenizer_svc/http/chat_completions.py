"""POST /v1/chat/completions."""

import time
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from tokenizer_svc.delivery import ChoicePiece, Usage
from tokenizer_svc.http import field_names
from tokenizer_svc.http.answers import (
    Whole,
    WholeChoice,
    ending,
    id_header,
    tool_call_body,
    usage_body,
    whole,
)
from tokenizer_svc.http.bodies_chat import ChatBody
from tokenizer_svc.http.cache_hints import Marks, marks_of
from tokenizer_svc.http.gateway import Gateway
from tokenizer_svc.http.generations import Asked
from tokenizer_svc.http.json_reply import json_text, long_json
from tokenizer_svc.http.sse import DONE, EventStream
from tokenizer_svc.http.to_request import chat_request, names_of
from tokenizer_svc.http.token_texts import TokenTexts
from tokenizer_svc.http.watch import while_connected
from tokenizer_svc.said_aside import SaidAside, is_long, is_long_reply
from tokenizer_svc.sink import Collected, Sink


class ChatCompletions:
    """Answers conversations, whole or as a stream."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> ASGIApp:
        """Generates."""
        gateway = self._gateway
        body = await gateway.read(request, ChatBody)
        model = gateway.models.named(body.model)
        asked = gateway.generations.read(chat_request(body), _names(body))
        marks = marks_of(body.messages)
        reply = _Reply(body, asked, model=model, texts=gateway.texts)
        headers = id_header(asked.request.request_id)
        if body.prewarm:
            work = gateway.prewarm([asked], marks)
            usages = await while_connected(request.receive, work)
            return JSONResponse(reply.prewarmed(usages), headers=headers)
        if body.stream:
            tell = partial(self._tell, reply, asked, marks)
            return EventStream(tell, keep_alive_s=gateway.keep_alive_s, headers=headers)
        pieces: Collected[ChoicePiece] = Collected()
        await while_connected(request.receive, gateway.generations.run(asked, pieces))
        gateway.hints.follow(asked.request, marks)
        return await gateway.whole(
            lambda: reply.whole(whole(pieces.values)),
            is_long=is_long_reply(pieces.values),
            headers=headers,
        )

    async def _tell(self, reply: "_Reply", asked: Asked, marks: Marks, events: Sink[bytes]) -> None:
        aside = self._gateway.pool.aside
        told = SaidAside(reply.events, events, is_long=is_long, aside=aside)
        await self._gateway.generations.run(asked, told)
        self._gateway.hints.follow(asked.request, marks)
        events.put(DONE)


class _Reply:
    """The words of one reply."""

    def __init__(self, body: ChatBody, asked: Asked, *, model: str, texts: TokenTexts) -> None:
        self._most_calls = 1 if body.parallel_tool_calls is False else None
        self.includes_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._texts = texts
        self._envelope: dict[str, Any] = {
            "id": f"chatcmpl-{asked.request.request_id}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": model,
            "seed": asked.request.sampling.seed,
        }
        # Every event begins alike.
        self._head = f"data: {json_text(self._envelope)[:-1]}"
        self._tail = ',"usage":null}\n\n' if self.includes_usage else "}\n\n"
        self._num_calls: dict[int, int] = {}
        """By choice, for those that have begun."""

    def whole(self, answer: Whole) -> dict[str, Any]:
        """All choices at once."""
        choices = [self._choice(i, choice) for i, choice in enumerate(answer.choices)]
        body = self._envelope | {"choices": choices, "usage": usage_body([answer.usage])}
        if answer.prompt is not None:
            body["prompt_logprobs"] = self._texts.for_prompt(*answer.prompt)
        return body

    def prewarmed(self, usages: list[Usage]) -> dict[str, Any]:
        """No output, which is as if max_tokens were 0."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": "length",
        }
        envelope = self._envelope | {"object": "chat.completion"}
        return envelope | {"choices": [choice], "usage": usage_body(usages)}

    def events(self, each: ChoicePiece) -> bytes:
        """What this piece lets be said."""
        if each.usage is not None and self.includes_usage:
            return self.event(each) + self.usage_event(each.usage)
        return self.event(each)

    def event(self, each: ChoicePiece) -> bytes:
        """One piece."""
        if each.choice in self._num_calls and each.piece.is_plain:
            return self._plain_event(each.choice, each.piece.text)
        return self.any_event(each)

    def _plain_event(self, choice: int, text: str) -> bytes:
        """What `any_event` says of text alone; every token comes by here, so little is built."""
        delta_text = f'{{"content":{json_text(text)}}},"logprobs":null'
        choice_text = f'{{"index":{choice},"delta":{delta_text},"finish_reason":null}}'
        return f'{self._head},"choices":[{choice_text}]{self._tail}'.encode()

    def any_event(self, each: ChoicePiece) -> bytes:
        """One piece, whatever it says."""
        piece = each.piece
        num_calls = self._num_calls.get(each.choice)
        delta: dict[str, Any] = {}
        if num_calls is None:
            delta = {"role": "assistant", "content": ""}
            num_calls = self._num_calls[each.choice] = 0
        if piece.text:
            delta["content"] = piece.text
        if piece.reasoning_text:
            delta["reasoning_content"] = piece.reasoning_text
        calls = [
            {"index": num_calls + i} | tool_call_body(call)
            for i, call in enumerate(piece.tool_calls)
        ][: None if self._most_calls is None else max(0, self._most_calls - num_calls)]
        if calls:
            delta["tool_calls"] = calls
            self._num_calls[each.choice] += len(calls)
        choice = {
            "index": each.choice,
            "delta": delta,
            "logprobs": self._texts.for_chat(piece.token_ids, piece.logprobs),
            **ending(piece.finish),
        }
        extra = b""
        if piece.prompt_ids is not None and piece.prompt_logprobs is not None:
            prompt = self._texts.for_prompt(piece.prompt_ids, piece.prompt_logprobs)
            extra = b',"prompt_logprobs":%b' % long_json(prompt)
        head, tail = self._head.encode(), self._tail.encode()
        said = long_json(choice) if is_long(each) else json_text(choice).encode()
        return b'%b,"choices":[%b]%b%b' % (head, said, extra, tail)

    def usage_event(self, usage: Usage) -> bytes:
        """What the stream cost."""
        text = json_text(usage_body([usage]))
        return f'{self._head},"choices":[],"usage":{text}}}\n\n'.encode()

    def _choice(self, index: int, choice: WholeChoice) -> dict[str, Any]:
        calls = choice.tool_calls[: self._most_calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text if choice.text or not calls else None,
            "refusal": None,
        }
        if reasoning := "".join(choice.reasoning):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [tool_call_body(call) for call in calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._texts.for_chat(choice.token_ids, choice.logprobs),
            **ending(choice.finish),
        }


def _names(body: ChatBody) -> field_names.Names:
    if body.max_completion_tokens is not None:
        limit = field_names.names((r"sampling\.max_tokens", "max_completion_tokens"))
        return (*limit, *names_of(body, field_names.CHAT))
    return names_of(body, field_names.CHAT)
