from protos.radixd.v1 import admin_pb2 as _admin_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ending(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENDING_UNSPECIFIED: _ClassVar[Ending]
    ENDING_STOP: _ClassVar[Ending]
    ENDING_LENGTH: _ClassVar[Ending]
    ENDING_DEADLINE: _ClassVar[Ending]
    ENDING_POOL_FULL: _ClassVar[Ending]
    ENDING_CANCELLED: _ClassVar[Ending]
    ENDING_REJECTED_INVALID: _ClassVar[Ending]
    ENDING_REJECTED_TOO_LARGE: _ClassVar[Ending]
    ENDING_REJECTED_QUEUE_FULL: _ClassVar[Ending]
    ENDING_REJECTED_DUPLICATE_ID: _ClassVar[Ending]
    ENDING_FAILED: _ClassVar[Ending]
    ENDING_PREHEATED: _ClassVar[Ending]
ENDING_UNSPECIFIED: Ending
ENDING_STOP: Ending
ENDING_LENGTH: Ending
ENDING_DEADLINE: Ending
ENDING_POOL_FULL: Ending
ENDING_CANCELLED: Ending
ENDING_REJECTED_INVALID: Ending
ENDING_REJECTED_TOO_LARGE: Ending
ENDING_REJECTED_QUEUE_FULL: Ending
ENDING_REJECTED_DUPLICATE_ID: Ending
ENDING_FAILED: Ending
ENDING_PREHEATED: Ending

class AttachRequest(_message.Message):
    __slots__ = ("submit", "cancel")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    cancel: Cancel
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("welcome", "outputs", "worker_state")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_STATE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    outputs: Outputs
    worker_state: WorkerState
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., outputs: _Optional[_Union[Outputs, _Mapping]] = ..., worker_state: _Optional[_Union[WorkerState, _Mapping]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request_id", "prompt_ids", "sampling", "max_tokens", "stop_token_ids", "ignore_eos", "cache_domain", "no_store", "timeout_ms", "preheat", "resume_output_ids", "tenant", "priority", "workload", "client_request_id", "pin", "pin_ttl_ms", "session")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    CACHE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    NO_STORE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PREHEAT_FIELD_NUMBER: _ClassVar[int]
    RESUME_OUTPUT_IDS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    CLIENT_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    PIN_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_ids: bytes
    sampling: Sampling
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    cache_domain: str
    no_store: bool
    timeout_ms: int
    preheat: bool
    resume_output_ids: bytes
    tenant: str
    priority: int
    workload: str
    client_request_id: str
    pin: _admin_pb2.PinLevel
    pin_ttl_ms: int
    session: str
    def __init__(self, request_id: _Optional[str] = ..., prompt_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., cache_domain: _Optional[str] = ..., no_store: _Optional[bool] = ..., timeout_ms: _Optional[int] = ..., preheat: _Optional[bool] = ..., resume_output_ids: _Optional[bytes] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., workload: _Optional[str] = ..., client_request_id: _Optional[str] = ..., pin: _Optional[_Union[_admin_pb2.PinLevel, str]] = ..., pin_ttl_ms: _Optional[int] = ..., session: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty", "logprobs", "bias_ids", "biases", "prompt_logprobs", "grammar")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logprobs: int
    bias_ids: bytes
    biases: bytes
    prompt_logprobs: int
    grammar: str
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., min_tokens: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logprobs: _Optional[int] = ..., bias_ids: _Optional[bytes] = ..., biases: _Optional[bytes] = ..., prompt_logprobs: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "finished")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    finished: bool
    def __init__(self, request_id: _Optional[str] = ..., finished: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("connected", "model")
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    connected: bool
    model: Model
    def __init__(self, connected: _Optional[bool] = ..., model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("model_id", "vocab_size", "max_length", "eos_token_ids", "num_slots", "device", "kv_dtype", "kind", "weights")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    vocab_size: int
    max_length: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_slots: int
    device: str
    kv_dtype: str
    kind: str
    weights: str
    def __init__(self, model_id: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_length: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., num_slots: _Optional[int] = ..., device: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., kind: _Optional[str] = ..., weights: _Optional[str] = ...) -> None: ...

class Outputs(_message.Message):
    __slots__ = ("outputs",)
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    def __init__(self, outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("request_id", "token_ids", "ending", "message", "cached_tokens", "field", "computed_tokens", "pin_id", "pinned_tokens", "pin_error", "logprobs", "prompt_logprobs")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    PINNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PIN_ERROR_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    token_ids: bytes
    ending: Ending
    message: str
    cached_tokens: int
    field: str
    computed_tokens: int
    pin_id: str
    pinned_tokens: int
    pin_error: str
    logprobs: LogprobColumns
    prompt_logprobs: LogprobColumns
    def __init__(self, request_id: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., ending: _Optional[_Union[Ending, str]] = ..., message: _Optional[str] = ..., cached_tokens: _Optional[int] = ..., field: _Optional[str] = ..., computed_tokens: _Optional[int] = ..., pin_id: _Optional[str] = ..., pinned_tokens: _Optional[int] = ..., pin_error: _Optional[str] = ..., logprobs: _Optional[_Union[LogprobColumns, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[LogprobColumns, _Mapping]] = ...) -> None: ...

class LogprobColumns(_message.Message):
    __slots__ = ("chosen", "top_ids", "top_logprobs")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    chosen: bytes
    top_ids: bytes
    top_logprobs: bytes
    def __init__(self, chosen: _Optional[bytes] = ..., top_ids: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("model", "worker_connected", "num_slots", "free", "private", "evictable", "locked", "in_flight", "page_size", "num_tree_nodes", "num_running", "num_waiting", "counters", "uptime_ms", "peak_rss_bytes", "economy", "histograms", "tenants", "waiting_by_reason", "step_profile", "num_sessions", "session_tokens")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PeakRssBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class HistogramsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _admin_pb2.Histogram
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_admin_pb2.Histogram, _Mapping]] = ...) -> None: ...
    class TenantsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _admin_pb2.TenantBooks
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_admin_pb2.TenantBooks, _Mapping]] = ...) -> None: ...
    class WaitingByReasonEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKER_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    ECONOMY_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BY_REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_PROFILE_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: Model
    worker_connected: bool
    num_slots: int
    free: int
    private: int
    evictable: int
    locked: int
    in_flight: int
    page_size: int
    num_tree_nodes: int
    num_running: int
    num_waiting: int
    counters: _containers.ScalarMap[str, int]
    uptime_ms: int
    peak_rss_bytes: _containers.ScalarMap[str, int]
    economy: _admin_pb2.Economy
    histograms: _containers.MessageMap[str, _admin_pb2.Histogram]
    tenants: _containers.MessageMap[str, _admin_pb2.TenantBooks]
    waiting_by_reason: _containers.ScalarMap[str, int]
    step_profile: _admin_pb2.StepProfile
    num_sessions: int
    session_tokens: int
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ..., worker_connected: _Optional[bool] = ..., num_slots: _Optional[int] = ..., free: _Optional[int] = ..., private: _Optional[int] = ..., evictable: _Optional[int] = ..., locked: _Optional[int] = ..., in_flight: _Optional[int] = ..., page_size: _Optional[int] = ..., num_tree_nodes: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., uptime_ms: _Optional[int] = ..., peak_rss_bytes: _Optional[_Mapping[str, int]] = ..., economy: _Optional[_Union[_admin_pb2.Economy, _Mapping]] = ..., histograms: _Optional[_Mapping[str, _admin_pb2.Histogram]] = ..., tenants: _Optional[_Mapping[str, _admin_pb2.TenantBooks]] = ..., waiting_by_reason: _Optional[_Mapping[str, int]] = ..., step_profile: _Optional[_Union[_admin_pb2.StepProfile, _Mapping]] = ..., num_sessions: _Optional[int] = ..., session_tokens: _Optional[int] = ...) -> None: ...

class ListPinsRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("pin_ids", "all", "tenant")
    PIN_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    pin_ids: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    tenant: str
    def __init__(self, pin_ids: _Optional[_Iterable[str]] = ..., all: _Optional[bool] = ..., tenant: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class FlushCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushCacheResponse(_message.Message):
    __slots__ = ("flushed_tokens",)
    FLUSHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    flushed_tokens: int
    def __init__(self, flushed_tokens: _Optional[int] = ...) -> None: ...

class DumpTreeRequest(_message.Message):
    __slots__ = ("max_nodes",)
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    max_nodes: int
    def __init__(self, max_nodes: _Optional[int] = ...) -> None: ...

class DumpTreeResponse(_message.Message):
    __slots__ = ("nodes", "num_left_out")
    NODES_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[TreeNode]
    num_left_out: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[TreeNode, _Mapping]]] = ..., num_left_out: _Optional[int] = ...) -> None: ...

class TreeNode(_message.Message):
    __slots__ = ("parent", "token_ids", "locked", "hits", "cache_domain", "tenant")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    parent: int
    token_ids: bytes
    locked: bool
    hits: int
    cache_domain: str
    tenant: str
    def __init__(self, parent: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., locked: _Optional[bool] = ..., hits: _Optional[int] = ..., cache_domain: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...
