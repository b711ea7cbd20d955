"""The gRPC face by itself: an engine that only listens, fronts that misbehave."""

import asyncio
from array import array

import grpc
import pytest

from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc
from protos.wire import pack_ids
from radixd.chassis.grpc_server import create_server, listen
from scheduler_svc.core.messages import Output
from scheduler_svc.engine_loop import Delivery
from scheduler_svc.service import SchedulerService
from tests.scheduler_svc.shell.scripted import a_hello


class ListeningEngine:
    """Notes what is posted; `is_full` makes it refuse."""

    def __init__(self) -> None:
        self.posted = []
        self.left = []
        self.is_full = False

    def post(self, command) -> bool:
        if self.is_full:
            return False
        self.posted.append(command)
        return True

    def leave(self, front_id: int) -> None:
        self.left.append(front_id)


class Scene:
    def __init__(self) -> None:
        self.engine = ListeningEngine()
        self.workers = []
        self.service = SchedulerService(
            self.engine, epoch=5, started_ns=0, on_worker=self.workers.append
        )
        self.port = 0
        self.channels = []

    def attach(self):
        # A connection each, as fronts have.
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options)
        self.channels.append(channel)
        return scheduler_pb2_grpc.SchedulerServiceStub(channel).Attach()


@pytest.fixture
async def scene():
    scene = Scene()
    server = create_server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scene.service, server)
    scene.port = listen(server, "127.0.0.1", 0)
    await server.start()
    yield scene
    scene.service.end_streams()
    for channel in scene.channels:
        await channel.close()
    await server.stop(1)


async def soon(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def read_to_the_end(call) -> None:
    while await call.read():
        pass


def submit(request_id: str) -> pb.AttachRequest:
    prompt_ids = pack_ids(array("i", [1]))
    return pb.AttachRequest(
        submit=pb.Submit(request_id=request_id, prompt_ids=prompt_ids, max_tokens=1)
    )


async def test_the_first_messages_are_welcome_and_worker_state(scene):
    scene.service.deliver(Delivery(outputs={}, worker_changed=True, hello=a_hello()))
    call = scene.attach()
    assert (await call.read()).welcome.epoch == 5
    assert (await call.read()).worker_state.model.model_id == "fake"
    assert scene.workers == [a_hello()]
    call.cancel()


async def test_an_empty_message_is_nothing(scene):
    call = scene.attach()
    await call.write(pb.AttachRequest())
    await call.write(submit("a"))
    await soon(lambda: scene.engine.posted)
    assert scene.engine.posted[0].submission.request_id == "a"
    call.cancel()


@pytest.mark.parametrize("end", ["half_close", "cancel"])
async def test_a_stream_that_ends_leaves(scene, end):
    call = scene.attach()
    await call.read()
    if end == "cancel":
        call.cancel()
    else:
        await call.done_writing()
    await soon(lambda: scene.engine.left == [1])
    scene.service.deliver(
        Delivery(
            outputs={1: [Output(request_id="a", token_ids=array("i"))]},
            worker_changed=False,
            hello=None,
        )
    )


async def test_a_full_inbox_makes_the_front_wait_and_loses_nothing(scene):
    scene.engine.is_full = True
    call = scene.attach()
    for number in range(20):
        await call.write(submit(str(number)))
    await asyncio.sleep(0.05)
    assert scene.engine.posted == []
    scene.engine.is_full = False
    await soon(lambda: len(scene.engine.posted) == 20)
    ids = [command.submission.request_id for command in scene.engine.posted]
    assert ids == [str(number) for number in range(20)]
    call.cancel()


async def test_a_front_that_does_not_read_is_cut_and_others_are_not(scene):  # field case 129
    slow = scene.attach()
    await slow.read()
    good = scene.attach()
    await good.read()
    await good.read()
    token = array("i", [1])
    chunk = [Output(request_id="x" * 100, token_ids=token) for _ in range(4000)]
    async with asyncio.timeout(20):
        while not scene.engine.left:
            outputs = {1: chunk, 2: chunk[:1]}
            scene.service.deliver(Delivery(outputs=outputs, worker_changed=False, hello=None))
            assert len((await good.read()).outputs.outputs) == 1
    assert scene.engine.left == [1]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_to_the_end(slow)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    good.cancel()


async def test_stopping_ends_streams_with_unavailable(scene):
    call = scene.attach()
    await call.read()
    scene.service.end_streams()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_to_the_end(call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert scene.engine.left == [1]
