"""scheduler_svc/README.md explains every policy in the words that GetPolicy shows."""

import inspect
import re

import pytest

from scheduler_svc.core.config import CHANGEABLE, POLICY_NAMES
from tests.arch.source import ROOT

README = " ".join((ROOT / "scheduler_svc" / "README.md").read_text(encoding="utf-8").split())
POLICIES = [(family, name) for family, names in POLICY_NAMES.items() for name in names]


def paragraph(policy) -> str:
    if isinstance(policy, str):
        return policy
    named = policy if inspect.isfunction(policy) or inspect.isclass(policy) else type(policy)
    return " ".join(inspect.getdoc(named).split())


@pytest.mark.parametrize(("family", "name"), POLICIES)
def test_each_policy_has_its_paragraph(family, name):
    part = README.partition(f"### `{family}`")[2].partition("###")[0]
    text = paragraph(POLICY_NAMES[family][name])
    assert f"- **`{name}`**: {text}" in part
    assert re.search(r"\b[Ss]uits\b|\bright for\b|default", text), "says when it suits"


def test_each_knob_is_named():
    assert not [name for name in CHANGEABLE if f"`{name}`" not in README]
