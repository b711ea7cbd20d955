"""Health, reflection, draining, the other services, and faults nobody foresaw."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import admin_pb2, tokenizer_pb2
from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import refused, script, stream, unary, wait_until
from tests.tokenizer_svc.conftest import Serve, Served
from tokenizer_svc.front import SERVICE_NAMES
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, IM_START, NUM_IDS, ByteTokenizer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(served: Served, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(served.channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    return int(reply.status)


# field cases 125, 134, 137
async def test_health_follows_scheduler_and_worker(serve: Serve):
    served = await serve(scheduler_up=False)
    stub = health_pb2_grpc.HealthStub(served.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE_NAMES[0]))
    assert (await watch.read()).status == NOT_SERVING
    assert [await health(served, name) for name in ("", *SERVICE_NAMES)] == [NOT_SERVING] * 4
    served.scheduler.worker_connected = False
    await served.scheduler.start()
    await wait_until(lambda: served.scheduler.seen.num_attached == 1)
    assert await health(served) == NOT_SERVING
    served.scheduler.set_worker(connected=True)
    assert (await watch.read()).status == SERVING
    assert [await health(served, name) for name in ("", *SERVICE_NAMES)] == [SERVING] * 4
    served.scheduler.set_worker(connected=False)
    assert (await watch.read()).status == NOT_SERVING
    served.scheduler.set_worker(connected=True)
    assert (await watch.read()).status == SERVING
    await served.scheduler.stop()
    assert (await watch.read()).status == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health(served, "radixd.v1.NoSuchService")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch.cancel()


# field case 125
async def test_reflection_lists_every_service(served: Served):
    stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async for reply in stub.ServerReflectionInfo(iter([request])):
        names = {service.name for service in reply.list_services_response.service}
    assert names == {
        *SERVICE_NAMES,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


# field cases 125, 139
async def test_draining(serve: Serve):
    served = await serve()
    served.scheduler.behavior.num_before_hold = 2
    running = asyncio.create_task(stream(served, tokens=script("abcd")))
    await wait_until(lambda: bool(served.scheduler.seen.running))
    drain = asyncio.create_task(served.front.drain(grace_s=10))
    await asyncio.sleep(0.1)
    assert [await health(served, name) for name in ("", *SERVICE_NAMES)] == [NOT_SERVING] * 4
    got = await refused(unary(served, text="a"))
    assert (got.code, got.message) == (
        grpc.StatusCode.UNAVAILABLE,
        "the server is shutting down",
    )
    served.scheduler.behavior.num_before_hold = None
    assert (await running).text == "abcd"
    await drain


# field case 139
async def test_what_outlives_the_grace_is_told_so(serve: Serve):
    served = await serve()
    served.scheduler.behavior.num_before_hold = 2
    running = asyncio.create_task(refused(stream(served, tokens=script("abcd"))))
    await wait_until(lambda: bool(served.scheduler.seen.running))
    async with asyncio.timeout(5):
        await served.front.drain(grace_s=0.2)
    assert (await running).code == grpc.StatusCode.UNAVAILABLE


class Unlucky(ByteTokenizer):
    """Fails as no tokenizer should."""

    def encode_text(self, text: str) -> list[int]:
        raise KeyError(f"no rule for {text}")


# field cases 75, 124
async def test_an_unforeseen_fault_is_a_plain_sentence(
    serve: Serve, capsys: pytest.CaptureFixture[str]
):
    served = await serve(tokenizer=Unlucky())
    for call in (unary(served, text="a"), stream(served, text="a")):
        got = await refused(call)
        assert (got.code, got.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        assert "KeyError" not in got.message
        assert "no rule" not in got.message
    assert "call_failed" in capsys.readouterr().out
    assert (await unary(served, tokens=script("ok"))).text == "ok"


async def test_an_unknown_method_is_unimplemented(served: Served):
    call = served.channel.unary_unary("/radixd.v1.InferenceService/Guess")(b"")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_tokenize_says_what_generate_uses(served: Served):
    messages = [pb.ChatMessage(role=pb.ROLE_USER, content="hé <|im_end|>")]
    chat = pb.ChatPrompt(messages=messages)
    tokenized = await served.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(chat=chat))
    assert list(tokenized.ids).count(IM_START) == 2
    reply = await unary(served, chat=chat, sampling=pb.SamplingParams(max_tokens=1))
    assert reply.usage.prompt_tokens == len(tokenized.ids)
    text = "漢字 <|eos|>"
    ids = (await served.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(text=text))).ids
    assert list(ids) == list(text.encode())
    back = await served.tokenizer.Detokenize(tokenizer_pb2.DetokenizeRequest(ids=ids))
    assert back.text == text


async def test_detokenize(served: Served):
    ids = [*b"a", EOS, *"漢".encode()[:2]]
    request = tokenizer_pb2.DetokenizeRequest(ids=ids)
    assert (await served.tokenizer.Detokenize(request)).text == "a\ufffd"
    request.skip_special_tokens = False
    assert (await served.tokenizer.Detokenize(request)).text == "a<|eos|>\ufffd"
    for bad in (-1, NUM_IDS, 2**40):
        wrong = tokenizer_pb2.DetokenizeRequest(ids=[1, bad])
        got = await refused(served.tokenizer.Detokenize(wrong))
        assert (got.code, got.field) == (grpc.StatusCode.INVALID_ARGUMENT, "ids[1]")
    empty = await served.tokenizer.Detokenize(tokenizer_pb2.DetokenizeRequest())
    assert empty.text == ""


async def test_stats_in_public_words(served: Served):
    await unary(served, tokens=script("ok"))
    stats = await served.admin.GetStats(admin_pb2.GetStatsRequest())
    assert stats.model.name == "fake"
    assert list(stats.model.eos_token_ids) == [EOS]
    assert (stats.model.weights, stats.model.kv_dtype) == ("int4", "none")
    assert (stats.tokens.drafted, stats.tokens.accepted) == (9, 8)
    books = stats.slots
    assert books.free + books.private + books.evictable + books.locked + books.in_flight == 100
    assert stats.requests.submitted == 1
    assert stats.worker_connected
    assert stats.peak_rss_bytes["scheduler_svc"] == 1
    assert stats.peak_rss_bytes["tokenizer_svc"] > 1 << 20


async def test_flush_and_tree(served: Served):
    assert (await served.admin.FlushCache(admin_pb2.FlushCacheRequest())).flushed_tokens == 42
    tree = await served.admin.DumpTree(admin_pb2.DumpTreeRequest())
    assert [node.text for node in tree.nodes] == ["", "量子", "<|eos|>"]
    assert [node.parent for node in tree.nodes] == [-1, 0, 1]
    assert (tree.nodes[0].cache_domain, tree.nodes[1].hits, tree.nodes[1].locked) == ("d", 2, True)
    assert tree.num_left_out == 9
    two = await served.admin.DumpTree(admin_pb2.DumpTreeRequest(max_nodes=2))
    assert len(two.nodes) == 2
    for bad in (0, 100_001):
        got = await refused(served.admin.DumpTree(admin_pb2.DumpTreeRequest(max_nodes=bad)))
        assert got.field == "max_nodes"


@pytest.mark.parametrize("question", ["GetStats", "FlushCache", "DumpTree"])
async def test_questions_to_a_scheduler_that_is_away(serve: Serve, question: str):
    served = await serve(scheduler_up=False)
    ask: Any = getattr(served.admin, question)
    got = await refused(ask(getattr(admin_pb2, f"{question}Request")()))
    assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")


async def test_preheat_reports_each_prefix(served: Served):
    def answer(submit: internal.Submit) -> internal.Output | None:
        if submit.prompt_ids.startswith(b"f"):
            return internal.Output(
                ending=internal.ENDING_REJECTED_TOO_LARGE, message="more than the pool"
            )
        return None

    served.scheduler.behavior.answer = answer
    served.scheduler.behavior.cached_tokens = 2
    system = pb.ChatMessage(role=pb.ROLE_SYSTEM, content="be brief")
    reply = await served.admin.Preheat(
        admin_pb2.PreheatRequest(
            prefixes=["hello", "", "full"],
            chats=[pb.ChatPrompt(messages=[system])],
            tokens=[pb.TokenIds(ids=[1, 2, 3]), pb.TokenIds(ids=[1, NUM_IDS])],
            cache_domain="d",
        )
    )
    hello, empty, full, chat, tokens, bad = reply.prefixes
    assert (hello.num_tokens, hello.cached_tokens, hello.computed_tokens) == (5, 2, 3)
    assert empty.error.startswith("prefixes[1]: ")
    assert full.error == "prefixes[2]: more than the pool"
    assert (tokens.num_tokens, tokens.error) == (3, "")
    assert bad.error.startswith("tokens[1].ids[1]: ")
    submits = {bytes(s.prompt_ids[::4]): s for s in served.scheduler.seen.submits}
    assert all(s.preheat and s.max_tokens == 0 for s in submits.values())
    assert {s.cache_domain for s in submits.values()} == {"d"}
    # The prefix of a conversation is one of every conversation that begins so.
    turns = pb.ChatPrompt(messages=[system, pb.ChatMessage(role=pb.ROLE_USER, content="a")])
    ids = (await served.tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(chat=turns))).ids
    rendered = ByteTokenizer().encode_chat([], add_generation_prompt=False)
    assert rendered == []
    assert chat.num_tokens == list(ids).index(IM_START, 1)
    await served.idle()


@pytest.mark.parametrize("num_prefixes", [0, 1025])
async def test_preheat_of_nothing_or_too_much(served: Served, num_prefixes: int):
    request = admin_pb2.PreheatRequest(prefixes=["a"] * num_prefixes)
    got = await refused(served.admin.Preheat(request))
    assert (got.code, got.field) == (grpc.StatusCode.INVALID_ARGUMENT, "prefixes")


async def test_a_preheat_that_is_left_leaves_nothing(served: Served):
    served.scheduler.behavior.answer = lambda submit: internal.Output()
    call = served.admin.Preheat(admin_pb2.PreheatRequest(prefixes=["a"] * 40))
    await wait_until(lambda: len(served.scheduler.seen.submits) == 16)
    call.cancel()
    await served.idle()
    await wait_until(lambda: len(served.scheduler.seen.cancels) == 16)
