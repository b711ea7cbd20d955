"""Keeps the prefixes of the start-up file warm: before the front serves, and after every loss.

The first pass holds back readiness.  A worker or scheduler that comes back has an empty pool and
no pins, so each announcement of a model is followed by another pass, in the background.
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence

import structlog

from protos.radixd.v1 import admin_pb2 as pb
from radixd.chassis.preheat_file import FilePrefix
from tokenizer_svc.generation_request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from tokenizer_svc.preheat import MAX_AT_ONCE, Preheater, Terms
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.served_model import ServedModel
from tokenizer_svc.tokenizers.tokenizer import ChatTurn

_PIN_LEVELS = {
    "none": pb.PIN_LEVEL_NONE,
    "soft": pb.PIN_LEVEL_SOFT,
    "hard": pb.PIN_LEVEL_HARD,
}
_EVENTS_A_PASS = 10

log = structlog.get_logger()


class StartPreheat:
    """Warms the file's prefixes whenever the model behind the link is a new one."""

    def __init__(
        self,
        prefixes: Sequence[FilePrefix],
        *,
        preheater: Preheater,
        link: SchedulerLink,
        on_done: Callable[[], None],
    ) -> None:
        """`on_done` is called once, when the first pass is over."""
        self._wishes = [(prefix.number, _prompt(prefix), _terms(prefix)) for prefix in prefixes]
        self._preheater = preheater
        self._link = link
        self._on_done = on_done
        self._link_changed = asyncio.Event()
        self.is_done = not prefixes
        """The first pass is over, or there is nothing to warm."""

    def look_at_link(self) -> None:
        """The link's state has changed."""
        self._link_changed.set()

    async def run(self) -> None:
        """Warms again and again, until cancelled; returns at once when there is nothing to warm."""
        warmed_for: ServedModel | None = None
        while self._wishes:
            # The link makes a new model value of every announcement, so that a worker that went
            # and came between two looks is noticed, too.
            model = self._link.model
            if model is None or model is warmed_for or not self._link.is_ready:
                await self._link_changed.wait()
                self._link_changed.clear()
                continue
            try:
                await self._pass()
            except Exception:
                # A defect here must not keep a server from its work.
                log.exception("start_preheat_failed")
            warmed_for = model
            self._finish_first_pass(model)

    def _finish_first_pass(self, model: ServedModel) -> None:
        # What was warmed for a model that has gone meanwhile is cold again.
        if not self.is_done and self._link.is_ready and self._link.model is model:
            self.is_done = True
            self._on_done()

    async def _pass(self) -> None:
        started_s = time.monotonic()
        results: list[pb.PreheatedPrefix] = []
        turns = asyncio.Semaphore(MAX_AT_ONCE)
        log.info("preheat_progress", done=0, total=len(self._wishes), tokens=0)

        async def one(number: int, prompt: Prompt, terms: Terms) -> None:
            async with turns:
                result = await self._preheater.warm(prompt, terms)
            if result.error or result.pin_error:
                problem = result.error or result.pin_error
                log.warning("preheat_prefix_failed", entry=number, problem=problem)
            results.append(result)
            self._tell_progress(results)

        async with asyncio.TaskGroup() as group:
            for number, prompt, terms in self._wishes:
                group.create_task(one(number, prompt, terms))
        log.info(
            "preheat_done",
            total=len(results),
            failed=sum(bool(result.error) for result in results),
            pinned=sum(bool(result.pin_id) for result in results),
            pin_problems=sum(bool(result.pin_error) for result in results),
            tokens=sum(result.num_tokens for result in results if not result.error),
            computed_tokens=sum(result.computed_tokens for result in results),
            seconds=round(time.monotonic() - started_s, 3),
        )

    def _tell_progress(self, results: Sequence[pb.PreheatedPrefix]) -> None:
        done, total = len(results), len(self._wishes)
        # Each time another tenth is done, as progress is told everywhere here.
        if done * _EVENTS_A_PASS // total > (done - 1) * _EVENTS_A_PASS // total:
            tokens = sum(result.num_tokens for result in results)
            log.info("preheat_progress", done=done, total=total, tokens=tokens)


def _prompt(prefix: FilePrefix) -> Prompt:
    field = f"entry {prefix.number}"
    if prefix.text is not None:
        return TextPrompt(text=prefix.text, field=field)
    if prefix.turns is not None:
        turns = tuple(ChatTurn(role=role, content=content) for role, content in prefix.turns)
        return ChatPrompt(turns=turns, field=field)
    assert prefix.ids is not None
    return TokenPrompt(ids=array("q", prefix.ids), field=field)


def _terms(prefix: FilePrefix) -> Terms:
    return Terms(
        cache_domain=prefix.cache_domain,
        tenant=prefix.tenant,
        pin=_PIN_LEVELS[prefix.pin],
        ttl_ms=prefix.ttl_ms,
    )
