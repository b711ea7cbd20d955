"""The arithmetic of a layer on the CPU, except attention.

Every function gives each token's row the same bits whatever other rows are in the batch, as far as
torch allows; the engine's promise of equal tokens rests on it.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from gpu_worker.blocks import FloatArray
from gpu_worker.model_config import Gate

_PROBED_ROWS = (33, 16, 8, 4, 3, 2, 1)


class Linear:
    """x @ weight.T + bias for a fixed fp32 weight [num_outputs, num_inputs].

    Repacked for oneDNN, whose results for one row do not depend on how many rows there are, down
    to a number that depends on processor and shape (2 for some with AVX-512, else 1): fewer rows
    are filled up.  Torch's own choice of routine changes with that number, and with it the last
    bits.
    """

    least_rows: ClassVar[dict[tuple[int, int], int]] = {}
    """By shape of the weight, found out by trying."""

    def __init__(self, matrix: FloatArray, bias: FloatArray | None = None) -> None:
        weight = torch.from_numpy(matrix)
        self._packed: torch.Tensor | None = None
        self._weight = weight
        self._bias = None if bias is None else torch.from_numpy(bias)
        self._least_rows = 1
        if torch.backends.mkldnn.is_available():
            # A hint for one row would pick the routine that does depend on it; 16 does not.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
            self._weight = weight.new_empty(0)  # the packed copy is enough
            shape = (weight.shape[0], weight.shape[1])
            if shape not in self.least_rows:
                self.least_rows[shape] = self._probe(shape[1])
            self._least_rows = self.least_rows[shape]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, num_inputs] to [num_tokens, num_outputs]."""
        out = self._multiply(x)
        return out if self._bias is None else out.add_(self._bias)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            return F.linear(x, self._weight)
        num_tokens = x.shape[0]
        if num_tokens < self._least_rows:
            filled = torch.cat([x, x.new_zeros(self._least_rows - num_tokens, x.shape[1])])
            return self._product(filled)[:num_tokens]
        return self._product(x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")

    def _probe(self, num_inputs: int) -> int:
        """The fewest rows that give a row the same bits as many do."""
        x = torch.linspace(-3.0, 5.0, _PROBED_ROWS[0] * num_inputs).sin_().view(-1, num_inputs)
        wanted, least = self._product(x)[0], _PROBED_ROWS[0]
        for num_rows in _PROBED_ROWS:
            if not torch.equal(self._product(x[:num_rows])[0], wanted):
                break
            least = num_rows
        return least


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm of [..., size] along size."""
    return F.rms_norm(x, weight.shape, weight, eps)


def gated(gate_up: torch.Tensor, kind: Gate = "silu") -> torch.Tensor:
    """activation(gate) * up for [num_tokens, 2 * size], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    active = F.silu(gate) if kind == "silu" else F.gelu(gate, approximate="tanh")
    return active.mul_(up)


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap), in place."""
    return x.div_(cap).tanh_().mul_(cap)


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
