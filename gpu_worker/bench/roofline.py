"""The roofline of the CPU backend on this machine: what it is measured against.

Williams, Waterman and Patterson, Roofline: an insightful visual performance model, 2009.  A step of
one row reads every weight once and is bound by memory; a step of sixteen computes sixteen rows with
each weight and is bound by the products.  Attention, norms and sampling come on top of either, so
that no step reaches its ceiling.
"""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from gpu_worker.native.library import FORMATS
from gpu_worker.native.native_weights import NativeWeights
from gpu_worker.native.packing import Panels

READ_BYTES = 512 << 20
"""More than a processor's caches hold."""
ROWS = (1, 4, 16, 64)
MATRIX = (576, 576)
"""Outputs and inputs of the product that is measured: in every format small enough for the cache of
a core, so that memory does not slow it."""
MANY_ROWS = 16


def measure(
    library: ctypes.CDLL, num_threads: int, announce: Callable[[str], object]
) -> dict[str, Any]:
    """Bytes read and multiply-adds done a second by all threads together, each as 10**9."""
    announce("memory bandwidth")
    memory = library.radixd_memory_rate(READ_BYTES, num_threads)
    products: dict[str, dict[str, float]] = {}
    for name, number in FORMATS.items():
        announce(f"products of {name}")
        products[name] = {
            str(rows): round(
                library.radixd_product_rate(number, rows, *MATRIX, num_threads) / 1e9, 2
            )
            for rows in ROWS
        }
    return {
        "kernels": library.radixd_kernels().decode(),
        "threads": num_threads,
        "memory_gb_s": round(memory / 1e9, 2),
        "product_gmac_s": products,
    }


def ceilings(weights: NativeWeights, machine: dict[str, Any]) -> dict[str, Any]:
    """What a step of this model can reach on a machine measured by `measure`, tokens a second."""
    num_bytes = sum(panels.data.nbytes for panels in _read_each_step(weights))
    macs = dict.fromkeys(FORMATS, 0)
    for panels in _read_each_step(weights):
        macs[panels.format] += panels.num_outputs * panels.num_inputs
    rates = machine["product_gmac_s"]
    seconds_a_row = sum(
        macs[name] / (rates[name][str(MANY_ROWS)] * 1e9) for name in FORMATS if macs[name]
    )
    return {
        "weights": weights.format,
        "weight_bytes": num_bytes,
        "macs_a_token": sum(macs.values()),
        "one_row_tok_s": round(machine["memory_gb_s"] * 1e9 / num_bytes, 1),
        "sixteen_rows_tok_s": round(1 / seconds_a_row, 1),
    }


def _read_each_step(weights: NativeWeights) -> Iterable[Panels]:
    """All matrices but the embedding, of which a step reads a row for each token."""
    yield weights.head
    for layer in weights.layers:
        yield from layer.matrices
