"""YAML files that people write, read strictly: a key that comes twice is refused, not dropped.

Knows nothing of what the files mean.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from protos.errors import InvalidRequest


class _StrictLoader(yaml.SafeLoader):
    """Plain values only, and every key of a mapping once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping; YAML's own rule that keys are unique is not kept by the library."""
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            # Of mappings merged in by `<<` the nearer key is meant to win.
            if name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} comes twice", key.start_mark
                )
            seen[name] = key
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path, *, option: str) -> Any:
    """What the file holds as plain values; None when it is empty.

    Raises:
        InvalidRequest: names `option`, the file and what is wrong with it.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except OSError as error:
        raise InvalidRequest(option, f"{path}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        # Without the line itself, which may hold a key or a prompt and comes into a log.
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidRequest(option, f"{path}: {error.problem}{where}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        # ValueError: no UTF-8, or a value that cannot be, such as the date 2026-99-99.
        problem = " ".join(str(error).split())
        raise InvalidRequest(option, f"{path}: {problem}") from None
