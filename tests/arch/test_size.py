"""How long a file and a function may be: short enough to be read in one go."""

from tests.arch.source import Module, functions, hold, snippet

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50


def files_are_short(module: Module) -> list[str]:
    """At most MAX_FILE_LINES lines a file."""
    num_lines = len(module.text.splitlines())
    return [f"{num_lines} lines, at most {MAX_FILE_LINES}"] if num_lines > MAX_FILE_LINES else []


def functions_are_short(module: Module) -> list[str]:
    """At most MAX_FUNCTION_LINES lines a function, its docstring included."""
    return [
        f"{function.name} has {num_lines} lines, at most {MAX_FUNCTION_LINES}"
        for function in functions(module)
        if (num_lines := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    ]


def test_files_are_short() -> None:
    assert files_are_short(snippet("radixd.x", "x = 1\n" * (MAX_FILE_LINES + 1)))
    assert not files_are_short(snippet("radixd.x", "x = 1\n" * MAX_FILE_LINES))
    hold(files_are_short, tests=True)


def test_functions_are_short() -> None:
    long = "class A:\n    async def f(self):\n" + "        x = 1\n" * MAX_FUNCTION_LINES
    assert functions_are_short(snippet("radixd.x", long))
    assert not functions_are_short(snippet("radixd.x", long.removesuffix("        x = 1\n")))
    hold(functions_are_short, tests=True)
