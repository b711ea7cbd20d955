"""What the card itself can do, measured before anything is held against it; and what it is.

Copy bandwidth counts bytes read and bytes written.  The peak is that of torch.matmul on large bf16
squares of normal numbers, as the power limit makes zeros faster than numbers.
"""

import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import torch

from tests.gpu.timing import Stopwatch
from tests.gpu.work import Bound, Work

_SQUARES = (4096, 8192, 16384)
_LARGEST_ROOM = 4 << 30
"""Bytes of each of the two rooms that are copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """Rates nothing on this card is expected to pass by much."""

    copy_bytes_per_s: float
    read_bytes_per_s: float
    bf16_flops_per_s: float


def roofline_us(work: Work, roofs: Roofs) -> tuple[float, Bound]:
    """The least time a work takes, and what holds it up (Williams et al., Roofline, 2009)."""
    memory_us = work.num_bytes / roofs.copy_bytes_per_s * 1e6
    products_us = work.flops / roofs.bf16_flops_per_s * 1e6
    return (memory_us, "memory") if memory_us >= products_us else (products_us, "matrix units")


def rate(amount: float, time_us: float) -> float:
    """Per second."""
    return amount / time_us * 1e6


def measure_roofs(device: torch.device, stopwatch: Stopwatch) -> Roofs:
    """All three, in about three seconds."""
    copied, read = _memory_rates(device, stopwatch)
    return Roofs(
        copy_bytes_per_s=copied,
        read_bytes_per_s=read,
        bf16_flops_per_s=max(_matmul_rate(device, stopwatch, size) for size in _SQUARES),
    )


def _memory_rates(device: torch.device, stopwatch: Stopwatch) -> tuple[float, float]:
    """Bytes per second of copies, read and written, and of reads."""
    free, _ = torch.cuda.mem_get_info(device)
    room = min(_LARGEST_ROOM, free // 4) // 4096 * 4096
    source = torch.zeros(room // 4, dtype=torch.float32, device=device)
    target, total = torch.empty_like(source), torch.empty((), device=device)
    copied = stopwatch.times(lambda: target.copy_(source))
    read = stopwatch.times(lambda: torch.sum(source, dim=0, out=total))
    return rate(2 * room, copied.median_us), rate(room, read.median_us)


def _matmul_rate(device: torch.device, stopwatch: Stopwatch, size: int) -> float:
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    out = torch.empty_like(left)
    times = stopwatch.times(lambda: torch.matmul(left, right, out=out))
    return rate(2 * size**3, times.median_us)


def versions() -> dict[str, str]:
    """Of what computes, as installed here."""
    import triton

    return {"torch": str(torch.__version__), "triton": triton.__version__}


def describe_card(device: torch.device) -> dict[str, Any]:
    """Name, sizes and versions, for the head of a report."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        **versions(),
        "cuda": torch.version.cuda or torch.version.hip or "",
    }


_CLOCK_FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "power.draw",
    "temperature.gpu",
    "driver_version",
)


def read_clocks() -> dict[str, str]:
    """Clocks in MHz, watts, degrees and the driver, as nvidia-smi has them now; empty without it.

    Of the first card that it lists.
    """
    if shutil.which("nvidia-smi") is None:
        return {}
    query = ["nvidia-smi", f"--query-gpu={','.join(_CLOCK_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_clocks(done.stdout)


def parse_clocks(text: str) -> dict[str, str]:
    """The first line that nvidia-smi wrote, by field; empty if it is something else."""
    values = [value.strip() for value in text.partition("\n")[0].split(",")]
    if len(values) != len(_CLOCK_FIELDS):
        return {}
    return dict(zip(_CLOCK_FIELDS, values, strict=True))


def clocks_under_load(device: torch.device) -> dict[str, str]:
    """As read_clocks, while the card multiplies."""
    left = torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)
    for _ in range(1000):  # about two seconds of work are queued; nvidia-smi answers within one
        left @ left
    found = read_clocks()
    torch.cuda.synchronize()
    return found
