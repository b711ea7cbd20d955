"""`preheat`, `tree` and `top`: what they ask, draw and print as JSON."""

import json
from pathlib import Path
from typing import Any

from protos.radixd.v1 import admin_pb2
from radixd.cli.top_view import BAR_CHARS, compare, look_dict, slot_bar
from radixd.cli.tree import MAX_DRAWN_DEPTH, draw
from tests.cli.conftest import Run
from tests.cli.fake_server import FakeServer


def node(parent: int, text: str, num_tokens: int = 1, **fields: Any) -> admin_pb2.TreeNode:
    return admin_pb2.TreeNode(parent=parent, text=text, token_ids=[1] * num_tokens, **fields)


def test_preheat_sends_prefixes_in_order(server: FakeServer, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prefixes.txt"
    file.write_text("from a file\n\n量子\n", encoding="utf-8")
    argv = ["preheat", "You are", "--file", str(file), "--cache-domain", "d", "--json"]
    ran = run(*argv, "--target", server.target)
    assert ran.code == 0, ran.err
    texts = ["You are", "from a file", "量子"]
    assert [list(request.prefixes) for request in server.admin.preheats] == [[t] for t in texts]
    assert {request.cache_domain for request in server.admin.preheats} == {"d"}
    rows = json.loads(ran.out)["prefixes"]
    assert [row["text"] for row in rows] == texts
    assert rows[2] == {
        "text": "量子",
        "num_tokens": 6,
        "cached_tokens": 1,
        "computed_tokens": 5,
        "error": "",
        "pin_id": "",
        "pinned_tokens": 0,
        "pin_error": "",
    }
    assert not any(r.HasField("pin") or r.HasField("ttl_ms") for r in server.admin.preheats)


def test_preheat_of_a_system_message(server: FakeServer, run: Run) -> None:
    ran = run("preheat", "--system", "Be brief.", "--json", "--target", server.target)
    (request,) = server.admin.preheats
    assert [(m.role, m.content) for m in request.chats[0].messages] == [(1, "Be brief.")]
    assert json.loads(ran.out)["prefixes"][0]["text"] == "Be brief."


def test_preheat_that_fails_says_so(server: FakeServer, run: Run) -> None:
    server.admin.preheat_error = "the pool is full"
    ran = run("preheat", "You are", "--target", server.target)
    assert ran.code == 1
    assert "the pool is full" in ran.out


def test_preheat_with_a_pin(server: FakeServer, run: Run) -> None:
    argv = ["preheat", "You are", "--system", "S", "--pin", "hard", "--ttl", "1.5"]
    ran = run(*argv, "--target", server.target)
    assert ran.code == 0, ran.err
    asked = [(request.pin, request.ttl_ms) for request in server.admin.preheats]
    assert asked == [(admin_pb2.PIN_LEVEL_HARD, 1500)] * 2
    assert "pin-7, 7 tokens" in ran.out
    server.admin.pin_error = "the budget of pins is spent"
    ran = run("preheat", "You are", "--pin", "soft", "--target", server.target)
    assert server.admin.preheats[-1].pin == admin_pb2.PIN_LEVEL_SOFT
    assert not server.admin.preheats[-1].HasField("ttl_ms")
    # Warm, but not as asked: a script is to notice.
    assert ran.code == 1
    assert "the budget of pins is spent" in ran.out


def test_preheat_with_a_pin_that_cannot_be(server: FakeServer, run: Run) -> None:
    assert run("preheat", "a", "--pin", "firm", "--target", server.target).code == 2
    for ttl in ("nan", "-1", "1e30"):
        ran = run("preheat", "a", "--pin", "soft", "--ttl", ttl, "--target", server.target)
        assert (ran.code, "ttl" in ran.err) == (1, True), ran.err
    assert server.admin.preheats == []


def test_preheat_of_nothing(server: FakeServer, run: Run) -> None:
    ran = run("preheat", "--target", server.target)
    assert (ran.code, server.admin.preheats) == (1, [])
    assert "give prefixes" in ran.err


def test_tree_draws_the_shared_stem_once(server: FakeServer, run: Run) -> None:
    nodes = [
        node(-1, "", 0),
        node(0, "请解释量子", 5, hits=2, locked=True),
        node(1, "力学的基本原理", 7),
        node(1, "[red]纠缠\n现象", 4, hits=1),
        node(-1, "", 0, cache_domain="tenant-b"),
    ]
    server.admin.tree.nodes.extend(nodes)
    ran = run("tree", "--target", server.target)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "common domain  16 tokens",
        "└── 请解释量子  5 tokens, 2 hits 🔒",
        "    ├── 力学的基本原理  7 tokens, 0 hits",
        "    └── [red]纠缠\\n现象  4 tokens, 1 hit",
        "tenant-b  0 tokens",
    ]


def test_tree_as_json_and_its_limit(server: FakeServer, run: Run) -> None:
    server.admin.tree.nodes.extend([node(-1, "", 0), node(0, "a", 2, hits=3), node(1, "b")])
    ran = run("tree", "--json", "--max-nodes", "2", "--target", server.target)
    value = json.loads(ran.out)
    assert value["num_left_out"] == 1
    assert value["nodes"][1] == {
        "parent": 0,
        "num_tokens": 2,
        "token_ids": [1, 1],
        "text": "a",
        "locked": False,
        "hits": 3,
        "cache_domain": "",
        "tenant": "",
    }
    ran = run("tree", "--max-nodes", "2", "--target", server.target)
    assert "1 more nodes" in ran.out


def test_an_empty_tree(server: FakeServer, run: Run) -> None:
    assert "nothing is cached" in run("tree", "--target", server.target).out


def test_a_very_deep_tree_stays_on_the_screen() -> None:
    # field case 11: thousands of prefixes, each one token longer than the last.
    depth = 5000
    nodes = [node(-1, "", 0), *(node(position, "a") for position in range(depth))]
    (root,) = draw(admin_pb2.DumpTreeResponse(nodes=nodes), width=80)
    deepest, drawn = root, 0
    while deepest.children:
        deepest, drawn = deepest.children[-1], drawn + 1
    assert drawn == MAX_DRAWN_DEPTH
    assert f"depth {depth}" in str(deepest.label)
    assert str(root.label) == f"common domain  {depth} tokens"


def test_top_once_as_json(server: FakeServer, run: Run) -> None:
    ran = run("top", "--once", "--json", "--interval", "0.1", "--target", server.target)
    assert ran.code == 0, ran.err
    value = json.loads(ran.out)
    assert set(value) == {
        "model",
        "worker_connected",
        "uptime_ms",
        "num_steps",
        "slots",
        "requests",
        "tokens",
        "tokens_per_s",
        "reuse_rate",
        "recompute_tax",
        "economy",
        "sessions",
        "waiting_by_reason",
        "tenants",
        "peak_rss_bytes",
    }
    assert value["slots"]["locked"] == 15
    assert value["reuse_rate"] == 0.25
    # Ten tokens in a tenth of a second, or in as much more as a busy machine takes.
    assert 0 < value["tokens_per_s"]["generated"] < 200
    assert value["peak_rss_bytes"] == {"scheduler_svc": 1 << 20, "tokenizer_svc": 2 << 20}


def test_top_once_for_people(server: FakeServer, run: Run) -> None:
    server.admin.stats.worker_connected = False
    ran = run("top", "--once", "--interval", "0.1", "--target", server.target)
    assert ran.code == 0, ran.err
    for text in ("tiny", "worker away", "up 1m01s", "25 of 100 in use (25%)", "2 running", "25.0%"):
        assert text in ran.out
    # What a hard pin holds is locked, and no request need be running.
    assert "read by live requests or pinned hard" in ran.out


def test_the_bar_shows_every_owner_and_fits() -> None:
    few = admin_pb2.SlotBooks(total=10_000, free=9_997, private=1, locked=1, in_flight=1)
    full = admin_pb2.SlotBooks(total=99, private=33, locked=33, evictable=32, in_flight=1)
    for books, used in ((few, 3), (full, BAR_CHARS)):
        bar = slot_bar(books)
        assert len(bar) == BAR_CHARS
        assert bar.plain.count("█") == used
    assert slot_bar(admin_pb2.SlotBooks()).plain == "░" * BAR_CHARS


def test_rates_come_from_differences_and_survive_a_restart() -> None:
    before, after = admin_pb2.GetStatsResponse(), admin_pb2.GetStatsResponse()
    before.tokens.generated, after.tokens.generated = 100, 160
    before.requests.retractions, after.requests.retractions = 1, 4
    look = compare(before, after, 2.0)
    assert (look.rates["generated"], look.retractions) == (30.0, 3)
    back = compare(after, before, 2.0)
    assert (back.rates["generated"], back.retractions) == (0.0, 0)
    assert look_dict(back)["reuse_rate"] == 0.0


def test_a_root_says_whose_it_is() -> None:
    root = admin_pb2.TreeNode(parent=-1, tenant="acme")
    (drawn,) = draw(admin_pb2.DumpTreeResponse(nodes=[root]), width=80)
    assert str(drawn.label) == "common domain, tenant acme  0 tokens"
