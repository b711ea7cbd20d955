"""Checks at the door: how tokens are drawn and when they end."""

import secrets
from collections.abc import Mapping, Sequence

from protos.errors import InvalidRequest
from protos.plan import SamplingParams
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.field_checks import check_count, check_ids, check_keys, number, whole_number

MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_TEMPERATURE = 100.0
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_LOGIT_BIAS = 100.0
MAX_INT32 = (1 << 31) - 1
MAX_INT63 = (1 << 63) - 1

_WITHIN = "sampling."


def read_sampling(sampling: pb.SamplingParams, *, prompt_logprobs: int) -> SamplingParams:
    """How the request samples, with a seed drawn where it has none.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    seed = whole_number(sampling, "seed", least=0, most=MAX_INT63, within=_WITHIN)
    top_k = whole_number(sampling, "top_k", least=0, most=MAX_INT63, within=_WITHIN)
    logprobs = whole_number(sampling, "logprobs", least=0, most=MAX_LOGPROBS, within=_WITHIN)
    return SamplingParams(
        temperature=_number(sampling, "temperature", 0.0, most=MAX_TEMPERATURE),
        top_k=top_k or 0,
        top_p=_number(sampling, "top_p", 1.0, most=1.0, above_least=True),
        min_p=_number(sampling, "min_p", 0.0, most=1.0),
        # Clients in JavaScript keep a whole number in 53 bits, and fail on a longer one.
        seed=secrets.randbits(53) if seed is None else seed,
        min_tokens=_min_tokens(sampling),
        repetition_penalty=_number(
            sampling, "repetition_penalty", 1.0, most=10.0, above_least=True
        ),
        presence_penalty=_number(sampling, "presence_penalty", 0.0, least=-2.0, most=2.0),
        frequency_penalty=_number(sampling, "frequency_penalty", 0.0, least=-2.0, most=2.0),
        logprobs=-1 if logprobs is None else logprobs,
        logit_bias=_logit_bias(sampling.logit_bias),
        prompt_logprobs=prompt_logprobs,
    )


def read_max_tokens(sampling: pb.SamplingParams, *, may_be_zero: bool) -> int | None:
    """Most tokens of an output; None: absent.  None at all only where the prompt is the result.

    Raises:
        InvalidRequest: too few or too many.
    """
    found = whole_number(sampling, "max_tokens", least=0, most=MAX_INT32, within=_WITHIN)
    if found == 0 and not may_be_zero:
        raise InvalidRequest(
            "sampling.max_tokens", "0 is below 1; only with prompt_logprobs there is a result"
        )
    return found


def read_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """The texts that end an output."""
    check_count(stops, "sampling.stop", "texts", most=MAX_STOPS)
    for i, stop in enumerate(stops):
        if not stop:
            raise InvalidRequest(f"sampling.stop[{i}]", "empty")
        if len(stop.encode()) > MAX_STOP_BYTES:
            raise InvalidRequest(f"sampling.stop[{i}]", f"longer than {MAX_STOP_BYTES} bytes")
    return tuple(stops)


def read_stop_token_ids(ids: Sequence[int]) -> tuple[int, ...]:
    """The ids that end an output; their vocabulary is not known here."""
    check_count(ids, "sampling.stop_token_ids", "ids", most=MAX_STOPS)
    check_ids(ids, "sampling.stop_token_ids")
    return tuple(ids)


def _number(
    sampling: pb.SamplingParams,
    name: str,
    default: float,
    *,
    least: float = 0.0,
    most: float,
    above_least: bool = False,
) -> float:
    return number(
        sampling, name, default, within=_WITHIN, least=least, most=most, above_least=above_least
    )


def _min_tokens(sampling: pb.SamplingParams) -> int:
    min_tokens = whole_number(sampling, "min_tokens", least=0, most=MAX_INT32, within=_WITHIN) or 0
    if sampling.HasField("max_tokens") and min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            "sampling.min_tokens", f"{min_tokens} is above max_tokens, {sampling.max_tokens}"
        )
    return min_tokens


def _logit_bias(biases: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    if len(biases) > MAX_LOGIT_BIASES:
        raise InvalidRequest(
            "sampling.logit_bias", f"{len(biases)} token ids; at most {MAX_LOGIT_BIASES}"
        )
    check_keys(biases, "sampling.logit_bias")
    for token_id, bias in biases.items():
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:  # as NaN is not, either
            raise InvalidRequest(
                "sampling.logit_bias",
                f"{bias:g} of token id {token_id} is not in "
                f"[-{MAX_LOGIT_BIAS:g}, {MAX_LOGIT_BIAS:g}]",
            )
    return tuple(sorted(biases.items()))
