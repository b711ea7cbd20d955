"""How a model of transformers is made to ask us for its attention.

Its attention modules look up a function by name (AttentionInterface); ours passes the call on to
whoever is bound to the model.  Not here: what attention computes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

MASKED = "radixd_masked"
"""Name of the attention whose calls are told what the model hides; for looking at a model."""
_UNMASKED = "radixd"
"""Name of the attention that knows by itself what is hidden."""

_HARMLESS = frozenset(
    ("cache_position", "dropout", "is_causal", "position_ids", "sliding_window", "use_cache")
)
"""What a call may say beside: known to us otherwise, or without effect on what is computed."""


class ForeignModelRefused(Exception):
    """A model of transformers that cannot be computed over a pool; says what stands in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One layer's attention over the tokens of a step."""

    layer: int
    query: torch.Tensor
    """[num_tokens, heads, key_dim]"""
    key: torch.Tensor
    """[num_tokens, kv_heads, key_dim]"""
    value: torch.Tensor
    """[num_tokens, kv_heads, value_dim]"""
    scale: float
    soft_cap: float
    """0: none."""
    mask: Any
    """What the function for masks gave, if it was asked."""


Attend = Callable[[AttentionCall], torch.Tensor]
"""Gives [num_tokens, heads, value_dim]."""

_HOLDER = "radixd_attend"


def bind(model: torch.nn.Module, attend: Attend, mask: Callable[..., Any] | None = None) -> None:
    """Sends the attention of all layers to `attend`, from now on.

    mask: called as transformers calls its functions for masks; what it gives comes with the calls.
    """
    for name in (_UNMASKED, MASKED):
        ALL_ATTENTION_FUNCTIONS.register(name, _pass_on)
    if mask is not None:
        ALL_MASK_ATTENTION_FUNCTIONS.register(MASKED, mask)
    for module in model.modules():
        setattr(module, _HOLDER, attend)
    model.set_attn_implementation(_UNMASKED if mask is None else MASKED)


def _pass_on(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Tensors [1, heads, num_tokens, dim], as transformers calls; gives [1, num_tokens, ...]."""
    _refuse_unknown(others)
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ForeignModelRefused("its attention does not say of which layer it is")
    call = AttentionCall(
        layer=layer,
        query=query[0].transpose(0, 1),
        key=key[0].transpose(0, 1),
        value=value[0].transpose(0, 1),
        scale=1.0 / math.sqrt(query.shape[-1]) if scaling is None else float(scaling),
        soft_cap=float(softcap or 0.0),
        mask=attention_mask,
    )
    # As transformers' own functions give it: some models view it in another shape.
    return getattr(module, _HOLDER)(call).contiguous()[None], None


def _refuse_unknown(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        # False and None are ways not to ask; attention weights are ours to refuse.
        if value is not None and value is not False and name not in _HARMLESS:
            if name == "s_aux":
                raise ForeignModelRefused("its attention has sinks")
            raise ForeignModelRefused(f"its attention takes {name}")
