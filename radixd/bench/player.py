"""Plays a workload against a server over grpc.aio and writes down when each token came.

Not here: what the times mean (figures.py) and who started the server (services.py).
"""

import asyncio
import time
from typing import Any

import grpc

from protos.radixd.v1 import inference_pb2, inference_pb2_grpc
from radixd.bench.figures import Trace
from radixd.bench.server_channel import open_channel
from radixd.bench.turns import OnTokens, take_turns
from radixd.bench.workload import BenchRequest, Workload
from radixd.cli.client import CommandError, explain, key_metadata, parse_target
from radixd.cli.encryption import NO_TLS, ClientTls


async def play(
    workload: Workload,
    target: str,
    on_tokens: OnTokens,
    *,
    api_key: str | None = None,
    tls: ClientTls = NO_TLS,
) -> list[Trace]:
    """One run; without `api_key` with the one of the environment.

    Raises:
        CommandError: a request failed or ended early.
    """
    address, metadata = parse_target(target), key_metadata(api_key)
    async with open_channel(target, tls) as channel:
        await _connect(channel, address)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]

        async def ask(request: BenchRequest) -> Trace:
            try:
                return await _ask(stub, request, metadata, on_tokens)
            except grpc.RpcError as error:
                raise explain(error, address) from None

        return await take_turns(workload, ask)


async def _connect(channel: grpc.aio.Channel, address: str) -> None:
    # So that no request pays for the handshake of the connection.
    try:
        await asyncio.wait_for(channel.channel_ready(), timeout=10)
    except TimeoutError:
        raise CommandError(f"no radixd answers at {address}") from None


async def _ask(
    stub: Any, request: BenchRequest, metadata: tuple[tuple[str, str], ...], on_tokens: OnTokens
) -> Trace:
    message = inference_pb2.GenerateRequest(
        tokens=inference_pb2.TokenIds(ids=request.prompt_token_ids),
        sampling=inference_pb2.SamplingParams(
            temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True
        ),
    )
    arrivals: list[tuple[float, int]] = []
    cached_tokens = 0
    sent_s = time.perf_counter()
    async for piece in stub.Generate(message, metadata=metadata):
        if piece.token_ids:
            arrivals.append((time.perf_counter(), len(piece.token_ids)))
            on_tokens(len(piece.token_ids))
        cached_tokens = piece.usage.cached_tokens
    trace = Trace(
        num_prompt_tokens=len(request.prompt_token_ids),
        sent_s=sent_s,
        arrivals=tuple(arrivals),
        ended_s=time.perf_counter(),
        cached_tokens=cached_tokens,
    )
    if trace.num_output_tokens != request.max_tokens:
        came = trace.num_output_tokens
        raise CommandError(f"{request.id}: {came} of {request.max_tokens} tokens came")
    return trace
