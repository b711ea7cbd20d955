"""Runs chat templates, which are programs from strangers, with limits on time and size.

Jinja itself is used here, and not the wrapper in transformers, because importing that one loads
torch wherever torch is installed (six seconds and 250 MB in a service that needs neither).

Bounded are the CPU time, the length of what is rendered and of every text and list on the way (of
what could make one of gigabytes before it is made, see `template_sizes`), numbers, ranges (by
Jinja's sandbox) and depth.
"""

import json
import time
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from tokenizer_svc.tokenizers.template_sizes import has_wide_field, is_wide, size_made

MAX_CPU_S = 5.0
_MAX_NUMBER = 1_000_000
"""As an argument: a width, a number of repeats."""
_MAX_FACTOR = 10**18
_STEPS_PER_LOOK = 64
"""Turns of loops and calls between two looks at the clock."""
_MAX_CAUSE_LENGTH = 200
_FILE_NAME = "<template>"
"""What Jinja calls a template that came as text."""


class TemplateFailure(Exception):
    """A template could not be rendered; the message names the line and the cause."""


class CompiledTemplate:
    """A template ready to run; safe to use from several threads at once."""

    def __init__(self, source: str, *, max_cpu_s: float = MAX_CPU_S) -> None:
        """Compiles it; `max_cpu_s` is for one rendering, on the thread that does it.

        Raises:
            ValueError: the source is not a template; says where.
        """
        environment = _Environment()
        self._max_cpu_s = max_cpu_s
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree)).difference(
            environment.globals
        )
        """Names that it reads and does not set itself."""
        self.own_names = frozenset(environment.globals)
        """Names that have a meaning in every template."""

    def render(self, variables: Mapping[str, Any], *, max_characters: int) -> str:
        """The text that the template makes of the variables.

        Raises:
            TemplateFailure: it refuses them, breaks, or goes beyond a limit.
        """
        meter = _Meter(self._max_cpu_s, max_characters)
        before = _METER.set(meter)
        pieces = []
        try:
            for piece in self._template.generate(variables):
                meter.count(len(piece))
                pieces.append(piece)
        except _BROKEN as error:
            raise TemplateFailure(_told(error)) from None
        finally:
            _METER.reset(before)
        return "".join(pieces)


class _Limit(jinja2.TemplateError):
    """A template went beyond a limit."""


class _Meter:
    """What one rendering has used so far."""

    def __init__(self, max_cpu_s: float, max_characters: int) -> None:
        self._max_cpu_s = max_cpu_s
        self._end_s = time.thread_time() + max_cpu_s
        self._max_characters = max_characters
        self._num_characters = 0
        self._num_steps = 0

    def step(self) -> None:
        self._num_steps += 1
        if self._num_steps % _STEPS_PER_LOOK == 0 and time.thread_time() > self._end_s:
            raise _Limit(f"it takes longer than {self._max_cpu_s:g} s")

    def count(self, num_characters: int) -> None:
        self.step()
        self._num_characters += num_characters
        self.check_size(self._num_characters)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.step()
        if any(isinstance(arg, int) and arg > _MAX_NUMBER for arg in (*args, *kwargs.values())):
            raise _Limit(f"it gives a call a number above {_MAX_NUMBER}")
        made = function(*args, **kwargs)
        if isinstance(made, _SIZED):
            self.check_size(len(made))
        return made

    def check_size(self, size: int) -> None:
        if size > self._max_characters:
            raise _Limit(f"it makes more than {self._max_characters} characters")


_SIZED = (str, list, tuple)
_METER: ContextVar[_Meter] = ContextVar("meter")
_BROKEN = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)
"""What a template may end with; nothing else comes from one."""


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """With the names and filters that published templates use, and a meter."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock, _Calls],
        )
        self.filters["tojson"] = _tojson
        self.filters["join"] = _join
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]
        self.filters = {name: _metered(name, each) for name, each in self.filters.items()}

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Jinja's, counted; the odd names are its own, so that a template may use the others."""
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            _METER.get().check_size(size_made(__obj.__name__, text, args, kwargs))
        return _METER.get().call(super().call, __context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Jinja's, within the limits."""
        if operator == "**":
            raise _Limit("it raises a number to a power")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        if isinstance(left, int) and isinstance(right, int):
            _check_numbers(left, right)
        _METER.get().check_size(_size_after(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's hook for `format` of a text, with our formatter."""
        if super().wrap_str_format(value) is None:
            return None
        if value.__name__ != "format":
            raise _Limit("it formats by a mapping")
        text: str = value.__self__
        return lambda *args, **kwargs: _Formatter(self).vformat(text, args, kwargs)

    def _generate(
        self,
        source: jinja2.nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        # Jinja's hook for the tree before it becomes code: every turn of a loop is a call, too, and
        # so is every `~`, whose only part becomes what the call makes of all its parts.
        own = _Calls.of(self)
        for loop in source.find_all(jinja2.nodes.For):
            step = jinja2.nodes.ExprStmt(own.call_method("step"))
            loop.body.insert(0, step.set_lineno(loop.lineno))
        for concat in list(source.find_all(jinja2.nodes.Concat)):
            concat.nodes = [own.call_method("concat", concat.nodes, lineno=concat.lineno)]
        return super()._generate(source, name, filename, defer_init)


class _Calls(jinja2.ext.Extension):
    """What becomes a call, so that the environment counts and bounds it."""

    @classmethod
    def of(cls, environment: jinja2.Environment) -> "_Calls":
        """The one of this environment."""
        extension = environment.extensions[cls.identifier]
        assert isinstance(extension, cls)
        return extension

    def step(self) -> None:
        """A turn of a loop."""

    def concat(self, *parts: Any) -> str:
        """`~` of these."""
        texts = list(map(str, parts))
        _METER.get().check_size(sum(map(len, texts)))
        return "".join(texts)


class _GenerationBlock(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, which training uses; here its body counts."""

    tags = {"generation"}  # noqa: RUF012 (the name and kind are Jinja's)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The statements of the body, as if the tag were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _size_after(operator: str, left: Any, right: Any) -> int:
    if isinstance(right, _SIZED) and not isinstance(left, _SIZED):
        left, right = right, left
    if not isinstance(left, _SIZED):
        return 0
    if operator == "+":
        return len(left) + len(right) if isinstance(right, _SIZED) else 0
    return len(left) * right if isinstance(right, int) else 0


class _Formatter(jinja2.sandbox.SandboxedFormatter):
    """Jinja's, with fields of a bounded width."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Python's, once the fields inside the specification are known."""
        if is_wide(format_spec):
            raise _Limit("it formats to a great width")
        return super().format_field(value, format_spec)


def _check_format(text: str) -> None:
    if has_wide_field(text):
        raise _Limit("it formats to a great width")


def _check_numbers(*numbers: int) -> None:
    # By themselves they would grow until one product takes hours.
    if any(abs(number) > _MAX_FACTOR for number in numbers):
        raise _Limit(f"it calculates with a number above {_MAX_FACTOR}")


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # `wraps` keeps the marks by which Jinja knows what else a filter is given.
    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        at = next((i for i, arg in enumerate(args) if isinstance(arg, str)), None)
        if name == "format" and at is not None:
            _check_format(args[at])
        elif name != "join" and at is not None:
            _METER.get().check_size(size_made(name, args[at], args[at + 1 :], kwargs))
        return _METER.get().call(function, *args, **kwargs)

    return metered


def _told(error: Exception) -> str:
    """The error in one line, with the line of the template where it is known."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == _FILE_NAME]
    if isinstance(error, RecursionError):
        cause = "it calls itself too often"
    elif isinstance(error, _Limit):
        cause = str(error.message)
    elif isinstance(error, jinja2.TemplateError):
        cause = f"it refuses them: {error.message}"
    else:
        cause = f"it cannot render them: {error}"
    where = f"line {lines[-1]}: " if lines else ""
    return where + " ".join(cause.split())[:_MAX_CAUSE_LENGTH]


@jinja2.pass_eval_context
def _join(context: jinja2.nodes.EvalContext, value: Any, d: str = "", attribute: Any = None) -> str:
    # Jinja's, of something that has a length.
    items = value if isinstance(value, _SIZED) else list(value)
    _METER.get().check_size(size_made("join", str(d), (items,), {}))
    joined: str = jinja2.filters.do_join(context, items, d, attribute)
    return joined


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes for HTML, which prompts are not.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
