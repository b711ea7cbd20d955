"""The arithmetic of a layer, except attention.  The only file that may import `kernels`.

Every function gives each token's row the same bits whatever other rows are in the batch, as far as
torch allows; the engine's promise of equal tokens rests on it.
"""

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)


class Linear:
    """x @ weight.T for a fixed fp32 weight [num_outputs, num_inputs], without bias.

    Repacked for oneDNN, whose results for one row do not depend on how many rows there are;
    torch's own choice of routine changes with that number, and with it the last bits.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed: torch.Tensor | None = None
        self._weight = weight
        if torch.backends.mkldnn.is_available():
            # A hint for one row would pick the routine that does depend on it; 16 does not.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
            self._weight = weight.new_empty(0)  # the packed copy is enough

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_inputs] to [num_tokens, num_outputs]."""
        if self._packed is None:
            return F.linear(x, self._weight)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm of [num_tokens, size] along size."""
    return F.rms_norm(x, weight.shape, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for [num_tokens, 2 * size], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [num_tokens, heads, head_dim], pairs half a head apart.

    cos, sin: [num_tokens, 1, head_dim / 2].
    """
    first, second = x.chunk(2, dim=-1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    half = first.shape[-1]
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1.0)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out
