from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ("wire_version", "epoch", "hello", "ready", "plan", "result", "fault", "ping")
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    wire_version: int
    epoch: int
    hello: Hello
    ready: Ready
    plan: BatchPlan
    result: BatchResult
    fault: Fault
    ping: Ping
    def __init__(self, wire_version: _Optional[int] = ..., epoch: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., plan: _Optional[_Union[BatchPlan, _Mapping]] = ..., result: _Optional[_Union[BatchResult, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("instance_id", "model_id", "model_hash", "vocab_size", "eos_token_ids", "num_slots", "max_rows", "max_length", "kv_dtype", "device", "kind", "kv_bytes_per_slot", "weights", "least_stem_tokens")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_SLOT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    LEAST_STEM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    instance_id: int
    model_id: str
    model_hash: str
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_slots: int
    max_rows: int
    max_length: int
    kv_dtype: str
    device: str
    kind: str
    kv_bytes_per_slot: int
    weights: str
    least_stem_tokens: int
    def __init__(self, instance_id: _Optional[int] = ..., model_id: _Optional[str] = ..., model_hash: _Optional[str] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., num_slots: _Optional[int] = ..., max_rows: _Optional[int] = ..., max_length: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., device: _Optional[str] = ..., kind: _Optional[str] = ..., kv_bytes_per_slot: _Optional[int] = ..., weights: _Optional[str] = ..., least_stem_tokens: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BatchPlan(_message.Message):
    __slots__ = ("step_id", "rows", "prefix_lens", "extend_lens", "samples", "input_ids", "out_slots", "new_rows", "remaps", "freed_rows", "next_ids", "stems")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_LENS_FIELD_NUMBER: _ClassVar[int]
    EXTEND_LENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    INPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    OUT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NEW_ROWS_FIELD_NUMBER: _ClassVar[int]
    REMAPS_FIELD_NUMBER: _ClassVar[int]
    FREED_ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_IDS_FIELD_NUMBER: _ClassVar[int]
    STEMS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    rows: bytes
    prefix_lens: bytes
    extend_lens: bytes
    samples: bytes
    input_ids: bytes
    out_slots: bytes
    new_rows: _containers.RepeatedCompositeFieldContainer[NewRow]
    remaps: _containers.RepeatedCompositeFieldContainer[Remap]
    freed_rows: bytes
    next_ids: bytes
    stems: bytes
    def __init__(self, step_id: _Optional[int] = ..., rows: _Optional[bytes] = ..., prefix_lens: _Optional[bytes] = ..., extend_lens: _Optional[bytes] = ..., samples: _Optional[bytes] = ..., input_ids: _Optional[bytes] = ..., out_slots: _Optional[bytes] = ..., new_rows: _Optional[_Iterable[_Union[NewRow, _Mapping]]] = ..., remaps: _Optional[_Iterable[_Union[Remap, _Mapping]]] = ..., freed_rows: _Optional[bytes] = ..., next_ids: _Optional[bytes] = ..., stems: _Optional[bytes] = ...) -> None: ...

class NewRow(_message.Message):
    __slots__ = ("row", "prefix_slots", "temperature", "top_k", "top_p", "min_p", "seed", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty", "logprobs_plus_one", "num_prompt", "context_ids", "suppressed_ids", "bias_ids", "biases", "prompt_logprobs_plus_one", "grammar")
    ROW_FIELD_NUMBER: _ClassVar[int]
    PREFIX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_PLUS_ONE_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_IDS_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_PLUS_ONE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    row: int
    prefix_slots: bytes
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logprobs_plus_one: int
    num_prompt: int
    context_ids: bytes
    suppressed_ids: bytes
    bias_ids: bytes
    biases: bytes
    prompt_logprobs_plus_one: int
    grammar: str
    def __init__(self, row: _Optional[int] = ..., prefix_slots: _Optional[bytes] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., min_tokens: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logprobs_plus_one: _Optional[int] = ..., num_prompt: _Optional[int] = ..., context_ids: _Optional[bytes] = ..., suppressed_ids: _Optional[bytes] = ..., bias_ids: _Optional[bytes] = ..., biases: _Optional[bytes] = ..., prompt_logprobs_plus_one: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class Remap(_message.Message):
    __slots__ = ("row", "start", "slots")
    ROW_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    row: int
    start: int
    slots: bytes
    def __init__(self, row: _Optional[int] = ..., start: _Optional[int] = ..., slots: _Optional[bytes] = ...) -> None: ...

class BatchResult(_message.Message):
    __slots__ = ("step_id", "token_ids", "forward_ns", "peak_rss_bytes", "logprobs", "top_ids", "top_logprobs", "num_sampled", "phases_ns", "prompt_logprobs", "prompt_top_ids", "prompt_top_logprobs", "row_faults")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    PHASES_NS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ROW_FAULTS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    token_ids: bytes
    forward_ns: int
    peak_rss_bytes: int
    logprobs: bytes
    top_ids: bytes
    top_logprobs: bytes
    num_sampled: bytes
    phases_ns: bytes
    prompt_logprobs: bytes
    prompt_top_ids: bytes
    prompt_top_logprobs: bytes
    row_faults: _containers.RepeatedCompositeFieldContainer[RowFault]
    def __init__(self, step_id: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., forward_ns: _Optional[int] = ..., peak_rss_bytes: _Optional[int] = ..., logprobs: _Optional[bytes] = ..., top_ids: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ..., num_sampled: _Optional[bytes] = ..., phases_ns: _Optional[bytes] = ..., prompt_logprobs: _Optional[bytes] = ..., prompt_top_ids: _Optional[bytes] = ..., prompt_top_logprobs: _Optional[bytes] = ..., row_faults: _Optional[_Iterable[_Union[RowFault, _Mapping]]] = ...) -> None: ...

class RowFault(_message.Message):
    __slots__ = ("row", "message")
    ROW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    row: int
    message: str
    def __init__(self, row: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("step_id", "message")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    message: str
    def __init__(self, step_id: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("instance_id",)
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    instance_id: int
    def __init__(self, instance_id: _Optional[int] = ...) -> None: ...
