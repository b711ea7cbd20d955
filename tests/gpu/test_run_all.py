"""The command as a whole, interpreted; what it does with broken kernels; times by fake lanes."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_worker.device import device_backend, step_inputs
from tests.gpu import cases_layers, run_all, speed_attention
from tests.gpu.all_cases import checks, every_case, files_without_case, speeds
from tests.gpu.case import Prepared
from tests.gpu.case_worker import (
    ROOFS,
    Card,
    Measured,
    check_case,
    check_worker,
    interpreted_place,
    measure,
    speed_worker,
)
from tests.gpu.comparison import Comparison
from tests.gpu.engine_load import StepTimes
from tests.gpu.engine_tasks import ENGINE_TASKS, Answer, EngineUnderTest
from tests.gpu.lanes import Limits, Lost, Worker
from tests.gpu.report import COLUMNS, Report, Row, as_json, as_markdown, duration
from tests.gpu.roofs import Roofs
from tests.gpu.session import Session, SessionOptions
from tests.gpu.timing import Budget, Times, summary
from tests.gpu.work import Work

CARD = Card(
    facts={"name": "a card", "torch": "2", "triton": "3"},
    roofs=Roofs(copy_bytes_per_s=4e12, read_bytes_per_s=4e12, bf16_flops_per_s=8e14),
    clocks={},
)
DECODE, EXTEND = "paged_attention: decode 32 x 32k", "paged_attention: extend 1 x 8k"


def lines_of(text: str) -> list[list[str]]:
    """Cells of a Markdown table's lines."""
    return [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_every_kernel_has_a_case(tmp_path: Path) -> None:
    assert files_without_case() == []
    (tmp_path / "new.py").write_text("\ndef compile_cases():\n    ...\n")
    (tmp_path / "shared.py").write_text("x = 1\n")
    assert files_without_case(tmp_path) == ["new"]


def test_aims_are_timed_first_and_titles_are_unique() -> None:
    order = [speed.aim is not None for speed in speeds()]
    assert order == sorted(order, reverse=True)
    assert sum(order) == 4
    assert len(every_case()) == len(list(speeds())) + len(list(checks()))
    assert len(every_case(is_quick=True)) < len(every_case()) / 2
    assert set(every_case(only="SILU")) < set(every_case())
    names = [task.name for task in ENGINE_TASKS]
    assert len(set(names)) == len(names)


def test_attention_is_cut_as_the_engine_cuts_it() -> None:
    ours = (speed_attention.DECODE_BLOCK, speed_attention.PROMPT_BLOCK, speed_attention.SPLIT)
    theirs = (step_inputs._DECODE_BLOCK, step_inputs._PROMPT_BLOCK)
    assert ours == (*theirs, step_inputs.CutSizes(groups=4).split)
    tokens_of_tile = speed_attention.PROMPT_BLOCK // 4
    num_programs = speed_attention.EXTEND.queries // tokens_of_tile * 8
    assert num_programs >= device_backend._ENOUGH_PROGRAMS  # so it is not cut
    assert speed_attention.EXTEND.split > speed_attention.EXTEND.length


def interpreted(
    capsys: pytest.CaptureFixture[str], file: Path, *options: str
) -> list[dict[str, Any]]:
    """Rows of a run in which all is right: one line each, the same in table and JSON."""
    assert run_all.main(["--interpret", "--quick", "--json", str(file), *options]) == 0
    report = json.loads(file.read_text())
    header, *lines = lines_of(capsys.readouterr().out)
    rows: list[dict[str, Any]] = report["rows"]
    assert header == list(COLUMNS)
    assert [line[:2] for line in lines] == [[row["kernel"], row["case"]] for row in rows]
    assert all(len(line) == len(COLUMNS) for line in lines)
    assert report["ok"] is True
    assert report["card"]["torch"] == torch.__version__
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["time_us"] is None for row in rows)
    return rows


def test_every_kernel_without_a_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.gpu.session.ENGINE_TASKS", ())
    rows = interpreted(capsys, tmp_path / "report.json")
    assert {row["kernel"] for row in rows} == {case.kernel for case in checks()}
    assert len(rows) == len(every_case(is_quick=True)) > 40


def test_the_engine_without_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, *rows = interpreted(capsys, tmp_path / "report.json", "--only", "engine")
    assert 0 < small["error"] < small["allowed"]
    assert len(rows) == 3
    assert any(row["error"] == 0.0 for row in rows)  # graphs and eager drew the same


def test_a_broken_kernel_is_a_row_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right, calls = cases_layers.silu_mul, []

    def broken(gate_up: torch.Tensor, gate: str = "silu") -> torch.Tensor:
        calls.append(gate)
        if gate == "gelu_tanh":
            raise RuntimeError("does not compile\nptxas error: no such thing")
        return right(gate_up, gate) * 1.01  # type: ignore[arg-type]

    monkeypatch.setattr(cases_layers, "silu_mul", broken)
    file = tmp_path / "report.json"
    assert run_all.main(["--interpret", "--only", "silu_mul", "--json", str(file)]) == 1
    report = json.loads(file.read_text())
    assert report["ok"] is False
    by_case = {row["case"]: row for row in report["rows"]}
    assert by_case["silu"]["status"] == "wrong"
    assert by_case["silu"]["error"] > by_case["silu"]["allowed"]
    assert by_case["gelu_tanh"]["status"] == "failed"
    assert by_case["gelu_tanh"]["note"] == "RuntimeError: ptxas error: no such thing"
    assert len(report["rows"]) == 4  # of which two are speeds
    assert set(calls) == {"silu", "gelu_tanh"}


def test_without_a_card_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.gpu.session.has_card", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert run_all.main([]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert run_all.main(["--interpret", "--only", "nothing has this"]) == 2
    assert "no case has 'nothing has this'" in capsys.readouterr().err


class FakeStopwatch:
    """Stopwatch whose runs take a microsecond more each time."""

    def __init__(self) -> None:
        self.num_timed = 0

    def times(self, run: Callable[[], object]) -> Times:
        run()
        self.num_timed += 1
        return summary([float(self.num_timed)])


def test_a_rival_that_fails_is_no_error_of_ours() -> None:
    def fails() -> None:
        raise RuntimeError("out of memory")

    prepared = Prepared(
        work=Work(num_bytes=8),
        run=lambda: None,
        check=lambda: Comparison(error=0.0, allowed=0.0),
        rivals={"first": fails, "second": lambda: None},
    )
    found = measure(prepared, FakeStopwatch())
    assert found.times.median_us == 1.0
    assert math.isnan(found.rivals_us["first"])
    assert found.rivals_us["second"] == 2.0


def session(only: str, answers: dict[str, Any], seconds: float = 400.0) -> tuple[Report, list[str]]:
    """A session whose lanes give these answers; cases are right unless said otherwise."""
    said: list[str] = []

    def lanes(
        tasks: Sequence[str], make_worker: Callable[[], Worker], limits: Limits
    ) -> Iterator[tuple[str, Any]]:
        for task in tasks:
            if not limits.left_s():
                yield task, Lost(reason="time", was_started=False)
            elif make_worker is check_worker:
                kernel, _, name = task.partition(": ")
                yield task, answers.get(f"check {task}", Row(kernel=kernel, case=name))
            elif make_worker is speed_worker and task == ROOFS:
                yield task, answers.get(ROOFS, CARD)
            else:
                yield task, answers[task]

    run = Session(
        SessionOptions(only=only),
        Budget(seconds=seconds, started_s=0.0, now_s=lambda: 0.0),
        say=said.append,
        lanes=lanes,
    )
    return run.run(), said


def measured(time_us: float, work: Work) -> Measured:
    return Measured(times=summary([time_us]), work=work, rivals_us={"SDPA": 2 * time_us})


def test_times_become_shares_of_roofs() -> None:
    speed = measured(100.0, Work(num_bytes=360_000_000))
    report, said = session("decode 32 x 32k", dict.fromkeys(every_case(), speed))
    rows = {row.case: row for row in report.rows}
    row = rows["decode 32 x 32k"]
    assert row.share == pytest.approx(0.9)
    assert (row.bound_by, row.is_aim_met) == ("memory", True)
    assert rows["decode 32 x 32k kv=int8"].aim == ""
    assert report.exit_status == 0
    line = next(line for line in lines_of(as_markdown(report)) if line[1] == "decode 32 x 32k")
    assert line[2:] == [
        "", "memory", "100 us", "90% (aim >= 85 % of copies, met)", "SDPA 200 us (2.00 x)"
    ]  # fmt: skip
    assert any("100.0 us" in text for text in said)


def test_a_missed_aim_is_marked_and_no_failure() -> None:
    speed = measured(1000.0, Work(num_bytes=360_000_000))
    report, _ = session("decode 32 x 32k", dict.fromkeys(every_case(), speed))
    assert report.exit_status == 0
    assert "(aim >= 85 % of copies, MISSED)" in as_markdown(report)


def test_what_is_wrong_is_not_timed_and_what_is_lost_is_told() -> None:
    wrong = Row(
        kernel="paged_attention", case="extend 1 x 8k", status="wrong", error=math.nan, allowed=0.1
    )
    answers = {
        f"check {EXTEND}": wrong,
        f"check {EXTEND} kv=int8": Lost(reason="took more than 90 s"),
        f"{EXTEND} kv=fp8": "RuntimeError: an illegal memory access",
        f"{EXTEND} page16": Lost(reason="the process ended with status -6"),
        f"{EXTEND}, fixed cuts": Lost(reason="time", was_started=False),
        f"{EXTEND} BM128": measured(5.0, Work(num_bytes=1)),
    }
    report, _ = session("extend 1 x 8k", answers)
    rows = {row.case.removeprefix("extend 1 x 8k"): row for row in report.rows}
    assert {case: row.status for case, row in rows.items()} == {
        "": "wrong", " kv=int8": "failed", " kv=fp8": "failed", " page16": "failed",
        ", fixed cuts": "ok", " BM128": "ok",
    }  # fmt: skip
    assert rows[", fixed cuts"].note == "not timed: time"
    assert rows[" page16"].note == "not timed: the process ended with status -6"
    assert report.exit_status == 1
    json.dumps(as_json(report), allow_nan=False)
    assert "WRONG nan (1.0e-01)" in as_markdown(report)


def test_without_time_rows_say_so() -> None:
    report, _ = session("decode 32", {}, seconds=4.0)
    assert {row.status for row in report.rows} == {"not run"}
    assert report.exit_status == 0
    assert "| not run |" in as_markdown(report)


def test_without_roofs_times_are_worth_nothing() -> None:
    answers: dict[str, Any] = {title: measured(1.0, Work(num_bytes=1)) for title in every_case()}
    report, said = session("decode 1 x 32k", answers | {ROOFS: "RuntimeError: out of memory"})
    assert report.rows[0].note == "not timed: the roofs are unknown"
    assert "roofs: RuntimeError: out of memory" in said


def test_rows_of_an_engine() -> None:
    tasks = {task.name: task for task in ENGINE_TASKS}
    graphs = tasks["8B graphs, decode 64 x 512"]
    times = summary([6000.0])
    steps = StepTimes(times=times, busy_us=5760.0, lengths=(528,) * 64, tokens=())
    (row,) = graphs.rows(Answer(steps=steps), CARD.roofs)
    assert row.note == "10667 tokens/s; 4.0% outside kernels"
    assert (row.is_aim_met, row.bound_by, row.time_us) == (True, "memory", 6000.0)
    assert row.share is not None
    assert 0.5 < row.share < 1.0
    (row,) = graphs.rows(Answer(problem="RuntimeError: capture"), CARD.roofs)
    assert (row.status, row.note) == ("failed", "RuntimeError: capture")
    slow = StepTimes(times=times, busy_us=5000.0, lengths=(528,) * 64, tokens=())
    wrong = Comparison(error=0.9, allowed=0.5)
    (row,) = graphs.rows(Answer(steps=slow, comparison=wrong), CARD.roofs)
    assert (row.status, row.is_aim_met) == ("wrong", False)
    (row,) = tasks["8B eager, first token of 8k"].rows(
        Answer(first_token_us=(2e5, 3e5, 2.5e5)), CARD.roofs
    )
    assert row.note == "32768 prompt tokens/s"
    assert row.bound_by == "matrix units"


@pytest.mark.parametrize(
    ("mode", "is_recorded", "problem"),
    [
        ("graphs", True, ""),
        ("graphs", False, "steps were not recorded"),
        ("eager", True, "steps were recorded"),
    ],
)
def test_an_engine_that_runs_in_the_other_mode_is_a_failure(
    mode: str, is_recorded: bool, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that cannot record goes on without, which is not what is timed."""
    steps = StepTimes(times=summary([1.0]), busy_us=None, lengths=(9,), tokens=())
    load = SimpleNamespace(decode=lambda batch: steps)
    monkeypatch.setattr(EngineUnderTest, "load", lambda self, mode: load)
    monkeypatch.setattr(EngineUnderTest, "is_recorded", is_recorded)
    (task,) = (task for task in ENGINE_TASKS if task.name == f"8B {mode}, decode 16 x 512")
    assert task.run(EngineUnderTest(interpreted_place())).problem == problem


def test_a_case_is_judged_where_it_runs() -> None:
    place = interpreted_place()
    (gather,) = (case for case in checks() if case.kernel == "gather_rows")
    assert check_case(gather, place).status == "ok"


def test_durations_have_three_digits() -> None:
    assert [duration(us) for us in (3.14159, 999.0, 4321.0, 2.5e6)] == [
        "3.14 us",
        "999 us",
        "4.32 ms",
        "2.5 s",
    ]


def test_cells_cannot_break_the_table() -> None:
    row = Row(kernel="x", case="a | b\nc", status="failed", note="why\n| not")
    report = Report(rows=[row], card={}, roofs=None, clocks={}, seconds=1.0)
    assert lines_of(as_markdown(report))[1] == ["x", "a / b c", "FAILED", "", "", "", "why / not"]
