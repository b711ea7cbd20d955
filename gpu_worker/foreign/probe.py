"""What a model's attention is like, found out by looking at it while it computes a few tokens.

A model is refused here if its tokens see anything but, layer by layer, the keys and values of the
tokens before them in their own row: then no pool could stand in for what it remembers.
Not here: loading it, computing steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gpu_worker.foreign.attention_seam import AttentionCall, ForeignModelRefused, bind
from gpu_worker.model_config import ModelConfig
from protos.errors import first_line

_FIRST, _SECOND = (2, 5, 3, 7, 4), (6, 1, 8)
"""Tokens of two rows; ids that every vocabulary has."""
_TOLERANCE = 1e-3
"""Of logits, of their largest, in float32; rounding is a hundredth of it."""
_ROUGH_TOLERANCE = 0.1
"""The same in types of 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Of one layer's attention."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    soft_cap: float
    window: int


def probed(model: Any, config: ModelConfig) -> ModelConfig:
    """The configuration with what the model's attention turned out to be.

    Values narrower than keys are stored in rows as wide as keys.

    Raises:
        ForeignModelRefused: it cannot be computed over a pool; says why.
    """
    layers = _look(model, config)
    first = layers[0]
    for layer in layers[1:]:
        if replace(layer, window=first.window) != first:
            raise ForeignModelRefused("the attention of its layers differs in shape or scale")
    if first.value_dim > first.key_dim:
        raise ForeignModelRefused("its values are wider than its keys")
    _check_rows(model)
    windows = tuple(layer.window for layer in layers)
    return replace(
        config,
        num_layers=len(layers),
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.key_dim,
        query_scale=first.scale,
        attention_soft_cap=first.soft_cap,
        windows=windows if any(windows) else (),
    )


def _look(model: Any, config: ModelConfig) -> list[_Layer]:
    found: dict[int, _Layer] = {}

    def attend(call: AttentionCall) -> torch.Tensor:
        if call.layer in found:
            raise ForeignModelRefused(f"layer {call.layer} attends more than once")
        found[call.layer] = _Layer(
            num_heads=call.query.shape[1],
            num_kv_heads=call.key.shape[1],
            key_dim=call.key.shape[2],
            value_dim=call.value.shape[2],
            scale=call.scale,
            soft_cap=call.soft_cap,
            window=_told_window(call.mask),
        )
        return call.value.new_zeros(*call.query.shape[:2], call.value.shape[2])

    def mask(batch_size: int, q_length: int, kv_length: int, *_: Any, **asked: Any) -> torch.Tensor:
        window = window_of(asked["mask_function"], config.max_length)
        # Of the shape of a mask, as some models cut pieces out of it.
        shape = (batch_size, 1, q_length, kv_length)
        return torch.full(shape, float(window), device=model.device)

    bind(model, attend, mask)
    _compute(model, [_FIRST])
    if sorted(found) != list(range(config.num_layers)):
        counts = f"{len(found)} of its {config.num_layers} layers"
        raise ForeignModelRefused(f"{counts} take their attention from transformers' interface")
    return [found[index] for index in range(config.num_layers)]


def _told_window(mask: Any) -> int:
    if not isinstance(mask, torch.Tensor):
        raise ForeignModelRefused("its attention does not say what it hides")
    return int(mask.flatten()[0])


def window_of(mask_function: Any, max_length: int) -> int:
    """How many positions a query sees by a mask of transformers, itself the last; 0: all.

    mask_function: (batch, head, query, key) -> whether it sees, of integer tensors.

    Raises:
        ForeignModelRefused: it sees others than the latest.
    """
    positions = torch.arange(max_length)

    def num_seen(query: int) -> int:
        zero = torch.zeros((), dtype=torch.int64)
        seen = torch.as_tensor(mask_function(zero, zero, torch.tensor(query), positions))
        seen = seen.expand(max_length)
        count = int(seen.sum())
        if not seen[query + 1 - count : query + 1].all():
            raise ForeignModelRefused("its tokens see others than the latest before them")
        return count

    window = num_seen(max_length - 1)
    for query in {0, window // 2, window - 1, window, window + 1, 3 * window // 2, max_length // 2}:
        if query < max_length and num_seen(query) != min(query + 1, window):
            raise ForeignModelRefused("its tokens see others than the latest before them")
    return 0 if window == max_length else window


def _check_rows(model: Any) -> None:
    """Two rows side by side must get the logits that each gets alone."""

    row = torch.tensor([0] * len(_FIRST) + [1] * len(_SECOND), device=model.device)

    def attend(call: AttentionCall) -> torch.Tensor:
        num_tokens = len(call.query)
        order = torch.arange(num_tokens, device=model.device)
        seen = order[:, None] >= order
        if num_tokens == len(row):
            seen &= row[:, None] == row
        return _plain_attention(call, seen)

    bind(model, attend)
    together = _compute(model, [_FIRST, _SECOND])
    alone = torch.cat([_compute(model, [_FIRST]), _compute(model, [_SECOND])])
    rough = model.dtype in (torch.bfloat16, torch.float16)
    allowed = (_ROUGH_TOLERANCE if rough else _TOLERANCE) * float(alone.abs().max())
    if not bool((together - alone).abs().max() <= allowed):
        raise ForeignModelRefused("its tokens hear of each other by other ways than attention")


def _plain_attention(call: AttentionCall, seen: torch.Tensor) -> torch.Tensor:
    """Softmax attention; windows are wider than the few tokens here."""
    groups = call.query.shape[1] // call.key.shape[1]
    keys, values = (x.repeat_interleave(groups, dim=1) for x in (call.key, call.value))
    scores = torch.einsum("qhd,khd->hqk", call.query, keys) * call.scale
    if call.soft_cap:
        scores = torch.tanh(scores / call.soft_cap) * call.soft_cap
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def _compute(model: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Float32 logits [num_tokens, vocab] of rows side by side."""
    device = model.device
    tokens = torch.tensor([[token for row in rows for token in row]], device=device)
    places = torch.tensor([[at for row in rows for at in range(len(row))]], device=device)
    try:
        with torch.inference_mode():
            out = model(input_ids=tokens, position_ids=places, use_cache=False)
    except ForeignModelRefused:
        raise
    except Exception as error:  # whatever somebody else's code says to being used so
        raise ForeignModelRefused(f"{type(error).__name__}: {first_line(error)}") from error
    logits: torch.Tensor = out.logits[0].float()
    return logits
