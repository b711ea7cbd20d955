"""Where settings come from: command-line flag, RADIXD_ variable and YAML key are one name.

Precedence: flags, then environment, then the YAML file, then the defaults of the schema.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from protos.errors import InvalidRequest
from radixd.chassis.settings import Settings
from radixd.chassis.yaml_file import read_yaml

ENV_PREFIX = "RADIXD_"

_KUBERNETES_LINK = re.compile(r"RADIXD_(.+_)?(SERVICE_HOST|SERVICE_PORT.*|PORT_\d+_(TCP|UDP).*)")
"""Set by Kubernetes beside a Service whose name begins with radixd."""

API_KEY_VARIABLE = "RADIXD_API_KEY"
"""Holds the key of every client command that is not given one.  No option: a key belongs neither
in a file of options nor in what --print-config shows."""


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"{ENV_PREFIX}{name.upper()}"


def flag(name: str) -> str:
    """The command-line flag of an option."""
    return f"--{name.replace('_', '-')}"


def as_text(value: object) -> str:
    """A value as a flag or a variable takes it."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={part}" for key, part in value.items())
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def load_settings(flags: dict[str, Any], config_file: Path | None = None) -> Settings:
    """Settings from flags (None: not given), environment and a YAML file.

    Raises:
        InvalidRequest: names the option, what is wrong with it and where it was given.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    variables = _variables()
    from_file = {} if config_file is None else _read_options(config_file)
    try:
        return Settings(**(from_file | variables | given))
    except ValidationError as error:
        first = error.errors()[0]
        problem = first["msg"].removeprefix("Value error, ")
        name = ".".join(str(part) for part in first["loc"])
        if not name:  # options that contradict each other; the problem begins with the name of one
            name, _, problem = problem.partition(": ")
            raise InvalidRequest(name, problem) from None
        option = str(first["loc"][0])
        if option in given:
            where = flag(option)
        elif option in variables:
            where = variable(option)
        else:
            where = str(config_file)
        raise InvalidRequest(name, f"{problem} ({where})") from None


def _variables() -> dict[str, str]:
    """The text of each option's variable that is set, by the option; their case does not matter."""
    options = {variable(name): name for name in Settings.model_fields}
    found: dict[str, str] = {}
    for key, text in sorted(os.environ.items()):
        name = key.upper()
        is_ours = name.startswith(ENV_PREFIX) and name != API_KEY_VARIABLE
        if name in options:
            found[options[name]] = text
        elif is_ours and not _KUBERNETES_LINK.fullmatch(name):
            # A misspelt option must not be silently without effect.
            raise InvalidRequest(name, "unknown option")
    return found


def _read_options(path: Path) -> dict[str, Any]:
    loaded = read_yaml(path, option="config")
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise InvalidRequest("config", f"{path}: a mapping of option names was expected")
    for key in loaded:
        if key not in Settings.model_fields:
            raise InvalidRequest(str(key), f"unknown option ({path})")
    return loaded
