"""What the front knows of the model behind the scheduler."""

from dataclasses import dataclass

from protos.radixd.scheduler.v1 import scheduler_pb2 as pb


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
        max_length=model.max_length,
        eos_token_ids=frozenset(model.eos_token_ids),
    )
