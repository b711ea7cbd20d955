"""Check of `radixd doctor`: who would compute, compiled code or torch, and why."""

import subprocess
import sys

from radixd.chassis.settings import Settings
from radixd.cli.doctor_finding import Finding, fail, ok, warn

CHECK = "backend"
MOST_SECONDS = 300.0
"""The first look compiles."""


def backend(settings: Settings) -> Finding:
    """What the worker would take with these settings on this machine."""
    if settings.fake_worker:
        return ok(CHECK, "the fake worker computes nothing")
    precision = (
        f"--weights {settings.weights}, --kv-dtype {settings.kv_dtype}, "
        f"--cpu-kernels {settings.cpu_kernels}"
    )
    needs_native = settings.weights in ("int8", "int4") or settings.kv_dtype != "fp32"
    needs_native = needs_native or settings.cpu_kernels != "auto"
    if settings.backend == "torch":
        if needs_native:
            return fail(CHECK, f"torch has no {precision}", "--backend native")
        return ok(CHECK, "torch, as --backend says")
    problem, answer = _ask(settings.cpu_kernels)
    if not problem:
        return ok(CHECK, answer)
    advice = "install a C++ compiler (g++), then `radixd doctor` once more"
    if settings.backend == "native" or needs_native:
        return fail(CHECK, f"native cannot be had: {problem}", advice)
    return warn(CHECK, f"torch, the slower one: {problem}", advice)


def _ask(kernels: str) -> tuple[str, str]:
    """What stands in the way of these kernels, or their name; asked of a process, as the command
    line imports no service."""
    command = [sys.executable, "-m", "gpu_worker.native", kernels]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"building it took more than {MOST_SECONDS:.0f} s", ""
    last = (done.stderr.splitlines() or ["no answer"])[-1]
    return ("", last) if done.returncode == 0 else (last, "")
