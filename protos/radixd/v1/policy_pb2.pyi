from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Policies(_message.Message):
    __slots__ = ("waiting_order", "weight_prefix", "weight_age", "weight_cost", "most_passes", "policy_seed", "admission_estimate", "decode_reserve", "length_quantile", "chunk_size", "chunk_sizes", "max_batch_tokens", "prefill_share", "itl_target_ms", "retraction_policy", "retraction_keep", "high_watermark", "low_watermark", "eviction_policy", "pin_budget", "speculation", "max_drafts", "speculation_rows", "session_ttl_s", "max_sessions")
    class ChunkSizesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WAITING_ORDER_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_PREFIX_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_AGE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_COST_FIELD_NUMBER: _ClassVar[int]
    MOST_PASSES_FIELD_NUMBER: _ClassVar[int]
    POLICY_SEED_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    DECODE_RESERVE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_QUANTILE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SHARE_FIELD_NUMBER: _ClassVar[int]
    ITL_TARGET_MS_FIELD_NUMBER: _ClassVar[int]
    RETRACTION_POLICY_FIELD_NUMBER: _ClassVar[int]
    RETRACTION_KEEP_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    EVICTION_POLICY_FIELD_NUMBER: _ClassVar[int]
    PIN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_ROWS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TTL_S_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    waiting_order: str
    weight_prefix: float
    weight_age: float
    weight_cost: float
    most_passes: int
    policy_seed: int
    admission_estimate: str
    decode_reserve: float
    length_quantile: float
    chunk_size: int
    chunk_sizes: _containers.ScalarMap[str, int]
    max_batch_tokens: int
    prefill_share: float
    itl_target_ms: float
    retraction_policy: str
    retraction_keep: str
    high_watermark: float
    low_watermark: float
    eviction_policy: str
    pin_budget: float
    speculation: str
    max_drafts: int
    speculation_rows: int
    session_ttl_s: float
    max_sessions: int
    def __init__(self, waiting_order: _Optional[str] = ..., weight_prefix: _Optional[float] = ..., weight_age: _Optional[float] = ..., weight_cost: _Optional[float] = ..., most_passes: _Optional[int] = ..., policy_seed: _Optional[int] = ..., admission_estimate: _Optional[str] = ..., decode_reserve: _Optional[float] = ..., length_quantile: _Optional[float] = ..., chunk_size: _Optional[int] = ..., chunk_sizes: _Optional[_Mapping[str, int]] = ..., max_batch_tokens: _Optional[int] = ..., prefill_share: _Optional[float] = ..., itl_target_ms: _Optional[float] = ..., retraction_policy: _Optional[str] = ..., retraction_keep: _Optional[str] = ..., high_watermark: _Optional[float] = ..., low_watermark: _Optional[float] = ..., eviction_policy: _Optional[str] = ..., pin_budget: _Optional[float] = ..., speculation: _Optional[str] = ..., max_drafts: _Optional[int] = ..., speculation_rows: _Optional[int] = ..., session_ttl_s: _Optional[float] = ..., max_sessions: _Optional[int] = ...) -> None: ...

class PolicyFamily(_message.Message):
    __slots__ = ("name", "options")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    options: _containers.RepeatedCompositeFieldContainer[PolicyOption]
    def __init__(self, name: _Optional[str] = ..., options: _Optional[_Iterable[_Union[PolicyOption, _Mapping]]] = ...) -> None: ...

class PolicyOption(_message.Message):
    __slots__ = ("name", "summary")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    name: str
    summary: str
    def __init__(self, name: _Optional[str] = ..., summary: _Optional[str] = ...) -> None: ...
