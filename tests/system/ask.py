"""What the tests of a whole server ask of it, in few words."""

import asyncio
import contextlib
import json
import random
import time
import urllib.request
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from protos.radixd.v1 import admin_pb2, inference_pb2, policy_pb2
from tests.system.stack import FAKE, Client, Stack

Books = dict[tuple[str, str], float]
"""Samples by name and by the values of their labels, with commas between."""


def ids(num_tokens: int, seed: object = 0) -> list[int]:
    """Letters; different seeds part ways within a few tokens."""
    rng = random.Random(str(seed))
    return [rng.randrange(97, 123) for _ in range(num_tokens)]


def request(prompt: Sequence[int], max_tokens: int, **fields: Any) -> inference_pb2.GenerateRequest:
    """A request by token ids; `sampling` adds to its sampling parameters."""
    sampling = {"ignore_eos": True, "max_tokens": max_tokens} | fields.pop("sampling", {})
    return inference_pb2.GenerateRequest(
        tokens=inference_pb2.TokenIds(ids=prompt),
        sampling=inference_pb2.SamplingParams(**sampling),
        **fields,
    )


def unary(message: inference_pb2.GenerateRequest) -> inference_pb2.GenerateUnaryRequest:
    """The same request for the other call: the two are field for field the same."""
    return inference_pb2.GenerateUnaryRequest.FromString(message.SerializeToString())


async def whole(
    client: Client, message: inference_pb2.GenerateRequest, **options: Any
) -> inference_pb2.GenerateUnaryResponse:
    """A stream to its end, joined as the unary call would answer."""
    answer = inference_pb2.GenerateUnaryResponse()
    async for piece in client.inference.Generate(message, timeout=50, **options):
        assert not answer.finish_reason, "nothing comes after the last message"
        joined = inference_pb2.GenerateUnaryResponse.FromString(piece.SerializeToString())
        joined.text = answer.text + joined.text
        answer.ClearField("text")
        answer.MergeFrom(joined)
    assert answer.finish_reason, "the last message says how it ended"
    return answer


def has_logprobs(
    entries: Sequence[inference_pb2.TokenLogprobs],
    prompt: Sequence[int],
    output: Sequence[int],
    num_top: int,
) -> None:
    """One entry a token of the output, each with the model's own numbers."""
    assert [entry.token_id for entry in entries] == list(output)
    expected = FAKE.generate_logprobs(prompt, output, num_top)
    assert array("f", [entry.logprob for entry in entries]) == expected.chosen
    tops = [top for entry in entries for top in entry.top]
    assert {len(entry.top) for entry in entries} == {num_top}
    assert array("i", [top.token_id for top in tops]) == expected.top_ids
    assert array("f", [top.logprob for top in tops]) == expected.top_logprobs


class Running:
    """A stream under way; `await` it for its whole answer."""

    def __init__(
        self, client: Client, message: inference_pb2.GenerateRequest, **options: Any
    ) -> None:
        self._began = asyncio.Event()
        self.num_tokens = 0
        self._call = client.inference.Generate(message, timeout=50, **options)
        self._task = asyncio.create_task(self._read())

    async def began(self, num_tokens: int = 1) -> "Running":
        """Once so many tokens have come."""
        while self.num_tokens < num_tokens:
            self._began.clear()
            await asyncio.wait_for(self._began.wait(), timeout=20)
        return self

    def leave(self) -> None:
        """Closes the call."""
        self._call.cancel()

    def __await__(self) -> Any:
        return self._task.__await__()

    async def _read(self) -> list[inference_pb2.GenerateResponse]:
        pieces = []
        try:
            async for piece in self._call:
                pieces.append(piece)
                self.num_tokens += len(piece.token_ids)
                self._began.set()
        except asyncio.CancelledError:
            if not self._call.cancelled():
                raise
        return pieces


async def until(
    condition: Callable[[], Awaitable[Any]], what: str, *, within_s: float = 10.0
) -> Any:
    """The first true answer; polls, as nothing tells when it changes."""
    deadline = time.monotonic() + within_s
    while not (answer := await condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.02)
    return answer


@contextlib.contextmanager
def refused(code: grpc.StatusCode, *words: str) -> Iterator[None]:
    """The call ends with this code, and its sentence has these words."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    details = caught.value.details() or ""
    assert caught.value.code() is code, details
    assert all(word in details for word in words), details


async def set_policy(client: Client, **fields: Any) -> policy_pb2.Policies:
    """Changes policies; those in force afterwards."""
    asked = admin_pb2.SetPolicyRequest(policies=policy_pb2.Policies(**fields))
    return (await client.admin.SetPolicy(asked, timeout=10)).policies


async def explain(client: Client, request_id: str, **options: Any) -> admin_pb2.ExplainResponse:
    """Why it is where it is."""
    asked = admin_pb2.ExplainRequest(request_id=request_id)
    return await client.admin.Explain(asked, timeout=10, **options)


async def preheat(
    client: Client, prompt: Sequence[int], **options: Any
) -> admin_pb2.PreheatedPrefix:
    """Warms one prefix of token ids."""
    metadata = options.pop("metadata", None)
    asked = admin_pb2.PreheatRequest(tokens=[inference_pb2.TokenIds(ids=prompt)], **options)
    (prefix,) = (await client.admin.Preheat(asked, timeout=20, metadata=metadata)).prefixes
    assert not prefix.error, prefix.error
    return prefix


async def cached(client: Client, prompt: Sequence[int], **options: Any) -> int:
    """How much of a prompt comes from the cache now; leaves its last token out of it."""
    metadata = options.pop("metadata", None)
    answer = await whole(client, request(prompt, 1, **options), metadata=metadata)
    return answer.usage.cached_tokens


def scrape(stack: Stack) -> Books:
    """Every sample of the Prometheus port."""
    said = json.loads(stack.wait_for_line('"scheduler_ready"'))
    url = f"http://127.0.0.1:{said['metrics_port']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
