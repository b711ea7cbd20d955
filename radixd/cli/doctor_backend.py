"""Check of `radixd doctor`: who would compute, a GPU, compiled code or torch, and why."""

import subprocess
import sys

from radixd.chassis.backends import (
    GPU,
    INTERPRETED,
    NATIVE,
    TORCH,
    BackendKind,
    cannot_be_had,
    possible,
)
from radixd.chassis.settings import Settings
from radixd.cli.doctor_finding import Finding, fail, ok, warn

CHECK = "backend"
MOST_SECONDS = 300.0
"""The first look compiles."""

_ADVICE = {
    GPU: "--device cpu, or see to the GPU's driver and a build of torch for it",
    NATIVE: "install a C++ compiler (g++), then `radixd doctor` once more",
    INTERPRETED: "--backend auto",
}


def backend(settings: Settings) -> tuple[Finding, BackendKind | None]:
    """What the worker would take with these settings on this machine, and which kind that is."""
    if settings.fake_worker:
        return ok(CHECK, "the fake worker computes nothing"), None
    missing: list[tuple[BackendKind, str]] = []
    for kind in possible(settings):
        problem, answer = _ask(kind, settings)
        if not problem:
            return _found(kind, answer, missing), kind
        missing.append((kind, problem))
    return fail(CHECK, str(cannot_be_had(settings, missing)), _ADVICE[missing[-1][0]]), None


def _found(kind: BackendKind, answer: str, missing: list[tuple[BackendKind, str]]) -> Finding:
    """`kind` would compute, as those before it are missing."""
    reasons = dict(missing)
    if kind is TORCH and NATIVE in reasons:
        return warn(CHECK, f"{answer}, the slower one: {reasons[NATIVE]}", _ADVICE[NATIVE])
    without = f" ({reasons[GPU]})" if GPU in reasons else ""
    return ok(CHECK, answer + without)


def _ask(kind: BackendKind, settings: Settings) -> tuple[str, str]:
    """What stands in the way of this kind, or its name; asked of a process, as the command line
    imports no service."""
    if kind is TORCH:
        return "", "torch"
    module = "gpu_worker.native" if kind is NATIVE else "gpu_worker.device"
    wanted = settings.cpu_kernels if kind is NATIVE else kind.device
    command = [sys.executable, "-m", module, wanted]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"asking for it took more than {MOST_SECONDS:.0f} s", ""
    last = (done.stderr.splitlines() or ["no answer"])[-1]
    return ("", last) if done.returncode == 0 else (last, "")
