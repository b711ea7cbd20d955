"""Plays a workload against a peer over /v1/completions and writes down when each token came.

How tokens are counted.  A chunk of the stream may carry one token, several (a server that sends
late sends more at once), or none (the last one, which only tells why it ended), and its text says
nothing of that: half a character is a token without text.  So the peer is asked to say in every
chunk how many tokens there are so far, by the extensions that servers have for it:
`stream_options.continuous_usage_stats` (vLLM: `usage.completion_tokens` in each chunk) and
`timings_per_token` (llama.cpp: `timings.predicted_n`); whoever knows neither ignores them.  Where
every chunk says so, the tokens of a chunk are what it has more than the one before.  Where not,
the tokens of the usage at the end are spread over the chunks as evenly as can be, the earlier ones
first: one each, where there are as many chunks as tokens.  Either way they sum up to the usage's
`completion_tokens`, and without a usage there are no figures.
"""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2

from radixd.bench.figures import Trace
from radixd.bench.peer import Peer, error_text, explain_http, http_client, refusal_text
from radixd.bench.turns import OnTokens, take_turns
from radixd.bench.workload import BenchRequest, Workload

_DONE = "[DONE]"


@dataclass(slots=True)
class Answer:
    """What one stream said so far."""

    chunks: list[tuple[float, int | None]] = field(default_factory=list)
    """(moment, tokens so far if it said so) of each chunk that is part of the answer."""
    num_tokens: int | None = None
    """Of the latest usage."""
    cached_tokens: int | None = None
    is_done: bool = False

    def take(self, at_s: float, chunk: dict[str, Any]) -> None:
        """Writes down one chunk; a chunk without choices has only the usage."""
        usage = chunk.get("usage") or {}
        self.num_tokens = usage.get("completion_tokens", self.num_tokens)
        details = usage.get("prompt_tokens_details") or {}
        self.cached_tokens = details.get("cached_tokens", self.cached_tokens)
        if chunk.get("choices"):
            timings = chunk.get("timings") or {}
            so_far = usage.get("completion_tokens", timings.get("predicted_n"))
            self.chunks.append((at_s, so_far))

    def arrivals(self) -> tuple[tuple[float, int], ...]:
        """(moment, number of tokens) of each chunk that brought tokens; sums up to num_tokens."""
        total = self.num_tokens or 0
        counts = [so_far for _, so_far in self.chunks if so_far is not None]
        is_counted = len(counts) == len(self.chunks) and counts[-1:] == [total]
        if not is_counted or counts != sorted(counts):
            counts = spread(total, len(self.chunks))
        arrivals, before = [], 0
        for (at_s, _), so_far in zip(self.chunks, counts, strict=True):
            if so_far > before:
                arrivals.append((at_s, so_far - before))
                before = so_far
        return tuple(arrivals)


def spread(num_tokens: int, num_chunks: int) -> list[int]:
    """[num_chunks] tokens so far after each chunk, as even as can be, the earlier ones first."""
    return [-(-num_tokens * n // num_chunks) for n in range(1, num_chunks + 1)]


async def play_peer(workload: Workload, peer: Peer, on_tokens: OnTokens) -> list[Trace]:
    """One run.

    Raises:
        CommandError: a request failed or ended early; names the peer.
    """
    async with http_client(peer) as client:

        async def ask(request: BenchRequest) -> Trace:
            return await _ask(client, peer, request, on_tokens)

        return await take_turns(workload, ask)


async def _ask(
    client: httpx2.AsyncClient, peer: Peer, request: BenchRequest, on_tokens: OnTokens
) -> Trace:
    answer = Answer()
    sent_s = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/completions", json=_body(peer, request)) as response:
            if not response.is_success:
                await response.aread()
                raise peer.failure(f"{request.id}: {refusal_text(response)}")
            async for event in httpx2.EventSource(response):
                if event.data == _DONE:
                    answer.is_done = True
                    continue  # to the end of the stream, so that it is closed in order
                answer.take(time.perf_counter(), _chunk(peer, request, event.data))
                on_tokens(1)
    except httpx2.HTTPError as error:
        problem = explain_http(error, has_answered=bool(answer.chunks))
        raise peer.failure(f"{request.id}: {problem}") from None
    _check(peer, request, answer)
    return Trace(
        num_prompt_tokens=len(request.prompt_token_ids),
        sent_s=sent_s,
        arrivals=answer.arrivals(),
        ended_s=time.perf_counter(),
        cached_tokens=answer.cached_tokens,
    )


def _body(peer: Peer, request: BenchRequest) -> dict[str, Any]:
    return {
        "model": peer.model,
        "prompt": request.prompt_token_ids,
        "max_tokens": request.max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "timings_per_token": True,
    }


def _chunk(peer: Peer, request: BenchRequest, data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise peer.failure(f"{request.id}: it sent a chunk that is no JSON object")
    if chunk.get("error"):
        raise peer.failure(f"{request.id}: {error_text(chunk)}")
    return chunk


def _check(peer: Peer, request: BenchRequest, answer: Answer) -> None:
    problem = None
    if not answer.is_done:
        problem = "it went away in the middle of an answer"
    elif answer.num_tokens is None:
        problem = "it told no usage; stream_options.include_usage is needed"
    elif answer.num_tokens != request.max_tokens:
        problem = f"{answer.num_tokens} of {request.max_tokens} tokens came; ignore_eos is needed"
    elif not answer.chunks:
        problem = "it told a usage and sent nothing"
    if problem is not None:
        raise peer.failure(f"{request.id}: {problem}")
