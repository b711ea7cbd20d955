"""Several choices of one request: their seeds, their streams, their ends, and what they cost."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import inference_pb2 as pb
from tests.tokenizer_svc.client import Streamed, refused, script, stream, unary, wait_until
from tests.tokenizer_svc.conftest import Serve, Served
from tests.tokenizer_svc.fake_scheduler import next_token
from tokenizer_svc.choices import choice_seed

PROMPT = "several"
DRAWN: dict[str, Any] = {"temperature": 1, "seed": 42, "max_tokens": 40}


GOLDEN = [42, 6839728766377637706, 1474913046063446145, 2569641874231381929]
GOLDEN_LAST = 6218928842717316179


def drawn(**more: Any) -> pb.SamplingParams:
    return pb.SamplingParams(**(DRAWN | more))


def said_with(seed: int, num_tokens: int = 40) -> list[int]:
    """What the fake model says to PROMPT with this seed."""
    output: list[int] = []
    while len(output) < num_tokens:
        output.append(next_token(list(PROMPT.encode()), output, seed))
    return output


def answer_for(choice: int, ending: Any) -> Callable[[internal.Submit], internal.Output | None]:
    seed = choice_seed(42, choice)

    def answer(submit: internal.Submit) -> internal.Output | None:
        return internal.Output(ending=ending) if submit.sampling.seed == seed else None

    return answer


def by_choice(streamed: Streamed) -> dict[int, Streamed]:
    found: dict[int, Streamed] = {}
    for message in streamed.messages:
        found.setdefault(message.choice, Streamed(messages=[])).messages.append(message)
    return found


def test_seeds_of_choices_never_change():
    """Published figures: a later release must give the same choices."""
    assert [choice_seed(42, choice) for choice in range(4)] == GOLDEN
    assert choice_seed(2**63 - 1, 0) == 2**63 - 1
    assert choice_seed(2**63 - 1, 15) == GOLDEN_LAST
    seeds = [choice_seed(seed, choice) for seed in range(500) for choice in range(16)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


# field case 97
async def test_each_choice_has_random_numbers_of_its_own(served: Served):
    streamed = by_choice(await stream(served, text=PROMPT, n=4, sampling=drawn()))
    lists = [streamed[choice].token_ids for choice in range(4)]
    assert lists == [said_with(choice_seed(42, choice)) for choice in range(4)]
    assert all(one != other for one, other in itertools.combinations(lists, 2))
    again = await unary(served, text=PROMPT, n=4, sampling=drawn())
    assert [list(choice.token_ids) for choice in again.choices] == lists
    alone = await unary(served, text=PROMPT, sampling=drawn())
    assert (list(alone.token_ids), len(alone.choices)) == (lists[0], 0)


# field cases 97, 147
@pytest.mark.parametrize("tokens_per_step", [1, 3])
async def test_each_goes_on_to_its_own_end(served: Served, tokens_per_step: int):
    served.scheduler.behavior.tokens_per_step = tokens_per_step
    request = {"text": PROMPT, "n": 5, "sampling": drawn(stop=["e", "qu"], logprobs=2)}
    streamed = await stream(served, **request)
    whole = await unary(served, **request)
    ends = set()
    for choice, of_it in by_choice(streamed).items():
        full = bytes(said_with(choice_seed(42, choice))).decode()
        end = min((full + "e").index("e"), 40)
        assert of_it.text == full[:end]
        assert [bool(m.finish_reason) for m in of_it.messages[:-1]].count(True) == 0
        assert of_it.last.finish_reason == (
            pb.FINISH_REASON_STOP if end < 40 else pb.FINISH_REASON_LENGTH
        )
        assert of_it.last.matched_stop == ("e" if end < 40 else "")
        entries = [entry.token_id for m in of_it.messages for entry in m.logprobs]
        assert entries == of_it.token_ids
        kept = whole.choices[choice]
        assert (kept.text, list(kept.token_ids)) == (of_it.text, of_it.token_ids)
        assert list(kept.logprobs) == [entry for m in of_it.messages for entry in m.logprobs]
        assert kept.finish_reason == of_it.last.finish_reason
        assert kept.matched_stop == of_it.last.matched_stop
        ends.add(end)
    assert len(ends) > 2, "they end at different times, or this test says nothing"
    assert (whole.text, whole.token_ids) == (whole.choices[0].text, whole.choices[0].token_ids)
    assert [m.HasField("usage") for m in streamed.messages].count(True) == 1
    assert streamed.last.usage == whole.usage
    assert whole.usage.completion_tokens == len(streamed.token_ids)
    assert whole.usage.prompt_tokens == len(PROMPT)
    seeds = [m.seed for m in streamed.messages if m.HasField("seed")]
    assert seeds == [42, 42]
    assert streamed.messages[0].HasField("seed")


async def test_they_come_side_by_side(served: Served):
    served.scheduler.behavior.step_s = 0.005
    streamed = await stream(served, text=PROMPT, n=3, sampling=drawn())
    first_end = next(i for i, m in enumerate(streamed.messages) if m.finish_reason)
    assert {m.choice for m in streamed.messages[: first_end // 2]} == {0, 1, 2}


async def test_greedy_choices_are_equal(served: Served):
    whole = await unary(served, tokens=script("same"), n=3)
    assert [choice.text for choice in whole.choices] == ["same"] * 3
    assert whole.usage.completion_tokens == 15


async def test_usage_has_the_prompt_once_and_what_the_first_found(served: Served):
    served.scheduler.behavior.cached_tokens = 3
    whole = await unary(served, text=PROMPT, n=4, sampling=drawn(max_tokens=2))
    assert whole.usage == pb.Usage(prompt_tokens=7, completion_tokens=8, cached_tokens=3)


async def test_all_have_the_clients_id(served: Served):
    served.scheduler.behavior.num_before_hold = 2
    call = asyncio.create_task(
        stream(served, text=PROMPT, n=3, request_id="mine", sampling=drawn())
    )
    seen = served.scheduler.seen
    await wait_until(lambda: len(seen.running) == 3)
    assert {submit.client_request_id for submit in seen.submits} == {"mine"}
    assert len({submit.request_id for submit in seen.submits}) == 3
    got = await refused(unary(served, text="b", request_id="mine"))
    assert got.code == grpc.StatusCode.ALREADY_EXISTS
    # Cancelled, all of them end with what there is.
    await wait_until(lambda: all(len(live.token_ids) == 2 for live in served.front.live.all()))
    await served.inference.Cancel(pb.CancelRequest(request_id="mine"), timeout=10)
    ended = by_choice(await call)
    assert [len(ended[choice].token_ids) for choice in range(3)] == [2, 2, 2]
    reasons = {of_it.last.finish_reason for of_it in ended.values()}
    assert reasons == {pb.FINISH_REASON_CANCELLED}
    await wait_until(lambda: not seen.running)
    served.scheduler.behavior.num_before_hold = None
    assert (await unary(served, tokens=script("ok"), request_id="mine")).text == "ok"


async def test_a_choice_that_has_ended_leaves_the_id_to_the_others(served: Served):
    served.scheduler.behavior.answer = answer_for(0, internal.ENDING_STOP)
    served.scheduler.behavior.num_before_hold = 1
    messages = []
    async for message in served.inference.Generate(
        pb.GenerateRequest(text=PROMPT, n=2, request_id="mine", sampling=drawn())
    ):
        if not messages:
            await served.inference.Cancel(pb.CancelRequest(request_id="mine"), timeout=10)
        messages.append(message)
    first, *rest = messages
    stopped = pb.FINISH_REASON_STOP
    assert (first.choice, first.finish_reason, first.HasField("usage")) == (0, stopped, False)
    assert rest[-1].finish_reason == pb.FINISH_REASON_CANCELLED
    assert {message.choice for message in rest} == {1}


# field case 52
async def test_leaving_ends_all_of_them(served: Served):
    served.scheduler.behavior.num_before_hold = 1
    call = served.inference.Generate(pb.GenerateRequest(text=PROMPT, n=8, sampling=drawn()))
    await call.read()
    await wait_until(lambda: len(served.scheduler.seen.running) == 8)
    call.cancel()
    await served.idle()
    await wait_until(lambda: not served.scheduler.seen.running)


async def test_one_that_fails_ends_the_request(served: Served):
    behavior = served.scheduler.behavior
    behavior.num_before_hold = 1
    behavior.answer = answer_for(2, internal.ENDING_REJECTED_QUEUE_FULL)
    for call in (unary, stream):
        got = await refused(call(served, text=PROMPT, n=4, sampling=drawn()))
        assert (got.code, got.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        await served.idle()
        await wait_until(lambda: not served.scheduler.seen.running)
    behavior.num_before_hold = None
    assert (await unary(served, tokens=script("ok"))).text == "ok"


async def test_at_the_deadline_a_choice_without_tokens_is_part_of_the_result(served: Served):
    served.scheduler.behavior.num_before_hold = 3
    served.scheduler.behavior.answer = answer_for(1, internal.ENDING_UNSPECIFIED)
    whole = await unary(served, text=PROMPT, n=3, sampling=drawn(), timeout_ms=300)
    assert [len(choice.token_ids) for choice in whole.choices] == [3, 0, 3]
    assert {choice.finish_reason for choice in whole.choices} == {pb.FINISH_REASON_DEADLINE}


# field case 74
async def test_choices_count_as_live_requests(serve: Serve):
    served = await serve(max_live=3)
    got = await refused(unary(served, text=PROMPT, n=4, sampling=drawn()))
    assert (got.code, got.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert len((await unary(served, text=PROMPT, n=3, sampling=drawn())).choices) == 3


# field case 41
async def test_another_scheduler_takes_all_of_them_over(served: Served):
    served.scheduler.behavior.num_before_hold = 7
    call = asyncio.create_task(stream(served, text=PROMPT, n=3, sampling=drawn()))
    live = served.front.live
    await wait_until(lambda: [len(one.token_ids) for one in live.all()] == [7] * 3)
    await served.scheduler.stop()
    await wait_until(lambda: not served.front.link.is_ready)
    served.scheduler.behavior.num_before_hold = None
    await served.scheduler.start()
    ended = by_choice(await call)
    for choice in range(3):
        assert ended[choice].token_ids == said_with(choice_seed(42, choice))
