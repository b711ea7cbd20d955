"""`radixd bench front`: its arithmetic, its small readers of HTTP, a whole run.

Nothing here asks how fast anything is.
"""

import json
import struct
from typing import Any

import pytest

from gpu_worker.bench import stamped_worker
from protos.radixd.v1 import inference_pb2, tokenizer_pb2
from radixd.bench import front
from radixd.bench.front_figures import FRONT, aims_met, delays_ms, gaps_ms, load_figures
from radixd.bench.front_streams import DOORS, Event, GrpcLines, SseLines
from radixd.cli.app import main
from radixd.cli.bench_front import LOADS, streams_table, texts_table
from radixd.cli.terminal import out
from tokenizer_svc.long_replies import SLICE_IDS, json_ids, tokenize_response

MS = 1_000_000


def load(**changes: Any) -> dict[str, Any]:
    """Two streams, a token each 10 ms for 40 ms, sampled 1 and 3 ms before they came."""
    return {
        "arrivals": {
            "5": [(10 * i * MS, 1) for i in range(1, 7)],
            "6": [(10 * i * MS, 1) for i in range(1, 5)] + [(55 * MS, 2)],
        },
        "begin": {"now_ns": 10 * MS, "cpu_s": {FRONT: 1.0, "client": 0.5}},
        "end": {"now_ns": 50 * MS, "cpu_s": {FRONT: 1.016, "client": 0.51}},
    } | changes


STAMPS = {
    5: [10 * i * MS - 1 * MS for i in range(1, 7)],
    6: [10 * i * MS - 3 * MS for i in range(1, 7)],
}


def test_figures_are_of_the_tokens_in_the_window() -> None:
    figures = load_figures(load(), STAMPS, step_ms=10.0)
    num_tokens = 4 + 3  # those of the first moment came before the window
    assert figures["window_s"] == 0.04
    assert figures["out_tok_s"] == num_tokens / 0.04
    assert figures["front_cpu_us"] == round(0.016 / num_tokens * 1e6, 1)
    assert figures["cpu_share"] == {FRONT: 0.4, "client": 0.25}
    assert figures["bound_by"] == "steps"
    assert figures["delay_ms"] == {"p50": 1.0, "p99": 3.0, "max": 3.0}


def test_a_message_of_several_tokens_has_the_delay_of_each() -> None:
    arrivals = {6: [(10 * MS, 4), (55 * MS, 2)]}
    assert delays_ms(arrivals, STAMPS, (10 * MS, 60 * MS)) == [8.0, -2.0]
    assert gaps_ms(arrivals, (10 * MS, 60 * MS)) == [45.0]


def test_what_bounds_a_rate() -> None:
    busy = load(end={"now_ns": 50 * MS, "cpu_s": {FRONT: 1.036, "client": 0.51}})
    assert load_figures(busy, STAMPS, step_ms=10.0)["bound_by"] == FRONT
    assert load_figures(load(), STAMPS, step_ms=1.0)["bound_by"] != FRONT
    assert load_figures(load(), STAMPS, step_ms=5.0)["bound_by"] == "others"


def test_an_aim_is_missed_by_little() -> None:
    def met(rate: float, share: float, delay: float | None) -> dict[str, bool]:
        figures = {"out_tok_s": rate, "cpu_share": {FRONT: share}, "delay_ms": {"p50": delay}}
        return aims_met({"grpc": {"all": figures, "one": figures}})["grpc"]

    assert all(met(2000.0, 1.0, 1.99).values())
    assert not met(1999.0, 1.0, 1.0)["out_tok_s"]
    assert not met(2000.0, 1.01, 1.0)["out_tok_s"]
    assert not any(met(1999.0, 1.0, 2.0).values())
    assert not met(2000.0, 1.0, None)["one_delay_ms"]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_are_found_however_their_bytes_are_cut(size: int) -> None:
    stream = b"HTTP/1.1 200 OK\r\n\r\n5\r\n"
    for text in (b'{"choices":[{"delta":{"content":"ab"}}]}', b"[DONE]"):
        stream += b"data: " + text + b"\n\n\r\n7\r\n"
    lines = SseLines([3], max_tokens=2)
    events = [
        event
        for start in range(0, len(stream), size)
        for event in lines.feed(0, stream[start : start + size])[0]
    ]
    assert [event.stream for event in events] == [3, 3]
    assert [lines.num_tokens(event.data) for event in events if event.data] == [2]
    assert events[-1] == Event(3, b"")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_messages_are_found_however_their_bytes_are_cut(size: int) -> None:
    message = inference_pb2.GenerateResponse(text="abc", token_ids=[1, 2, 3]).SerializeToString()
    framed = struct.pack(">BI", 0, len(message)) + message
    frames = [(4, 0, 0, b""), (0, 0, 3, framed[:6]), (0, 0, 3, framed[6:]), (1, 5, 3, b"")]
    stream = b"".join(
        struct.pack(">BHBBI", 0, len(data), kind, flags, number) + data
        for kind, flags, number, data in frames
    )
    lines = GrpcLines([8, 9], max_tokens=3)
    events, answers = [], b""
    for start in range(0, len(stream), size):
        found, answer = lines.feed(0, stream[start : start + size])
        events += found
        answers += answer
    assert events == [Event(9, message), Event(9, b"")]
    assert lines.num_tokens(message) == 3
    assert answers == struct.pack(">BHBBI", 0, 0, 4, 1, 0)


def test_worker_and_bench_mean_the_same_stamps() -> None:
    assert front.STAMP.format == stamped_worker.STAMP.format
    assert front.STAMPS_FILE == stamped_worker.FILE_NAME


@pytest.mark.parametrize("num_ids", [0, 1, SLICE_IDS, SLICE_IDS + 1, 2 * SLICE_IDS + 7])
def test_long_replies_say_what_short_ones_do(num_ids: int) -> None:
    ids = [(7 * i) % 50_000 for i in range(num_ids)]
    assert list(tokenizer_pb2.TokenizeResponse.FromString(tokenize_response(ids)).ids) == ids
    assert json.loads(json_ids(ids)) == ids


@pytest.mark.timeout(240)  # services start three times
def test_a_whole_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "front", "--small", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["aims_met"]) == set(report["long_text"]) == set(DOORS)
    for door in DOORS:
        for name in LOADS:
            figures = report[door][name]
            assert figures["num_streams"] == (1 if name == "one" else 8)
            assert figures["out_tok_s"] > 0
            assert set(figures["cpu_share"]) == {FRONT, "scheduler_svc", "gpu_worker", "client"}
            delay = figures["delay_ms"]
            assert 0 < delay["p50"] <= delay["p99"] <= delay["max"]
        text = report["long_text"][door]
        assert text["seconds"] > 0
        assert text["gap_before_ms"]["p50"] > 0
    assert report["machine"]["cores"] >= 1
    with capsys.disabled(), out.capture() as printed:
        out.print(streams_table(report))
        out.print(texts_table(report))
    assert "flood" in printed.get()
