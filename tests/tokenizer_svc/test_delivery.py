"""From news to the sink: in the same call while the client keeps up, else by the task."""

import asyncio
from array import array
from typing import Any

import pytest

from protos.errors import RadixdError, SlowReader
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.delivery import ChoicePiece, Delivery
from tokenizer_svc.generate import Finish, Piece
from tokenizer_svc.live_request import LiveRequest, Outcome

FINISH = Finish(
    reason=pb.FINISH_REASON_LENGTH,
    matched_stop=None,
    matched_token_id=None,
    message="",
    num_prompt_tokens=3,
    num_output_tokens=2,
    num_cached_tokens=1,
)


class Output:
    """Says each token as a character; fails where it is told to."""

    def __init__(self, *, problem: Exception | None = None) -> None:
        self.live = LiveRequest("r")
        self._problem = problem

    def take(self) -> Piece:
        if self._problem is not None:
            raise self._problem
        finish = None if self.live.outcome is None else FINISH
        return Piece(text="".join(map(chr, self.live.take())), token_ids=array("I"), finish=finish)

    def receive(self, text: str) -> None:
        self.live.receive(array("I", map(ord, text)), cached_tokens=0)
        self.live.tell()

    def end(self) -> None:
        self.live.end(Outcome(ending=internal.ENDING_LENGTH))


class HandSink:
    """Ready when the test says so."""

    def __init__(self) -> None:
        self.is_ready = True
        self.helps_itself = True
        self.got: list[ChoicePiece] = []
        self.problem: RadixdError | None = None
        self.num_waited = 0
        self._goes_on = asyncio.Event()

    def put(self, value: ChoicePiece, /) -> bool:
        assert self.is_ready
        self.got.append(value)
        return self.helps_itself

    async def ready(self) -> None:
        self.num_waited += 1
        if self.problem is not None:
            raise self.problem
        if not self.is_ready:
            await self._goes_on.wait()

    def go_on(self) -> None:
        self.is_ready = True
        self._goes_on.set()

    @property
    def texts(self) -> list[str]:
        return [each.piece.text for each in self.got]


async def begin(sink: HandSink, *outputs: Any) -> "asyncio.Task[None]":
    task = asyncio.create_task(Delivery(outputs, sink).run())
    await asyncio.sleep(0)
    return task


async def test_a_token_is_with_the_sink_before_the_call_that_brings_it_returns():
    sink, output = HandSink(), Output()
    task = await begin(sink, output)
    for text in "ab":
        output.receive(text)
        assert sink.texts[-1] == text  # no task has run in between
    output.end()
    assert [each.piece.finish for each in sink.got] == [None, None, FINISH]
    await task
    assert sink.num_waited == 1  # at the end alone


async def test_what_came_before_is_delivered_first():
    sink, output = HandSink(), Output()
    output.receive("early")
    task = await begin(sink, output)
    output.receive("late")
    output.end()
    await task
    assert sink.texts == ["early", "late", ""]


async def test_tokens_stay_where_they_are_while_the_sink_is_not_ready():
    sink, output = HandSink(), Output()
    task = await begin(sink, output)
    sink.is_ready = False
    output.receive("a")
    await asyncio.sleep(0)
    output.receive("b")
    assert sink.got == []
    sink.go_on()
    await asyncio.sleep(0.01)
    assert sink.texts == ["ab"]
    output.end()
    await task


async def test_the_task_helps_a_sink_that_cannot_pass_on_by_itself():
    sink, output = HandSink(), Output()
    sink.helps_itself = False
    task = await begin(sink, output)
    output.receive("a")
    await asyncio.sleep(0.01)
    assert sink.num_waited == 1
    output.end()
    await task


async def test_the_last_piece_of_all_choices_has_the_usage():
    sink, outputs = HandSink(), [Output(), Output()]
    task = await begin(sink, *outputs)
    outputs[1].receive("b")
    outputs[1].end()
    outputs[0].receive("a")
    outputs[0].end()
    await task
    assert [each.choice for each in sink.got] == [1, 1, 0, 0]
    assert [each.usage is not None for each in sink.got] == [False, False, False, True]
    usage = sink.got[-1].usage
    assert usage is not None
    assert (usage.num_prompt_tokens, usage.num_output_tokens) == (3, 4)


@pytest.mark.parametrize("problem", [SlowReader("too slow"), ValueError("a defect")])
async def test_a_failure_is_the_requests_own_and_not_of_who_brings_the_news(problem: Exception):
    sink, output = HandSink(), Output(problem=problem)
    task = await begin(sink, output)
    output.receive("a")
    with pytest.raises(type(problem)):
        await task
    output.receive("b")  # nobody listens any more
    assert sink.got == []


async def test_the_last_piece_may_come_while_another_is_passed_on():
    sink, output = HandSink(), Output()
    task = await begin(sink, output)
    sink.helps_itself = sink.is_ready = False
    output.receive("a")
    await asyncio.sleep(0)
    sink.go_on()
    output.end()  # before the task has seen that the sink goes on
    await task
    assert sink.num_waited == 2


async def test_after_a_failure_nothing_more_is_delivered():
    sink, bad, good = HandSink(), Output(problem=SlowReader("too slow")), Output()
    task = await begin(sink, bad, good)
    bad.receive("a")
    good.receive("b")  # before the task has run
    with pytest.raises(SlowReader):
        await task
    assert sink.got == []


async def test_a_sink_that_takes_no_more_ends_the_request():
    sink, output = HandSink(), Output()
    task = await begin(sink, output)
    sink.is_ready, sink.problem = False, SlowReader("too slow")
    output.receive("a")
    with pytest.raises(SlowReader):
        await task
