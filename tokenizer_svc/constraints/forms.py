"""From what a client wrote to a grammar in the library's notation.

JSON comes out on one line with at most one space behind commas and colons, in the order of the
schema's properties: a model that may put white space anywhere may put nothing else.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

import llguidance

from tokenizer_svc.constraints.form_error import FormError
from tokenizer_svc.constraints.gbnf import parse
from tokenizer_svc.constraints.gbnf_grammar import grammar_from_rules
from tokenizer_svc.constraints.json_schema import JSON_OPTIONS, read_schema
from tokenizer_svc.generation_request import Constraint

_ANY_OBJECT = '{"type": "object"}'
_PLAIN = re.compile(r"[\w ]", re.ASCII)


def grammar_of(constraint: Constraint) -> str:
    """The grammar of a constraint; whether the library takes it is not known yet.

    Raises:
        FormError: it cannot be read or met.
    """
    if constraint.kind == "json_object":
        return _of_schema(_ANY_OBJECT)
    if constraint.kind == "json_schema":
        return _of_schema(constraint.text)
    if constraint.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(constraint.text)
    if constraint.kind == "ebnf":
        return grammar_from_rules(parse(constraint.text))
    if constraint.kind == "lark":
        return llguidance.LLMatcher.grammar_from_lark(constraint.text)
    texts = "|".join(_escaped(text) for text in dict.fromkeys(constraint.choices))
    # One expression, so that a text may begin with another one.
    return llguidance.LLMatcher.grammar_from_regex(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRules:
    """A form as rules of a larger grammar, in Lark's notation."""

    rules: str
    """The first is called `form`."""
    unit: Literal["text", "json", "character"]
    """What the library reads at a time.  Where two things may come that begin alike, both have to
    be cut into units of one kind: of two that match it goes on with the longer one alone."""


def rules_of(grammar: str) -> FormRules:
    """What `grammar_of` made of a form, as rules."""
    if grammar.startswith("start:"):
        # Names in capitals, as of a grammar that does not recurse, are single expressions.
        is_one = grammar.startswith("start: R")
        return FormRules(rules=_renamed(grammar), unit="text" if is_one else "character")
    (inner,) = json.loads(grammar)["grammars"]
    schema, lark = inner.get("json_schema"), inner.get("lark_grammar")
    if schema is None:
        return FormRules(rules=_renamed(lark), unit="text")
    # One line: the notation knows no other end of a schema.
    return FormRules(rules=f"form: %json {json.dumps(schema)}\n", unit="json")


def _renamed(grammar: str) -> str:
    return f"form{grammar.removeprefix('start')}\n"


def _of_schema(text: str) -> str:
    schema = read_schema(text)
    try:
        # What was checked is what is compiled, and not the text a second time.
        return llguidance.LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides=JSON_OPTIONS
        )
    except ValueError as error:
        raise FormError(str(error)) from None


def _escaped(text: str) -> str:
    return "".join(
        character if _PLAIN.match(character) else f"\\x{{{ord(character):x}}}" for character in text
    )
