"""Random calls of every public method, left at random."""

import asyncio
import random
import time
from typing import Any

import grpc

from tests.fuzz.heard import Heard
from tests.fuzz.random_messages import random_bytes, request_classes

HANGS_AFTER_S = 60.0
"""A call that nobody left and that set no deadline has ended by then."""

ALLOWED = frozenset(
    {
        *(grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.INVALID_ARGUMENT),
        *(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.NOT_FOUND),
        *(grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.UNIMPLEMENTED),
        *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE),
    }
)

_STREAMS = ("/Generate", "/WatchStats")
_UNKNOWN = ("/radixd.v1.InferenceService/Nothing", "/radixd.v1.NoService/Generate")
_METADATA: tuple[tuple[str, str | bytes], ...] = (
    *(("authorization", "Bearer \x7e"), ("authorization", ""), ("x-noise", "y" * 4000)),
    *(("noise-bin", b"\x00\xff"), ("accept-encoding", "identity"), ("te", "trailers")),
)


async def call_at_random(address: str, *, seed: str, until_s: float, heard: Heard) -> None:
    """One caller after another's answer until `until_s` of the monotonic clock."""
    rng, classes = random.Random(seed), request_classes()
    methods = sorted(classes)
    # A stream is what most can go wrong with.
    methods += [method for method in methods if "Generate" in method] * 5
    async with grpc.aio.insecure_channel(
        address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        while time.monotonic() < until_s:
            method = rng.choice(methods)
            data = random_bytes(classes[method], rng)
            if rng.random() < 0.01:
                method = rng.choice(_UNKNOWN)
            status, said = await _called(channel, method, data, rng)
            heard.counts[status.name] += 1
            if status not in ALLOWED:
                heard.faults.append(f"{method}: {status.name} {said}\n{data[:300].hex()}")


async def _called(
    channel: grpc.aio.Channel, method: str, data: bytes, rng: random.Random
) -> tuple[grpc.StatusCode, str]:
    """The status of one call and its sentence; a hang is none of a server's statuses."""
    deadline_s = rng.choice((None, None, None, 0.0005, 0.005, 0.05, 0.5))
    leaves_after_s = rng.choice((None, None, None, 0.0, 0.002, 0.02, 0.2))
    metadata = rng.sample(_METADATA, rng.choice((0, 0, 0, 1, 3)))
    if method.endswith("/WatchStats"):
        leaves_after_s = leaves_after_s or 0.05
    ask: Any = channel.unary_stream if method.endswith(_STREAMS) else channel.unary_unary
    call = ask(method)(data, timeout=deadline_s, metadata=metadata)
    status = asyncio.ensure_future(call.code())
    # Read and thrown away: a call that nobody reads has no end.
    reading = asyncio.ensure_future(_read(call))
    try:
        patience_s = HANGS_AFTER_S if leaves_after_s is None else leaves_after_s
        done, _ = await asyncio.wait({status}, timeout=patience_s)
        if not done and leaves_after_s is None:
            return grpc.StatusCode.UNKNOWN, f"no end within {HANGS_AFTER_S} s"
    finally:
        call.cancel()
        await asyncio.wait({reading})
    return await status, await call.details() or ""


async def _read(
    call: grpc.aio.UnaryStreamCall[bytes, bytes] | grpc.aio.UnaryUnaryCall[bytes, bytes],
) -> None:
    try:
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            await call
        else:
            async for _ in call:
                pass
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        pass  # its status says it
