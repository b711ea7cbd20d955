"""Policies on a running server: every name is set, read back, and serves the same tokens."""

import asyncio

import grpc
import pytest

from protos.plan import SamplingParams
from protos.radixd.v1 import admin_pb2, policy_pb2
from tests.system.ask import has_logprobs, ids, refused, request, set_policy, whole
from tests.system.stack import FAKE, Client, launched

FAMILIES = {
    "waiting_order": "adaptive fcfs lpm hrrn dfs_weight lof priority random vtc",
    "admission_estimate": "worst_case ratio peak quantile",
    "retraction_policy": "fifo lifo lru progress random priority cost tenant deadline",
    "retraction_keep": "partial all none",
    "eviction_policy": "lru lfu slru fifo priority cost",
    "speculation": "auto off",
}
NAMES = [(family, name) for family, names in FAMILIES.items() for name in names.split()]
DEFAULTS = {
    "waiting_order": "adaptive",
    "admission_estimate": "ratio",
    "retraction_policy": "progress",
    "retraction_keep": "partial",
    "eviction_policy": "lru",
    "speculation": "auto",
}
SAMPLED = ("repetition_penalty", "frequency_penalty", "temperature", "seed", "logprobs")
NUMBERS = {
    "weight_prefix": 2.5,
    "weight_age": 0.0,
    "weight_cost": 1.25,
    "most_passes": 3,
    "policy_seed": 7,
    "decode_reserve": 0.5,
    "length_quantile": 0.75,
    "chunk_size": 32,
    "max_batch_tokens": 128,
    "prefill_share": 0.5,
    "itl_target_ms": 100.0,
    "high_watermark": 0.875,
    "low_watermark": 0.75,
    "pin_budget": 0.25,
    "max_drafts": 4,
    "speculation_rows": 2,
    "session_ttl_s": 2.5,
    "max_sessions": 7,
}


@pytest.fixture(scope="module")
def stack():
    with launched("--fake-worker", "--kv-slots", "256", "--max-running", "4") as running:
        yield running


@pytest.fixture
async def client(stack):
    async with Client(stack.address) as connected:
        before = await policies(connected)
        yield connected
        await connected.admin.SetPolicy(admin_pb2.SetPolicyRequest(policies=before))
        await connected.idle()


async def policies(client):
    return (await client.admin.GetPolicy(admin_pb2.GetPolicyRequest(), timeout=10)).policies


async def serve(client, seed, *, num_requests=6, num_prompt=30, max_tokens=60):
    """Several at once, more than the pool can hold; their tokens are what the model says."""
    prompts = [ids(num_prompt, f"{seed}-{n}") for n in range(num_requests)]
    answers = await asyncio.gather(
        *(
            whole(client, request(prompt, max_tokens, priority=n))
            for n, prompt in enumerate(prompts)
        )
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        assert list(answer.token_ids) == FAKE.generate(prompt, max_tokens)


async def test_every_name_is_listed_and_explained(client):
    answer = await client.admin.GetPolicy(admin_pb2.GetPolicyRequest(), timeout=10)
    listed = {family.name: family.options for family in answer.families}
    names = {family: " ".join(option.name for option in listed[family]) for family in listed}
    assert {family: set(words.split()) for family, words in names.items()} == {
        family: set(words.split()) for family, words in FAMILIES.items()
    }
    paragraphs = [option.summary for options in listed.values() for option in options]
    assert all(len(paragraph.split()) >= 15 for paragraph in paragraphs)
    assert len(set(paragraphs)) == len(NAMES)
    assert {name: getattr(answer.policies, name) for name in DEFAULTS} == DEFAULTS


async def test_every_name_can_be_set_and_read_back(client):
    before = await policies(client)
    for family, name in NAMES:
        expected = policy_pb2.Policies()
        expected.CopyFrom(before)
        setattr(expected, family, name)
        assert await set_policy(client, **{family: name}) == expected, (family, name)
        assert await policies(client) == expected, (family, name)
        await set_policy(client, **{family: getattr(before, family)})


async def test_every_number_can_be_set_and_read_back(client):
    after = await set_policy(client, chunk_sizes={"chat": 64, "code": 0, "own": 8}, **NUMBERS)
    assert after == await policies(client)
    assert {name: getattr(after, name) for name in NUMBERS} == NUMBERS
    assert dict(after.chunk_sizes) == {"chat": 64, "longform": 2048, "own": 8}
    fields = {field.name for field in policy_pb2.Policies.DESCRIPTOR.fields}
    assert fields == {*FAMILIES, *NUMBERS, "chunk_sizes"}, "a policy that no test here turns"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"waiting_order": "lpm", "eviction_policy": "mru"}, "policies.eviction_policy"),
        ({"waiting_order": "lpm", "pin_budget": 1.5}, "policies.pin_budget"),
        ({"waiting_order": "lpm", "high_watermark": 0.25}, "policies.low_watermark"),
        ({"waiting_order": "lpm", "chunk_size": 0}, "policies.chunk_size"),
        ({"waiting_order": "lpm", "weight_age": float("nan")}, "policies.weight_age"),
        ({}, "policies"),
    ],
)
async def test_one_bad_policy_changes_none(client, fields, named):
    before = await policies(client)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, named):
        await set_policy(client, **fields)
    assert await policies(client) == before


@pytest.mark.parametrize("order", FAMILIES["waiting_order"].split())
async def test_served_under_every_waiting_order(client, order):
    await set_policy(client, waiting_order=order)
    await serve(client, order, num_requests=12, max_tokens=10)


@pytest.mark.parametrize("estimate", FAMILIES["admission_estimate"].split())
async def test_served_under_every_estimate(client, estimate):
    await set_policy(client, admission_estimate=estimate)
    before = (await client.stats()).requests.retractions
    await serve(client, estimate)
    if estimate == "worst_case":
        assert (await client.stats()).requests.retractions == before


@pytest.mark.parametrize("policy", FAMILIES["retraction_policy"].split())
async def test_cut_back_and_served_under_every_retraction_policy(client, policy):
    await set_policy(client, retraction_policy=policy, decode_reserve=0.0)
    before = (await client.stats()).requests.retractions
    await serve(client, policy, max_tokens=90)
    assert (await client.stats()).requests.retractions > before


@pytest.mark.parametrize("keep", FAMILIES["retraction_keep"].split())
async def test_cut_back_and_served_whatever_is_kept(client, keep):
    await set_policy(client, retraction_keep=keep, decode_reserve=0.0)
    before = (await client.stats()).requests.retractions
    await serve(client, keep, max_tokens=90)
    assert (await client.stats()).requests.retractions > before


@pytest.mark.parametrize("keep", FAMILIES["retraction_keep"].split())
async def test_cut_back_without_a_trace_in_tokens_and_numbers(client, keep):  # field cases 41, 43
    await set_policy(client, retraction_keep=keep, decode_reserve=0.0)
    before = (await client.stats()).requests.retractions
    sampling = SamplingParams(
        repetition_penalty=1.25, frequency_penalty=0.5, temperature=0.75, seed=3, logprobs=2
    )
    prompts = [ids(30, f"trace {keep}{n}") for n in range(6)]
    fields = {name: getattr(sampling, name) for name in SAMPLED}
    messages = [request(prompt, 90, sampling=fields) for prompt in prompts]
    answers = await asyncio.gather(*(whole(client, message) for message in messages))
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = FAKE.generate(prompt, 90, sampling)
        assert list(answer.token_ids) == expected
        has_logprobs(answer.logprobs, prompt, expected, 2)
    assert (await client.stats()).requests.retractions > before


@pytest.mark.parametrize("policy", FAMILIES["eviction_policy"].split())
async def test_evicted_and_served_under_every_eviction_policy(client, policy):
    await set_policy(client, eviction_policy=policy)
    before = (await client.stats()).tokens.evicted
    await serve(client, policy, num_requests=12, max_tokens=10)
    assert (await client.stats()).tokens.evicted > before
