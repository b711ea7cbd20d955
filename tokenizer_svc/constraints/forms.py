"""From what a client wrote to a grammar in the library's notation.

JSON comes out on one line with at most one space behind commas and colons, in the order of the
schema's properties: a model that may put white space anywhere may put nothing else.
"""

from __future__ import annotations

import json
import re

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
