"""`python -m scheduler_svc` as a process: its ends and their exit statuses."""

import json
import signal
import subprocess
import sys

import pytest

from tests.scheduler_svc.shell.running import ThreadWorker

_CRASHING = """
import sys
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.__main__ import main

def explode(self, now_ns):
    raise AssertionError("books do not balance")

Scheduler.schedule = explode
sys.exit(main(sys.argv[1:]))
"""


class Process:
    """A scheduler process with an endpoint in a folder of its own."""

    def __init__(self, folder, *command: str) -> None:
        self.endpoint = f"ipc://{folder}/run/worker.ipc"
        arguments = ["--scheduler-port", "0", "--worker-endpoint", self.endpoint]
        self.popen = subprocess.Popen(
            [sys.executable, *command, *arguments], stderr=subprocess.PIPE, text=True
        )

    def wait_ready(self) -> dict:
        return json.loads(self.popen.stderr.readline())

    def end(self) -> tuple[int, str]:
        _, rest = self.popen.communicate(timeout=20)
        return self.popen.returncode, rest


@pytest.fixture
def start(tmp_path):
    started = []

    def run(*command: str) -> Process:
        started.append(Process(tmp_path, *command))
        return started[-1]

    yield run
    for process in started:
        process.popen.kill()
        process.popen.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_zero(start, number):
    process = start("-m", "scheduler_svc")
    ready = process.wait_ready()
    assert ready["event"] == "scheduler_ready"
    assert ready["port"] > 0
    process.popen.send_signal(number)
    status, rest = process.end()
    assert status == 0
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["scheduler_stopped"]


def test_a_defect_ends_it_with_status_one_and_a_traceback(start):
    process = start("-c", _CRASHING)
    process.wait_ready()
    worker = ThreadWorker(process.endpoint, 1)
    status, rest = process.end()
    worker.stop()
    assert status == 1
    crash = next(event for event in map(json.loads, rest.splitlines()) if "exception" in event)
    assert crash["event"] == "engine_loop_crashed"
    assert "books do not balance" in crash["exception"]
