"""Events of text alone are made by a template: byte for byte what the general way would say.

And what waits for the numbers of a prompt.
"""

import json
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenizer_svc.delivery import ChoicePiece, Usage
from tokenizer_svc.generate import Piece
from tokenizer_svc.http import chat_completions, completions, field_names
from tokenizer_svc.http.bodies_chat import ChatBody
from tokenizer_svc.http.bodies_completions import CompletionBody, prompts_of
from tokenizer_svc.http.generations import Asked, PromptPiece
from tokenizer_svc.http.to_request import chat_request, completion_request
from tokenizer_svc.http.token_texts import TokenTexts
from tokenizer_svc.tokenizers.byte_tokenizer import ByteTokenizer
from tokenizer_svc.validation import read_request

MODELS = ("fake", 'a "model"\\of\n{{odd}} %s 漢字\u2028')
TEXTS = TokenTexts(ByteTokenizer())


def asked(message):
    request = read_request(message, max_prompt_bytes=1000)
    return Asked(request=request, names=field_names.AS_THEY_ARE)


def chat_reply(model, options):
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}], **options})
    return chat_completions._Reply(body, asked(chat_request(body)), model=model, texts=TEXTS)


def plain_reply(model, options):
    body = CompletionBody.model_validate({"prompt": ["x", "y"], **options})
    all_asked = [asked(completion_request(body, prompt)) for prompt in prompts_of(body.prompt)]
    return completions._Reply("id", body, all_asked, model=model, texts=TEXTS)


def piece_of(choice, text):
    piece = Piece(text=text, token_ids=array("I", [97]))
    return ChoicePiece(choice=choice, piece=piece)


odd_texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\{}%\x00\u2028'))


@pytest.mark.parametrize("usage", [None, False, True])
@pytest.mark.parametrize("path", ["chat", "plain"])
@given(st.sampled_from(MODELS), st.integers(0, 3), odd_texts)
@example("fake", 0, "")
@example("fake", 0, '"')
@example("fake", 1, '\\" \\n {text} %s {0} }}')
@example("fake", 2, "".join(map(chr, range(0x20))) + "\x7f\x80\x9f")
@example("fake", 3, "\u2028\u2029\ufeff\ufffd\uffff")
@example("fake", 0, "\U0001f642\U0001f44d\U0001f3fe\u200d\U0010ffff")
@example("fake", 0, "data: [DONE]\n\ndata: {}\r\n")
def test_the_template_says_what_the_general_way_says(path, usage, model, choice, text):
    options = {"stream": True, "n": 4}
    if usage is not None:
        options["stream_options"] = {"include_usage": usage}
    reply = (chat_reply if path == "chat" else plain_reply)(model, options)
    first, each = piece_of(choice, "first"), piece_of(choice, text)
    if path == "plain":
        first, each = (PromptPiece(prompt=1, each=piece) for piece in (first, each))
    reply.event(first)
    said = reply.event(each)
    assert said == reply.any_event(each)
    head, data, rest = said.partition(b"{")
    assert (head, rest[-2:]) == (b"data: ", b"\n\n")
    assert b"\n" not in rest[:-2]
    event = json.loads(data + rest)
    assert event["model"] == model
    assert ("usage" in event) == bool(usage)
    (found,) = event["choices"]
    assert found["index"] == (choice if path == "chat" else 4 + choice)
    assert (found["delta"].get("content", "") if path == "chat" else found["text"]) == text


def test_what_waits_for_the_numbers_of_a_prompt_is_said_without_them_at_the_end():
    """Choice 0 was cut before it had them."""
    reply = plain_reply("fake", {"stream": True, "n": 3, "echo": True, "logprobs": 1})
    usage = Usage(num_prompt_tokens=1, num_output_tokens=3, num_cached_tokens=0)
    last = ChoicePiece(choice=0, piece=piece_of(0, "c").piece, usage=usage)
    pieces = [piece_of(1, "a"), piece_of(2, "b"), last]
    said = [reply.events(PromptPiece(prompt=0, each=each)) for each in pieces]
    assert said[:2] == [b"", b""]
    events = [json.loads(line[6:]) for line in said[2].split(b"\n\n") if line]
    found = [choice for event in events for choice in event["choices"]]
    assert [(choice["index"], choice["text"]) for choice in found] == [(1, "a"), (2, "b"), (0, "c")]
