"""Who may call and what they see: keys decide, and no field does."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import admin_pb2, inference_pb2, policy_pb2, tokenizer_pb2
from radixd.chassis.tenants import Tenants, TenantShares, key_digest
from tests.tokenizer_svc.client import refused, script, wait_until
from tests.tokenizer_svc.conftest import Serve, Served
from tests.tokenizer_svc.operator_scheduler import OperatorScheduler

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED

KEYED = Tenants(
    shares={"a": TenantShares(), "b": TenantShares()},
    by_key_digest={key_digest("key-a"): "a", key_digest("key-b"): "b"},
)


ADMINISTERED = Tenants(
    shares=KEYED.shares,
    by_key_digest=dict(KEYED.by_key_digest) | {key_digest("key-b-admin"): "b"},
    admin_key_digests=frozenset({key_digest("root"), key_digest("key-b-admin")}),
)
"""With two admin keys: one without a tenant, one of tenant b's."""

CALLS: dict[str, Any] = {
    "inference.GenerateUnary": inference_pb2.GenerateUnaryRequest(tokens=script("ok")),
    "inference.Generate": inference_pb2.GenerateRequest(tokens=script("ok")),
    "inference.Cancel": inference_pb2.CancelRequest(request_id="r"),
    "tokenizer.Tokenize": tokenizer_pb2.TokenizeRequest(text="a"),
    "tokenizer.Detokenize": tokenizer_pb2.DetokenizeRequest(ids=[1]),
    "admin.GetStats": admin_pb2.GetStatsRequest(),
    "admin.WatchStats": admin_pb2.WatchStatsRequest(),
    "admin.Preheat": admin_pb2.PreheatRequest(prefixes=["abc"]),
    "admin.FlushCache": admin_pb2.FlushCacheRequest(),
    "admin.DumpTree": admin_pb2.DumpTreeRequest(),
    "admin.ListPins": admin_pb2.ListPinsRequest(),
    "admin.Unpin": admin_pb2.UnpinRequest(all=True),
    "admin.ListRequests": admin_pb2.ListRequestsRequest(),
    "admin.ListSessions": admin_pb2.ListSessionsRequest(),
    "admin.CloseSession": admin_pb2.CloseSessionRequest(session="mine"),
    "admin.Explain": admin_pb2.ExplainRequest(request_id="r"),
    "admin.GetPolicy": admin_pb2.GetPolicyRequest(),
    "admin.SetPolicy": admin_pb2.SetPolicyRequest(
        policies=policy_pb2.Policies(waiting_order="lpm")
    ),
}
FOR_ADMINS = {"admin.FlushCache", "admin.DumpTree", "admin.SetPolicy"}


def test_every_public_method_is_listed() -> None:
    services = {"inference": inference_pb2, "tokenizer": tokenizer_pb2, "admin": admin_pb2}
    methods = {
        f"{name}.{method}"
        for name, file in services.items()
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods_by_name
    }
    assert methods == set(CALLS)


@pytest.fixture
def scheduler() -> OperatorScheduler:
    return OperatorScheduler()


@pytest.fixture
async def keyed(serve: Serve, scheduler: OperatorScheduler) -> Served:
    return await serve(scheduler=scheduler, tenants=KEYED)


async def ask(served: Served, name: str, *metadata: tuple[str, str]) -> Any:
    """The first or only reply of a call."""
    stub, _, method = name.partition(".")
    call = getattr(getattr(served, stub), method)(CALLS[name], metadata=metadata, timeout=10)
    if isinstance(call, grpc.aio.UnaryStreamCall):
        first = await call.read()
        call.cancel()
        return first
    return await call


def bearer(key: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {key}")


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_needs_a_known_key(keyed: Served, scheduler: OperatorScheduler, name: str):
    wrong: list[tuple[tuple[str, str], ...]] = [
        (),
        (bearer("key-c"),),
        (bearer("key-A"),),
        (bearer(""),),
        (("authorization", "key-a"),),
        (("authorization", "Basic key-a"),),
        (bearer("key-a"), bearer("key-b")),
        (("x-api-key", "key-a"),),
    ]
    seen = [await refused(ask(keyed, name, *metadata)) for metadata in wrong]
    assert {(got.code, got.reason) for got in seen} == {(UNAUTHENTICATED, "UNAUTHENTICATED")}
    # Nothing tells a missing key from a wrong one.
    assert len({got.message for got in seen}) == 1
    assert scheduler.asked == []
    assert scheduler.seen.submits == []


@pytest.mark.parametrize("name", CALLS)
async def test_what_a_tenant_may_call(keyed: Served, scheduler: OperatorScheduler, name: str):
    if name == "inference.Cancel":
        got = await refused(ask(keyed, name, bearer("key-a")))
        assert got.code == grpc.StatusCode.NOT_FOUND
    elif name in FOR_ADMINS:
        got = await refused(ask(keyed, name, bearer("key-a")))
        assert (got.code, got.reason) == (DENIED, "PERMISSION_DENIED")
        assert scheduler.asked == []
    else:
        assert await ask(keyed, name, bearer("key-a")) is not grpc.aio.EOF
        lower = ("authorization", "bearer  key-a ")
        assert await ask(keyed, name, lower) is not grpc.aio.EOF


@pytest.mark.parametrize("name", sorted(FOR_ADMINS))
async def test_what_an_admin_key_may_call(serve: Serve, scheduler: OperatorScheduler, name: str):
    served = await serve(scheduler=scheduler, tenants=ADMINISTERED)
    for key in ("root", "key-b-admin"):
        assert await ask(served, name, bearer(key)) is not None
    assert (await refused(ask(served, name, bearer("key-b")))).code == DENIED


async def test_health_and_reflection_need_no_key(keyed: Served):
    health = health_pb2_grpc.HealthStub(keyed.channel)
    reply = await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(keyed.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async for listed in stub.ServerReflectionInfo(iter([request])):
        assert len(listed.list_services_response.service) > 3


async def test_a_stranger_learns_nothing_of_bad_requests(keyed: Served):
    call = keyed.channel.unary_unary("/radixd.v1.InferenceService/GenerateUnary")(b"\xff\xff")
    assert (await refused(call)).code == UNAUTHENTICATED


async def test_without_keys_everybody_is_nobody_in_particular(
    serve: Serve, scheduler: OperatorScheduler
):
    shares = Tenants(shares={"a": TenantShares()}, by_key_digest={})
    served = await serve(scheduler=scheduler, tenants=shares)
    await ask(served, "inference.GenerateUnary", bearer("key-a"))
    await ask(served, "inference.GenerateUnary")
    await ask(served, "admin.FlushCache")
    assert [submit.tenant for submit in scheduler.seen.submits] == ["", ""]


async def test_the_tenant_is_the_keys(serve: Serve, scheduler: OperatorScheduler):
    served = await serve(scheduler=scheduler, tenants=ADMINISTERED)
    for key, tenant in (("key-a", "a"), ("key-b", "b"), ("root", ""), ("key-b-admin", "b")):
        for name in ("inference.GenerateUnary", "admin.Preheat"):
            await ask(served, name, bearer(key))
            assert scheduler.seen.submits[-1].tenant == tenant, (key, name)
        stream = served.inference.Generate(
            CALLS["inference.Generate"], metadata=(bearer(key),), timeout=10
        )
        assert "".join([message.text async for message in stream]) == "ok"
        assert scheduler.seen.submits[-1].tenant == tenant


# field case 14
async def test_a_tenants_prefix_is_warm_for_itself_alone(serve: Serve):
    warm: set[tuple[str, str, bytes]] = set()

    class Cache(OperatorScheduler):
        """Its cache is one of namespaces, as the real one is."""

        async def _generate(self, submit: internal.Submit, outbox: Any) -> None:
            key = (submit.tenant, submit.cache_domain, submit.prompt_ids)
            self.behavior.cached_tokens = 63 if key in warm else 0
            warm.add(key)
            await super()._generate(submit, outbox)

    served = await serve(scheduler=Cache(), tenants=KEYED)

    async def cached(key: str, domain: str | None = None) -> int:
        request = inference_pb2.GenerateUnaryRequest(
            text="p" * 64,
            cache_domain=domain,
            sampling=inference_pb2.SamplingParams(max_tokens=1),
        )
        reply = await served.inference.GenerateUnary(request, metadata=(bearer(key),), timeout=10)
        return int(reply.usage.cached_tokens)

    assert await cached("key-a") == 0
    assert await cached("key-b") == 0
    assert await cached("key-a") == 63
    # No domain a caller may name leads to another tenant's prefixes.
    assert await cached("key-a", "d") == 0
    assert [await cached("key-b", domain) for domain in ("d", "a", "a/d", "a\0d")] == [0] * 4


async def test_admin_questions_are_about_the_tenants_own(
    serve: Serve, scheduler: OperatorScheduler
):
    served = await serve(scheduler=scheduler, tenants=ADMINISTERED)
    names = (
        *("admin.ListPins", "admin.Unpin", "admin.ListRequests", "admin.Explain"),
        *("admin.ListSessions", "admin.CloseSession"),
    )
    for key, tenant in (("key-a", "a"), ("root", None), ("key-b-admin", None)):
        scheduler.asked.clear()
        for name in names:
            await ask(served, name, bearer(key))
        seen = [(q.tenant if q.HasField("tenant") else None) for q in scheduler.asked]
        assert seen == [tenant] * len(names), key
    scheduler.asked.clear()
    question = admin_pb2.ListRequestsRequest(tenant="b")
    call = served.admin.ListRequests(question, metadata=(bearer("key-a"),))
    assert (await refused(call)).code == DENIED
    closing = admin_pb2.CloseSessionRequest(session="mine", tenant="b")
    call = served.admin.CloseSession(closing, metadata=(bearer("key-a"),))
    assert (await refused(call)).code == DENIED
    assert scheduler.asked == []
    await served.admin.ListRequests(question, metadata=(bearer("key-b"),))
    await served.admin.ListRequests(question, metadata=(bearer("root"),))
    assert [q.tenant for q in scheduler.asked] == ["b", "b"]


@pytest.mark.parametrize("name", ["admin.GetStats", "admin.WatchStats"])
async def test_books_of_other_tenants_are_left_out(
    serve: Serve, scheduler: OperatorScheduler, name: str
):
    for tenant in ("", "a", "b"):
        scheduler.books.tenants[tenant].held_slots = 1
    served = await serve(scheduler=scheduler, tenants=ADMINISTERED)
    seen = {}
    # One after the other within the time that answers are shared.
    for key in ("root", "key-a", "key-b", "root"):
        reply = await ask(served, name, bearer(key))
        seen[key] = set(getattr(reply, "stats", reply).tenants)
    assert seen == {"root": {"", "a", "b"}, "key-a": {"a"}, "key-b": {"b"}}


async def test_nobody_cancels_or_explains_anothers_request(
    serve: Serve, scheduler: OperatorScheduler
):
    served = await serve(scheduler=scheduler, tenants=ADMINISTERED)
    scheduler.behavior.num_before_hold = 1
    request = inference_pb2.GenerateUnaryRequest(request_id="r", tokens=script("abc"))
    call = served.inference.GenerateUnary(request, metadata=(bearer("key-a"),), timeout=20)
    running = asyncio.ensure_future(call)
    await wait_until(lambda: bool(scheduler.seen.running))
    # As if there were none.
    got = await refused(ask(served, "inference.Cancel", bearer("key-b")))
    assert got.code == grpc.StatusCode.NOT_FOUND
    assert got.message == "request_id: no request with the id 'r' is live"
    summary = (await ask(served, "admin.Explain", bearer("key-b"))).summary
    assert summary == "of r"  # the scheduler looks among b's
    (wire_id,) = scheduler.seen.running
    scheduler.victims = ["other", "r", "another"]
    for key, victims in (("key-a", ["r"]), ("key-b", []), ("root", scheduler.victims)):
        reply = await ask(served, "admin.Explain", bearer(key))
        assert [victim.request_id for victim in reply.victims] == victims
    for key in ("key-a", "root"):
        assert (await ask(served, "admin.Explain", bearer(key))).summary == f"of {wire_id}"
    assert not running.done()
    await ask(served, "inference.Cancel", bearer("key-a"))
    reply = await running
    assert reply.finish_reason == inference_pb2.FINISH_REASON_CANCELLED


async def test_a_request_that_has_not_started_is_its_tenants_too(
    keyed: Served, scheduler: OperatorScheduler
):
    scheduler.set_worker(connected=False)
    await wait_until(lambda: not keyed.front.link.is_ready)
    request = inference_pb2.GenerateUnaryRequest(request_id="r", tokens=script("abc"))
    call = keyed.inference.GenerateUnary(request, metadata=(bearer("key-a"),), timeout=20)
    running = asyncio.ensure_future(refused(call))
    await wait_until(lambda: len(keyed.front.live) == 1)
    reply = await ask(keyed, "admin.Explain", bearer("key-a"))
    assert (reply.request.tenant, scheduler.asked) == ("a", [])
    assert (await ask(keyed, "admin.Explain", bearer("key-b"))).summary == "of r"
    got = await refused(ask(keyed, "inference.Cancel", bearer("key-b")))
    assert got.code == grpc.StatusCode.NOT_FOUND
    await ask(keyed, "inference.Cancel", bearer("key-a"))
    assert (await running).code == grpc.StatusCode.CANCELLED
