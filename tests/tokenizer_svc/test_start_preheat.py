"""The start-up file of prefixes: warm before the front serves, told on the way, and kept warm."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import admin_pb2, tokenizer_pb2
from protos.radixd.v1 import inference_pb2 as pb
from radixd.chassis.preheat_file import FilePrefix
from tests.tokenizer_svc.client import script, unary, wait_until
from tests.tokenizer_svc.conftest import Serve, Served
from tests.tokenizer_svc.fake_scheduler import FakeScheduler
from tokenizer_svc.tokenizers.byte_tokenizer import NUM_IDS

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

PREFIXES = (
    FilePrefix(number=1, text="You are"),
    FilePrefix(
        number=2,
        turns=(("system", "be brief"),),
        pin="hard",
        ttl_ms=3_600_000,
        cache_domain="support",
        tenant="acme",
    ),
    FilePrefix(number=3, ids=(1, 2, 3), pin="soft"),
)


class SlowScheduler(FakeScheduler):
    """So many preheats may pass; the others wait."""

    def __init__(self, *, may_pass: int) -> None:
        super().__init__()
        self.may_pass = may_pass
        self._num_passed = 0

    async def _generate(self, submit: internal.Submit, outbox: Any) -> None:
        if submit.preheat:
            while self._num_passed >= self.may_pass:
                await asyncio.sleep(0.005)
            self._num_passed += 1
        await super()._generate(submit, outbox)


async def health(served: Served) -> int:
    stub = health_pb2_grpc.HealthStub(served.channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)).status)


async def serving(served: Served) -> None:
    async with asyncio.timeout(10):
        while await health(served) != SERVING:
            await asyncio.sleep(0.01)


def preheats(scheduler: FakeScheduler) -> list[internal.Submit]:
    return [submit for submit in scheduler.seen.submits if submit.preheat]


async def test_ready_means_warm(serve: Serve):
    scheduler = SlowScheduler(may_pass=0)
    served = await serve(scheduler=scheduler, preheat=PREFIXES)
    await wait_until(lambda: len(preheats(scheduler)) == 3)
    assert served.front.link.is_ready
    assert await health(served) == NOT_SERVING
    # Readiness is held back, and nothing else.
    assert (await unary(served, tokens=script("ok"))).text == "ok"
    assert await health(served) == NOT_SERVING
    scheduler.may_pass = 3
    await serving(served)
    assert len(preheats(scheduler)) == 3


async def test_entries_go_out_as_the_file_has_them(serve: Serve):
    scheduler = FakeScheduler()
    served = await serve(scheduler=scheduler, preheat=PREFIXES)
    await serving(served)
    by_tenant = {(s.tenant, s.pin): s for s in preheats(scheduler)}
    text = by_tenant["", admin_pb2.PIN_LEVEL_NONE]
    chat = by_tenant["acme", admin_pb2.PIN_LEVEL_HARD]
    ids = by_tenant["", admin_pb2.PIN_LEVEL_SOFT]
    assert bytes(text.prompt_ids[::4]) == b"You are"
    assert bytes(ids.prompt_ids[::4]) == bytes([1, 2, 3])
    assert (chat.cache_domain, chat.pin_ttl_ms) == ("support", 3_600_000)
    assert (ids.cache_domain, ids.pin_ttl_ms) == ("", 0)
    # The prefix of every conversation that begins so, with no turn opened after it.
    turns = [pb.ChatMessage(role=pb.ROLE_SYSTEM, content="be brief")]
    turns.append(pb.ChatMessage(role=pb.ROLE_USER, content="a"))
    request = tokenizer_pb2.TokenizeRequest(chat=pb.ChatPrompt(messages=turns))
    whole = (await served.tokenizer.Tokenize(request)).ids
    num_tokens = len(chat.prompt_ids) // 4
    assert [
        int.from_bytes(chat.prompt_ids[i : i + 4], "little") for i in range(0, 4 * num_tokens, 4)
    ] == list(whole[:num_tokens])
    assert num_tokens < len(whole)


def events(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if f" {name} " in line]


async def test_a_prefix_that_fails_is_told_and_stops_nothing(
    serve: Serve, capsys: pytest.CaptureFixture[str]
):
    def answer(submit: internal.Submit) -> internal.Output | None:
        if submit.prompt_ids.startswith(b"f"):
            return internal.Output(ending=internal.ENDING_REJECTED_TOO_LARGE, message="too many")
        pin_error = "the budget is spent" if submit.pin == admin_pb2.PIN_LEVEL_HARD else ""
        return internal.Output(
            ending=internal.ENDING_PREHEATED, computed_tokens=2, pin_error=pin_error
        )

    scheduler = FakeScheduler()
    scheduler.behavior.answer = answer
    failing = (FilePrefix(number=4, text="full"), FilePrefix(number=5, ids=(NUM_IDS,)))
    served = await serve(scheduler=scheduler, preheat=(*PREFIXES, *failing))
    await serving(served)
    log = capsys.readouterr().out
    failed = "\n".join(events(log, "preheat_prefix_failed"))
    for problem in ("entry 4: too many", "entry 5.ids[0]: token id", "the budget is spent"):
        assert problem in failed, failed
    assert len(events(log, "preheat_prefix_failed")) == 3
    (summary,) = events(log, "preheat_done")
    for fact in ("total=5", "failed=2", "pinned=0", "pin_problems=1", "computed_tokens=6"):
        assert fact in summary, summary


async def test_progress_is_told_in_tenths(serve: Serve, capsys: pytest.CaptureFixture[str]):
    prefixes = tuple(FilePrefix(number=n, text="abcd") for n in range(1, 41))
    served = await serve(preheat=prefixes)
    await serving(served)
    log = capsys.readouterr().out
    told = events(log, "preheat_progress")
    assert [line.partition("done=")[2].split()[0] for line in told] == [
        str(done) for done in range(0, 41, 4)
    ]
    assert "tokens=160" in told[-1]
    assert all("total=40" in line for line in told)


async def test_no_file_no_pass(serve: Serve, capsys: pytest.CaptureFixture[str]):
    served = await serve()
    await serving(served)
    assert "preheat" not in capsys.readouterr().out


# field case 134
async def test_a_lost_worker_is_warmed_again_behind_requests(serve: Serve):
    scheduler = SlowScheduler(may_pass=3)
    served = await serve(scheduler=scheduler, preheat=PREFIXES)
    await serving(served)
    scheduler.set_worker(connected=False)
    # At once, so that the front may never see the link down.
    scheduler.set_worker(connected=True)
    await wait_until(lambda: len(preheats(scheduler)) == 6)
    # It serves meanwhile: an empty pool is slower, not broken.
    await serving(served)
    assert (await unary(served, tokens=script("ok"))).text == "ok"
    pins = sorted(submit.pin for submit in preheats(scheduler)[3:])
    assert pins == [admin_pb2.PIN_LEVEL_NONE, admin_pb2.PIN_LEVEL_SOFT, admin_pb2.PIN_LEVEL_HARD]
    scheduler.may_pass = 6
    await served.idle()


async def test_a_scheduler_that_starts_anew_is_warmed_again(serve: Serve):
    scheduler = FakeScheduler()
    served = await serve(scheduler=scheduler, preheat=PREFIXES)
    await serving(served)
    await scheduler.stop()
    await scheduler.start()
    await wait_until(lambda: len(preheats(scheduler)) == 6)
    await served.idle()


async def test_a_worker_lost_before_all_is_warm_holds_readiness_back(serve: Serve):
    scheduler = SlowScheduler(may_pass=0)
    served = await serve(scheduler=scheduler, preheat=PREFIXES)
    await wait_until(lambda: len(preheats(scheduler)) == 3)
    scheduler.set_worker(connected=False)
    scheduler.set_worker(connected=True)
    scheduler.may_pass = 3
    await wait_until(lambda: len(preheats(scheduler)) == 6)
    # What was warmed for the worker before says nothing of this one.
    assert await health(served) == NOT_SERVING
    scheduler.may_pass = 6
    await serving(served)
    assert len(preheats(scheduler)) == 6


async def test_a_drain_ends_a_pass(serve: Serve):
    scheduler = SlowScheduler(may_pass=0)
    served = await serve(scheduler=scheduler, preheat=PREFIXES)
    await wait_until(lambda: len(preheats(scheduler)) == 3)
    async with asyncio.timeout(5):
        await served.front.drain(grace_s=60)
    await served.idle()
    with pytest.raises(grpc.aio.AioRpcError):
        await unary(served, text="a")
