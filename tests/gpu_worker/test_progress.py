"""Loading shows a bar to a person and events to a log."""

import io
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits
from radixd.chassis.progress import byte_progress
from tests.gpu_worker.tiny_models import make_oracle, save


class Terminal(io.StringIO):
    """A stderr with a person before it."""

    def isatty(self) -> bool:
        return True


def test_log_gets_an_event_each_tenth(tmp_path: Path) -> None:
    source = save(make_oracle(num_hidden_layers=9), tmp_path)
    with capture_logs() as events:
        load_engine(source, EngineLimits(num_slots=8, max_rows=1))
    progress = [event for event in events if event["event"] == "progress"]
    percents = [event["percent"] for event in progress]
    assert percents[-1] >= 90
    assert percents == sorted({percent // 10 * 10 for percent in percents})
    assert {event["what"] for event in progress} == {"loading tiny"}


def test_large_strides_skip_tenths() -> None:
    with capture_logs() as events, byte_progress("work", 100) as advance:
        for num_bytes in (10, 70, 20):
            advance(num_bytes)
    assert [event["percent"] for event in events] == [10, 80, 100]


def test_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with capture_logs() as events, byte_progress("loading tiny", 2000) as advance:
        advance(2000)
    assert "loading tiny" in terminal.getvalue()
    assert "2.0/2.0 kB" in terminal.getvalue()
    assert events == []
