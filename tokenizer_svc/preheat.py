"""Computes prefixes into the cache: each on its own, so that one that fails harms no other."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from protos.errors import InvalidRequest, RadixdError
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import admin_pb2 as pb
from tokenizer_svc.choices import AWAY_WAIT_S
from tokenizer_svc.fit import checked_ids
from tokenizer_svc.generation_request import ChatPrompt, Prompt
from tokenizer_svc.live_request import LiveRequest, Outcome, Submission
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.outcomes import refusal
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.tokenizer_pool import TokenizerPool
from tokenizer_svc.validation import read_cache_domain, read_text, read_tokens
from tokenizer_svc.validation_chat import read_chat

MAX_PREFIXES = 1024
MAX_AT_ONCE = 16
MAX_TTL_MS = 30 * 24 * 3600 * 1000

_PIN_LEVELS = (pb.PIN_LEVEL_NONE, pb.PIN_LEVEL_SOFT, pb.PIN_LEVEL_HARD)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a prefix is to be kept."""

    cache_domain: str = ""
    tenant: str = ""
    pin: int = pb.PIN_LEVEL_NONE
    """A value of radixd.v1.PinLevel; never unspecified."""
    ttl_ms: int = 0
    """0: the pin stays until it is removed."""


class Preheater:
    """Runs preheat requests over the same link as generations."""

    def __init__(
        self,
        *,
        pool: TokenizerPool,
        live: LiveRequests,
        link: SchedulerLink,
        max_prompt_bytes: int,
    ) -> None:
        self._pool = pool
        self._live = live
        self._link = link
        self._max_prompt_bytes = max_prompt_bytes

    async def preheat(
        self, request: pb.PreheatRequest, *, tenant: str, deadline_s: float | None
    ) -> list[pb.PreheatedPrefix]:
        """What became of each prefix, in the order of the request.

        Raises:
            InvalidRequest: no prefix at all, too many, or a bad cache_domain, pin or ttl_ms.
        """
        num_prefixes = len(request.prefixes) + len(request.chats) + len(request.tokens)
        if not 1 <= num_prefixes <= MAX_PREFIXES:
            raise InvalidRequest(
                "prefixes",
                f"{num_prefixes} prefixes, chats and tokens in all; 1 to {MAX_PREFIXES} are taken",
            )
        terms = _read_terms(request, tenant)
        slots = asyncio.Semaphore(MAX_AT_ONCE)

        async def one(prompt: Prompt | InvalidRequest) -> pb.PreheatedPrefix:
            async with slots:
                if isinstance(prompt, InvalidRequest):
                    return pb.PreheatedPrefix(error=str(prompt))
                return await self.warm(prompt, terms, deadline_s=deadline_s)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(prompt)) for prompt in self._prompts(request)]
        return [task.result() for task in tasks]

    async def warm(
        self, prompt: Prompt, terms: Terms, *, deadline_s: float | None = None
    ) -> pb.PreheatedPrefix:
        """What became of one prefix; a failure is in its `error`."""
        found = pb.PreheatedPrefix()
        try:
            await self._warm_into(found, prompt, terms, deadline_s)
        except RadixdError as error:
            found.error = str(error)
        except Exception:
            log.exception("preheat_failed", field=prompt.field)
            found.error = "an unexpected fault"
        return found

    async def warm_or_fail(
        self, prompt: Prompt, terms: Terms, *, deadline_s: float | None = None
    ) -> pb.PreheatedPrefix:
        """What became of one prefix.

        Raises:
            RadixdError: it could not be computed.
        """
        found = pb.PreheatedPrefix()
        await self._warm_into(found, prompt, terms, deadline_s)
        return found

    async def _warm_into(
        self, found: pb.PreheatedPrefix, prompt: Prompt, terms: Terms, deadline_s: float | None
    ) -> None:
        if isinstance(prompt, ChatPrompt):
            # Whatever turn comes next, it continues this text.
            prompt = replace(prompt, add_generation_prompt=False)
        live = self._live.open(f"preheat-{secrets.token_hex(8)}")
        try:
            submission = await self._prepared(live, prompt, terms, deadline_s)
            found.num_tokens = len(submission.prompt_ids)
            self._link.submit(live, submission)
            outcome = await _ended(live, prompt.field)
        finally:
            self._link.close(live)
        found.cached_tokens = min(live.cached_tokens or 0, found.num_tokens)
        found.computed_tokens = outcome.computed_tokens
        found.pin_id = outcome.pin_id
        found.pinned_tokens = outcome.pinned_tokens
        found.pin_error = outcome.pin_error

    def _prompts(self, request: pb.PreheatRequest) -> Sequence[Prompt | InvalidRequest]:
        read = partial(read_text, max_prompt_bytes=self._max_prompt_bytes)
        talk = partial(read_chat, max_prompt_bytes=self._max_prompt_bytes)
        readers: list[Callable[[], Prompt]] = [
            *(partial(read, text, f"prefixes[{i}]") for i, text in enumerate(request.prefixes)),
            *(partial(talk, chat, f"chats[{i}]") for i, chat in enumerate(request.chats)),
            *(partial(read_tokens, ids, f"tokens[{i}]") for i, ids in enumerate(request.tokens)),
        ]
        found: list[Prompt | InvalidRequest] = []
        for reader in readers:
            try:
                found.append(reader())
            except InvalidRequest as error:
                found.append(error)
        return found

    async def _prepared(
        self, live: LiveRequest, prompt: Prompt, terms: Terms, deadline_s: float | None
    ) -> Submission:
        until_s = asyncio.get_running_loop().time() + AWAY_WAIT_S
        model = await self._link.wait_ready(live, until_s=until_s)
        ids = await self._pool.encode(prompt)
        return Submission(
            prompt_ids=checked_ids(prompt, ids, model),
            max_tokens=0,
            cache_domain=terms.cache_domain,
            deadline_s=deadline_s,
            preheat=True,
            tenant=terms.tenant,
            pin=terms.pin,
            pin_ttl_ms=terms.ttl_ms,
        )


def _read_terms(request: pb.PreheatRequest, tenant: str) -> Terms:
    domain = read_cache_domain(request.cache_domain)
    pin: int = request.pin if request.HasField("pin") else pb.PIN_LEVEL_NONE
    if pin not in _PIN_LEVELS:
        raise InvalidRequest("pin", f"{pin} is not a level; none is 1, soft 2, hard 3")
    ttl_ms = 0
    if request.HasField("ttl_ms"):
        ttl_ms = request.ttl_ms
        if pin == pb.PIN_LEVEL_NONE:
            raise InvalidRequest("ttl_ms", "only a pin has a time to live; set pin to soft or hard")
        if not 1 <= ttl_ms <= MAX_TTL_MS:
            raise InvalidRequest("ttl_ms", f"{ttl_ms} is not in 1..{MAX_TTL_MS}")
    return Terms(cache_domain=domain, tenant=tenant, pin=pin, ttl_ms=ttl_ms)


async def _ended(live: LiveRequest, field: str) -> Outcome:
    while live.outcome is None:
        await live.changed()
    if isinstance(live.outcome, RadixdError):
        raise live.outcome
    if live.outcome.ending != internal.ENDING_PREHEATED:
        raise refusal(live.outcome, prompt_field=field)
    return live.outcome
