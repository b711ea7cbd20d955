"""From a model source to an engine: files, backend, books.

Not here: finding the source, computing with it.
"""

import structlog

from gpu_worker.backend_choice import BackendOptions, make_backend
from gpu_worker.model_engine import EngineLimits, ModelEngine, ModelIdentity
from gpu_worker.open_model import open_model
from radixd.chassis.model_source import ModelSource
from radixd.chassis.vocabulary import read_vocabulary

_log = structlog.get_logger(__name__)


def load_engine(
    source: ModelSource, limits: EngineLimits, options: BackendOptions | None = None
) -> ModelEngine:
    """An engine on this model; fp32 on one thread unless options say otherwise.

    Raises:
        ModelError: the model cannot be loaded, or its pool does not fit in memory; one line.
        InvalidRequest: the options ask for what cannot be had here.
    """
    with open_model(source) as model:
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
