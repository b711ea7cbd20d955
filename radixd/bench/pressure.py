"""Keeps a pool under pressure for a while: a closed loop of clients, and a look at the books.

Not here: what the clients ask for (pressure_trace.py), what the numbers say (pressure_figures.py),
policies and flushing, which are the caller's.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from protos.radixd.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from radixd.bench.pressure_figures import PressureFigures, Sample, figures_of
from radixd.bench.pressure_trace import STOP_TOKEN_IDS, PressureRequest
from radixd.bench.server_channel import open_channel
from radixd.cli.client import CommandError, explain, key_metadata, parse_target
from radixd.cli.encryption import NO_TLS, ClientTls

SAMPLE_EVERY_S = 0.25
DRAIN_S = 30.0
"""Longest wait for what was cancelled at the end to be gone."""

OnSecond = Callable[[float], object]
"""Told the seconds since the last call, for a progress bar."""


@dataclass(slots=True)
class _Tally:
    """What the clients saw so far."""

    last_token_s: float
    longest_gap_s: float = 0.0
    num_tokens: int = 0
    endings: dict[str, int] = field(default_factory=dict)

    def note_tokens(self, num_tokens: int) -> None:
        """Tokens of any stream have come now."""
        now_s = time.perf_counter()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_token_s)
        self.last_token_s = now_s
        self.num_tokens += num_tokens

    def note_ending(self, reason: int) -> None:
        """An answer is complete."""
        name = inference_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()
        self.endings[name] = self.endings.get(name, 0) + 1


class Pressure:
    """A server under so many clients."""

    def __init__(
        self,
        target: str,
        num_clients: int,
        api_key: str | None = None,
        tls: ClientTls = NO_TLS,
    ) -> None:
        self._address = parse_target(target)
        self._target, self._tls = target, tls
        self._num_clients = num_clients
        self._metadata = key_metadata(api_key)

    async def keep_up(
        self, requests: Iterator[PressureRequest], seconds: float, on_second: OnSecond
    ) -> PressureFigures:
        """One run: every client asks for the next request of the trace as soon as its last one
        has ended; when the time is over all are cancelled, and the server is idle afterwards.

        Raises:
            CommandError: a call failed.
        """
        async with open_channel(self._target, self._tls) as channel:
            inference = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            admin = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
            try:
                before = await self._stats(admin)
                started_s = time.perf_counter()
                tally = _Tally(last_token_s=started_s)
                clients = [
                    asyncio.create_task(self._client(inference, requests, tally))
                    for _ in range(self._num_clients)
                ]
                try:
                    samples = await self._watch(admin, clients, seconds, on_second)
                    after = await self._stats(admin)
                finally:
                    await _cancel(clients)
                wall_s = time.perf_counter() - started_s
                tally.note_tokens(0)  # a stall may last until the end
                await self._drain(admin)
            except grpc.RpcError as error:
                raise explain(error, self._address) from None
        return figures_of(
            before,
            after,
            samples,
            wall_s=wall_s,
            num_tokens=tally.num_tokens,
            longest_gap_s=tally.longest_gap_s,
            endings=tally.endings,
        )

    async def _client(self, stub: Any, requests: Iterator[PressureRequest], tally: _Tally) -> None:
        for request in requests:
            reason = inference_pb2.FINISH_REASON_UNSPECIFIED
            async for piece in stub.Generate(_message(request), metadata=self._metadata):
                if piece.token_ids:
                    tally.note_tokens(len(piece.token_ids))
                reason = piece.finish_reason
            tally.note_ending(reason)

    async def _watch(
        self, admin: Any, clients: list[asyncio.Task[None]], seconds: float, on_second: OnSecond
    ) -> list[Sample]:
        """Looks at the books until the time is over or a client fails."""
        samples: list[Sample] = []
        started_s = last_s = time.perf_counter()
        while last_s - started_s < seconds:
            await asyncio.sleep(min(SAMPLE_EVERY_S, seconds))
            for client in clients:
                if client.done():
                    client.result()
                    raise CommandError("the trace has come to its end before the time")
            slots = (await self._stats(admin)).slots
            now_s = time.perf_counter()
            samples.append(
                Sample(now_s - started_s, 1 - (slots.free + slots.evictable) / slots.total)
            )
            on_second(now_s - last_s)
            last_s = now_s
        return samples

    async def _drain(self, admin: Any) -> None:
        until_s = time.perf_counter() + DRAIN_S
        while time.perf_counter() < until_s:
            books = (await self._stats(admin)).requests
            if not books.running and not books.waiting:
                return
            await asyncio.sleep(0.05)
        raise CommandError(f"cancelled requests are still there after {DRAIN_S:g} s")

    async def _stats(self, admin: Any) -> admin_pb2.GetStatsResponse:
        request = admin_pb2.GetStatsRequest()
        stats = await admin.GetStats(request, timeout=30, metadata=self._metadata)
        assert isinstance(stats, admin_pb2.GetStatsResponse)
        return stats


def _message(request: PressureRequest) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        tokens=inference_pb2.TokenIds(ids=request.prompt_ids),
        sampling=inference_pb2.SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=STOP_TOKEN_IDS,
            ignore_eos=True,
        ),
    )


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, grpc.RpcError):
            await task
