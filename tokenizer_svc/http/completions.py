"""POST /v1/completions: one prompt or many, each a request of its own."""

import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from protos.errors import InvalidRequest
from tokenizer_svc.delivery import ChoicePiece, Usage
from tokenizer_svc.http import field_names
from tokenizer_svc.http.answers import Whole, ending, id_header, usage_body, whole
from tokenizer_svc.http.bodies_completions import CompletionBody, OnePrompt, prompts_of
from tokenizer_svc.http.gateway import Gateway
from tokenizer_svc.http.generations import Asked, PromptPiece
from tokenizer_svc.http.json_reply import json_text
from tokenizer_svc.http.sse import DONE, EventStream, event
from tokenizer_svc.http.to_request import completion_request, names_of
from tokenizer_svc.http.token_texts import CompletionLogprobs, TokenTexts
from tokenizer_svc.http.watch import while_connected
from tokenizer_svc.said_aside import SaidAside, is_long, is_long_reply
from tokenizer_svc.sink import Collected, Sink
from tokenizer_svc.validation import MAX_REQUEST_ID_LENGTH, check_request_id


class Completions:
    """Continues prompts, whole or as a stream."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> ASGIApp:
        """Generates."""
        gateway = self._gateway
        body = await gateway.read(request, CompletionBody)
        model = gateway.models.named(body.model)
        request_id, all_asked = self._asked(body)
        reply = _Reply(request_id, body, all_asked, model=model, texts=gateway.texts)
        headers = id_header(request_id)
        if body.prewarm:
            work = gateway.prewarm(all_asked, [])
            usages = await while_connected(request.receive, work)
            return JSONResponse(reply.prewarmed(usages), headers=headers)
        if body.stream:
            tell = partial(self._tell, request_id, reply, all_asked)
            return EventStream(tell, keep_alive_s=gateway.keep_alive_s, headers=headers)
        pieces = await while_connected(request.receive, self._pieces(request_id, all_asked))
        return await gateway.whole(
            lambda: reply.whole([whole(each) for each in pieces]),
            is_long=any(map(is_long_reply, pieces)),
            headers=headers,
        )

    def _asked(self, body: CompletionBody) -> tuple[str, list[Asked]]:
        """The id, and a request for each prompt; each of several has its number behind the id."""
        prompts = prompts_of(body.prompt)
        if len(prompts) == 1:
            asked = self._one_asked(body, prompts[0], body.request_id)
            return asked.request.request_id, [asked]
        request_id = secrets.token_hex(16) if body.request_id is None else body.request_id
        check_request_id(request_id)
        if len(f"{request_id}-{len(prompts) - 1}") > MAX_REQUEST_ID_LENGTH:
            raise InvalidRequest("request_id", "too long to number the prompts behind it")
        return request_id, [
            self._one_asked(body, prompt, f"{request_id}-{number}")
            for number, prompt in enumerate(prompts)
        ]

    def _one_asked(self, body: CompletionBody, prompt: OnePrompt, request_id: str | None) -> Asked:
        message = completion_request(body, prompt)
        if request_id is not None:
            message.request_id = request_id
        names = names_of(body, field_names.completions(prompt.field))
        if body.echo and body.logprobs is not None:
            names = (*field_names.names(("prompt_logprobs", "logprobs")), *names)
        return self._gateway.generations.read(message, names)

    async def _pieces(self, request_id: str, all_asked: Sequence[Asked]) -> list[list[ChoicePiece]]:
        """All of each prompt."""
        pieces: Collected[PromptPiece] = Collected()
        await self._run(request_id, all_asked, pieces)
        kept: list[list[ChoicePiece]] = [[] for _ in all_asked]
        for piece in pieces.values:
            kept[piece.prompt].append(piece.each)
        return kept

    async def _tell(
        self,
        request_id: str,
        reply: "_Reply",
        all_asked: Sequence[Asked],
        events: Sink[bytes],
    ) -> None:
        aside = self._gateway.pool.aside
        told = SaidAside(reply.events, events, is_long=reply.is_long, aside=aside)
        await self._run(request_id, all_asked, told)
        if reply.includes_usage:
            events.put(reply.usage_event())
        events.put(DONE)

    async def _run(
        self, request_id: str, all_asked: Sequence[Asked], sink: Sink[PromptPiece]
    ) -> None:
        ids = [asked.request.request_id for asked in all_asked]
        with self._gateway.prompt_ids.live(request_id, ids):
            await self._gateway.generations.run_all(all_asked, sink)


class _Reply:
    """The words of one reply."""

    def __init__(
        self,
        request_id: str,
        body: CompletionBody,
        all_asked: Sequence[Asked],
        *,
        model: str,
        texts: TokenTexts,
    ) -> None:
        request = all_asked[0].request
        self._n = request.n
        self._num_prompts = len(all_asked)
        self._shows_logprobs = body.logprobs is not None
        self._echoes_logprobs = bool(body.echo) and self._shows_logprobs
        self._shows_prompt = body.prompt_logprobs is not None
        self.includes_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._texts = texts
        self._envelope: dict[str, Any] = {
            "id": f"cmpl-{request_id}",
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
        self._usages: list[Usage] = []
        """Of the prompts that are done."""

    def whole(self, wholes: Sequence[Whole]) -> dict[str, Any]:
        """All choices of all prompts at once."""
        choices: list[dict[str, Any]] = []
        for answer in wholes:
            for number, choice in enumerate(answer.choices):
                body = {
                    "index": len(choices),
                    "text": choice.text,
                    "logprobs": None,
                    **ending(choice.finish),
                }
                if self._shows_logprobs:
                    body["logprobs"] = CompletionLogprobs(self._texts).part(
                        choice.token_ids, choice.logprobs, echoed=self._echoed(answer.prompt)
                    )
                if self._shows_prompt and number == 0 and answer.prompt is not None:
                    # In one choice alone: it is one prompt, and up to a kilobyte a token.
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

    def events(self, piece: PromptPiece) -> bytes:
        """What this piece lets be said; perhaps nothing yet."""
        each = piece.each.piece
        if piece.each.usage is not None:
            self._usages.append(piece.each.usage)
        if each.prompt_ids is not None and each.prompt_logprobs is not None:
            self._prompts[piece.prompt] = each.prompt_ids, each.prompt_logprobs
        waiting = self._waiting[piece.prompt]
        waits = self._echoes_logprobs and piece.prompt not in self._prompts
        if waits and piece.each.usage is None:
            waiting.append(piece)
            return b""
        self._waiting[piece.prompt] = []
        # Choice 0's numbers first; where it ended without them, in the order in which they came.
        ready = [*waiting, piece] if waits else [piece, *waiting]
        return b"".join([self.event(said) for said in ready])

    def is_long(self, piece: PromptPiece) -> bool:
        """The event loop has no time for it: it, or what it says of its prompt."""
        if is_long(piece.each):
            return True
        # Each choice begins with the numbers of the prompt.
        begins = self._echoes_logprobs and self._index(piece) not in self._logprobs
        return begins and piece.prompt in self._prompts

    def usage_event(self) -> bytes:
        """What the stream cost."""
        return event(self._envelope | {"choices": [], "usage": usage_body(self._usages)})

    def event(self, piece: PromptPiece) -> bytes:
        """One piece of one choice."""
        index, each = self._index(piece), piece.each.piece
        if index in self._logprobs and each.is_plain:
            return self._plain_event(index, each.text)
        return self.any_event(piece)

    def _plain_event(self, index: int, text: str) -> bytes:
        """What `any_event` says of text alone; every token comes by here, so little is built."""
        choice = f'"text":{json_text(text)},"logprobs":null,"finish_reason":null'
        return f'{self._head},"choices":[{{"index":{index},{choice}}}]{self._tail}'.encode()

    def any_event(self, piece: PromptPiece) -> bytes:
        """One piece of one choice, whatever it says."""
        index, each = self._index(piece), piece.each.piece
        body = {"index": index, "text": each.text, "logprobs": None, **ending(each.finish)}
        is_first = index not in self._logprobs
        logprobs = self._logprobs.setdefault(index, CompletionLogprobs(self._texts))
        prompt = self._prompts.get(piece.prompt) if is_first else None
        echoed = self._echoed(prompt)
        if each.logprobs is not None or echoed is not None:
            body["logprobs"] = logprobs.part(each.token_ids, each.logprobs, echoed=echoed)
        if self._shows_prompt and piece.each.choice == 0 and prompt is not None:
            body["prompt_logprobs"] = self._texts.for_prompt(*prompt)
        envelope = self._envelope | {"choices": [body]}
        if self.includes_usage:
            envelope["usage"] = None
        return event(envelope, is_long=prompt is not None or is_long(piece.each))

    def _index(self, piece: PromptPiece) -> int:
        """Which choice of the reply it is of."""
        return piece.prompt * self._n + piece.each.choice

    def _echoed(self, prompt: Any) -> Any:
        return prompt if self._echoes_logprobs else None
