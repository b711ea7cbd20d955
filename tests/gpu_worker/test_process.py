"""The worker as a process: handshake over a real socket, a clean end, one line when it cannot."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protos import wire
from protos.plan import Envelope, Hello, Ping, Ready
from radixd.chassis.channel import SchedulerChannel

EPOCH = 5


def start(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-X", "importtime", "-m", "gpu_worker", *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def hear(channel: SchedulerChannel, kind: type, within_s: float = 30) -> tuple[bytes, Envelope]:
    """The next message of a kind, and who said it."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        got = channel.receive(200)
        if got is not None and isinstance(wire.decode(got[1]).message, kind):
            return got[0], wire.decode(got[1])
    raise AssertionError(f"no {kind.__name__} came")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_fake_worker_serves_and_ends_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/w.ipc"
    tmp_path.chmod(0o700)
    worker = start("--fake-worker", "--worker-endpoint", endpoint, "--kv-slots", "100")
    channel = SchedulerChannel(endpoint)  # later than the worker, which keeps trying
    try:
        peer, envelope = hear(channel, Hello)
        assert isinstance(envelope.message, Hello)
        assert (envelope.message.kind, envelope.message.num_slots) == ("fake", 100)
        channel.send(peer, wire.encode(Envelope(epoch=EPOCH, message=Ready())))
        _, envelope = hear(channel, Ping)
        assert envelope.epoch == EPOCH
        worker.send_signal(number)
        _, errors = worker.communicate(timeout=20)
    finally:
        worker.kill()
        worker.wait()
        channel.close()
    assert worker.returncode == 0
    assert '"worker_ready"' in errors
    assert '"worker_stopped"' in errors
    assert "Traceback" not in errors
    for heavy in ("torch", "numpy", "transformers", "grpc"):
        assert re.search(rf"\|\s+{heavy}$", errors, re.MULTILINE) is None


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--model", "nowhere/at/all"), "nowhere/at/all: no such file or folder"),
        (("--model", "pyproject.toml"), "pyproject.toml: not a GGUF file"),
        (("--fake-worker", "--worker-endpoint", "carrier-pigeon"), "worker_endpoint"),
        (("--kv-slots", "-3"), "kv_slots"),
    ],
)
def test_what_cannot_start_says_so_in_one_line(flags: tuple[str, ...], problem: str) -> None:
    command = [sys.executable, "-m", "gpu_worker", *flags]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=root)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu_worker: ")
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
