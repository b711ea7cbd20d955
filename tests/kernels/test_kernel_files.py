"""Each file of kernels can be read alone: what it computes, costs, checks, and is compared with.

A file with a kernel is one that says what it is compiled to.  What the kernels share stands in
files without one.
"""

import ast
import re
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"
FILES = [
    path for path in sorted(KERNELS.glob("*.py")) if "def compile_cases(" in path.read_text("utf-8")
]
SHARED = {
    *("compile_case", "attention_inputs", "kv_codes", "logit_row", "gumbel_noise"),
    *("sampling_parameters", "quantised_weight", "attention_tile", "product_blocks"),
}
PARTS = {"paged_attention": {"merge_partials"}, "sample": {"survey_logits"}}
"""Kernels that are launched by another's launcher."""
CHANGING = {"num_tokens", "num_top", "plane"}
"""Integers that follow from how many rows a step has and what they ask for.  Of others, which
follow from the model, the compiler may see the value."""


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def problems(name: str, text: str) -> list[str]:
    """What keeps a file from being read alone."""
    tree = ast.parse(text)
    found = functions(tree)
    launcher, reference = found.get(name), found.get(f"{name}_reference")
    wrong = []
    if not re.search(r"\bMoves\b", ast.get_docstring(tree) or ""):
        wrong.append("its docstring does not say what it moves")
    kernels = [ast.unparse(mark) for each in found.values() for mark in each.decorator_list]
    if not any(mark.startswith("triton.jit") for mark in kernels):
        wrong.append("no kernel")
    if launcher is None or "Raises:" not in (ast.get_docstring(launcher) or ""):
        wrong.append("no launcher of its name that says what it refuses")
    if launcher is None or reference is None:
        wrong.append("no reference")
    elif (ast.unparse(launcher.args), ast.unparse(launcher.returns or ast.Constant(None))) != (
        ast.unparse(reference.args),
        ast.unparse(reference.returns or ast.Constant(None)),
    ):
        wrong.append("its reference has another signature")
    used = {
        (node.module or "").removeprefix("kernels.")
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernels")
    }
    wrong += [f"needs {other} to be understood" for other in used - SHARED - PARTS.get(name, set())]
    return wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kernel_can_be_read_alone(path: Path) -> None:
    assert problems(path.stem, path.read_text("utf-8")) == []


def specialised(text: str) -> list[str]:
    """Changing integers of kernels that are compiled anew for a 1 and for multiples of 16."""
    found = []
    for function in functions(ast.parse(text)).values():
        for mark in map(ast.unparse, function.decorator_list):
            is_launched = (ast.get_docstring(function) or "").startswith("Grid ")
            if mark.startswith("triton.jit") and is_launched:
                names = {argument.arg for argument in function.args.args} & CHANGING
                found += [name for name in sorted(names) if f"'{name}'" not in mark]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_step_waits_for_a_compiler(path: Path) -> None:
    assert specialised(path.read_text("utf-8")) == []


def test_an_integer_that_is_specialised_is_found() -> None:
    body = "def _f(x, plane, num_top):\n    'Grid (rows).'\n"
    assert specialised("@triton.jit\n" + body) == ["num_top", "plane"]
    assert specialised("@triton.jit(do_not_specialize=['plane'])\n" + body) == ["num_top"]


def test_what_is_shared_has_no_kernel_of_its_own() -> None:
    assert {path.stem for path in KERNELS.glob("*.py")} == {
        *(path.stem for path in FILES),
        *SHARED,
        "__init__",
        "check",
    }


def test_a_file_that_cannot_be_read_alone_is_found() -> None:
    text = '"""Doubles."""\nfrom kernels.sample import sample\ndef twice(x: int) -> int: ...\n'
    text += "def twice_reference(x: float) -> int: ...\ndef compile_cases(): ...\n"
    assert problems("twice", text) == [
        "its docstring does not say what it moves",
        "no kernel",
        "no launcher of its name that says what it refuses",
        "its reference has another signature",
        "needs sample to be understood",
    ]
