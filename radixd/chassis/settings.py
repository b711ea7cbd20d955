"""One schema for every option: command-line flag, RADIXD_ variable and YAML key are one name.

Precedence: flags, then environment, then the YAML file, then the defaults below.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from protos.errors import InvalidRequest

ENV_PREFIX = "RADIXD_"

_KUBERNETES_LINK = re.compile(r"RADIXD_(.+_)?(SERVICE_HOST|SERVICE_PORT.*|PORT_\d+_(TCP|UDP).*)")
"""Set by Kubernetes beside a Service whose name begins with radixd."""


class Settings(BaseSettings):
    """Every option of every service; a field's description is its help text."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    model: str = Field(
        "smollm2", description="smollm2, a local folder or GGUF file, or a hub name."
    )
    host: str = Field("127.0.0.1", description="Address the public gRPC port listens on.")
    port: int = Field(50051, ge=0, le=65535, description="Public gRPC port.")
    scheduler_host: str = Field("127.0.0.1", description="Address the scheduler listens on.")
    scheduler_port: int = Field(50052, ge=0, le=65535, description="Internal gRPC port.")
    http_port: int = Field(3000, ge=0, le=65535, description="Reserved for the HTTP gateway.")
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
    device: Literal["auto", "cpu"] = Field("auto", description="Where the model runs.")
    num_threads: int = Field(0, ge=0, description="Threads of the worker; 0: one a core.")
    kv_slots: int = Field(16384, ge=1, description="Token slots of the KV pool.")
    max_length: int = Field(0, ge=0, description="Longest context; 0: the model's own limit.")
    page_size: int = Field(1, description="Slots a page of the prefix tree: a power of 2 to 64.")
    max_running: int = Field(64, ge=1, description="Requests that run at once.")
    max_waiting: int = Field(4096, ge=1, description="Requests that may wait.")
    max_batch_tokens: int = Field(512, ge=1, description="Most tokens computed in a step.")
    chunk_size: int = Field(256, ge=1, description="Most tokens of one prompt in a step.")
    pipeline_depth: int = Field(2, ge=1, le=2, description="Plans in flight.")
    waiting_order: Literal["fcfs", "lpm"] = Field(
        "fcfs", description="Who is admitted next: first come, or longest cached prefix."
    )
    retraction_policy: Literal["progress"] = Field(
        "progress", description="Who is cut back when the pool is full: the least advanced."
    )
    eviction_policy: Literal["lru"] = Field(
        "lru", description="Which cached prefix goes first: the least recently used."
    )
    decode_reserve: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Share of the tokens still to be generated that admission keeps free.",
    )
    step_timeout_s: float = Field(
        300.0, gt=0, allow_inf_nan=False, description="A step longer than this is a hang."
    )
    max_prompt_bytes: int = Field(4 << 20, ge=1, description="Longest prompt text, in bytes.")
    restart_worker: bool = Field(True, description="Restart a worker that a signal killed.")
    start_timeout_s: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Longest start of all services; 0: no limit."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe event that is logged."
    )

    @field_validator("page_size")
    @classmethod
    def _power_of_two(cls, page_size: int) -> int:
        if page_size not in (1, 2, 4, 8, 16, 32, 64):
            raise ValueError(f"{page_size} is no power of 2 from 1 to 64")
        return page_size

    @field_validator("run_dir")
    @classmethod
    def _absolute(cls, run_dir: Path | None) -> Path | None:
        return run_dir.absolute() if run_dir is not None else None

    @model_validator(mode="after")
    def _can_serve_somebody(self) -> "Settings":
        if self.kv_slots < self.page_size:
            raise ValueError(f"kv_slots: {self.kv_slots} is not one page of {self.page_size} slots")
        if self.max_length == 1:
            raise ValueError("max_length: 1 leaves room for a prompt or for output, not for both")
        return self

    @property
    def ipc_dir(self) -> Path:
        """Folder of sockets and locks; one for each scheduler port unless set."""
        if self.run_dir is not None:
            return self.run_dir
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        return Path(base) / f"radixd-{os.getuid()}-{self.scheduler_port}"

    @property
    def worker_address(self) -> str:
        """The ZeroMQ endpoint in force."""
        return self.worker_endpoint or f"ipc://{self.ipc_dir}/worker.ipc"


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"{ENV_PREFIX}{name.upper()}"


def flag(name: str) -> str:
    """The command-line flag of an option."""
    return f"--{name.replace('_', '-')}"


def load_settings(flags: dict[str, Any], config_file: Path | None = None) -> Settings:
    """Settings from flags (None: not given), environment and a YAML file.

    Raises:
        InvalidRequest: names the option, what is wrong with it and where it was given.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    variables = _variables()
    from_file = {} if config_file is None else _read_yaml(config_file)
    values = {key: value for key, value in from_file.items() if variable(key) not in variables}
    try:
        return Settings(**(values | given))
    except ValidationError as error:
        first = error.errors()[0]
        problem = first["msg"].removeprefix("Value error, ")
        name = ".".join(str(part) for part in first["loc"])
        if not name:  # options that contradict each other; the problem begins with the name of one
            name, _, problem = problem.partition(": ")
            raise InvalidRequest(name, problem) from None
        if name in given:
            where = flag(name)
        elif variable(name) in variables:
            where = variable(name)
        else:
            where = str(config_file)
        raise InvalidRequest(name, f"{problem} ({where})") from None


def _variables() -> set[str]:
    """Names of the options' variables that are set, in upper case."""
    known = {variable(name) for name in Settings.model_fields}
    ours = {key.upper() for key in os.environ if key.upper().startswith(ENV_PREFIX)}
    for name in sorted(ours - known):
        # A misspelt option must not be silently without effect.
        if not _KUBERNETES_LINK.fullmatch(name):
            raise InvalidRequest(name, "unknown option")
    return ours & known


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest("config", f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise InvalidRequest("config", f"{path}: {problem}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise InvalidRequest("config", f"{path}: a mapping of option names was expected")
    for key in loaded:
        if key not in Settings.model_fields:
            raise InvalidRequest(str(key), f"unknown option ({path})")
    return loaded
