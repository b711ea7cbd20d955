"""Habits that a linter does not know: names that say nothing, work left for later, tests of air."""

import ast
import re

from tests.arch.source import Module, calls, functions, hold, imports, snippet, within

_EMPTY_NAMES = re.compile(r"(^|_)(utils?|helpers?|misc|common|base)$")
_LATER = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
_LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
_SILENT_SKIPS = {"pytest.mark.skip", "pytest.mark.xfail", "pytest.importorskip", "pytest.xfail"}
_MAY_PRINT = ("radixd", "tests")


def names_say_something(module: Module) -> list[str]:
    """A file named for nothing fills with anything; a mixin is half a class."""
    last = module.name.rpartition(".")[2]
    found = [f"the name `{last}` says nothing"] if _EMPTY_NAMES.search(last) else []
    return found + [
        f"{node.name} is a mixin"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and "mixin" in node.name.lower()
    ]


def nothing_is_left_for_later(module: Module) -> list[str]:
    """What is not done is said in a DESIGN.md, with a date, and not left in the code."""
    found = [f"leaves a {match[1]}" for match in _LATER.finditer(module.text)]
    return found + [
        f"line {node.lineno}: raises NotImplementedError"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node)
    ]


def events_are_nouns(module: Module) -> list[str]:
    """A log event is a constant name with keys, so that it can be searched and counted."""
    found = []
    for name, call in calls(module):
        receiver, _, method = name.rpartition(".")
        if receiver.rpartition(".")[2].lstrip("_") not in {"log", "logger"}:
            continue
        if method in _LOG_METHODS and call.args:
            event = ast.unparse(call.args[0])
            if not re.fullmatch(r"'[a-z][a-z0-9_]*'", event):
                found.append(f"line {call.lineno}: the event {event} is no short name")
    return found


def services_do_not_print(module: Module) -> list[str]:
    """Services log; a word about bad usage, before there is a log, goes to stderr."""
    if within(module.name, *_MAY_PRINT):
        return []
    return [
        f"line {call.lineno}: prints to stdout"
        for name, call in calls(module)
        if name == "print" and "file=sys.stderr" not in ast.unparse(call)
    ]


def no_mocks(module: Module) -> list[str]:
    """A seam has a fake of its own; a mock agrees with whatever it is asked."""
    return [f"imports {used}" for used in imports(module) if within(used, "unittest.mock", "mock")]


def asserts_something(module: Module) -> list[str]:
    """A test asserts, expects an error, or calls a function of the tests that does."""
    if not within(module.name, "tests"):
        return []
    ours = {function.name for function in functions(module)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and within(node.module or "", "tests"):
            ours |= {alias.asname or alias.name for alias in node.names}
    found = []
    for function in functions(module):
        if not function.name.startswith("test_"):
            continue
        inside = list(ast.walk(function))
        called = {ast.unparse(node.func) for node in inside if isinstance(node, ast.Call)}
        asserts = any(isinstance(node, ast.Assert) for node in inside)
        if not asserts and "pytest.raises" not in called and not called & ours:
            found.append(f"{function.name} asserts nothing")
    return found


def nothing_is_skipped_silently(module: Module) -> list[str]:
    """A test that does not apply is a `skipif` with its reason; none is skipped for failing."""
    return [
        f"line {node.lineno}: uses {ast.unparse(node)}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in _SILENT_SKIPS
    ]


def test_names_say_something() -> None:
    assert names_say_something(snippet("radixd.chassis.utils", ""))
    assert names_say_something(snippet("radixd.x", "class IOMixin: pass"))
    hold(names_say_something, tests=True)


def test_nothing_is_left_for_later() -> None:
    assert nothing_is_left_for_later(snippet("radixd.x", "# TO" + "DO: later"))
    assert nothing_is_left_for_later(snippet("radixd.x", "def f(): raise NotImplementedError"))
    hold(nothing_is_left_for_later, tests=True)


def test_log_events_are_nouns() -> None:
    assert events_are_nouns(snippet("radixd.x", "log.info(f'got {n}')"))
    assert events_are_nouns(snippet("radixd.x", "self._log.info('It has started')"))
    assert not events_are_nouns(snippet("radixd.x", "log.info('request_finished', num_tokens=1)"))
    hold(events_are_nouns)


def test_services_do_not_print() -> None:
    assert services_do_not_print(snippet("scheduler_svc.x", "print(1)"))
    assert not services_do_not_print(snippet("gpu_worker.x", "print(1, file=sys.stderr)"))
    hold(services_do_not_print)


def test_no_mocks() -> None:
    assert no_mocks(snippet("tests.x", "from unittest import mock"))
    hold(no_mocks, tests=True)


def test_tests_hold_something_to_account() -> None:
    assert asserts_something(snippet("tests.x", "def test_a(): f()"))
    assert not asserts_something(
        snippet("tests.x", "from tests.y import check\ndef test_a(): check()")
    )
    hold(asserts_something, tests=True)


def test_nothing_is_skipped_silently() -> None:
    assert nothing_is_skipped_silently(snippet("tests.x", "@pytest.mark.skip\ndef test_a(): f()"))
    hold(nothing_is_skipped_silently, tests=True)
