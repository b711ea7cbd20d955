"""Which tables of kernels this processor can run, by what the system says of it."""

from pathlib import Path

_NEEDED = {
    "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
    "avx2": {"avx2", "fma", "f16c"},
}
"""Fastest first."""


def _processor_flags() -> set[str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return set(next((line for line in lines if line.startswith("flags")), "").split())


_FLAGS = _processor_flags()
TABLES = [name for name, needed in _NEEDED.items() if needed <= _FLAGS]
"""Every native test runs on each of them; the first is what "auto" must take."""
NOT_HERE = [name for name in _NEEDED if name not in TABLES]
