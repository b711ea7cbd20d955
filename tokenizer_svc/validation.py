"""Checks at the door: every field of a request, each refusal naming its field.

Needs no model: what depends on one (vocabulary, context length) is in `fit`.  Renders and
tokenises nothing.  How tokens are drawn, conversations and the form of an output have a file each.
"""

import secrets
from array import array
from typing import Any

from protos.errors import InvalidRequest
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.field_checks import (
    check_count,
    check_ids,
    check_name,
    check_size,
    whole_number,
)
from tokenizer_svc.generation_request import GenerationRequest, Prompt, TextPrompt, TokenPrompt
from tokenizer_svc.validation_chat import read_chat
from tokenizer_svc.validation_constraint import read_constraint
from tokenizer_svc.validation_sampling import (
    MAX_LOGPROBS,
    read_max_tokens,
    read_sampling,
    read_stop_token_ids,
    read_stops,
)

MAX_REQUEST_ID_LENGTH = 128
MAX_CACHE_DOMAIN_LENGTH = 256
MAX_PROMPT_IDS = 1 << 20
MAX_TIMEOUT_MS = 30 * 24 * 3600 * 1000
MAX_PRIORITY = 100
MAX_WORKLOAD_LENGTH = 64
MAX_SESSION_LENGTH = 128
MAX_CHOICES = 16
MAX_STREAM_INTERVAL = 1024

AnyRequest = pb.GenerateRequest | pb.GenerateUnaryRequest


def read_request(request: AnyRequest, *, max_prompt_bytes: int) -> GenerationRequest:
    """The request as a checked value; draws an id and a seed where absent.

    Raises:
        InvalidRequest: names the first field that is wrong.
    """
    sampling = request.sampling
    n = whole_number(request, "n", least=1, most=MAX_CHOICES) or 1
    prompt_logprobs = whole_number(request, "prompt_logprobs", least=0, most=MAX_LOGPROBS)
    checked = GenerationRequest(
        request_id=_request_id(request),
        prompt=read_prompt(request, max_prompt_bytes=max_prompt_bytes),
        max_tokens=read_max_tokens(sampling, may_be_zero=prompt_logprobs is not None),
        sampling=read_sampling(
            sampling, prompt_logprobs=-1 if prompt_logprobs is None else prompt_logprobs
        ),
        priority=_priority(request),
        workload=_workload(request.workload),
        stop=read_stops(sampling.stop),
        stop_token_ids=read_stop_token_ids(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        timeout_ms=_timeout_ms(request),
        cache_domain=read_cache_domain(request.cache_domain),
        no_store=request.no_store,
        skip_special_tokens=(
            request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        ),
        n=n,
        best_of=_best_of(request, n),
        echo=request.echo,
        stream_interval=whole_number(request, "stream_interval", least=1, most=MAX_STREAM_INTERVAL)
        or 1,
        session=_session(request),
        constraint=read_constraint(request.constraint) if request.HasField("constraint") else None,
    )
    _check_together(checked)
    return checked


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
    check_size(text, field, max_prompt_bytes, setting="max_prompt_bytes")
    return TextPrompt(text=text, field=field)


def read_tokens(tokens: pb.TokenIds, field: str) -> TokenPrompt:
    """Token ids, at least one and none negative."""
    if not tokens.ids:
        raise InvalidRequest(f"{field}.ids", "empty; at least one token id is needed")
    check_count(tokens.ids, f"{field}.ids", "ids", most=MAX_PROMPT_IDS)
    ids = array("q", tokens.ids)
    check_ids(ids, f"{field}.ids")
    return TokenPrompt(ids=ids, field=field)


def read_cache_domain(domain: str) -> str:
    """The name of a cache domain; empty is the common one."""
    if len(domain) > MAX_CACHE_DOMAIN_LENGTH:
        raise InvalidRequest(
            "cache_domain", f"{len(domain)} characters; at most {MAX_CACHE_DOMAIN_LENGTH}"
        )
    return domain


def check_request_id(request_id: str) -> None:
    """Refuses ids that are empty, long, or have characters that do not print."""
    check_name(request_id, "request_id", most=MAX_REQUEST_ID_LENGTH)


def check_session(session: str) -> None:
    """Refuses names of sessions that are empty, long, or have characters that do not print."""
    check_name(session, "session", most=MAX_SESSION_LENGTH)


def _request_id(request: AnyRequest) -> str:
    if not request.HasField("request_id"):
        return secrets.token_hex(16)
    check_request_id(request.request_id)
    return request.request_id


def _priority(request: AnyRequest) -> int:
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


def _timeout_ms(request: AnyRequest) -> int | None:
    if not request.HasField("timeout_ms"):
        return None
    if not 1 <= request.timeout_ms <= MAX_TIMEOUT_MS:
        raise InvalidRequest("timeout_ms", f"{request.timeout_ms} is not in 1..{MAX_TIMEOUT_MS}")
    return request.timeout_ms


def _best_of(request: AnyRequest, n: int) -> int:
    best_of = whole_number(request, "best_of", least=1, most=MAX_CHOICES) or n
    if best_of < n:
        raise InvalidRequest("best_of", f"{best_of} is below n, {n}")
    return best_of


def _session(request: AnyRequest) -> str:
    if not request.HasField("session"):
        return ""
    check_session(request.session)
    return str(request.session)


def _check_together(request: GenerationRequest) -> None:
    """Refuses values that are sound and say nothing beside each other."""
    if request.session and request.no_store:
        raise InvalidRequest("session", "keeps what no_store forbids to store; leave one out")
    if request.max_tokens == 0 and request.best_of > 1:
        raise InvalidRequest(
            "sampling.max_tokens", f"0 leaves no choices, and there are to be {request.best_of}"
        )
