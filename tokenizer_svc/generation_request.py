"""A request for text as the front works on it: checked, typed, and free of any wire format."""

from array import array
from dataclasses import dataclass

from protos.plan import SamplingParams
from tokenizer_svc.tokenizers.tokenizer import ChatTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """Plain text."""

    text: str
    field: str = "text"
    """What errors call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation, for the chat template."""

    turns: tuple[ChatTurn, ...]
    add_generation_prompt: bool = True
    """True: the assistant's turn is opened at the end."""
    field: str = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """Token ids, used as they stand."""

    ids: "array[int]"
    """[num_tokens] typecode "q": not yet checked against a vocabulary."""
    field: str = "tokens"


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Everything a client may ask of one generation."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    priority: int
    workload: str
    """Empty: none."""
    max_tokens: int | None
    """None: up to the model's limit."""
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    timeout_ms: int | None
    cache_domain: str
    no_store: bool
    skip_special_tokens: bool
    tenant: str = ""
    """Whom the key of the call names; no field of the request does."""
