"""`explain`, `requests`, `pins` and `policy`: what they ask, show and print as JSON."""

import io
import json

import pytest
from rich.console import Console

from protos.radixd.v1 import admin_pb2, policy_pb2
from radixd.cli.pins import pins_table
from radixd.cli.policy import FIELDS, read_changes
from radixd.cli.requests import requests_table
from tests.cli.conftest import Run
from tests.cli.fake_server import FakeServer


def waiting_view() -> admin_pb2.RequestView:
    return admin_pb2.RequestView(
        request_id="r-1",
        tenant="acme",
        state=admin_pb2.REQUEST_STATE_WAITING,
        waiting_reason=admin_pb2.WAITING_REASON_NO_SLOTS,
        priority=3,
        workload="code",
        prompt_tokens=100,
        output_tokens=20,
        retractions=2,
        age_ms=65_000,
        deadline_in_ms=500,
    )


def explanation() -> admin_pb2.ExplainResponse:
    return admin_pb2.ExplainResponse(
        request=waiting_view(),
        summary="it needs 90 slots, and 40 are there",
        matched_tokens=30,
        rank=2,
        num_waiting=7,
        order_terms={"prefix": 30.0, "age": 65.5},
        needed_slots=90,
        promised_slots=12,
        available_slots=40,
        victims=[
            admin_pb2.VictimScore(request_id="r-9", score=[1, 2.5]),
            admin_pb2.VictimScore(request_id="r-1", score=[4]),
        ],
        history=[admin_pb2.HistoryEvent(ago_ms=4250, event="twin_held", detail="of [b]r-7")],
    )


def test_explain_for_people(server: FakeServer, run: Run) -> None:
    server.admin.explanation = explanation()
    ran = run("explain", "r-1", "--target", server.target)
    assert ran.code == 0, ran.err
    assert [request.request_id for request in server.admin.asked] == ["r-1"]
    for text in (
        "r-1  waiting: no slots",
        "it needs 90 slots, and 40 are there",
        "30 tokens, 90 to compute",
        "2 of 7 that wait",
        "90 needed, 12 promised to those that run, 40 available",
        "age 65.5, prefix 30",
        "1m05s, deadline in 500ms",
        "retracted   2 times",
        "3, workload code",
        "4.25s ago  twin held  of [b]r-7",
    ):
        assert text in ran.out, (text, ran.out)
    first, second = (line for line in ran.out.splitlines() if "│" in line and "r-" in line)
    assert ("r-9" in first, "1, 2.5" in first, "r-1" in second) == (True, True, True)


def test_explain_of_one_that_runs_or_has_ended(server: FakeServer, run: Run) -> None:
    view = admin_pb2.RequestView(request_id="r", state=admin_pb2.REQUEST_STATE_DECODE)
    server.admin.explanation = admin_pb2.ExplainResponse(request=view, summary="it decodes")
    shown = run("explain", "r", "--target", server.target).out
    assert "r  decode\n" in shown
    for absent in ("rank", "matched", "history", "cut back first", "retracted", "deadline"):
        assert absent not in shown
    view.retractions = 1
    server.admin.explanation = admin_pb2.ExplainResponse(request=view, summary="it decodes")
    assert "retracted  once" in run("explain", "r", "--target", server.target).out
    view.state, view.cached_tokens = admin_pb2.REQUEST_STATE_ENDED, 5
    server.admin.explanation = admin_pb2.ExplainResponse(request=view, ending="STOP")
    shown = run("explain", "r", "--target", server.target).out
    assert "r  ended\n" in shown
    assert "ended      stop" in shown
    assert "5 from the cache when admitted" in shown


def test_explain_as_json(server: FakeServer, run: Run) -> None:
    server.admin.explanation = explanation()
    value = json.loads(run("explain", "r-1", "--json", "--target", server.target).out)
    assert set(value) == {field.name for field in explanation().DESCRIPTOR.fields}
    assert value["request"]["waiting_reason"] == "no_slots"
    assert value["request"]["state"] == "waiting"
    assert "cached_tokens" not in value["request"]  # never admitted, and 0 would say otherwise
    assert value["request"]["deadline_in_ms"] == 500
    assert value["order_terms"] == {"age": 65.5, "prefix": 30.0}
    assert value["victims"][0] == {"request_id": "r-9", "score": [1.0, 2.5]}
    assert value["history"] == [{"ago_ms": 4250, "event": "twin_held", "detail": "of [b]r-7"}]


def test_explain_of_nobody(server: FakeServer, run: Run) -> None:
    ran = run("explain", "r-1", "--target", server.target)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "radixd: request_id: no such request (NOT_FOUND)\n"


def test_requests(server: FakeServer, run: Run) -> None:
    running = admin_pb2.RequestView(
        request_id="r-0", state=admin_pb2.REQUEST_STATE_DECODE, cached_tokens=0, slots=33
    )
    server.admin.requests.requests.extend([running, waiting_view()])
    server.admin.requests.num_left_out = 4
    argv = ["requests", "--max-requests", "2", "--tenant", "acme", "--target", server.target]
    ran = run(*argv)
    assert ran.code == 0, ran.err
    (asked,) = server.admin.asked
    assert (asked.max_requests, asked.tenant) == (2, "acme")
    first, second = (line for line in ran.out.splitlines() if "r-" in line)
    assert ("decode" in first, "33" in first) == (True, True)
    assert ("waiting: no slots" in second, "acme" in second, "1m05s" in second) == (True,) * 3
    assert "4 more" in ran.out
    value = json.loads(run(*argv, "--json").out)
    assert [view["request_id"] for view in value["requests"]] == ["r-0", "r-1"]
    assert value["num_left_out"] == 4
    run("requests", "--target", server.target)
    assert server.admin.asked[-1].ListFields() == []


def test_nothing_is_cut_off_in_a_pipe(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    view = waiting_view()
    view.request_id = "r-" + "0123456789abcdef" * 2
    server.admin.requests.requests.append(view)
    shown = run("requests", "--target", server.target).out
    (line,) = (line for line in shown.splitlines() if view.request_id in line)
    for text in ("acme", "waiting: no slots", "1m05s"):
        assert text in line, shown
    server.admin.pins.pins.add(pin_id="pin-12345", level=admin_pb2.PIN_LEVEL_HARD, text="a" * 40)
    shown = run("pins", "--target", server.target).out
    (line,) = (line for line in shown.splitlines() if "pin-12345" in line)
    for text in ("hard", "never", "a" * 40):
        assert text in line, shown


def test_ids_stay_whole_on_a_narrow_terminal() -> None:
    terminal = Console(width=80, file=io.StringIO(), record=True)
    view = waiting_view()
    view.request_id = "0123456789abcdef" * 2
    terminal.print(requests_table(admin_pb2.ListRequestsResponse(requests=[view])))
    assert terminal.export_text().count("0123456789abcdef") == 2
    pin = admin_pb2.Pin(
        pin_id="pin-12345",
        level=admin_pb2.PIN_LEVEL_HARD,
        tenant="a tenant of a long name",
        num_tokens=123_456,
        expires_in_ms=56_123,
        text="a" * 40,
    )
    terminal.print(pins_table(admin_pb2.ListPinsResponse(pins=[pin])))
    (line,) = (line for line in terminal.export_text().splitlines() if "pin-12345" in line)
    assert ("hard" in line, "123456" in line, "56.12s" in line, "a…" in line) == (True,) * 4


def test_requests_of_no_tenant_have_no_column_for_it(server: FakeServer, run: Run) -> None:
    server.admin.requests.requests.add(request_id="r-0", state=admin_pb2.REQUEST_STATE_DECODE)
    assert "tenant" not in run("requests", "--target", server.target).out
    server.admin.requests.requests.append(waiting_view())
    assert "tenant" in run("requests", "--target", server.target).out


def test_no_request_at_all(server: FakeServer, run: Run) -> None:
    assert "no request is live" in run("requests", "--target", server.target).out
    value = json.loads(run("requests", "--json", "--target", server.target).out)
    assert value == {"requests": [], "num_left_out": 0}


def test_pins(server: FakeServer, run: Run) -> None:
    assert "nothing is pinned" in run("pins", "--target", server.target).out
    server.admin.pins.pins.add(
        pin_id="p-1",
        level=admin_pb2.PIN_LEVEL_HARD,
        tenant="acme",
        num_tokens=64,
        kept_tokens=48,
        expires_in_ms=3_600_000,
        hits=5,
        first_token_ids=[1, 2],
        text="You are\n[b]",
    )
    server.admin.pins.pins.add(pin_id="p-2", level=admin_pb2.PIN_LEVEL_SOFT)
    ran = run("pins", "--target", server.target)
    first, second = (line for line in ran.out.splitlines() if "p-" in line)
    for text in ("hard", "acme", "64", "48", "5", "1h00m", "You are\\n[b]"):
        assert text in first, text
    assert ("soft" in second, "never" in second) == (True, True)
    assert ("tenant" in ran.out, "cache domain" in ran.out) == (True, False)
    value = json.loads(run("pins", "--json", "--target", server.target).out)
    assert value["pins"][0]["level"] == "hard"
    assert value["pins"][0]["first_token_ids"] == [1, 2]
    assert "expires_in_ms" not in value["pins"][1]


def test_unpin(server: FakeServer, run: Run) -> None:
    server.admin.pins.pins.add(pin_id="p-1")
    server.admin.pins.pins.add(pin_id="p-2")
    ran = run("pins", "--unpin", "p-1", "--unpin", "p-9", "--target", server.target)
    assert ran.code == 1
    assert ran.out.splitlines() == ["p-1 is removed", "p-9 names no pin"]
    ran = run("pins", "--unpin-all", "--json", "--target", server.target)
    assert (ran.code, json.loads(ran.out)) == (0, {"removed": ["p-1", "p-2"], "unknown": []})
    asked = [(list(request.pin_ids), request.all) for request in server.admin.asked]
    assert asked == [(["p-1", "p-9"], False), ([], True)]
    ran = run("pins", "--unpin", "p-1", "--unpin-all", "--target", server.target)
    assert (ran.code, len(server.admin.asked)) == (1, 2)


def policies() -> admin_pb2.GetPolicyResponse:
    options = [
        policy_pb2.PolicyOption(name="lpm", summary="Longest [b]prefix\n first."),
        policy_pb2.PolicyOption(name="fcfs", summary="First come, first served."),
    ]
    return admin_pb2.GetPolicyResponse(
        policies=policy_pb2.Policies(
            waiting_order="fcfs", high_watermark=0.95, chunk_sizes={"chat": 512, "code": 1024}
        ),
        families=[policy_pb2.PolicyFamily(name="waiting_order", options=options)],
    )


def test_policy_shows_what_holds_and_what_there_is(server: FakeServer, run: Run) -> None:
    server.admin.policies = policies()
    ran = run("policy", "--target", server.target)
    assert ran.code == 0, ran.err
    for text in ("waiting_order", "0.95", "chunk_sizes.chat", "1024", "Longest [b]prefix first."):
        assert text in ran.out, text
    assert [line.strip() for line in ran.out.splitlines() if "●" in line] == ["● fcfs"]
    value = json.loads(run("policy", "--json", "--target", server.target).out)
    assert value["policies"] == {
        "waiting_order": "fcfs",
        "chunk_sizes": {"chat": 512, "code": 1024},
        "high_watermark": 0.95,
    }
    assert [option["name"] for option in value["families"][0]["options"]] == ["lpm", "fcfs"]


def test_policy_changes_all_at_once(server: FakeServer, run: Run) -> None:
    server.admin.policies = policies()
    changes = ["waiting_order=lpm", "high_watermark=0.9", "chunk_sizes.chat=256"]
    ran = run("policy", *changes, "max_batch_tokens=64", "--target", server.target)
    assert ran.code == 0, ran.err
    (asked,) = server.admin.asked
    assert asked.policies == policy_pb2.Policies(
        waiting_order="lpm",
        high_watermark=0.9,
        chunk_sizes={"chat": 256},
        max_batch_tokens=64,
    )
    assert "lpm" in ran.out
    ran = run("policy", "chunk_sizes.code=0", "--json", "--target", server.target)
    assert server.admin.asked[-1].policies.chunk_sizes == {"code": 0}
    assert json.loads(ran.out)["policies"]["waiting_order"] == "lpm"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("waiting_order", "waiting_order: NAME=VALUE was expected"),
        ("waitingorder=lpm", "waitingorder: no such policy; did you mean waiting_order?"),
        ("zzz=1", "zzz: no such policy; `radixd policy` lists them"),
        ("high_watermark=high", "high_watermark: 'high' is not a number"),
        ("chunk_size=1.5", "chunk_size: '1.5' is not an integer"),
        ("chunk_size=-1", "chunk_size: -1 is not in 0..4294967295"),
        ("policy_seed=-1", "policy_seed: -1 is not in 0..18446744073709551615"),
        ("chunk_sizes=256", "chunk_sizes: name the class, as in chunk_sizes.chat=256"),
        ("chunk_sizes.chat=x", "chunk_sizes.chat: 'x' is not a number of tokens"),
        ("chunk_sizes.chat=-1", "chunk_sizes.chat: '-1' is not a number of tokens"),
        ("waiting_order.chat=lpm", "waiting_order.chat: waiting_order has no classes"),
    ],
)
def test_policy_that_cannot_be_sent(
    server: FakeServer, run: Run, change: str, complaint: str
) -> None:
    ran = run("policy", "eviction_policy=lru", change, "--target", server.target)
    assert (ran.code, ran.err) == (1, f"radixd: {complaint}\n")
    assert server.admin.asked == []


def test_a_policy_given_twice(server: FakeServer, run: Run) -> None:
    ran = run("policy", "chunk_size=1", "chunk_size=2", "--target", server.target)
    assert (ran.code, ran.err) == (1, "radixd: chunk_size: given twice\n")


def test_every_policy_of_the_schema_can_be_given() -> None:
    for name, field in FIELDS.items():
        change = f"{name}.chat=8" if field.message_type is not None else f"{name}=8"
        assert [f.name for f, _ in read_changes([change]).ListFields()] == [name]
