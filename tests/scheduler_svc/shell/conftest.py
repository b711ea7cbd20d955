"""A whole scheduler in this process, on free ports, and workers for it."""

import grpc
import pytest

from scheduler_svc.server import SchedulerServer
from tests.scheduler_svc.shell.running import ThreadWorker, settings_for


@pytest.fixture
def settings(request, tmp_path):
    return settings_for(tmp_path, **getattr(request, "param", {}))


@pytest.fixture
async def server(settings):
    server = SchedulerServer(settings)
    server.port = await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def channel(server):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel


@pytest.fixture
def workers(settings):
    started = []

    def start(instance_id: int, **options) -> ThreadWorker:
        started.append(ThreadWorker(settings.worker_address, instance_id, **options))
        return started[-1]

    yield start
    for worker in started:
        worker.stop()
