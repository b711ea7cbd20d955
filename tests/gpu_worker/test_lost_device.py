"""A device that fails for good ends the worker; one that fails once does not."""

import threading
from collections.abc import Callable

import pytest
import torch

import gpu_worker.__main__ as worker
from gpu_worker.device.lost_device import losing
from gpu_worker.engine import EngineLost
from radixd.chassis.command import LOST_EXIT_STATUS

CPU = torch.device("cpu")


def fails(_device: torch.device) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nand so on")


@pytest.mark.parametrize(
    ("synchronize", "error", "message"),
    [
        (fails, EngineLost, "the device is lost: unspecified launch failure"),
        (lambda _device: None, RuntimeError, "unspecified launch failure"),
    ],
)
def test_a_device_that_does_not_wait_any_more_is_lost(
    synchronize: Callable[[torch.device], None], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught, losing(CPU, synchronize):
        raise RuntimeError("unspecified launch failure\nmore")
    assert str(caught.value).startswith(message)
    assert type(caught.value) is error


def test_the_worker_then_ends_in_one_line_and_may_be_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    def run(_session: object, _stop: threading.Event) -> None:
        raise EngineLost("the device is lost: it burns")

    monkeypatch.setattr(worker.Session, "run", run)
    monkeypatch.setattr(worker, "configure_logs", lambda *_: None)
    monkeypatch.setattr(worker, "_on_stop_signals", lambda _action: None)
    argv = ["--fake-worker", "--run-dir", str(tmp_path)]
    assert worker.main(argv) == LOST_EXIT_STATUS
    assert capsys.readouterr().err.splitlines()[-1] == "gpu_worker: the device is lost: it burns"
