"""/v1/completions: prompts of every form, several at once, echo and log probabilities."""

import pytest

from tests.http.ask import PLAIN, joined, ok, refused, script, streamed
from tests.system.stack import FAKE


async def test_a_text_and_its_ids_are_one_prompt(http):
    text = await ok(http, PLAIN, prompt="once", max_tokens=9)
    ids = await ok(http, PLAIN, prompt=list(b"once"), max_tokens=9)
    assert text["choices"] == ids["choices"]
    assert text["object"] == "text_completion"
    expected = bytes(FAKE.generate(b"once", 9)).decode("utf-8", "replace")
    assert text["choices"][0]["text"] == expected


async def test_several_prompts_are_answered_in_their_order(http):
    prompts = ["one", "two", "three"]
    alone = [await ok(http, PLAIN, prompt=prompt, max_tokens=7) for prompt in prompts]
    for together in (prompts, [list(prompt.encode()) for prompt in prompts]):
        answer = await ok(http, PLAIN, prompt=together, max_tokens=7, n=2)
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        texts = [choice["text"] for choice in answer["choices"]]
        assert texts[::2] == [one["choices"][0]["text"] for one in alone]
        assert answer["usage"]["completion_tokens"] == 6 * 7
        assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))


async def test_a_stream_says_what_the_whole_answer_says(http):
    body = {"prompt": ["one", "two"], "max_tokens": 30, "n": 2, "temperature": 1.0, "seed": 3}
    answer = await ok(http, PLAIN, **body)
    *chunks, last = await streamed(http, PLAIN, **body, stream_options={"include_usage": True})
    assert last["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    for choice in answer["choices"]:
        text, end = joined(chunks, choice["index"])
        assert text == choice["text"]
        assert end["finish_reason"] == choice["finish_reason"]


async def test_text_is_exact_across_tokens(http):  # field cases 63, 64
    said = "čaj 漢字 🙂👍🏾 e\u0301"
    events = await streamed(http, PLAIN, prompt=script(said))
    text, end = joined(events)
    assert text == said
    assert end["finish_reason"] == "stop"
    answer = await ok(http, PLAIN, prompt=script("🙂"), max_tokens=2)
    assert answer["choices"][0]["text"] == "\ufffd"
    assert answer["usage"]["completion_tokens"] == 2


async def test_the_prompt_may_be_echoed_with_its_log_probabilities(http):
    body = {"prompt": "once", "max_tokens": 3, "echo": True, "logprobs": 2}
    (choice,) = (await ok(http, PLAIN, **body))["choices"]
    assert choice["text"].startswith("once")
    columns = choice["logprobs"]
    assert columns["tokens"][:4] == ["o", "n", "c", "e"]
    assert len(columns["tokens"]) == len(columns["token_logprobs"]) == 7
    assert columns["token_logprobs"][0] is None
    assert columns["top_logprobs"][0] is None
    assert all(value < 0 for value in columns["token_logprobs"][1:])
    assert columns["text_offset"][:5] == [0, 1, 2, 3, 4]
    events = await streamed(http, PLAIN, **body)
    parts = [event["choices"][0]["logprobs"] for event in events]
    for name, column in columns.items():
        assert [entry for part in parts for entry in part[name]] == column


async def test_log_probabilities_of_the_output_alone(http):
    answer = await ok(http, PLAIN, prompt="once", max_tokens=4, logprobs=0)
    columns = answer["choices"][0]["logprobs"]
    expected = FAKE.generate_logprobs(list(b"once"), FAKE.generate(b"once", 4), 0)
    assert columns["token_logprobs"] == pytest.approx(list(expected.chosen))
    assert columns["top_logprobs"] == [{}, {}, {}, {}]


async def test_best_of_returns_the_likeliest(http):
    answer = await ok(
        http, PLAIN, prompt="best", max_tokens=6, n=1, best_of=4, temperature=1.0, seed=1
    )
    assert len(answer["choices"]) == 1
    assert answer["usage"]["completion_tokens"] == 24


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        (None, "prompt"),
        (5, "prompt"),
        ({"a": 1}, "prompt"),
        (["a", ""], "prompt[1]"),
        (["a", []], "prompt[1]"),
        (["a", 5], "prompt[1]"),
        ([1, 2.5], "prompt[0]"),
        ([True], "prompt[0]"),
        ([97, 264], "prompt[1]"),
        ([97, -1], "prompt[1]"),
        ([97, 1 << 80], "prompt[1]"),
        ([[97], [97, 1 << 31]], "prompt[1][1]"),
        ([[97], [97, 264]], "prompt[1][1]"),
        (["a"] * 257, "prompt"),
        ("e" * (5 << 20), "prompt"),
        ([97] * 3000, "prompt"),
    ],
)
async def test_a_prompt_that_is_none_is_named(http, prompt, param):  # field cases 82, 88, 89
    error = await refused(http, PLAIN, {"prompt": prompt, "max_tokens": 1})
    assert error["param"] == param
    assert (await ok(http, PLAIN, prompt="a", max_tokens=1))["choices"]


async def test_when_one_prompt_fails_all_do(http, grpc_client):
    error = await refused(http, PLAIN, {"prompt": ["a" * 50, "b" * 3000], "max_tokens": 500})
    assert error["param"] == "prompt[1]"
    await grpc_client.idle(within_s=1.0)
