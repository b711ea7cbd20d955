"""The codec of one new row of a plan; a part of `protos.wire`."""

from __future__ import annotations

import math
from array import array

from protos.columns import all_natural, pack_floats, pack_ids, unpack_floats, unpack_ids
from protos.errors import WireError
from protos.plan import NewRow, SamplingParams
from protos.radixd.worker.v1 import worker_pb2 as pb


def encode_new_row(new: NewRow, body: pb.NewRow) -> None:
    """Writes a row into its message."""
    sampling = new.sampling
    body.row = new.row
    body.prefix_slots = pack_ids(new.prefix_slots)
    body.temperature = sampling.temperature
    body.top_k = sampling.top_k
    body.top_p = sampling.top_p
    body.min_p = sampling.min_p
    body.seed = sampling.seed
    body.min_tokens = sampling.min_tokens
    if sampling.repetition_penalty != 1.0:
        # 1 travels as absent: older plans have none, and 0 is no penalty anybody may ask for.
        body.repetition_penalty = sampling.repetition_penalty
    body.presence_penalty = sampling.presence_penalty
    body.frequency_penalty = sampling.frequency_penalty
    body.logprobs_plus_one = sampling.logprobs + 1
    body.bias_ids = pack_ids(array("i", [token_id for token_id, _ in sampling.logit_bias]))
    body.biases = pack_floats(array("f", [bias for _, bias in sampling.logit_bias]))
    body.prompt_logprobs_plus_one = sampling.prompt_logprobs + 1
    body.grammar = sampling.grammar
    body.num_prompt = new.num_prompt
    body.context_ids = pack_ids(new.context_ids)
    body.suppressed_ids = pack_ids(array("i", new.suppressed_ids))


def unpack_biases(ids: bytes, biases: bytes) -> tuple[tuple[int, float], ...]:
    """`SamplingParams.logit_bias` from its two columns.

    Raises:
        WireError: they differ in length, ids do not ascend, or a bias is no finite number.
    """
    if not ids and not biases:
        return ()
    token_ids, values = unpack_ids(ids), unpack_floats(biases)
    if len(token_ids) != len(values):
        raise WireError(f"{len(token_ids)} biased ids, {len(values)} biases")
    if token_ids[0] < 0 or any(map(int.__ge__, token_ids, token_ids[1:])):
        raise WireError("biased ids do not ascend, or one is negative")
    if not all(map(math.isfinite, values)):
        raise WireError("a bias is no finite number")
    return tuple(zip(token_ids, values, strict=True))


def decode_new_row(body: pb.NewRow) -> NewRow:
    """The row of a message.

    Raises:
        WireError: it cannot be one.
    """
    if not all(map(all_natural, (body.prefix_slots, body.context_ids, body.suppressed_ids))):
        raise WireError(f"row {body.row}: negative slot or token id")
    new = NewRow(
        row=body.row,
        prefix_slots=unpack_ids(body.prefix_slots),
        sampling=SamplingParams(
            temperature=body.temperature,
            top_k=body.top_k,
            top_p=body.top_p,
            min_p=body.min_p,
            seed=body.seed,
            min_tokens=body.min_tokens,
            repetition_penalty=body.repetition_penalty or 1.0,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logprobs=body.logprobs_plus_one - 1,
            logit_bias=unpack_biases(body.bias_ids, body.biases),
            prompt_logprobs=body.prompt_logprobs_plus_one - 1,
            grammar=body.grammar,
        ),
        num_prompt=body.num_prompt,
        context_ids=unpack_ids(body.context_ids),
        suppressed_ids=tuple(unpack_ids(body.suppressed_ids)),
    )
    _check_context(new)
    return new


def _check_context(new: NewRow) -> None:
    """A row has what its sampling needs to know, and nothing else."""
    needs_context = new.sampling.needs_context
    if needs_context != bool(new.context_ids):
        raise WireError(
            f"row {new.row}: context_ids are sent with penalties or a grammar, and only then"
        )
    if (needs_context or new.sampling.min_tokens) and not new.num_prompt:
        raise WireError(f"row {new.row}: num_prompt is missing")
    if needs_context and new.num_prompt > len(new.context_ids):
        raise WireError(f"row {new.row}: num_prompt is beyond context_ids")
    if new.suppressed_ids and not new.sampling.min_tokens:
        raise WireError(f"row {new.row}: suppressed_ids without min_tokens")
