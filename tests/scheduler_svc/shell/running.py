"""A scheduler in this process, a slot-true worker in a thread, and a front to talk to them."""

import asyncio
import threading
from array import array
from dataclasses import replace
from pathlib import Path

import grpc

from gpu_worker.engine import PlanError
from gpu_worker.fake_engine import FakeEngine, FakeModel
from protos import wire
from protos.plan import BatchPlan, Envelope, Fault, Hello, Ping, Ready
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc
from protos.wire import pack_ids, unpack_ids
from radixd.chassis.channel import WorkerChannel
from radixd.chassis.settings import Settings

MODEL = FakeModel()


def settings_for(folder: Path, **changes) -> Settings:
    values = {"scheduler_port": 0, "run_dir": folder / "run", "fake_worker": True}
    return Settings(**(values | changes))


class ThreadWorker:
    """Says Hello, carries out plans until it is stopped; `freeze` makes it hang."""

    def __init__(self, endpoint: str, instance_id: int, *, step_delay_s: float = 0.0) -> None:
        self._engine = FakeEngine(
            MODEL, num_slots=4096, max_rows=64, max_length=2048, step_delay_s=step_delay_s
        )
        self._channel = WorkerChannel(endpoint)
        self._instance_id = instance_id
        self._epoch = 0
        self._stopping = False
        self.frozen = threading.Event()
        self.num_steps = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()
        self._channel.close()

    def _hello(self) -> Hello:
        return replace(self._engine.hello(), instance_id=self._instance_id)

    def _run(self) -> None:
        self._say(self._hello())
        while not self._stopping:
            data = self._channel.receive(20)
            if data is not None and not self.frozen.is_set():
                self._hear(wire.decode(data))

    def _hear(self, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, Ready):
            self._epoch = envelope.epoch
            self._engine.reset()
        elif envelope.epoch != self._epoch:
            self._say(self._hello())
        elif isinstance(message, BatchPlan):
            try:
                self._say(self._engine.execute(message))
                self.num_steps += 1
            except PlanError as error:
                self._say(Fault(step_id=message.step_id, message=str(error)))
        elif isinstance(message, Ping):
            self._say(Ping(instance_id=self._instance_id))

    def _say(self, message) -> None:
        self._channel.send(wire.encode(Envelope(epoch=self._epoch, message=message)))


class FrontClient:
    """One Attach stream; what comes in is sorted by request."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self._call = self.stub.Attach()
        self.epoch = 0
        self.states: list[bool] = []
        self.tokens: dict[str, list[int]] = {}
        self.endings: dict[str, pb.Output] = {}
        self.num_messages = 0

    async def submit(self, request_id: str, prompt: list[int], max_tokens: int = 5, **more) -> None:
        submit = pb.Submit(
            request_id=request_id,
            prompt_ids=pack_ids(array("i", prompt)),
            max_tokens=max_tokens,
            **more,
        )
        await self._call.write(pb.AttachRequest(submit=submit))

    async def cancel(self, request_id: str) -> None:
        await self._call.write(pb.AttachRequest(cancel=pb.Cancel(request_id=request_id)))

    async def leave(self) -> None:
        self._call.cancel()

    async def read_until(self, condition, timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                message = await self._call.read()
                assert message is not grpc.aio.EOF
                self.num_messages += 1
                self._sort(message)

    async def read_endings(self, *request_ids: str) -> None:
        await self.read_until(lambda: all(key in self.endings for key in request_ids))

    def _sort(self, message: pb.AttachResponse) -> None:
        kind = message.WhichOneof("body")
        if kind == "welcome":
            self.epoch = message.welcome.epoch
        elif kind == "worker_state":
            self.states.append(message.worker_state.connected)
        else:
            for output in message.outputs.outputs:
                assert output.request_id not in self.endings, "news after the end"
                tokens = self.tokens.setdefault(output.request_id, [])
                tokens.extend(unpack_ids(output.token_ids))
                if output.ending:
                    self.endings[output.request_id] = output


def expected(prompt: list[int], max_tokens: int = 5) -> list[int]:
    """What the model says, whatever the scheduler does."""
    return MODEL.generate(prompt, max_tokens)


async def idle_stats(front: FrontClient) -> pb.GetStatsResponse:
    """The books once nothing is under way."""
    while True:
        stats = await front.stub.GetStats(pb.GetStatsRequest())
        if not (stats.num_running or stats.num_waiting or stats.in_flight or stats.private):
            return stats
        await asyncio.sleep(0.01)
