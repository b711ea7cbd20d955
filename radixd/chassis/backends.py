"""Which backends compute, and what each of them has: which options of the worker go together.

One table for the worker, which chooses by it, and for `radixd doctor`, which tells by it.
Not here: whether a GPU or a compiler can be had on this machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from protos.errors import InvalidRequest


class Wanted(Protocol):
    """The options that choose a backend, by their names; values are those of the settings."""

    @property
    def device(self) -> str: ...  # noqa: D102
    @property
    def backend(self) -> str: ...  # noqa: D102
    @property
    def weights(self) -> str: ...  # noqa: D102
    @property
    def kv_dtype(self) -> str: ...  # noqa: D102
    @property
    def cpu_kernels(self) -> str: ...  # noqa: D102
    @property
    def tp(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendKind:
    """A backend on a device; `auto` is among the values of every option."""

    backend: str
    device: str
    weights: frozenset[str]
    kv_dtypes: frozenset[str]
    has_cpu_kernels: bool = False
    """Whether --cpu-kernels means anything to it."""
    has_ranks: bool = True
    """Whether it computes a part of a model, --tp of which make a whole."""
    only_by_name: bool = False
    """Taken where --backend names it, never by auto."""


GPU = BackendKind(
    backend="triton",
    device="cuda",
    weights=frozenset({"auto", "fp32", "bf16", "int8", "int4"}),
    kv_dtypes=frozenset({"auto", "fp32", "bf16", "fp8", "int8"}),
)
NATIVE = BackendKind(
    backend="native",
    device="cpu",
    weights=frozenset({"auto", "fp32", "int8", "int4"}),
    kv_dtypes=frozenset({"auto", "fp32", "int8"}),
    has_cpu_kernels=True,
    has_ranks=False,
)
TORCH = BackendKind(
    backend="torch",
    device="cpu",
    weights=frozenset({"auto", "fp32"}),
    kv_dtypes=frozenset({"auto", "fp32"}),
)
INTERPRETED = BackendKind(
    backend="triton",
    device="cpu",
    weights=frozenset({"auto", "fp32", "int8", "int4"}),  # the interpreter is wrong in bfloat16
    kv_dtypes=frozenset({"auto", "fp32", "fp8", "int8"}),
    only_by_name=True,
)
KINDS = (GPU, NATIVE, TORCH, INTERPRETED)
"""Fastest first."""


def possible(wanted: Wanted) -> list[BackendKind]:
    """The kinds that these options leave, the best first; at least one.

    Raises:
        InvalidRequest: the options contradict each other; names one of them.
    """
    asked = [
        kind
        for kind in KINDS
        if wanted.device in ("auto", kind.device)
        and (wanted.backend == kind.backend or (wanted.backend == "auto" and not kind.only_by_name))
    ]
    if not asked:
        problem = f"{wanted.backend} computes on the CPU, --device {wanted.device} was asked for"
        raise InvalidRequest("backend", problem)
    left = [kind for kind in asked if _clash(kind, wanted) is None]
    if left:
        return left
    # What stands in the way where the ranks do not.
    clash = _clash(next((kind for kind in asked if _has_ranks(kind, wanted)), asked[0]), wanted)
    assert clash is not None
    raise clash


def cannot_be_had(wanted: Wanted, missing: Sequence[tuple[BackendKind, str]]) -> InvalidRequest:
    """The refusal where none of the possible kinds is there; `missing` says why of each."""
    reasons = "; ".join(dict.fromkeys(reason for _, reason in missing))
    if wanted.device == "cuda":
        return InvalidRequest("device", f"cuda cannot be had: {reasons}")
    if wanted.backend != "auto":
        return InvalidRequest("backend", f"{wanted.backend} cannot be had: {reasons}")
    for option in ("weights", "kv_dtype", "cpu_kernels"):
        value = getattr(wanted, option)
        if not _has(TORCH, option, value):
            return InvalidRequest(option, f"{value} needs {_who_has(option, wanted)}: {reasons}")
    return InvalidRequest("backend", f"none can be had: {reasons}")


def _clash(kind: BackendKind, wanted: Wanted) -> InvalidRequest | None:
    """What this kind cannot do, and who could."""
    for option in ("weights", "kv_dtype", "cpu_kernels"):
        value = getattr(wanted, option)
        if not _has(kind, option, value):
            return InvalidRequest(
                option, f"{value} needs {_who_has(option, wanted)}: {_asked_for(wanted)}"
            )
    if not _has_ranks(kind, wanted):
        who = "a GPU or the torch backend"
        return InvalidRequest("tp", f"{wanted.tp} ranks need {who}: {_asked_for(wanted)}")
    if kind.backend == "triton" and wanted.weights != "auto":
        # Uncoded keys and values are of the type that the layers compute in.
        if wanted.kv_dtype == "fp32" and kind is GPU and wanted.weights != "fp32":
            return InvalidRequest("kv_dtype", "fp32 on a GPU needs --weights fp32")
        if wanted.kv_dtype == "bf16" and wanted.weights == "fp32":
            return InvalidRequest("kv_dtype", "bf16 needs other weights than fp32")
    return None


def _asked_for(wanted: Wanted) -> str:
    if wanted.backend != "auto":
        return f"{wanted.backend} was asked for"
    if wanted.device != "auto":
        return f"--device {wanted.device} was asked for"
    if wanted.tp > 1:
        return f"--tp {wanted.tp} was asked for"
    return "another option rules it out"


def _has(kind: BackendKind, option: str, value: str) -> bool:
    if option == "cpu_kernels":
        return value == "auto" or kind.has_cpu_kernels
    return value in (kind.weights if option == "weights" else kind.kv_dtypes)


def _has_ranks(kind: BackendKind, wanted: Wanted) -> bool:
    """Whether it has the ranks that are wanted."""
    return wanted.tp == 1 or kind.has_ranks


def _who_has(option: str, wanted: Wanted) -> str:
    """Of those with as many ranks, if there are any."""
    value = getattr(wanted, option)
    having = [kind for kind in KINDS if _has(kind, option, value) and not kind.only_by_name]
    having = [kind for kind in having if _has_ranks(kind, wanted)] or having
    return " or ".join("a GPU" if kind is GPU else f"the {kind.backend} backend" for kind in having)
