"""Shape, constants and habits of a decoder, whatever file said so.

Not here: reading them (folder_config, gguf_config), which family has which habits (families).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protos.errors import ModelError

Gate = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than those first trained on."""

    kind: str
    """"linear", "llama3" or "yarn"."""
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Whether YaRN's ramp begins and ends at whole dimensions."""
    attention_factor: float = 1.0
    """What cosines and sines are multiplied by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """A rotary embedding."""

    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRules:
    """Layers whose feed-forward is a mixture of experts."""

    num_experts: int
    num_chosen: int
    """Experts of a token."""
    intermediate_size: int
    """Of each expert."""
    renormalised: bool
    """Whether the weights of the chosen ones are divided by their sum."""
    layers: tuple[int, ...]
    """Which layers; the others have one feed-forward of the model's intermediate_size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything the model code needs to know besides the weights; habits are a plain Llama's."""

    vocab_size: int
    """Ids the tokenizer knows.  Rows of the weights above it are padding and never sampled."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_length: int
    """Longest context the model was made for, in tokens."""
    tied_embeddings: bool
    eos_token_ids: tuple[int, ...]

    windows: tuple[int, ...] = ()
    """[num_layers] how many positions a token sees, itself the last, 0: all; empty: all in all."""
    local_rope: Rope | None = None
    """Of layers with a window, where it is another."""
    query_scale: float = 0.0
    """Of attention scores; 0: 1 / sqrt(head_dim)."""
    attention_soft_cap: float = 0.0
    """Scores x become cap * tanh(x / cap); 0: they do not."""
    logit_soft_cap: float = 0.0
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    """Norms of single heads of queries and keys, before they are rotated."""
    norm_offset: float = 0.0
    """Added to the weights of all norms; 1 for Gemma."""
    sandwich_norms: bool = False
    """Norms behind attention and feed-forward too, before they are added."""
    embedding_factor: float = 1.0
    """What embeddings are multiplied by, rounded to their type first."""
    gate: Gate = "silu"
    experts: ExpertRules | None = None
    foreign_folder: Path | None = None
    """Whence transformers reads and computes the model, as none of our families is like it; what is
    said of habits above is then that of its attention alone."""

    @property
    def num_groups(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def attention_scale(self) -> float:
        """Of attention scores."""
        return self.query_scale or self.head_dim**-0.5

    @property
    def distinct_windows(self) -> tuple[int, ...]:
        """Every window that a layer has, 0 for none."""
        return tuple(sorted(set(self.windows))) or (0,)

    def window(self, layer: int) -> int:
        """How many positions a token of this layer sees; 0: all."""
        return self.windows[layer] if self.windows else 0

    def rope(self, layer: int) -> Rope:
        """The rotary embedding of a layer; theta 0: the layer does not turn anything."""
        if self.foreign_folder is not None:
            return Rope(theta=0.0)
        if self.local_rope is not None and self.window(layer):
            return self.local_rope
        return Rope(theta=self.rope_theta, scaling=self.rope_scaling)

    def experts_of(self, layer: int) -> ExpertRules | None:
        """The experts of a layer that has some."""
        return self.experts if self.experts and layer in self.experts.layers else None

    @property
    def num_parameters(self) -> int:
        """Numbers in the matrices; norms and padding rows are not worth counting."""
        attention = 2 * self.head_dim * (self.num_heads + self.num_kv_heads)
        layers = sum(attention + self._mlp_columns(index) for index in range(self.num_layers))
        vocabularies = 1 if self.tied_embeddings else 2
        return self.hidden_size * (layers + vocabularies * self.vocab_size)

    def _mlp_columns(self, layer: int) -> int:
        experts = self.experts_of(layer)
        if experts is None:
            return 3 * self.intermediate_size
        return experts.num_experts * (3 * experts.intermediate_size + 1)  # 1: the router

    @property
    def beyond_llama(self) -> tuple[str, ...]:
        """What the model asks for that a plain Llama does not, in words."""
        asked: Mapping[str, object] = {
            "a family that transformers computes": self.foreign_folder,
            "sliding windows": any(self.windows),
            "another attention scale": self.query_scale,
            "soft caps": self.attention_soft_cap or self.logit_soft_cap,
            "biases": self.qkv_bias or self.attention_out_bias or self.mlp_bias,
            "norms of heads": self.head_norms,
            "norms of another kind": self.norm_offset or self.sandwich_norms,
            "scaled embeddings": self.embedding_factor != 1.0,
            f"{self.gate} gates": self.gate != "silu",
            "experts": self.experts,
        }
        return tuple(words for words, is_asked in asked.items() if is_asked)


def checked(path: Path, config: ModelConfig) -> ModelConfig:
    """The configuration, if its numbers go together.

    Raises:
        ModelError: they do not; names the field.
    """
    for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
                  "num_kv_heads", "head_dim", "max_length"):  # fmt: skip
        if getattr(config, field) < 1:
            raise ModelError(path, f"{field} is {getattr(config, field)}")
    if config.num_heads % config.num_kv_heads:
        raise ModelError(
            path, f"{config.num_heads} heads do not divide among {config.num_kv_heads} KV heads"
        )
    if config.head_dim % 2:
        raise ModelError(path, f"head_dim {config.head_dim} is odd")
    if any(window < 0 for window in config.windows):
        raise ModelError(path, f"sliding_window is {min(config.windows)}")
    experts = config.experts
    if experts is not None:
        if experts.num_experts < 1 or experts.intermediate_size < 1:
            raise ModelError(
                path, f"{experts.num_experts} experts of size {experts.intermediate_size}"
            )
        if not 1 <= experts.num_chosen <= experts.num_experts:
            raise ModelError(
                path, f"{experts.num_chosen} of {experts.num_experts} experts for each token"
            )
    return config
