"""Weights of a llama-architecture GGUF file.

GGUF's names and its layout of q and k rows are translated here and nowhere else.  The plain types
and blocks of 4 and 8 bits are read by a few lines of numpy, all others by the library `gguf`, which
is imported only for them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpu_worker.blocks import BlockKind, Blocks, FloatArray, HalfArray, dequantise
from gpu_worker.model_config import ModelConfig
from gpu_worker.weights import check_finite, check_shape, widen_bfloat16
from protos.errors import ModelError
from radixd.chassis.gguf_file import GgufFile, GgufTensor

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "rope_factors": "rope_freqs.weight",
}
_PARTS = {
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

_PLAIN: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
}
_BLOCKS: Mapping[str, tuple[BlockKind, np.dtype[Any]]] = {
    # A block in the file: 32 inputs; nibbles lie as in Blocks.
    "Q4_0": ("int4", np.dtype([("scale", "<f2"), ("values", "u1", 16)])),
    "Q4_1": ("int4", np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("values", "u1", 16)])),
    "Q8_0": ("int8", np.dtype([("scale", "<f2"), ("values", "i1", 32)])),
}


class GgufWeights:
    """WeightReader of a GGUF file."""

    def __init__(
        self, file: GgufFile, config: ModelConfig, on_bytes: Callable[[int], None]
    ) -> None:
        self._file = file
        self._heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
        self._on_bytes = on_bytes

    def has(self, name: str) -> bool:
        """See WeightReader."""
        return _gguf_name(name) in self._file.tensors

    def block_kind(self, name: str) -> BlockKind | None:
        """See WeightReader."""
        entry = self._file.tensors.get(_gguf_name(name))
        if entry is None or entry.type_name not in _BLOCKS or len(entry.shape) != 2:
            return None
        return _BLOCKS[entry.type_name][0]

    def read(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """See WeightReader."""
        if len(shape) == 2 and (blocks := self.read_blocks(name, (shape[0], shape[1]))):
            return dequantise(blocks)
        entry = self._entry(name, shape)
        values = self._values(entry).reshape(entry.shape)[: shape[0]]
        num_heads = self._num_heads(entry.name)
        if num_heads:
            values = values[rope_row_order(len(values), num_heads)]
        check_finite(self._file.path, entry.name, values)
        self._on_bytes(entry.num_bytes)
        values = np.ascontiguousarray(values)
        return values if values.flags.writeable else values.copy()

    def read_blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        """See WeightReader."""
        entry = self._entry(name, shape)
        if entry.type_name not in _BLOCKS:
            return None
        kind, dtype = _BLOCKS[entry.type_name]
        stored = np.frombuffer(self._file.tensor_bytes(entry.name), dtype)
        stored = stored.reshape(entry.shape[0], -1)[: shape[0]]
        num_heads = self._num_heads(entry.name)
        if num_heads:
            stored = stored[rope_row_order(len(stored), num_heads)]
        scale = np.ascontiguousarray(stored["scale"], np.float16)
        minimum = _minimum(entry.type_name, stored, scale)
        if not (np.isfinite(scale).all() and np.isfinite(minimum).all()):
            return None  # `read` says whether the values themselves are finite
        self._on_bytes(entry.num_bytes)
        return Blocks(kind=kind, values=stored["values"], scale=scale, minimum=minimum)

    def _entry(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        entry = self._file.tensor(_gguf_name(name))
        check_shape(self._file.path, entry.name, entry.shape, shape)
        return entry

    def _num_heads(self, gguf_name: str) -> int:
        """Of a tensor whose rows GGUF reorders; else 0."""
        return next((n for part, n in self._heads.items() if f".{part}." in gguf_name), 0)

    def _values(self, entry: GgufTensor) -> FloatArray:
        """All values of a tensor without blocks of ours, flat or by rows."""
        raw = np.frombuffer(self._file.tensor_bytes(entry.name), np.uint8)
        if entry.type_name in _PLAIN:
            return raw.view(_PLAIN[entry.type_name]).astype(np.float32, copy=False)
        if entry.type_name == "BF16":
            return widen_bfloat16(raw.view("<u2"))
        import gguf.quants  # a fifth of a second that few files need

        if len(entry.shape) > 1:
            raw = raw.reshape(entry.shape[0], -1)
        try:
            kind = gguf.GGMLQuantizationType(entry.type_id)
            values: FloatArray = gguf.quants.dequantize(raw, kind)
        except (NotImplementedError, ValueError) as error:
            raise ModelError(
                self._file.path, f"tensor {entry.name} of type {entry.type_name}: {error}"
            ) from None
        return values


def rope_row_order(num_rows: int, num_heads: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Which row of the file stands at each place of q or k.

    GGUF files of this architecture interleave the two halves of each head, so that rotary pairs lie
    side by side; the model code, like the checkpoints, wants one half after the other.
    """
    order = np.arange(num_rows).reshape(num_heads, -1, 2)
    return order.swapaxes(1, 2).reshape(-1)


def _minimum(type_name: str, stored: np.ndarray[Any, Any], scale: HalfArray) -> HalfArray:
    if type_name == "Q4_1":
        return np.ascontiguousarray(stored["minimum"], np.float16)
    if type_name == "Q8_0":
        return np.zeros_like(scale)
    # Q4_0 means scale * (q - 8).  Times a power of two: exact, unless the product overflows.
    with np.errstate(over="ignore"):
        return scale * np.float16(-8)


def _gguf_name(name: str) -> str:
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        return _NAMES.get(name, name)
    return f"blk.{match[1]}.{_PARTS[match[2]]}.weight"
