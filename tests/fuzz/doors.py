"""A server, noise at both of its doors for a while, and what must hold when it is over."""

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from protos.radixd.v1 import admin_pb2, policy_pb2
from tests.fuzz.grpc_noise import call_at_random
from tests.fuzz.heard import Heard
from tests.fuzz.http_noise import make_noise
from tests.fuzz.schema_run import run_schemathesis
from tests.system.stack import Client, Stack

FLAGS = ("--fake-worker", "--kv-slots", "4096", "--max-length", "192", "--fake-step-ms", "0.2")
NUM_GRPC_CALLERS = 6
NUM_HTTP_CALLERS = 4
MAX_GROWTH_BYTES = 256 << 20
"""Memory that one service may hold more after the noise than before it.  Caches fill up once, and
peaks leave holes: of 130 MiB that the front held after 100 s, the C heap had 23 in use.  Two
kilobytes lost in each call of ten minutes pass it."""
RESTORE_S = 5.0
"""Noise sets policies too, and with some, two tokens a step for instance, a big call takes minutes
by right; so none of them stays longer than this."""
_PROMPT = "the same question"
_BAD_LINE = re.compile(
    r'"level": "(error|critical)"|Traceback|Exception|never retrieved|never awaited|call_failed'
)


async def fuzz(stack: Stack, *, seconds: float, seed: int) -> tuple[str, list[str]]:
    """What was done, for people, and the faults that were found."""
    pids, first_line = stack.pids(), len(stack.lines)
    async with Client(stack.address) as client:
        policies = (await client.admin.GetPolicy(admin_pb2.GetPolicyRequest())).policies
        answers, memory = await _good_answers(stack, client), _memory(pids)
        grpc_heard, http_heard, schema_heard = Heard(), Heard(), Heard()
        until_s = time.monotonic() + seconds
        await asyncio.gather(
            _restore_policies(client, policies, until_s),
            run_schemathesis(_url(stack), seed=seed, seconds=seconds, heard=schema_heard),
            *(
                call_at_random(stack.address, seed=f"{seed}-{i}", until_s=until_s, heard=grpc_heard)
                for i in range(NUM_GRPC_CALLERS)
            ),
            *(
                make_noise(_url(stack), seed=f"{seed}-{i}", until_s=until_s, heard=http_heard)
                for i in range(NUM_HTTP_CALLERS)
            ),
        )
        faults = [*grpc_heard.faults, *http_heard.faults, *schema_heard.faults]
        faults += await _books_faults(client, policies)
        faults += [] if await _good_answers(stack, client) == answers else ["other answers"]
    faults += [] if stack.pids() == pids else ["a service was started anew"]
    faults += [line for line in stack.lines[first_line:] if _BAD_LINE.search(line)]
    replies, grown = await _http_replies(stack), _grown(memory, _memory(stack.pids()))
    faults += [f"HTTP {status}" for status in replies if status >= "500" and status != "503"]
    faults += [f"{name} grew" for name, size in grown.items() if size > MAX_GROWTH_BYTES]
    said = (
        f"gRPC: {grpc_heard}",
        f"HTTP, damaged: {http_heard}",
        f"HTTP, by its description: {schema_heard}",
        "HTTP, in all: " + ", ".join(f"{status} {count}" for status, count in replies.items()),
        "memory: " + ", ".join(f"{name} {size >> 20:+} MiB" for name, size in grown.items()),
    )
    return "\n".join(said), faults


def _url(stack: Stack) -> str:
    assert stack.http is not None
    return stack.http


async def _good_answers(stack: Stack, client: Client) -> Sequence[object]:
    """The same good request through both doors, without what differs each time."""
    tokens, last = await client.stream(list(_PROMPT.encode()), 30)
    async with httpx2.AsyncClient(base_url=_url(stack), timeout=30, trust_env=False) as http:
        body = {"prompt": _PROMPT, "max_tokens": 30, "ignore_eos": True, "temperature": 0}
        reply = (await http.post("/v1/completions", json=body)).json()
    usage = reply["usage"]["completion_tokens"]
    return tokens, last.finish_reason, reply["choices"][0]["text"], usage


async def _restore_policies(client: Client, policies: policy_pb2.Policies, until_s: float) -> None:
    while time.monotonic() < until_s:
        await client.admin.SetPolicy(admin_pb2.SetPolicyRequest(policies=policies))
        await asyncio.sleep(RESTORE_S)


async def _books_faults(client: Client, policies: policy_pb2.Policies) -> list[str]:
    """Nobody lives, and every slot can be had again once no pin holds it."""
    await client.admin.SetPolicy(admin_pb2.SetPolicyRequest(policies=policies))
    await client.admin.Unpin(admin_pb2.UnpinRequest(all=True))
    try:
        await client.idle(within_s=5)
    except AssertionError as error:
        return [f"books: {error}"]
    return []


async def _http_replies(stack: Stack) -> dict[str, int]:
    """By status, as the server counted them."""
    async with httpx2.AsyncClient(base_url=_url(stack), timeout=30, trust_env=False) as http:
        text = (await http.get("/metrics")).text
    counts: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "radixd_front_http_requests_total":
                status = sample.labels["status"]
                counts[status] = counts.get(status, 0) + int(sample.value)
    return dict(sorted(counts.items()))


def _memory(pids: dict[str, int]) -> dict[str, int]:
    """Resident bytes of each service."""
    found = {}
    for name, pid in pids.items():
        text = Path(f"/proc/{pid}/status").read_text()
        size = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert size, text
        found[name] = int(size[1]) << 10
    return found


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: size - before.get(name, 0) for name, size in after.items()}
