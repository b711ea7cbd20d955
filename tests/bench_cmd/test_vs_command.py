"""`radixd bench --vs`: whose turn it is, with which prompts, and what is made of the figures."""

import json
from collections.abc import Callable

import pytest

from radixd.bench.figures import Figures, Quantiles, comparison, ratios, summary
from radixd.bench.workload import load_workload
from radixd.cli.app import main
from tests.bench_cmd.fake_peer import MODEL, FakePeer, counts_in_timings, counts_in_usage
from tests.cli.fake_server import FakeServer

Run = Callable[..., tuple[int, str, str]]
"""The command line in this process: status, standard output, standard error."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*argv: str) -> tuple[int, str, str]:
        code = main(list(argv))
        return code, *capsys.readouterr()

    return run_command


def test_ours_and_the_peers_take_turns(run: Run) -> None:
    turns: list[str] = []
    with FakeServer() as ours, FakePeer(counts_in_usage) as a, FakePeer(counts_in_timings) as b:
        a.on_request = lambda: turns.append("a")
        b.on_request = lambda: turns.append("b")
        # The fake model says what it is asked in order; so its requests tell whose turn it is.
        ask = ours.inference._fixed_length
        ours.inference._fixed_length = lambda r: turns.append("ours") or ask(r)  # type: ignore
        vs = ("--vs", f"a={a.url}", "--vs", f"b={b.url}/v1")
        argv = ("bench", "--workload", "w1", "--runs", "3", "--json", "--target", ours.target)
        code, text, err = run(*argv, *vs)
        asked = [list(request.tokens.ids) for request in ours.inference.requests]
    assert code == 0, err
    assert turns == ["ours", "a", "b"] * 3
    assert asked == [body["prompt"] for body in a.requests]
    assert asked == [body["prompt"] for body in b.requests]
    assert len({ids[0] for ids in asked}) == 3
    (original,) = load_workload("w1").for_vocabulary(1000).requests
    assert {tuple(ids[1:]) for ids in asked} == {original.prompt_token_ids[1:]}
    value = json.loads(text)
    assert set(value["peers"]) == set(value["ratios"]) == {"a", "b"}
    for name, peer, cached in (("a", a, 8), ("b", b, 3)):
        theirs = value["peers"][name]
        assert (theirs["url"], theirs["model"]) == (peer.url, MODEL)
        assert (theirs["cached_tokens"], theirs["peak_rss_bytes"]) == (cached, None)
        assert len(theirs["runs"]["each"]) == 3
        assert value["ratios"][name]["wall_s"] > 0
        assert value["ratios"][name]["peak_rss_bytes"] is None
    assert len(value["runs"]["each"]) == 3
    assert value["workload"] == "w1"


def test_every_workload_in_turn_and_a_table_for_people(run: Run) -> None:
    with FakeServer() as ours, FakePeer(counts_in_usage) as peer:
        argv = ("bench", "--workload", "all", "--target", ours.target)
        code, text, err = run(*argv, "--vs", peer.url)
        name = peer.url.removeprefix("http://")
        _, as_json, _ = run(*argv, "--json")
    assert code == 0, err
    titles = [line.split()[0] for line in text.splitlines() if " on " in line]
    assert titles == ["w1", "w2", "w3", "w4"]
    assert f"radixd / {name}" in text
    values = [json.loads(line) for line in as_json.splitlines()]
    assert [value["workload"] for value in values] == ["w1", "w2", "w3", "w4"]
    assert "peers" not in values[0]


def test_a_peer_that_is_not_there_ends_it_before_anything_starts(run: Run) -> None:
    with FakePeer() as peer:
        pass
    code, text, err = run("bench", "--workload", "w1", "--vs", f"gone={peer.url}")
    assert (code, text, err) == (1, "", f"radixd: gone at {peer.url}: nothing answers there\n")


def test_a_peer_that_dies_midway_is_named(run: Run) -> None:
    with FakeServer() as ours, FakePeer() as peer:
        peer.breaks_after = 7
        argv = ("bench", "--workload", "w2", "--target", ours.target)
        code, _, err = run(*argv, "--vs", f"dying={peer.url}")
    (line,) = err.splitlines()
    assert code == 1
    assert line.startswith(f"radixd: dying at {peer.url}: w2-")
    assert "in the middle of an answer" in line


def figures(wall_s: float, cached_tokens: int | None, peak_rss_bytes: int | None) -> Figures:
    return Figures(
        wall_s=wall_s,
        out_tok_s=100 / wall_s,
        ttft_s=Quantiles(p50=wall_s / 10, p95=wall_s / 5),
        short_ttft_s=Quantiles(p50=None, p95=None),
        itl_s=Quantiles(p50=0.1, p95=0.2),
        cached_tokens=cached_tokens,
        peak_rss_bytes=peak_rss_bytes,
    )


def test_ratios_are_ours_by_theirs_of_the_medians() -> None:
    ours = [figures(wall_s, 60, 100) for wall_s in (2.0, 1.0, 9.0)]
    theirs = [figures(wall_s, 0, None) for wall_s in (8.0, 4.0, 1.0)]
    value = comparison("w3", ours, {"peer": theirs}, {"cpu": "x"})
    assert value["ratios"]["peer"] == {
        "wall_s": 0.5,
        "out_tok_s": 2.0,
        "ttft_s": {"p50": 0.5, "p95": 0.5},
        "short_ttft_s": {"p50": None, "p95": None},
        "itl_s": {"p50": 1.0, "p95": 1.0},
        "cached_tokens": None,  # nothing can be said of a multiple of nothing
        "peak_rss_bytes": None,
    }
    assert [run["wall_s"] for run in value["peers"]["peer"]["runs"]["each"]] == [8.0, 4.0, 1.0]
    assert value["wall_s"] == 2.0
    assert ratios(summary(ours[:1]), summary(theirs[:1]))["wall_s"] == 0.25
