"""What the front knows of the model behind the scheduler, and whether it is its own."""

from dataclasses import dataclass

from protos.plan import MAX_CONTEXT_TOKENS
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from tokenizer_svc.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Limits that requests must fit in."""

    model_id: str
    vocab_size: int
    max_length: int
    """Longest prompt plus output, in tokens."""
    eos_token_ids: frozenset[int]


def served_model(model: pb.Model) -> ServedModel:
    """The model as the scheduler announced it."""
    return ServedModel(
        model_id=model.model_id,
        vocab_size=model.vocab_size,
        # A longer context would make a request too large for its way to the scheduler.
        max_length=min(model.max_length, MAX_CONTEXT_TOKENS),
        eos_token_ids=frozenset(model.eos_token_ids),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnVocabulary:
    """The vocabulary of the model this front was started with."""

    model_id: str
    num_ids: int
    num_without_last_control: int
    """The same without the control tokens at its end, which some models have no weights for."""


def own_vocabulary(model_id: str, tokenizer: Tokenizer) -> OwnVocabulary:
    """The vocabulary of a tokenizer, under its model's name."""
    special = frozenset(tokenizer.special_ids.values())
    num_ids = num_left = tokenizer.num_ids
    while num_left - 1 in special:
        num_left -= 1
    return OwnVocabulary(model_id=model_id, num_ids=num_ids, num_without_last_control=num_left)


def mismatch(own: OwnVocabulary, model: ServedModel) -> str | None:
    """Why the served model cannot be the front's own, naming both; None: it can.

    Goes by what no name can hide: token ids the model has no weights for, or a model all of whose
    ends of sequence are no tokens here.  A larger vocabulary proves nothing, as many are padded.
    """
    eos = model.eos_token_ids
    lacks_ids = own.num_without_last_control > model.vocab_size
    never_ends = bool(eos) and min(eos) >= own.num_ids
    if not (lacks_ids or never_ends):
        return None
    ends = ", ".join(map(str, sorted(eos))) or "none"
    return (
        f"the front reads text for {own.model_id} ({own.num_ids} token ids), the worker serves "
        f"{model.model_id} (vocabulary {model.vocab_size}, end of sequence {ends}); "
        "start both with the same --model"
    )
