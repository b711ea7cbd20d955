"""`radixd bench kernels`: what memory and kernels of this machine give, and a model's ceilings."""

import os
import sys
from typing import Annotated, Any

import typer
from rich.table import Table

from radixd.bench.child import run_child
from radixd.bench.machine import describe_machine
from radixd.cli.measuring import measuring_progress
from radixd.cli.terminal import Json, out, print_json


def bench_kernels(
    json: Json = False,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Whose ceilings are told; as in `radixd up`.")
    ] = "smollm2",
) -> None:
    """Measure memory bandwidth and the CPU kernels: the roofline a step is held against."""
    command = [sys.executable, "-m", "gpu_worker.bench", model]
    with measuring_progress() as announce:
        value = run_child(command, os.environ, None, announce)
    value["machine"] = describe_machine()
    if json:
        print_json(value)
        return
    out.print(rates_table(value))
    out.print(ceilings_table(value))


def rates_table(value: dict[str, Any]) -> Table:
    """Multiply-adds by format and rows."""
    threads = value["threads"]
    title = f"{value['kernels']} kernels, {threads} threads, on {value['machine']['cpu']}"
    caption = f"memory: {value['memory_gb_s']:.1f} GB/s read"
    table = Table("rows", title=title, caption=caption)
    for name in value["product_gmac_s"]:
        table.add_column(f"{name}, 10⁹ multiply-adds/s", justify="right")
    of_formats = list(value["product_gmac_s"].values())
    for rows in of_formats[0]:
        table.add_row(rows, *(f"{rates[rows]:.1f}" for rates in of_formats))
    return table


def ceilings_table(value: dict[str, Any]) -> Table:
    """What a step of the model cannot exceed."""
    table = Table("weights", title=f"ceilings of {value['model']}, tokens/s")
    for name in ("MB read a step", "one row, by memory", "sixteen rows, by products"):
        table.add_column(name, justify="right")
    for ceiling in value["ceilings"]:
        table.add_row(
            ceiling["weights"],
            f"{ceiling['weight_bytes'] / 1e6:.1f}",
            f"{ceiling['one_row_tok_s']:.0f}",
            f"{ceiling['sixteen_rows_tok_s']:.0f}",
        )
    return table
