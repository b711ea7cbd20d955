"""One schema for every option: what it means, its default, and what it may be.

Where values come from is in `setting_sources`.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from protos.errors import InvalidRequest
from protos.plan import MAX_CONTEXT_TOKENS
from radixd.chassis.backends import possible

CPU_SLOTS = 16384
"""Of a pool in the machine's own memory, where nobody says."""

_WORKLOAD_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Settings(BaseModel):
    """Every option of every service; a field's description is its help text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        "smollm2", description="smollm2, a local folder or GGUF file, or a hub name."
    )
    host: str = Field("127.0.0.1", description="Address the public gRPC port listens on.")
    port: int = Field(50051, ge=0, le=65535, description="Public gRPC port.")
    scheduler_host: str = Field("127.0.0.1", description="Address the scheduler listens on.")
    scheduler_port: int = Field(50052, ge=0, le=65535, description="Internal gRPC port.")
    http_host: str = Field("", description="Address the HTTP port listens on; empty: as host.")
    http_names: tuple[str, ...] = Field(
        (), description="DNS names that HTTP goes by without keys, with commas between."
    )
    http_port: int = Field(
        3000, ge=-1, le=65535, description="Public HTTP port; 0: any free one, -1: none."
    )
    http_keep_alive_s: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="Silence of a stream before a comment is sent."
    )
    slow_reader_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="A client that reads nothing so long is cut."
    )
    max_streams_per_client: int = Field(
        1024, ge=0, description="Calls in progress of one tenant or address; 0: no limit."
    )
    insecure: bool = Field(False, description="Serve other machines without asking for keys.")
    tls_cert: Path | None = Field(
        None, description="PEM file of the server's certificate, for gRPC and HTTP."
    )
    tls_key: Path | None = Field(None, description="PEM file of its private key.")
    tls_client_ca: Path | None = Field(
        None, description="PEM file of who signs clients' certificates; each must show one."
    )
    worker_endpoint: str = Field(
        "", description="ZeroMQ endpoint of the worker; empty: ipc in the run folder."
    )
    run_dir: Path | None = Field(
        None, description="Folder of sockets and locks, mode 0700; default: one a port."
    )
    fake_worker: bool = Field(False, description="A worker without model or torch, for tests.")
    fake_step_ms: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="How long the fake worker takes for a step."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; auto: on a GPU where there is one."
    )
    num_threads: int = Field(
        0, ge=0, description="Threads of the worker on the CPU; 0: one a processor."
    )
    backend: Literal["auto", "native", "torch", "triton"] = Field(
        "auto", description="Who computes: compiled code or torch on the CPU, triton on a GPU."
    )
    tp: int = Field(
        1, ge=1, le=64, description="Processes that compute the model together, each its heads."
    )
    cpu_kernels: Literal["auto", "avx512", "avx2"] = Field(
        "auto", description="Instructions of the compiled code; auto: the fastest there are here."
    )
    weights: Literal["auto", "fp32", "bf16", "int8", "int4"] = Field(
        "auto",
        description="Precision of the weights; auto: the fastest that is accurate enough, bf16 "
        "on a GPU.",
    )
    kv_dtype: Literal["auto", "fp32", "bf16", "fp8", "int8"] = Field(
        "auto",
        description="Precision of keys and values in the pool; auto: fp32, on a GPU that of "
        "activations.",
    )
    deterministic: bool = Field(
        False, description="On a GPU: a token's bits do not depend on what else is in the batch."
    )
    kv_slots: int | Literal["auto"] = Field(
        "auto",
        description=f"Token slots of the KV pool; auto: {CPU_SLOTS} on the CPU, what fits on a "
        "GPU.",
    )
    memory_fraction: float = Field(
        0.9, gt=0, le=1, description="Of kv_slots auto: share of a GPU's memory that is used."
    )
    max_length: int = Field(
        0, ge=0, le=MAX_CONTEXT_TOKENS, description="Longest context; 0: the model's own limit."
    )
    page_size: int = Field(1, description="Slots a page of the prefix tree: a power of 2 to 64.")
    max_running: int = Field(64, ge=1, description="Requests that run at once.")
    max_waiting: int = Field(4096, ge=1, description="Requests that may wait.")
    max_batch_tokens: int = Field(512, ge=1, description="Most tokens computed in a step.")
    pipeline_depth: int = Field(2, ge=1, le=2, description="Plans in flight.")
    waiting_order: Literal[
        "adaptive", "fcfs", "lpm", "hrrn", "dfs_weight", "lof", "priority", "random", "vtc"
    ] = Field("adaptive", description="Who is admitted next.")
    weight_prefix: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Of adaptive: worth of a cached token."
    )
    weight_age: float = Field(
        50.0, ge=0, allow_inf_nan=False, description="Of adaptive: worth of a second of waiting."
    )
    weight_cost: float = Field(
        0.5, ge=0, allow_inf_nan=False, description="Of adaptive: price of a token to compute."
    )
    most_passes: int = Field(
        64, ge=1, description="Admissions after its arrival that may come before a request."
    )
    policy_seed: int = Field(
        0, ge=0, lt=1 << 63, description="Seed of the orders and victims named random."
    )
    admission_estimate: Literal["worst_case", "ratio", "peak", "quantile"] = Field(
        "ratio", description="How much room a new request must find."
    )
    decode_reserve: float = Field(
        0.1, ge=0, le=1, description="Of ratio: share of the tokens to come that is kept free."
    )
    length_quantile: float = Field(
        0.9, gt=0, le=1, description="Of quantile: share of finished requests it covers."
    )
    chunk_size: int = Field(
        128, ge=1, description="Most tokens of one prompt in a step, without a workload class."
    )
    chunk_sizes: dict[str, int] = Field(
        {"chat": 512, "code": 1024, "longform": 2048},
        description="The same by workload class; these are all classes there are.",
    )
    prefill_share: float = Field(
        1.0, gt=0, le=1, description="Share of a step for prompts while others decode."
    )
    speculation: Literal["auto", "off"] = Field(
        "auto", description="Guess tokens from earlier ones where it has paid; same output."
    )
    max_drafts: int = Field(
        8, ge=1, le=32, description="Of speculation: most tokens guessed at once for a request."
    )
    speculation_rows: int = Field(
        4, ge=0, description="Of speculation: none while more requests than these decode."
    )
    itl_target_ms: float = Field(
        200.0,
        ge=0,
        allow_inf_nan=False,
        description="Time a step stays below while requests decode; 0: no target.",
    )
    retraction_policy: Literal[
        "fifo", "lifo", "lru", "progress", "random", "priority", "cost", "tenant", "deadline"
    ] = Field("progress", description="Who is cut back when the pool is full.")
    retraction_keep: Literal["partial", "all", "none"] = Field(
        "partial", description="What stays cached of a request that is cut back."
    )
    high_watermark: float = Field(
        0.95, ge=0, le=1, description="Share of slots in use above which requests are cut back."
    )
    low_watermark: float = Field(
        0.9, ge=0, le=1, description="Share of slots in use down to which they are."
    )
    eviction_policy: Literal["lru", "lfu", "slru", "fifo", "priority", "cost"] = Field(
        "lru", description="Which cached prefix goes first."
    )
    pin_budget: float = Field(
        0.5, ge=0, le=1, description="Share of the pool that hard pins may hold."
    )
    session_ttl_s: float = Field(
        600.0,
        ge=0,
        le=30 * 24 * 3600,
        description="How long a session's tail stays warm after its last turn; 0: not at all.",
    )
    max_sessions: int = Field(
        1024, ge=1, le=100_000, description="Most sessions of a tenant; the oldest are forgotten."
    )
    preheat: Path | None = Field(
        None, description="YAML file of prefixes that are computed before readiness."
    )
    chat_template: Path | None = Field(
        None, description="File of a chat template in place of the model's own."
    )
    tenants: Path | None = Field(
        None, description="YAML file of tenants: their keys and their shares of the pool."
    )
    public_domains: tuple[str, ...] = Field(
        (), description="Cache domains that all tenants share, with commas between."
    )
    metrics_port: int = Field(
        50054,
        ge=-1,
        le=65535,
        description="Prometheus port on scheduler_host; 0: any free one, -1: none.",
    )
    step_timeout_s: float = Field(
        300.0, gt=0, allow_inf_nan=False, description="A step longer than this is a hang."
    )
    max_prompt_bytes: int = Field(4 << 20, ge=1, description="Longest prompt text, in bytes.")
    restart_worker: bool = Field(True, description="Restart a worker that was killed.")
    start_timeout_s: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Longest start of all services; 0: no limit."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe event that is logged."
    )
    log_prompts: bool = Field(False, description="Log the text of prompts and answers.")

    @field_validator("kv_slots", mode="before")
    @classmethod
    def _slots_or_auto(cls, given: object) -> object:
        if given == "auto":
            return given
        try:
            slots = int(str(given))
        except ValueError:
            raise ValueError(f"{given!r} is neither auto nor a whole number") from None
        if slots < 1:
            raise ValueError(f"{slots} is below 1")
        return slots

    @field_validator("page_size")
    @classmethod
    def _power_of_two(cls, page_size: int) -> int:
        if page_size not in (1, 2, 4, 8, 16, 32, 64):
            raise ValueError(f"{page_size} is no power of 2 from 1 to 64")
        return page_size

    @field_validator(
        "run_dir", "preheat", "chat_template", "tenants", "tls_cert", "tls_key", "tls_client_ca"
    )
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return path.absolute() if path is not None else None

    @field_validator("chunk_sizes", mode="before")
    @classmethod
    def _classes(cls, given: object) -> object:
        """From flags and variables: "chat=512,code=1024"."""
        if not isinstance(given, str):
            return given
        sizes: dict[str, str] = {}
        for part in _parts(given):
            name, equals, size = part.partition("=")
            if not (name and equals):
                raise ValueError(f"{part!r} is not of the form class=tokens")
            if name in sizes:
                raise ValueError(f"the class {name!r} comes twice")
            sizes[name] = size
        return sizes

    @field_validator("chunk_sizes")
    @classmethod
    def _chunks_of_tokens(cls, sizes: dict[str, int]) -> dict[str, int]:
        for name, size in sizes.items():
            if not _WORKLOAD_NAME.fullmatch(name):
                # So that the flag form can say it, and a request's field can hold it.
                raise ValueError(f"{name!r} is no name of 1 to 64 letters, digits, '.', '_', '-'")
            if size < 1:
                raise ValueError(f"{name}: {size} is below 1")
        return sizes

    @field_validator("public_domains", "http_names", mode="before")
    @classmethod
    def _names(cls, given: object) -> object:
        return _parts(given) if isinstance(given, str) else given

    @field_validator("public_domains", "http_names")
    @classmethod
    def _no_empty_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if any(not name or "," in name or name != name.strip() for name in names):
            raise ValueError("a name is empty, holds a comma or begins or ends with a space")
        return names

    @model_validator(mode="after")
    def _can_serve_somebody(self) -> "Settings":
        if self.cpu_kv_slots < self.page_size:
            raise ValueError(f"kv_slots: {self.kv_slots} is not one page of {self.page_size} slots")
        if self.max_length == 1:
            raise ValueError("max_length: 1 leaves room for a prompt or for output, not for both")
        if self.low_watermark > self.high_watermark:
            low, high = self.low_watermark, self.high_watermark
            raise ValueError(f"low_watermark: {low} is above high_watermark, {high}")
        if (self.tls_cert is None) != (self.tls_key is None):
            missing, given = ("key", "cert") if self.tls_key is None else ("cert", "key")
            raise ValueError(f"tls_{missing}: is missing beside tls_{given}")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca: needs tls_cert and tls_key beside it")
        if self.metrics_port == self.scheduler_port > 0 and self.asks_for("metrics_port"):
            port = self.metrics_port
            raise ValueError(f"metrics_port: is {port}, like scheduler_port; they must differ")
        return self

    @model_validator(mode="after")
    def _some_backend_can(self) -> "Settings":
        try:
            possible(self)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return self

    def asks_for(self, name: str) -> bool:
        """Whether the option was given, by whatever way, rather than left at its default."""
        return name in self.model_fields_set

    @property
    def cpu_kv_slots(self) -> int:
        """Slots of a pool whose size is not measured."""
        return CPU_SLOTS if self.kv_slots == "auto" else self.kv_slots

    @property
    def ipc_dir(self) -> Path:
        """Folder of sockets and locks; one for each scheduler port unless set."""
        if self.run_dir is not None:
            return self.run_dir
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        return Path(base) / f"radixd-{os.getuid()}-{self.scheduler_port}"

    @property
    def probe_socket(self) -> Path | None:
        """Where this machine asks an encrypted server for its health; None: at its port."""
        return None if self.tls_cert is None else self.ipc_dir / f"front-{self.port}.sock"

    @property
    def worker_address(self) -> str:
        """The ZeroMQ endpoint in force."""
        return self.worker_endpoint or f"ipc://{self.ipc_dir}/worker.ipc"


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()
