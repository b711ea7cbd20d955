"""A silent stream is explained, once, and a lively one never."""

import threading
import time
from collections.abc import Iterator

import pytest

from radixd.cli import silence
from radixd.cli.silence import watched


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENT_AFTER_S", 0.1)
    monkeypatch.setattr(silence, "_LOOK_EVERY_S", 0.02)


def test_a_silence_is_explained_once_it_can_be() -> None:
    asked: list[str] = []
    told = threading.Event()

    def ask_why() -> str | None:
        asked.append("why")
        if len(asked) < 3:
            return None
        told.set()
        return "away"

    def pieces() -> Iterator[int]:
        yield 1
        assert told.wait(timeout=10)
        time.sleep(0.2)
        yield 2

    assert list(watched(pieces(), ask_why)) == [1, 2]
    assert len(asked) == 3


def test_nothing_is_asked_while_pieces_come() -> None:
    asked: list[str] = []

    def pieces() -> Iterator[int]:
        for i in range(10):
            time.sleep(0.01)
            yield i

    assert list(watched(pieces(), lambda: asked.append("why") or "away")) == list(range(10))
    assert not asked
