"""`radixd bench --profile`: its arithmetic, what it says where nobody measured, a whole stack."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from protos.radixd.v1 import admin_pb2
from radixd.bench.profile import WORKER_PHASES, notes, profile_report
from radixd.cli.app import main
from radixd.cli.client import CommandError
from tests.cli.fake_server import FakeServer

MS = 1_000_000


def profile(**sums: int) -> admin_pb2.StepProfile:
    """Decode steps with these sums."""
    return admin_pb2.StepProfile(decode=admin_pb2.StepSums(**sums))


BEFORE = profile(num_steps=5, num_phased_steps=5, num_rows=5, busy_ns=50 * MS, products_ns=20 * MS)
AFTER = admin_pb2.StepProfile(
    decode=admin_pb2.StepSums(
        num_steps=15,
        num_phased_steps=15,
        num_rows=45,
        num_tokens=60,
        num_sampled=30,
        busy_ns=150 * MS,
        products_ns=60 * MS,
        attention_ns=20 * MS,
        forward_rest_ns=10 * MS,
        sampling_ns=8 * MS,
        worker_rest_ns=5 * MS,
        schedule_ns=3 * MS,
        apply_ns=2 * MS,
    ),
    prompt=admin_pb2.StepSums(
        num_steps=2, num_phased_steps=2, num_rows=2, num_tokens=400, busy_ns=60 * MS
    ),
)


def test_differences_means_and_shares() -> None:
    report = profile_report("w2", BEFORE, AFTER, 0.2)
    decode = report["decode"]
    assert (decode["num_steps"], decode["mean_rows"], decode["mean_sampled"]) == (10, 4.0, 3.0)
    assert (decode["computed_tok_s"], decode["sampled_tok_s"]) == (600.0, 300.0)
    assert {name: phase["ms"] for name, phase in decode["phases"].items()} == {
        "products": 4.0,
        "attention": 2.0,
        "forward_rest": 1.0,
        "sampling": 0.8,
        "worker_rest": 0.5,
        "wire": 1.7,
        "busy": 10.0,
        "outside_forward": 3.0,
        "schedule": 0.3,
        "apply": 0.2,
    }
    assert decode["phases"]["products"]["share"] == 0.2
    parts = [decode["phases"][name] for name in (*WORKER_PHASES, "wire")]
    assert sum(part["ms"] for part in parts) == pytest.approx(decode["phases"]["busy"]["ms"])
    prompt = report["prompt"]
    assert (prompt["mean_tokens"], prompt["sampled_tok_s"]) == (200.0, 0.0)
    assert prompt["computed_tok_s"] == pytest.approx(6666.667)
    shares = decode["phases"]["busy"]["share"] + prompt["phases"]["busy"]["share"]
    assert (shares, report["idle_share"], report["idle_s"]) == (0.8, 0.2, 0.04)
    assert notes(report) == []


def test_a_kind_of_steps_that_never_came() -> None:
    report = profile_report("w2", BEFORE, profile(num_steps=6, busy_ns=60 * MS), 0.1)
    assert report["prompt"]["num_steps"] == 0
    assert report["prompt"]["mean_rows"] is None
    assert report["prompt"]["phases"]["busy"] == {"ms": None, "share": None}


def test_a_worker_without_phases_says_so() -> None:
    report = profile_report("w2", profile(), profile(num_steps=4, busy_ns=8 * MS), 0.01)
    phases = report["decode"]["phases"]
    assert phases["busy"] == {"ms": 2.0, "share": 0.8}
    assert phases["products"] == phases["wire"] == {"ms": None, "share": None}
    assert "measures no phases" in notes(report)[0]


def test_a_worker_with_one_phase_for_the_forward_pass_says_so() -> None:
    after = profile(num_steps=4, num_phased_steps=4, busy_ns=8 * MS, forward_rest_ns=6 * MS)
    assert "does not tell products" in notes(profile_report("w2", profile(), after, 0.01))[0]
    after.decode.num_phased_steps = 3
    assert "Not every step" in notes(profile_report("w2", profile(), after, 0.01))[0]


def test_clocks_that_differ_by_a_hair_make_nothing_negative() -> None:
    after = profile(num_steps=1, num_phased_steps=1, busy_ns=9 * MS, products_ns=10 * MS)
    report = profile_report("w2", profile(), after, 0.008)
    assert report["idle_s"] == report["decode"]["phases"]["wire"]["ms"] == 0.0


def test_a_server_that_tells_nothing() -> None:
    with pytest.raises(CommandError, match="tells nothing of its steps"):
        profile_report("w2", AFTER, AFTER, 1.0)


def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        answer = server.inference._fixed_length

        def answer_and_count(request: Any) -> Iterator[Any]:
            server.admin.stats.step_profile.decode.num_steps += 4
            server.admin.stats.step_profile.decode.busy_ns += 8 * MS
            return answer(request)

        server.inference._fixed_length = answer_and_count  # type: ignore[method-assign]
        assert main(["bench", "--workload", "w1", "--profile", "--target", server.target]) == 0
        assert server.admin.num_flushes == 1
    text = capsys.readouterr().out
    (busy,) = [line for line in text.splitlines() if "busy: sum" in line]
    assert "2.000" in busy
    assert "measures no phases" in text


@pytest.mark.parametrize("argv", [["--runs", "2"], ["--vs", "http://127.0.0.1:1"]])
def test_a_profile_is_of_one_run_of_ours(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--workload", "w1", "--profile", *argv]) == 1
    assert "--profile plays once" in capsys.readouterr().err


def test_a_whole_stack_tells_where_its_time_went(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--workload", "w2", "--profile", "--json", "--fake-worker"]
    assert main([*argv, "--fake-step-ms", "1", "--metrics-port", "-1"]) == 0
    value = json.loads(capsys.readouterr().out)
    decode, prompt = value["decode"], value["prompt"]
    sampled = round(sum(k["mean_sampled"] * k["num_steps"] for k in (decode, prompt)))
    computed = round(sum(k["mean_tokens"] * k["num_steps"] for k in (decode, prompt)))
    # A step that was planned before the last token came may be answered after the books were told.
    assert 16 * 128 <= sampled <= 16 * 128 + 64
    assert computed >= 16 * 127
    assert prompt["mean_tokens"] > prompt["mean_rows"] >= 1
    assert decode["phases"]["busy"]["ms"] >= 1.0
    shares = [kind["phases"]["busy"]["share"] for kind in (decode, prompt)]
    assert sum(shares) + value["idle_share"] == pytest.approx(1.0, abs=0.01)
    assert decode["phases"]["schedule"]["ms"] > 0
    assert value["machine"]["cores"] >= 1
