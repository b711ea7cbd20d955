"""The player and the command, against a server that generates by the clock."""

import itertools
import json
import sys

import grpc
import pytest

from radixd.bench.figures import first_token_s, gaps_s
from radixd.bench.machine import describe_machine
from radixd.bench.player import play
from radixd.bench.workload import BenchRequest, Workload
from radixd.chassis.setting_sources import API_KEY_VARIABLE
from radixd.cli.app import main
from radixd.cli.client import CommandError
from tests.cli.fake_server import FakeServer

KEYS = {
    "workload",
    "wall_s",
    "out_tok_s",
    "ttft_s",
    "short_ttft_s",
    "itl_s",
    "cached_tokens",
    "peak_rss_bytes",
    "machine",
}


def workload(num_requests: int, *, concurrency: int, arrival_s: float = 0.0) -> Workload:
    requests = tuple(
        BenchRequest(id=f"r{n}", arrival_s=arrival_s, prompt_token_ids=(n, 1), max_tokens=5)
        for n in range(num_requests)
    )
    return Workload(name="w2", concurrency=concurrency, requests=requests)


async def test_arrivals_are_written_down() -> None:
    seen: list[int] = []
    with FakeServer() as server:
        server.inference.pause_s = 0.02
        traces = await play(workload(3, concurrency=3), server.target, seen.append)
        requests = server.inference.requests
    assert sum(seen) == 15
    for trace in traces:
        assert [k for _, k in trace.arrivals] == [2, 2, 1]
        assert first_token_s(trace) >= 0.02
        assert len(gaps_s(trace)) == 3
        assert trace.cached_tokens == 4
    assert sorted(list(r.tokens.ids) for r in requests) == [[0, 1], [1, 1], [2, 1]]
    for request in requests:
        assert request.sampling.ignore_eos
        assert request.sampling.HasField("temperature")
        assert request.sampling.temperature == 0.0


async def test_the_key_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "sk-bench")
    with FakeServer() as server:
        await play(workload(2, concurrency=1), server.target, lambda _: None)
        assert server.keys.seen == ["Bearer sk-bench"] * 2


async def test_a_key_that_is_given_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "sk-bench")
    with FakeServer() as server:
        await play(workload(1, concurrency=1), server.target, lambda _: None, api_key="sk-given")
        assert server.keys.seen == ["Bearer sk-given"]


async def test_concurrency_and_arrival_times_hold() -> None:
    with FakeServer() as server:
        server.inference.pause_s = 0.02
        work = workload(3, concurrency=1, arrival_s=0.1)
        traces = await play(work, server.target, lambda _: None)
    spans = sorted((trace.sent_s, trace.ended_s) for trace in traces)
    for (_, ended_s), (sent_s, _) in itertools.pairwise(spans):
        assert ended_s <= sent_s


async def test_a_failed_request_fails_the_run() -> None:
    with FakeServer() as server:
        server.inference.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "the pool is full", [])
        with pytest.raises(CommandError, match="the pool is full"):
            await play(workload(3, concurrency=3), server.target, lambda _: None)


async def test_an_answer_cut_short_fails_the_run() -> None:
    with FakeServer() as server:
        requests = (BenchRequest(id="r0", arrival_s=0.0, prompt_token_ids=(1,), max_tokens=0),)
        work = Workload(name="w1", concurrency=1, requests=requests)
        server.inference._fixed_length = lambda request: iter(())  # type: ignore[method-assign]
        work = workload(1, concurrency=1)
        with pytest.raises(CommandError, match="r0: 0 of 5 tokens came"):
            await play(work, server.target, lambda _: None)


def test_the_command_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        code = main(["bench", "--workload", "w4", "--json", "--target", server.target])
        assert server.admin.num_flushes == 1
    value = json.loads(capsys.readouterr().out)
    assert code == 0
    assert set(value) == KEYS
    assert (value["workload"], value["cached_tokens"]) == ("w4", 36)
    assert value["peak_rss_bytes"] == 3 << 20
    for name in ("ttft_s", "short_ttft_s", "itl_s"):
        assert set(value[name]) == {"p50", "p95"}


def test_several_runs_flush_before_each(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        argv = ["bench", "--workload", "w1", "--runs", "3", "--target", server.target]
        assert main([*argv, "--json"]) == 0
        value = json.loads(capsys.readouterr().out)
        assert set(value) == KEYS | {"runs"}
        assert server.admin.num_flushes == 3
        assert main(argv) == 0
        assert "output tokens/s" in capsys.readouterr().out


def test_a_server_without_worker_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        server.admin.stats.worker_connected = False
        assert main(["bench", "--workload", "w1", "--target", server.target]) == 1
    assert "the worker is away" in capsys.readouterr().err


def test_options_of_services_do_not_go_with_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--workload", "w1", "--target", "127.0.0.1:1", "--kv-slots", "9"]
    assert main(argv) == 1
    assert "--kv-slots: options of services" in capsys.readouterr().err


def test_machine() -> None:
    machine = describe_machine()
    assert set(machine) == {"cpu", "cores", "memory_bytes", "os", "python", "versions"}
    assert machine["cores"] >= 1
    assert machine["python"].startswith(f"{sys.version_info[0]}.")
