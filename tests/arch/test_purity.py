"""Same facts in, same bytes out: nothing in the core may depend on a process, a clock or luck.

Imports show most of it (test_floors); the rest shows in how the code is written.  The rules read
names and annotations, not values: a set under an unannotated alias passes unseen, so the replay
under several hash seeds is the proof and these rules are the early warning.
"""

import ast
from collections.abc import Iterator

from tests.arch.source import Module, calls, functions, hold, snippet, within

_ORDER_OF = {"list", "tuple", "iter", "enumerate", "map", "filter", "zip", "array", "sum", "next"}
_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
_UNPICKLERS = (
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
)


def in_core(module: Module) -> bool:
    """Whether the rules of this file that concern the core apply."""
    return within(module.name, "scheduler_svc.core") or module.name == "protos.plan"


def _is_set_annotation(node: ast.expr | None) -> bool:
    if node is None:
        return False
    text = ast.unparse(node).strip("\"'")
    return any(
        part.strip().split("[")[0].rpartition(".")[2]
        in {"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"}
        for part in text.split("|")
    )


def _set_names(module: Module) -> set[str]:
    """Names, attributes and functions that hold or give a set, as far as the text says so."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.AnnAssign) and _is_set_annotation(node.annotation):
            names.add(ast.unparse(node.target).removeprefix("self."))
        elif isinstance(node, ast.arg) and _is_set_annotation(node.annotation):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef) and _is_set_annotation(node.returns):
            names.add(node.name)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and _is_set(node.value, names):
            names |= {ast.unparse(target).removeprefix("self.") for target in node.targets}
    return names


def _is_set(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=name):
            return name in names
        case ast.BinOp(left=left, right=right):
            return _is_set(left, names) or _is_set(right, names)
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _SET_METHODS:
            return _is_set(value, names)
        case ast.Call(func=func):
            return _is_set(func, names)
    return False


def _ordered_uses(tree: ast.Module) -> Iterator[ast.expr]:
    """Every expression whose order shows: loops, comprehensions, `list(x)`, `*x`, `x.pop()`."""
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=source) | ast.comprehension(iter=source) | ast.Starred(value=source):
                yield source
            case ast.Call(func=ast.Name(id=name), args=args) if name in _ORDER_OF:
                yield from args
            case ast.Call(func=ast.Attribute(attr="extend" | "join"), args=args):
                yield from args
            case ast.Call(func=ast.Attribute(value=value, attr="pop"), args=[]):
                yield value


def no_order_of_sets(module: Module) -> list[str]:
    """The order of a set is not part of its value; `sorted`, `len` and `in` are fine."""
    if not in_core(module):
        return []
    names = _set_names(module)
    return [
        f"line {use.lineno}: the order of the set `{ast.unparse(use)}` shows"
        for use in _ordered_uses(module.tree)
        if _is_set(use, names)
    ]


def no_identity_or_hash(module: Module) -> list[str]:
    """An `id` or a `hash` differs from process to process."""
    if not in_core(module):
        return []
    return [
        f"line {call.lineno}: calls {name}()"
        for name, call in calls(module)
        if name in {"id", "hash", "object.__hash__"}
    ]


def no_recursion(module: Module) -> list[str]:
    """A prompt may nest thousands of prefixes deep; Python's stack may not."""
    if not in_core(module):
        return []
    methods = {
        id(item)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        for item in node.body
    }
    found = []
    for function in functions(module):
        own = {function.name}
        if id(function) in methods:
            own = {f"self.{function.name}", f"cls.{function.name}"}
        found += [
            f"line {node.lineno}: {function.name} calls itself"
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in own
        ]
    return found


def no_unpickling(module: Module) -> list[str]:
    """Bytes from outside become values through a closed schema, never through pickle."""
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        found += [f"imports {name}" for name in modules if within(name, *_UNPICKLERS)]
    for name, call in calls(module):
        last = name.rpartition(".")[2]
        if last.startswith(("recv_pyobj", "send_pyobj", "recv_serialized")):
            found.append(f"line {call.lineno}: calls {name}")
        if name in {"torch.load", "eval", "exec"}:
            found.append(f"line {call.lineno}: calls {name}")
        if any(keyword.arg == "allow_pickle" for keyword in call.keywords):
            found.append(f"line {call.lineno}: allows pickle")
    return found


def core(text: str) -> Module:
    """A bad snippet of the core."""
    return snippet("scheduler_svc.core.bad", text)


def test_no_order_of_sets_in_the_core() -> None:
    assert no_order_of_sets(core("for x in {1, 2}: pass"))
    assert no_order_of_sets(core("a: set[int] = set()\nb = [x for x in a]"))
    assert no_order_of_sets(core("def f(a: frozenset[int]): return list(a - {1})"))
    assert no_order_of_sets(core("class A:\n def f(self): self.a = set(); self.a.pop()"))
    assert no_order_of_sets(core("def f() -> set[int]: ...\nfor x in f(): pass"))
    assert no_order_of_sets(core("def f(a: set[int] | None): return [*a]"))
    assert not no_order_of_sets(core("a = {1}\nfor x in sorted(a): assert x in a and len(a)"))
    assert not no_order_of_sets(core("a: dict[int, int] = {}\nfor x in a: a.pop(x)"))
    hold(no_order_of_sets)


def test_no_identity_or_hash_in_the_core() -> None:
    assert no_identity_or_hash(core("x = id(y)"))
    assert no_identity_or_hash(core("x = hash('a')"))
    hold(no_identity_or_hash)


def test_no_recursion_in_the_core() -> None:
    assert no_recursion(core("def f(n): return f(n - 1)"))
    assert no_recursion(core("class A:\n def f(self): self.f()"))
    assert no_recursion(core("def f():\n def g(): g()"))
    assert not no_recursion(core("class A:\n def free(self): self.books.free(); free()"))
    hold(no_recursion)


def test_nothing_is_unpickled() -> None:
    assert no_unpickling(snippet("radixd.x", "import pickle"))
    assert no_unpickling(snippet("radixd.x", "from pickle import loads"))
    assert no_unpickling(snippet("radixd.x", "socket.recv_pyobj()"))
    assert no_unpickling(snippet("gpu_worker.x", "torch.load(path)"))
    assert no_unpickling(snippet("gpu_worker.x", "np.load(path, allow_pickle=True)"))
    assert no_unpickling(snippet("radixd.x", "eval(text)"))
    hold(no_unpickling)
