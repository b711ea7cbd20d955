"""The player of peers, against a server that counts its tokens in every way there is."""

from collections.abc import Iterator
from typing import Any

import pytest

from radixd.bench.figures import Trace, first_token_s
from radixd.bench.peer import Peer, find_model, parse_peers
from radixd.bench.peer_player import Answer, play_peer, spread
from radixd.bench.workload import BenchRequest, Workload
from radixd.cli.client import CommandError
from tests.bench_cmd.fake_peer import (
    MODEL,
    FakePeer,
    Say,
    choice,
    counts_in_timings,
    counts_in_usage,
    says_nothing_of_tokens,
    usage,
)


def a_peer(server: FakePeer) -> Peer:
    return Peer(name="other", url=server.url, model=MODEL)


def workload(num_requests: int = 1, max_tokens: int = 5) -> Workload:
    requests = tuple(
        BenchRequest(id=f"r{n}", arrival_s=0.0, prompt_token_ids=(n, 1), max_tokens=max_tokens)
        for n in range(num_requests)
    )
    return Workload(name="w2", concurrency=2, requests=requests)


async def traces_of(server: FakePeer, work: Workload) -> list[Trace]:
    return await play_peer(work, a_peer(server), lambda _: None)


@pytest.mark.parametrize(
    ("say", "tokens", "cached"),
    [
        (says_nothing_of_tokens, [1, 1, 1, 1, 1], None),
        (counts_in_usage, [2, 2, 1], 8),
        (counts_in_timings, [2, 1, 1, 1], 3),
    ],
)
async def test_tokens_of_each_chunk(say: Say, tokens: list[int], cached: int | None) -> None:
    with FakePeer(say) as server:
        server.pause_s = 0.01
        (trace,) = await traces_of(server, workload())
    assert [num_tokens for _, num_tokens in trace.arrivals] == tokens
    assert trace.cached_tokens == cached
    assert trace.num_prompt_tokens == 2
    assert first_token_s(trace) >= 0.01
    moments = [at_s for at_s, _ in trace.arrivals]
    assert moments == sorted(moments)
    assert trace.sent_s < moments[0] < moments[-1] <= trace.ended_s


async def test_what_is_asked() -> None:
    with FakePeer() as server:
        traces = await traces_of(server, workload(num_requests=4))
    assert len(traces) == 4
    assert sorted(body["prompt"] for body in server.requests) == [[0, 1], [1, 1], [2, 1], [3, 1]]
    body = server.requests[0]
    assert (body["model"], body["max_tokens"], body["temperature"]) == (MODEL, 5, 0.0)
    assert body["ignore_eos"] is body["stream"] is body["stream_options"]["include_usage"] is True


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakePeer() as server:
        assert await find_model(a_peer(server)) == MODEL
        assert len(await traces_of(server, workload())) == 1


@pytest.mark.parametrize(
    ("num_tokens", "num_chunks", "so_far"),
    [
        (4, 4, [1, 2, 3, 4]),
        (4, 5, [1, 2, 3, 4, 4]),
        (7, 3, [3, 5, 7]),
        (5, 1, [5]),
        (0, 0, []),
    ],
)
def test_tokens_nobody_counted_are_spread(
    num_tokens: int, num_chunks: int, so_far: list[int]
) -> None:
    assert spread(num_tokens, num_chunks) == so_far


@pytest.mark.parametrize(
    "so_far",
    [
        [1, None, 3],  # not in every chunk
        [2, 1, 3],  # not a count of what came so far
        [1, 2, 2],  # not what the usage says
    ],
)
def test_counts_that_cannot_be_are_not_believed(so_far: list[int | None]) -> None:
    answer = Answer(num_tokens=3, chunks=[(float(n), count) for n, count in enumerate(so_far)])
    assert answer.arrivals() == ((0.0, 1), (1.0, 1), (2.0, 1))


def without_usage(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for _ in range(body["max_tokens"]):
        yield choice("x")


def too_few(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield choice("x")
    yield choice("", usage=usage(1))


def error_midway(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield choice("x")
    yield {"error": {"code": 500, "message": "the context\nis full"}}


def no_objects(body: dict[str, Any]) -> Iterator[Any]:
    yield [1]


def usage_alone(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"choices": [], "usage": usage(body["max_tokens"])}


@pytest.mark.parametrize(
    ("say", "problem"),
    [
        (without_usage, "r0: it told no usage"),
        (too_few, "r0: 1 of 5 tokens came"),
        (error_midway, "r0: the context is full"),
        (no_objects, "r0: it sent a chunk that is no JSON object"),
        (usage_alone, "r0: it told a usage and sent nothing"),
    ],
)
async def test_answers_without_figures(say: Say, problem: str) -> None:
    with FakePeer(say) as server, pytest.raises(CommandError, match=problem) as error:
        await traces_of(server, workload())
    assert str(error.value).startswith(f"other at {server.url}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("breaks_after", [0, 3])
async def test_a_connection_closed_midway(breaks_after: int) -> None:
    with FakePeer() as server:
        server.breaks_after = breaks_after
        where = "in the middle of an answer" if breaks_after else "without an answer"
        with pytest.raises(CommandError, match=f"other at .*: r.: it went away {where}"):
            await traces_of(server, workload(num_requests=6))


async def test_a_stream_that_just_stops() -> None:
    with FakePeer() as server:
        server.says_done = False
        with pytest.raises(CommandError, match="r0: it went away in the middle of an answer"):
            await traces_of(server, workload())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"error": {"message": "prompt is too long", "code": 400}}, "prompt is too long"),
        ({"message": "no"}, "no"),
        ({"detail": "Not Found"}, "Not Found"),
    ],
)
async def test_a_refusal_is_told_with_its_status(value: dict[str, Any], text: str) -> None:
    with FakePeer() as server:
        server.refusal = (400, value)
        with pytest.raises(CommandError, match=f"r0: 400 Bad Request: {text}$"):
            await traces_of(server, workload())


async def test_what_is_no_stream_of_events_is_told() -> None:
    with FakePeer() as server:
        server.content_type = "application/json"
        with pytest.raises(CommandError, match=r"other at .*text/event-stream"):
            await traces_of(server, workload())


async def test_nobody_there() -> None:
    with FakePeer() as server:
        peer = a_peer(server)
    for call in (find_model(peer), play_peer(workload(), peer, lambda _: None)):
        with pytest.raises(CommandError, match=r"other at .*: nothing answers there|r0: nothing"):
            await call


@pytest.mark.parametrize("models", [{}, {"data": []}, [], {"data": [{"name": "x"}]}])
async def test_a_peer_without_models(models: Any) -> None:
    with FakePeer() as server:
        server.models = models
        with pytest.raises(CommandError, match=r"other at .*: /v1/models names no model"):
            await find_model(a_peer(server))


def test_peers_as_people_write_them() -> None:
    texts = ["a=http://127.0.0.1:8080", "http://peer.example:1/v1/", "b=http://[::1]:2"]
    peers = [(peer.name, peer.url) for peer in parse_peers(texts)]
    assert peers == [
        ("a", "http://127.0.0.1:8080"),
        ("peer.example:1", "http://peer.example:1"),
        ("b", "http://[::1]:2"),
    ]


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["127.0.0.1:8080"], r"--vs 127.0.0.1:8080: \[NAME=\]http://127.0.0.1:8080 was expected"),
        (["a="], r"http://127.0.0.1:8080 was expected"),
        (["a=http://"], r"http://127.0.0.1:8080 was expected"),
        (["a=http://localhost:port"], "--vs a=http://localhost:port: "),
        (["a=http://localhost:1/v2"], "give the address without a path"),
        (["a=http://localhost:1?x=1"], "give the address without a path"),
        (["a=http://localhost:1", "a=http://localhost:2"], "two are called a"),
        (["http://localhost:1", "http://localhost:1"], "two are called localhost:1"),
        (["radixd=http://localhost:1"], "two are called radixd"),
    ],
)
def test_peers_that_are_none(texts: list[str], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        parse_peers(texts)
