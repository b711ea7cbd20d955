"""The stopwatch and the roofs on a card that is played: its clock moves as it is told."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from tests.gpu import roofs, timing
from tests.gpu.roofs import measure_roofs
from tests.gpu.timing import CardStopwatch, Times, summary

CPU = torch.device("cpu")
ROOM = 4096


class PlayedCard:
    """What torch.cuda says of a card on which everything takes as long as `take` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_us = 0.0
        self.log: list[str] = []
        card = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_us = card.now_us
                card.log.append("event")

            def elapsed_time(self, end: "Event") -> float:
                assert card.log[-1] == "synchronize", "read before the card was done"
                return (end.at_us - self.at_us) / 1e3

        total = torch.sum

        def read(*args: object, **options: object) -> object:
            self.take("read", 100.0)
            return total(*args, **options)  # type: ignore[call-overload]

        properties = SimpleNamespace(L2_cache_size=ROOM // 8)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.log.append("synchronize"))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch, "sum", read)
        monkeypatch.setattr(timing, "_LEAST_ROOM", ROOM)

    def take(self, what: str, time_us: float) -> None:
        self.log.append(what)
        self.now_us += time_us


def test_runs_are_timed_alone_and_behind_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    card = PlayedCard(monkeypatch)
    stopwatch = CardStopwatch(CPU, seconds=0.002)
    card.log.clear()
    times = stopwatch.times(lambda: card.take("run", 7.0))
    assert (times.median_us, times.low_us, times.high_us) == (7.0, 7.0, 7.0)
    assert 7 <= times.num_runs <= 20  # two milliseconds of runs behind reads of 100 us
    events = [index for index, what in enumerate(card.log) if what == "event"]
    for begin, end in zip(events[::2], events[1::2], strict=True):
        assert card.log[begin - 1] == "read"
        assert card.log[begin + 1 : end] == ["run"]


def test_roofs_are_amounts_over_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopwatch:
        def times(self, run: Callable[[], object]) -> Times:
            run()
            return summary([2.0])

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 * ROOM, 8 * ROOM))
    monkeypatch.setattr(roofs, "_SQUARES", (8, 16))
    found = measure_roofs(CPU, Stopwatch())
    assert found.copy_bytes_per_s == pytest.approx(2 * ROOM / 2e-6)
    assert found.read_bytes_per_s == pytest.approx(ROOM / 2e-6)
    assert found.bf16_flops_per_s == pytest.approx(2 * 16**3 / 2e-6)
