"""From a model source to an engine: configuration, weights with progress, fingerprint.

Not here: finding the source, computing with it.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import structlog

from gpu_worker.llama import LlamaWeights, load_llama
from gpu_worker.model_config import ModelConfig, config_from_folder, config_from_gguf
from gpu_worker.model_engine import EngineLimits, ModelEngine, ModelIdentity
from gpu_worker.torch_backend import TorchBackend
from gpu_worker.weights import GgufWeights, SafetensorsWeights
from protos.errors import ModelError
from radixd.chassis.gguf_file import GgufFile
from radixd.chassis.model_source import ModelSource
from radixd.chassis.progress import byte_progress

_log = structlog.get_logger(__name__)

_SAMPLE_BYTES = 4096
_NUM_SAMPLES = 256


def load_engine(source: ModelSource, limits: EngineLimits) -> ModelEngine:
    """An engine on this model.

    Raises:
        ModelError: the model cannot be loaded, or its pool does not fit in memory; one line.
    """
    config, weights = load_model(source)
    identity = ModelIdentity(model_id=source.model_id, model_hash=_fingerprint(source))
    try:
        backend = TorchBackend(
            config,
            weights,
            num_slots=limits.num_slots,
            max_length=limits.longest(config),
            poison=limits.poison,
        )
    except RuntimeError as error:  # torch's word for memory that is not to be had
        reason = str(error).splitlines()[0]
        raise ModelError(source.path, f"no memory for {limits.num_slots} slots: {reason}") from None
    engine = ModelEngine(config, backend, limits, identity)
    hello = engine.hello()
    _log.info(
        "model_loaded",
        model=hello.model_id,
        num_layers=config.num_layers,
        max_length=hello.max_length,
        num_slots=hello.num_slots,
        kv_bytes_per_slot=hello.kv_bytes_per_slot,
    )
    return engine


def load_model(source: ModelSource) -> tuple[ModelConfig, LlamaWeights]:
    """Configuration and weights, with progress on stderr.

    Raises:
        ModelError: a file is missing, truncated or foreign.
    """
    label = f"loading {source.model_id}"
    if source.kind == "gguf":
        with GgufFile(source.path) as file:
            config = config_from_gguf(file)
            total_bytes = sum(tensor.num_bytes for tensor in file.tensors.values())
            with byte_progress(label, total_bytes) as on_bytes:
                return config, load_llama(config, GgufWeights(file, config, on_bytes))
    config = config_from_folder(source.path)
    total_bytes = sum(path.stat().st_size for path in source.path.glob("*.safetensors"))
    with byte_progress(label, total_bytes) as on_bytes:
        return config, load_llama(config, SafetensorsWeights(source.path, on_bytes))


def _fingerprint(source: ModelSource) -> str:
    """Hash of the configuration and of samples of the weights.

    Samples, as hashing tens of gigabytes would delay each start: it tells models apart that differ
    by training or quantisation, not one that was changed by hand in a few places.
    """
    digest = hashlib.blake2b(digest_size=16)
    if source.kind == "huggingface":
        digest.update((source.path / "config.json").read_bytes())
        files: Iterable[Path] = sorted(source.path.glob("*.safetensors"))
    else:
        files = [source.path]
    for path in files:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for index in range(_NUM_SAMPLES):
                file.seek(max(size - _SAMPLE_BYTES, 0) * index // (_NUM_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
