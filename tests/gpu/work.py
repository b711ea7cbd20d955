"""Bytes and operations that a case cannot do without, from its shapes alone.

What is counted is what must cross memory once: inputs read, results written.  Partial results,
second passes and padding are the kernel's own affair, and show as a lower share of the roofline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kernels.kv_codes import KvKind

Bound = Literal["memory", "matrix units"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Of one run."""

    num_bytes: int
    flops: int = 0
    """On matrix units; what vector units do is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One layer's attention over a batch."""

    lengths: Sequence[int]
    """Contexts of rows, with the query tokens, which are their last."""
    queries: Sequence[int]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int = 1
    kind: KvKind = "none"
    itemsize: int = 2
    """Bytes of a number that is not coded."""


def attention_work(shape: AttentionShape) -> Work:
    """Keys and values once a row and KV head, pages, queries and results; the causal products."""
    stored = shape.itemsize if shape.kind == "none" else 1
    slot = 2 * shape.num_kv_heads * (shape.head_dim * stored + 4 * (shape.kind != "none"))
    token = 2 * shape.num_heads * shape.head_dim * shape.itemsize
    num_bytes = flops = 0
    for length, queries in zip(shape.lengths, shape.queries, strict=True):
        num_bytes += length * slot + queries * token + -(-length // shape.page_size) * 4
        seen = queries * (length - queries) + queries * (queries + 1) // 2
        flops += 4 * shape.num_heads * shape.head_dim * seen
    return Work(num_bytes=num_bytes, flops=flops)


def product_work(
    num_tokens: int, num_inputs: int, num_outputs: int, weight_bytes: int, itemsize: int
) -> Work:
    """Weights once, activations in and out; two operations a weight and token."""
    moved = num_tokens * (num_inputs + num_outputs) * itemsize
    return Work(num_bytes=weight_bytes + moved, flops=2 * num_tokens * num_inputs * num_outputs)


def quantised_bytes(num_inputs: int, num_outputs: int, bits: int, group: int) -> int:
    """Codes, and a float16 scale and minimum for each group of inputs."""
    return num_outputs * num_inputs * bits // 8 + num_outputs * (num_inputs // group) * 4


def logits_work(num_rows: int, vocab_size: int, *, times: int = 1) -> Work:
    """float32 logits once, or as often as said."""
    return Work(num_bytes=times * num_rows * vocab_size * 4)


def slot_bytes(num_kv_heads: int, head_dim: int, kind: KvKind, itemsize: int) -> int:
    """Keys or values of one slot of one layer, with their scales."""
    stored = itemsize if kind == "none" else 1
    return num_kv_heads * (head_dim * stored + 4 * (kind != "none"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A Llama-like model, and the precision of its numbers."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    itemsize: int = 2

    @property
    def layer_parameters(self) -> int:
        """Numbers in the matrices of one layer."""
        attention = 2 * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.hidden_size * (attention + 3 * self.intermediate_size)

    @property
    def head_parameters(self) -> int:
        """Numbers in the matrix that makes logits."""
        return self.vocab_size * self.hidden_size


def step_work(model: ModelShape, lengths: Sequence[int], queries: Sequence[int]) -> Work:
    """A step of a model: all weights once, attention of every layer, one logit row a sequence."""
    attention = attention_work(
        AttentionShape(
            lengths=lengths,
            queries=queries,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            itemsize=model.itemsize,
        )
    )
    layers = model.num_layers * model.layer_parameters
    return Work(
        num_bytes=(layers + model.head_parameters) * model.itemsize
        + model.num_layers * attention.num_bytes,
        flops=2 * sum(queries) * layers
        + 2 * len(lengths) * model.head_parameters
        + model.num_layers * attention.flops,
    )


def shared_attention_work(shape: AttentionShape, stem_len: int) -> Work:
    """As attention_work, where the first `stem_len` positions of all rows are the same slots."""
    apart = attention_work(shape)
    again = AttentionShape(
        lengths=[stem_len] * (len(shape.lengths) - 1),
        queries=[0] * (len(shape.lengths) - 1),
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        page_size=shape.page_size,
        kind=shape.kind,
        itemsize=shape.itemsize,
    )
    return Work(num_bytes=apart.num_bytes - attention_work(again).num_bytes, flops=apart.flops)
