"""The launcher with a real scheduler, a quiet worker and a front that only has a health."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from protos.errors import InvalidRequest, RadixdError
from radixd.chassis.readiness import SERVING, UNREACHABLE, readiness
from radixd.chassis.settings import Settings
from radixd.launcher import progress as progress_module
from radixd.launcher import supervisor as supervisor_module
from radixd.launcher.files import check_files
from radixd.launcher.ports import free_ports
from radixd.launcher.supervisor import Supervisor
from tokenizer_svc.__main__ import DRAIN_GRACE_S

ROOT = Path(__file__).parents[2]
STAND_INS = {
    "gpu_worker": "tests.launcher.quiet_worker",
    "tokenizer_svc": "tests.launcher.health_front",
}


@pytest.fixture(autouse=True)
def _importable_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def settings(**changes) -> Settings:
    return Settings(**({"port": 0, "scheduler_port": 0, "fake_worker": True} | changes))


class Launch:
    """A supervisor of stand-ins and what it said."""

    def __init__(self, **changes) -> None:
        self.lines: list[str] = []
        self.supervisor = Supervisor(settings(**changes), echo=self._echo, modules=STAND_INS)

    def _echo(self, text: str) -> None:
        self.lines.extend(text.splitlines())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_everything_starts_is_ready_and_ends():
    launch = Launch()
    with launch.supervisor as stack:
        assert readiness(stack.address) == SERVING
        pids = stack.pids()
        assert list(pids) == ["scheduler_svc", "gpu_worker", "tokenizer_svc"]
        assert all(stack.peak_rss_bytes()[name] > 1 << 20 for name in pids)
        assert f"radixd is ready: gRPC on {stack.address}" in launch.text
        wait_until(lambda: "scheduler_ready" in launch.text)  # its line may still be on its way
        folder = stack.settings.run_dir
        assert folder.is_dir()
    assert readiness(stack.address) == UNREACHABLE
    assert not any(map(is_alive, pids.values()))
    assert not folder.exists()
    wait_until(lambda: "front drained" in launch.text)
    stack.stop()


def test_a_child_that_ends_early_is_named_with_its_last_lines(monkeypatch):
    monkeypatch.setenv("QUIET_WORKER", "exit")
    monkeypatch.setenv("HEALTH_FRONT", "never")
    launch = Launch()
    with pytest.raises(RadixdError) as caught:
        launch.supervisor.start()
    message = str(caught.value)
    assert "gpu_worker ended with status 3" in message
    assert "line 29" in message
    assert "line 9\n" not in message
    assert launch.supervisor.pids() == {}


def test_a_start_may_be_limited(monkeypatch):
    monkeypatch.setenv("HEALTH_FRONT", "never")
    launch = Launch(start_timeout_s=2.0)
    with pytest.raises(RadixdError, match="not ready after 2 s: waiting for"):
        launch.supervisor.start()


@pytest.mark.parametrize("option", ["port", "scheduler_port", "metrics_port"])
def test_a_taken_port_is_refused_before_anything_starts(option):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        launch = Launch(**{option: taken})
        with pytest.raises(InvalidRequest, match=f"{option}: .*{taken} is already in use"):
            launch.supervisor.start()
    assert launch.supervisor.pids() == {}


def test_metrics_do_not_listen_where_callers_do():
    (port,) = free_ports("127.0.0.1", 1)
    launch = Launch(port=port, metrics_port=port)
    with pytest.raises(InvalidRequest, match=f"metrics_port: is {port}, like port; they must"):
        launch.supervisor.start()
    assert launch.supervisor.pids() == {}


def test_the_time_streams_have_is_the_front_s():
    assert supervisor_module.STREAMS_GRACE_S == DRAIN_GRACE_S
    assert supervisor_module.FRONT_GRACE_S > DRAIN_GRACE_S


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("preheat", "prefixes: [{text: a}, {txt: b}]", "entry 2, txt: unknown"),
        ("preheat", "prefixes: [{text: a, tenant: acme}]", "'acme' is no tenant"),
        ("tenants", "acme: {wait: 1}", "acme.wait"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_starts(tmp_path, option, text, problem):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    launch = Launch(**{option: path})
    with pytest.raises(InvalidRequest) as caught:
        launch.supervisor.start()
    assert str(caught.value).startswith(f"{option}: {path}")
    assert problem in str(caught.value)
    assert launch.supervisor.pids() == {}
    assert launch.lines == []


def test_a_tenant_of_the_file_may_have_a_prefix(tmp_path):
    tenants, preheat = tmp_path / "tenants.yaml", tmp_path / "prefixes.yaml"
    tenants.write_text("acme: {weight: 2.0}")
    preheat.write_text("prefixes: [{text: a, tenant: acme}]")
    check_files(settings(tenants=tenants, preheat=preheat))
    with pytest.raises(InvalidRequest):
        check_files(settings(preheat=preheat))


def test_a_front_that_preheats_says_how_far_it_is(monkeypatch):
    shown = f"preheating {'█' * 6}{'░' * 18} 25 %, 1 of 4 prefixes, 320 tokens"
    launch = Launch()

    class OnlyTheFrontIsMissing:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def missing(self):
            is_shown = any(line.endswith(shown) for line in launch.lines)
            return None if is_shown else "waiting for tokenizer_svc to be ready"

    monkeypatch.setenv("HEALTH_FRONT", "preheats")
    monkeypatch.setattr(supervisor_module, "StackReadiness", OnlyTheFrontIsMissing)
    monkeypatch.setattr(progress_module, "QUIET_S", 0.0)
    with launch.supervisor:
        assert any(line.startswith("waiting for tokenizer_svc") for line in launch.lines)


def test_prefixes_that_failed_are_named_again_once_it_is_ready(monkeypatch):
    monkeypatch.setenv("HEALTH_FRONT", "fails")
    launch = Launch()
    with launch.supervisor:
        ready = next(n for n, line in enumerate(launch.lines) if "radixd is ready" in line)
        assert "  not as --preheat asked, entry 2: too long" in launch.lines[ready:]


def test_a_second_server_needs_another_public_port_only():  # field case 130
    scheduler_port = Settings().scheduler_port
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # taken already does as well
            holder = stack.enter_context(socket.socket())
            holder.bind(("127.0.0.1", scheduler_port))
            holder.listen()
        lines: list[str] = []
        supervisor = Supervisor(Settings(port=0), echo=lines.append, modules=STAND_INS)
        stack.enter_context(supervisor)
        assert supervisor.settings.scheduler_port != scheduler_port
        assert readiness(supervisor.address) == SERVING


def test_a_dead_service_ends_the_wait():
    launch = Launch()
    with launch.supervisor as stack:
        os.kill(stack.pids()["scheduler_svc"], signal.SIGKILL)
        assert stack.wait() == 1
        assert "scheduler_svc was ended by SIGKILL" in launch.text


def test_a_killed_worker_is_restarted_three_times():
    launch = Launch()
    with launch.supervisor as stack:
        result: list[int] = []
        killer = threading.Thread(target=_kill_worker_again_and_again, args=(stack, 4))
        killer.start()
        result.append(stack.wait())
        killer.join()
        assert result == [1]
        assert launch.text.count("radixd starts it again") == 3


def _kill_worker_again_and_again(stack: Supervisor, times: int) -> None:
    killed = {0}
    for _ in range(times):
        wait_until(lambda: stack.pids().get("gpu_worker", 0) not in killed)
        killed.add(stack.pids()["gpu_worker"])
        os.kill(stack.pids()["gpu_worker"], signal.SIGKILL)


def test_no_restart_when_told_so():
    launch = Launch(restart_worker=False)
    with launch.supervisor as stack:
        os.kill(stack.pids()["gpu_worker"], signal.SIGKILL)
        assert stack.wait() == 1
        assert "gpu_worker was ended by SIGKILL" in launch.text


_LAUNCHER = """
import sys
from radixd.chassis.settings import Settings
from radixd.launcher import progress as progress_module
from radixd.launcher import supervisor as supervisor_module
from radixd.launcher.files import check_files
from radixd.launcher.supervisor import Supervisor
from tests.launcher.test_supervisor import STAND_INS

supervisor = Supervisor(
    Settings(port=0, scheduler_port=0), echo=lambda text: print(text, flush=True), modules=STAND_INS
)
supervisor.start()
print("pids", *supervisor.pids().values(), flush=True)
status = supervisor.wait()
supervisor.stop()
sys.exit(status)
"""


@contextlib.contextmanager
def launcher_process(**environment):
    """A launcher in a process of its own: (process, pids of its children)."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pids: list[int] = []
        while not pids:
            line = process.stdout.readline()
            assert line, "the launcher ended"
            if line.startswith("pids"):
                pids = [int(word) for word in line.split()[1:]]
        yield process, pids
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(number):
    with launcher_process() as (process, pids):
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "radixd is stopping: streams have 10 s to finish" in output
        assert not any(map(is_alive, pids))


def test_a_second_ctrl_c_does_not_wait():
    with launcher_process(QUIET_WORKER="stubborn") as (process, pids):
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert time.monotonic() - started < 9
        assert process.returncode == 0
        assert not any(map(is_alive, pids))


def test_children_die_with_the_launcher():
    with launcher_process() as (process, pids):
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_alive, pids)))
