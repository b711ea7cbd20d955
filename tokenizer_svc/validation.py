"""Checks at the door: every field of a request, each refusal naming its field.

Needs no model: what depends on one (vocabulary, context length) is in `fit`.  Renders and
tokenises nothing.
"""

import math
import secrets
from array import array
from collections.abc import Sequence
from typing import Any

from protos.errors import InvalidRequest
from protos.plan import SamplingParams
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.generation_request import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from tokenizer_svc.tokenizers.tokenizer import ChatTurn

MAX_REQUEST_ID_LENGTH = 128
MAX_CACHE_DOMAIN_LENGTH = 256
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_MESSAGES = 4096
MAX_PROMPT_IDS = 1 << 20
MAX_TIMEOUT_MS = 30 * 24 * 3600 * 1000
MAX_TEMPERATURE = 100.0
MAX_INT32 = (1 << 31) - 1
MAX_LOGPROBS = 20
MAX_PRIORITY = 100
MAX_WORKLOAD_LENGTH = 64

_ROLES = {pb.ROLE_SYSTEM: "system", pb.ROLE_USER: "user", pb.ROLE_ASSISTANT: "assistant"}


def read_request(
    request: pb.GenerateRequest | pb.GenerateUnaryRequest, *, max_prompt_bytes: int
) -> GenerationRequest:
    """The request as a checked value; draws an id and a seed where absent.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    sampling = request.sampling
    return GenerationRequest(
        request_id=_request_id(request),
        prompt=read_prompt(request, max_prompt_bytes=max_prompt_bytes),
        sampling=_sampling_params(sampling),
        priority=_priority(request),
        workload=_workload(request.workload),
        max_tokens=_optional_int(sampling, "max_tokens", 1, MAX_INT32),
        stop=_stops(sampling.stop),
        stop_token_ids=_stop_token_ids(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        timeout_ms=_timeout_ms(request),
        cache_domain=read_cache_domain(request.cache_domain),
        no_store=request.no_store,
        skip_special_tokens=(
            request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        ),
    )


def read_prompt(request: Any, *, max_prompt_bytes: int) -> Prompt:
    """The prompt of any message with a `prompt` oneof.

    Raises:
        InvalidRequest: absent, empty, too long, or with a bad message; names the field.
    """
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return read_text(request.text, "text", max_prompt_bytes=max_prompt_bytes)
    if kind == "chat":
        return read_chat(request.chat, "chat", max_prompt_bytes=max_prompt_bytes)
    if kind == "tokens":
        return read_tokens(request.tokens, "tokens")
    raise InvalidRequest("prompt", "one of text, chat and tokens is needed")


def read_text(text: str, field: str, *, max_prompt_bytes: int) -> TextPrompt:
    """Plain text of at least one character."""
    if not text:
        raise InvalidRequest(field, "empty; at least one character is needed")
    _check_size(text, field, max_prompt_bytes)
    return TextPrompt(text=text, field=field)


def read_chat(chat: pb.ChatPrompt, field: str, *, max_prompt_bytes: int) -> ChatPrompt:
    """A conversation of at least one message."""
    if not chat.messages:
        raise InvalidRequest(f"{field}.messages", "empty; at least one message is needed")
    if len(chat.messages) > MAX_MESSAGES:
        raise InvalidRequest(
            f"{field}.messages", f"{len(chat.messages)} messages; at most {MAX_MESSAGES}"
        )
    turns = []
    room = max_prompt_bytes
    for i, message in enumerate(chat.messages):
        where = f"{field}.messages[{i}]"
        if message.role not in _ROLES:
            raise InvalidRequest(
                f"{where}.role", f"{message.role} is not a role; system is 1, user 2, assistant 3"
            )
        room -= _check_size(message.content, f"{where}.content", room)
        turns.append(ChatTurn(role=_ROLES[message.role], content=message.content))
    return ChatPrompt(turns=tuple(turns), field=field)


def read_tokens(tokens: pb.TokenIds, field: str) -> TokenPrompt:
    """Token ids, at least one and none negative."""
    if not tokens.ids:
        raise InvalidRequest(f"{field}.ids", "empty; at least one token id is needed")
    if len(tokens.ids) > MAX_PROMPT_IDS:
        raise InvalidRequest(f"{field}.ids", f"{len(tokens.ids)} ids; at most {MAX_PROMPT_IDS}")
    ids = array("q", tokens.ids)
    check_ids(ids, f"{field}.ids")
    return TokenPrompt(ids=ids, field=field)


def check_ids(ids: Sequence[int], field: str, *, vocab_size: int | None = None) -> None:
    """Refuses ids outside [0, vocab_size); None: only negative ones."""
    if min(ids, default=0) >= 0 and (vocab_size is None or max(ids, default=0) < vocab_size):
        return
    for i, token_id in enumerate(ids):
        if token_id < 0:
            raise InvalidRequest(f"{field}[{i}]", f"token id {token_id} is negative")
        if vocab_size is not None and token_id >= vocab_size:
            raise InvalidRequest(
                f"{field}[{i}]", f"token id {token_id} is not below the vocabulary of {vocab_size}"
            )


def read_cache_domain(domain: str) -> str:
    """The name of a cache domain; empty is the common one."""
    if len(domain) > MAX_CACHE_DOMAIN_LENGTH:
        raise InvalidRequest(
            "cache_domain", f"{len(domain)} characters; at most {MAX_CACHE_DOMAIN_LENGTH}"
        )
    return domain


def check_request_id(request_id: str) -> None:
    """Refuses ids that are empty, long, or have characters that do not print."""
    if not 1 <= len(request_id) <= MAX_REQUEST_ID_LENGTH:
        raise InvalidRequest(
            "request_id", f"{len(request_id)} characters; 1 to {MAX_REQUEST_ID_LENGTH} are allowed"
        )
    if not request_id.isprintable():
        raise InvalidRequest("request_id", "it has a character that does not print")


def _request_id(request: pb.GenerateRequest | pb.GenerateUnaryRequest) -> str:
    if not request.HasField("request_id"):
        return secrets.token_hex(16)
    check_request_id(request.request_id)
    return request.request_id


def _check_size(text: str, field: str, max_bytes: int) -> int:
    # A character is at most four bytes: the exact size matters only between these bounds.
    if len(text) <= max_bytes:
        size = len(text.encode())
        if size <= max_bytes:
            return size
    raise InvalidRequest(field, f"longer than the {max_bytes} bytes a prompt may have here")


def _sampling_params(sampling: pb.SamplingParams) -> SamplingParams:
    seed = _optional_int(sampling, "seed", 0, (1 << 63) - 1)
    logprobs = _optional_int(sampling, "logprobs", 0, MAX_LOGPROBS)
    return SamplingParams(
        temperature=_number(sampling, "temperature", 0.0, most=MAX_TEMPERATURE),
        top_k=_optional_int(sampling, "top_k", 0, (1 << 63) - 1) or 0,
        top_p=_number(sampling, "top_p", 1.0, most=1.0, above_least=True),
        min_p=_number(sampling, "min_p", 0.0, most=1.0),
        seed=secrets.randbits(63) if seed is None else seed,
        min_tokens=_min_tokens(sampling),
        repetition_penalty=_number(
            sampling, "repetition_penalty", 1.0, most=10.0, above_least=True
        ),
        presence_penalty=_number(sampling, "presence_penalty", 0.0, least=-2.0, most=2.0),
        frequency_penalty=_number(sampling, "frequency_penalty", 0.0, least=-2.0, most=2.0),
        logprobs=-1 if logprobs is None else logprobs,
    )


def _min_tokens(sampling: pb.SamplingParams) -> int:
    max_tokens = _optional_int(sampling, "max_tokens", 1, MAX_INT32)
    min_tokens = _optional_int(sampling, "min_tokens", 0, MAX_INT32) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest(
            "sampling.min_tokens", f"{min_tokens} is above max_tokens, {max_tokens}"
        )
    return min_tokens


def _number(
    sampling: pb.SamplingParams,
    name: str,
    default: float,
    *,
    least: float = 0.0,
    most: float,
    above_least: bool = False,
) -> float:
    if not sampling.HasField(name):
        return default
    value: float = getattr(sampling, name)
    low_enough = value <= most
    high_enough = value > least if above_least else value >= least
    if math.isfinite(value) and low_enough and high_enough:
        return value
    interval = f"{'(' if above_least else '['}{least:g}, {most:g}]"
    raise InvalidRequest(f"sampling.{name}", f"{value:g} is not in {interval}")


def _optional_int(sampling: pb.SamplingParams, name: str, least: int, most: int) -> int | None:
    if not sampling.HasField(name):
        return None
    value: int = getattr(sampling, name)
    if value < least:
        raise InvalidRequest(f"sampling.{name}", f"{value} is below {least}")
    if value > most:
        raise InvalidRequest(f"sampling.{name}", f"{value} is above {most}")
    return value


def _stops(stops: Sequence[str]) -> tuple[str, ...]:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest("sampling.stop", f"{len(stops)} texts; at most {MAX_STOPS}")
    for i, stop in enumerate(stops):
        if not stop:
            raise InvalidRequest(f"sampling.stop[{i}]", "empty")
        if len(stop.encode()) > MAX_STOP_BYTES:
            raise InvalidRequest(f"sampling.stop[{i}]", f"longer than {MAX_STOP_BYTES} bytes")
    return tuple(stops)


def _stop_token_ids(ids: Sequence[int]) -> tuple[int, ...]:
    if len(ids) > MAX_STOPS:
        raise InvalidRequest("sampling.stop_token_ids", f"{len(ids)} ids; at most {MAX_STOPS}")
    check_ids(ids, "sampling.stop_token_ids")
    return tuple(ids)


def _priority(request: pb.GenerateRequest | pb.GenerateUnaryRequest) -> int:
    if not -MAX_PRIORITY <= request.priority <= MAX_PRIORITY:
        raise InvalidRequest(
            "priority", f"{request.priority} is not in -{MAX_PRIORITY}..{MAX_PRIORITY}"
        )
    return request.priority


def _workload(workload: str) -> str:
    if len(workload) > MAX_WORKLOAD_LENGTH:
        raise InvalidRequest(
            "workload", f"{len(workload)} characters; at most {MAX_WORKLOAD_LENGTH}"
        )
    if not workload.isprintable():
        raise InvalidRequest("workload", "it has a character that does not print")
    return workload


def _timeout_ms(request: pb.GenerateRequest | pb.GenerateUnaryRequest) -> int | None:
    if not request.HasField("timeout_ms"):
        return None
    if not 1 <= request.timeout_ms <= MAX_TIMEOUT_MS:
        raise InvalidRequest("timeout_ms", f"{request.timeout_ms} is not in 1..{MAX_TIMEOUT_MS}")
    return request.timeout_ms
