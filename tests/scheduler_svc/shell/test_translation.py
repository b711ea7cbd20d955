"""Messages of the stream to the core's values and back; bad ones name their field."""

import math
from array import array

import pytest

from protos.errors import InvalidRequest
from protos.plan import SamplingParams
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.v1 import admin_pb2
from protos.wire import pack_ids
from scheduler_svc.core.messages import Ending, Output, PinLevel, Submission
from scheduler_svc.translation import (
    MAX_GRAMMAR_BYTES,
    outputs_to_proto,
    rejection,
    submission_from_proto,
    worker_state_to_proto,
)
from tests.scheduler_svc.shell.scripted import a_hello


def a_submit(**changes) -> pb.Submit:
    values = {"request_id": "r", "prompt_ids": pack_ids(array("i", [1, 2, 3])), "max_tokens": 5}
    return pb.Submit(**(values | changes))


def test_every_field_arrives():
    submit = a_submit(
        sampling=pb.Sampling(temperature=0.5, top_k=4, top_p=0.5, min_p=0.25, seed=2**63 - 1),
        stop_token_ids=[7, 8],
        ignore_eos=True,
        cache_domain="tenant",
        no_store=True,
        timeout_ms=1500,
        preheat=True,
        resume_output_ids=pack_ids(array("i", [4])),
        tenant="acme",
        priority=-100,
        workload="code",
        client_request_id="theirs",
        session="a session",
        pin=admin_pb2.PIN_LEVEL_HARD,
        pin_ttl_ms=2500,
    )
    assert submission_from_proto(submit, now_ns=10) == Submission(
        request_id="r",
        prompt_ids=array("i", [1, 2, 3]),
        sampling=SamplingParams(temperature=0.5, top_k=4, top_p=0.5, min_p=0.25, seed=2**63 - 1),
        max_tokens=5,
        stop_token_ids=(7, 8),
        ignore_eos=True,
        cache_domain="tenant",
        no_store=True,
        deadline_ns=1_500_000_010,
        preheat=True,
        resume_output_ids=array("i", [4]),
        tenant="acme",
        priority=-100,
        workload="code",
        client_request_id="theirs",
        session="a session",
        pin=PinLevel.HARD,
        pin_ttl_ns=2_500_000_000,
    )


def test_absent_fields_mean_greedy_without_deadline():
    submission = submission_from_proto(a_submit(), now_ns=10)
    assert submission.sampling == SamplingParams()
    assert submission.deadline_ns is None
    assert submission.resume_output_ids is None
    assert (submission.tenant, submission.priority, submission.pin) == ("", 0, PinLevel.NONE)


def test_pin_levels_keep_their_numbers():
    for level in PinLevel:
        assert admin_pb2.PinLevel.Name(int(level)) == f"PIN_LEVEL_{level.name}"
        submission = submission_from_proto(a_submit(pin=int(level), preheat=True), now_ns=0)
        assert submission.pin is level
    assert len(admin_pb2.PinLevel.items()) == len(PinLevel) + 1


def sampling(**changes) -> pb.Sampling:
    return pb.Sampling(**({"top_p": 1.0} | changes))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("request_id", {"request_id": ""}),
        ("request_id", {"request_id": "x" * 129}),
        ("prompt_ids", {"prompt_ids": b"\1\2\3"}),
        ("prompt_ids", {"prompt_ids": b"\0\0\0\x80"}),
        ("resume_output_ids", {"resume_output_ids": b"\xff\xff\xff\xff"}),
        ("max_tokens", {"max_tokens": 2**31}),
        ("sampling.temperature", {"sampling": sampling(temperature=math.nan)}),
        ("sampling.temperature", {"sampling": sampling(temperature=math.inf)}),
        ("sampling.temperature", {"sampling": sampling(temperature=-1)}),
        ("sampling.top_p", {"sampling": sampling(top_p=0)}),
        ("sampling.top_p", {"sampling": sampling(top_p=1.5)}),
        ("sampling.top_p", {"sampling": sampling(top_p=math.nan)}),
        ("sampling.min_p", {"sampling": sampling(min_p=-0.1)}),
        ("sampling.top_k", {"sampling": sampling(top_k=2**32 - 1)}),
        ("sampling.seed", {"sampling": sampling(seed=2**63)}),
        ("constraint", {"sampling": sampling(grammar="é" * (MAX_GRAMMAR_BYTES // 2 + 1))}),
        ("tenant", {"tenant": "x" * 129}),
        ("priority", {"priority": 101}),
        ("priority", {"priority": -101}),
        ("workload", {"workload": "x" * 65}),
        ("client_request_id", {"client_request_id": "x" * 129}),
        ("session", {"session": "x" * 129}),
        ("pin", {"pin": 4, "preheat": True}),
        ("pin", {"pin": admin_pb2.PIN_LEVEL_SOFT}),
        ("pin_ttl_ms", {"pin_ttl_ms": 1}),
        ("pin_ttl_ms", {"pin": admin_pb2.PIN_LEVEL_SOFT, "preheat": True, "pin_ttl_ms": 2**63}),
    ],
)
def test_what_cannot_be_names_its_field(field, changes):  # field cases 82, 83, 85
    with pytest.raises(InvalidRequest) as caught:
        submission_from_proto(a_submit(**changes), now_ns=0)
    assert caught.value.field == field
    output = rejection("r", caught.value)
    assert (output.ending, output.field) == (Ending.REJECTED_INVALID, field)
    assert output.message


def test_a_huge_token_id_is_named_as_it_was_sent():
    with pytest.raises(InvalidRequest, match="4294967295"):
        submission_from_proto(a_submit(prompt_ids=b"\xff\xff\xff\xff"), now_ns=0)


def test_outputs_of_a_step_are_one_message():
    message = outputs_to_proto(
        [
            Output(request_id="a", token_ids=array("i", [5, 6]), cached_tokens=3),
            Output(
                request_id="b",
                token_ids=array("i"),
                ending=Ending.REJECTED_TOO_LARGE,
                field="prompt",
                message="too large",
            ),
        ]
    )
    first, second = message.outputs.outputs
    assert (first.request_id, first.ending, first.cached_tokens) == ("a", 0, 3)
    assert first.token_ids == pack_ids(array("i", [5, 6]))
    assert second == pb.Output(
        request_id="b",
        ending=pb.ENDING_REJECTED_TOO_LARGE,
        field="prompt",
        message="too large",
    )


def test_endings_keep_their_numbers():
    for ending in Ending:
        assert pb.Ending.Name(int(ending)) == f"ENDING_{ending.name}"


def test_worker_state():
    assert worker_state_to_proto(None) == pb.WorkerState(connected=False)
    state = worker_state_to_proto(a_hello(weights="int8"))
    assert state.connected
    assert (state.model.vocab_size, list(state.model.eos_token_ids)) == (264, [257])
    assert state.model.weights == "int8"
