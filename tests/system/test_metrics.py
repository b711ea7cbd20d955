"""The books of a running server, as GetStats and Prometheus tell them, against a count by hand."""

import asyncio

import pytest

from protos.radixd.v1 import admin_pb2, inference_pb2
from tests.system.ask import Running, cached, ids, request, scrape, unary, until, whole
from tests.system.stack import FAKE, Client, launched
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, GO, SCRIPT

SLOTS = 65_536


@pytest.fixture(scope="module")
def stack():
    with launched(
        *("--fake-worker", "--kv-slots", str(SLOTS), "--metrics-port", "0"),
        *("--chunk-size", "8", "--fake-step-ms", "0.5"),
    ) as running:
        yield running


@pytest.fixture
async def client(stack):
    async with Client(stack.address) as connected:
        await connected.admin.FlushCache(admin_pb2.FlushCacheRequest())
        yield connected
        await connected.idle()


class Difference:
    """What the Prometheus counters have gone up by since it was made."""

    def __init__(self, stack):
        self._stack = stack
        self._before = scrape(stack)

    def of(self, *names):
        """By the names without prefix and suffix."""
        after = scrape(self._stack)
        keys = [(f"radixd_{name}_total", "") for name in names]
        return tuple(int(after[key] - self._before[key]) for key in keys)


async def test_eight_hits_and_a_cold_request_last(client, stack):  # field case 142
    warm = ids(50, "warm")
    await cached(client, warm)
    await client.idle()
    difference = Difference(stack)
    assert [await cached(client, [*warm, 97 + n]) for n in range(8)] == [50] * 8
    assert await cached(client, ids(30, "cold")) == 0
    prompt, hit, computed = difference.of("prompt_tokens", "cached_tokens", "computed_tokens")
    assert (prompt, hit) == (8 * 51 + 30, 8 * 50)
    assert hit + computed == prompt, "each request counted once"


async def test_cold_half_and_full_to_the_token(client, stack):  # field case 143
    heads = [[n, *ids(39, f"head{n}")] for n in range(10)]  # apart from the first token on
    tails = [ids(40, f"tail{n}") for n in range(10)]
    both = [[*head, *tail] for head, tail in zip(heads, tails, strict=True)]
    difference = Difference(stack)
    found = [
        [await cached(client, prompt) for prompt in prompts] for prompts in (heads, both, both)
    ]
    assert found == [[0] * 10, [40] * 10, [79] * 10]
    counted = difference.of("prompt_tokens", "cached_tokens", "computed_tokens")
    assert counted == (2000, 1190, 810)
    stats = await client.stats()
    assert stats.economy.reuse_rate == stats.tokens.cached / stats.tokens.prompt


async def test_own_chunks_are_no_hits(client, stack):  # field case 144
    difference = Difference(stack)
    assert await cached(client, ids(40, "chunks")) == 0
    counted = difference.of("cached_tokens", "computed_tokens", "recomputed_tokens", "steps")
    assert counted == (0, 40, 0, 5), "in five chunks of eight"


async def test_nothing_stays_high_when_all_have_left(client, stack):  # field case 146
    difference = Difference(stack)
    # All of them fit at once, whatever the estimate of what they will need.
    streams = [Running(client, request(ids(20, f"l{n}"), 5000)) for n in range(50)]
    await asyncio.gather(*(stream.began(3) for stream in streams))
    books = scrape(stack)
    assert books["radixd_requests_running", ""] == 50
    held = books["radixd_slots", "private"] + books["radixd_slots", "locked"]
    assert held > 50 * 20, "each its prompt, less what two share, and the first tokens"
    assert books["radixd_context_tokens", ""] > 50 * 20
    for stream in streams:
        stream.leave()

    async def is_quiet():
        # Nobody asks anything but the scrape itself.
        seen = await asyncio.to_thread(scrape, stack)
        waiting = sum(value for (name, _), value in seen.items() if name.endswith("_waiting"))
        held = sum(seen["radixd_slots", owner] for owner in ("private", "locked", "in_flight"))
        return not seen["radixd_requests_running", ""] + waiting + held and seen

    # Of those who left, slots are held until the steps that were out are back.
    books = await until(is_quiet, "nothing runs, waits or is held")
    assert books["radixd_context_tokens", ""] == books["radixd_density", ""] == 0
    assert books["radixd_tenant_held_slots", ""] == 0
    assert difference.of("requests_submitted", "requests_cancelled") == (50, 50)
    await asyncio.gather(*streams)


def script(text):
    return [112, SCRIPT, *text.encode(), GO]


HELLO = script("hello, world.")
ENDINGS = {
    "length": (HELLO, 5, {}, "hello", inference_pb2.FINISH_REASON_LENGTH),
    "end of sequence": (HELLO, 50, {}, "hello, world.", inference_pb2.FINISH_REASON_STOP),
    "stop text": (HELLO, 50, {"stop": ["wor"]}, "hello, ", inference_pb2.FINISH_REASON_STOP),
    "stop token": (
        HELLO,
        50,
        {"stop_token_ids": [ord(",")]},
        "hello",
        inference_pb2.FINISH_REASON_STOP,
    ),
}
NUM_TOKENS = {"length": 5, "end of sequence": 14, "stop text": 10, "stop token": 6}


@pytest.mark.parametrize("name", ENDINGS)
async def test_usage_and_reason_are_the_same_both_ways(client, stack, name):  # field case 147
    prompt, max_tokens, sampling, text, reason = ENDINGS[name]
    message = request(prompt, max_tokens, sampling={"ignore_eos": False} | sampling)
    difference = Difference(stack)
    in_pieces = await whole(client, message)
    at_once = await client.inference.GenerateUnary(unary(message), timeout=20)
    for answer in (in_pieces, at_once):
        assert (answer.text, answer.finish_reason) == (text, reason)
        assert len(answer.token_ids) == answer.usage.completion_tokens == NUM_TOKENS[name]
        assert answer.usage.prompt_tokens == len(prompt)
        assert (answer.token_ids[-1] == EOS) == (name == "end of sequence")
    await client.idle()
    assert difference.of("requests_finished", "prompt_tokens") == (2, 2 * len(prompt))


async def test_what_was_cancelled_says_so_both_ways(client, stack):  # field case 147
    difference = Difference(stack)
    prompt = ids(10, "cancelled")
    stream = await Running(client, request(prompt, 5000, request_id="s")).began(4)
    message = unary(request(prompt, 5000, request_id="u"))
    at_once = asyncio.create_task(_reply(client.inference.GenerateUnary(message, timeout=20)))

    async def has_tokens():
        asked = admin_pb2.ListRequestsRequest()
        views = (await client.admin.ListRequests(asked, timeout=10)).requests
        return [view for view in views if view.request_id == "u" and view.output_tokens > 3]

    await until(has_tokens, "the unary request generates")
    for request_id in ("s", "u"):
        await client.inference.Cancel(inference_pb2.CancelRequest(request_id=request_id))
    pieces, answer = await stream, await at_once
    assert [piece.finish_reason for piece in pieces[:-1]] == [0] * (len(pieces) - 1)
    for last, token_ids in (
        (pieces[-1], [i for piece in pieces for i in piece.token_ids]),
        (answer, list(answer.token_ids)),
    ):
        assert last.finish_reason == inference_pb2.FINISH_REASON_CANCELLED
        assert last.usage.completion_tokens == len(token_ids) > 3
        assert token_ids == FAKE.generate(prompt, len(token_ids))
    await client.idle()
    assert difference.of("requests_cancelled", "requests_finished") == (2, 0)


async def _reply(call):
    return await call


async def test_prometheus_and_get_stats_say_the_same(client, stack):
    shared = ids(60, "shared")
    await asyncio.gather(
        *(cached(client, [*shared, *ids(5, n)], workload="chat") for n in range(10)),
        whole(client, request(ids(12, "long"), 40)),
    )
    stats = await client.idle()
    books = scrape(stack)
    named = {
        "requests_submitted": stats.requests.submitted,
        "requests_finished": stats.requests.finished,
        "requests_rejected": stats.requests.rejected,
        "requests_cancelled": stats.requests.cancelled,
        "requests_expired": stats.requests.expired,
        "requests_failed": stats.requests.failed,
        "retractions": stats.requests.retractions,
        "prompt_tokens": stats.tokens.prompt,
        "cached_tokens": stats.tokens.cached,
        "generated_tokens": stats.tokens.generated,
        "computed_tokens": stats.tokens.computed,
        "recomputed_tokens": stats.tokens.recomputed,
        "preheated_tokens": stats.tokens.preheated,
        "evicted_tokens": stats.tokens.evicted,
        "freed_slots": stats.economy.freed_slots,
        "steps": stats.num_steps,
    }
    assert {name: books[f"radixd_{name}_total", ""] for name in named} == named
    for owner in ("free", "private", "evictable", "locked", "in_flight"):
        assert books["radixd_slots", owner] == getattr(stats.slots, owner)
    assert books["radixd_pool_slots", ""] == stats.slots.total == SLOTS
    assert books["radixd_tree_nodes", ""] == stats.slots.num_tree_nodes > 0
    assert books["radixd_reuse_rate", ""] == pytest.approx(stats.economy.reuse_rate)
    assert stats.economy.reuse_rate > 0
    tenant = stats.tenants[""]
    assert books["radixd_tenant_prompt_tokens_total", ""] == tenant.prompt_tokens
    assert tenant.prompt_tokens == stats.tokens.prompt
    gaps = stats.histograms["reuse_gap_ms"]
    assert books["radixd_reuse_gap_seconds_count", ""] == sum(gaps.counts) > 0
    assert books["radixd_reuse_gap_seconds_sum", ""] == pytest.approx(gaps.sum / 1000)
    reasons = {name.lower(): count for name, count in stats.waiting_by_reason.items()}
    assert {key[1] for key in books if key[0] == "radixd_requests_waiting"} == set(reasons)


async def test_watched_books_move_with_the_traffic(client):
    watch = client.admin.WatchStats(admin_pb2.WatchStatsRequest(interval_ms=100), timeout=30)
    first = (await watch.read()).stats
    stream = await Running(client, request(ids(10, "watched"), 3000)).began(2)
    while not (seen := (await watch.read()).stats).requests.running:
        pass
    assert seen.tokens.generated > first.tokens.generated
    assert seen.economy.context_tokens >= 10
    stream.leave()
    while (await watch.read()).stats.requests.running:
        pass
    watch.cancel()
    await stream
