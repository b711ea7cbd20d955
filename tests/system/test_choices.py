"""n, best_of and seeds through the whole server: same request, same answers, each its own."""

import asyncio
import itertools

import grpc
import pytest

from protos.plan import SamplingParams
from protos.radixd.v1 import admin_pb2, inference_pb2
from tests.system.ask import Running, has_logprobs, ids, refused, request, unary, until, whole
from tests.system.stack import FAKE, Client, launched
from tokenizer_svc.choices import choice_seed

FLAGS = ("--fake-worker", "--kv-slots", "4096", "--fake-step-ms", "1")
DRAWN = {"temperature": 1.0, "seed": 42}


@pytest.fixture(scope="module")
def stack():
    with launched(*FLAGS) as running:
        yield running


def reference(prompt, max_tokens, choice=0, seed=42, **fields):
    sampling = SamplingParams(temperature=1.0, seed=choice_seed(seed, choice), **fields)
    return FAKE.generate(prompt, max_tokens, sampling, ignore_eos=True)


async def at_once(client, message):
    return await client.inference.GenerateUnary(unary(message), timeout=50)


async def test_four_answers_and_the_same_four_again(client):  # field case 97
    prompt = ids(30, "four")
    message = request(prompt, 25, n=4, sampling=DRAWN)
    first, again = await at_once(client, message), await at_once(client, message)
    lists = [list(choice.token_ids) for choice in first.choices]
    assert lists == [reference(prompt, 25, choice) for choice in range(4)]
    assert all(one != other for one, other in itertools.combinations(lists, 2))
    assert [list(choice.token_ids) for choice in again.choices] == lists
    assert list((await whole(client, request(prompt, 25, sampling=DRAWN))).token_ids) == lists[0]


async def test_each_streams_to_its_own_end(client):  # field cases 97, 147
    prompt = ids(20, "own end")
    # Half of what the model may say ends an output.
    stops = list(range(97, 113))
    sampling = {**DRAWN, "stop_token_ids": stops}
    got = {choice: [] for choice in range(6)}
    ended, usages = {}, []
    call = client.inference.Generate(request(prompt, 200, n=6, sampling=sampling), timeout=50)
    async for message in call:
        assert message.choice not in ended, "nothing of a choice comes after its end"
        got[message.choice].extend(message.token_ids)
        if message.finish_reason:
            ended[message.choice] = message.matched_token_id
        if message.HasField("usage"):
            usages.append(message.usage)
    for choice, tokens in got.items():
        sampling = SamplingParams(temperature=1.0, seed=choice_seed(42, choice))
        expected = FAKE.generate(prompt, 200, sampling, ignore_eos=True, stop_token_ids=stops)
        assert (tokens, ended[choice]) == (expected, expected[-1])
    assert len({len(tokens) for tokens in got.values()}) > 2
    (usage,) = usages
    assert usage.completion_tokens == sum(map(len, got.values()))
    assert usage.prompt_tokens == 20


async def test_choices_share_their_prompt(client):
    prompt = [200, *ids(599, "shared")]
    before = await client.stats()
    answer = await at_once(client, request(prompt, 5, n=8, sampling=DRAWN))
    after = await client.stats()
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (600, 0)
    # Computed once, save for the last token of each, which gives the first of the output.
    computed = after.tokens.computed - before.tokens.computed
    assert computed <= 600 + 7 + 8 * 5
    assert after.tokens.cached - before.tokens.cached == 7 * 599
    warm = await at_once(client, request(prompt, 5, n=8, sampling=DRAWN))
    assert warm.usage.cached_tokens == 599
    assert warm.choices == answer.choices


async def test_the_likeliest_of_several(client):
    prompt = ids(25, "best")
    fields = {"n": 2, "best_of": 6}
    answer = await at_once(client, request(prompt, 12, sampling=DRAWN, **fields))
    every = [reference(prompt, 12, choice) for choice in range(6)]
    means = [sum(FAKE.generate_logprobs(prompt, each, 0).chosen) / 12 for each in every]
    ranked = sorted(range(6), key=lambda choice: -means[choice])
    assert [list(choice.token_ids) for choice in answer.choices] == [every[i] for i in ranked[:2]]
    assert not answer.choices[0].logprobs
    assert answer.usage.completion_tokens == 72
    assert ranked[:2] != [0, 1], "the likeliest are not the first, or this test says nothing"


async def test_the_prompt_is_scored_once(client):
    prompt = [201, *ids(40, "scored")]
    for fields in ({"n": 3}, {"n": 2, "best_of": 6}):
        message = request(prompt, 8, prompt_logprobs=2, sampling=DRAWN, **fields)
        answer = await at_once(client, message)
        has_logprobs(answer.prompt_logprobs, prompt[:1], prompt[1:], 2)
        got = [list(choice.token_ids) for choice in answer.choices]
        every = [reference(prompt, 8, choice) for choice in range(6)]
        assert all(tokens in every for tokens in got)
        pieces = await Running(client, message)
        with_scores = [piece for piece in pieces if piece.prompt_logprobs]
        assert len(with_scores) == 1
        assert with_scores[0].prompt_logprobs == answer.prompt_logprobs
        assert with_scores[0] == next(piece for piece in pieces if piece.choice == 0)


async def test_one_id_names_all_choices(client):
    message = request(ids(20, "one id"), 3000, n=3, request_id="all of it", sampling=DRAWN)
    running = await Running(client, message).began(30)
    listed = await client.admin.ListRequests(admin_pb2.ListRequestsRequest(), timeout=10)
    assert [view.request_id for view in listed.requests] == ["all of it"] * 3
    explained = await client.admin.Explain(admin_pb2.ExplainRequest(request_id="all of it"))
    assert explained.request.request_id == "all of it"
    await client.inference.Cancel(inference_pb2.CancelRequest(request_id="all of it"))
    pieces = await running
    last = {piece.choice: piece.finish_reason for piece in pieces}
    assert last == dict.fromkeys(range(3), inference_pb2.FINISH_REASON_CANCELLED)


async def test_leaving_ends_all_choices(client):  # field case 52
    before = (await client.stats()).requests.cancelled
    running = await Running(client, request(ids(20, "left"), 3000, n=16, sampling=DRAWN)).began(20)
    running.leave()
    assert (await client.idle()).requests.cancelled - before == 16
    await running
    steps = (await client.stats()).num_steps
    await asyncio.sleep(0.2)
    assert (await client.stats()).num_steps == steps


async def test_no_seed_is_a_seed_of_its_own(client):  # field case 98
    message = request(ids(20, "unseeded"), 30, sampling={"temperature": 1.0})
    answers = [await whole(client, message) for _ in range(2)]
    with launched(*FLAGS) as other:
        async with Client(other.address) as elsewhere:
            answers.append(await whole(elsewhere, message))
    assert len({tuple(answer.token_ids) for answer in answers}) == 3
    assert len({answer.seed for answer in answers}) == 3
    again = request(ids(20, "unseeded"), 30, sampling={"temperature": 1.0, "seed": answers[2].seed})
    assert (await whole(client, again)).token_ids == answers[2].token_ids


async def test_a_seed_does_not_hear_its_company(client):  # field case 99
    prompt = ids(20, "company")
    message = request(prompt, 60, sampling={"temperature": 0.75, "seed": 42})
    expected = FAKE.generate(prompt, 60, SamplingParams(temperature=0.75, seed=42), ignore_eos=True)
    mates = {
        "alone": [],
        "unseeded": [{"temperature": 0.75}],
        "seeded": [{"temperature": 1.5, "seed": seed} for seed in range(5)],
        "greedy and penalized": [{}, {"frequency_penalty": 1.0}],
    }
    for name, samplings in mates.items():
        for lead in (1, 17):
            company = [
                Running(client, request(ids(15, f"{name} {i}"), 300, sampling=sampling))
                for i, sampling in enumerate(samplings)
            ]
            for mate in company:
                await mate.began(lead)
            assert list((await whole(client, message)).token_ids) == expected, (name, lead)
            for mate in company:
                mate.leave()
                await mate
    assert await until(client.idle, "everybody has left")


async def test_huge_numbers_cost_nothing(client):  # field cases 83, 84
    huge = [
        request([97], 1, n=10**6),
        request([97], 1, best_of=2**63 - 1),
        request([97], 1, prompt_logprobs=10**9),
        request([97], 1, stream_interval=2**62),
        request([97], 1, sampling={"logprobs": 10**9}),
        request([97], 2**31),
        request([97], 1, sampling={"stop": ["0123456789"] * 5000}),
        request([97], 1, sampling={"logit_bias": dict.fromkeys(range(100_000), 1.0)}),
        request([97], 1, priority=2**31 - 1),
        request([10**12], 1),
    ]
    before = (await client.stats()).peak_rss_bytes
    loop = asyncio.get_running_loop()
    for message in huge:
        started_s = loop.time()
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            await at_once(client, message)
        assert loop.time() - started_s < 10.0, "what they ask for would take far longer"
    after = (await client.stats()).peak_rss_bytes
    for service, peak in before.items():
        assert after[service] - peak < 64 << 20, service
    assert list((await whole(client, request([97], 3))).token_ids) == FAKE.generate([97], 3)
