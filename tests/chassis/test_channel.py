"""The two ends of the worker's channel: delivery, noise, locks, loss."""

import contextlib
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq

from protos.errors import InvalidRequest
from radixd.chassis.channel import SchedulerChannel, WorkerChannel


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/run/worker.ipc"


@pytest.fixture
def scheduler(endpoint):
    channel = SchedulerChannel(endpoint)
    yield channel
    channel.close()


@pytest.fixture
def worker(endpoint, scheduler):
    channel = WorkerChannel(endpoint)
    yield channel
    channel.close()


def receive_soon(channel: SchedulerChannel, seconds: float = 30.0) -> tuple[bytes, bytes]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (message := channel.receive(100)) is not None:
            return message
    raise AssertionError("nothing arrived")


def test_messages_travel_both_ways_in_order(scheduler, worker):
    for number in range(10):
        worker.send(b"%d" % number)
    received = [receive_soon(scheduler) for _ in range(10)]
    assert [data for _, data in received] == [b"%d" % number for number in range(10)]
    peer = received[0][0]
    assert scheduler.send(peer, b"plan")
    assert worker.receive(5000) == b"plan"


def test_a_worker_that_starts_first_is_heard(endpoint):  # field case 128
    worker = WorkerChannel(endpoint)
    worker.send(b"hello")
    scheduler = SchedulerChannel(endpoint)
    assert receive_soon(scheduler)[1] == b"hello"
    scheduler.close()
    worker.close()


def test_worker_finds_the_scheduler_again(endpoint, worker, scheduler):
    worker.send(b"one")
    receive_soon(scheduler)
    scheduler.close()
    again = SchedulerChannel(endpoint)
    worker.send(b"two")
    assert receive_soon(again)[1] == b"two"
    again.close()


def test_unread_messages_are_dropped_and_counted_while_nobody_listens(endpoint):
    worker = WorkerChannel(endpoint)
    for _ in range(1000):
        worker.send(b"ping")
    assert 900 <= worker.num_dropped < 1000
    worker.close()


def test_receive_times_out_and_wakes_from_another_thread(scheduler):
    started = time.monotonic()
    assert scheduler.receive(30) is None
    assert time.monotonic() - started < 20
    timer = threading.Timer(0.05, scheduler.wake)
    timer.start()
    assert scheduler.receive(30_000) is None
    timer.join()
    assert time.monotonic() - started < 20


def test_many_wakes_neither_block_nor_pile_up(scheduler):
    for _ in range(100_000):
        scheduler.wake()
    while scheduler.receive(0) is None and scheduler._poller.poll(0):
        pass
    started = time.monotonic()
    assert scheduler.receive(40) is None
    assert time.monotonic() - started >= 0.03


def test_sending_to_a_stranger_or_a_peer_that_left_is_false(scheduler, endpoint):
    assert not scheduler.send(b"nobody", b"x")
    worker = WorkerChannel(endpoint)
    worker.send(b"hello")
    peer, _ = receive_soon(scheduler)
    worker.close()
    end = time.monotonic() + 20
    while scheduler.send(peer, b"x") and time.monotonic() < end:
        scheduler.receive(5)
    assert time.monotonic() < end


def test_a_peer_that_reads_nothing_is_given_up(scheduler, worker):
    worker.send(b"hello")
    peer, _ = receive_soon(scheduler)
    big = bytes(1 << 20)
    assert not all(scheduler.send(peer, big) for _ in range(1000))


def test_a_killed_worker_is_noticed_at_once(scheduler, endpoint):
    script = (
        "import sys, time; from radixd.chassis.channel import WorkerChannel\n"
        "channel = WorkerChannel(sys.argv[1]); channel.send(b'hello'); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, endpoint])
    try:
        peer, _ = receive_soon(scheduler)
        assert scheduler.send(peer, b"ping")
        assert not scheduler.peer_may_be_gone()
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        while not (scheduler.peer_may_be_gone() and not scheduler.send(peer, b"ping")):
            assert time.monotonic() - killed < 20
            scheduler.receive(1000)
    finally:
        process.kill()
        process.wait()


def test_the_endpoint_of_a_killed_scheduler_is_free(endpoint):
    script = (
        "import sys, time; from radixd.chassis.channel import SchedulerChannel\n"
        "channel = SchedulerChannel(sys.argv[1]); print('bound', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, endpoint], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"bound\n"
        with pytest.raises(InvalidRequest, match=f"process {process.pid}"):
            SchedulerChannel(endpoint)
    finally:
        process.kill()
        process.communicate()
    scheduler, worker = SchedulerChannel(endpoint), WorkerChannel(endpoint)
    worker.send(b"hello")
    assert receive_soon(scheduler)[1] == b"hello"
    worker.close()
    scheduler.close()


def raw_dealer(context: zmq.Context, endpoint: str) -> zmq.Socket:
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 1000
    dealer.connect(endpoint)
    return dealer


def test_malformed_frames_are_counted_and_dropped(scheduler, endpoint, tmp_path):  # field case 127
    marker = tmp_path / "marker"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    context = zmq.Context()
    dealer = raw_dealer(context, endpoint)
    dealer.send(b"")
    dealer.send_multipart([b"x"] * 50)
    dealer.send_multipart([b"", b"x"])
    dealer.send(pickle.dumps(Bomb()))
    # One frame with content is the codec's to judge, and it arrives as bytes.
    assert receive_soon(scheduler)[1] == pickle.dumps(Bomb())
    assert scheduler.num_malformed == 3
    assert not marker.exists()
    dealer.close()
    context.term()


@pytest.mark.parametrize("noise", [random.Random(3).randbytes(1 << 20), b"GET / HTTP/1.1\r\n\r\n"])
def test_noise_on_the_socket_disturbs_nobody(scheduler, worker, endpoint, noise):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(endpoint.removeprefix("ipc://"))
        stranger.setblocking(False)
        with contextlib.suppress(OSError):  # cut off midway, or left unread
            stranger.sendall(noise)
        worker.send(b"fine")
        while receive_soon(scheduler)[1] != b"fine":
            pass


def test_oversized_message_cuts_only_its_sender(scheduler, worker, endpoint):
    context = zmq.Context()
    dealer = raw_dealer(context, endpoint)
    dealer.linger = 0
    dealer.send(bytes((64 << 20) + 1))
    assert scheduler.receive(300) is None
    worker.send(b"fine")
    assert receive_soon(scheduler)[1] == b"fine"
    dealer.close()
    context.term()


def test_worker_drops_malformed_frames(endpoint, tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.bind(endpoint)
    worker = WorkerChannel(endpoint)
    worker.send(b"hello")
    peer, _ = router.recv_multipart()
    router.send_multipart([peer, b""])
    router.send_multipart([peer, *[b"x"] * 50])
    router.send_multipart([peer, b"good"])
    assert worker.receive(5000) == b"good"
    assert worker.num_dropped == 2
    worker.close()
    router.close()
    context.term()


def test_second_scheduler_is_refused_naming_path_and_process(scheduler, endpoint):
    with pytest.raises(InvalidRequest, match="held by another scheduler") as caught:
        SchedulerChannel(endpoint)
    assert endpoint.removeprefix("ipc://") in str(caught.value)
    assert str(os.getpid()) in str(caught.value)


def test_endpoint_is_free_after_close(endpoint):
    path = Path(endpoint.removeprefix("ipc://"))
    for _ in range(3):
        channel = SchedulerChannel(endpoint)
        assert path.is_socket()
        channel.close()
        channel.close()
        assert not path.exists()


def test_socket_and_folder_are_private(scheduler, endpoint):
    path = Path(endpoint.removeprefix("ipc://"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_folder_that_others_may_write_is_refused(endpoint):
    folder = Path(endpoint.removeprefix("ipc://")).parent
    folder.mkdir()
    folder.chmod(0o777)
    for kind in (SchedulerChannel, WorkerChannel):
        with pytest.raises(InvalidRequest, match="only this user may write"):
            kind(endpoint)
    assert folder.stat().st_mode & 0o777 == 0o777


def test_linked_folder_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(InvalidRequest, match="only this user may write"):
        SchedulerChannel(f"ipc://{tmp_path}/link/worker.ipc")


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("ipc:///tmp/" + "x" * 120 + "/worker.ipc", "a local socket takes 107"),
        ("ipc://relative/worker.ipc", "not an absolute path"),
        ("inproc://x", "neither ipc:// nor tcp://"),
        ("tcp://0.0.0.0:5555", "neither encryption nor authentication"),
        ("tcp://*:5555", "neither encryption nor authentication"),
        ("tcp://[::]:5555", "neither encryption nor authentication"),
        ("tcp://192.0.2.1:5555", "neither encryption nor authentication"),
        ("tcp://127.0.0.1:nonsense", "tcp://127.0.0.1:nonsense"),
    ],
)
def test_bad_endpoints_get_one_clear_line(endpoint, text):
    with pytest.raises(InvalidRequest, match=r"worker_endpoint|run_dir") as caught:
        SchedulerChannel(endpoint)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])  # field case 132
def test_loopback_tcp_works(host):
    family = socket.AF_INET6 if host == "[::1]" else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host.strip("[]"), 0))
        port = probe.getsockname()[1]
    scheduler = SchedulerChannel(f"tcp://{host}:{port}")
    with pytest.raises(InvalidRequest, match="in use"):
        SchedulerChannel(f"tcp://{host}:{port}")
    worker = WorkerChannel(f"tcp://{host}:{port}")
    worker.send(b"hello")
    peer, data = receive_soon(scheduler)
    assert data == b"hello"
    assert scheduler.send(peer, b"plan")
    assert worker.receive(5000) == b"plan"
    worker.close()
    scheduler.close()
