"""Bytes written once and kept: today's code still reads them, to the same values.

A file is written when it is missing and `--update` is given, and never again after that.  When a
test here fails, yesterday's peers and recorded traces cannot be read any more: either undo the
change, or raise `protos.wire.WIRE_VERSION` (internal) or the package version (public), and say so
in protos/CHANGELOG.md.
"""

from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.message import Message as ProtoMessage

from protos import wire
from protos.plan import (
    NOT_SCORED,
    TOKEN_FROM_STEP_BEFORE,
    BatchPlan,
    BatchResult,
    Envelope,
    Fault,
    Hello,
    LogprobColumns,
    Message,
    NewRow,
    Ping,
    Ready,
    Remap,
    SamplingParams,
)
from protos.radixd.scheduler.v1 import scheduler_pb2 as scheduler
from protos.radixd.v1 import admin_pb2 as admin
from protos.radixd.v1 import inference_pb2 as inference
from protos.radixd.v1 import tokenizer_pb2 as tokenizer

HERE = Path(__file__).parent
EPOCH = 0x1122334455667788

LEAST_HELLO = Hello(
    instance_id=1,
    model_id="m",
    model_hash="h",
    vocab_size=9,
    eos_token_ids=(),
    num_slots=1,
    max_rows=1,
    max_length=1,
    kv_dtype="float32",
    device="cpu",
    kind="model",
)

PLANS: dict[str, Message] = {
    "worker_v1_hello": Hello(
        instance_id=0xFEDCBA9876543210,
        model_id="smollm2",
        model_hash="0123456789abcdef",
        vocab_size=49152,
        eos_token_ids=(2, 0),
        num_slots=16384,
        max_rows=64,
        max_length=8192,
        kv_dtype="float32",
        device="cpu",
        kind="model",
    ),
    "worker_v1_ready": Ready(),
    "worker_v1_plan": BatchPlan(
        step_id=7,
        rows=array("i", [3, 0]),
        prefix_lens=array("i", [2, 9]),
        extend_lens=array("i", [3, 1]),
        samples=b"\0\1",
        input_ids=array("i", [11, 12, 49151, TOKEN_FROM_STEP_BEFORE]),
        out_slots=array("i", [1, 2, 3, 16384]),
        new_rows=(
            NewRow(
                row=3,
                prefix_slots=array("i", [40, 41]),
                sampling=SamplingParams(
                    temperature=0.5, top_k=40, top_p=0.75, min_p=0.125, seed=2**63 - 1
                ),
            ),
        ),
        remaps=(Remap(row=0, start=4, slots=array("i", [8, 9])),),
        freed_rows=array("i", [1, 2]),
    ),
    "worker_v1_result": BatchResult(
        step_id=7, token_ids=array("i", [42]), forward_ns=12_345_678, peak_rss_bytes=1 << 33
    ),
    "worker_v1_hello_sizes": replace(LEAST_HELLO, kv_bytes_per_slot=23040),
    "worker_v1_plan_penalties": BatchPlan(
        step_id=8,
        rows=array("i", [3, 4]),
        prefix_lens=array("i", [2, 0]),
        extend_lens=array("i", [1, 1]),
        samples=b"\1\1",
        input_ids=array("i", [13, 7]),
        out_slots=array("i", [1, 2]),
        new_rows=(
            NewRow(
                row=3,
                prefix_slots=array("i", [40, 41]),
                sampling=SamplingParams(
                    min_tokens=5,
                    repetition_penalty=1.25,
                    presence_penalty=-0.5,
                    frequency_penalty=0.75,
                    logprobs=0,
                ),
                num_prompt=2,
                context_ids=array("i", [11, 12, 13]),
                suppressed_ids=(2, 0),
            ),
            NewRow(row=4, prefix_slots=array("i"), sampling=SamplingParams(logprobs=20)),
        ),
        freed_rows=array("i"),
    ),
    "worker_v1_result_logprobs": BatchResult(
        step_id=8,
        token_ids=array("i", [42, 43]),
        logprobs=LogprobColumns(
            chosen=array("f", [-0.5]),
            top_ids=array("i", [42, 7]),
            top_logprobs=array("f", [-0.5, float("-inf")]),
        ),
    ),
    "worker_v1_hello_weights": replace(LEAST_HELLO, kv_dtype="int8", weights="int4"),
    "worker_v1_plan_drafts": BatchPlan(
        step_id=9,
        rows=array("i", [3, 0]),
        prefix_lens=array("i", [2, 9]),
        extend_lens=array("i", [3, 1]),
        samples=b"\3\1",
        input_ids=array("i", [TOKEN_FROM_STEP_BEFORE, 12, 13, 5]),
        out_slots=array("i", [1, 2, 3, 4]),
        freed_rows=array("i"),
    ),
    "worker_v1_result_drafts": BatchResult(
        step_id=9,
        token_ids=array("i", [12, 42, 7]),
        num_sampled=b"\2\1",
        phases_ns=(1 << 40, 2, 3, 4, (1 << 64) - 1),
    ),
    "worker_v1_plan_scores": BatchPlan(
        step_id=10,
        rows=array("i", [0, 3]),
        prefix_lens=array("i", [9, 0]),
        extend_lens=array("i", [1, 3]),
        samples=b"\1\1",
        input_ids=array("i", [TOKEN_FROM_STEP_BEFORE, 11, 12, 13]),
        out_slots=array("i", [1, 2, 3, 4]),
        new_rows=(
            NewRow(
                row=3,
                prefix_slots=array("i"),
                sampling=SamplingParams(
                    logit_bias=((0, -100.0), (49151, 0.5)), logprobs=0, prompt_logprobs=2
                ),
            ),
        ),
        freed_rows=array("i"),
        next_ids=array("i", [NOT_SCORED, 12, 13, NOT_SCORED]),
    ),
    "worker_v1_result_scores": BatchResult(
        step_id=10,
        token_ids=array("i", [42, 7]),
        logprobs=LogprobColumns(
            chosen=array("f", [-1.0]), top_ids=array("i"), top_logprobs=array("f")
        ),
        prompt_logprobs=LogprobColumns(
            chosen=array("f", [-0.5, float("-inf")]),
            top_ids=array("i", [12, 7, 0, 1]),
            top_logprobs=array("f", [-0.5, -2.0, -3.0, -4.0]),
        ),
    ),
    "worker_v1_hello_stems": replace(
        LEAST_HELLO, kv_dtype="int8", device="cuda", least_stem_tokens=64
    ),
    "worker_v1_plan_stems": BatchPlan(
        step_id=11,
        rows=array("i", [0, 3, 4]),
        prefix_lens=array("i", [9, 7, 8]),
        extend_lens=array("i", [1, 1, 1]),
        samples=b"\1\1\1",
        input_ids=array("i", [TOKEN_FROM_STEP_BEFORE, TOKEN_FROM_STEP_BEFORE, 5]),
        out_slots=array("i", [1, 2, 3]),
        freed_rows=array("i"),
        stems=array("i", [0, 3, 0, 4, 1, 2, 4, 7]),
    ),
    "worker_v1_fault": Fault(step_id=7, message="out of memory"),
    "worker_v1_ping": Ping(instance_id=0),
}

SCHEMA: dict[str, ProtoMessage] = {
    "radixd_v1_generate_request": inference.GenerateRequest(
        request_id="r-1",
        chat=inference.ChatPrompt(
            messages=[inference.ChatMessage(role=inference.ROLE_USER, content="你好")]
        ),
        sampling=inference.SamplingParams(
            temperature=0.0,
            top_k=0,
            top_p=0.5,
            min_p=0.25,
            seed=0,
            max_tokens=16,
            stop=["\n\n"],
            stop_token_ids=[2],
            ignore_eos=False,
        ),
        timeout_ms=30_000,
        cache_domain="tenant",
        no_store=False,
        skip_special_tokens=True,
    ),
    "radixd_v1_generate_response": inference.GenerateResponse(
        request_id="r-1",
        text="量子",
        token_ids=[1, 49151],
        finish_reason=inference.FINISH_REASON_STOP,
        matched_stop="\n\n",
        usage=inference.Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=8),
        seed=0,
        finish_message="",
    ),
    "radixd_v1_generate_request_penalties": inference.GenerateRequest(
        sampling=inference.SamplingParams(
            min_tokens=0,
            repetition_penalty=1.25,
            presence_penalty=-2.0,
            frequency_penalty=0.0,
            logprobs=0,
        ),
        priority=-100,
        workload="chat",
    ),
    "radixd_v1_generate_response_logprobs": inference.GenerateResponse(
        token_ids=[1],
        logprobs=[
            inference.TokenLogprobs(
                token_id=1,
                logprob=-0.5,
                top=[inference.TopLogprob(token_id=7, logprob=-0.25)],
            )
        ],
    ),
    "radixd_v1_tokenize_response": tokenizer.TokenizeResponse(ids=[0, 300]),
    "radixd_v1_preheat_request": admin.PreheatRequest(
        prefixes=["a"], tokens=[inference.TokenIds(ids=[1, 2])], cache_domain=""
    ),
    "scheduler_v1_attach_request": scheduler.AttachRequest(
        submit=scheduler.Submit(
            request_id="r-1",
            prompt_ids=b"\1\0\0\0",
            sampling=scheduler.Sampling(temperature=0.5, top_k=1, top_p=1.0, min_p=0.0, seed=3),
            max_tokens=4,
            stop_token_ids=[2],
            ignore_eos=True,
            cache_domain="tenant",
            no_store=True,
            timeout_ms=100,
            preheat=True,
            resume_output_ids=b"\2\0\0\0",
        )
    ),
    "scheduler_v1_attach_request_penalties": scheduler.AttachRequest(
        submit=scheduler.Submit(
            sampling=scheduler.Sampling(
                min_tokens=1,
                repetition_penalty=1.25,
                presence_penalty=0.5,
                frequency_penalty=-0.5,
                logprobs=0,
            ),
            tenant="t",
            priority=-3,
            workload="chat",
            client_request_id="r",
            pin=admin.PIN_LEVEL_SOFT,
            pin_ttl_ms=5,
        )
    ),
    "scheduler_v1_attach_request_scores": scheduler.AttachRequest(
        submit=scheduler.Submit(
            sampling=scheduler.Sampling(
                bias_ids=b"\7\0\0\0", biases=b"\0\0\0\xbf", prompt_logprobs=0
            ),
        )
    ),
    "scheduler_v1_attach_response_scores": scheduler.AttachResponse(
        outputs=scheduler.Outputs(
            outputs=[
                scheduler.Output(
                    prompt_logprobs=scheduler.LogprobColumns(
                        chosen=b"\0\0\0\xbf", top_ids=b"\7\0\0\0", top_logprobs=b"\0\0\0\xbf"
                    ),
                )
            ]
        )
    ),
    "scheduler_v1_attach_response_logprobs": scheduler.AttachResponse(
        outputs=scheduler.Outputs(
            outputs=[
                scheduler.Output(
                    pin_id="p",
                    pinned_tokens=3,
                    pin_error="e",
                    logprobs=scheduler.LogprobColumns(
                        chosen=b"\0\0\0\xbf", top_ids=b"\7\0\0\0", top_logprobs=b"\0\0\0\xbf"
                    ),
                )
            ]
        )
    ),
    "scheduler_v1_attach_response": scheduler.AttachResponse(
        outputs=scheduler.Outputs(
            outputs=[
                scheduler.Output(
                    request_id="r-1",
                    token_ids=b"\3\0\0\0",
                    ending=scheduler.ENDING_LENGTH,
                    message="m",
                    cached_tokens=8,
                    field="prompt",
                )
            ]
        )
    ),
}


def kept(name: str, today: bytes, *, update: bool) -> bytes:
    """The kept bytes of this name; with update, today's become them if there are none."""
    path = HERE / f"{name}.bin"
    if update and not path.exists():
        path.write_bytes(today)
    return path.read_bytes()


@pytest.fixture
def update(pytestconfig: pytest.Config) -> bool:
    """Whether missing files are to be written."""
    return bool(pytestconfig.getoption("--update"))


@pytest.mark.parametrize("name", PLANS)
def test_kept_envelopes_mean_the_same(name: str, update: bool) -> None:
    envelope = Envelope(epoch=EPOCH, message=PLANS[name])
    assert wire.decode(kept(name, wire.encode(envelope), update=update)) == envelope


@pytest.mark.parametrize("name", SCHEMA)
def test_kept_messages_mean_the_same(name: str, update: bool) -> None:
    message = SCHEMA[name]
    data = kept(name, message.SerializeToString(deterministic=True), update=update)
    read = type(message).FromString(data)
    assert read == message
    # Absent and zero differ, and nothing in the bytes became an unknown field.
    assert [field.name for field, _ in read.ListFields()] == [
        field.name for field, _ in message.ListFields()
    ]
    assert read.SerializeToString(deterministic=True) == data


def test_every_kept_file_is_read() -> None:
    assert {path.stem for path in HERE.glob("*.bin")} == {*PLANS, *SCHEMA}
