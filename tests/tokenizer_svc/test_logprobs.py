"""Ids, log probabilities and text agree, streamed and whole, whatever ended the output."""

import asyncio
import math
from array import array

import pytest

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as pb
from protos.wire import pack_floats, pack_ids, unpack_floats, unpack_ids
from tests.tokenizer_svc.client import Streamed, refused, script, stream, unary, wait_until
from tests.tokenizer_svc.conftest import Serve, Served
from tests.tokenizer_svc.fake_scheduler import FakeScheduler, logprobs_of
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, NUM_IDS, ByteTokenizer


def expected(token_ids: list[int], num_top: int) -> list[pb.TokenLogprobs]:
    """What the fake scheduler says of an output with these ids."""
    columns = logprobs_of(token_ids, 0, num_top)
    chosen, top = unpack_floats(columns.chosen), unpack_floats(columns.top_logprobs)
    top_ids = unpack_ids(columns.top_ids)
    return [
        pb.TokenLogprobs(
            token_id=token_id,
            logprob=chosen[at],
            top=[
                pb.TopLogprob(token_id=top_ids[i], logprob=top[i])
                for i in range(at * num_top, (at + 1) * num_top)
            ],
        )
        for at, token_id in enumerate(token_ids)
    ]


def check(streamed: Streamed, num_top: int) -> None:
    """One entry for each id of each message, and each the right one."""
    for message in streamed.messages:
        ids = [entry.token_id for entry in message.logprobs]
        assert ids == list(message.token_ids)
    entries = [entry for message in streamed.messages for entry in message.logprobs]
    assert entries == expected(streamed.token_ids, num_top)


# field cases 22, 71
@pytest.mark.parametrize("tokens_per_step", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("output", "sampling", "text", "num_ids"),
    [
        ("one 🙂 END two", {"stop": ["END"]}, "one 🙂 ", 12),
        ("one 🙂 END two", {"stop": ["🙂"]}, "one ", 8),
        ("one 🙂 END two", {"stop": ["ne", "zz"]}, "o", 3),
        ("one 🙂 END two", {"stop_token_ids": [ord("E")]}, "one 🙂 ", 10),
        ("one 🙂", {}, "one 🙂", 9),
        ("one 🙂", {"max_tokens": 6}, "one \ufffd", 6),
        ("one 🙂", {"stop": ["🙃"], "max_tokens": 7}, "one \ufffd", 7),
        ("", {}, "", 1),
    ],
)
async def test_ids_log_probabilities_and_text_agree(
    served: Served,
    tokens_per_step: int,
    output: str,
    sampling: dict[str, object],
    text: str,
    num_ids: int,
):
    served.scheduler.behavior.tokens_per_step = tokens_per_step
    for num_top in (0, 3):
        params = pb.SamplingParams(logprobs=num_top, **sampling)  # type: ignore[arg-type]
        streamed = await stream(served, tokens=script(output), sampling=params)
        assert (streamed.text, len(streamed.token_ids)) == (text, num_ids)
        check(streamed, num_top)
        whole = await unary(served, tokens=script(output), sampling=params)
        assert (whole.text, list(whole.token_ids)) == (text, streamed.token_ids)
        assert list(whole.logprobs) == expected(streamed.token_ids, num_top)
        assert whole.usage.completion_tokens == num_ids


async def test_none_unless_asked_for(served: Served):
    streamed = await stream(served, tokens=script("abc"))
    assert not any(message.logprobs for message in streamed.messages)
    assert not (await unary(served, tokens=script("abc"))).logprobs
    assert not served.scheduler.seen.submits[0].sampling.HasField("logprobs")
    await unary(served, tokens=script("abc"), sampling=pb.SamplingParams(logprobs=0))
    assert served.scheduler.seen.submits[-1].sampling.HasField("logprobs")


# field case 41
async def test_log_probabilities_stay_beside_their_tokens_on_another_scheduler(served: Served):
    served.scheduler.behavior.num_before_hold = 6
    served.scheduler.behavior.tokens_per_step = 2
    sampling = pb.SamplingParams(logprobs=2, stop=["END"])
    text = "ab🙂cd END more"
    call = asyncio.create_task(stream(served, tokens=script(text), sampling=sampling))
    live = served.front.live
    await wait_until(lambda: [len(one.token_ids) for one in live.all()] == [6])
    await served.scheduler.stop()
    await wait_until(lambda: not served.front.link.is_ready)
    served.scheduler.behavior.num_before_hold = None
    served.scheduler.behavior.tokens_per_step = 3
    await served.scheduler.start()
    streamed = await call
    assert streamed.text == "ab🙂cd "
    assert len(streamed.token_ids) == 12
    check(streamed, 2)
    assert served.scheduler.seen.submits[1].sampling == served.scheduler.seen.submits[0].sampling


# field case 57
async def test_a_cancelled_stream_has_as_many_as_ids(served: Served):
    served.scheduler.behavior.num_before_hold = 5
    call = asyncio.create_task(
        stream(
            served,
            tokens=script("ab🙂🙂"),
            sampling=pb.SamplingParams(logprobs=1),
            request_id="x",
        )
    )
    await wait_until(lambda: [len(one.token_ids) for one in served.front.live.all()] == [5])
    await served.inference.Cancel(pb.CancelRequest(request_id="x"), timeout=10)
    streamed = await call
    assert (streamed.text, len(streamed.token_ids)) == ("ab\ufffd", 5)
    check(streamed, 1)


def floats(*values: float) -> bytes:
    return pack_floats(array("f", values))


def ids(*values: int) -> bytes:
    return pack_ids(array("i", values))


# field case 75
@pytest.mark.parametrize(
    "changes",
    [
        {"chosen": floats(-1)},
        {"chosen": floats(-1, -1, -1)},
        {"chosen": b""},
        {"chosen": floats(-1, math.nan)},
        {"chosen": floats(-1, 0.5)},
        {"chosen": b"abc"},
        {"top_ids": ids(1)},
        {"top_ids": ids(1, NUM_IDS)},
        {"top_ids": ids(1, -1)},
        {"top_ids": ids(1, 2, 3, 4), "top_logprobs": floats(-1, -1, -1, -1)},
        {"top_logprobs": floats(-1)},
        {"top_logprobs": floats(-1, math.inf)},
        {"top_logprobs": floats(-1, math.nan)},
    ],
    ids=str,
)
async def test_nonsense_from_the_scheduler_ends_that_request(
    served: Served, changes: dict[str, bytes]
):
    sound = {"chosen": floats(-1, -math.inf), "top_ids": ids(1, 2), "top_logprobs": floats(-1, -2)}

    def answers(columns: dict[str, bytes]) -> None:
        served.scheduler.behavior.answer = lambda submit: internal.Output(
            token_ids=ids(97, EOS),
            ending=internal.ENDING_STOP,
            logprobs=internal.LogprobColumns(**columns),
        )

    sampling = pb.SamplingParams(logprobs=1)
    answers(sound)
    assert len((await unary(served, text="a", sampling=sampling)).logprobs) == 2
    answers(sound | changes)
    got = await refused(unary(served, text="a", sampling=sampling))
    assert (got.reason, "cannot be right" in got.message) == ("INTERNAL", True)


async def test_no_more_alternatives_than_tokens(serve: Serve):
    class FewIds(ByteTokenizer):
        num_ids = 5

    scheduler = FakeScheduler()
    scheduler.model = internal.Model(vocab_size=5, max_length=100, eos_token_ids=[0])
    served = await serve(tokenizer=FewIds(), scheduler=scheduler)
    served.scheduler.behavior.answer = lambda submit: internal.Output(
        token_ids=ids(0),
        ending=internal.ENDING_STOP,
        logprobs=logprobs_of([0], 0, 5),
    )
    request = {"tokens": pb.TokenIds(ids=[1]), "sampling": pb.SamplingParams(logprobs=20)}
    assert len((await unary(served, **request)).logprobs[0].top) == 5
    assert served.scheduler.seen.submits[0].sampling.logprobs == 5
