"""Group G of the field cases, end to end: what a client reads, streamed and whole."""

import pytest

from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import Streamed, script, stream, unary
from tests.tokenizer_svc.conftest import Served
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, IM_END


async def both(served: Served, **request: object) -> Streamed:
    """The stream, after showing that the unary reply says the same."""
    streamed = await stream(served, **request)
    whole = await unary(served, **request)
    assert streamed.text == whole.text
    assert streamed.token_ids == list(whole.token_ids)
    last = streamed.last
    assert (last.finish_reason, last.matched_stop, last.matched_token_id) == (
        whole.finish_reason,
        whole.matched_stop,
        whole.matched_token_id,
    )
    assert last.usage == whole.usage
    assert whole.usage.completion_tokens == len(whole.token_ids)
    return streamed


# field case 63
async def test_characters_arrive_whole(served: Served):
    text = "čaj 漢字 🙂👍🏾 e\u0301"
    streamed = await both(served, tokens=script(text))
    assert streamed.text == text
    assert all("\ufffd" not in message.text for message in streamed.messages)
    assert len(streamed.messages) <= len(streamed.token_ids)
    assert streamed.token_ids == [*text.encode(), EOS]


# field case 64
@pytest.mark.parametrize(
    ("max_tokens", "text"), [(1, "\ufffd"), (2, "\ufffd"), (3, "\ufffd"), (4, "🙂")]
)
async def test_an_output_that_ends_in_a_character(served: Served, max_tokens: int, text: str):
    streamed = await both(
        served, tokens=script("🙂!"), sampling=pb.SamplingParams(max_tokens=max_tokens)
    )
    assert streamed.text == text
    assert streamed.token_ids == list("🙂".encode())[:max_tokens]
    assert streamed.last.finish_reason == pb.FINISH_REASON_LENGTH


# field case 64
async def test_a_character_cut_by_a_stop_token(served: Served):
    half = "🙂".encode()[:2]
    streamed = await both(served, tokens=script(b"a" + half))
    assert streamed.text == "a\ufffd"
    assert streamed.last.finish_reason == pb.FINISH_REASON_STOP
    assert streamed.last.matched_token_id == EOS


# field case 65
@pytest.mark.parametrize(
    ("output", "text"), [("漢 a".encode(), "漢 a"), ("漢".encode()[:2] + b" a", "\ufffd a")]
)
async def test_a_space_after_half_a_character(served: Served, output: bytes, text: str):
    assert (await both(served, tokens=script(output))).text == text


# field cases 67, 68, 69
@pytest.mark.parametrize(
    ("output", "stops", "text", "matched"),
    [
        ("at the window. yes", ["indo"], "at the w", "indo"),
        ("one END two", ["END"], "one ", "END"),
        ("END", ["END"], "", "END"),
        ("a漢字b", ["漢字"], "a", "漢字"),
        ("almost STO", ["STOP"], "almost STO", None),
        (" Bern?", ["\n", "Bern:"], " Bern?", None),
        ("aaaab", ["aab"], "aa", "aab"),
        ("xabc", ["ab", "abc"], "x", "ab"),
        ("xabd", ["abc", "bd"], "xa", "bd"),
        ("mississippi", ["issip"], "miss", "issip"),
    ],
)
async def test_stop_texts(
    served: Served, output: str, stops: list[str], text: str, matched: str | None
):
    streamed = await both(served, tokens=script(output), sampling=pb.SamplingParams(stop=stops))
    assert streamed.text == text
    assert streamed.last.finish_reason == pb.FINISH_REASON_STOP
    if matched is None:
        assert streamed.last.matched_token_id == EOS
        assert streamed.token_ids == [*output.encode(), EOS]
    else:
        assert streamed.last.matched_stop == matched
        # The ids include those of the stop, and nothing after it.
        assert bytes(streamed.token_ids) == (text + matched).encode()


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize(
    ("output", "stops", "min_tokens", "text", "matched"),
    [
        ("a END b END c", ["END"], 4, "a ", "END"),
        ("a END b END c", ["END"], 5, "a END b ", "END"),
        ("a END b END c", ["END"], 10, "a END b ", "END"),
        ("a END b END c", ["END"], 11, "a END b END c", None),
        ("a END b END c", ["END"], 14, "a END b END c", None),
        # Began too early, is complete in time.
        ("aaa", ["aa"], 2, "a", "aa"),
        ("abc", ["ab", "abc"], 2, "", "abc"),
        # A character counts with the token that completes it.
        ("🙂🙂", ["🙂"], 3, "", "🙂"),
        ("🙂🙂", ["🙂"], 4, "🙂", "🙂"),
        ("END", ["END"], 3, "END", None),
    ],
)
async def test_stop_texts_wait_for_min_tokens(
    served: Served,
    tokens_per_step: int,
    output: str,
    stops: list[str],
    min_tokens: int,
    text: str,
    matched: str | None,
):
    served.scheduler.behavior.tokens_per_step = tokens_per_step
    sampling = pb.SamplingParams(stop=stops, min_tokens=min_tokens)
    streamed = await both(served, tokens=script(output), sampling=sampling)
    assert streamed.text == text
    assert streamed.last.finish_reason == pb.FINISH_REASON_STOP
    assert (streamed.last.matched_stop or None) == matched
    if matched is not None:
        assert len(streamed.token_ids) > min_tokens
    assert served.scheduler.seen.submits[0].sampling.min_tokens == min_tokens


@pytest.mark.parametrize(("min_tokens", "matched"), [(2, "\ufffd"), (3, "")])
async def test_an_unfinished_character_counts_with_the_last_token(
    served: Served, min_tokens: int, matched: str
):
    sampling = pb.SamplingParams(stop=["\ufffd"], min_tokens=min_tokens, max_tokens=3)
    streamed = await both(served, tokens=script("🙂"), sampling=sampling)
    assert streamed.last.matched_stop == matched
    assert streamed.text == ("" if matched else "\ufffd")


# field case 68
async def test_a_stop_text_is_cancelled_in_the_scheduler(served: Served):
    served.scheduler.behavior.step_s = 0.01
    streamed = await stream(
        served, tokens=script("go STOP" + "x" * 500), sampling=pb.SamplingParams(stop=["STOP"])
    )
    assert streamed.text == "go "
    await served.idle()
    assert served.scheduler.seen.cancels == [served.scheduler.seen.submits[0].request_id]


# field case 70
async def test_only_a_possible_stop_is_held_back(served: Served):
    served.scheduler.behavior.step_s = 0.02
    streamed = await both(
        served, tokens=script("hello world"), sampling=pb.SamplingParams(stop=["ZZZZZZZZZZ"])
    )
    assert streamed.messages[0].text == "h"
    assert all(message.text for message in streamed.messages[:-1])


# field case 71
@pytest.mark.parametrize("skip", [True, False])
async def test_what_ended_the_output_is_in_the_ids_and_not_in_the_text(served: Served, skip: bool):
    sampling = pb.SamplingParams(stop_token_ids=[ord("c")])
    streamed = await both(
        served, tokens=script("abcd"), sampling=sampling, skip_special_tokens=skip
    )
    assert (streamed.text, bytes(streamed.token_ids)) == ("ab", b"abc")
    assert streamed.last.matched_token_id == ord("c")
    streamed = await both(served, tokens=script("ab"), skip_special_tokens=skip)
    assert (streamed.text, streamed.token_ids) == ("ab", [*b"ab", EOS])


# field case 72
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("ignore_eos", [True, False])
async def test_a_control_token_named_as_a_stop_text(served: Served, skip: bool, ignore_eos: bool):
    output = [*b"ab", IM_END, *b"cd"]
    by_text = pb.SamplingParams(stop=["<|im_end|>"], ignore_eos=ignore_eos, max_tokens=9)
    streamed = await both(served, tokens=script(output), sampling=by_text, skip_special_tokens=skip)
    assert (streamed.text, streamed.last.matched_stop) == ("ab", "<|im_end|>")
    by_id = pb.SamplingParams(stop_token_ids=[IM_END], ignore_eos=ignore_eos, max_tokens=9)
    streamed = await both(served, tokens=script(output), sampling=by_id, skip_special_tokens=skip)
    assert (streamed.text, streamed.last.matched_token_id) == ("ab", IM_END)


async def test_special_tokens_show_only_when_asked_for(served: Served):
    output = [*b"a", IM_END, *b"b"]
    assert (await both(served, tokens=script(output))).text == "ab"
    shown = await both(served, tokens=script(output), skip_special_tokens=False)
    assert shown.text == "a<|im_end|>b"


# field case 77
async def test_an_output_that_spells_a_control_token_goes_on(served: Served):
    streamed = await both(served, tokens=script("a <|eos|> b"))
    assert streamed.text == "a <|eos|> b"


# field case 96
async def test_end_of_sequence_first(served: Served):
    streamed = await both(served, tokens=script(""))
    assert streamed.text == ""
    assert streamed.last.finish_reason == pb.FINISH_REASON_STOP
    assert streamed.last.usage.completion_tokens == 1
    assert (await both(served, tokens=script("next"))).text == "next"


@pytest.mark.parametrize("ending_apart", [True, False])
async def test_an_ending_that_comes_apart_from_the_last_token(served: Served, ending_apart: bool):
    served.scheduler.behavior.ending_apart = ending_apart
    sampling = pb.SamplingParams(max_tokens=3)
    streamed = await both(served, tokens=script("abcdef"), sampling=sampling)
    assert (streamed.text, streamed.last.finish_reason) == ("abc", pb.FINISH_REASON_LENGTH)


async def test_seed_and_cached_tokens_are_reported(served: Served):
    served.scheduler.behavior.cached_tokens = 3
    streamed = await stream(
        served, text="hello", sampling=pb.SamplingParams(seed=0, max_tokens=4, temperature=1)
    )
    first, last = streamed.messages[0], streamed.last
    assert first.HasField("seed")
    assert (first.seed, last.seed) == (0, 0)
    # field case 79
    assert last.usage.cached_tokens == 3
    assert last.usage.prompt_tokens == 5
    drawn = [
        await unary(served, text="hello", sampling=pb.SamplingParams(max_tokens=1)) for _ in "ab"
    ]
    assert drawn[0].seed != drawn[1].seed
    assert served.scheduler.seen.submits[-1].sampling.seed == drawn[1].seed
