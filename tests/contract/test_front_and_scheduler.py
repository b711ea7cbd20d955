"""What the front says of a request, the scheduler's shell understands, and the other way round."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.errors import InvalidRequest
from protos.plan import LogprobColumns, SamplingParams
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.wire import pack_floats, pack_ids
from scheduler_svc.core.messages import Ending, Output, PinReceipt
from scheduler_svc.translation import outputs_to_proto, submission_from_proto
from tokenizer_svc.scheduler_link import sampling_message
from tokenizer_svc.token_log import LEAST_LOGPROB, read_logprobs

MAX_TOKENS = 50

sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100, width=32),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0.125, 1, width=32),
    min_p=st.floats(0, 1, width=32),
    seed=st.integers(0, 2**63 - 1),
    min_tokens=st.integers(0, MAX_TOKENS),
    repetition_penalty=st.just(1.0) | st.floats(0.125, 10, width=32),
    presence_penalty=st.floats(-2, 2, width=32),
    frequency_penalty=st.floats(-2, 2, width=32),
    logprobs=st.integers(-1, 20),
    logit_bias=st.dictionaries(
        st.integers(0, 2**31 - 1), st.floats(-100, 100, width=32), max_size=4
    ).map(lambda bias_of: tuple(sorted(bias_of.items()))),
    prompt_logprobs=st.integers(-1, 20),
    grammar=st.just("") | st.text(max_size=20),
)


def ids(*numbers: int) -> bytes:
    return pack_ids(array("I", numbers))


def floats(*numbers: float) -> bytes:
    return pack_floats(array("f", numbers))


def received(message: pb.Sampling) -> SamplingParams:
    """The parameters as the core gets them."""
    submit = pb.Submit(
        request_id="r", prompt_ids=b"\1\0\0\0", max_tokens=MAX_TOKENS, sampling=message
    )
    return submission_from_proto(pb.Submit.FromString(submit.SerializeToString()), 0).sampling


@given(sampling)
def test_sampling_arrives_as_it_was_sent(params: SamplingParams) -> None:
    assert received(sampling_message(params)) == params


def test_what_is_absent_means_nothing_special() -> None:
    params = received(pb.Sampling(top_p=1.0))
    assert params == SamplingParams()
    assert not params.needs_context


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_tokens", MAX_TOKENS + 1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 10.5),
        ("repetition_penalty", float("nan")),
        ("presence_penalty", 2.5),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", -2.5),
        ("frequency_penalty", float("inf")),
        ("logprobs", 21),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, value: float) -> None:
    good = sampling_message(SamplingParams())
    received(good)
    setattr(good, field, value)
    with pytest.raises(InvalidRequest) as caught:
        received(good)
    assert caught.value.field == f"sampling.{field}"


@pytest.mark.parametrize(
    "columns",
    [
        {"bias_ids": ids(1), "biases": floats(math.nan)},
        {"bias_ids": ids(1), "biases": floats(math.inf)},
        {"bias_ids": ids(1), "biases": floats(100.5)},
        {"bias_ids": ids(1), "biases": floats(-1e30)},
        {"bias_ids": ids(2, 1), "biases": floats(1, 2)},
        {"bias_ids": ids(1, 1), "biases": floats(1, 2)},
        {"bias_ids": ids(1, 2), "biases": floats(1)},
        {"bias_ids": ids(1)},
        {"bias_ids": ids(2**31), "biases": floats(1)},
        {"bias_ids": ids(*range(1025)), "biases": floats(*range(100), *([0] * 925))},
        {"bias_ids": b"\1", "biases": floats(1)},
    ],
)
def test_biases_that_cannot_be_are_refused(columns: dict[str, bytes]) -> None:
    # field cases 80, 82
    received(pb.Sampling(top_p=1.0, bias_ids=ids(1, 2), biases=floats(-100, 100)))
    with pytest.raises(InvalidRequest) as caught:
        received(pb.Sampling(top_p=1.0, **columns))
    assert caught.value.field == "sampling.logit_bias"


def test_too_many_alternatives_of_the_prompt_are_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        received(pb.Sampling(top_p=1.0, prompt_logprobs=21))
    assert caught.value.field == "prompt_logprobs"


COLUMNS = LogprobColumns(
    chosen=array("f", [-0.5, -3.0]),
    top_ids=array("i", [1, 2, 3, 4]),
    top_logprobs=array("f", [-0.5, -1.0, -0.25, -2.0]),
)


@pytest.mark.parametrize("token_ids", [array("i", [7, 2**31 - 1]), [7, 2**31 - 1], (7, 2**31 - 1)])
def test_outputs_arrive_as_they_were_sent(token_ids: Sequence[int]) -> None:
    output = Output(
        request_id="r",
        token_ids=token_ids,
        cached_tokens=3,
        ending=Ending.LENGTH,
        logprobs=COLUMNS,
        prompt_logprobs=COLUMNS,
        pin=PinReceipt(pin_id="p", num_tokens=8, message="m"),
    )
    plain = Output(request_id="q", token_ids=())
    sent = outputs_to_proto([output, plain]).outputs.outputs
    assert sent[0].token_ids == b"\7\0\0\0\xff\xff\xff\x7f"
    assert (sent[0].pin_id, sent[0].pinned_tokens, sent[0].pin_error) == ("p", 8, "m")
    read = read_logprobs(sent[0].logprobs, num_tokens=2, num_top=2, vocab_size=5)
    assert read == COLUMNS
    assert sent[0].prompt_logprobs == sent[0].logprobs
    assert sent[0].ending == pb.ENDING_LENGTH
    assert [field.name for field, _ in sent[1].ListFields()] == ["request_id"]


def test_log_probabilities_without_alternatives_arrive_too() -> None:
    columns = replace(COLUMNS, top_ids=array("i"), top_logprobs=array("f"))
    (sent,) = outputs_to_proto(
        [Output(request_id="r", token_ids=(1, 2), logprobs=columns)]
    ).outputs.outputs
    assert read_logprobs(sent.logprobs, num_tokens=2, num_top=0, vocab_size=5) == columns


def test_what_no_token_could_have_is_a_number_in_front() -> None:
    # field case 104
    never = array("f", [-math.inf, -0.5])
    columns = LogprobColumns(chosen=never, top_ids=array("i", [1, 2]), top_logprobs=never)
    output = Output(request_id="r", token_ids=(1, 2), logprobs=columns)
    (sent,) = outputs_to_proto([output]).outputs.outputs
    read = read_logprobs(sent.logprobs, num_tokens=2, num_top=1, vocab_size=5)
    assert list(read.chosen) == list(read.top_logprobs) == [LEAST_LOGPROB, -0.5]
