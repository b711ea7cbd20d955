"""From settings, or a model source, to an engine: files, backend, books.

Not here: finding the source, computing with it.
"""

from typing import Protocol

import structlog

from gpu_worker.backend_choice import BackendOptions, make_backend
from gpu_worker.model_engine import EngineLimits, ModelEngine, ModelIdentity
from gpu_worker.open_model import OpenModel, open_model
from radixd.chassis.model_source import ModelSource, resolve_model
from radixd.chassis.processors import usable_processors
from radixd.chassis.settings import Settings
from radixd.chassis.vocabulary import read_vocabulary

_log = structlog.get_logger(__name__)


class Part(Protocol):
    """A rank of several (gpu_worker.parallel)."""

    def part_of(self, model: OpenModel) -> OpenModel:
        """What the rank holds of a model, and how its products become whole."""
        ...


def engine_for(settings: Settings, part: Part | None = None) -> ModelEngine:
    """The engine that the settings ask for, or one rank's; the fake worker's is none of these.

    Raises:
        ModelError: see load_engine.
        InvalidRequest: see load_engine.
    """
    limits = EngineLimits(
        num_slots=settings.cpu_kv_slots,
        max_rows=settings.max_running,
        max_length=settings.max_length,
        poison=settings.log_level == "debug",
    )
    options = BackendOptions(
        device=settings.device,
        backend=settings.backend,
        weights=settings.weights,
        kv_dtype=settings.kv_dtype,
        num_threads=max(1, (settings.num_threads or usable_processors()) // settings.tp),
        cpu_kernels=settings.cpu_kernels,
        deterministic=settings.deterministic,
        fit_pool=settings.kv_slots == "auto",
        memory_fraction=settings.memory_fraction,
        max_batch_tokens=settings.max_batch_tokens,
        max_draws=_max_draws(settings),
        tp=settings.tp,
    )
    return load_engine(resolve_model(settings.model), limits, options, part)


def _max_draws(settings: Settings) -> int:
    """Of a step: one a row, or as many as the few rows that guess have drafts and one more."""
    if settings.speculation == "off":
        return settings.max_running
    guessed = settings.speculation_rows * (1 + settings.max_drafts)
    return max(settings.max_running, guessed)


def load_engine(
    source: ModelSource,
    limits: EngineLimits,
    options: BackendOptions | None = None,
    part: Part | None = None,
) -> ModelEngine:
    """An engine on this model; fp32 on one thread unless options say otherwise.

    Raises:
        ModelError: the model cannot be loaded, or its pool does not fit in memory; one line.
        InvalidRequest: the options ask for what cannot be had here.
    """
    with open_model(source) as whole:
        model = whole if part is None else part.part_of(whole)
        backend = make_backend(model, limits, options or BackendOptions())
        # Weights of another precision give other keys and values for the same tokens.
        model_hash = f"{model.fingerprint}-{backend.weights}"
        identity = ModelIdentity(model_id=source.model_id, model_hash=model_hash)
        engine = ModelEngine(
            model.config, backend, limits, identity, lambda: read_vocabulary(source)
        )
    _log.info(
        "model_loaded",
        model=source.model_id,
        backend=backend.name,
        device=backend.device,
        weights=backend.weights,
        kv_dtype=backend.kv_dtype,
        num_layers=model.config.num_layers,
        max_length=engine.hello().max_length,
        num_slots=backend.num_slots,
        kv_bytes_per_slot=backend.kv_bytes_per_slot,
    )
    return engine
