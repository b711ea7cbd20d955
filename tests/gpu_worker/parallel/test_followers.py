"""The processes of a group: what ends one ends all, with one line that says why.

The ranks here are small programs that speak the link and know no torch.
"""

import contextlib
import os
import queue
import signal
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from gpu_worker.engine import DoneStep, PlanError
from gpu_worker.fake_engine import FakeEngine, FakeModel
from gpu_worker.parallel.follower import follow
from gpu_worker.parallel.followers import Followers, GroupLost
from gpu_worker.parallel.leader import LeaderEngine
from gpu_worker.parallel.link import Kind, Link
from protos import wire
from protos.plan import BatchPlan, BatchResult, Envelope, Hello
from tests.gpu_worker.driver import Driver, Part

RANK = """
import socket, struct, sys
link = socket.socket(fileno=int(sys.argv[-1]))
def tell(kind, body=b""):
    link.sendall(struct.pack("<BI", kind, len(body)) + body)
"""
LOYAL = RANK + "tell(3)\nwhile link.recv(1 << 16): pass"
REFUSING = RANK + "tell(4, b'model: no memory')\nlink.recv(1)"
FAILING = RANK + "tell(3)\nlink.recv(1)\ntell(5, b'RuntimeError: no device')\nlink.recv(1)"
DYING_EARLY = RANK + "sys.exit(7)"


class Ends:
    """Notes how the process would have ended."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def __call__(self, status: int, message: str) -> None:
        self._said.put((status, message))

    def only(self) -> tuple[int, str]:
        """The one ending there was."""
        said = self._said.get(timeout=30)
        assert self._said.empty()
        return said

    def is_none(self) -> bool:
        return self._said.empty()


Start = Callable[..., Followers]


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def start(ends: Ends) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def started(*programs: str) -> Followers:
            followers = Followers([["-c", program] for program in programs], end=ends)
            stack.callback(followers.dismiss)
            return followers

        yield started


def is_gone(pid: int) -> bool:
    """Whether a process has ended, by itself or not; waits a while for it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_ranks_leave_when_they_are_dismissed(start: Start, ends: Ends) -> None:
    followers = start(LOYAL, LOYAL)
    followers.await_ready()
    followers.send(Kind.RESET)
    followers.dismiss()
    assert all(map(is_gone, followers.pids))
    assert ends.is_none()


def test_a_rank_that_dies_ends_the_group(start: Start, ends: Ends) -> None:
    followers = start(LOYAL, LOYAL)
    followers.await_ready()
    os.kill(followers.pids[1], signal.SIGKILL)
    message = "tensor-parallel rank 2 ended with exit code -9: the group stops"
    assert ends.only() == (75, message)
    assert all(map(is_gone, followers.pids))
    with pytest.raises(GroupLost):
        followers.send(Kind.RESET)


def test_a_rank_that_refuses_ends_the_start(start: Start, ends: Ends) -> None:
    followers = start(LOYAL, REFUSING)
    with pytest.raises(GroupLost):
        followers.await_ready()
    assert ends.only() == (2, "model: no memory (tensor-parallel rank 2)")


def test_a_rank_that_dies_while_it_loads_ends_the_start(start: Start, ends: Ends) -> None:
    followers = start(DYING_EARLY)
    with pytest.raises(GroupLost):
        followers.await_ready()
    message = "tensor-parallel rank 1 ended with exit code 7: the group stops"
    assert ends.only() == (75, message)


def test_a_rank_says_why_it_failed(start: Start, ends: Ends) -> None:
    followers = start(FAILING)
    followers.await_ready()
    followers.send(Kind.RESET)
    message = "tensor-parallel rank 1 failed: RuntimeError: no device: the group stops"
    assert ends.only() == (75, message)


def nothing(step_id: int) -> BatchPlan:
    """A plan without rows."""
    none = array("i")
    return BatchPlan(
        step_id=step_id,
        rows=none,
        prefix_lens=none,
        extend_lens=none,
        samples=b"",
        input_ids=none,
        out_slots=none,
        freed_rows=none,
    )


class Broken:
    """An engine of rank 0 whose steps fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def hello(self) -> Hello:
        return FakeEngine(FakeModel(), num_slots=8, max_rows=1, max_length=8).hello()

    def reset(self) -> None:
        pass

    def begin(self, plan: BatchPlan) -> DoneStep:
        raise self.error


def test_a_failed_step_of_rank_0_ends_the_group_but_a_bad_plan_does_not(
    start: Start, ends: Ends
) -> None:
    followers = start(LOYAL)
    followers.await_ready()
    engine = Broken(PlanError("row 3 is free"))
    leader = LeaderEngine(engine, followers)
    with pytest.raises(PlanError):
        leader.begin(nothing(1))
    assert ends.is_none()
    engine.error = RuntimeError("out of memory\nand more")
    with pytest.raises(RuntimeError):
        leader.begin(nothing(2))
    message = "tensor-parallel rank 0 failed: RuntimeError: out of memory: the group stops"
    assert ends.only() == (75, message)


def test_the_death_that_broke_a_step_is_what_is_said(start: Start, ends: Ends) -> None:
    followers = start(LOYAL)
    followers.await_ready()
    leader = LeaderEngine(Broken(RuntimeError("connection closed by peer")), followers)
    os.kill(followers.pids[0], signal.SIGKILL)
    with pytest.raises((RuntimeError, GroupLost)):
        leader.begin(nothing(1))
    message = "tensor-parallel rank 1 ended with exit code -9: the group stops"
    assert ends.only() == (75, message)


class Over(Exception):
    """Rank 0 says no more."""


def test_a_follower_does_what_rank_0_was_asked_and_survives_bad_plans() -> None:
    engines = [FakeEngine(FakeModel(), num_slots=64, max_rows=2, max_length=64) for _ in range(2)]
    leader, own = engines
    driver = Driver(leader)
    row = driver.open(0)
    first, second = driver.plan(Part(row, [5, 6])), driver.plan(Part(row, [-1]))
    bad = replace(second, freed_rows=array("i", [1]))
    messages = [wire.encode(Envelope(epoch=0, message=plan)) for plan in (first, bad, second)]
    ours, theirs = map(Link, socket.socketpair())
    ours.send(Kind.RESET)
    for body in messages:
        ours.send(Kind.PLAN, body)
    ours.close()

    def receive(timeout_s: float | None) -> tuple[Kind, bytes]:
        message = theirs.receive()
        if message is None:
            raise Over
        return message

    with pytest.raises(Over):
        follow(own, receive)
    for plan in (first, second):
        leader.execute(plan)
    slots = array("i", row.slots)
    assert own.read(slots) == leader.read(slots)


class Lame:
    """A step in flight that fails when it is done."""

    def is_done(self) -> bool:
        return True

    def result(self) -> BatchResult:
        raise RuntimeError("the device is gone")


def test_a_follower_hears_of_each_step_in_order_and_of_no_more_than_two_late() -> None:
    """What a step sampled is known to grammars once its result is asked for, on every rank."""
    events: list[str] = []

    class Slow:
        def __init__(self, step_id: int) -> None:
            self.step_id = step_id

        def is_done(self) -> bool:
            return False

        def result(self) -> None:
            events.append(f"result {self.step_id}")

    class Engine(Broken):
        def begin(self, plan: BatchPlan) -> Slow:  # type: ignore[override]
            events.append(f"begin {plan.step_id}")
            return Slow(plan.step_id)

    def messages() -> Iterator[tuple[Kind, bytes] | None]:
        for step_id in (1, 2, 3, 4):
            yield Kind.PLAN, wire.encode(Envelope(epoch=0, message=nothing(step_id)))
            yield None

    given = messages()
    with pytest.raises(StopIteration):
        follow(Engine(Over()), lambda timeout_s: next(given))
    assert events == ["begin 1", "begin 2", "result 1", "begin 3", "result 2", "begin 4"]


def test_a_follower_notices_a_failure_while_nobody_asks() -> None:
    class Engine(Broken):
        def begin(self, plan: BatchPlan) -> Lame:  # type: ignore[override]
            return Lame()

    plan = wire.encode(Envelope(epoch=0, message=nothing(1)))
    messages = iter([(Kind.PLAN, plan), None])
    with pytest.raises(RuntimeError, match="the device is gone"):
        follow(Engine(Over()), lambda timeout_s: next(messages))
