"""Tenants with keys on a running server: whose prefixes, whose slots, and who may ask what."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.radixd.v1 import admin_pb2, inference_pb2
from tests.system.ask import (
    Running,
    cached,
    explain,
    ids,
    preheat,
    refused,
    request,
    until,
    whole,
)
from tests.system.keys import ACME, OTHER, ROOT, write_tenants
from tests.system.stack import FAKE, Client, launched

SLOTS, CAP = 1000, 250

FILE = """
acme: {most_share: 0.25, pin_share: 0.1, keys: [ACME]}
other: {keys: [OTHER]}
admin_keys: [ROOT]
"""
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    file = write_tenants(tmp_path_factory.mktemp("tenants") / "tenants.yaml", FILE)
    with launched(
        *("--fake-worker", "--kv-slots", str(SLOTS), "--fake-step-ms", "2"),
        *("--tenants", str(file), "--public-domains", "public"),
    ) as running:
        yield running


@pytest.fixture
async def client(stack):
    async with Client(stack.address) as connected:
        yield connected

        async def idle():
            requests = (await books(connected, ROOT)).requests
            return not requests.running and not requests.waiting

        await until(idle, "nobody lives")


async def books(client, whose):
    return await client.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=10, **whose)


async def test_a_call_needs_a_known_key_and_health_does_not(client):
    for metadata in ((), (("authorization", "Bearer key of nobody"),)):
        for call in (
            client.inference.GenerateUnary(
                inference_pb2.GenerateUnaryRequest(text="x"), metadata=metadata
            ),
            client.admin.GetStats(admin_pb2.GetStatsRequest(), metadata=metadata),
            client.inference.Generate(
                inference_pb2.GenerateRequest(text="x"), metadata=metadata
            ).read(),
        ):
            with refused(UNAUTHENTICATED, "a known key is needed"):
                await call
    health = health_pb2_grpc.HealthStub(client.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_prefixes_are_a_tenants_own(client):  # field case 14, both halves
    prompt = ids(64, "own")
    found = [await cached(client, prompt, **whose) for whose in (ACME, OTHER, ACME, OTHER, ROOT)]
    assert found == [0, 0, 63, 63, 0]
    # A domain that the caller names does not let it in.
    found = [
        await cached(client, prompt, cache_domain=domain, **OTHER)
        for domain in ("acme", "acme/", "x")
    ]
    assert found == [0, 0, 0]


async def test_a_preheat_warms_its_own_tenant(client):
    prompt = ids(60, "preheated")
    await preheat(client, prompt, **ACME)
    assert await cached(client, [*prompt, 97], **OTHER) == 0
    assert await cached(client, [*prompt, 97], **ACME) == 60


async def test_a_public_domain_is_shared(client):
    prompt = ids(64, "public")
    found = [await cached(client, prompt, cache_domain="public", **w) for w in (ACME, OTHER, ROOT)]
    assert found == [0, 63, 63]


async def test_a_tenant_waits_at_its_cap_and_others_do_not(client):
    prompts = [ids(40, f"cap{n}") for n in range(8)]
    streams = [Running(client, request(prompt, 60), **ACME) for prompt in prompts]
    seen, reasons = [], []

    async def held_up():
        stats = await books(client, ROOT)
        seen.append(stats.tenants["acme"].held_slots)
        reasons.append(stats.waiting_by_reason["TENANT_CAP"])
        return reasons[-1]

    await until(held_up, "somebody waits at the cap")
    # The pool has room, and whoever is not at a cap gets it at once.
    answer = await whole(client, request(ids(300, "room"), 3), **OTHER)
    assert len(answer.token_ids) == 3
    while any(stream.num_tokens < 60 for stream in streams):
        await held_up()
    for prompt, stream in zip(prompts, streams, strict=True):
        assert [i for piece in await stream for i in piece.token_ids] == FAKE.generate(prompt, 60)
    assert max(seen) <= CAP
    assert max(seen) > CAP // 2, "it uses what it may"


async def test_what_no_cap_can_hold_is_refused(client):
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "300 tokens", str(CAP)):
        await whole(client, request(ids(300, "too large"), 3), **ACME)
    assert len((await whole(client, request(ids(300, "fits"), 3), **OTHER)).token_ids) == 3


async def test_a_tenant_sees_its_own_requests_pins_and_books(client):
    pin = await preheat(client, ids(20, "pin"), pin=admin_pb2.PIN_LEVEL_HARD, **OTHER)
    running = await Running(client, request(ids(9, 1), 900, request_id="mine"), **OTHER).began(2)
    ask_list, ask_pins = admin_pb2.ListRequestsRequest(), admin_pb2.ListPinsRequest()
    try:
        for whose, sees in ((ACME, False), (OTHER, True), (ROOT, True)):
            listed = await client.admin.ListRequests(ask_list, timeout=10, **whose)
            assert [view.request_id for view in listed.requests] == ["mine"] * sees
            pins = (await client.admin.ListPins(ask_pins, timeout=10, **whose)).pins
            assert [one.pin_id for one in pins] == [pin.pin_id] * sees
            assert ("other" in (await books(client, whose)).tenants) == sees
        with refused(grpc.StatusCode.NOT_FOUND, "mine"):
            await explain(client, "mine", **ACME)
        assert (await explain(client, "mine", **ROOT)).request.tenant == "other"
        with refused(DENIED, "tenant"):
            of_other = admin_pb2.ListRequestsRequest(tenant="other")
            await client.admin.ListRequests(of_other, timeout=10, **ACME)
        unpin = admin_pb2.UnpinRequest(pin_ids=[pin.pin_id])
        answer = await client.admin.Unpin(unpin, timeout=10, **ACME)
        assert list(answer.unknown) == [pin.pin_id]
        cancel = inference_pb2.CancelRequest(request_id="mine")
        with refused(grpc.StatusCode.NOT_FOUND, "mine"):
            await client.inference.Cancel(cancel, timeout=10, **ACME)
        await client.inference.Cancel(cancel, timeout=10, **OTHER)
        assert (await running)[-1].finish_reason == inference_pb2.FINISH_REASON_CANCELLED
    finally:
        running.leave()
    answer = await client.admin.Unpin(admin_pb2.UnpinRequest(all=True), timeout=10, **OTHER)
    assert list(answer.removed) == [pin.pin_id]


async def test_what_concerns_all_takes_an_operators_key(client):
    policy = admin_pb2.SetPolicyRequest()
    policy.policies.most_passes = 63
    calls = (
        (client.admin.FlushCache, admin_pb2.FlushCacheRequest()),
        (client.admin.DumpTree, admin_pb2.DumpTreeRequest()),
        (client.admin.SetPolicy, policy),
    )
    for call, asked in calls:
        with refused(DENIED, "admin_keys"):
            await call(asked, timeout=10, **ACME)
        await call(asked, timeout=10, **ROOT)
    asked = admin_pb2.GetPolicyRequest()
    answer = await client.admin.GetPolicy(asked, timeout=10, **ACME)
    assert answer.policies.most_passes == 63


async def test_a_tenants_part_of_the_budget_of_pins(client):
    prompt = ids(100, "pin share")
    warm = await preheat(client, prompt, pin=admin_pb2.PIN_LEVEL_HARD, **ACME)
    assert warm.pinned_tokens == SLOTS // 2 // 10
    assert "budget" in warm.pin_error
    whole_pin = await preheat(client, prompt, pin=admin_pb2.PIN_LEVEL_HARD, **OTHER)
    assert (whole_pin.pinned_tokens, whole_pin.pin_error) == (100, "")
    tenants = (await books(client, ROOT)).tenants
    assert (tenants["acme"].pinned_slots, tenants["other"].pinned_slots) == (50, 100)
    await client.admin.Unpin(admin_pb2.UnpinRequest(all=True), timeout=10, **ROOT)


async def test_the_books_tell_tenants_apart(client):
    before = (await books(client, ROOT)).tenants
    prompt = ids(30, "books")
    await asyncio.gather(
        whole(client, request(prompt, 5), **ACME), whole(client, request(prompt[:20], 7), **OTHER)
    )
    after = (await books(client, ROOT)).tenants
    for name, num_prompt, num_generated in (("acme", 30, 5), ("other", 20, 7)):
        assert after[name].prompt_tokens - before[name].prompt_tokens == num_prompt
        assert after[name].generated_tokens - before[name].generated_tokens == num_generated
