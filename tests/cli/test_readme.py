"""The lines of README.md work as written: requests fit the schemas, commands and options exist."""

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
from google.protobuf import json_format, symbol_database
from grpc_health.v1 import health_pb2

from protos.radixd.v1 import admin_pb2, inference_pb2, tokenizer_pb2
from radixd.chassis.setting_sources import as_text, flag
from radixd.chassis.settings import Settings
from radixd.cli.commands import app
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
POLICIES = (
    "waiting_order",
    "admission_estimate",
    "retraction_policy",
    "retraction_keep",
    "eviction_policy",
)
FILES = (inference_pb2, admin_pb2, tokenizer_pb2, health_pb2)


def command_lines(program: str) -> list[list[str]]:
    """Every call of a program in the shell blocks, split as a shell does."""
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    text = "\n".join(blocks).replace("\\\n", " ")
    text = re.sub(r"(^|\s)#\s.*$", "", text, flags=re.MULTILINE)
    quoted = r"(?:'[^']*'|\"[^\"]*\"|[^'\"\n])*"
    lines = re.findall(rf"(?:^|/bin/|\| ){program} ({quoted})", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


GRPCURL = [words for words in command_lines("grpcurl") if "list" not in words]
RADIXD = command_lines("radixd")


def test_the_lines_are_found() -> None:
    assert len(GRPCURL) >= 7
    assert len(RADIXD) >= 8


@pytest.mark.parametrize("words", GRPCURL, ids=lambda words: words[-1])
def test_grpcurl_lines_fit_the_schemas(words: list[str]) -> None:
    service, _, method = words[-1].partition("/")
    services = {s.full_name: s for f in FILES for s in f.DESCRIPTOR.services_by_name.values()}
    request = services[service].methods_by_name[method].input_type
    message = symbol_database.Default().GetSymbol(request.full_name)()
    data = words[words.index("-d") + 1] if "-d" in words else "{}"
    json_format.Parse(data, message)
    assert "-plaintext" in words
    assert bool(message.ListFields()) == ("-d" in words)


@pytest.mark.parametrize("words", RADIXD, ids=" ".join)
def test_radixd_lines_name_commands_and_options(run: Run, words: list[str]) -> None:
    known = run(words[0], "--help")
    assert known.code == 0, words
    for option in (word for word in words if word.startswith("--")):
        assert option in known.out, option


def shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default is None else as_text(default) or "none"


def test_the_table_of_options_tells_the_defaults() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \| `?([^|`]+)`? \|", README, re.MULTILINE)
    assert len(rows) >= 8
    for name, default in rows:
        value = Settings.model_fields[name.replace("-", "_")].default
        assert shown(value) == default.strip(), name


def test_the_table_of_options_names_every_policy() -> None:
    for field in POLICIES:
        (row,) = re.findall(rf"^\| `{flag(field)}` .*$", README, re.MULTILINE)
        names = set(get_args(Settings.model_fields[field].annotation))
        assert len(names) >= 3
        assert names <= set(re.findall(r"`(\w+)`", row)), field


def test_the_table_of_commands_has_them_all() -> None:
    listed = re.findall(r"^\| `radixd ([a-z]+(?: [a-z]+)*)[^`]*` \|", README, re.MULTILINE)
    there_are = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert sorted(listed) == sorted(there_are)


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing
