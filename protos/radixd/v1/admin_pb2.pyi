from protos.radixd.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("model", "slots", "requests", "tokens", "num_steps", "uptime_ms", "worker_connected", "peak_rss_bytes")
    class PeakRssBytesEntry(_message.Message):
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
    model: ModelInfo
    slots: SlotBooks
    requests: RequestBooks
    tokens: TokenCounters
    num_steps: int
    uptime_ms: int
    worker_connected: bool
    peak_rss_bytes: _containers.ScalarMap[str, int]
    def __init__(self, model: _Optional[_Union[ModelInfo, _Mapping]] = ..., slots: _Optional[_Union[SlotBooks, _Mapping]] = ..., requests: _Optional[_Union[RequestBooks, _Mapping]] = ..., tokens: _Optional[_Union[TokenCounters, _Mapping]] = ..., num_steps: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., worker_connected: _Optional[bool] = ..., peak_rss_bytes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "vocab_size", "max_length", "eos_token_ids", "device", "kv_dtype", "kind")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    name: str
    vocab_size: int
    max_length: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    device: str
    kv_dtype: str
    kind: str
    def __init__(self, name: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_length: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., device: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("prompt", "cached", "generated", "computed", "recomputed", "preheated", "evicted")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    PREHEATED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    prompt: int
    cached: int
    generated: int
    computed: int
    recomputed: int
    preheated: int
    evicted: int
    def __init__(self, prompt: _Optional[int] = ..., cached: _Optional[int] = ..., generated: _Optional[int] = ..., computed: _Optional[int] = ..., recomputed: _Optional[int] = ..., preheated: _Optional[int] = ..., evicted: _Optional[int] = ...) -> None: ...

class PreheatRequest(_message.Message):
    __slots__ = ("prefixes", "chats", "tokens", "cache_domain")
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    CHATS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedScalarFieldContainer[str]
    chats: _containers.RepeatedCompositeFieldContainer[_inference_pb2.ChatPrompt]
    tokens: _containers.RepeatedCompositeFieldContainer[_inference_pb2.TokenIds]
    cache_domain: str
    def __init__(self, prefixes: _Optional[_Iterable[str]] = ..., chats: _Optional[_Iterable[_Union[_inference_pb2.ChatPrompt, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[_inference_pb2.TokenIds, _Mapping]]] = ..., cache_domain: _Optional[str] = ...) -> None: ...

class PreheatResponse(_message.Message):
    __slots__ = ("prefixes",)
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[PreheatedPrefix]
    def __init__(self, prefixes: _Optional[_Iterable[_Union[PreheatedPrefix, _Mapping]]] = ...) -> None: ...

class PreheatedPrefix(_message.Message):
    __slots__ = ("num_tokens", "cached_tokens", "computed_tokens", "error")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    cached_tokens: int
    computed_tokens: int
    error: str
    def __init__(self, num_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("parent", "token_ids", "text", "locked", "hits", "cache_domain")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    parent: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    locked: bool
    hits: int
    cache_domain: str
    def __init__(self, parent: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., locked: _Optional[bool] = ..., hits: _Optional[int] = ..., cache_domain: _Optional[str] = ...) -> None: ...
