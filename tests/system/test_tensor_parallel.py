"""The whole server on a model that two processes compute: one of them dies, and nobody notices."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import pytest
import tokenizers

from tests.gpu_worker.tiny_models import VOCAB, make_oracle, save
from tests.system.stack import Client, Stack, launched

pytestmark = pytest.mark.timeout(240)

PROMPT = [5, 17, 33, 4, 88, 20]
NUM_TOKENS = 100


def save_tokenizer(folder: Path) -> None:
    """A token a word; the front wants one, the test speaks in ids."""
    words = {f"w{number}": number for number in range(VOCAB)}
    model = tokenizers.models.WordLevel(words, unk_token="w0")
    tokenizers.Tokenizer(model).save(str(folder / "tokenizer.json"))


def rank_1(stack: Stack, start: int = 0) -> int:
    """The process id that the group told of last."""
    line = stack.wait_for_line('"group_complete"', start=start)
    (pid,) = json.loads(line[line.index("{") :])["pids"]
    return int(pid)


async def disturbed(client: Client, stack: Stack) -> tuple[list[int], list[int]]:
    """The output undisturbed, and while rank 1 is killed on the way."""
    sampling = {"temperature": 0.8, "seed": 7, "ignore_eos": True}
    wanted, _ = await client.stream(PROMPT, NUM_TOKENS, sampling=sampling)
    victims = [rank_1(stack)]

    def kill(_message: object) -> None:
        while victims:
            os.kill(victims.pop(), signal.SIGKILL)

    got, _ = await client.stream(PROMPT, NUM_TOKENS, sampling=sampling, on_message=kill)
    return wanted, got


def test_a_killed_rank_costs_nobody_a_token(tmp_path: Path) -> None:
    oracle = make_oracle(num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1)
    save(oracle, tmp_path)
    save_tokenizer(tmp_path)

    async def ask(stack: Stack) -> tuple[list[int], list[int]]:
        async with Client(stack.address) as client:
            return await disturbed(client, stack)

    with launched("--model", str(tmp_path), "--tp", "2", "--kv-slots", "1024") as stack:
        before = len(stack.lines)
        wanted, got = asyncio.run(ask(stack))
        assert len(wanted) == NUM_TOKENS
        assert got == wanted
        stack.wait_for_line("rank 1 ended with exit code -9: the group stops", start=before)
        stack.wait_for_line("radixd starts it again", start=before)
        follower = rank_1(stack, start=before)
        assert stack.interrupt() == 0
    assert not Path(f"/proc/{follower}").exists()
    said = "\n".join(stack.lines)
    assert "Traceback" not in said
    assert len(re.findall("the group stops", said)) == 2  # as it ends, and among its last lines
