"""The whole server on the real model: what README promises, done by the README's own tools."""

import asyncio
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protos.radixd.v1 import admin_pb2, inference_pb2
from tests.cli.test_readme import command_lines
from tests.system.stack import Client, launched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GRPCURL = shutil.which("grpcurl", path=Path(sys.executable).parent)
RADIXD = "from radixd.cli.app import main; main()"
STEM_PROMPTS = ("请解释量子力学的基本原理", "请解释量子纠缠现象", "请用通俗语言说明量子隧穿")


@pytest.fixture(scope="module")
def stack():
    with launched() as running:
        yield running


def radixd(stack, *words, stdin=None):
    """Runs the command line as a user does; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", RADIXD, *words, "--target", stack.address],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def generate(stack, *words):
    return json.loads(radixd(stack, "generate", "--json", *words))


def test_generate_prints_one_json_object(stack):
    answer = generate(stack, "--prompt", "The capital of France is", "--max-tokens", "8")
    assert "Paris" in answer["text"]
    assert answer["finish_reason"] in {"stop", "length"}
    usage = answer["usage"]
    assert usage["prompt_tokens"] == 5
    assert usage["completion_tokens"] == len(answer["token_ids"])
    names = {"prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"}
    assert set(usage) == names
    assert answer["seed"] >= 0


def test_chat_holds_a_conversation(stack):
    before = asyncio.run(_stats(stack)).tokens
    said = radixd(stack, "chat", "--max-tokens", "12", stdin="My name is Ada.\nWho am I?\n")
    answers = [line for line in said.splitlines() if line.strip()]
    assert len(answers) >= 2, said
    after = asyncio.run(_stats(stack)).tokens
    # The second turn carries the first and its answer, all of it read and not computed.
    assert after.cached - before.cached > (after.prompt - before.prompt) / 3


async def _stats(stack):
    async with Client(stack.address) as client:
        return await client.stats()


def test_three_prompts_share_their_stem(stack):
    with_cache = []
    asyncio.run(_flush(stack))
    for prompt in STEM_PROMPTS:
        answer = generate(stack, "--prompt", prompt, "--max-tokens", "1")
        with_cache.append(answer["usage"]["cached_tokens"])
    assert with_cache[0] == 0
    assert with_cache[1] >= 5, "请解释量子 was computed by the first prompt"
    assert with_cache[2] >= 1
    drawn = radixd(stack, "tree")
    assert drawn.count("解释量子") == 1, drawn
    assert drawn.count("纠缠现象") == 1, drawn


async def _flush(stack):
    async with Client(stack.address) as client:
        await client.admin.FlushCache(admin_pb2.FlushCacheRequest(), timeout=10)


def test_same_seed_on_an_idle_and_on_a_loaded_server(stack):  # field case 99
    words = ["--prompt", "Once upon a time", "--max-tokens", "24", "--seed", "7"]
    words += ["--temperature", "0.9", "--top-p", "0.95"]
    idle = generate(stack, *words)
    loaded = asyncio.run(_generate_among_others(stack, words))
    assert loaded["token_ids"] == idle["token_ids"]
    assert loaded["seed"] == 7


async def _generate_among_others(stack, words):
    async with Client(stack.address) as client:
        load = [asyncio.create_task(client.stream([504, 1000 + i, 282], 40)) for i in range(6)]
        answer = await asyncio.to_thread(generate, stack, *words)
        await asyncio.gather(*load)
        return answer


def test_prompts_are_scored_warm_as_cold(stack):  # field cases 101, 104
    asyncio.run(_score_twice(stack))


async def _score_twice(stack):
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    message = inference_pb2.GenerateUnaryRequest(
        text=prompt,
        prompt_logprobs=3,
        sampling=inference_pb2.SamplingParams(
            max_tokens=4, logprobs=3, top_k=1, logit_bias={0: -100.0}
        ),
    )
    async with Client(stack.address) as client:
        cold, warm = [await client.inference.GenerateUnary(message, timeout=60) for _ in range(2)]
    assert len(cold.prompt_logprobs) == cold.usage.prompt_tokens - 1
    assert list(cold.prompt_logprobs) == list(warm.prompt_logprobs), "bit for bit"
    assert list(cold.logprobs) == list(warm.logprobs)
    assert warm.usage.cached_tokens == 0
    entries = [*cold.prompt_logprobs, *cold.logprobs]
    assert all(-math.inf < entry.logprob <= 0 for entry in entries)
    assert all(entry.top[0].logprob >= entry.top[2].logprob > -math.inf for entry in entries)
    # The sentence comes again and again: the model expects it.
    assert sum(entry.logprob for entry in cold.prompt_logprobs[-50:]) > -25


def test_a_form_is_met_and_the_same_over_a_cached_prompt(stack):  # field case 94
    asyncio.run(_meet_a_form_twice(stack))


async def _meet_a_form_twice(stack):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    message = inference_pb2.GenerateUnaryRequest(
        text="Name a city and say whether it is big. As JSON: ",
        sampling=inference_pb2.SamplingParams(max_tokens=60, temperature=1.0, seed=3),
        constraint=inference_pb2.Constraint(json_schema=json.dumps(schema)),
    )
    async with Client(stack.address) as client:
        cold, warm = [await client.inference.GenerateUnary(message, timeout=60) for _ in range(2)]
    said = json.loads(cold.text)
    assert list(said) == ["city", "big"]
    assert isinstance(said["big"], bool)
    assert (warm.text, list(warm.token_ids)) == (cold.text, list(cold.token_ids))
    assert warm.usage.cached_tokens > 0


def test_worker_killed_during_twenty_streams(stack):  # field case 134
    asyncio.run(_kill_during_twenty_streams(stack))


async def _kill_during_twenty_streams(stack):
    async with Client(stack.address) as client:
        prompts = [[504, 3575, 282, 500 + i] for i in range(20)]
        undisturbed = await asyncio.gather(
            *(client.stream(prompt, 12, timeout=280) for prompt in prompts)
        )
        await client.admin.FlushCache(admin_pb2.FlushCacheRequest(), timeout=10)
        begun = asyncio.Event()
        streams = [
            asyncio.create_task(
                client.stream(prompt, 12, timeout=280, on_message=lambda _: begun.set())
            )
            for prompt in prompts
        ]
        await begun.wait()
        os.kill(stack.pids()["gpu_worker"], signal.SIGKILL)
        for stream, (wanted, _) in zip(streams, undisturbed, strict=True):
            got, last = await stream
            assert got == wanted
            assert last.finish_reason == inference_pb2.FINISH_REASON_LENGTH
        await client.idle()


@pytest.mark.skipif(GRPCURL is None, reason="grpcurl comes as a package for x86-64 only")
@pytest.mark.parametrize("words", command_lines("grpcurl"), ids=lambda words: words[-1])
def test_grpcurl_lines_of_the_readme(stack, words):
    assert words[-1] == "list" or "localhost:50051" in words
    line = [GRPCURL, *(word.replace("localhost:50051", stack.address) for word in words)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    if words[-1] == "list":
        assert {"radixd.v1.InferenceService", "radixd.v1.AdminService"} <= set(done.stdout.split())
    elif words[-1].endswith(("/Generate", "/GenerateUnary")):
        assert '"finish_reason"' in done.stdout
        assert '"prompt_tokens"' in done.stdout
    elif words[-1].endswith("/Preheat"):
        assert '"num_tokens"' in done.stdout
