"""An engine on a model of an 8B shape whose weights are random and lie in no file."""

import zlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from gpu_worker.blocks import BlockKind, Blocks, FloatArray
from gpu_worker.device.device_backend import DeviceBackend, DeviceOptions
from gpu_worker.model_config import ModelConfig
from gpu_worker.model_engine import EngineLimits, ModelEngine, ModelIdentity
from tests.gpu.place import Place
from tests.gpu.work import ModelShape

Mode = Literal["eager", "graphs"]

PAGE_SIZE = 16
_SPREAD = 1 << 20
"""How far apart in the room two tensors can begin, in numbers."""
_DEVIATION = 0.02
"""Of all matrices, as models are initialised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """What is run."""

    model: ModelConfig
    batches: tuple[int, ...]
    context: int
    """Tokens of each row before it decodes."""
    num_warm: int
    """Steps of each batch before those that are timed."""
    num_steps: int
    """Timed, for each batch."""
    prompt: int
    """Tokens of the prompt whose first token is waited for."""
    num_prompts: int
    chunk: int
    """Tokens of a step that fills contexts."""

    @property
    def most_rows(self) -> int:
        """Rows of the largest batch, and the prompts."""
        return max(self.batches) + self.num_prompts

    @property
    def num_slots(self) -> int:
        """For every token that is computed, in whole pages; slots are not used again."""
        decoded = len(self.batches) * (self.num_warm + 2 * self.num_steps)
        rows = max(self.batches) * (self.context + decoded + PAGE_SIZE)
        return rows + self.num_prompts * (self.prompt + PAGE_SIZE)


def config(**changes: int) -> ModelConfig:
    """Llama 3.1 8B but for the values that change."""
    values = {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_layers": 32,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
    }
    return ModelConfig(
        norm_eps=1e-5,
        rope_theta=500_000.0,
        rope_scaling=None,
        max_length=131_072,
        tied_embeddings=False,
        eos_token_ids=(),
        **(values | changes),
    )


FULL = EngineSizes(
    model=config(),
    batches=(1, 16, 64, 256),
    context=512,
    num_warm=4,
    num_steps=32,
    prompt=8192,
    num_prompts=4,
    chunk=8192,
)
TINY = EngineSizes(
    model=config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_layers=1, num_heads=2,
        num_kv_heads=1, head_dim=16,
    ),
    batches=(1, 2, 2, 3),
    context=3,
    num_warm=1,
    num_steps=2,
    prompt=5,
    num_prompts=2,
    chunk=6,
)  # fmt: skip


def sizes_of(place: Place) -> EngineSizes:
    """What is run there."""
    return TINY if place.is_tiny else FULL


def model_shape(model: ModelConfig, itemsize: int) -> ModelShape:
    """What decides how many bytes and operations a step takes."""
    return ModelShape(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size,
        itemsize=itemsize,
    )


class RandomReader:
    """WeightReader whose matrices are windows of one room of numbers, each at a place of its own.

    The numbers are drawn on the device, once; a window costs nothing to make.
    """

    def __init__(self, place: Place, most: int) -> None:
        """most: numbers of the largest matrix."""
        room = _DEVIATION * place.randn(most + _SPREAD, dtype=torch.float32)
        self._room: FloatArray = room.cpu().numpy()

    def has(self, name: str) -> bool:
        """See WeightReader."""
        return name != "rope_factors"

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """See WeightReader: not fresh, and not to be written."""
        start, count = zlib.crc32(name.encode()) % _SPREAD, int(np.prod(shape))
        window: FloatArray = self._room[start : start + count].reshape(shape)
        return window if len(shape) > 1 else np.float32(1.0) + window

    def read_blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        """See WeightReader."""
        return None

    def block_kind(self, name: str) -> BlockKind | None:
        """See WeightReader."""
        return None


def random_reader(place: Place) -> RandomReader:
    """Of the model that is run there."""
    model = sizes_of(place).model
    return RandomReader(place, max(model.vocab_size, model.intermediate_size) * model.hidden_size)


def make_engine(
    mode: Mode, place: Place, reader: RandomReader
) -> tuple[ModelEngine, DeviceBackend]:
    """The engine that a worker would run on this device, and what it runs on."""
    sizes = sizes_of(place)
    limits = EngineLimits(
        num_slots=sizes.num_slots,
        max_rows=sizes.most_rows,
        max_length=max(sizes.prompt, sizes.num_slots // max(sizes.batches)) + PAGE_SIZE,
    )
    options = DeviceOptions(
        num_slots=limits.num_slots,
        max_rows=limits.max_rows,
        max_length=limits.longest(sizes.model),
        device=str(place.device),
        dtype=place.dtype,
        graphs=mode == "graphs",
    )
    backend = DeviceBackend(sizes.model, reader, options)
    identity = ModelIdentity(model_id="random", model_hash="random")
    return ModelEngine(sizes.model, backend, limits, identity), backend
