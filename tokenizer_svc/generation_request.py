"""A request for text as the front works on it: checked, typed, and free of any wire format."""

from array import array
from dataclasses import dataclass
from typing import Literal

from protos.plan import SamplingParams
from tokenizer_svc.tokenizers.tokenizer import ChatTurn, FunctionTool, ToolChoice


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
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()  # noqa: RUF009 (frozen, so sharing it is safe)
    continue_final_message: bool = False
    """True: the last turn, the assistant's, goes on instead of being answered."""
    template_arguments: str = ""
    """More variables for the template, a JSON object as text; empty: none."""
    separate_reasoning: bool = False
    """True: what the model thinks before its answer comes apart from the answer."""
    field: str = "chat"

    @property
    def may_call(self) -> bool:
        """True where what reads as a call is one; with tool_choice none tools are only shown."""
        return bool(self.tools) and self.tool_choice.mode != "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """Token ids, used as they stand."""

    ids: "array[int]"
    """[num_tokens] typecode "q": not yet checked against a vocabulary."""
    field: str = "tokens"


Prompt = TextPrompt | ChatPrompt | TokenPrompt


ConstraintKind = Literal["json_schema", "json_object", "regex", "ebnf", "choice", "lark"]
"""Clients may ask for all but the last, which is the worker's own notation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What an output must look like."""

    kind: ConstraintKind
    text: str = ""
    """The schema as JSON text, the regular expression, the grammar."""
    choices: tuple[str, ...] = ()
    """Of kind choice."""


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
    n: int = 1
    """Continuations to return."""
    best_of: int = 1
    """Continuations to compute, at least n."""
    echo: bool = False
    """The prompt's text comes before the output's."""
    stream_interval: int = 1
    """Tokens a piece has at least, save for the last."""
    session: str = ""
    """Empty: none."""
    constraint: Constraint | None = None
    tenant: str = ""
    """Whom the key of the call names; no field of the request does."""
