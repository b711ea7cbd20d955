"""Reads named weights as fp32 tensors, from safetensors or from GGUF.

Names are those of Hugging Face Llama checkpoints; GGUF names and its layout of q and k rows are
translated here and nowhere else.  Not here: what the weights are for.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import gguf.quants
import numpy as np
import safetensors
import torch
from gguf.constants import GGMLQuantizationType

from gpu_worker.model_config import ModelConfig
from protos.errors import ModelError
from radixd.chassis.gguf_file import GgufFile

_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "rope_factors": "rope_freqs.weight",
}
_GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")


class WeightReader(Protocol):
    """Gives weights by name."""

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A fresh fp32 tensor; the first dimension in the file may be larger and is cut.

        Raises:
            ModelError: it is missing, of another shape, or cannot be read.
        """
        ...


class GgufWeights:
    """Weights of a llama-architecture GGUF file; every block type is dequantised."""

    def __init__(
        self, file: GgufFile, config: ModelConfig, on_bytes: Callable[[int], None]
    ) -> None:
        self._file = file
        self._heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
        self._on_bytes = on_bytes

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return _gguf_name(name) in self._file.tensors

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See WeightReader."""
        entry = self._file.tensor(_gguf_name(name))
        _check_shape(self._file.path, entry.name, entry.shape, shape)
        raw = np.frombuffer(self._file.tensor_bytes(entry.name), np.uint8)
        if len(entry.shape) > 1:
            raw = raw.reshape(entry.shape[0], -1)
        try:
            values = gguf.quants.dequantize(raw, GGMLQuantizationType(entry.type_id))
        except (NotImplementedError, ValueError) as error:
            raise ModelError(
                self._file.path, f"tensor {entry.name} of type {entry.type_name}: {error}"
            ) from None
        values = np.ascontiguousarray(values, np.float32).reshape(entry.shape)[: shape[0]]
        for part, num_heads in self._heads.items():
            if f".{part}." in entry.name:
                values = unpermute_rope_rows(values, num_heads)
        self._on_bytes(entry.num_bytes)
        return torch.from_numpy(values if values.flags.writeable else values.copy())


class SafetensorsWeights:
    """Weights of a Hugging Face folder, in one file or in several with an index."""

    def __init__(self, folder: Path, on_bytes: Callable[[int], None]) -> None:
        self._folder = folder
        self._on_bytes = on_bytes
        self._files: dict[Path, Any] = {}
        self._path_of = self._directory()

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._path_of

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See WeightReader."""
        path = self._path_of.get(name)
        if path is None:
            raise ModelError(self._folder, f"tensor {name} is missing")
        try:
            stored = self._open(path).get_tensor(name)
        except safetensors.SafetensorError as error:
            raise ModelError(path, f"tensor {name} cannot be read: {error}") from None
        _check_shape(path, name, tuple(stored.shape), shape)
        if not stored.is_floating_point():
            raise ModelError(path, f"tensor {name} holds {stored.dtype}, not floats")
        self._on_bytes(stored.numel() * stored.element_size())
        # A copy in any case: what get_tensor returns may lie in the mapped file.
        return stored[: shape[0]].to(torch.float32, copy=True)

    def _directory(self) -> dict[str, Path]:
        index = self._folder / "model.safetensors.index.json"
        if not index.is_file():
            paths = sorted(self._folder.glob("*.safetensors"))
            return {name: path for path in paths for name in self._open(path).keys()}  # noqa: SIM118
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            directory = {name: self._folder / file for name, file in listed.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(index, f"not an index of safetensors: {error}") from None
        for path in sorted(set(directory.values())):
            self._open(path)
        return directory

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safetensors.safe_open(path, framework="pt")
            except (safetensors.SafetensorError, OSError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise ModelError(path, f"truncated or not safetensors: {reason}") from None
        return self._files[path]


def unpermute_rope_rows(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows [num_heads * head_dim, ...] from rotary pairs side by side to pairs half a head apart.

    GGUF files of this architecture interleave the two halves of each head; the model code, like
    the checkpoints, wants them one after the other.
    """
    half = rows.shape[0] // num_heads // 2
    paired = rows.reshape(num_heads, half, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)


def _gguf_name(name: str) -> str:
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        return _GGUF_NAMES.get(name, name)
    return f"blk.{match[1]}.{_GGUF_PARTS[match[2]]}.weight"


def _check_shape(path: Path, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    # Only rows of a vocabulary may be padded, and only those are asked for with fewer.
    if len(found) != len(wanted) or found[1:] != wanted[1:] or found[0] < wanted[0]:
        raise ModelError(path, f"tensor {name} has shape {found}, expected {wanted}")
    padded = "embed" in name or "embd" in name or name in ("lm_head.weight", "output.weight")
    if found[0] != wanted[0] and not padded:
        raise ModelError(path, f"tensor {name} has shape {found}, expected {wanted}")
