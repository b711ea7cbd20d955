from protos.radixd.v1 import inference_pb2 as _inference_pb2
from protos.radixd.v1 import policy_pb2 as _policy_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PinLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIN_LEVEL_UNSPECIFIED: _ClassVar[PinLevel]
    PIN_LEVEL_NONE: _ClassVar[PinLevel]
    PIN_LEVEL_SOFT: _ClassVar[PinLevel]
    PIN_LEVEL_HARD: _ClassVar[PinLevel]

class RequestState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATE_UNSPECIFIED: _ClassVar[RequestState]
    REQUEST_STATE_WAITING: _ClassVar[RequestState]
    REQUEST_STATE_PREFILL: _ClassVar[RequestState]
    REQUEST_STATE_DECODE: _ClassVar[RequestState]
    REQUEST_STATE_RETRACTING: _ClassVar[RequestState]
    REQUEST_STATE_ENDED: _ClassVar[RequestState]

class WaitingReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAITING_REASON_UNSPECIFIED: _ClassVar[WaitingReason]
    WAITING_REASON_BEHIND_OTHERS: _ClassVar[WaitingReason]
    WAITING_REASON_NO_ROW: _ClassVar[WaitingReason]
    WAITING_REASON_NO_SLOTS: _ClassVar[WaitingReason]
    WAITING_REASON_RETURNING: _ClassVar[WaitingReason]
    WAITING_REASON_TWIN: _ClassVar[WaitingReason]
    WAITING_REASON_TENANT_CAP: _ClassVar[WaitingReason]
    WAITING_REASON_NO_BUDGET: _ClassVar[WaitingReason]
    WAITING_REASON_PREHEAT: _ClassVar[WaitingReason]
    WAITING_REASON_NO_WORKER: _ClassVar[WaitingReason]
PIN_LEVEL_UNSPECIFIED: PinLevel
PIN_LEVEL_NONE: PinLevel
PIN_LEVEL_SOFT: PinLevel
PIN_LEVEL_HARD: PinLevel
REQUEST_STATE_UNSPECIFIED: RequestState
REQUEST_STATE_WAITING: RequestState
REQUEST_STATE_PREFILL: RequestState
REQUEST_STATE_DECODE: RequestState
REQUEST_STATE_RETRACTING: RequestState
REQUEST_STATE_ENDED: RequestState
WAITING_REASON_UNSPECIFIED: WaitingReason
WAITING_REASON_BEHIND_OTHERS: WaitingReason
WAITING_REASON_NO_ROW: WaitingReason
WAITING_REASON_NO_SLOTS: WaitingReason
WAITING_REASON_RETURNING: WaitingReason
WAITING_REASON_TWIN: WaitingReason
WAITING_REASON_TENANT_CAP: WaitingReason
WAITING_REASON_NO_BUDGET: WaitingReason
WAITING_REASON_PREHEAT: WaitingReason
WAITING_REASON_NO_WORKER: WaitingReason

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("model", "slots", "requests", "tokens", "num_steps", "uptime_ms", "worker_connected", "peak_rss_bytes", "economy", "histograms", "tenants", "waiting_by_reason", "step_profile", "num_sessions", "session_tokens")
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
        value: Histogram
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...
    class TenantsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TenantBooks
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TenantBooks, _Mapping]] = ...) -> None: ...
    class WaitingByReasonEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    ECONOMY_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAMS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BY_REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_PROFILE_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: ModelInfo
    slots: SlotBooks
    requests: RequestBooks
    tokens: TokenCounters
    num_steps: int
    uptime_ms: int
    worker_connected: bool
    peak_rss_bytes: _containers.ScalarMap[str, int]
    economy: Economy
    histograms: _containers.MessageMap[str, Histogram]
    tenants: _containers.MessageMap[str, TenantBooks]
    waiting_by_reason: _containers.ScalarMap[str, int]
    step_profile: StepProfile
    num_sessions: int
    session_tokens: int
    def __init__(self, model: _Optional[_Union[ModelInfo, _Mapping]] = ..., slots: _Optional[_Union[SlotBooks, _Mapping]] = ..., requests: _Optional[_Union[RequestBooks, _Mapping]] = ..., tokens: _Optional[_Union[TokenCounters, _Mapping]] = ..., num_steps: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., worker_connected: _Optional[bool] = ..., peak_rss_bytes: _Optional[_Mapping[str, int]] = ..., economy: _Optional[_Union[Economy, _Mapping]] = ..., histograms: _Optional[_Mapping[str, Histogram]] = ..., tenants: _Optional[_Mapping[str, TenantBooks]] = ..., waiting_by_reason: _Optional[_Mapping[str, int]] = ..., step_profile: _Optional[_Union[StepProfile, _Mapping]] = ..., num_sessions: _Optional[int] = ..., session_tokens: _Optional[int] = ...) -> None: ...

class StepProfile(_message.Message):
    __slots__ = ("decode", "prompt")
    DECODE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    decode: StepSums
    prompt: StepSums
    def __init__(self, decode: _Optional[_Union[StepSums, _Mapping]] = ..., prompt: _Optional[_Union[StepSums, _Mapping]] = ...) -> None: ...

class StepSums(_message.Message):
    __slots__ = ("num_steps", "num_phased_steps", "num_rows", "num_tokens", "num_sampled", "busy_ns", "products_ns", "attention_ns", "forward_rest_ns", "sampling_ns", "worker_rest_ns", "schedule_ns", "apply_ns")
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_PHASED_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    PRODUCTS_NS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_REST_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_NS_FIELD_NUMBER: _ClassVar[int]
    WORKER_REST_NS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_NS_FIELD_NUMBER: _ClassVar[int]
    APPLY_NS_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    num_phased_steps: int
    num_rows: int
    num_tokens: int
    num_sampled: int
    busy_ns: int
    products_ns: int
    attention_ns: int
    forward_rest_ns: int
    sampling_ns: int
    worker_rest_ns: int
    schedule_ns: int
    apply_ns: int
    def __init__(self, num_steps: _Optional[int] = ..., num_phased_steps: _Optional[int] = ..., num_rows: _Optional[int] = ..., num_tokens: _Optional[int] = ..., num_sampled: _Optional[int] = ..., busy_ns: _Optional[int] = ..., products_ns: _Optional[int] = ..., attention_ns: _Optional[int] = ..., forward_rest_ns: _Optional[int] = ..., sampling_ns: _Optional[int] = ..., worker_rest_ns: _Optional[int] = ..., schedule_ns: _Optional[int] = ..., apply_ns: _Optional[int] = ...) -> None: ...

class Economy(_message.Message):
    __slots__ = ("reuse_rate", "density", "tokens_per_gib", "turnover", "recompute_tax", "volatility", "freed_slots", "context_tokens", "pinned_slots")
    REUSE_RATE_FIELD_NUMBER: _ClassVar[int]
    DENSITY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_GIB_FIELD_NUMBER: _ClassVar[int]
    TURNOVER_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_TAX_FIELD_NUMBER: _ClassVar[int]
    VOLATILITY_FIELD_NUMBER: _ClassVar[int]
    FREED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PINNED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    reuse_rate: float
    density: float
    tokens_per_gib: float
    turnover: float
    recompute_tax: float
    volatility: float
    freed_slots: int
    context_tokens: int
    pinned_slots: int
    def __init__(self, reuse_rate: _Optional[float] = ..., density: _Optional[float] = ..., tokens_per_gib: _Optional[float] = ..., turnover: _Optional[float] = ..., recompute_tax: _Optional[float] = ..., volatility: _Optional[float] = ..., freed_slots: _Optional[int] = ..., context_tokens: _Optional[int] = ..., pinned_slots: _Optional[int] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "sum")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...

class TenantBooks(_message.Message):
    __slots__ = ("running", "waiting", "held_slots", "pinned_slots", "prompt_tokens", "cached_tokens", "generated_tokens", "computed_tokens", "recomputed_tokens", "retractions")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    HELD_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PINNED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETRACTIONS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    held_slots: int
    pinned_slots: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    retractions: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., held_slots: _Optional[int] = ..., pinned_slots: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., retractions: _Optional[int] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "vocab_size", "max_length", "eos_token_ids", "device", "kv_dtype", "kind", "weights")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    vocab_size: int
    max_length: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    device: str
    kv_dtype: str
    kind: str
    weights: str
    def __init__(self, name: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_length: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., device: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., kind: _Optional[str] = ..., weights: _Optional[str] = ...) -> None: ...

class SlotBooks(_message.Message):
    __slots__ = ("total", "free", "private", "evictable", "locked", "in_flight", "page_size", "num_tree_nodes")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    total: int
    free: int
    private: int
    evictable: int
    locked: int
    in_flight: int
    page_size: int
    num_tree_nodes: int
    def __init__(self, total: _Optional[int] = ..., free: _Optional[int] = ..., private: _Optional[int] = ..., evictable: _Optional[int] = ..., locked: _Optional[int] = ..., in_flight: _Optional[int] = ..., page_size: _Optional[int] = ..., num_tree_nodes: _Optional[int] = ...) -> None: ...

class RequestBooks(_message.Message):
    __slots__ = ("running", "waiting", "submitted", "finished", "rejected", "cancelled", "expired", "failed", "retractions")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RETRACTIONS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    submitted: int
    finished: int
    rejected: int
    cancelled: int
    expired: int
    failed: int
    retractions: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., submitted: _Optional[int] = ..., finished: _Optional[int] = ..., rejected: _Optional[int] = ..., cancelled: _Optional[int] = ..., expired: _Optional[int] = ..., failed: _Optional[int] = ..., retractions: _Optional[int] = ...) -> None: ...

class TokenCounters(_message.Message):
    __slots__ = ("prompt", "cached", "generated", "computed", "recomputed", "preheated", "evicted", "drafted", "accepted")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    PREHEATED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    prompt: int
    cached: int
    generated: int
    computed: int
    recomputed: int
    preheated: int
    evicted: int
    drafted: int
    accepted: int
    def __init__(self, prompt: _Optional[int] = ..., cached: _Optional[int] = ..., generated: _Optional[int] = ..., computed: _Optional[int] = ..., recomputed: _Optional[int] = ..., preheated: _Optional[int] = ..., evicted: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ...) -> None: ...

class PreheatRequest(_message.Message):
    __slots__ = ("prefixes", "chats", "tokens", "cache_domain", "pin", "ttl_ms")
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    CHATS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedScalarFieldContainer[str]
    chats: _containers.RepeatedCompositeFieldContainer[_inference_pb2.ChatPrompt]
    tokens: _containers.RepeatedCompositeFieldContainer[_inference_pb2.TokenIds]
    cache_domain: str
    pin: PinLevel
    ttl_ms: int
    def __init__(self, prefixes: _Optional[_Iterable[str]] = ..., chats: _Optional[_Iterable[_Union[_inference_pb2.ChatPrompt, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[_inference_pb2.TokenIds, _Mapping]]] = ..., cache_domain: _Optional[str] = ..., pin: _Optional[_Union[PinLevel, str]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class PreheatResponse(_message.Message):
    __slots__ = ("prefixes",)
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[PreheatedPrefix]
    def __init__(self, prefixes: _Optional[_Iterable[_Union[PreheatedPrefix, _Mapping]]] = ...) -> None: ...

class PreheatedPrefix(_message.Message):
    __slots__ = ("num_tokens", "cached_tokens", "computed_tokens", "error", "pin_id", "pinned_tokens", "pin_error")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    PINNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PIN_ERROR_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    cached_tokens: int
    computed_tokens: int
    error: str
    pin_id: str
    pinned_tokens: int
    pin_error: str
    def __init__(self, num_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., error: _Optional[str] = ..., pin_id: _Optional[str] = ..., pinned_tokens: _Optional[int] = ..., pin_error: _Optional[str] = ...) -> None: ...

class ListPinsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPinsResponse(_message.Message):
    __slots__ = ("pins",)
    PINS_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    def __init__(self, pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("pin_id", "level", "tenant", "cache_domain", "num_tokens", "kept_tokens", "expires_in_ms", "hits", "first_token_ids", "text")
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    pin_id: str
    level: PinLevel
    tenant: str
    cache_domain: str
    num_tokens: int
    kept_tokens: int
    expires_in_ms: int
    hits: int
    first_token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, pin_id: _Optional[str] = ..., level: _Optional[_Union[PinLevel, str]] = ..., tenant: _Optional[str] = ..., cache_domain: _Optional[str] = ..., num_tokens: _Optional[int] = ..., kept_tokens: _Optional[int] = ..., expires_in_ms: _Optional[int] = ..., hits: _Optional[int] = ..., first_token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("pin_ids", "all")
    PIN_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    pin_ids: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    def __init__(self, pin_ids: _Optional[_Iterable[str]] = ..., all: _Optional[bool] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ("removed", "unknown")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    removed: _containers.RepeatedScalarFieldContainer[str]
    unknown: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, removed: _Optional[_Iterable[str]] = ..., unknown: _Optional[_Iterable[str]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("max_sessions", "tenant")
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    max_sessions: int
    tenant: str
    def __init__(self, max_sessions: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "num_left_out")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    num_left_out: int
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., num_left_out: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("session", "tenant", "cache_domain", "num_tokens", "kept_tokens", "expires_in_ms", "num_turns", "hits")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_TURNS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    session: str
    tenant: str
    cache_domain: str
    num_tokens: int
    kept_tokens: int
    expires_in_ms: int
    num_turns: int
    hits: int
    def __init__(self, session: _Optional[str] = ..., tenant: _Optional[str] = ..., cache_domain: _Optional[str] = ..., num_tokens: _Optional[int] = ..., kept_tokens: _Optional[int] = ..., expires_in_ms: _Optional[int] = ..., num_turns: _Optional[int] = ..., hits: _Optional[int] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session", "cache_domain", "tenant")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CACHE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    session: str
    cache_domain: str
    tenant: str
    def __init__(self, session: _Optional[str] = ..., cache_domain: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class ListRequestsRequest(_message.Message):
    __slots__ = ("max_requests", "tenant")
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    max_requests: int
    tenant: str
    def __init__(self, max_requests: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "num_left_out")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestView]
    num_left_out: int
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestView, _Mapping]]] = ..., num_left_out: _Optional[int] = ...) -> None: ...

class RequestView(_message.Message):
    __slots__ = ("request_id", "tenant", "state", "waiting_reason", "priority", "workload", "prompt_tokens", "output_tokens", "computed_tokens", "cached_tokens", "retractions", "age_ms", "deadline_in_ms", "slots", "preheat", "drafted_tokens", "accepted_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAITING_REASON_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETRACTIONS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_IN_MS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PREHEAT_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    state: RequestState
    waiting_reason: WaitingReason
    priority: int
    workload: str
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    cached_tokens: int
    retractions: int
    age_ms: int
    deadline_in_ms: int
    slots: int
    preheat: bool
    drafted_tokens: int
    accepted_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., state: _Optional[_Union[RequestState, str]] = ..., waiting_reason: _Optional[_Union[WaitingReason, str]] = ..., priority: _Optional[int] = ..., workload: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., retractions: _Optional[int] = ..., age_ms: _Optional[int] = ..., deadline_in_ms: _Optional[int] = ..., slots: _Optional[int] = ..., preheat: _Optional[bool] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("request", "summary", "matched_tokens", "rank", "num_waiting", "order_terms", "needed_slots", "promised_slots", "available_slots", "victims", "history", "ending")
    class OrderTermsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    ORDER_TERMS_FIELD_NUMBER: _ClassVar[int]
    NEEDED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PROMISED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    VICTIMS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    request: RequestView
    summary: str
    matched_tokens: int
    rank: int
    num_waiting: int
    order_terms: _containers.ScalarMap[str, float]
    needed_slots: int
    promised_slots: int
    available_slots: int
    victims: _containers.RepeatedCompositeFieldContainer[VictimScore]
    history: _containers.RepeatedCompositeFieldContainer[HistoryEvent]
    ending: str
    def __init__(self, request: _Optional[_Union[RequestView, _Mapping]] = ..., summary: _Optional[str] = ..., matched_tokens: _Optional[int] = ..., rank: _Optional[int] = ..., num_waiting: _Optional[int] = ..., order_terms: _Optional[_Mapping[str, float]] = ..., needed_slots: _Optional[int] = ..., promised_slots: _Optional[int] = ..., available_slots: _Optional[int] = ..., victims: _Optional[_Iterable[_Union[VictimScore, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[HistoryEvent, _Mapping]]] = ..., ending: _Optional[str] = ...) -> None: ...

class VictimScore(_message.Message):
    __slots__ = ("request_id", "score")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    score: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, request_id: _Optional[str] = ..., score: _Optional[_Iterable[float]] = ...) -> None: ...

class HistoryEvent(_message.Message):
    __slots__ = ("ago_ms", "event", "detail")
    AGO_MS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ago_ms: int
    event: str
    detail: str
    def __init__(self, ago_ms: _Optional[int] = ..., event: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("policies", "families")
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    FAMILIES_FIELD_NUMBER: _ClassVar[int]
    policies: _policy_pb2.Policies
    families: _containers.RepeatedCompositeFieldContainer[_policy_pb2.PolicyFamily]
    def __init__(self, policies: _Optional[_Union[_policy_pb2.Policies, _Mapping]] = ..., families: _Optional[_Iterable[_Union[_policy_pb2.PolicyFamily, _Mapping]]] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _policy_pb2.Policies
    def __init__(self, policies: _Optional[_Union[_policy_pb2.Policies, _Mapping]] = ...) -> None: ...

class SetPolicyResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _policy_pb2.Policies
    def __init__(self, policies: _Optional[_Union[_policy_pb2.Policies, _Mapping]] = ...) -> None: ...

class WatchStatsRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class WatchStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: GetStatsResponse
    def __init__(self, stats: _Optional[_Union[GetStatsResponse, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("parent", "token_ids", "text", "locked", "hits", "cache_domain", "tenant")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    parent: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    locked: bool
    hits: int
    cache_domain: str
    tenant: str
    def __init__(self, parent: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., locked: _Optional[bool] = ..., hits: _Optional[int] = ..., cache_domain: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...
