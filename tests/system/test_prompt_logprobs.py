"""Log probabilities of prompts and biases: through the whole stack, over a worker's death."""

import asyncio
import os
import signal
from array import array

import grpc
import pytest

from protos.plan import SamplingParams
from protos.radixd.v1 import inference_pb2
from tests.system.ask import cached, has_logprobs, ids, refused, request, unary, whole
from tests.system.stack import FAKE, launched

PENALTIES = {
    "repetition_penalty": 1.5,
    "presence_penalty": 1.0,
    "frequency_penalty": 0.25,
    "min_tokens": 20,
}


@pytest.fixture(scope="module")
def stack():
    with launched("--fake-worker", "--kv-slots", "16384", "--fake-step-ms", "2") as running:
        yield running


def has_scores(answer, prompt, num_top):
    """One entry for each token of the prompt but the first, with the model's own numbers."""
    expected = FAKE.score_prompt(prompt, num_top)
    assert [entry.token_id for entry in answer.prompt_logprobs] == prompt[1:]
    assert array("f", [entry.logprob for entry in answer.prompt_logprobs]) == expected.chosen
    tops = [top for entry in answer.prompt_logprobs for top in entry.top]
    assert array("i", [top.token_id for top in tops]) == expected.top_ids
    assert array("f", [top.logprob for top in tops]) == expected.top_logprobs


@pytest.mark.parametrize("num_tokens", [1, 2, 127, 128, 129, 385])
@pytest.mark.parametrize("num_top", [0, 3])
async def test_cold_and_warm_and_in_pieces(client, num_tokens, num_top):
    # field cases 23, 101
    prompt = ids(num_tokens, f"scored {num_tokens} {num_top}")
    message = request(prompt, 5, prompt_logprobs=num_top, sampling={"logprobs": 1})
    cold = await whole(client, message)
    warm = await client.inference.GenerateUnary(unary(message), timeout=30)
    for answer in (cold, warm):
        has_scores(answer, prompt, num_top)
        has_logprobs(answer.logprobs, prompt, FAKE.generate(prompt, 5), 1)
        assert answer.usage.cached_tokens == 0
    assert await cached(client, prompt) == num_tokens - 1, "others keep their hits"


async def test_log_probabilities_of_outputs_keep_the_hits(client):
    # field case 103
    prompt = ids(50, "kept hits")
    await whole(client, request(prompt, 1))
    assert await cached(client, prompt, sampling={"logprobs": 5}) == 49


async def test_a_prompt_alone(client):
    # field case 87
    prompt = ids(200, "alone")
    message = request(prompt, 0, prompt_logprobs=2)
    for answer in (
        await whole(client, message),
        await client.inference.GenerateUnary(unary(message), timeout=30),
    ):
        has_scores(answer, prompt, 2)
        assert (answer.text, list(answer.token_ids)) == ("", [])
        assert answer.finish_reason == inference_pb2.FINISH_REASON_LENGTH
        assert answer.usage.prompt_tokens == 200
        assert answer.usage.completion_tokens == 0
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "sampling.max_tokens"):
        await whole(client, request(prompt, 0))


async def test_biases_force_and_ban(client):
    # field case 80
    prompt = ids(20, "biased")
    plain = FAKE.generate(prompt, 30)
    banned = dict.fromkeys(sorted(set(plain))[:3], -100.0)
    for biases in ({263: 100.0}, {ord("!"): 100.0}, banned, {plain[0]: 3.0, 35: 2.5}):
        answer = await whole(client, request(prompt, 30, sampling={"logit_bias": biases}))
        params = SamplingParams(logit_bias=tuple(sorted(biases.items())))
        assert list(answer.token_ids) == FAKE.generate(prompt, 30, params)
    forced = await whole(client, request(prompt, 3, sampling={"logit_bias": {ord("!"): 100.0}}))
    assert forced.text == "!!!"
    free = await whole(client, request(prompt, 30, sampling={"logit_bias": banned}))
    assert not set(banned) & set(free.token_ids)


@pytest.mark.parametrize("biases", [{264: 1.0}, {10**9: 1.0}, {-1: 1.0}, {1: 1e30}, {1: -101.0}])
async def test_biases_that_cannot_be_are_refused_and_the_next_request_works(client, biases):
    # field cases 80, 82
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "sampling.logit_bias"):
        await whole(client, request([97], 5, sampling={"logit_bias": biases}))
    answer = await whole(client, request(ids(5), 5))
    assert list(answer.token_ids) == FAKE.generate(ids(5), 5)


async def test_neighbors_change_nothing(client):
    # field cases 86, 92
    """A plain greedy one among others with everything on; each says what it says alone."""
    biases = {ord("e"): -100.0, 300 - 50: 4.0}
    kinds = [
        {},
        {**PENALTIES, "logit_bias": biases, "logprobs": 3},
        {"temperature": 1.0, "seed": 1, "logit_bias": dict.fromkeys(range(97, 120), -100.0)},
        {"temperature": 0.75, "top_p": 0.5, "seed": 2, "logprobs": 5},
    ]
    prompts = [ids(30 + 40 * at, f"mixed {at}") for at in range(4)]
    answers = await asyncio.gather(
        *(
            whole(client, request(prompt, 60, sampling=kind, prompt_logprobs=at % 2))
            for at, (prompt, kind) in enumerate(zip(prompts, kinds, strict=True))
        )
    )
    for at, (answer, kind) in enumerate(zip(answers, kinds, strict=True)):
        params = {**kind, "logit_bias": tuple(sorted(kind.get("logit_bias", {}).items()))}
        wanted = FAKE.generate(prompts[at], 60, SamplingParams(**params), ignore_eos=True)
        assert list(answer.token_ids) == wanted, at
        has_scores(answer, prompts[at], at % 2)


@pytest.mark.timeout(120)
async def test_a_dead_worker_loses_and_doubles_none(client, stack):
    # field case 134
    before = stack.pids()["gpu_worker"]
    computed = (await client.stats()).tokens.computed
    prompts = [ids(900, f"killed {at}") for at in range(3)]
    calls = [
        asyncio.create_task(whole(client, request(prompt, 200 * at, prompt_logprobs=1)))
        for at, prompt in enumerate(prompts)
    ]
    while (await client.stats()).tokens.computed == computed:
        pass
    os.kill(before, signal.SIGKILL)
    assert not calls[-1].done(), "it is killed in the middle"
    for at, call in enumerate(calls):
        answer = await call
        has_scores(answer, prompts[at], 1)
        assert list(answer.token_ids) == FAKE.generate(prompts[at], 200 * at)
    assert stack.pids()["gpu_worker"] != before
