"""What clients write: what of it is taken, and with which words the rest is refused."""

import json

import jsonschema
import pytest

from tests.constraints.drawing import BYTES, accepts, draw
from tokenizer_svc.constraints.child import compiled
from tokenizer_svc.generation_request import Constraint, ConstraintKind

JSON_GRAMMAR = r"""
root   ::= object   # as llama.cpp ships it
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""

BAD: list[tuple[ConstraintKind, str, str]] = [
    ("json_schema", "{", "not JSON"),
    ("json_schema", "[1]", "a JSON object"),
    ("json_schema", "false", "no value can meet it"),
    ("json_schema", '{"minimum": NaN}', "NaN is no number"),
    ("json_schema", "[" * 50_000, "nested too deep"),
    ("json_schema", '{"items":' * 120 + "{}" + "}" * 120, "nested deeper"),
    ("json_schema", '{"$ref": "#"}', "never ends"),
    (
        "json_schema",
        '{"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}',
        "#",
    ),
    ("json_schema", '{"type": "array", "items": {"$ref": "#"}, "minItems": 1}', "never ends"),
    (
        "json_schema",
        '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},'
        ' "properties": {"x": {"$ref": "#/$defs/a"}}}',
        "#/$defs/a",
    ),
    ("json_schema", '{"type": "array", "items": [{"type": "string"}]}', "prefixItems"),
    ("json_schema", '{"type": "string", "minLength": 3, "maxLength": 1}', "minLength"),
    ("json_schema", '{"enum": []}', "Unsatisfiable"),
    ("json_schema", '{"allOf": [{"type": "string"}, {"type": "integer"}]}', "Unsatisfiable"),
    ("json_schema", '{"not": {"type": "string"}}', "not"),
    ("json_schema", '{"uniqueItems": true}', "uniqueItems"),
    ("json_schema", '{"oneOf": [{"type": "string"}, {"maxLength": 3}]}', "oneOf"),
    ("json_schema", '{"x-guidance": {"lenient": true}, "not": {}}', "x-guidance"),
    ("json_schema", '{"type": "string", "contentMediaType": "application/json"}', "not followed"),
    ("json_schema", '{"type": "string", "pattern": "a(?=b)"}', "look-around"),
    ("json_schema", '{"type": "string", "format": "no-such"}', "no-such"),
    ("json_schema", '{"$ref": "https://schemas.example/x"}', "schemas.example"),
    ("regex", "((", "unclosed group"),
    ("regex", "(a)\\1", "backreferences"),
    ("regex", "(?=a)b", "look-around"),
    ("regex", "[^\\s\\S]", "no text can meet it"),
    ("regex", "(" * 50_000, "invalid regular expression"),
    ("ebnf", "", "no rule `root`"),
    ("ebnf", "hello", "line 1: `::=`"),
    ("ebnf", 'root ::= "a" root', "`root` never ends"),
    ("ebnf", 'root ::= "a" | "b" x\nx ::= "c" x', "`x` never ends"),
    ("ebnf", "root ::= other", "no rule `other`"),
    ("ebnf", 'root ::= "a"\nroot ::= "b"', "line 2: a second rule"),
    ("ebnf", 'root ::= ("a"', "`)` was expected"),
    ("ebnf", 'root ::= "a', "does not end"),
    ("ebnf", "root ::= [z-a]", "a range"),
    ("ebnf", "root ::= []", "at least one character"),
    ("ebnf", 'root ::= "\\q"', "no known escape"),
    ("ebnf", 'root ::= "\\ud800"', "no character"),
    ("ebnf", 'root ::= "a"{5,2}', "fewest to most"),
    ("ebnf", "root ::= " + "(" * 100 + '"a"' + ")" * 100, "inside each other"),
]


def answer(kind: ConstraintKind, text: str = "", *choices: str) -> dict[str, str]:
    return compiled(BYTES, Constraint(kind=kind, text=text, choices=choices))


def grammar(kind: ConstraintKind, text: str = "", *choices: str) -> str:
    found = answer(kind, text, *choices)
    assert "grammar" in found, found
    return found["grammar"]


@pytest.mark.parametrize(("kind", "text", "words"), BAD)
def test_refused_in_one_line(kind: ConstraintKind, text: str, words: str) -> None:
    """Field cases 93 and 94: a broken, endless or unsupported form is never free text."""
    problem = answer(kind, text)["problem"]
    assert words in problem
    assert "\n" not in problem
    assert len(problem) < 400


def test_an_expression_that_explodes_is_refused() -> None:  # field case 93
    assert "complex" in answer("regex", "(a{1000}){1000}")["problem"] or answer(
        "regex", "(a{1000}){1000}"
    )["problem"].startswith("lexer error")


def test_recursion_that_ends_is_served() -> None:
    schema = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    }
    made = grammar("json_schema", json.dumps(schema))
    assert accepts(made, '{"value": 1, "next": {"value": 2, "next": null}}')
    assert not accepts(made, '{"value": 1}')


def test_old_tuples_are_served_to_those_who_name_their_draft() -> None:
    schema = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}
    schema["$schema"] = jsonschema.Draft7Validator.META_SCHEMA["$id"]
    assert accepts(grammar("json_schema", json.dumps(schema)), '["a", 1]')


@pytest.mark.parametrize("text", ['{"a":1,"b":[1,2]}', '{"a": 1, "b": [1, 2]}'])
def test_json_has_one_line(text: str) -> None:
    made = grammar("json_object")
    assert accepts(made, text)
    assert not accepts(made, text.replace(",", ",\n", 1))
    assert not accepts(made, "[1]")


@pytest.mark.parametrize("seed", range(20))
def test_any_object_parses(seed: int) -> None:
    said = draw(grammar("json_object"), seed)
    assert said is not None
    assert isinstance(json.loads(said), dict)


def test_choices_are_exact() -> None:
    choices = ("a", "ab", "b.c", "naïve", 'q"/\\\n', "日本", "^$")
    made = grammar("choice", "", *choices)
    assert all(accepts(made, choice) for choice in choices)
    assert not any(accepts(made, other) for other in ("", "abc", "bxc", "日", "b.cb"))
    assert {draw(made, seed) for seed in range(60)} <= set(choices)


def test_a_regular_expression_matches_the_whole() -> None:
    for written in ("[a-c]{2,3}", "^[a-c]{2,3}$"):
        made = grammar("regex", written)
        assert accepts(made, "abc")
        assert not accepts(made, "abcd")
        assert not accepts(made, "a")


@pytest.mark.parametrize(
    ("rules", "yes", "no"),
    [
        ('root ::= "a" | "ab"', ["a", "ab"], ["", "b", "abc"]),
        ('root ::= n " " n\nn ::= [a-z ]+', ["ab cd", "a b c"], ["ab", " "]),
        ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab"]),
        ('root ::= "a" root? "b"', ["ab", "aaabbb"], ["aab", ""]),
        ('root ::= x "bc" root?\nx ::= "a" | "ab"', ["abc", "abbc", "abcabbc"], ["ab"]),
        ('root ::= # what follows\n  "a" |\n  [^b-z]\n  | "\\x7A"\n', ["a", "z", "é"], ["b", "az"]),
        ('root ::= ([0-9]{1,3} ","?){2,}', ["12", "1,2", "123,456,7"], ["1", "", ",1"]),
        ('root ::= . "\\u00e9\\U0001F600\\"\\\\"', ['\né😀"\\'], ['é😀"\\']),
        ('root ::= ("")* "a"', ["a"], [""]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", "ab"]),
    ],
)
def test_ebnf_means_what_it_says(rules: str, yes: list[str], no: list[str]) -> None:
    made = grammar("ebnf", rules)
    assert [text for text in yes if not accepts(made, text)] == []
    assert [text for text in no if accepts(made, text)] == []


def test_ebnf_of_json() -> None:
    made = grammar("ebnf", JSON_GRAMMAR)
    assert accepts(made, '{"a": [1, 2.5e3, "x\\n\\u00e9", true, null], "é": {}}\n')
    assert not accepts(made, '{"a" 1}')
    drawn = [said for seed in range(20) if (said := draw(made, seed)) is not None]
    assert len(drawn) > 10
    assert all(isinstance(json.loads(said), dict) for said in drawn)
