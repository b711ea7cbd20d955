"""Compiles every kernel for every target, without a GPU, and holds what comes out to limits.

    python -m kernels.check [--write] [--only TEXT] [--target NAME ...]

What must hold: it compiles, no register spills to memory, shared memory fits the chip, the
instructions a case wants are there.  The table it makes, kernels/COMPILED.md, is committed, so that
a change of registers shows in review.  `--write` writes it; otherwise a table that differs fails,
where it was made by the same version of triton.  Another version may spill a little, as tiles were
chosen with this one.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.compile_case import FUSED, CompileCase, Vendor

_TABLE = Path(__file__).with_name("COMPILED.md")
_KIB = 1024
_LEEWAY = 64
"""Bytes a thread that another version of triton may spill than the one tiles were chosen with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A kind of GPU."""

    vendor: Vendor
    backend: str
    arch: int | str
    warp_size: int
    shared_kib: int
    """Shared memory a program may have."""


TARGETS = {
    "sm_80": Target(vendor="nvidia", backend="cuda", arch=80, warp_size=32, shared_kib=163),
    "sm_89": Target(vendor="nvidia", backend="cuda", arch=89, warp_size=32, shared_kib=99),
    "sm_90": Target(vendor="nvidia", backend="cuda", arch=90, warp_size=32, shared_kib=227),
    "sm_100": Target(vendor="nvidia", backend="cuda", arch=100, warp_size=32, shared_kib=227),
    "gfx942": Target(vendor="amd", backend="hip", arch="gfx942", warp_size=64, shared_kib=64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What one case became on one target."""

    case: str
    target: str
    registers: int = 0
    spilled: int = 0
    """Bytes that a thread has in memory."""
    shared: int = 0
    """Bytes."""
    problem: str = ""


def cases() -> Iterator[CompileCase]:
    """Those of every file of kernels, by its name."""
    from kernels import (
        adjust_logits,
        gather_rows,
        keep_samples,
        linear,
        logprobs,
        merge_partials,
        paged_attention,
        quantised_linear,
        requantise,
        rms_norm,
        rope_store,
        sample,
        silu_mul,
        slot_copy,
        survey_logits,
        take_inputs,
        widen_weight,
    )

    modules = (
        adjust_logits,
        gather_rows,
        keep_samples,
        linear,
        logprobs,
        merge_partials,
        paged_attention,
        quantised_linear,
        requantise,
        rms_norm,
        rope_store,
        sample,
        silu_mul,
        slot_copy,
        survey_logits,
        take_inputs,
        widen_weight,
    )
    for module in modules:
        yield from module.compile_cases()


def compiled(case: CompileCase, target_name: str, may_spill: int = 0) -> Compiled:
    """Compiles one case and judges it; may_spill: bytes a thread."""
    target = TARGETS[target_name]
    try:
        binary = _compile(case, target)
    except Exception as error:  # whatever a compiler throws is the finding
        return Compiled(case=case.name, target=target_name, problem=_reason(error))
    wanted = [wish.partition(":")[2] for wish in case.wants if wish.startswith(f"{target_name}:")]
    registers, spilled = _resources(binary)
    shared = int(binary.metadata.shared)
    problems = []
    if spilled > may_spill:
        problems.append(f"spills {spilled}")
    if shared > target.shared_kib * _KIB:
        problems.append(f"{shared} bytes of shared memory of {target.shared_kib * _KIB}")
    assembly = binary.asm["ptx" if "ptx" in binary.asm else "amdgcn"]
    problems += [f"no {wish}" for wish in wanted if wish not in assembly]
    return Compiled(
        case=case.name,
        target=target_name,
        registers=registers,
        spilled=spilled,
        shared=shared,
        problem="; ".join(problems),
    )


def _reason(error: BaseException) -> str:
    """What the innermost function said; those around it only say where."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def _compile(case: CompileCase, target: Target) -> Any:
    """The compiled kernel, its arguments hinted as a launch would hint them."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, hints = {}, {}
    for index, name in enumerate(case.kernel.arg_names):
        kind = signature[name] = case.types.get(name, "constexpr")
        if kind.startswith(("*", "i")) and name not in case.any_size:
            hints[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=case.kernel, signature=signature, constexprs=dict(case.constants), attrs=hints
    )
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages, **FUSED}
    if case.most_registers and target.vendor == "nvidia":
        options["maxnreg"] = case.most_registers
    return triton.compile(
        source,
        target=GPUTarget(target.backend, target.arch, target.warp_size),
        options=options,
    )


def _resources(binary: Any) -> tuple[int, int]:
    """Registers, and what spilled."""
    if "cubin" not in binary.asm:
        text = binary.asm["amdgcn"]

        def count(name: str) -> int:
            found = re.search(rf"\.{name}:\s*(\d+)", text)
            return int(found[1]) if found else 0

        # Scalar registers spill to vector registers; what goes to memory is in the segment.
        return count("vgpr_count"), count("private_segment_fixed_size")
    usage = _tool("cuobjdump", "-res-usage", binary.asm["cubin"])
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    if found is None:
        raise ValueError(f"cuobjdump says nothing of registers: {usage[:200]}")
    return int(found[1]), int(found[2]) + int(found[3])


def _tool(name: str, option: str, cubin: bytes) -> str:
    """Output of one of the binary tools that triton ships."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([path, option, file.name], capture_output=True, text=True, check=True)
    return done.stdout


def table(results: list[Compiled], version: str) -> str:
    """Markdown: a line for each case, registers / shared KiB for each target."""
    targets = list(TARGETS)
    found = {(result.case, result.target): result for result in results}
    lines = [
        "# What the kernels compile to",
        "",
        f"triton {version}; registers / KiB of shared memory; nothing spills. Made by"
        " `make kernels-check WRITE=1`.",
        "",
        f"| kernel | {' | '.join(targets)} |",
        f"|---|{'---|' * len(targets)}",
    ]
    for case in dict.fromkeys(result.case for result in results):
        cells = [found[case, target] for target in targets]
        text = [f"{cell.registers} / {round(cell.shared / _KIB)}" for cell in cells]
        lines.append(f"| {case} | {' | '.join(text)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """0: everything holds."""
    parser = argparse.ArgumentParser(prog="kernels.check")
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: all")
    asked = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "0"  # decided when a kernel's file is read
    import triton

    pairs = [
        (case.name, target)
        for case in cases()
        if asked.only in case.name
        for target in asked.target or TARGETS
        if case.vendor in (None, TARGETS[target].vendor)
    ]
    results = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(_compiled_by_name, *zip(*pairs, strict=True)):
            results.append(result)
            if result.problem:
                print(f"{result.target} {result.case}: {result.problem}", file=sys.stderr)
    failed = sum(bool(result.problem) for result in results)
    print(f"triton {triton.__version__}: {len(results)} compiled, {failed} failed", file=sys.stderr)
    if failed or asked.only or asked.target:
        return int(failed > 0)
    return _kept(table(results, triton.__version__), asked.write)


def _kept(text: str, write: bool) -> int:
    """Writes the committed table, or compares."""
    if write:
        _TABLE.write_text(text, encoding="utf-8")
        return 0
    old = _TABLE.read_text(encoding="utf-8") if _TABLE.is_file() else ""
    if _is_tuned_for() and old != text:
        print(f"{_TABLE} differs: make kernels-check WRITE=1, and look", file=sys.stderr)
        return 1
    return 0


def _is_tuned_for() -> bool:
    """Whether the committed table is of this version of triton."""
    import triton

    old = _TABLE.read_text(encoding="utf-8") if _TABLE.is_file() else ""
    return f"\ntriton {triton.__version__};" in old


def _compiled_by_name(name: str, target: str) -> Compiled:
    vendors = (None, TARGETS[target].vendor)
    (case,) = (case for case in cases() if case.name == name and case.vendor in vendors)
    return compiled(case, target, 0 if _is_tuned_for() else _LEEWAY)


if __name__ == "__main__":
    sys.exit(main())
