"""The stream to the scheduler breaks, the worker goes, the scheduler talks nonsense."""

import asyncio
from array import array
from dataclasses import replace
from typing import Any

import grpc
import pytest

from protos import wire
from protos.errors import InvalidRequest
from protos.plan import MAX_CONTEXT_TOKENS, BatchPlan, Envelope, NewRow, SamplingParams
from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import admin_pb2
from protos.radixd.v1 import inference_pb2 as pb
from protos.wire import pack_ids, unpack_ids
from radixd.chassis.grpc_server import MAX_MESSAGE_BYTES
from scheduler_svc.core.plan_builder import MOST_NEW_ROW_BYTES
from scheduler_svc.translation import MAX_GRAMMAR_BYTES
from tests.tokenizer_svc.client import Streamed, refused, script, stream, unary, wait_until
from tests.tokenizer_svc.conftest import Serve, Served
from tokenizer_svc import choices, scheduler_link
from tokenizer_svc.fit import checked_ids
from tokenizer_svc.generation_request import TextPrompt, TokenPrompt
from tokenizer_svc.live_request import LiveRequest, Outcome, Submission
from tokenizer_svc.served_model import ServedModel, mismatch, own_vocabulary, served_model
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, IM_END, NUM_IDS, ByteTokenizer

TEXT = "一 text with characters 🙂 and a stop"


# field case 134, and the contract "nothing lost, nothing twice"
async def test_streams_go_on_after_the_scheduler_is_back(served: Served):
    served.scheduler.behavior.num_before_hold = 7
    sampling = pb.SamplingParams(stop=["stop"], max_tokens=100, seed=5)
    calls = [
        asyncio.create_task(stream(served, tokens=script(f"{n:02}{TEXT}"), sampling=sampling))
        for n in range(20)
    ]
    live = served.front.live
    await wait_until(lambda: [len(one.token_ids) for one in live.all()] == [7] * 20)
    await served.scheduler.stop()
    await wait_until(lambda: not served.front.link.is_ready)
    first = list(served.scheduler.seen.submits)
    served.scheduler.behavior.num_before_hold = None
    await served.scheduler.start()
    for n, call in enumerate(calls):
        streamed: Streamed = await call
        assert streamed.text == f"{n:02}{TEXT}".removesuffix("stop")
        assert bytes(streamed.token_ids).decode() == f"{n:02}{TEXT}"
        assert streamed.last.usage.completion_tokens == len(streamed.token_ids)
    again = served.scheduler.seen.submits[20:]
    assert len(again) == 20
    for before, after in zip(first, again, strict=True):
        assert len(unpack_ids(after.resume_output_ids, typecode="I")) == 7
        assert after.request_id != before.request_id
        assert (after.max_tokens, after.sampling) == (before.max_tokens, before.sampling)


async def test_a_request_that_only_lacks_its_ending_needs_no_scheduler(served: Served):
    served.scheduler.behavior.answer = lambda submit: internal.Output(
        token_ids=pack_ids(array("I", [*b"abc"]))
    )
    sampling = pb.SamplingParams(max_tokens=3)
    call = asyncio.create_task(stream(served, text="a", sampling=sampling))
    await wait_until(lambda: bool(served.scheduler.seen.submits))
    await asyncio.sleep(0.1)
    await served.scheduler.stop()
    await served.scheduler.start()
    streamed = await call
    assert (streamed.text, streamed.last.finish_reason) == ("abc", pb.FINISH_REASON_LENGTH)


async def test_what_no_message_can_carry_is_refused_and_not_sent_for_ever(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scheduler_link, "MAX_MESSAGE_BYTES", 4000)
    for call in (unary(served, text="a" * 1000), stream(served, text="a" * 1000)):
        got = await refused(call)
        assert (got.code, got.field) == (grpc.StatusCode.INVALID_ARGUMENT, "text")
        assert "4000" in got.message
    assert not served.scheduler.seen.submits
    assert (await unary(served, tokens=script("ok"))).text == "ok"
    assert served.front.link.is_ready, "the stream that others are on has not ended"
    await served.idle()


async def test_a_request_that_outgrew_the_message_ends_when_the_scheduler_returns(
    served: Served, monkeypatch: pytest.MonkeyPatch
):
    served.scheduler.behavior.num_before_hold = 5
    call = asyncio.create_task(refused(stream(served, tokens=script("abcdefgh"))))
    await wait_until(lambda: [len(one.token_ids) for one in served.front.live.all()] == [5])
    size = served.scheduler.seen.submits[0].ByteSize()
    monkeypatch.setattr(scheduler_link, "MAX_MESSAGE_BYTES", size + 10)
    await served.scheduler.stop()
    await served.scheduler.start()
    assert (await call).field == "tokens"
    assert len(served.scheduler.seen.submits) == 1
    served.scheduler.behavior.num_before_hold = None
    assert (await unary(served, tokens=script("ok"))).text == "ok"
    await served.idle()


def test_the_longest_request_there_is_fits_the_message():
    most, ids = MAX_CONTEXT_TOKENS, array("I", [7]) * MAX_CONTEXT_TOKENS
    model = served_model(internal.Model(vocab_size=264, max_length=2**31 - 1))
    assert model.max_length == most
    for prompt, field in (
        (TextPrompt(text="", field="text"), "text"),
        (TokenPrompt(ids=ids, field="tokens"), "tokens"),
    ):
        with pytest.raises(InvalidRequest, match=f"at most {most - 1}") as caught:
            checked_ids(prompt, ids, model)
        assert caught.value.field == field
    live = LiveRequest("x")
    live.token_ids.append(7)
    grammar = "x" * MAX_GRAMMAR_BYTES
    live.submission = Submission(
        prompt_ids=checked_ids(TextPrompt(text="", field="text"), ids[1:], model),
        sampling=SamplingParams(grammar=grammar),
        max_tokens=1,
    )
    assert scheduler_link._submit_message("x", live).ByteSize() < MAX_MESSAGE_BYTES
    plan = BatchPlan(
        step_id=1,
        rows=array("i", [0]),
        prefix_lens=array("i", [most - 1]),
        extend_lens=array("i", [1]),
        samples=b"\1",
        input_ids=array("i", [7]),
        out_slots=array("i", [7]),
        new_rows=(
            NewRow(
                row=0,
                prefix_slots=array("i", ids[1:]),
                sampling=SamplingParams(grammar=grammar),
                num_prompt=most - 1,
                context_ids=array("i", ids),
            ),
        ),
        remaps=(),
        freed_rows=array("i"),
    )
    largest = len(wire.encode(Envelope(epoch=1, message=plan)))
    assert largest + MOST_NEW_ROW_BYTES < wire.MAX_MESSAGE_BYTES


async def test_a_new_request_waits_for_the_scheduler(serve: Serve):
    served = await serve(scheduler_up=False)
    call = asyncio.create_task(unary(served, tokens=script("ok")))
    await asyncio.sleep(0.2)
    await served.scheduler.start()
    assert (await call).text == "ok"


@pytest.mark.parametrize("away", ["scheduler", "worker"])
async def test_a_new_request_waits_only_so_long(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, away: str
):
    monkeypatch.setattr(choices, "AWAY_WAIT_S", 0.3)
    served = await serve(scheduler_up=away == "worker")
    if away == "worker":
        served.scheduler.set_worker(connected=False)
        await wait_until(lambda: not served.front.link.is_ready)
    got = await refused(unary(served, text="a"))
    assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
    assert away in got.message
    # A deadline that passes first is a deadline.
    got = await refused(unary(served, text="a", timeout_ms=50))
    assert got.code == grpc.StatusCode.DEADLINE_EXCEEDED
    # What is wrong in itself is said at once.
    assert (await refused(unary(served, text=""))).field == "text"
    await served.idle()


async def test_what_waits_for_a_worker_can_be_cancelled(serve: Serve):
    served = await serve(scheduler_up=False)
    call = asyncio.create_task(refused(unary(served, text="a", request_id="x")))
    await wait_until(lambda: len(served.front.live) == 1)
    await served.inference.Cancel(pb.CancelRequest(request_id="x"))
    got = await call
    assert (got.code, got.reason) == (grpc.StatusCode.CANCELLED, "CANCELLED")


async def test_running_requests_wait_for_the_worker(served: Served):
    served.scheduler.behavior.num_before_hold = 3
    call = asyncio.create_task(stream(served, tokens=script("abcdef")))
    await wait_until(lambda: bool(served.scheduler.seen.running))
    served.scheduler.set_worker(connected=False)
    await wait_until(lambda: not served.front.link.is_ready)
    served.scheduler.set_worker(connected=True)
    served.scheduler.behavior.num_before_hold = None
    assert (await call).text == "abcdef"
    assert len(served.scheduler.seen.submits) == 1


# field case 75
@pytest.mark.parametrize(
    "token_ids", [pack_ids(array("I", [NUM_IDS])), b"abc", pack_ids(array("I", [*b"too long"]))]
)
async def test_nonsense_from_the_scheduler_ends_that_request(served: Served, token_ids: bytes):
    served.scheduler.behavior.num_before_hold = 2
    other = asyncio.create_task(unary(served, tokens=script("other")))
    await wait_until(lambda: bool(served.scheduler.seen.running))
    served.scheduler.behavior.answer = lambda submit: internal.Output(token_ids=token_ids)
    async with asyncio.timeout(10):
        got = await refused(unary(served, text="a", sampling=pb.SamplingParams(max_tokens=4)))
    assert got.code == grpc.StatusCode.INTERNAL
    nobody = internal.Output(request_id="nobody", token_ids=token_ids)
    served.scheduler.send(internal.AttachResponse(outputs=internal.Outputs(outputs=[nobody])))
    served.scheduler.behavior.answer = lambda submit: None
    served.scheduler.behavior.num_before_hold = None
    assert (await other).text == "other"


async def test_a_deadline_after_some_tokens_is_a_finish(served: Served):
    served.scheduler.behavior.num_before_hold = 2
    streamed = await stream(served, tokens=script("abcd"), timeout_ms=800)
    assert (streamed.text, streamed.last.finish_reason) == ("ab", pb.FINISH_REASON_DEADLINE)
    assert 0 < served.scheduler.seen.submits[0].timeout_ms <= 800


async def test_a_deadline_of_the_call_leaves_time_for_the_partial_output(served: Served):
    served.scheduler.behavior.num_before_hold = 2
    reply = await served.inference.GenerateUnary(
        pb.GenerateUnaryRequest(tokens=script("abcd")), timeout=2
    )
    assert (reply.text, reply.finish_reason) == ("ab", pb.FINISH_REASON_DEADLINE)


async def test_the_front_keeps_deadlines_while_the_scheduler_is_away(served: Served):
    served.scheduler.behavior.num_before_hold = 2
    call = asyncio.create_task(stream(served, tokens=script("abcd"), timeout_ms=1000))
    await wait_until(lambda: bool(served.scheduler.seen.running))
    await asyncio.sleep(0.1)
    await served.scheduler.stop()
    streamed = await call
    assert (streamed.text, streamed.last.finish_reason) == ("ab", pb.FINISH_REASON_DEADLINE)
    await served.idle()


def ending(name: str, **fields: str) -> internal.Output:
    return internal.Output(ending=internal.Ending.Value(f"ENDING_{name}"), **fields)


# field case 124
@pytest.mark.parametrize(
    ("output", "code", "reason", "field"),
    [
        (
            ending("REJECTED_INVALID", field="prompt_ids"),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "text",
        ),
        (
            ending("REJECTED_INVALID", field="sampling.top_k", message="too odd"),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            "sampling.top_k",
        ),
        (
            ending("REJECTED_TOO_LARGE", field="prompt"),
            "RESOURCE_EXHAUSTED",
            "PROMPT_TOO_LARGE",
            "text",
        ),
        (ending("REJECTED_QUEUE_FULL"), "RESOURCE_EXHAUSTED", "QUEUE_FULL", None),
        (ending("REJECTED_DUPLICATE_ID"), "ALREADY_EXISTS", "DUPLICATE_REQUEST_ID", None),
        (ending("DEADLINE"), "DEADLINE_EXCEEDED", "DEADLINE", None),
        (ending("FAILED", message="out of luck"), "INTERNAL", "INTERNAL", None),
        (ending("PREHEATED"), "INTERNAL", "INTERNAL", None),
    ],
)
async def test_endings_without_a_result_are_errors(
    served: Served, output: internal.Output, code: str, reason: str, field: str | None
):
    served.scheduler.behavior.answer = lambda submit: internal.Output.FromString(
        output.SerializeToString()
    )
    for call in (unary(served, text="a"), stream(served, text="a")):
        got = await refused(call)
        assert (got.code.name, got.reason, got.field) == (code, reason, field)
        assert output.message in got.message
        assert (got.retry_after_ms is not None) == (reason == "QUEUE_FULL")


async def test_a_full_pool_is_a_finish_with_a_sentence(served: Served):
    served.scheduler.behavior.answer = lambda submit: internal.Output(
        token_ids=pack_ids(array("I", [*b"ab"])),
        ending=internal.ENDING_POOL_FULL,
        message="no slot left",
    )
    reply = await unary(served, text="a")
    assert (reply.text, reply.finish_reason) == ("ab", pb.FINISH_REASON_POOL_FULL)
    assert reply.finish_message == "no slot left"


async def test_pins_go_out_and_receipts_come_back(served: Served):
    served.scheduler.behavior.answer = lambda submit: internal.Output(
        ending=internal.ENDING_PREHEATED, pin_id="p1", pinned_tokens=8, pin_error="half of it"
    )
    live = served.front.live.open("warm")
    submission = Submission(
        prompt_ids=array("I", [1]),
        max_tokens=0,
        preheat=True,
        tenant="acme",
        pin=admin_pb2.PIN_LEVEL_HARD,
        pin_ttl_ms=9,
    )
    served.front.link.submit(live, submission)
    await live.changed()
    outcome = live.outcome
    served.front.link.close(live)
    assert isinstance(outcome, Outcome)
    assert (outcome.pin_id, outcome.pinned_tokens, outcome.pin_error) == ("p1", 8, "half of it")
    (sent,) = served.scheduler.seen.submits
    assert (sent.tenant, sent.pin, sent.pin_ttl_ms) == ("acme", admin_pb2.PIN_LEVEL_HARD, 9)
    assert sent.client_request_id == "warm"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"vocab_size": 200}, "vocabulary 200, end of sequence"),
        ({"vocab_size": 50_000, "eos_token_ids": [49_000, 49_001]}, "end of sequence 49000, 49001"),
    ],
)
async def test_a_worker_of_another_model_is_told_from_one_that_is_away(
    serve: Serve, changes: dict[str, Any], told: str
):
    served = await serve(model_id="mine", scheduler_up=False)
    mine = served.scheduler.model
    theirs = internal.Model(
        model_id="theirs",
        **{"vocab_size": NUM_IDS, "max_length": 4096, "eos_token_ids": [EOS]} | changes,
    )
    served.scheduler.model = theirs
    await served.scheduler.start()
    await wait_until(lambda: served.front.link.model is not None)
    assert not served.front.link.is_ready
    refusal = await refused(unary(served, text="a"))
    assert refusal.code == grpc.StatusCode.UNAVAILABLE
    for words in (f"the front reads text for mine ({NUM_IDS} token ids)", "serves theirs", told):
        assert words in refusal.message
    served.scheduler.model = mine
    await served.scheduler.stop()
    await served.scheduler.start()
    await wait_until(lambda: served.front.link.is_ready)


async def test_a_model_under_another_name_and_one_that_is_padded_are_served(serve: Serve):
    served = await serve(model_id="/models/the-same.gguf")
    assert served.front.link.is_ready
    own = own_vocabulary("mine", ByteTokenizer())
    padded = ServedModel(
        model_id="mine", vocab_size=512, max_length=64, eos_token_ids=frozenset({EOS, 500})
    )
    assert mismatch(own, padded) is None


def test_control_tokens_at_the_end_may_lack_weights_and_may_end_a_sequence():
    class Controls(ByteTokenizer):
        num_ids = IM_END + 1

    own = own_vocabulary("mine", Controls())
    model = ServedModel(
        model_id="mine", vocab_size=256, max_length=64, eos_token_ids=frozenset({IM_END})
    )
    assert mismatch(own, model) is None
    assert mismatch(own, replace(model, vocab_size=255)) is not None


async def test_of_several_steps_in_one_message_a_request_is_told_once(served: Served):
    live = served.front.live.open("behind")
    told: list[int] = []
    live.listener = lambda: told.append(len(live.token_ids))
    submission = Submission(prompt_ids=array("I", [1]), max_tokens=8)
    served.scheduler.behavior.answer = lambda submit: None
    served.front.link.submit(live, submission)
    steps = [
        internal.Output(request_id=live.wire_id, token_ids=pack_ids(array("I", [each])))
        for each in b"abc"
    ]
    served.front.link._handle(internal.AttachResponse(outputs=internal.Outputs(outputs=steps[:1])))
    served.front.link._handle(internal.AttachResponse(outputs=internal.Outputs(outputs=steps[1:])))
    served.front.link.close(live)
    assert told[:2] == [1, 3]
