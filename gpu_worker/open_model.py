"""From a model source to its configuration and a reader of its weights, and to its fingerprint.

Not here: finding the source, which backend computes with it.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_worker.accuracy_tokens import folder_token_ids, gguf_token_ids
from gpu_worker.folder_config import config_from_folder
from gpu_worker.gguf_config import config_from_gguf
from gpu_worker.gguf_weights import GgufWeights
from gpu_worker.model_config import ModelConfig
from gpu_worker.safetensors_weights import SafetensorsWeights
from gpu_worker.weights import WeightReader
from radixd.chassis.gguf_file import GgufFile
from radixd.chassis.model_source import ModelSource
from radixd.chassis.progress import byte_progress

if TYPE_CHECKING:
    from gpu_worker.weight_home import WeightHome  # imports torch

_SAMPLE_BYTES = 4096
_NUM_SAMPLES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A model whose weights can be read, as often as wanted."""

    source: ModelSource
    config: ModelConfig
    fingerprint: str
    total_bytes: int
    make_reader: Callable[[Callable[[int], None]], WeightReader]
    """From what is told the size of each tensor that was read."""
    accuracy_token_ids: Callable[[], list[int]]
    """The text of the accuracy gate as tokens of this model."""
    in_home: "Callable[[WeightHome], WeightHome]" = lambda home: home
    """Around the home that a backend gives its weights."""
    agree: Callable[[int], int] = lambda value: value
    """The smallest of what ranks give; each asks as often as the others."""
    shows_progress: bool = True

    def quiet_reader(self) -> WeightReader:
        """A reader without progress."""
        return self.make_reader(lambda _num_bytes: None)

    @contextlib.contextmanager
    def reading(self) -> Iterator[WeightReader]:
        """A reader whose progress shows on stderr."""
        if not self.shows_progress:
            yield self.quiet_reader()
            return
        label = f"loading {self.source.model_id}"
        with byte_progress(label, self.total_bytes) as on_bytes:
            yield self.make_reader(on_bytes)


@contextlib.contextmanager
def open_model(source: ModelSource) -> Iterator[OpenModel]:
    """The model in these files, open for the time of the block.

    Raises:
        ModelError: a file is missing, truncated or foreign.
    """
    if source.kind == "gguf":
        with GgufFile(source.path) as file:
            config = config_from_gguf(file)
            yield OpenModel(
                source=source,
                config=config,
                fingerprint=_fingerprint(source),
                total_bytes=sum(tensor.num_bytes for tensor in file.tensors.values()),
                make_reader=lambda on_bytes: GgufWeights(file, config, on_bytes),
                accuracy_token_ids=lambda: gguf_token_ids(file),
            )
        return
    yield OpenModel(
        source=source,
        config=config_from_folder(source.path),
        fingerprint=_fingerprint(source),
        total_bytes=sum(path.stat().st_size for path in source.path.glob("*.safetensors")),
        make_reader=lambda on_bytes: SafetensorsWeights(source.path, on_bytes),
        accuracy_token_ids=lambda: folder_token_ids(source.path),
    )


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
