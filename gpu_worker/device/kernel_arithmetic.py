"""A decoder's arithmetic on the kernels.  Not here: plans, sampling, what lies in which slot."""

import torch

from gpu_worker.blocks import FloatArray
from gpu_worker.decoder_weights import HeadNorms, Norm
from gpu_worker.device.device_pool import DevicePool
from gpu_worker.device.step_inputs import StepInputs
from gpu_worker.model_config import ModelConfig
from gpu_worker.rope import rope_tables
from kernels.attention_inputs import AttentionRules, PagedKv
from kernels.gather_rows import gather_rows
from kernels.paged_attention import paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope_store import QkNorms, Rotation, rope_store
from kernels.silu_mul import silu_mul


class KernelArithmetic:
    """Arithmetic on a pool in a device's memory."""

    def __init__(
        self,
        config: ModelConfig,
        pool: DevicePool,
        device: torch.device,
        *,
        max_length: int,
        rope_factors: FloatArray | None,
    ) -> None:
        self._config = config
        self._pool = pool
        ropes = [config.rope(layer) for layer in range(config.num_layers)]
        rotations = {}
        for rope in set(ropes):
            cos, sin = rope_tables(rope, config.head_dim, max_length, rope_factors)
            rotations[rope] = Rotation(
                cos=torch.from_numpy(cos).to(device), sin=torch.from_numpy(sin).to(device)
            )
        self._rotations = [rotations[rope] for rope in ropes]
        self._rules = {
            window: AttentionRules(
                scale=config.attention_scale, window=window, soft_cap=config.attention_soft_cap
            )
            for window in config.distinct_windows
        }

    def places(self, step: StepInputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See Arithmetic."""
        return step.token_ids.long(), step.positions.long(), step.logit_tokens.long()

    def embed(self, table: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """See Arithmetic."""
        # Rounded to the type of the weights, as the models were trained.
        factor = torch.tensor(self._config.embedding_factor, dtype=table.dtype).item()
        return gather_rows(table, step.token_ids, factor)

    def norm(
        self, x: torch.Tensor, norm: Norm, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Arithmetic."""
        return rms_norm(x, norm.weight, norm.eps, residual, norm.offset)

    def rotate_and_store(
        self, layer: int, qkv: torch.Tensor, norms: HeadNorms | None, step: StepInputs
    ) -> torch.Tensor:
        """See Arithmetic."""
        target, rotation = self._pool.layers[layer], self._rotations[layer]
        return rope_store(qkv, step.positions, step.out_slots, rotation, target, _qk_norms(norms))

    def attend(self, layer: int, query: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """See Arithmetic."""
        paged = PagedKv(layer=self._pool.layers[layer], page_table=step.page_table)
        out = torch.empty_like(query)  # every token is some item's, so all of it is written
        window = self._config.window(layer)
        for work in step.work.get(window, ()):
            paged_attention(query, paged, work, self._rules[window], out)
        return out.flatten(1)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Arithmetic."""
        return silu_mul(gate_up, self._config.gate)

    def wanted(self, hidden: torch.Tensor, step: StepInputs) -> torch.Tensor:
        """See Arithmetic."""
        return gather_rows(hidden, step.logit_tokens)

    def logits(self, scores: torch.Tensor) -> torch.Tensor:
        """See Arithmetic."""
        cap, logits = self._config.logit_soft_cap, scores.float().contiguous()
        if cap:  # in place: a hundred megabytes each, and nobody else has them
            logits.div_(cap).tanh_().mul_(cap)
        return logits


def _qk_norms(norms: HeadNorms | None) -> QkNorms | None:
    if norms is None:
        return None
    return QkNorms(
        query_weight=norms.query.weight,
        key_weight=norms.key.weight,
        eps=norms.query.eps,
        weight_offset=norms.query.offset,
    )
