"""Grammars of calls or a form: they allow both, nothing else, and each is read as what it is."""

import json
import random
import re
from collections.abc import Callable

import jsonschema
import pytest

from radixd.chassis.grammars import Grammars, allowed_ids
from radixd.chassis.vocabulary import fake_vocabulary
from tests.constraints.drawing import accepts
from tests.tokenizer_svc.test_call_grammar import PICK, STOP, found
from tests.tokenizer_svc.test_chat_output import DEEPSEEK, HERMES, LLAMA, MISTRAL, THINK, Read, read
from tokenizer_svc.chat.call_formats import CallFormat
from tokenizer_svc.chat.call_grammar import call_grammar
from tokenizer_svc.chat.chat_format import Thoughts
from tokenizer_svc.chat.output_parser import ParserRules
from tokenizer_svc.constraints.forms import grammar_of, rules_of
from tokenizer_svc.generation_request import Constraint
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, NUM_IDS

FAMILIES = pytest.mark.parametrize("calls", [HERMES, LLAMA, MISTRAL, DEEPSEEK])
GRAMMARS = Grammars(fake_vocabulary(), vocab_size=NUM_IDS, eos_token_ids=[EOS])
PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["f", "pick", "x"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
}
JSON_RULES = r"""
root  ::= "{" (pair ("," " "? pair)*)? "}"
pair  ::= "\"" [a-z]+ "\":" " "? value
value ::= root | [0-9] | "\"" [a-z]* "\""
"""


def is_json(kind: type) -> Callable[[str], object]:
    return lambda text: isinstance(json.loads(text), kind)


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


FORMS: dict[str, tuple[Constraint, Callable[[str], object]]] = {
    "json_schema": (Constraint(kind="json_schema", text=json.dumps(PERSON)), is_person),
    "json_object": (Constraint(kind="json_object"), is_json(dict)),
    "list": (
        Constraint(kind="json_schema", text='{"type": "array", "maxItems": 2}'),
        is_json(list),
    ),
    "regex": (
        Constraint(kind="regex", text=r'\{"x[a-c]*"/?\}|<tool\n?|\['),
        lambda text: re.fullmatch(r'\{"x[a-c]*"/?\}|<tool\n?|\[', text),
    ),
    "choice": (
        Constraint(kind="choice", choices=("{", '{"name": "f"}', "no")),
        ("{", '{"name": "f"}', "no").count,
    ),
    "ebnf": (
        Constraint(kind="ebnf", text='root ::= "{" [a-z"]{1,3} "}"'),
        lambda text: re.fullmatch(r'\{[a-z"]{1,3}\}', text),
    ),
    "recursive": (Constraint(kind="ebnf", text=JSON_RULES), is_json(dict)),
}


ANSWERS = {"json_schema": '{"name": "x", "age": 1}', "ebnf": "{n}", "recursive": "{}"}


def grammar(
    calls: CallFormat,
    form: Constraint,
    *,
    thoughts: Thoughts | None = None,
    begins_in_thoughts: bool = False,
) -> str:
    return call_grammar(
        calls,
        [PICK, STOP],
        {},
        thoughts=thoughts,
        begins_in_thoughts=begins_in_thoughts,
        is_single=False,
        form=rules_of(grammar_of(form)),
    )


def rules(calls: CallFormat, **more: object) -> ParserRules:
    return ParserRules(calls=calls, names=("pick", "stop"), begins_with_calls=True, **more)


def drawn(grammar: str, seed: int, start: str = "") -> list[int] | None:
    """Tokens that it allows after this text; what ends something is preferred after a while."""
    matcher, chance, ids = GRAMMARS.matcher(grammar), random.Random(seed), [*start.encode()]
    matcher.take(ids)
    while len(ids) < 1000:
        allowed = allowed_ids(matcher.mask())
        closing = [i for i in allowed if i == EOS or (len(ids) > 30 and i in b'"]}')]
        token = chance.choice(closing) if closing and chance.random() < 0.5 else None
        if token is None:
            token = chance.choice([i for i in allowed if 32 <= i < 127 or i == EOS] or allowed)
        if token == EOS:
            return ids
        ids.append(token)
        matcher.take([token])
    return None


@FAMILIES
@pytest.mark.parametrize("kind", FORMS)
def test_what_is_drawn_is_either(calls: CallFormat, kind: str):
    form, meets = FORMS[kind]
    made = grammar(calls, form)
    opening = calls.written("pick")[0]
    kinds = set()
    for seed in range(16):
        ids = drawn(made, seed, opening[: len(opening) // (seed + 1)] if seed < 5 else "")
        if ids is None:
            continue
        output = found(rules(calls), ids)
        kinds.add(bool(output.calls))
        if not output.calls:
            assert output.text == bytes(ids).decode()
            assert meets(output.text), output.text
            continue
        assert output.text == ""
        for name, arguments in output.calls:
            side = json.loads(arguments).get("side")
            if calls is LLAMA:
                continue  # of the form alone, perhaps: what begins as a call is read as one
            assert side in ("left", "</tool_call>") if name == "pick" else arguments == "{}"
    assert False in kinds
    assert True in kinds or calls is LLAMA


@FAMILIES
@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (
            "json_schema",
            ['{"name": "f", "age": 7}', '{"name":"pick","age":10,"p":{"parameters":1}}'],
        ),
        ("json_object", ["{}", '{"nam": 1}', '{"name": "pic", "parameters": {"side": 3}}']),
        ("list", ["[]", '[{"name": 1}, [""]]']),
        ("regex", ['{"x"}', '{"xabc"/}', "<tool", "<tool\n", "["]),
        ("choice", ["{", '{"name": "f"}', "no"]),
        ("ebnf", ['{"""}', "{n}", '{"na}']),
        ("recursive", ["{}", '{"name": "pick", "parametric":{"a":{}}}', '{"n":1}']),
    ],
)
def test_the_form_is_whole_beside_calls(calls: CallFormat, kind: str, texts: list[str]):
    made = grammar(calls, FORMS[kind][0])
    before, after = calls.written("pick")
    for text in (*texts, before + '{"side": "left"}' + after):
        assert accepts(made, text), text
    if calls is not LLAMA:
        assert not accepts(made, before + '{"side": "right"}' + after)
    assert not accepts(made, "")
    assert not accepts(made, "prose " + before + '{"side": "left"}' + after)


@FAMILIES
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("kind", ["json_schema", "ebnf", "recursive"])
def test_thoughts_come_first(calls: CallFormat, kind: str, begins: bool):
    made = grammar(calls, FORMS[kind][0], thoughts=THINK, begins_in_thoughts=begins)
    reads = rules(calls, thoughts=THINK, separates_thoughts=True, begins_in_thoughts=begins)
    before, after = calls.written("stop")
    opening = "" if begins else "<think>"
    for answer, expected in (
        (ANSWERS[kind], Read(reasoning="Hm {", text=ANSWERS[kind])),
        (f"{before}{{}}{after}", Read(reasoning="Hm {", calls=(("stop", "{}"),))),
    ):
        assert accepts(made, f"{opening}Hm {{</think>\n\n{answer}")
        assert accepts(made, answer) is not begins
        assert read(reads, f"{opening}\nHm {{\n</think>\n\n{answer}") == expected


@FAMILIES
def test_an_answer_of_the_form_may_quote_a_call(calls: CallFormat):
    """A call is looked for where the grammar has one: at the beginning."""
    before, after = calls.written("stop")
    for output in (
        '{"name":"stop"}',
        f"[1]{before}{{}}{after}",
        f' "{before}{{}}{after}"',
        "[TOOL_CALLS",
        " {} \n",
    ):
        assert read(rules(calls), output) == Read(text=output)
        assert read(rules(calls), *output) == Read(text=output)
