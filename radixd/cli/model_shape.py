"""Reads from a model's headers how large it is, without loading a weight or importing torch.

Enough for advice on memory.  Whether the worker can run the model is the worker's to say.
"""

import json
import math
from dataclasses import dataclass
from operator import index
from pathlib import Path

from protos.errors import ModelError
from radixd.chassis.gguf_file import GgufFile
from radixd.chassis.safetensors_file import read_directory

FP32_BYTES = 4
_GEMMA_3 = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
"""What the text_config of a model that can see leaves out where it is usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What memory depends on, and how many ranks there can be."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_parameters: int

    def __post_init__(self) -> None:
        if min(self.num_heads, self.num_kv_heads) < 1:
            raise ValueError("no heads")

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Bytes of keys and values of one slot; in int8, each head has a scale in fp32."""
        head = self.head_dim + FP32_BYTES if kv_dtype == "int8" else self.head_dim * FP32_BYTES
        return 2 * self.num_layers * self.num_kv_heads * head

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, in fp32: what `auto` may end with, and measures against."""
        return self.num_parameters * FP32_BYTES


def read_shape(path: Path) -> ModelShape:
    """The shape of a GGUF file or of a folder with config.json and safetensors.

    Raises:
        ModelError: names the file and what is wrong with it.
    """
    try:
        return _read_folder(path) if path.is_dir() else _read_gguf(path)
    except OSError as error:
        raise ModelError(error.filename or path, error.strerror or "cannot be read") from None
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(path, f"not a model of the Llama family ({error})") from None


def _read_folder(folder: Path) -> ModelShape:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "text_config" in config:
        config = _GEMMA_3 | config["text_config"]
    heads = index(config["num_attention_heads"])
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ModelError(folder, "holds no .safetensors file")
    return ModelShape(
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=index(config.get("num_key_value_heads") or heads),
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        num_parameters=sum(
            math.prod(tensor.shape) for file in weights for tensor in read_directory(file).values()
        ),
    )


def _read_gguf(path: Path) -> ModelShape:
    with GgufFile(path) as file:
        family = file.text("general.architecture")
        heads = file.integer(f"{family}.attention.head_count")
        hidden_size = file.integer(f"{family}.embedding_length")
        return ModelShape(
            num_layers=file.integer(f"{family}.block_count"),
            num_heads=heads,
            num_kv_heads=file.integer(f"{family}.attention.head_count_kv", heads),
            head_dim=file.integer(f"{family}.attention.key_length", hidden_size // max(heads, 1)),
            num_parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        )
