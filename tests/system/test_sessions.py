"""Conversations with a session on a pool that a flood of other prompts overruns."""

import asyncio

import grpc
import pytest

from protos.radixd.v1 import admin_pb2
from tests.system.ask import Running, cached, ids, refused, request, until, whole
from tests.system.keys import ACME, OTHER, ROOT, write_tenants
from tests.system.stack import FAKE, Client, launched
from tokenizer_svc.tokenizers.byte_tokenizer import GO, SCRIPT

SLOTS = 600


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    file = write_tenants(tmp_path_factory.mktemp("tenants") / "tenants.yaml")
    with launched(
        *("--fake-worker", "--kv-slots", str(SLOTS), "--max-running", "4"),
        *("--session-ttl-s", "5", "--tenants", str(file)),
    ) as running:
        yield running


@pytest.fixture
async def client(stack):
    async with Client(stack.address) as connected:
        yield connected
        for options in (ACME, OTHER):
            for name in await sessions(connected, **options):
                await close(connected, name, **options)
        await connected.admin.FlushCache(admin_pb2.FlushCacheRequest(), timeout=10, **ROOT)


async def turn(client, prompt, max_tokens=8, session="s", **options):
    """One turn: its answer and how much of its prompt was cached."""
    answer = await whole(client, request(prompt, max_tokens, session=session), **(options or ACME))
    assert list(answer.token_ids) == FAKE.generate(prompt, max_tokens, ignore_eos=True)
    return [*prompt, *answer.token_ids], answer.usage.cached_tokens


async def flood(client, seed):
    """Twice the pool, none of it asked for twice."""
    prompts = [ids(60, f"{seed}{n}") for n in range(2 * SLOTS // 60)]
    for first in range(0, len(prompts), 4):
        some = prompts[first : first + 4]
        await asyncio.gather(*(cached(client, prompt, **ACME) for prompt in some))


async def sessions(client, **options):
    answer = await client.admin.ListSessions(
        admin_pb2.ListSessionsRequest(), timeout=10, **(options or ACME)
    )
    return {session.session: session for session in answer.sessions}


async def close(client, session, **options):
    closing = admin_pb2.CloseSessionRequest(session=session)
    return (await client.admin.CloseSession(closing, timeout=10, **(options or ACME))).found


async def test_each_turn_finds_the_one_before_until_its_session_is_closed(client):
    so_far = ids(60, "conversation")
    loose, _ = await turn(client, ids(60, "loose"), session="closed at once")
    assert await close(client, "closed at once")
    for n in range(3):
        before = so_far
        so_far, num_cached = await turn(client, so_far + ids(10, f"says {n}"))
        assert num_cached == (len(before) - 1 if n else 0)
        await flood(client, n)
    (session,) = (await sessions(client)).values()
    assert (session.num_turns, session.hits, session.tenant) == (3, 2, "acme")
    assert session.kept_tokens == session.num_tokens == len(so_far) - 1
    assert 0 < session.expires_in_ms <= 5000
    assert await cached(client, [*loose, 97], **ACME) < 5
    assert await close(client, "s")
    assert not await close(client, "s")
    await flood(client, "after")
    assert await cached(client, [*so_far, 97], **ACME) < 5


async def test_a_session_that_nobody_returns_to_ends(client):
    so_far, _ = await turn(client, ids(60, "left"))

    async def is_gone():
        return not await sessions(client)

    await until(is_gone, "its time passes", within_s=15)
    await flood(client, "expired")
    assert await cached(client, [*so_far, 97], **ACME) < 5


async def test_of_several_choices_the_first_is_kept(client):
    prompt = ids(60, "choices")
    sampling = {"temperature": 1, "seed": 5}
    asked = request(prompt, 20, n=3, session="s", sampling=sampling)
    first = []
    async for piece in client.inference.Generate(asked, timeout=50, **ACME):
        first += piece.token_ids if piece.choice == 0 else ()
    assert (await sessions(client))["s"].num_turns == 1
    await flood(client, "choices")
    assert await cached(client, [*prompt, *first, 97], **ACME) == len(prompt) + 19


async def test_a_stop_text_ends_a_turn_like_any(client):
    prompt = [SCRIPT, *b"one two three four", GO]
    asked = request(prompt, 50, session="s", sampling={"stop": ["three"]})
    answer = await whole(client, asked, **ACME)
    assert answer.text == "one two "
    kept = [*prompt, *b"one two "]
    await flood(client, "stop")
    assert await cached(client, [*kept, 97], **ACME) == len(kept)


async def test_an_abandoned_turn_changes_no_answer(client):  # field case 57
    so_far, _ = await turn(client, ids(40, "abandoned"))
    running = await Running(client, request(so_far, 400, session="s"), **ACME).began(4)
    running.leave()
    pieces = await running
    said = [token for piece in pieces for token in piece.token_ids][:4]
    _, num_cached = await turn(client, [*so_far, *said, 120])
    assert num_cached >= len(so_far) - 1
    assert (await sessions(client))["s"].num_turns == 2


async def test_a_turn_given_up_in_the_queue_leaves_nothing(client):  # field case 56
    long = [
        await Running(client, request(ids(30, f"long {n}"), 100), **ACME).began() for n in range(4)
    ]
    queued = Running(client, request(ids(30, "queued"), 10, session="s"), **ACME)

    async def waits():
        return (await client.admin.GetStats(admin_pb2.GetStatsRequest(), **ROOT)).requests.waiting

    await until(waits, "it waits")
    queued.leave()
    assert not await queued
    for other in long:
        other.leave()
        await other
    assert not await sessions(client)
    await turn(client, ids(30, "queued"))
    assert (await sessions(client))["s"].num_turns == 1


async def test_an_empty_turn_is_followed_by_another(client):  # field case 96
    asked = request([SCRIPT, GO], 10, session="s", sampling={"ignore_eos": False})
    answer = await whole(client, asked, **ACME)
    assert answer.text == ""
    await turn(client, [SCRIPT, GO, *answer.token_ids, *ids(9)])
    assert (await sessions(client))["s"].num_turns == 2


async def test_nobody_sees_or_closes_anothers(client):
    prompt = ids(50, "secret")
    for options in (ACME, OTHER):
        assert (await turn(client, prompt, **options))[1] == 0
    assert [s.tenant for s in (await sessions(client, **OTHER)).values()] == ["other"]
    of_all = await client.admin.ListSessions(admin_pb2.ListSessionsRequest(), **ROOT)
    assert [s.tenant for s in of_all.sessions] == ["acme", "other"]
    with refused(grpc.StatusCode.PERMISSION_DENIED, "tenant"):
        closing = admin_pb2.CloseSessionRequest(session="s", tenant="acme")
        await client.admin.CloseSession(closing, timeout=10, **OTHER)
    assert await close(client, "s", **OTHER)
    assert not await close(client, "s", **OTHER)
    assert await sessions(client)


async def test_a_session_with_no_store_is_refused(client):
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "session", "no_store"):
        await whole(client, request(ids(9), 3, session="s", no_store=True), **ACME)
    assert not await sessions(client)
