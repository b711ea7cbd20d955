"""`radixd bench core`: every figure is there and sane, aims and ratios follow, peers may be absent.

Nothing here asks how fast anything is.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from radixd.bench.core_child import core_figures, peer_figures
from radixd.bench.core_report import AIMS, core_report
from radixd.cli.app import main
from radixd.cli.bench_core import notes
from radixd.cli.client import CommandError

SMALL = "0.01"
STATISTICS = {"mean", "p50", "p99", "disturbed"}
SETTINGS = {
    "match_insert_us": {"page1", "page16"},
    "steady_cycle_us": {"page1", "page16"},
    "schedule_apply_us": {"rows_taken", "slots_short"},
}


@pytest.fixture(scope="module")
def core() -> dict[str, Any]:
    return core_figures(float(SMALL), lambda what: None)


def program(folder: Path, code: str) -> str:
    """An interpreter that runs this code, whatever it is asked to run."""
    path = folder / "interpreter"
    path.write_text(f"#!{sys.executable}\nimport sys\n{code}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_times_are_there_in_every_setting(core: dict[str, Any]) -> None:
    for figure, settings in SETTINGS.items():
        assert set(core[figure]) == settings | STATISTICS
        for setting in settings:
            value = core[figure][setting]
            assert set(value) == STATISTICS
            assert 0 < value["p50"] <= value["p99"]
            assert value["mean"] > 0
            assert 0 <= value["disturbed"] <= 1
        # The worst of the settings stands on top.
        assert core[figure]["p99"] == max(core[figure][setting]["p99"] for setting in settings)


def test_the_intake_of_many_at_once_is_told_apart(core: dict[str, Any]) -> None:
    assert set(core["intake_us"]) == STATISTICS
    assert core["intake_us"]["p50"] > 0


def test_weights_are_there(core: dict[str, Any]) -> None:
    assert core["plan_bytes"] > 16 * core["scale"]["running"]
    assert core["plan_codec_us"] > 0
    for page, most_token_bytes in (("page1", 8.0), ("page16", 4.25)):
        book = core["memory"][page]
        assert book["token_bytes"] == most_token_bytes
        assert 100 < book["node_bytes"] < 10_000
        groups, sequences = 4, core["scale"]["sequences"]
        assert book["num_tokens"] <= groups * 816 + sequences * 208
        assert book["num_nodes"] >= sequences
    assert core["node_bytes"] == max(book["node_bytes"] for book in core["memory"].values())
    assert core["token_bytes"] == 8.0


def test_flatness_is_the_highest_median_by_that_of_the_smallest(core: dict[str, Any]) -> None:
    flat = core["flatness"]
    for axis in ("waiting", "tree_nodes"):
        by_size = {int(size): f for size, f in flat[axis].items() if size != "ratio"}
        assert len(by_size) == 3
        assert sorted(by_size) == list(by_size)
        medians = [figure["p50"] for figure in by_size.values()]
        assert flat[axis]["ratio"] == pytest.approx(max(medians) / medians[0], abs=1e-3)
    assert flat["ratio"] == max(flat["waiting"]["ratio"], flat["tree_nodes"]["ratio"])


def figures(**changes: float) -> dict[str, Any]:
    """Made-up figures of a core, every aim just met unless changed."""
    value: dict[str, Any] = {}
    for aim in AIMS:
        place = value
        for key in aim.path[:-1]:
            place = place.setdefault(key, {})
        place[aim.path[-1]] = aim.most - (1.0 if aim.below else 0.0)
    for path, number in changes.items():
        first, _, last = path.partition("__")
        if last:
            value[first][last] = number
        else:
            value[first] = number
    return value


@pytest.mark.parametrize("aim", AIMS, ids=lambda aim: "/".join(aim.path))
def test_an_aim_is_missed_by_little(aim: Any) -> None:
    report = core_report(figures(), None, {})
    assert all(report["aims_met"].values())
    worse = figures(**{"__".join(aim.path): aim.most + (0.0 if aim.below else 0.01)})
    met = core_report(worse, None, {})["aims_met"]
    assert [path for path, is_met in met.items() if not is_met] == ["/".join(aim.path)]


def test_a_ratio_compares_one_setting() -> None:
    ours = {"mean": 10.0, "p50": 5.0, "p99": 50.0}
    theirs = {"mean": 25.0, "p50": 10.0, "p99": 1000.0}
    core = figures()
    core["steady_cycle_us"] |= {"page1": ours, "page16": {"mean": 1.0, "p50": 1.0, "p99": 1.0}}
    peers: dict[str, dict[str, Any]] = {
        "other": {"steady_cycle_us": {"page1": theirs}},
        "absent": {"missing": "x"},
    }
    assert core_report(core, peers, {})["ratios"] == {
        "other": {"steady_cycle_us": {"page1": {"mean": 2.5, "p50": 2.0, "p99": 20.0}}},
        "absent": {},
    }


def test_a_busy_machine_and_another_version_are_named() -> None:
    report = figures()
    for figure in (*SETTINGS, "intake_us"):
        report.setdefault(figure, {})["disturbed"] = 0.0
    assert notes(report) == []
    report["steady_cycle_us"]["disturbed"] = 0.2
    report["intake_us"]["disturbed"] = 1.0
    report["peers"] = {"sglang": {"version": "0.6", "wanted": "sglang==0.5.23"}}
    version, *disturbed = notes(report)
    assert "0.6" in version
    assert [note.split(" of ")[0] for note in disturbed] == [
        "steady_cycle_us: 20%",
        "intake_us: 100%",
    ]


def test_the_command_prints_json_with_peers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = program(
        tmp_path,
        "import json\n"
        "statistics = {'mean': 1e9, 'p50': 1e9, 'p99': 1e9, 'disturbed': 0.0}\n"
        "value = {'version': '1', 'wanted': 'p==1', 'steady_cycle_us': {'page1': statistics}}\n"
        "absent = {'version': None, 'wanted': 'p==2', 'missing': 'not installed'}\n"
        "print(json.dumps(value if 'sglang' in sys.argv else absent))",
    )
    command = ["bench", "core", "--json", "--scale", SMALL, "--peers", "--peer-python", python]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ratios"]["sglang"]["steady_cycle_us"]["page1"]["mean"] > 1000
    assert report["ratios"]["vllm"] == {}
    assert report["peers"]["vllm"]["install"] == f"{python} -m pip install p==2"
    assert report["machine"]["cores"] >= 1


def test_the_command_prints_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = program(
        tmp_path, """print('{"version": null, "wanted": "p==2", "missing": "not installed"}')"""
    )
    command = ["bench", "core", "--scale", SMALL, "--peers", "--peer-python", python]
    assert main(command) == 0
    shown = capsys.readouterr().out
    for aim in AIMS:
        assert aim.name.strip() in shown
    assert f"vllm: not installed; to install it: {python} -m pip install p==2" in shown


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    python = program(tmp_path, "sys.exit('the reason')")
    with pytest.raises(CommandError, match="the reason"):
        peer_figures("sglang", python, 0.01, lambda what: None)


def test_an_interpreter_that_is_none_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "core", "--peers", "--peer-python", "/nowhere/python"]) == 1
    assert "--peer-python: /nowhere/python" in capsys.readouterr().err


def test_a_scale_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "core", "--scale", "2"]) == 2
    assert "--scale" in capsys.readouterr().err


def test_workloads_are_asked_for_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "--workload" in capsys.readouterr().err
