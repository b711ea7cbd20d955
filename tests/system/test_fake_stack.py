"""The whole server on the slot-true fake worker: load, loss, cancellation, bad input."""

import asyncio
import math
import os
import random
import signal

import grpc
import pytest

from gpu_worker.fake_model import GO_TOKEN, SCRIPT_TOKEN
from protos.radixd.v1 import admin_pb2, inference_pb2, policy_pb2
from tests.system.stack import FAKE, Client, launched


@pytest.fixture(scope="module")
def stack():
    with launched(
        "--fake-worker", "--kv-slots", "4096", "--fake-step-ms", "1", "--max-length", "8192"
    ) as running:
        yield running


def ids(num_tokens, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(97, 123) for _ in range(num_tokens)]


@pytest.mark.timeout(180)
async def test_a_thousand_streams_at_once(stack):  # field cases 62, 74
    async with Client(stack.address) as client:
        stem = ids(20)
        prompts = [stem + ids(12, seed=i) for i in range(1000)]
        answers = await asyncio.gather(
            *(client.stream(prompt, 20, timeout=150) for prompt in prompts)
        )
        for prompt, (got, last) in zip(prompts, answers, strict=True):
            assert got == FAKE.generate(prompt, 20)
            assert last.usage.completion_tokens == 20
            assert last.usage.prompt_tokens == 32
        await client.idle()


@pytest.mark.timeout(120)
async def test_worker_killed_during_twenty_streams(stack):  # field case 134
    async with Client(stack.address) as client:
        prompts = [ids(16, seed=2000 + i) for i in range(20)]
        begun: set[int] = set()
        before = stack.pids()["gpu_worker"]

        def note(i):
            return lambda message: begun.add(i) if message.token_ids else None

        streams = [
            asyncio.create_task(client.stream(prompt, 400, timeout=100, on_message=note(i)))
            for i, prompt in enumerate(prompts)
        ]
        while len(begun) < 20:
            await asyncio.sleep(0.01)
        os.kill(before, signal.SIGKILL)
        for prompt, stream in zip(prompts, streams, strict=True):
            got, last = await stream
            assert got == FAKE.generate(prompt, 400), "same tokens, none twice, none lost"
            assert last.finish_reason == inference_pb2.FINISH_REASON_LENGTH
        assert stack.pids()["gpu_worker"] != before
        await client.idle()


async def test_a_text_that_repeats_takes_fewer_steps_and_is_the_same(stack):
    """Guessed from its own tokens, and a second time from the tree; each token comes once."""
    async with Client(stack.address) as client:
        script = ids(9, seed=77) * 20
        prompt = [SCRIPT_TOKEN, *script, GO_TOKEN]
        wanted = FAKE.generate(prompt, 150)
        assert wanted == script[:150]
        for _ in range(2):
            before = await client.admin.GetStats(admin_pb2.GetStatsRequest())
            got, last = await client.stream(prompt, 150)
            after = await client.admin.GetStats(admin_pb2.GetStatsRequest())
            assert got == wanted
            assert last.usage.completion_tokens == 150
            accepted = after.tokens.accepted - before.tokens.accepted
            assert accepted > 50
            assert after.tokens.drafted - before.tokens.drafted >= accepted
            assert after.num_steps - before.num_steps < 110
        await client.admin.SetPolicy(
            admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies(speculation="off"))
        )
        assert (await client.stream(prompt, 150))[0] == wanted
        last = await client.admin.GetStats(admin_pb2.GetStatsRequest())
        assert last.tokens.drafted == after.tokens.drafted
        await client.admin.SetPolicy(
            admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies(speculation="auto"))
        )
        await client.idle()


async def test_cancelled_streams_free_their_slots(stack):  # field cases 52, 146
    async with Client(stack.address) as client:
        before = (await client.idle()).requests.cancelled

        async def leave_after_five(seed):
            request = inference_pb2.GenerateRequest(
                tokens=inference_pb2.TokenIds(ids=ids(10, seed=seed)),
                sampling=inference_pb2.SamplingParams(max_tokens=2000, ignore_eos=True),
            )
            call = client.inference.Generate(request)
            num_tokens = 0
            async for message in call:
                num_tokens += len(message.token_ids)
                if num_tokens >= 5:
                    call.cancel()
                    break

        await asyncio.gather(*(leave_after_five(3000 + i) for i in range(50)))
        stats = await client.idle()
        assert stats.requests.cancelled - before == 50
        await asyncio.sleep(0.2)
        assert (await client.stats()).num_steps == stats.num_steps, "who left gets no step"


async def test_deadlines_in_prefill_leave_others_alone(stack):  # field case 53
    async with Client(stack.address) as client:
        good = [client.stream(ids(10, seed=4000 + i), 300) for i in range(3)]
        hasty = [client.stream(ids(900, seed=4100 + i), 50, timeout=0.05) for i in range(30)]
        results = await asyncio.gather(*good, *hasty, return_exceptions=True)
        for i in range(3):
            assert results[i][0] == FAKE.generate(ids(10, seed=4000 + i), 300)
        for result in results[3:]:
            if isinstance(result, grpc.aio.AioRpcError):
                assert result.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await client.idle()


async def test_same_seed_on_an_idle_and_on_a_loaded_server(stack):  # field case 99
    async with Client(stack.address) as client:
        sampling = {"temperature": 0.8, "top_p": 0.9, "seed": 42, "ignore_eos": True}
        asked = ids(24, seed=5000)
        await client.admin.FlushCache(admin_pb2.FlushCacheRequest())
        idle, last = await client.stream(asked, 100, sampling=sampling)
        assert last.seed == 42
        noise = [
            asyncio.create_task(client.stream(asked[:12] + ids(20, seed=5100 + i), 200))
            for i in range(100)
        ]
        await asyncio.sleep(0.05)
        loaded, _ = await client.stream(asked, 100, sampling=sampling)
        await asyncio.gather(*noise)
        assert loaded == idle
        other, last = await client.stream(asked, 100, sampling={"temperature": 0.8})
        assert other != idle
        assert last.seed > 0


def tokens(*values):
    return {"tokens": inference_pb2.TokenIds(ids=values)}


def sampling(**fields):
    return {"text": "hi", "sampling": inference_pb2.SamplingParams(**fields)}


async def finished(call):
    """Either kind of call, to its end."""
    if isinstance(call, grpc.aio.UnaryStreamCall):
        async for _ in call:
            pass
    else:
        await call


INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("request_fields", "code", "field"),
    [
        (sampling(temperature=math.nan), INVALID, "sampling.temperature"),
        (sampling(temperature=math.inf), INVALID, "sampling.temperature"),
        (sampling(temperature=-1), INVALID, "sampling.temperature"),
        (sampling(top_p=0.0), INVALID, "sampling.top_p"),
        (sampling(top_k=-1), INVALID, "sampling.top_k"),
        (sampling(min_p=2), INVALID, "sampling.min_p"),
        (sampling(seed=-1), INVALID, "sampling.seed"),
        (sampling(max_tokens=0), INVALID, "sampling.max_tokens"),
        (sampling(max_tokens=-5), INVALID, "sampling.max_tokens"),
        (sampling(stop=["x"] * 5000), INVALID, "sampling.stop"),
        (tokens(97, 264), INVALID, "tokens.ids[1]"),
        (tokens(-1), INVALID, "tokens.ids[0]"),
        (tokens(2**31), INVALID, "tokens.ids[0]"),
        (tokens(), INVALID, "tokens"),
        ({"text": ""}, INVALID, "text"),
        ({}, INVALID, "prompt"),
        (tokens(*([97] * 5000)), EXHAUSTED, "tokens"),
        (tokens(*([97] * 9000)), INVALID, "tokens"),
        ({"text": "e" * (10 << 20)}, INVALID, "text"),
        ({"chat": inference_pb2.ChatPrompt()}, INVALID, "chat.messages"),
        (
            {
                "chat": inference_pb2.ChatPrompt(
                    messages=[inference_pb2.ChatMessage(role=77, content="x")]
                )
            },
            INVALID,
            "chat.messages[0].role",
        ),
        ({"text": "hi", "request_id": "x" * 10_000}, INVALID, "request_id"),
    ],
)
async def test_bad_input_names_its_field_and_the_next_request_works(
    stack, request_fields, code, field
):  # field cases 80 to 89, 124
    async with Client(stack.address) as client:
        for rpc, message in (
            (client.inference.GenerateUnary, inference_pb2.GenerateUnaryRequest),
            (client.inference.Generate, inference_pb2.GenerateRequest),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await finished(rpc(message(**request_fields), timeout=10))
            assert caught.value.code() is code, caught.value.details()
            assert field in caught.value.details()
            assert "Traceback" not in caught.value.details()
        got, _ = await client.stream(ids(5), 5)
        assert got == FAKE.generate(ids(5), 5)


async def test_invalid_utf8_names_its_field(stack):
    async with Client(stack.address) as client:
        call = client.channel.unary_unary("/radixd.v1.InferenceService/GenerateUnary")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\x12\x02\xff\xfe", timeout=10)  # field 2, text, two bytes of nonsense
        assert caught.value.code() is INVALID
        assert "text" in caught.value.details()
        got, _ = await client.stream(ids(5), 5)
        assert got == FAKE.generate(ids(5), 5)


async def test_preheat_then_hit_then_flush(stack):  # field cases 17, 138
    async with Client(stack.address) as client:
        await client.admin.FlushCache(admin_pb2.FlushCacheRequest())
        text = "系统提示：请用中文回答。" * 4
        for cached in (0, len(text.encode())):
            warm = await client.admin.Preheat(admin_pb2.PreheatRequest(prefixes=[text]), timeout=10)
            (prefix,) = warm.prefixes
            assert prefix.num_tokens == len(text.encode())
            assert prefix.cached_tokens == cached
            assert prefix.computed_tokens == prefix.num_tokens - cached
        asked = inference_pb2.GenerateUnaryRequest(
            text=text + "你好", sampling=inference_pb2.SamplingParams(max_tokens=3)
        )
        answer = await client.inference.GenerateUnary(asked, timeout=10)
        assert answer.usage.cached_tokens == len(text.encode())
        tree = await client.admin.DumpTree(admin_pb2.DumpTreeRequest(), timeout=10)
        assert sum(node.text.startswith("系统提示") for node in tree.nodes) == 1
        await client.admin.FlushCache(admin_pb2.FlushCacheRequest())
        answer = await client.inference.GenerateUnary(asked, timeout=10)
        assert answer.usage.cached_tokens == 0


async def test_domains_are_kept_apart(stack):  # field case 14
    async with Client(stack.address) as client:
        asked = ids(64, seed=6000)
        cached = []
        for domain in ("a", "b", "a"):
            _, last = await client.stream(asked, 1, cache_domain=domain)
            cached.append(last.usage.cached_tokens)
        assert cached == [0, 0, 63]


async def test_stream_and_unary_say_the_same(stack):  # field case 147
    async with Client(stack.address) as client:
        for stop in ([], ["a"], ["bc", "q"], ["zzzzzzzzz"]):
            fields = {
                "text": "Once upon a time",
                "sampling": inference_pb2.SamplingParams(max_tokens=40, stop=stop, seed=5),
            }
            unary = await client.inference.GenerateUnary(
                inference_pb2.GenerateUnaryRequest(**fields), timeout=10
            )
            pieces = [
                piece
                async for piece in client.inference.Generate(
                    inference_pb2.GenerateRequest(**fields), timeout=10
                )
            ]
            assert "".join(piece.text for piece in pieces) == unary.text
            assert [i for piece in pieces for i in piece.token_ids] == list(unary.token_ids)
            assert pieces[-1].usage.completion_tokens == unary.usage.completion_tokens
            assert unary.usage.completion_tokens == len(unary.token_ids)
            assert pieces[-1].finish_reason == unary.finish_reason
            assert pieces[-1].matched_stop == unary.matched_stop
            assert all(not piece.finish_reason for piece in pieces[:-1])


async def test_a_stop_text_counts_as_finished(stack):
    async with Client(stack.address) as client:
        text = "".join(map(chr, FAKE.generate(b"Once", 12)))
        before = (await client.stats()).requests
        answer = await client.inference.GenerateUnary(
            inference_pb2.GenerateUnaryRequest(
                text="Once",
                sampling=inference_pb2.SamplingParams(max_tokens=500, stop=[text[6:9]]),
            ),
            timeout=10,
        )
        assert answer.finish_reason == inference_pb2.FINISH_REASON_STOP
        assert answer.text == text[: text.index(text[6:9])]
        await client.idle()
        after = (await client.stats()).requests
        assert after.finished - before.finished == 1
        assert after.cancelled == before.cancelled


async def test_a_step_of_the_fake_worker_takes_its_time(stack):
    async with Client(stack.address) as client:
        started = asyncio.get_running_loop().time()
        await client.stream(ids(5), 300)
        assert asyncio.get_running_loop().time() - started >= 0.3, "300 steps of 1 ms"
