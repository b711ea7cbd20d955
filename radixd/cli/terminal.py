"""What the commands share on their way to the terminal: consoles, option types, safe text.

Not here: any knowledge of the server.
"""

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from protos.radixd.v1 import inference_pb2

Target = Annotated[
    str | None,
    typer.Option("--target", metavar="HOST:PORT", help="The server; default 127.0.0.1:50051."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key", metavar="KEY", help="Key of a tenant; better kept in RADIXD_API_KEY."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

PASSES_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of commands that hand every other option on to the settings schema."""

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

_WIDE_CHARS = 1000
"""Of a line that no terminal breaks."""


def print_table(table: Table) -> None:
    """A table on standard output; into a file or a pipe as wide as it is, with nothing cut off."""
    console = (
        out if out.is_terminal else Console(highlight=False, width=max(_WIDE_CHARS, out.width))
    )
    console.print(table)


def print_json(value: object, *, indent: int | None = None) -> None:
    """One JSON value on standard output, exactly as Python sees it (no colors, no wrapping)."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")
    sys.stdout.flush()


def write_text(text: str) -> None:
    """Text of the model, as it comes.  On a terminal, control characters are made harmless."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def harmless(text: str) -> str:
    """The text without the characters that steer a terminal; newline and tab stay."""
    return "".join(
        char if char in "\n\t" or (char >= " " and not "\x7f" <= char <= "\x9f") else "\ufffd"
        for char in text
    )


def snippet(text: str, max_chars: int) -> str:
    """One line of at most max_chars characters, with control characters escaped."""
    line = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def finish_name(reason: int) -> str:
    """`stop` for FINISH_REASON_STOP; unknown numbers of newer servers stay numbers."""
    try:
        name: str = inference_pb2.FinishReason.Name(reason)
    except ValueError:
        return str(reason)
    return name.removeprefix("FINISH_REASON_").lower()


def usage_dict(usage: Any) -> dict[str, int]:
    """radixd.v1.Usage as JSON."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def duration(ms: int) -> str:
    """`1h02m`, `3m07s`, `4.25s` or `12ms`."""
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.4g}s"
    seconds = ms // 1000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds % 60:02}s"
