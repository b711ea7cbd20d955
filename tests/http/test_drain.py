"""The end of a server: what runs finishes, what comes is told to come again later."""

import asyncio
import os
import signal

from tests.http.ask import PLAIN, connected, error_of
from tests.system.stack import launched


async def test_streams_finish_and_new_requests_are_told_to_come_again():
    with launched("--fake-worker", "--fake-step-ms", "5") as stack:
        async with connected(stack) as http:
            body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True}
            async with http.stream("POST", PLAIN, json=body) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                os.kill(stack.pids()["tokenizer_svc"], signal.SIGTERM)
                await asyncio.to_thread(stack.wait_for_line, "front_draining")
                refusal = await http.post(PLAIN, json={"prompt": "y"})
                assert error_of(refusal, 503)["code"] == "unavailable"
                assert int(refusal.headers["retry-after"]) >= 1
                assert (await http.get("/health")).status_code == 200
                assert error_of(await http.get("/ready"), 503)["code"] == "unavailable"
                rest = [line async for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert '"finish_reason":"length"' in rest[-2]
            assert "deadline" not in rest[-2]
