"""Grammars that demand calls: whatever they allow is read as such calls."""

import json
import random

import llguidance
import pytest

from radixd.chassis.grammars import Grammars, allowed_ids
from radixd.chassis.vocabulary import fake_vocabulary
from tests.tokenizer_svc.test_chat_output import DEEPSEEK, HERMES, LLAMA, MISTRAL, THINK, Read, read
from tokenizer_svc.chat.call_formats import CallFormat
from tokenizer_svc.chat.call_grammar import call_grammar
from tokenizer_svc.chat.chat_format import Thoughts
from tokenizer_svc.chat.output_parser import ParserRules
from tokenizer_svc.constraints.form_error import FormError
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, NUM_IDS, ByteTokenizer
from tokenizer_svc.tokenizers.tokenizer import FunctionTool, decode

PICK = FunctionTool(
    name="pick",
    parameters='{"type": "object", "properties": {"side": {"$ref": "#/$defs/side"}}, "required": '
    '["side"], "additionalProperties": false, "$defs": {"side": {"enum": ["left", '
    '"</tool_call>"]}}}',
)
STOP = FunctionTool(name="stop")
SPECIAL = {"<|script|>": 258, "<|go|>": 259}
"""Control tokens of the byte tokenizer, as marks of thoughts."""


def drawn(grammar: str, seed: int) -> list[int]:
    """Tokens that the grammar allows, drawn at random; ends where it may."""
    grammars = Grammars(fake_vocabulary(), vocab_size=NUM_IDS, eos_token_ids=[EOS])
    matcher = grammars.matcher(llguidance.LLMatcher.grammar_from_lark(grammar))
    chance = random.Random(seed)
    ids: list[int] = []
    while len(ids) < 2000:
        allowed = allowed_ids(matcher.mask())
        if EOS in allowed and (len(allowed) == 1 or chance.random() < 0.7):
            return ids
        # Thoughts would go on for ever: what closes them is tried first.
        closing = [i for i in allowed if len(ids) > 20 and i in _closing(ids)]
        ids.append(chance.choice(closing or [i for i in allowed if i != EOS]))
        matcher.take(ids[-1:])
    raise AssertionError("it does not end")


def _closing(ids: list[int]) -> list[int]:
    text = bytes([i if i < 256 else 0 for i in ids])
    mark = b"</think>"
    num_there = next(n for n in range(len(mark), -1, -1) if text.endswith(mark[:n]))
    return [*mark[num_there : num_there + 1], SPECIAL["<|go|>"]]


def found(rules: ParserRules, ids: list[int]) -> Read:
    return read(rules, decode(ByteTokenizer(), ids, skip_special_tokens=False))


@pytest.mark.parametrize("calls", [HERMES, LLAMA, MISTRAL, DEEPSEEK])
@pytest.mark.parametrize(
    ("thoughts", "begins"),
    [
        (None, False),
        (THINK, False),
        (THINK, True),
        (Thoughts(opening="<|script|>", closing="<|go|>"), True),
        (Thoughts(opening="<|script|>", closing="<|go|>"), False),
    ],
)
def test_all_that_is_allowed_is_a_call(calls: CallFormat, thoughts: Thoughts | None, begins: bool):
    grammar = call_grammar(
        calls,
        [PICK, STOP],
        SPECIAL,
        thoughts=thoughts,
        begins_in_thoughts=begins,
        is_single=False,
    )
    rules = ParserRules(
        calls=calls,
        names=("pick", "stop"),
        thoughts=thoughts,
        separates_thoughts=True,
        begins_in_thoughts=begins,
    )
    names = set()
    for seed in range(12):
        output = found(rules, drawn(grammar, seed))
        assert output.text == ""
        assert output.calls
        for name, arguments in output.calls:
            names.add(name)
            side = json.loads(arguments).get("side")
            assert side in ("left", "</tool_call>") if name == "pick" else arguments == "{}"
    assert names == {"pick", "stop"}


def test_a_named_call_comes_alone():
    grammar = call_grammar(
        HERMES, [STOP], {}, thoughts=None, begins_in_thoughts=False, is_single=True
    )
    for seed in range(5):
        output = found(ParserRules(calls=HERMES), drawn(grammar, seed))
        assert output == Read(calls=(("stop", "{}"),))


def test_parameters_that_nothing_meets_are_refused():
    bad = FunctionTool(
        name="f",
        parameters='{"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "required": ["a"], '
        '"properties": {"a": {"$ref": "#/$defs/a"}}}}}',
    )
    with pytest.raises(FormError):
        call_grammar(HERMES, [bad], {}, thoughts=None, begins_in_thoughts=False, is_single=True)
