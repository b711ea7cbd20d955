"""Lets a command take one dataclass of options instead of a dozen parameters.

The fields of the dataclass, annotated as typer wants them, are the options of the command.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def takes(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Decorates a command so that typer sees the fields of `options` as its parameters.

    Those it inherits come last, as they are in the help of every command.
    """
    fields = sorted(
        dataclasses.fields(options), key=lambda field: field.name in _inherited(options)
    )
    hints = get_type_hints(options, include_extras=True)

    def wrap(command: Callable[[T], None]) -> Callable[..., None]:
        def call(**values: Any) -> None:
            command(options(**values))

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = hints
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [_parameter(field, hints[field.name]) for field in fields]
        )
        return call

    return wrap


def _inherited(options: type) -> set[str]:
    return {name for base in options.__mro__[1:] for name in inspect.get_annotations(base)}


def _parameter(field: "dataclasses.Field[Any]", hint: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=default, annotation=hint)
