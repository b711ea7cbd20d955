"""`radixd pressure` against a server whose books say what the policy in force costs."""

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from protos.radixd.v1 import admin_pb2
from radixd.bench.pressure_figures import Sample, figures_of, report, tax_ratio
from radixd.bench.pressure_trace import STOP_TOKEN_IDS, num_clients
from radixd.cli.app import main
from tests.cli import fake_server
from tests.cli.fake_server import FakeAdmin, FakeServer

TAX = {"cost": 2, "lifo": 9}
"""Of a hundred tokens computed between two looks at the books."""


class Books(FakeAdmin):
    """Computes between two looks, again and again, by the policy in force."""

    def GetStats(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A hundred tokens more."""
        tokens, requests = self.stats.tokens, self.stats.requests
        tokens.computed += 100
        tokens.recomputed += TAX[self.policies.policies.retraction_policy]
        tokens.evicted += 7
        requests.retractions += 1
        return super().GetStats(request, context)


Serve = Callable[[], FakeServer]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Makes servers with Books, on which nobody else's requests are."""
    monkeypatch.setattr(fake_server, "FakeAdmin", Books)

    def make_server() -> FakeServer:
        server = FakeServer()
        server.admin.stats.requests.running = server.admin.stats.requests.waiting = 0
        server.admin.policies.policies.retraction_policy = "lifo"
        server.admin.policies.policies.retraction_keep = "all"
        server.inference.pause_s = 0.01
        return server

    return make_server


def test_one_run_under_the_policies_in_force(serve: Serve, capsys: Capture) -> None:
    with serve() as server:
        argv = ["pressure", "--seconds", "1", "--seed", "5", "--target", server.target]
        assert main([*argv, "--json"]) == 0
        asked = server.inference.requests
        assert server.admin.num_flushes == 1
        assert not server.admin.asked, "no policy was set"
    value = json.loads(capsys.readouterr().out)
    assert (value["seed"], value["slots"], value["demand"]) == (5, 100, 2.0)
    assert value["clients"] == num_clients(100) == 2
    assert "tax_ratio" not in value
    (run,) = value["runs"]
    assert (run["retraction_policy"], run["retraction_keep"]) == ("lifo", "all")
    assert run["recompute_tax"] == 0.09
    assert run["used_share_mean"] == run["used_share_max"] == 0.25
    assert run["volatility"] == 0.0
    assert run["wall_s"] >= 1.0
    assert run["output_tokens"] > 0
    assert 0.0 < run["longest_gap_s"] < run["wall_s"]
    assert run["endings"] == ({"length": run["requests"]} if run["requests"] else {})
    for request in asked:
        assert 50 <= len(request.tokens.ids) <= 600
        assert request.sampling.ignore_eos
        assert tuple(request.sampling.stop_token_ids) == STOP_TOKEN_IDS
        assert request.sampling.temperature == 0.0
        assert request.sampling.min_tokens <= 600


def test_compare_plays_the_same_under_both_and_restores(serve: Serve, capsys: Capture) -> None:
    with serve() as server:
        argv = ["pressure", "--seconds", "1", "--compare", "--target", server.target]
        assert main([*argv, "--json"]) == 0
        sets = [
            (request.policies.retraction_policy, request.policies.retraction_keep)
            for request in server.admin.asked
        ]
        assert sets == [("cost", "partial"), ("lifo", "none"), ("lifo", "all")]
        assert server.admin.num_flushes == 2
        value = json.loads(capsys.readouterr().out)
        prompts = [tuple(request.tokens.ids) for request in server.inference.requests]
        assert [prompts.count(prompt) for prompt in prompts[:2]] == [2, 2], "once in each run"
        assert main(argv) == 0
    assert [run["recompute_tax"] for run in value["runs"]] == [0.02, 0.09]
    assert value["tax_ratio"] == 4.5
    shown = capsys.readouterr().out
    assert "recompute tax 4.5 times as high" in shown
    assert "cost, partial" in shown
    assert "lifo, none" in shown


def test_policies_are_restored_after_a_failure(serve: Serve, capsys: Capture) -> None:
    with serve() as server:
        server.inference.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "no more of this", [])
        argv = ["pressure", "--seconds", "5", "--compare", "--target", server.target]
        assert main(argv) == 1
        assert server.admin.policies.policies.retraction_policy == "lifo"
        assert server.admin.policies.policies.retraction_keep == "all"
    assert "no more of this" in capsys.readouterr().err


def test_a_server_without_worker_is_not_measured(serve: Serve, capsys: Capture) -> None:
    with serve() as server:
        server.admin.stats.worker_connected = False
        assert main(["pressure", "--target", server.target]) == 1
    assert "the worker is away" in capsys.readouterr().err


def test_a_silent_stream_is_a_long_gap(serve: Serve, capsys: Capture) -> None:
    with serve() as server:
        server.inference.pause_s = 30.0  # no token ever comes
        argv = ["pressure", "--seconds", "1", "--json", "--target", server.target]
        assert main(argv) == 0
        server.inference.pause_s = 0.0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["longest_gap_s"] >= 1.0
    assert run["output_tokens"] == 0


def stats(**tokens: int) -> admin_pb2.GetStatsResponse:
    return admin_pb2.GetStatsResponse(tokens=admin_pb2.TokenCounters(**tokens))


def make(used: list[float], recomputed: int) -> Any:
    return figures_of(
        stats(computed=1000, recomputed=500),
        stats(computed=3000, recomputed=500 + recomputed),
        [Sample(float(at), share) for at, share in enumerate(used)],
        wall_s=4.0,
        num_tokens=100,
        longest_gap_s=0.5,
        endings={"stop": 3, "length": 1},
    )


def test_figures_are_differences_and_leave_the_warm_up_out() -> None:
    figures = make([0.0, *[0.8, 1.0] * 4, 0.9], 50)
    assert figures.recompute_tax == 50 / 2000
    assert figures.used_share_mean == pytest.approx(0.9)
    assert figures.used_share_max == 1.0
    assert figures.volatility == pytest.approx((8 * 0.01 / 9) ** 0.5)
    assert figures.out_tok_s == 25.0
    assert figures.requests == 4


def test_ratio() -> None:
    runs = [make([0.5], 50), make([0.5], 400)]
    assert tax_ratio(runs) == 8.0
    assert tax_ratio([make([0.5], 0), runs[1]]) is None
    assert report([make([0.5], 0), runs[1]])["tax_ratio"] is None
    assert "tax_ratio" not in report(runs[:1], seed=1)
