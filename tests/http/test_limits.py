"""What one client may take over both doors together, and keys that change as the server runs."""

import asyncio
import hashlib

import grpc
import pytest

from protos.radixd.v1 import inference_pb2 as pb
from tests.http.ask import PLAIN, connected, error_of
from tests.system.ask import request, until, whole
from tests.system.stack import Client, launched

LONG = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}


async def test_calls_of_both_doors_count_together():
    with launched("--fake-worker", "--fake-step-ms", "5", "--max-streams-per-client", "2") as stack:
        async with connected(stack) as http, Client(stack.address) as client:
            call = client.inference.Generate(request([97], 1900))
            await call.read()
            async with http.stream("POST", PLAIN, json=LONG) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                refused = await http.post(PLAIN, json={"prompt": "x"})
                error = error_of(refused, 429)
                assert error["code"] == "too_many_streams"
                assert "max_streams_per_client" in error["message"]
                assert refused.headers["retry-after"]
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await whole(client, request([97], 1))
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert (await http.get("/health")).status_code == 200, "probes are no calls"
            again = {"prompt": "x", "max_tokens": 1}

            async def is_served():
                return (await http.post(PLAIN, json=again)).status_code == 200

            await until(is_served, "who left counts no more")
            call.cancel()


async def test_keys_of_the_file_change_over_both_doors(tmp_path):
    path = tmp_path / "tenants.yaml"

    def write(key: str) -> None:
        path.write_text(f"acme: {{keys: [{hashlib.sha256(key.encode()).hexdigest()}]}}")

    def bearer(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    write("old")
    with launched("--fake-worker", "--tenants", str(path)) as stack:
        async with connected(stack) as http, Client(stack.address) as client:

            async def status(key: str) -> int:
                return (await http.get("/v1/models", headers=bearer(key))).status_code

            assert (await status("old"), await status("new")) == (200, 401)
            path.write_text("acme: {keys: [nonsense]}")
            await asyncio.to_thread(stack.wait_for_line, '"settings_file_unusable"')
            assert (await status("old"), await status("new")) == (200, 401)
            write("new")

            async def is_changed() -> bool:
                return await status("new") == 200

            await until(is_changed, "the new key works")
            assert await status("old") == 401
            asked = pb.GenerateUnaryRequest(text="x", sampling=pb.SamplingParams(max_tokens=1))
            with pytest.raises(grpc.aio.AioRpcError):
                await client.inference.GenerateUnary(asked, metadata=tuple(bearer("old").items()))
            metadata = tuple(bearer("new").items())
            answer = await client.inference.GenerateUnary(asked, metadata=metadata, timeout=20)
            assert answer.usage.completion_tokens == 1
