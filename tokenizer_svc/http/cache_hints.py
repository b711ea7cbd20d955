"""`cache_control` marks: the prompt up to one stays warm, as a soft pin with a time to live.

The pin is made after the answer, when the prompt is in the cache and pinning it computes nothing;
a request that fails pins nothing.  A mark on a part of a message counts for the whole message.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog

from protos.errors import InvalidRequest
from protos.radixd.v1 import admin_pb2
from tokenizer_svc.generation_request import ChatPrompt, GenerationRequest
from tokenizer_svc.http.bodies_chat import ChatMessageBody
from tokenizer_svc.preheat import Preheater, Terms

MAX_MARKS = 4
"""Of one request, as at Anthropic."""
MAX_PENDING = 256
"""Requests whose pins are still to be made; further ones are given up, as hints may be."""

log = structlog.get_logger()

Marks = list[tuple[int, int]]
"""After how many messages, and for how many milliseconds."""


def marks_of(messages: Sequence[ChatMessageBody]) -> Marks:
    """The marks of a conversation.

    Raises:
        InvalidRequest: there are too many.
    """
    marks: Marks = []
    for i, message in enumerate(messages):
        on_parts = [part.cache_control for part in message.content or () if part.cache_control]
        found = [message.cache_control] if message.cache_control else on_parts
        if found:
            marks.append((i + 1, max(mark.ttl_ms for mark in found)))
    if len(marks) > MAX_MARKS:
        where = f"messages[{marks[MAX_MARKS][0] - 1}].cache_control"
        raise InvalidRequest(where, f"{len(marks)} messages have one; at most {MAX_MARKS} may")
    return marks


class CacheHints:
    """Makes the pins, beside the requests."""

    def __init__(self, preheater: Preheater) -> None:
        self._preheater = preheater
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, request: GenerationRequest, marks: Marks) -> None:
        """Pins what is marked in a prompt that was just computed; returns at once."""
        if not marks or request.no_store:
            return
        if len(self._tasks) >= MAX_PENDING:
            log.warning("cache_hints_dropped", num_pending=len(self._tasks))
            return
        task = asyncio.create_task(self._pin(request, marks))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Gives up what is still to be pinned."""
        for task in self._tasks:
            task.cancel()

    async def _pin(self, request: GenerationRequest, marks: Marks) -> None:
        for num_messages, ttl_ms in marks:
            prompt = up_to(request, num_messages)
            terms = terms_of(request, ttl_ms=ttl_ms)
            result = await self._preheater.warm(prompt, terms)
            if result.error or result.pin_error:
                log.debug("cache_hint_failed", problem=result.error or result.pin_error)


def up_to(request: GenerationRequest, num_messages: int) -> ChatPrompt:
    """The first messages of a conversation, as a prompt of their own."""
    prompt = request.prompt
    assert isinstance(prompt, ChatPrompt)
    if num_messages == len(prompt.turns):
        return prompt
    return replace(prompt, turns=prompt.turns[:num_messages], continue_final_message=False)


def terms_of(request: GenerationRequest, *, ttl_ms: int | None) -> Terms:
    """How a prefix of a request is kept; `ttl_ms` None: without a pin."""
    return Terms(
        cache_domain=request.cache_domain,
        tenant=request.tenant,
        pin=admin_pb2.PIN_LEVEL_NONE if ttl_ms is None else admin_pb2.PIN_LEVEL_SOFT,
        ttl_ms=ttl_ms or 0,
    )
