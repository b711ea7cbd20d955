"""The public test suite of JSON Schema: what is served is right, and the rest is refused."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.arch.source import ROOT
from tests.constraints.drawing import BYTES, accepts, draw
from tokenizer_svc.constraints.child import compiled
from tokenizer_svc.generation_request import Constraint

FOLDER = ROOT / ".json-schema-suite" / "json" / "tests"
VALIDATORS = {
    "draft2020-12": jsonschema.Draft202012Validator,
    "draft7": jsonschema.Draft7Validator,
}
NUM_DRAWN = 3
KNOWN = {"ECMA 262 \\S matches everything but whitespace"}
"""The suite lets `\\S` exclude U+FEFF, as ECMAScript does; the library's does not."""


def groups(draft: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of a draft with its cases."""
    files = sorted(
        [*(FOLDER / draft).glob("*.json"), *(FOLDER / draft / "optional").glob("*.json")]
    )
    assert files, f"{FOLDER} has no suite: `make suite` fetches it"
    for path in files:
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield path.stem, group


def grammar_of(schema: object) -> str | None:
    """None: refused, in one line."""
    answer = compiled(BYTES, Constraint(kind="json_schema", text=json.dumps(schema)))
    if "problem" in answer:
        assert answer["problem"]
        assert "\n" not in answer["problem"]
    return answer.get("grammar")


@pytest.mark.parametrize("draft", sorted(VALIDATORS))
def test_no_case_is_answered_wrongly(draft: str) -> None:
    """An instance that a schema forbids is never said; most of those it allows can be."""
    counts: Counter[str] = Counter()
    for keyword, group in groups(draft):
        grammar = grammar_of(group["schema"])
        counts["served" if grammar else "refused"] += 1
        for case in group["tests"] if grammar else ():
            said = accepts(grammar, json.dumps(case["data"], ensure_ascii=False))
            if said and not case["valid"]:
                assert group["description"] in KNOWN, (keyword, group["description"], case)
            counts["agree" if said == case["valid"] else "narrower"] += 1
    assert counts["served"] >= {"draft2020-12": 175, "draft7": 160}[draft], counts
    assert counts["refused"] >= 100, counts
    assert counts["agree"] >= {"draft2020-12": 620, "draft7": 560}[draft], counts
    assert counts["narrower"] <= 40, counts


@pytest.mark.parametrize("draft", sorted(VALIDATORS))
def test_what_is_said_is_valid(draft: str) -> None:
    """Outputs drawn at random parse, and the reference validator takes them."""
    drawn = unfinished = 0
    for keyword, group in groups(draft):
        schema = group["schema"]
        grammar = grammar_of(schema)
        for seed in range(NUM_DRAWN) if grammar else ():
            text = draw(grammar, seed)
            if text is None:
                unfinished += 1
                continue
            drawn += 1
            value = json.loads(text)
            try:
                is_valid = VALIDATORS[draft](schema).is_valid(value)
            except re.error:  # a pattern that the validator's language cannot read
                drawn -= 1
                continue
            assert is_valid, (keyword, group["description"], text)
    assert drawn >= {"draft2020-12": 500, "draft7": 480}[draft]
    assert unfinished <= drawn // 50


def test_the_suite_is_there() -> None:
    assert isinstance(FOLDER, Path)
    assert FOLDER.is_dir(), "`make suite` fetches the JSON Schema test suite"
