"""Thoughts and calls of tools in what models say, whole and in any pieces."""

import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenizer_svc.chat.call_formats import (
    FAMILIES,
    HERMES,
    CallFormat,
    DeepSeekCalls,
    LlamaCalls,
    MistralCalls,
    call_format,
)
from tokenizer_svc.chat.chat_format import THOUGHTS, chat_format
from tokenizer_svc.chat.output_parser import OutputParser, Parsed, ParserRules

LLAMA, MISTRAL, DEEPSEEK = LlamaCalls(), MistralCalls(), DeepSeekCalls()
THINK = THOUGHTS[0]
TOOLS = ParserRules(names=("f", "g"), id_seed="r:1")


@dataclass(frozen=True, kw_only=True)
class Read:
    """An output as a client has it at the end."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments)"""


def parsed(rules: ParserRules, *pieces: str) -> list[Parsed]:
    parser = OutputParser(rules)
    return [*(parser.feed(piece) for piece in pieces), parser.finish()]


def read(rules: ParserRules, *pieces: str) -> Read:
    found = parsed(rules, *pieces)
    return Read(
        text="".join(each.text for each in found),
        reasoning="".join(each.reasoning for each in found),
        calls=tuple((call.name, call.arguments) for each in found for call in each.tool_calls),
    )


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


# What a model of each family writes, and what is in it.
CASES: list[tuple[CallFormat, str, Read]] = [
    (
        HERMES,
        'Let me look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1.0e5, "b": "x"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\n',
        Read(text="Let me look.", calls=(("f", '{"a": 1.0e5, "b": "x"}'), ("g", "{}"))),
    ),
    (
        HERMES,
        '<tool_call>{"arguments": {"s": "</tool_call> \\"}{"}, "name": "f"}</tool_call> done',
        Read(text=" done", calls=(("f", '{"s": "</tool_call> \\"}{"}'),)),
    ),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}}', Read(calls=(("f", "{}"),))),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', Read(calls=(("f", "{}"),))),
    # An output that max_tokens ends within the closing mark.
    (HERMES, '<tool_call>{"name": "f", "arguments": {}}\n</tool_ca', Read(calls=(("f", "{}"),))),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        Read(calls=(("f", '{"a": 1}'),)),
    ),
    # A broken call takes none of the others with it.
    (
        HERMES,
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>\n<tool_call>{"name": "g"}'
        "</tool_call>",
        Read(
            text='<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>',
            calls=(("g", "{}"),),
        ),
    ),
    (
        HERMES,
        '<tool_call>{"name": "\\u0066", "arguments": {"\\"}": "\\ud83d\\ude42 {\\\\"}}</tool_call>',
        Read(calls=(("f", '{"\\"}": "\\ud83d\\ude42 {\\\\"}'),)),
    ),
    (
        LLAMA,
        ' {"name": "f", "parameters": {"a": [1, {"b": 2}]}}; {"type": "function", "name": "g", '
        '"parameters": {}}',
        Read(calls=(("f", '{"a": [1, {"b": 2}]}'), ("g", "{}"))),
    ),
    (
        LLAMA,
        'Well: <|python_tag|>{"name": "f", "parameters": {}}',
        Read(text="Well:", calls=(("f", "{}"),)),
    ),
    (
        MISTRAL,
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": "]"}}, {"name": "g", "arguments": {}}]',
        Read(calls=(("f", '{"a": "]"}'), ("g", "{}"))),
    ),
    (
        MISTRAL,
        'ok[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}',
        Read(text="ok", calls=(("f", '{"a": 1}'), ("g", "{}"))),
    ),
    (
        DEEPSEEK,
        "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Read(text="Sure.", calls=(("f", '{"a": 1}'), ("g", "{}"))),
    ),
    (
        DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁",
        Read(calls=(("f", "{}"),)),
    ),
]

# What only looks like a call: text, to the last character.
NO_CALLS: list[tuple[CallFormat, str]] = [
    (HERMES, "plain <tool> text </tool_call> \n"),
    (HERMES, "<tool_call>"),
    (HERMES, "<tool_call>\n{'name': 'f'}\n</tool_call>\n"),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}'),
    (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "no name!", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5001),
    (HERMES, " \n\t"),
    (LLAMA, '{"name": "stranger", "parameters": {}}'),
    (LLAMA, '{"answer": {"name": "f", "parameters": {}}} and more'),
    (LLAMA, 'I say {"name": "f", "parameters": {}}'),
    (LLAMA, "<|python_tag|>print(1)"),
    (MISTRAL, "[TOOL_CALLS][1]"),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {}} x'),
    (MISTRAL, "[TOOL_CALLS]" + "n" * 300 + "{}"),
    (MISTRAL, "[TOOL_CAL"),
    (DEEPSEEK, "<｜tool▁calls▁begin｜>none"),
    (DEEPSEEK, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{oops}\n```"),
    (DEEPSEEK, "<｜tool▁call▁begin｜>" + "n" * 300),
]

THOUGHTS_CASES: list[tuple[ParserRules, str, Read]] = [
    (
        ParserRules(thoughts=THINK, separates_thoughts=True),
        "<think>\nHm.\n\nSo </thin.\n</think>\n\nYes.\n",
        Read(reasoning="Hm.\n\nSo </thin.", text="Yes.\n"),
    ),
    (
        ParserRules(thoughts=THINK, separates_thoughts=True, begins_in_thoughts=True),
        "Hm.\n</think>\n\nYes.",
        Read(reasoning="Hm.", text="Yes."),
    ),
    (
        ParserRules(thoughts=THINK, separates_thoughts=True, begins_in_thoughts=True),
        "cut off in the mid</thi",
        Read(reasoning="cut off in the mid</thi"),
    ),
    (
        ParserRules(thoughts=THINK, separates_thoughts=True),
        "No thoughts, <think>really</think>.",
        Read(text="No thoughts, <think>really</think>."),
    ),
    (
        replace(TOOLS, calls=HERMES, thoughts=THINK, separates_thoughts=True),
        '<think>a <tool_call>{"name": "f"}</tool_call></think>\n<tool_call>{"name": "g"}'
        "</tool_call>",
        Read(reasoning='a <tool_call>{"name": "f"}</tool_call>', calls=(("g", "{}"),)),
    ),
    (
        replace(TOOLS, calls=HERMES, thoughts=THINK),
        '<think>\n<tool_call>{"name": "f"}</tool_call>\n</think>\n\nYes.',
        Read(text='<think>\n<tool_call>{"name": "f"}</tool_call>\n</think>\n\nYes.'),
    ),
    (
        ParserRules(thoughts=THOUGHTS[1], separates_thoughts=True),
        "[THINK]Hm.[/THINK]Yes.",
        Read(reasoning="Hm.", text="Yes."),
    ),
]


@pytest.mark.parametrize(("calls", "output", "expected"), CASES)
def test_calls_of_each_family(calls: CallFormat, output: str, expected: Read):
    assert read(replace(TOOLS, calls=calls), output) == expected
    assert read(replace(TOOLS, calls=calls), *output) == expected


@pytest.mark.parametrize(("calls", "output"), NO_CALLS)
def test_what_is_no_call_is_text(calls: CallFormat, output: str):
    assert read(replace(TOOLS, calls=calls), output) == Read(text=output)
    assert read(replace(TOOLS, calls=calls), *output) == Read(text=output)


@pytest.mark.parametrize(("rules", "output", "expected"), THOUGHTS_CASES)
def test_thoughts(rules: ParserRules, output: str, expected: Read):
    assert read(rules, output) == expected
    assert read(rules, *output) == expected


FRAGMENTS = (
    *(begin for calls in (HERMES, LLAMA, MISTRAL, DEEPSEEK) for begin in calls.written("f")),
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[", "]"),
    *DEEPSEEK.markers,
    *("<|python_tag|>", "```json\n", "```", *'{}"\\,;\n <fx'),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name":"g","parameters":{}}', "function", "é漢🙂"),
)


@given(
    calls=st.sampled_from([HERMES, LLAMA, MISTRAL, DEEPSEEK]),
    thinks=st.sampled_from(["not", "apart", "inline", "already"]),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=25),
    places=st.lists(st.integers(min_value=0), max_size=12),
    has_form=st.booleans(),
)
@example(
    calls=HERMES, thinks="apart", fragments=["\n", "<think>", "\n"], places=[1, 2], has_form=False
)
@example(
    calls=LLAMA, thinks="not", fragments=[" ", "{", "}", ";"], places=[1, 2, 3], has_form=False
)
def test_cuts_make_no_difference(
    calls: CallFormat, thinks: str, fragments: list[str], places: list[int], has_form: bool
):
    rules = replace(
        TOOLS,
        calls=calls,
        thoughts=None if thinks == "not" else THINK,
        separates_thoughts=thinks in ("apart", "already"),
        begins_in_thoughts=thinks == "already",
        begins_with_calls=has_form,
    )
    output = "".join(fragments)
    whole = read(rules, output)
    assert read(rules, *cut(output, places)) == whole
    if not whole.calls and not rules.separates_thoughts:
        assert whole.text == output
    for _, arguments in whole.calls:
        assert isinstance(json.loads(arguments), dict)
        assert arguments in output


def test_text_is_held_back_no_longer_than_it_may_be_a_mark():
    parser = OutputParser(replace(TOOLS, calls=HERMES))
    pieces = [parser.feed(piece).text for piece in ("Hi", " <", "to", "ad>", "\n", "x", " <tool_")]
    assert pieces == ["Hi", "", "", " <toad>", "", "\nx", ""]
    assert parser.finish().text == " <tool_"


def test_what_cannot_become_json_is_not_held_back():
    parser = OutputParser(replace(TOOLS, calls=HERMES))
    assert parser.feed('<tool_call>{"name": "f", ').text == ""
    assert parser.feed("well").text == '<tool_call>{"name": "f", well'


def test_an_answer_in_json_is_not_held_back_for_a_call():
    parser = OutputParser(replace(TOOLS, calls=LLAMA))
    assert parser.feed('{"answer"').text == '{"answer"'


def test_ids_of_calls_are_unique_and_the_same_again():
    output = '<tool_call>{"name": "f"}</tool_call>' * 3
    ids = [call.id for call in parsed(replace(TOOLS, calls=HERMES), output)[0].tool_calls]
    assert all(re.fullmatch(r"call_[0-9A-Za-z]{24}", each) for each in ids)
    assert len(set(ids)) == 3
    again = parsed(replace(TOOLS, calls=HERMES), *output)
    assert [call.id for each in again for call in each.tool_calls] == ids
    other = parsed(replace(TOOLS, calls=HERMES, id_seed="r:2"), output)[0]
    assert not {call.id for call in other.tool_calls} & set(ids)
    (short,) = parsed(replace(TOOLS, calls=MISTRAL), "[TOOL_CALLS]f{}")[0].tool_calls
    assert re.fullmatch(r"[0-9A-Za-z]{9}", short.id), "their templates refuse any other"


def test_families_are_told_by_their_templates():
    found = {mark: call_format(f"... {mark} ...") for mark, _ in FAMILIES}
    assert [type(calls).__name__ for calls in found.values()] == [
        "DeepSeekCalls",
        "MistralCalls",
        "HermesCalls",
        "LlamaCalls",
        "LlamaCalls",
    ]
    assert call_format("<tool_call><function=name>") is None
    assert call_format("nothing of the kind") is None
    assert chat_format("nothing of the kind", shows_tools=False).calls is HERMES
    assert chat_format("<think></think>", shows_tools=True).thoughts == THINK
