"""A running server and the few things tests say to it."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from gpu_worker.fake_engine import FakeModel
from protos.radixd.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc

SERVICES = ("scheduler_svc", "gpu_worker", "tokenizer_svc")

FAKE = FakeModel()
"""Says the same as the fake worker of any stack."""


class Stack:
    """`radixd up` as a process of its own, as a user starts it."""

    def __init__(self, *flags: str) -> None:
        radixd = "from radixd.cli.app import main; main()"
        command = [sys.executable, "-c", radixd, "up", "--port", "0"]
        command += ["--http-port", "0", *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._said = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            ready = self.wait_for_line("radixd is ready: gRPC on ", timeout_s=120)
        except BaseException:
            self.process.kill()  # its services go with it
            self.process.wait()
            raise
        where = re.fullmatch(r".* gRPC on (\S+?)(?:, HTTP on (\S+))?", ready)
        assert where, ready
        self.address, self.http = where[1], where[2]

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._said:
                    self.lines.append(line.rstrip())
                    self._said.notify_all()

    def wait_for_line(self, text: str, *, timeout_s: float = 30, start: int = 0) -> str:
        """The first line from line `start` on that holds `text`."""
        with self._said:
            found = self._said.wait_for(
                lambda: next((line for line in self.lines[start:] if text in line), None),
                timeout=timeout_s,
            )
        assert found, "\n".join(self.lines)
        return found

    def pids(self) -> dict[str, int]:
        """Process ids of the services, by name."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                words = (folder / "cmdline").read_text().split("\0")
            except (OSError, IndexError):
                continue  # it ended while we looked
            if parent == self.process.pid:
                found |= {name: int(folder.name) for name in SERVICES if name in words}
        return found

    def interrupt(self) -> int:
        """Ctrl-C; returns the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=30)


@contextmanager
def launched(*flags: str) -> Iterator[Stack]:
    """All services on free ports, for as long as the block runs."""
    stack = Stack(*flags)
    try:
        yield stack
    finally:
        if stack.process.poll() is None:
            stack.interrupt()


class Client:
    """One channel to a stack; for use inside one event loop."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.max_send_message_length", 64 << 20),
                ("grpc.max_receive_message_length", 64 << 20),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def stream(self, ids, max_tokens, *, timeout=50, on_message=None, **fields):
        """Token ids and last message of one streamed generation by token ids."""
        sampling = inference_pb2.SamplingParams(
            max_tokens=max_tokens, **fields.pop("sampling", {"ignore_eos": True})
        )
        request = inference_pb2.GenerateRequest(
            tokens=inference_pb2.TokenIds(ids=ids), sampling=sampling, **fields
        )
        got, last = [], None
        async for last in self.inference.Generate(request, timeout=timeout):
            got.extend(last.token_ids)
            if on_message is not None:
                on_message(last)
        return got, last

    async def stats(self) -> admin_pb2.GetStatsResponse:
        return await self.admin.GetStats(admin_pb2.GetStatsRequest(), timeout=10)

    async def idle(self, within_s: float = 30.0) -> admin_pb2.GetStatsResponse:
        """The books once nobody lives; fails when that takes longer."""
        deadline = time.monotonic() + within_s
        while True:
            stats = await self.stats()
            if not stats.requests.running and not stats.requests.waiting:
                slots = stats.slots
                if slots.free + slots.evictable == slots.total:
                    return stats
            assert time.monotonic() < deadline, f"not idle after {within_s} s:\n{stats}"
            await asyncio.sleep(0.02)
