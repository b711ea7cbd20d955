"""What a figure was measured on; a figure without it says nothing."""

import platform
from pathlib import Path
from typing import Any

from radixd.chassis.processors import usable_processors
from radixd.cli.version import versions


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, system and versions, as JSON."""
    found = versions()
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": usable_processors(),
        "memory_bytes": memory_bytes("MemTotal"),
        "os": _system_name(),
        "python": found.pop("python"),
        "versions": {name: number for name, number in found.items() if number is not None},
    }


def memory_bytes(kind: str) -> int | None:
    """A line of /proc/meminfo, such as MemTotal or MemAvailable; None where there is none."""
    value = _field("/proc/meminfo", kind)
    return int(value.split()[0]) * 1024 if value else None


def _system_name() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()
    return f"{name}, {platform.system()} {platform.release()} {platform.machine()}"


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
