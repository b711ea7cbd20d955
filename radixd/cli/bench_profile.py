"""The report of `radixd bench --profile` as a table for people."""

from typing import Any

from rich.table import Table

from radixd.bench.profile import KINDS

_PHASES = (
    ("products", "products"),
    ("attention", "attention"),
    ("rest of the forward pass", "forward_rest"),
    ("sampling", "sampling"),
    ("rest of the worker", "worker_rest"),
    ("wire and waiting", "wire"),
    ("busy: sum of the above", "busy"),
    ("of it, outside the forward pass", "outside_forward"),
    ("schedule", "schedule"),
    ("apply", "apply"),
)
_SIZES = (
    ("steps", "num_steps", "{}"),
    ("rows a step", "mean_rows", "{:.1f}"),
    ("tokens computed a step", "mean_tokens", "{:.1f}"),
    ("tokens sampled a step", "mean_sampled", "{:.1f}"),
    ("tokens computed a busy second", "computed_tok_s", "{:.1f}"),
    ("tokens sampled a busy second", "sampled_tok_s", "{:.1f}"),
)
_END_OF_STEP = ("busy", "outside_forward")


def profile_table(value: dict[str, Any]) -> Table:
    """Mean time of a step by phase, and its share of the wall time, for both kinds of steps."""
    title = f"{value['workload']} on {value['machine']['cpu']}"
    caption = f"wall time {value['wall_s']:.3f} s, idle {value['idle_share']:.1%} of it"
    table = Table("phase", title=title, caption=caption)
    for kind in ("decode", "with prompt tokens"):
        table.add_column(f"{kind}, ms", justify="right")
        table.add_column("share", justify="right")
    for label, name in _PHASES:
        cells = []
        for kind in KINDS:
            phase = value[kind]["phases"][name]
            cells.append(_cell(phase["ms"], "{:.3f}"))
            cells.append(_cell(phase["share"], "{:.1%}"))
        table.add_row(label, *cells, end_section=name in _END_OF_STEP)
    table.add_section()
    for label, name, form in _SIZES:
        cells = [cell for kind in KINDS for cell in (_cell(value[kind][name], form), "")]
        table.add_row(label, *cells)
    return table


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
