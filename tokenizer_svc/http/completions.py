"""POST /v1/completions: one prompt or many, each a request of its own."""

import time
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from protos.errors import InvalidRequest
from tokenizer_svc.choices import ChoicePiece, Usage
from tokenizer_svc.http import field_names
from tokenizer_svc.http.answers import Whole, ending, usage_body, whole
from tokenizer_svc.http.bodies_completions import CompletionBody, OnePrompt, prompts_of
from tokenizer_svc.http.gateway import Gateway
from tokenizer_svc.http.generations import Asked, PromptPiece
from tokenizer_svc.http.sse import DONE, EventStream, event, json_text
from tokenizer_svc.http.to_request import completion_request, names_of
from tokenizer_svc.http.token_texts import CompletionLogprobs, TokenTexts
from tokenizer_svc.http.watch import while_connected
from tokenizer_svc.validation import MAX_REQUEST_ID_LENGTH


class Completions:
    """Continues prompts, whole or as a stream."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> ASGIApp:
        """Generates."""
        gateway = self._gateway
        body = await gateway.read(request, CompletionBody)
        model = gateway.models.named(body.model)
        all_asked = self._asked(body)
        reply = _Reply(body, all_asked, model=model, texts=gateway.texts)
        headers = {"x-request-id": body.request_id or all_asked[0].request.request_id}
        if body.prewarm:
            work = gateway.prewarm(all_asked, [])
            usages = await while_connected(request.receive, work)
            return JSONResponse(reply.prewarmed(usages), headers=headers)
        if body.stream:
            events = self._events(reply, all_asked)
            return EventStream(events, keep_alive_s=gateway.keep_alive_s, headers=headers)
        wholes = await while_connected(request.receive, self._wholes(all_asked))
        return JSONResponse(reply.whole(wholes), headers=headers)

    def _asked(self, body: CompletionBody) -> list[Asked]:
        """A request for each prompt; with several, each has its number behind the common id."""
        prompts = prompts_of(body.prompt)
        return [
            self._one_asked(body, prompt, "" if len(prompts) == 1 else f"-{number}")
            for number, prompt in enumerate(prompts)
        ]

    def _one_asked(self, body: CompletionBody, prompt: OnePrompt, suffix: str) -> Asked:
        message = completion_request(body, prompt)
        if body.request_id is not None and suffix:
            if len(body.request_id + suffix) > MAX_REQUEST_ID_LENGTH:
                raise InvalidRequest("request_id", "too long to number the prompts behind it")
            message.request_id = body.request_id + suffix
        names = names_of(body, field_names.completions(prompt.field))
        return self._gateway.generations.read(message, names)

    async def _wholes(self, all_asked: Sequence[Asked]) -> list[Whole]:
        if len(all_asked) == 1:
            return [await whole(self._gateway.generations.pieces(all_asked[0]))]
        kept: list[list[ChoicePiece]] = [[] for _ in all_asked]
        async with aclosing(self._gateway.generations.of_all(all_asked)) as pieces:
            async for piece in pieces:
                kept[piece.prompt].append(piece.each)
        return [await whole(_again(pieces)) for pieces in kept]

    async def _events(
        self, reply: "_Reply", all_asked: Sequence[Asked]
    ) -> AsyncGenerator[bytes, None]:
        usages: list[Usage] = []
        async with aclosing(self._gateway.generations.of_all(all_asked)) as pieces:
            async for piece in pieces:
                for text in reply.events(piece):
                    yield text
                if piece.each.usage is not None:
                    usages.append(piece.each.usage)
        if reply.includes_usage:
            yield reply.usage_event(usages)
        yield DONE


class _Reply:
    """The words of one reply."""

    def __init__(
        self, body: CompletionBody, all_asked: Sequence[Asked], *, model: str, texts: TokenTexts
    ) -> None:
        request = all_asked[0].request
        self._n = request.n
        self._num_prompts = len(all_asked)
        self._echoes_logprobs = bool(body.echo) and body.logprobs is not None
        self._shows_prompt = body.prompt_logprobs is not None
        self.includes_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._texts = texts
        self._envelope: dict[str, Any] = {
            "id": f"cmpl-{body.request_id or request.request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "seed": request.sampling.seed,
        }
        # Every event begins alike.
        self._head = f"data: {json_text(self._envelope)[:-1]}"
        self._tail = ',"usage":null}\n\n' if self.includes_usage else "}\n\n"
        self._logprobs: dict[int, CompletionLogprobs] = {}
        """By choice, for those that have begun."""
        self._waiting: dict[int, list[PromptPiece]] = {i: [] for i in range(self._num_prompts)}
        """Pieces of other choices, until choice 0 has said what the prompt's numbers are."""
        self._prompts: dict[int, Any] = {}

    def whole(self, wholes: Sequence[Whole]) -> dict[str, Any]:
        """All choices of all prompts at once."""
        choices: list[dict[str, Any]] = []
        for answer in wholes:
            for choice in answer.choices:
                body = {
                    "index": len(choices),
                    "text": choice.text,
                    "logprobs": None,
                    **ending(choice.finish),
                }
                if choice.logprobs is not None:
                    body["logprobs"] = CompletionLogprobs(self._texts).part(
                        choice.token_ids, choice.logprobs, echoed=self._echoed(answer.prompt)
                    )
                if self._shows_prompt and answer.prompt is not None:
                    body["prompt_logprobs"] = self._texts.for_prompt(*answer.prompt)
                choices.append(body)
        usage = usage_body([answer.usage for answer in wholes])
        return self._envelope | {"choices": choices, "usage": usage}

    def prewarmed(self, usages: Sequence[Usage]) -> dict[str, Any]:
        """No output, which is as if max_tokens were 0."""
        choices = [
            {"index": i, "text": "", "logprobs": None, "finish_reason": "length"}
            for i in range(self._num_prompts)
        ]
        return self._envelope | {"choices": choices, "usage": usage_body(usages)}

    def events(self, piece: PromptPiece) -> list[bytes]:
        """What this piece lets be said."""
        each = piece.each.piece
        if each.prompt_ids is not None and each.prompt_logprobs is not None:
            self._prompts[piece.prompt] = each.prompt_ids, each.prompt_logprobs
        waiting = self._waiting[piece.prompt]
        if self._echoes_logprobs and piece.prompt not in self._prompts:
            waiting.append(piece)
            return []
        self._waiting[piece.prompt] = []
        return [self._event(ready) for ready in (piece, *waiting)]

    def usage_event(self, usages: Sequence[Usage]) -> bytes:
        """What the stream cost."""
        return event(self._envelope | {"choices": [], "usage": usage_body(usages)})

    def _event(self, piece: PromptPiece) -> bytes:
        each = piece.each.piece
        index = piece.prompt * self._n + piece.each.choice
        if each.is_plain and index in self._logprobs:
            # Every token comes by here, so nothing is built that is the same for all of them.
            text = f'"text":{json_text(each.text)},"logprobs":null,"finish_reason":null'
            return f'{self._head},"choices":[{{"index":{index},{text}}}]{self._tail}'.encode()
        body = {"index": index, "text": each.text, "logprobs": None, **ending(each.finish)}
        is_first = index not in self._logprobs
        logprobs = self._logprobs.setdefault(index, CompletionLogprobs(self._texts))
        prompt = self._prompts.get(piece.prompt) if is_first else None
        if each.logprobs is not None:
            body["logprobs"] = logprobs.part(
                each.token_ids, each.logprobs, echoed=self._echoed(prompt)
            )
        if self._shows_prompt and prompt is not None:
            body["prompt_logprobs"] = self._texts.for_prompt(*prompt)
        envelope = self._envelope | {"choices": [body]}
        return event(envelope | {"usage": None} if self.includes_usage else envelope)

    def _echoed(self, prompt: Any) -> Any:
        return prompt if self._echoes_logprobs else None


async def _again(pieces: Sequence[ChoicePiece]) -> AsyncIterable[ChoicePiece]:
    for piece in pieces:
        yield piece
