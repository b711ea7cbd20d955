"""Reads the project's own source for the rules in this folder; holds no rule itself.

A rule is a function from a module to the sentences it would complain with.  `hold` applies one to
the whole house; each test feeds its rule a bad snippet first, so that a rule that cannot fail
is noticed.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("protos", "kernels", "radixd", "scheduler_svc", "gpu_worker", "tokenizer_svc")
GENERATED = ("_pb2.py", "_pb2_grpc.py", "_pb2.pyi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One Python file."""

    name: str
    """Dotted, as it is imported; a package is named without `__init__`."""
    text: str
    tree: ast.Module
    is_package: bool = False


Rule = Callable[[Module], list[str]]


def snippet(name: str, text: str) -> Module:
    """A module that lies in no file, to show that a rule can fail."""
    return Module(name=name, text=text, tree=ast.parse(text))


@cache
def house(*, tests: bool = False) -> tuple[Module, ...]:
    """Every handwritten module of the project; with `tests`, those of the tests as well."""
    found = []
    for top in (*PACKAGES, "tests") if tests else PACKAGES:
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.name.endswith(GENERATED):
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text, str(path))
            found.append(Module(name=name, text=text, tree=tree, is_package=is_package))
    return tuple(found)


def hold(rule: Rule, *, tests: bool = False) -> None:
    """Fails with every complaint of this rule about the house."""
    complaints = [
        f"{module.name}: {text}" for module in house(tests=tests) for text in rule(module)
    ]
    assert not complaints, "\n" + "\n".join(complaints)


def within(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of these packages or lies in one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def imports(module: Module) -> list[str]:
    """Every module that a module imports, anywhere in it, as absolute dotted names.

    `from a import b` gives `a.b`, as `b` may be a module; a prefix test sees `a` in it as well.
    """
    found = []
    package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = [*above, node.module] if node.module else above
            found += [".".join([*base, alias.name]) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in _DYNAMIC and node.args:
            target = node.args[0]
            found.append(str(target.value) if isinstance(target, ast.Constant) else "?")
    return found


_DYNAMIC = {"__import__", "importlib.import_module", "import_module"}


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones as well."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def calls(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call, with the text of what is called."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node
