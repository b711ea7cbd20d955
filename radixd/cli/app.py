"""The entry point `radixd`: gathers the commands and turns their errors into one line."""

import os
import sys

import typer

from protos.errors import RadixdError
from radixd.cli.bench import bench
from radixd.cli.bench_core import bench_core
from radixd.cli.bench_pressure import pressure
from radixd.cli.chat import chat
from radixd.cli.client import CommandError
from radixd.cli.doctor import doctor
from radixd.cli.explain import explain
from radixd.cli.generate import generate
from radixd.cli.pins import pins
from radixd.cli.policy import policy
from radixd.cli.preheat import preheat
from radixd.cli.requests import requests
from radixd.cli.terminal import PASSES_SETTINGS, err
from radixd.cli.top import top
from radixd.cli.tree import tree
from radixd.cli.up import up
from radixd.cli.version import version

BENCH_CORE = "bench core"
"""A command of two words; `bench` takes every option of the services, so it cannot be a group."""

app = typer.Typer(
    name="radixd",
    help="An LLM inference server that treats KV-cache memory as the scarce good.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# `up` shows the help of the settings schema, which holds all of its options.
app.command(context_settings=PASSES_SETTINGS, add_help_option=False)(up)
app.command()(chat)
app.command()(generate)
app.command()(preheat)
app.command()(tree)
app.command()(top)
app.command()(requests)
app.command()(explain)
app.command()(pins)
app.command()(policy)
app.command(context_settings=PASSES_SETTINGS)(bench)
app.command(name=BENCH_CORE)(bench_core)
app.command()(pressure)
app.command(context_settings=PASSES_SETTINGS)(doctor)
app.command()(version)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the value is the exit code.

    0 done, 1 refused or failed with one line on standard error, 2 wrong usage, 130 interrupted.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:2] == BENCH_CORE.split():
        words = [BENCH_CORE, *words[2:]]
    try:
        app(args=words, prog_name="radixd")
    except (CommandError, RadixdError) as error:
        err.print(f"radixd: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    except BrokenPipeError:
        # The reader has left, as in `radixd tree | head`; the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        err.print(f"radixd: {error.strerror or error}", style="red", markup=False)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
