"""One kernel with one set of constants, as it is compiled ahead of time to be looked at.

Each file of kernels lists its own, with the constants its launcher uses; `kernels.check` compiles
them.  Here too, as launchers and cases must agree: launch options that kernels share, and whose GPU
it is.  Not here: compiling.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Vendor = Literal["nvidia", "amd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCase:
    """What the compiler is told; the launcher would find the same out from its arguments."""

    name: str
    """Kernel and what is special: "paged_attention decode bf16 G4 D128"."""
    kernel: Any
    """The `triton.jit` function."""
    types: Mapping[str, str]
    """Of each argument that is no constant: "*bf16", "i32", "fp32"."""
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    most_registers: int | None = None
    """Of a thread, on NVIDIA; None: what the compiler finds best."""
    any_size: frozenset[str] = field(default_factory=frozenset)
    """Integers that are not multiples of 16; pointers and all others are."""
    wants: tuple[str, ...] = ()
    """Instructions that must be there, as "sm_90:wgmma.mma_async"; without them it is slow."""
    vendor: Vendor | None = None
    """Whose GPUs launch it with these constants; None: all."""


def vendor_here() -> Vendor:
    """Of the GPU that torch was built for."""
    return "amd" if torch.version.hip else "nvidia"


FUSED: Mapping[str, bool] = {"enable_fp_fusion": True}
"""Launch option of kernels that compute: a product and a sum in one instruction.  Said outright, as
Triton's default changes between versions, and the last bits with it."""


def limited_registers(count: int | None) -> dict[str, int]:
    """Launch option for most_registers; AMD's compiler knows none."""
    return {"maxnreg": count} if count is not None and vendor_here() == "nvidia" else {}


CompileCases = Iterable[CompileCase]

SHORT_DTYPES: Mapping[str, str] = {"bf16": "*bf16", "f16": "*fp16", "f32": "*fp32"}
"""Names of element types, and the compiler's word for a pointer to such."""
