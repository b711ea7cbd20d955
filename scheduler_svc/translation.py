"""Messages of the front's stream to values of the core and back.  Decides nothing.

What comes in is checked here for shape and range only; the core, which knows vocabulary, pool and
queue, judges the rest.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

from protos.errors import InvalidRequest, WireError
from protos.new_row_wire import unpack_biases
from protos.plan import Hello, LogprobColumns, SamplingParams
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.wire import pack_floats, pack_ids, unpack_ids
from scheduler_svc.core.messages import Ending, Output, PinLevel, Submission, TreeNodeView

MAX_REQUEST_ID_CHARACTERS = 128
MAX_STOP_TOKEN_IDS = 64
MAX_CACHE_DOMAIN_CHARACTERS = 256
MAX_TENANT_CHARACTERS = 128
MAX_WORKLOAD_CHARACTERS = 64
MAX_SESSION_CHARACTERS = 128
MOST_PRIORITY = 100
MAX_PIN_TTL_MS = 366 * 24 * 3600 * 1000
MAX_REPETITION_PENALTY = 10.0
MAX_PENALTY = 2.0
MAX_LOGPROBS = 20
MAX_GRAMMAR_BYTES = 4 << 20
"""Larger than any constraint of a client: what it becomes is spelled out."""
MAX_LOGIT_BIAS = 100.0
MAX_LOGIT_BIASES = 1024
_MAX_INT32 = 2**31 - 1
_MAX_SEED = 2**63 - 1
_NS_PER_MS = 1_000_000


def submission_from_proto(submit: pb.Submit, now_ns: int) -> Submission:
    """The request as the core takes it; its deadline counts from `now_ns`.

    Raises:
        InvalidRequest: names the field of the Submit.
    """
    if not 1 <= len(submit.request_id) <= MAX_REQUEST_ID_CHARACTERS:
        raise InvalidRequest("request_id", f"takes 1 to {MAX_REQUEST_ID_CHARACTERS} characters")
    _require("max_tokens", submit.max_tokens, 0, _MAX_INT32)
    _require("stop_token_ids", len(submit.stop_token_ids), 0, MAX_STOP_TOKEN_IDS)
    _require("cache_domain", len(submit.cache_domain), 0, MAX_CACHE_DOMAIN_CHARACTERS)
    _require("tenant", len(submit.tenant), 0, MAX_TENANT_CHARACTERS)
    _require("priority", submit.priority, -MOST_PRIORITY, MOST_PRIORITY)
    _require("workload", len(submit.workload), 0, MAX_WORKLOAD_CHARACTERS)
    _require("session", len(submit.session), 0, MAX_SESSION_CHARACTERS)
    _require("client_request_id", len(submit.client_request_id), 0, MAX_REQUEST_ID_CHARACTERS)
    return Submission(
        request_id=submit.request_id,
        prompt_ids=_ids("prompt_ids", submit.prompt_ids),
        sampling=_sampling(submit),
        max_tokens=submit.max_tokens,
        stop_token_ids=tuple(submit.stop_token_ids),
        ignore_eos=submit.ignore_eos,
        cache_domain=submit.cache_domain,
        no_store=submit.no_store,
        deadline_ns=now_ns + submit.timeout_ms * _NS_PER_MS if submit.timeout_ms else None,
        preheat=submit.preheat,
        resume_output_ids=(
            _ids("resume_output_ids", submit.resume_output_ids)
            if submit.resume_output_ids
            else None
        ),
        tenant=submit.tenant,
        priority=submit.priority,
        workload=submit.workload,
        client_request_id=submit.client_request_id,
        session=submit.session,
        pin=_pin(submit),
        pin_ttl_ns=submit.pin_ttl_ms * _NS_PER_MS,
    )


def rejection(request_id: str, error: InvalidRequest) -> Output:
    """The answer to a Submit that is wrong in itself."""
    return Output(
        request_id=request_id,
        token_ids=array("i"),
        ending=Ending.REJECTED_INVALID,
        message=error.message,
        field=error.field,
    )


def outputs_to_proto(outputs: Iterable[Output]) -> pb.AttachResponse:
    """One message that carries all these outputs, in order."""
    response = pb.AttachResponse()
    add = response.outputs.outputs.add
    for output in outputs:
        ids = output.token_ids
        message = add(
            request_id=output.request_id,
            token_ids=pack_ids(ids if isinstance(ids, array) else array("i", ids)),
            ending=pb.ENDING_UNSPECIFIED if output.ending is None else int(output.ending),
            message=output.message,
            field=output.field,
            cached_tokens=output.cached_tokens,
            computed_tokens=output.computed_tokens,
        )
        if output.logprobs is not None:
            message.logprobs.CopyFrom(_columns(output.logprobs))
        if output.prompt_logprobs is not None:
            message.prompt_logprobs.CopyFrom(_columns(output.prompt_logprobs))
        if output.pin is not None:
            message.pin_id = output.pin.pin_id
            message.pinned_tokens = output.pin.num_tokens
            message.pin_error = output.pin.message
    return response


def _columns(columns: LogprobColumns) -> pb.LogprobColumns:
    return pb.LogprobColumns(
        chosen=pack_floats(columns.chosen),
        top_ids=pack_ids(columns.top_ids),
        top_logprobs=pack_floats(columns.top_logprobs),
    )


def worker_state_to_proto(hello: Hello | None) -> pb.WorkerState:
    """Who computes at present; None: nobody."""
    if hello is None:
        return pb.WorkerState(connected=False)
    return pb.WorkerState(connected=True, model=model_to_proto(hello))


def model_to_proto(hello: Hello) -> pb.Model:
    """What the fronts need to know of a worker."""
    return pb.Model(
        model_id=hello.model_id,
        vocab_size=hello.vocab_size,
        max_length=hello.max_length,
        eos_token_ids=hello.eos_token_ids,
        num_slots=hello.num_slots,
        device=hello.device,
        kv_dtype=hello.kv_dtype,
        kind=hello.kind,
        weights=hello.weights,
    )


def tree_node_to_proto(node: TreeNodeView) -> pb.TreeNode:
    """One node of a dumped tree."""
    return pb.TreeNode(
        parent=node.parent,
        token_ids=pack_ids(node.token_ids),
        locked=node.locked,
        hits=node.hits,
        cache_domain=node.cache_domain,
        tenant=node.tenant,
    )


def _pin(submit: pb.Submit) -> PinLevel:
    try:
        level = PinLevel(submit.pin) if submit.pin else PinLevel.NONE
    except ValueError:
        raise InvalidRequest("pin", f"{submit.pin} is no level") from None
    if level is PinLevel.NONE:
        _require("pin_ttl_ms", submit.pin_ttl_ms, 0, 0)
    elif not submit.preheat:
        raise InvalidRequest("pin", "only a preheat can pin its prefix")
    _require("pin_ttl_ms", submit.pin_ttl_ms, 0, MAX_PIN_TTL_MS)
    return level


def _ids(field: str, column: bytes) -> array[int]:
    try:
        ids = unpack_ids(column)
    except WireError as error:
        raise InvalidRequest(field, str(error)) from None
    # Read as signed, an id of 2**31 or more is negative; no vocabulary is that large.
    if ids and min(ids) < 0:
        raise InvalidRequest(field, f"token id {min(ids) & 0xFFFFFFFF} is outside any vocabulary")
    return ids


def _sampling(submit: pb.Submit) -> SamplingParams:
    if not submit.HasField("sampling"):
        return SamplingParams()
    given = submit.sampling
    _require("sampling.temperature", given.temperature, 0.0, math.inf)
    _require("sampling.top_k", given.top_k, 0, _MAX_INT32)
    _require("sampling.top_p", given.top_p, 0.0, 1.0)
    _require("sampling.min_p", given.min_p, 0.0, 1.0)
    _require("sampling.seed", given.seed, 0, _MAX_SEED)
    if given.top_p == 0.0:
        raise InvalidRequest("sampling.top_p", "is 0; 1 keeps all tokens")
    _require("sampling.min_tokens", given.min_tokens, 0, submit.max_tokens)
    repetition_penalty = given.repetition_penalty if given.HasField("repetition_penalty") else 1.0
    _require("sampling.repetition_penalty", repetition_penalty, 0.0, MAX_REPETITION_PENALTY)
    if repetition_penalty == 0.0:
        raise InvalidRequest("sampling.repetition_penalty", "is 0; 1 leaves logits as they are")
    for name in ("presence_penalty", "frequency_penalty"):
        _require(f"sampling.{name}", getattr(given, name), -MAX_PENALTY, MAX_PENALTY)
    logprobs = given.logprobs if given.HasField("logprobs") else -1
    _require("sampling.logprobs", logprobs, -1, MAX_LOGPROBS)
    prompt_logprobs = given.prompt_logprobs if given.HasField("prompt_logprobs") else -1
    _require("prompt_logprobs", prompt_logprobs, -1, MAX_LOGPROBS)
    if len(given.grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise InvalidRequest("constraint", f"its grammar has more than {MAX_GRAMMAR_BYTES} bytes")
    return SamplingParams(
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        min_p=given.min_p,
        seed=given.seed,
        min_tokens=given.min_tokens,
        repetition_penalty=repetition_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        logprobs=logprobs,
        logit_bias=_logit_bias(given),
        prompt_logprobs=prompt_logprobs,
        grammar=given.grammar,
    )


def _logit_bias(given: pb.Sampling) -> tuple[tuple[int, float], ...]:
    try:
        biases = unpack_biases(given.bias_ids, given.biases)
    except WireError as error:
        raise InvalidRequest("sampling.logit_bias", str(error)) from None
    _require("sampling.logit_bias", len(biases), 0, MAX_LOGIT_BIASES)
    for _, bias in biases:
        _require("sampling.logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    return biases


def _require(field: str, value: float, low: float, high: float) -> None:
    # A NaN fails both comparisons.
    if not (low <= value <= high) or math.isinf(value):
        raise InvalidRequest(field, f"{value} is not in {low}..{high}")
