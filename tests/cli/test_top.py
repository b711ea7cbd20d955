"""`radixd top`: the books as the server sends them, and what a screen says when it sends none."""

import contextlib
import io
import json

import pytest
from rich.console import Console

from protos.radixd.v1 import admin_pb2
from radixd.cli import top
from radixd.cli.client import Client, CommandError
from radixd.cli.top_view import MAX_TENANTS, Look, look_dict, render
from tests.cli.conftest import Run
from tests.cli.fake_server import FakeServer


def shown(stats: admin_pb2.GetStatsResponse) -> str:
    console = Console(file=io.StringIO(), width=140)
    rates = {"generated": 1.0, "computed": 2.0, "prompt": 3.0, "evicted": 4.0}
    console.print(render(Look(stats=stats, rates=rates, retractions=0), "here"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def rich_stats() -> admin_pb2.GetStatsResponse:
    stats = admin_pb2.GetStatsResponse(
        economy=admin_pb2.Economy(
            reuse_rate=0.75,
            density=1.5,
            turnover=0.125,
            recompute_tax=0.03,
            volatility=0.011,
            pinned_slots=64,
        ),
        waiting_by_reason={"NO_SLOTS": 7, "TWIN": 2, "NO_ROW": 0},
    )
    stats.tenants["acme"].CopyFrom(
        admin_pb2.TenantBooks(held_slots=11, prompt_tokens=10, cached_tokens=4)
    )
    stats.tenants["beta"].CopyFrom(admin_pb2.TenantBooks(held_slots=99))
    return stats


def test_economy_reasons_and_tenants_for_people() -> None:
    text = shown(rich_stats())
    for part in ("75.0% reuse rate", "1.50 density", "0.125 turnover/s", "3.0% recompute tax"):
        assert part in text, part
    for part in ("0.011 volatility", "64 slots pinned", "7 no slots, 2 twin", "40.0%"):
        assert part in text, part
    assert "no row" not in text
    assert text.index("beta") < text.index("acme")


def test_guesses_and_weights_are_told_where_there_are_any() -> None:
    stats = rich_stats()
    assert "guess" not in shown(stats)
    assert "weights" not in shown(stats)
    stats.tokens.drafted, stats.tokens.accepted = 40, 30
    stats.model.weights, stats.model.kv_dtype = "int4", "int8"
    text = shown(stats)
    for part in ("75.0% of 40 guesses right", "30 tokens without", "weights int4, KV int8"):
        assert part in text, part


def test_sessions_are_told_where_there_are_any() -> None:
    stats = rich_stats()
    assert "sessions" not in shown(stats)
    assert look_dict(Look(stats=stats, rates={}, retractions=0))["sessions"]["known"] == 0
    stats.num_sessions, stats.session_tokens = 3, 1234
    text = shown(stats)
    for part in ("sessions", "3 known", "1234 tokens kept warm"):
        assert part in text, part
    value = look_dict(Look(stats=stats, rates={}, retractions=0))
    assert value["sessions"] == {"known": 3, "kept_tokens": 1234}


def test_a_server_without_tenants_shows_no_table_of_them() -> None:
    stats = admin_pb2.GetStatsResponse()
    stats.tenants[""].held_slots = 5
    assert "tenant" not in shown(stats)
    for number in range(MAX_TENANTS + 3):
        stats.tenants[f"t{number:02}"].held_slots = 1000 - number
    text = shown(stats)
    assert "and 4 more" in text
    assert f"t{MAX_TENANTS - 1:02}" in text
    assert f"t{MAX_TENANTS:02}" not in text


def test_the_same_for_programs() -> None:
    value = look_dict(Look(stats=rich_stats(), rates={}, retractions=0))
    assert value["economy"]["density"] == 1.5
    assert set(value["economy"]) == {f.name for f in admin_pb2.Economy.DESCRIPTOR.fields}
    assert value["waiting_by_reason"] == {"no_row": 0, "no_slots": 7, "twin": 2}
    assert value["tenants"]["acme"]["held_slots"] == 11


def test_the_server_sends_the_books(server: FakeServer, run: Run) -> None:
    ran = run("top", "--once", "--json", "--interval", "0.25", "--target", server.target)
    assert ran.code == 0, ran.err
    assert [request.interval_ms for request in server.admin.asked] == [250]
    assert json.loads(ran.out)["slots"]["total"] == 100


def test_looks_end_with_the_server() -> None:
    with FakeServer() as server, Client(server.target) as client:
        found = top.looks(client, 0.1)
        with contextlib.closing(found):
            assert next(found).rates["generated"] > 0
            assert next(found).stats.model.name == "tiny"
            server.__exit__()
            with pytest.raises(CommandError):
                for _ in found:
                    pass
    assert server.admin.num_watches == 1


def test_a_screen_says_why_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer() as server, Client(server.target) as client:
        screen = top.Screen(client, 0.1)
        told: list[str] = []
        monkeypatch.setattr(screen, "note", told.append)
        assert screen.ask_why_silent() is None  # it is not long yet
        monkeypatch.setattr(screen, "_silent_after_s", -1.0)
        assert screen.ask_why_silent() is None  # the server answers: all is well
        server.__exit__()
        why = screen.ask_why_silent()
    assert why is not None
    assert "no radixd answers" in why
    assert told == [why]
