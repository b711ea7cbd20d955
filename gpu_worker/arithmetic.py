"""What a decoder asks of whoever computes it, beside products by matrices.

`StepT` is a step as that arithmetic wants it, with all that its layers share: places of tokens,
slots, how attention is cut.  Implementations: torch_arithmetic, device.kernel_arithmetic.
"""

from typing import Protocol, TypeVar

import torch

from gpu_worker.decoder_weights import HeadNorms, Norm

StepT = TypeVar("StepT", contravariant=True)


class Arithmetic(Protocol[StepT]):
    """Tokens are rows.  Weights and states are of one type; logits are float32."""

    def places(self, step: StepT) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Int64 token ids and positions [num_tokens] of the step, and the places [num_logits] of
        the tokens whose logits are wanted: for who computes the rest himself."""
        ...

    def embed(self, table: torch.Tensor, step: StepT) -> torch.Tensor:
        """Hidden states [num_tokens, hidden] of the step's tokens, a fresh tensor."""
        ...

    def norm(
        self, x: torch.Tensor, norm: Norm, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The norm of x, or of residual + x, which is then what `residual` holds."""
        ...

    def rotate_and_store(
        self, layer: int, qkv: torch.Tensor, norms: HeadNorms | None, step: StepT
    ) -> torch.Tensor:
        """Norms queries and keys head by head, rotates them, and writes keys and values to the
        layer's slots.

        qkv: [num_tokens, (heads + 2 * kv_heads) * head_dim].
        Gives queries [num_tokens, heads, head_dim].
        """
        ...

    def attend(self, layer: int, query: torch.Tensor, step: StepT) -> torch.Tensor:
        """Each token over its row's slots as far as itself, and back to where the layer's window
        begins; [num_tokens, heads * head_dim]."""
        ...

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """activation(gate) * up [num_tokens, size] of [num_tokens, 2 * size]."""
        ...

    def wanted(self, hidden: torch.Tensor, step: StepT) -> torch.Tensor:
        """[num_logits, hidden] of the tokens whose logits are wanted, in plan order."""
        ...

    def logits(self, scores: torch.Tensor) -> torch.Tensor:
        """Logits of what the head gives, capped where the model does so."""
        ...
