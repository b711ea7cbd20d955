"""All figures of the core, as the one object that `radixd bench core` prints."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from scheduler_svc.bench.codec_figures import plan_codec
from scheduler_svc.bench.scale import Scale, make_sequences
from scheduler_svc.bench.step_figures import Bench, Setting, intake, schedule_apply
from scheduler_svc.bench.stopwatch import settle, worse
from scheduler_svc.bench.tree_figures import PAGE_SIZES, match_insert, memory, steady_cycle

Announce = Callable[[str], object]
"""Told what is measured next."""


def measure(scale: Scale, announce: Announce) -> dict[str, Any]:
    """Every figure; see README for what each means.

    Where a figure was taken in several settings, the worst stands above them.
    """
    sequences = make_sequences(scale)
    settle()
    value: dict[str, Any] = {}
    announce("prefix tree")
    value["match_insert_us"] = _by_page(partial(match_insert, sequences, scale=scale))
    value["steady_cycle_us"] = _by_page(partial(steady_cycle, sequences, scale=scale))
    value |= _memory(sequences, announce)
    announce("steps")
    settings = {
        "rows_taken": Setting(num_waiting=scale.num_waiting, slots_short=False),
        "slots_short": Setting(num_waiting=scale.num_waiting, slots_short=True),
    }
    value["schedule_apply_us"] = worse(
        {name: schedule_apply(setting, scale) for name, setting in settings.items()}
    )
    value["intake_us"] = intake(settings["slots_short"], scale)
    announce("plan")
    plan = Bench(settings["rows_taken"], scale).step()
    value["plan_bytes"], codec = plan_codec(plan, scale)
    value["plan_codec_us"] = codec["mean"]
    value["flatness"] = _flatness(scale, announce)
    value["scale"] = {
        "sequences": scale.num_sequences,
        "running": scale.num_running,
        "waiting": scale.num_waiting,
        "repetitions": scale.num_repetitions,
    }
    return value


def _by_page(figure: Callable[..., dict[str, float]]) -> dict[str, Any]:
    return worse({f"page{size}": figure(page_size=size) for size in PAGE_SIZES})


def _memory(sequences: list[array[int]], announce: Announce) -> dict[str, Any]:
    announce("memory of the tree")
    books = {f"page{size}": memory(sequences, size) for size in PAGE_SIZES}
    return {
        "node_bytes": max(book["node_bytes"] for book in books.values()),
        "token_bytes": max(book["token_bytes"] for book in books.values()),
        "memory": books,
    }


def _flatness(scale: Scale, announce: Announce) -> dict[str, Any]:
    """Steps as queue and tree grow, slots short; ratios are of medians, to the smallest."""
    queues = {
        str(length): Setting(num_waiting=length, slots_short=True) for length in scale.queue_lengths
    }
    trees = {
        str(size): Setting(
            num_waiting=scale.num_waiting,
            slots_short=True,
            num_tree_nodes=size,
            estimate="worst_case",
        )
        for size in scale.tree_sizes
    }
    value: dict[str, Any] = {}
    for name, settings in (("waiting", queues), ("tree_nodes", trees)):
        figures = {}
        for number, setting in settings.items():
            announce(f"steps, {name} {number}")
            figures[number] = schedule_apply(setting, scale)
        least = next(iter(figures.values()))["p50"]
        highest = max(figure["p50"] for figure in figures.values())
        value[name] = figures | {"ratio": round(highest / least, 3)}
    value["ratio"] = max(part["ratio"] for part in value.values())
    return value
