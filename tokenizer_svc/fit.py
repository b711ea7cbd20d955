"""Fits a checked request to the model that serves it: vocabulary, context length, stop rules."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace

from protos.errors import InvalidRequest
from radixd.chassis.grpc_server import MAX_MESSAGE_BYTES
from tokenizer_svc.field_checks import check_ids, check_keys
from tokenizer_svc.generation_request import GenerationRequest, Prompt, TokenPrompt
from tokenizer_svc.live_request import Submission
from tokenizer_svc.served_model import ServedModel
from tokenizer_svc.text_output import StopRules

MAX_SCORE_BYTES = MAX_MESSAGE_BYTES - (6 << 20)
"""Of a reply's log probabilities of the prompt: room for its text, an echo of the prompt included.
Over HTTP they take five times as much."""


class ContextExceeded(InvalidRequest):
    """The prompt is longer than the model can read, whatever the pool holds."""


def checked_ids(prompt: Prompt, ids: Sequence[int], model: ServedModel) -> "array[int]":
    """The prompt's ids as the scheduler takes them.

    Raises:
        ContextExceeded: too many to leave room for one token.
        InvalidRequest: none, or outside the vocabulary.
    """
    if not ids:
        raise InvalidRequest(prompt.field, "empty: it has no tokens")
    if len(ids) >= model.max_length:
        raise ContextExceeded(
            prompt.field,
            f"{len(ids)} tokens; {model.max_length} is the limit for prompt and output "
            f"together, so a prompt may have at most {model.max_length - 1}",
        )
    # Ids from a tokenizer are checked, too: it may belong to another model than the worker's.
    where = f"{prompt.field}.ids" if isinstance(prompt, TokenPrompt) else prompt.field
    check_ids(ids, where, vocab_size=model.vocab_size)
    return array("I", ids)


def fit_to_model(
    request: GenerationRequest,
    prompt_ids: "array[int]",
    model: ServedModel,
    rules: StopRules,
    *,
    deadline_s: float | None,
) -> Submission:
    """The request as the scheduler takes it.

    max_tokens is cut to what the context leaves; top_k and log probabilities to the vocabulary,
    where they mean all.

    Raises:
        InvalidRequest: a stop token or a biased one outside the vocabulary, min_tokens beyond
            the context, or more log probabilities of the prompt than a reply holds.
    """
    check_ids(request.stop_token_ids, "sampling.stop_token_ids", vocab_size=model.vocab_size)
    biased = [token_id for token_id, _ in request.sampling.logit_bias]
    check_keys(biased, "sampling.logit_bias", vocab_size=model.vocab_size)
    room = model.max_length - len(prompt_ids)
    sampling = request.sampling
    if sampling.min_tokens > room:
        raise InvalidRequest(
            "sampling.min_tokens",
            f"{sampling.min_tokens}; a prompt of {len(prompt_ids)} tokens leaves room for {room}",
        )
    _check_scores(len(prompt_ids), sampling.prompt_logprobs, model.vocab_size)
    return Submission(
        prompt_ids=prompt_ids,
        sampling=replace(
            sampling,
            top_k=min(sampling.top_k, model.vocab_size),
            logprobs=min(sampling.logprobs, model.vocab_size),
            prompt_logprobs=min(sampling.prompt_logprobs, model.vocab_size),
        ),
        max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
        stop_token_ids=tuple(dict.fromkeys((*request.stop_token_ids, *rules.spelled_ids))),
        ignore_eos=request.ignore_eos,
        cache_domain=request.cache_domain,
        no_store=request.no_store,
        deadline_s=deadline_s,
        tenant=request.tenant,
        priority=request.priority,
        workload=request.workload,
        session=request.session,
    )


def _check_scores(num_tokens: int, num_top: int, vocab_size: int) -> None:
    """They come in one message, which no client could take."""
    num_bytes = num_tokens * _row_bytes(min(num_top, vocab_size), vocab_size)
    if num_top >= 0 and num_bytes > MAX_SCORE_BYTES:
        raise InvalidRequest(
            "prompt_logprobs",
            f"{num_top} alternatives for each of {num_tokens} prompt tokens take up to {num_bytes} "
            f"bytes in a reply; at most {MAX_SCORE_BYTES}",
        )


def _row_bytes(num_top: int, vocab_size: int) -> int:
    """The most that one token's TokenLogprobs takes: fields of a byte for their number, ids of
    seven bits a byte, numbers of four bytes."""
    pair = 1 + -(-vocab_size.bit_length() // 7) + 1 + 4
    row = pair + num_top * (2 + pair)
    return 1 + -(-row.bit_length() // 7) + row


def stop_rules(
    request: GenerationRequest, special_ids: Mapping[str, int], model: ServedModel
) -> StopRules:
    """What ends this output; a stop text that spells a control token means that token, too."""
    spelled = {special_ids[text]: text for text in request.stop if text in special_ids}
    eos = frozenset() if request.ignore_eos else model.eos_token_ids
    return StopRules(
        texts=request.stop,
        min_tokens=request.sampling.min_tokens,
        token_ids=eos.union(request.stop_token_ids, spelled),
        spelled_ids=spelled,
    )
