"""`radixd bench front`: the fake worker behind our own services, streams through both doors.

Runs what is to be measured and hands it to `front_figures`, where every figure is defined.
"""

import json
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from radixd.bench.child import Announce, run_child
from radixd.bench.cores import give_a_core
from radixd.bench.front_figures import FRONT, Stamps, aims_met, load_figures
from radixd.bench.front_load import Order
from radixd.bench.front_streams import DOORS
from radixd.bench.front_text import long_text_figures, tokenize
from radixd.bench.services import OwnServices, own_services
from radixd.chassis.settings import Settings
from radixd.cli.client import CommandError

STAMPED_WORKER = "gpu_worker.bench.stamped_worker"
STAMPS_FILE = "token-stamps"
STAMP = struct.Struct("<IIq")
"""Stream, number of the token, nanoseconds; as the worker writes them."""
_BEGIN_S = 30.0
"""Time a stream has to begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured; figures of another scale than the default are not comparable."""

    num_streams: int = 200
    paced_tokens: int = 80
    """Of each of all streams at `paced_step_ms`."""
    paced_step_ms: float = 75.0
    """All streams have a token a step, which takes some ms more: above 2 000 tokens/s over 200."""
    flood_tokens: int = 250
    """Of each of all streams at `flood_step_ms`."""
    flood_step_ms: float = 10.0
    """More than any part of the server can keep up with."""
    one_tokens: int = 300
    """Of one stream alone at `one_step_ms`."""
    one_step_ms: float = 10.0
    text_bytes: int = 10_000_000
    """Of the text that is tokenised beside one stream."""


class FrontBench:
    """All loads on services of their own, started anew for each pace."""

    def __init__(self, scale: Scale, announce: Announce) -> None:
        self._scale = scale
        self._announce = announce
        self._next_stream = 0
        """Numbers go on across the loads of a worker, as it stamps by number alone."""
        self._load_cores: list[int] = []

    def report(self) -> dict[str, Any]:
        """The JSON object, less the machine.

        Raises:
            RadixdError: the services did not start, or a load broke.
        """
        scale = self._scale
        one = (1, scale.one_tokens, scale.one_step_ms)
        paced = (scale.num_streams, scale.paced_tokens, scale.paced_step_ms)
        flood = (scale.num_streams, scale.flood_tokens, scale.flood_step_ms)
        doors: dict[str, dict[str, Any]] = {door: {} for door in DOORS}
        texts: dict[str, Any] = {}
        for name, load in {"one": one, "all": paced, "flood": flood}.items():
            num_streams, num_tokens, step_ms = load
            with own_services(self._settings(step_ms), modules={"gpu_worker": STAMPED_WORKER}) as s:
                self._load_cores = give_a_core(s.pids(), FRONT)
                for door in DOORS:
                    self._announce(f"{door}, {num_streams} streams, steps of {step_ms:g} ms")
                    self._play(s, door, min(num_streams, 8), 32)  # code and sockets are warm
                    played, stamps = self._play(s, door, num_streams, num_tokens)
                    doors[door][name] = load_figures(played, stamps, step_ms=step_ms)
                if name == "one":
                    texts = {door: self._long_text(s, door) for door in DOORS}
        return {
            "scale": asdict(scale),
            **doors,
            "long_text": texts,
            "aims_met": aims_met(doors),
        }

    def _settings(self, step_ms: float) -> Settings:
        options = {
            "fake_worker": True,
            "fake_step_ms": step_ms,
            "max_running": max(64, self._scale.num_streams),
            "kv_slots": 1 << 17,
            "max_prompt_bytes": 2 * self._scale.text_bytes,
            "speculation": "off",
            "metrics_port": -1,
        }
        return Settings.model_validate(options)

    def _play(
        self, services: OwnServices, door: str, num_streams: int, num_tokens: int
    ) -> tuple[dict[str, Any], Stamps]:
        host, port = _address(services, door)
        order = Order(
            door=door,
            host=host,
            port=port,
            first_stream=self._next_stream,
            num_streams=num_streams,
            max_tokens=num_tokens,
            pids=services.pids(),
            cores=self._load_cores,
        )
        self._next_stream += num_streams
        command = [sys.executable, "-m", "radixd.bench.front_load", json.dumps(asdict(order))]
        load = run_child(command, os.environ, None, lambda _: None)
        services.check()
        return load, stamps_of(services, order.streams)

    def _long_text(self, services: OwnServices, door: str) -> dict[str, Any]:
        """One stream before and while a long text is tokenised through the same door."""
        scale = self._scale
        self._announce(f"{door}, a text of {scale.text_bytes / 1e6:g} MB beside one stream")
        host, port = _address(services, door)
        stream = self._next_stream
        spans: list[tuple[int, int]] = []

        def work() -> None:
            give_up_s = time.monotonic() + _BEGIN_S
            while time.monotonic() < give_up_s:
                if len(stamps_of(services, range(stream, stream + 1))[stream]) > scale.one_tokens:
                    break
                time.sleep(0.01)
            spans.append(tokenize(door, host, port, num_bytes=scale.text_bytes))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        load, stamps = self._play(services, door, 1, 4 * scale.one_tokens)
        thread.join()
        if not spans:
            raise CommandError(f"{door}: the long text was not tokenised")
        return long_text_figures(load, stamps, spans[0])


def stamps_of(services: OwnServices, streams: range) -> Stamps:
    """What the worker wrote down of these streams."""
    stamps: dict[int, list[int]] = {stream: [] for stream in streams}
    for stream, number, ns in _records((services.run_dir / STAMPS_FILE).read_bytes()):
        if stream in stamps:
            assert number == len(stamps[stream]), (stream, number)
            stamps[stream].append(ns)
    return stamps


def _records(data: bytes) -> Iterator[tuple[int, int, int]]:
    yield from STAMP.iter_unpack(data[: len(data) // STAMP.size * STAMP.size])


def _address(services: OwnServices, door: str) -> tuple[str, int]:
    url = services.http_url if door == "sse" else f"grpc://{services.address}"
    parts = urlsplit(url or "")
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
