"""/v1/completions: prompts of every form, several at once, echo and log probabilities."""

import pytest

from tests.http.ask import PLAIN, choices_of, joined, ok, refused, script, streamed
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


@pytest.mark.parametrize("prompt", ["o", "once"])
@pytest.mark.parametrize("num_top", [0, 2])
async def test_the_log_probabilities_of_a_prompt_without_an_output(http, prompt, num_top):
    """As programs ask that score texts."""
    body = {"prompt": [prompt, prompt], "echo": True, "logprobs": num_top}
    longer = (await ok(http, PLAIN, **body, max_tokens=1))["choices"]
    choices = (await ok(http, PLAIN, **body, max_tokens=0))["choices"]
    for choice, expected in zip(choices, longer, strict=True):
        assert choice["text"] == prompt
        length = len(prompt)
        columns = {name: column[:length] for name, column in expected["logprobs"].items()}
        assert choice["logprobs"] == columns
    events = await streamed(http, PLAIN, **body, max_tokens=0)
    assert [event["choices"][0]["logprobs"] for event in events] == [columns, columns]


@pytest.mark.parametrize("best_of", [2, 3])
async def test_scores_of_a_prompt_are_said_once(http, best_of):
    body = {"prompt": ["once", "upon"], "max_tokens": 3, "prompt_logprobs": 1, "seed": 1}
    body |= {"temperature": 1.0, "n": 2, "best_of": best_of}
    choices = (await ok(http, PLAIN, **body))["choices"]
    scored = [choice.get("prompt_logprobs") for choice in choices]
    assert [found and len(found) for found in scored] == [4, None, 4, None]
    events = await streamed(http, PLAIN, **body)
    said = {c["index"]: c["prompt_logprobs"] for c in choices_of(events) if "prompt_logprobs" in c}
    assert said == {0: scored[0], 2: scored[2]}


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


@pytest.mark.parametrize("request_id", [None, "mine"])
async def test_the_id_of_several_prompts_cancels_all_of_them(served, request_id):
    served.scheduler.behavior.num_before_hold = 1  # none ends by itself
    http, body = served.http, {"max_tokens": 50, "stream": True, "request_id": request_id}
    other = {"prompt": ["other"], **body, "request_id": "mine-9"}
    async with http.stream("POST", PLAIN, json=other) as unconcerned:
        lines = unconcerned.aiter_lines()  # kept: without it the client would leave
        await anext(lines)
        body["prompt"] = ["one", "two", "three"]
        async with http.stream("POST", PLAIN, json=body) as answer:
            said = answer.headers["x-request-id"]
            assert request_id in (None, said)
            events = (line async for line in answer.aiter_lines() if line)
            for _ in body["prompt"]:
                await anext(events)  # one without a token would be an error
            assert await ok(http, "/cancel", request_id=f"{said}-1") == {}
            assert await ok(http, "/cancel", request_id=said) == {}
            ends = [event async for event in events]
        assert len([end for end in ends if "cancelled" in end]) == 3
        assert ends[-1] == "data: [DONE]"
        error = await refused(http, "/cancel", {"request_id": said}, status=404)
        assert error["code"] == "unknown_request_id"
        assert await ok(http, "/cancel", request_id="mine-9") == {}, "it went on"


async def test_an_id_has_room_for_the_numbers_of_the_prompts(http):
    for request_id in ("", "x" * 127, "a\tb"):
        body = {"prompt": ["a", "b"], "request_id": request_id, "max_tokens": 1}
        assert (await refused(http, PLAIN, body))["param"] == "request_id"
    answer = await ok(http, PLAIN, prompt=["a", "b"], request_id="x" * 126, max_tokens=1)
    assert answer["id"] == "cmpl-" + "x" * 126


async def test_when_one_prompt_fails_all_do(http, grpc_client):
    error = await refused(http, PLAIN, {"prompt": ["a" * 50, "b" * 3000], "max_tokens": 500})
    assert error["param"] == "prompt[1]"
    await grpc_client.idle()
