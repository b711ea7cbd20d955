"""Schemas that never end are told from those that may, however their parts are combined."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.constraints.drawing import accepts
from tests.constraints.test_forms import answer, grammar
from tokenizer_svc.constraints import schema_endings
from tokenizer_svc.constraints.form_error import FormError
from tokenizer_svc.constraints.json_schema import read_schema

SUITE = Path(__file__).parents[2] / ".json-schema-suite/json"
NULL = {"type": "null"}
SELF = {"properties": {"a": {"$ref": "#"}}}
NODE = {
    "type": "object",
    "properties": {"a": {"anyOf": [{"$ref": "#/$defs/node"}, NULL]}},
    "required": ["a"],
}

ENDLESS: list[dict[str, Any]] = [
    {"type": "object", "allOf": [{"required": ["a"]}, SELF]},
    {"$defs": {"b": {"type": "object", "required": ["a"]}}, "allOf": [{"$ref": "#/$defs/b"}, SELF]},
    {"$defs": {"b": SELF}, "$ref": "#/$defs/b", "type": "object", "required": ["a"]},
    {"type": "object", "required": ["a"], "anyOf": [SELF, {**SELF, "maxProperties": 3}]},
    {"type": "object", "required": ["a"], "oneOf": [{"allOf": [SELF]}]},
    {"type": "array", "allOf": [{"minItems": 2}, {"prefixItems": [{}, {"$ref": "#"}]}]},
    {"type": "array", "minItems": 3, "prefixItems": [{}], "items": {"$ref": "#"}},
    {"type": "object", "required": ["z"], "additionalProperties": {"$ref": "#"}},
    # Two that end apart, with null for the one and a text for the other, and never together.
    {
        "$defs": {
            "node": {**NODE, "type": "object"},
            "text": {
                "type": "object",
                "properties": {"a": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "string"}]}},
            },
        },
        "allOf": [
            {"$ref": "#/$defs/node"},
            {"$ref": "#/$defs/text"},
            {"properties": {"a": {"type": "object", "allOf": [{"$ref": "#"}]}}},
        ],
    },
]
ENDING: list[tuple[dict[str, Any], str]] = [
    ({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, '{"a": {"a": null}}'),
    ({"type": ["object", "null"], "allOf": [{"required": ["a"]}, SELF]}, '{"a": null}'),
    (
        {
            "$defs": {"node": NODE},
            "allOf": [
                {"$ref": "#/$defs/node"},
                {"properties": {"a": {"type": ["null", "object"]}}},
            ],
        },
        '{"a": null}',
    ),
    (
        {"type": "object", "required": ["a"], "anyOf": [SELF, {"properties": {"a": NULL}}]},
        '{"a": null}',
    ),
    ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "7"),
    (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}},
            "additionalProperties": False,
            "required": ["ab"],
        },
        '{"ab": 1}',
    ),
    ({"$defs": {"n": {"$anchor": "foo", "type": "integer"}}, "$ref": "#foo"}, "7"),
    ({"type": "array", "minItems": 2, "prefixItems": [{}, {}, {"$ref": "#"}]}, "[1, 2]"),
]


@pytest.mark.parametrize("schema", ENDLESS)
def test_what_never_ends_is_refused(schema: dict[str, Any]) -> None:
    assert "never ends" in answer("json_schema", json.dumps(schema))["problem"]


@pytest.mark.parametrize(("schema", "text"), ENDING)
def test_what_may_end_is_served(schema: dict[str, Any], text: str) -> None:
    made = grammar("json_schema", json.dumps(schema))
    assert accepts(made, text)
    assert not accepts(made, '"text"')


@pytest.mark.parametrize(
    "written",
    ['{"type": "object", "required": [{"a": 2}]}', '{"type": 5}', '{"properties": [], "allOf": 1}'],
)
def test_what_is_no_schema_is_for_the_library_to_refuse(written: str) -> None:
    assert "never ends" not in answer("json_schema", written)["problem"]


def problem_of(schema: Any) -> str:
    try:
        read_schema(json.dumps(schema))
    except FormError as error:
        return str(error)
    return ""


def test_nothing_that_has_a_value_is_taken_for_endless() -> None:
    """The public suite's schemas that some value meets."""
    num_schemas = 0
    for path in sorted(SUITE.glob("tests/draft2020-12/**/*.json")):
        for case in json.loads(path.read_text("utf-8")):
            if not any(test["valid"] for test in case["tests"]):
                continue
            num_schemas += 1
            assert "never ends" not in problem_of(case["schema"]), case["schema"]
    assert num_schemas > 400


def chain(num_links: int) -> str:
    link = {"type": "object", "required": ["a"]}
    links = {
        f"d{i}": {**link, "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(num_links)
    }
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**links, f"d{num_links}": NULL}})


def test_long_chains_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools' parameters are read in the front itself: 45 s of a chain of 3000 held up all."""
    monkeypatch.setattr(schema_endings, "MAX_STEPS", 10_000)
    assert read_schema(chain(2500))
    with pytest.raises(FormError, match="too complex"):
        read_schema(chain(10_001))
