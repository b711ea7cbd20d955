"""Preheats and pins on a pool that a flood of other prompts overruns."""

import asyncio

import pytest

from protos.radixd.v1 import admin_pb2
from tests.system.ask import cached, ids, preheat, request, until, whole
from tests.system.stack import FAKE, Client, launched

SLOTS = 600
SOFT, HARD = admin_pb2.PIN_LEVEL_SOFT, admin_pb2.PIN_LEVEL_HARD


@pytest.fixture(scope="module")
def stack():
    with launched("--fake-worker", "--kv-slots", str(SLOTS)) as running:
        yield running


@pytest.fixture
async def client(stack):
    async with Client(stack.address) as connected:
        yield connected
        await connected.admin.FlushCache(admin_pb2.FlushCacheRequest())


async def pins(client):
    return (await client.admin.ListPins(admin_pb2.ListPinsRequest(), timeout=10)).pins


async def unpin(client, **which):
    return await client.admin.Unpin(admin_pb2.UnpinRequest(**which), timeout=10)


async def flood(client, seed):
    """Four times the pool, none of it asked for twice; five at once, for whom there is room beside
    what is pinned."""
    before = (await client.stats()).tokens.evicted
    prompts = [ids(60, f"{seed}{n}") for n in range(4 * SLOTS // 60)]
    for first in range(0, len(prompts), 5):
        await asyncio.gather(*(cached(client, prompt) for prompt in prompts[first : first + 5]))
    assert (await client.stats()).tokens.evicted - before >= 2 * SLOTS


async def test_pinned_prefixes_outlive_a_flood(client):
    hard, soft, loose = (ids(100, kind) for kind in ("hard", "soft", "loose"))
    for prompt, options in ((hard, {"pin": HARD}), (soft, {"pin": SOFT}), (loose, {})):
        warm = await preheat(client, prompt, **options)
        assert (warm.num_tokens, warm.computed_tokens) == (100, 100)
        assert bool(warm.pin_id) == bool(options)
        assert warm.pinned_tokens == (100 if options else 0)
        assert not warm.pin_error
    assert (await client.stats()).economy.pinned_slots == 100, "of hard pins"
    await flood(client, "a")
    kept = [await cached(client, [*prompt, 97]) for prompt in (hard, soft, loose)]
    assert kept == [100, 100, 0]
    # As much as the pool holds beside the hard pin, but ten: now the soft one has to give way.
    large = ids(SLOTS - 110, "large")
    answer = await whole(client, request(large, 2))
    assert list(answer.token_ids) == FAKE.generate(large, 2)
    kept_tokens = [pin.kept_tokens for pin in await pins(client)]
    assert kept_tokens[0] == 100
    assert kept_tokens[1] <= 10
    kept = [await cached(client, [*prompt, 97]) for prompt in (hard, soft)]
    assert kept == kept_tokens


async def test_what_is_unpinned_goes_like_anything_else(client):
    prompts = [ids(50, f"unpin{n}") for n in range(3)]
    given = [(await preheat(client, prompt, pin=HARD)).pin_id for prompt in prompts]
    answer = await unpin(client, pin_ids=[given[1], "pin-of-nobody"])
    assert (list(answer.removed), list(answer.unknown)) == ([given[1]], ["pin-of-nobody"])
    assert [pin.pin_id for pin in await pins(client)] == [given[0], given[2]]
    await flood(client, "b")
    kept = [await cached(client, [*prompt, 97]) for prompt in prompts]
    assert kept == [50, 0, 50]
    answer = await unpin(client, all=True)
    assert list(answer.removed) == [given[0], given[2]]
    assert not await pins(client)
    assert (await client.idle()).economy.pinned_slots == 0


async def test_a_pin_is_listed_with_what_it_keeps(client):
    text = "You are terse. " * 3
    asked = admin_pb2.PreheatRequest(
        prefixes=[text], pin=SOFT, ttl_ms=60_000, cache_domain="prompts"
    )
    (warm,) = (await client.admin.Preheat(asked, timeout=10)).prefixes
    (pin,) = await pins(client)
    assert (pin.pin_id, pin.level, pin.cache_domain) == (warm.pin_id, SOFT, "prompts")
    assert (pin.num_tokens, pin.kept_tokens, pin.hits) == (45, 45, 0)
    assert text.startswith(pin.text)
    assert list(pin.first_token_ids) == list(text.encode())[: len(pin.first_token_ids)]
    assert 0 < pin.expires_in_ms <= 60_000
    # The same again is the same pin.
    (again,) = (await client.admin.Preheat(asked, timeout=10)).prefixes
    assert (again.pin_id, again.cached_tokens, again.computed_tokens) == (warm.pin_id, 45, 0)


async def test_a_hit_renews_the_time_of_a_pin(client):
    prompt = ids(40, "renewed")
    await preheat(client, prompt, pin=HARD, ttl_ms=60_000)
    await asyncio.sleep(0.05)
    (aged,) = await pins(client)
    assert await cached(client, [*prompt, 98]) == 40
    (renewed,) = await pins(client)
    assert renewed.expires_in_ms > aged.expires_in_ms
    assert (aged.hits, renewed.hits) == (0, 1)


async def test_a_pin_ends_with_its_time_and_its_prefix_stays(client):
    brief, lasting = ids(40, "brief"), ids(40, "lasting")
    await preheat(client, lasting, pin=HARD)
    await preheat(client, brief, pin=HARD, ttl_ms=250)

    async def gone():
        return len(await pins(client)) == 1

    assert len(await pins(client)) == 2
    await until(gone, "the pin has expired")
    (left,) = await pins(client)
    assert not left.HasField("expires_in_ms")
    assert await cached(client, [*brief, 98]) == 40
    await flood(client, "c")
    assert await cached(client, [*brief, 97]) == 0
    assert await cached(client, [*lasting, 97]) == 40


async def test_the_budget_of_pins_bounds_hard_ones(client):
    prompt = ids(400, "budget")
    warm = await preheat(client, prompt, pin=HARD)
    assert warm.pinned_tokens == SLOTS // 2, "half of the pool, unless told otherwise"
    assert "budget" in warm.pin_error
    more = await preheat(client, ids(50, "more"), pin=HARD)
    assert (more.pin_id, more.pinned_tokens) == ("", 0)
    assert "budget" in more.pin_error
    assert (await preheat(client, ids(50, "soft"), pin=SOFT)).pinned_tokens == 50
    assert await cached(client, [*prompt, 97]) == 400, "warm it is all the same"


async def test_a_flush_drops_the_pins(client):
    prompt = ids(50, "flushed")
    await preheat(client, prompt, pin=HARD)
    await preheat(client, ids(50, "flushed too"), pin=SOFT)
    answer = await client.admin.FlushCache(admin_pb2.FlushCacheRequest())
    assert answer.flushed_tokens == 100
    assert not await pins(client)
    assert await cached(client, [*prompt, 97]) == 0
    stats = await client.stats()
    assert stats.slots.free + stats.slots.evictable == SLOTS
    assert stats.economy.pinned_slots == 0
