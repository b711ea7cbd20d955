"""Settings as a command line: every field a flag, one line for an error, the way back to flags.

Generates from the schema in `settings`; defines no option of its own beyond --config and
--print-config.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from protos.errors import InvalidRequest, RadixdError
from radixd.chassis.setting_sources import API_KEY_VARIABLE, as_text, flag, load_settings, variable
from radixd.chassis.settings import Settings

USAGE_EXIT_STATUS = 2
LOST_EXIT_STATUS = 75
"""A service ended through no fault of its call, as a process it needs has died: start it again.
The number is sysexits' EX_TEMPFAIL."""


def settings_from_argv(prog: str, argv: list[str]) -> Settings:
    """Settings in force for these arguments (without the program's name).

    Ends the process: with status 2 and one line on stderr for a bad option, with 0 after --help
    and --print-config.
    """
    try:
        flags, config_file, print_config = _parse(prog, argv)
        settings = load_settings(flags, config_file)
    except InvalidRequest as error:
        raise SystemExit(complain(prog, error)) from None
    if print_config:
        sys.stdout.write(settings_as_yaml(settings))
        raise SystemExit(0)
    return settings


def complain(prog: str, error: RadixdError) -> int:
    """Says on stderr why a program cannot run as it was called; returns its exit status."""
    sys.stderr.write(f"{prog}: {error}\n")
    return USAGE_EXIT_STATUS


def argv_from_settings(settings: Settings) -> list[str]:
    """Flags that give a child process, started without RADIXD_ variables, the same settings."""
    argv = []
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if value == field.default:
            continue
        if isinstance(value, bool):
            argv.append(flag(name) if value else flag(f"no_{name}"))
        else:
            # One argument, so that a value may begin with a dash.
            argv.append(f"{flag(name)}={as_text(value)}")
    return argv


def environment_for_child() -> dict[str, str]:
    """This process's environment without the variables that `argv_from_settings` already covers,
    and without the key of a client, which is no service's business."""
    covered = {variable(name) for name in Settings.model_fields} | {API_KEY_VARIABLE}
    return {key: value for key, value in os.environ.items() if key.upper() not in covered}


def settings_as_yaml(settings: Settings) -> str:
    """The settings in force, as a file that --config takes."""
    values = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in settings.model_dump().items()
        if value is not None
    }
    text: str = yaml.safe_dump(values, sort_keys=False)
    return text


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """Adds every setting as a flag; what is not given stays None, values stay text."""
    for name, field in Settings.model_fields.items():
        default = f"[{as_text(field.default)}]"
        text = " ".join((str(field.description), *_choices(field), default)).replace("%", "%%")
        if field.annotation is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag(name), dest=name, action=action, default=None, help=text)
        else:
            parser.add_argument(flag(name), dest=name, metavar=_metavar(name, field), help=text)


def _parse(prog: str, argv: list[str]) -> tuple[dict[str, Any], Path | None, bool]:
    parser = argparse.ArgumentParser(
        prog=prog, allow_abbrev=False, exit_on_error=False, usage="%(prog)s [OPTIONS]"
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of options by name.")
    parser.add_argument("--print-config", action="store_true", help="Show the options in force.")
    add_setting_flags(parser)
    try:
        known, unknown = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise InvalidRequest(error.argument_name or "arguments", error.message) from None
    if unknown:
        raise InvalidRequest(unknown[0], f"unknown option; see {prog} --help")
    flags = {name: getattr(known, name) for name in Settings.model_fields}
    return flags, None if known.config is None else Path(known.config), known.print_config


def _choices(field: FieldInfo) -> list[str]:
    """A sentence with the names an option takes, where it takes only some."""
    is_choice = get_origin(field.annotation) is Literal
    return [f"One of {', '.join(get_args(field.annotation))}."] if is_choice else []


def _metavar(name: str, field: FieldInfo) -> str:
    if field.annotation is int:
        return "N"
    if field.annotation is float:
        return "X"
    return name.upper()
