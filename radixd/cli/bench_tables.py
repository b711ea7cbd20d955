"""The reports of `radixd bench` as tables for people."""

from typing import Any

from rich.table import Table

from radixd.bench.peer import OURS

_ROWS = (
    ("wall time, s", ("wall_s",)),
    ("output tokens/s", ("out_tok_s",)),
    ("first token p50, s", ("ttft_s", "p50")),
    ("first token p95, s", ("ttft_s", "p95")),
    ("short prompts p50, s", ("short_ttft_s", "p50")),
    ("short prompts p95, s", ("short_ttft_s", "p95")),
    ("between tokens p50, s", ("itl_s", "p50")),
    ("between tokens p95, s", ("itl_s", "p95")),
    ("cached tokens", ("cached_tokens",)),
    ("peak memory, GiB", ("peak_rss_bytes",)),
)


def table_of(value: dict[str, Any]) -> Table:
    """The report; ranges beside the medians where there were several runs."""
    runs = value.get("runs")
    table = Table("figure", title=_title(value))
    table.add_column("median" if runs else "value", justify="right")
    if runs:
        table.add_column("range", justify="right")
    for name, path in _ROWS:
        cells = [_cell(name, _at(value, path))]
        if runs:
            cells.append(_range(name, runs, path))
        table.add_row(name, *cells)
    return table


def comparison_table(value: dict[str, Any]) -> Table:
    """The report of ours and of peers: medians, ranges in brackets, and ours / theirs."""
    table = Table("figure", title=_title(value))
    table.add_column(OURS, justify="right")
    for name in value["peers"]:
        table.add_column(name, justify="right")
        table.add_column(f"{OURS} / {name}", justify="right")
    for name, path in _ROWS:
        cells = [_with_range(name, value, path)]
        for peer, theirs in value["peers"].items():
            ratio = _at(value["ratios"][peer], path)
            cells.append(_with_range(name, theirs, path))
            cells.append("-" if ratio is None else f"{ratio:.2f}")
        table.add_row(name, *cells)
    return table


def _title(value: dict[str, Any]) -> str:
    return f"{value['workload']} on {value['machine']['cpu']}"


def _with_range(name: str, value: dict[str, Any], path: tuple[str, ...]) -> str:
    cell, runs = _cell(name, _at(value, path)), value.get("runs")
    return cell if cell == "-" or not runs else f"{cell} ({_range(name, runs, path)})"


def _range(name: str, runs: dict[str, Any], path: tuple[str, ...]) -> str:
    low, high = _at(runs["lowest"], path), _at(runs["highest"], path)
    return "-" if low is None else f"{_cell(name, low)} … {_cell(name, high)}"


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("GiB"):
        return f"{value / 2**30:.2f}"
    return str(value) if isinstance(value, int) else f"{value:.3f}"
