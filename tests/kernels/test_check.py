"""What `make kernels-check` finds wrong, on made-up results of a compiler."""

from types import SimpleNamespace
from typing import Any

import pytest

from kernels import check
from kernels.compile_case import CompileCase
from tests.kernels.test_kernel_files import FILES

CASE = CompileCase(
    name="some kernel", kernel=None, types={}, constants={}, wants=("sm_90:wgmma.mma_async",)
)


@pytest.fixture
def comes_out(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what every case compiles to: bytes in memory of a thread, shared memory, assembly."""

    def set_binary(spilled: int, shared: int, ptx: str = "wgmma.mma_async") -> None:
        amdgcn = f".vgpr_count: 30\n.private_segment_fixed_size: {spilled}\n"
        binary = SimpleNamespace(
            asm={"amdgcn": amdgcn, "ptx": ptx}, metadata=SimpleNamespace(shared=shared)
        )
        monkeypatch.setattr(check, "_compile", lambda case, target: binary)

    return set_binary


@pytest.mark.parametrize(
    ("target", "spilled", "shared", "ptx", "problem"),
    [
        ("sm_90", 0, 227 << 10, "wgmma.mma_async", ""),
        ("sm_90", 8, 0, "wgmma.mma_async", "spills 8"),
        ("sm_90", 0, (227 << 10) + 1, "wgmma.mma_async", "232449 bytes of shared memory of 232448"),
        ("sm_89", 0, 100 << 10, "", "102400 bytes of shared memory of 101376"),
        ("gfx942", 4, 65 << 10, "", "spills 4; 66560 bytes of shared memory of 65536"),
        ("sm_90", 0, 0, "mma.sync", "no wgmma.mma_async"),
    ],
)
def test_what_does_not_hold_is_a_problem(
    target: str, spilled: int, shared: int, ptx: str, problem: str, comes_out: Any
) -> None:
    comes_out(spilled, shared, ptx)
    found = check.compiled(CASE, target)
    assert (found.problem, found.registers) == (problem, 30)


def test_another_compiler_may_spill_a_little(comes_out: Any) -> None:
    comes_out(64, 0)
    assert check.compiled(CASE, "gfx942", may_spill=64).problem == ""
    assert check.compiled(CASE, "gfx942", may_spill=63).problem == "spills 64"


def test_what_does_not_compile_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(case: CompileCase, target: check.Target) -> None:
        raise ValueError("line 7") from TypeError("no such operand\n   ^^^")

    monkeypatch.setattr(check, "_compile", fail)
    assert check.compiled(CASE, "sm_80").problem == "TypeError: no such operand"


def test_a_table_that_differs_is_a_problem(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setattr(check, "_TABLE", tmp_path / "COMPILED.md")

    def table(registers: int, version: str) -> str:
        found = [
            check.Compiled(case=CASE.name, target=target, registers=registers, shared=2048)
            for target in check.TARGETS
        ]
        return check.table(found, version)

    here = table(30, triton.__version__)
    assert "| some kernel | 30 / 2 | 30 / 2 | 30 / 2 | 30 / 2 | 30 / 2 |" in here
    assert check._kept(here, write=True) == 0
    assert check._kept(here, write=False) == 0
    assert check._kept(table(31, triton.__version__), write=False) == 1
    check._kept(table(30, "0.0.0"), write=True)  # of another version: not comparable
    assert check._kept(here, write=False) == 0


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_every_kernel_is_compiled_for_every_kind_of_gpu(vendor: str) -> None:
    found = {case.name.split()[0] for case in check.cases() if case.vendor in (None, vendor)}
    assert found == {path.stem for path in FILES}
