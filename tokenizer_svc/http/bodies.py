"""What bodies of requests have in common, as OpenAI writes it and as this server adds to it.

A field that is not here is refused by its name: it would be accepted without effect.  Ranges are
checked with those of gRPC, in `validation`; what stands here of them is for the description.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from tokenizer_svc.validation import MAX_PRIORITY, MAX_TIMEOUT_MS
from tokenizer_svc.validation_sampling import MAX_LOGPROBS, MAX_STOPS, MAX_TEMPERATURE

DEFAULT_TEMPERATURE = 1.0
"""Where a body says none, as OpenAI has it; over gRPC the default is greedy."""

_MAX_INT64 = (1 << 63) - 1
_MAX_INT32 = (1 << 31) - 1

Int64 = Annotated[int, Field(ge=-(1 << 63), le=_MAX_INT64)]
Int32 = Annotated[int, Field(ge=-(1 << 31), le=_MAX_INT32)]
Natural = Annotated[int, Field(ge=0, le=_MAX_INT64)]

JsonObject = dict[str, Any]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to think; templates decide which of them they know."""

SCHEMAS = "#/components/schemas/"
"""Where the description of this server keeps the schemas of bodies."""


class Body(BaseModel):
    """A JSON object whose every field is known and of its own type: "1" is no number.

    A null is as good as an absent field, and so may have any name: clients send nulls for all that
    their version of the API has.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        json_schema_extra={"additionalProperties": {"type": "null"}},
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        if isinstance(value, dict) and not value.keys() <= cls.model_fields.keys():
            known = cls.model_fields.keys()
            return {k: v for k, v in value.items() if v is not None or k in known}
        return value


def one_as_list(value: object) -> object:
    """A text alone stands for a list of one."""
    return [value] if isinstance(value, str) else value


def only_false(value: object) -> object:
    """A literal alone takes 0 as well, which equals False."""
    if value is not False:
        raise ValueError("must be false")
    return value


OnlyFalse = Annotated[Literal[False], BeforeValidator(only_false)]

Texts = Annotated[
    list[str],
    BeforeValidator(one_as_list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


def schema_ref(name: str) -> dict[str, str]:
    """A reference to a schema of the description."""
    return {"$ref": SCHEMAS + name}


def within(least: float, most: float) -> dict[str, Any]:
    """A range, for the description alone."""
    return {"minimum": least, "maximum": most}


class CacheControl(Body):
    """Keeps the prompt up to here warm, as a soft pin with a time to live."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"

    @property
    def ttl_ms(self) -> int:
        """The same in milliseconds."""
        return 3_600_000 if self.ttl == "1h" else 300_000


class NamedSchema(Body):
    """A JSON Schema under a name."""

    name: str | None = None
    description: str | None = None
    schema_: JsonObject = Field(alias="schema")
    strict: bool | None = None
    """Without meaning: an output always meets its schema."""


class ResponseFormat(Body):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StreamOptions(Body):
    """What a stream carries beside its text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Without meaning: there is none."""


def schema_of(value: object) -> object:
    """guided_json comes as an object or as the text of one."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("its text is no JSON") from None


class WithoutMeaning(Body):
    """Fields of OpenAI's that change nothing here, and are taken so that its clients work."""

    user: str | None = None
    metadata: JsonObject | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: JsonObject | None = None
    prompt_cache_retention: str | None = None


class GenerationBody(WithoutMeaning):
    """Fields that every generation takes."""

    model: str | None = Field(None, description="Absent: the model that is served.")
    stream: bool | None = None
    temperature: float | None = Field(
        None,
        description=f"0 is greedy; absent: {DEFAULT_TEMPERATURE:g}.",
        json_schema_extra=within(0, MAX_TEMPERATURE),
    )
    top_p: float | None = Field(None, json_schema_extra=within(0, 1))
    top_k: Int64 | None = Field(None, json_schema_extra=within(0, _MAX_INT64))
    min_p: float | None = Field(None, json_schema_extra=within(0, 1))
    seed: Int64 | None = Field(
        None,
        description="Drawn and returned when absent.",
        json_schema_extra=within(0, _MAX_INT64),
    )
    stop: Texts | None = Field(None, json_schema_extra={"maxItems": MAX_STOPS})
    stop_token_ids: list[Int64] | None = Field(None, json_schema_extra={"maxItems": MAX_STOPS})
    ignore_eos: bool | None = None
    min_tokens: Int64 | None = Field(None, json_schema_extra=within(0, _MAX_INT32))
    repetition_penalty: float | None = Field(None, json_schema_extra=within(0, 10))
    presence_penalty: float | None = Field(None, json_schema_extra=within(-2, 2))
    frequency_penalty: float | None = Field(None, json_schema_extra=within(-2, 2))
    logit_bias: dict[str, float] | None = Field(
        None, description="By token id; -100 to 100, added to the logits."
    )
    request_id: str | None = Field(
        None, description="Drawn when absent; names the request for /cancel."
    )
    timeout_ms: Natural | None = Field(
        None,
        description="Time it may take; what there is by then is returned.",
        json_schema_extra=within(1, MAX_TIMEOUT_MS),
    )
    cache_domain: str | None = Field(
        None, description="Prefixes are shared within one domain only."
    )
    no_store: bool | None = Field(None, description="True: leaves nothing in the cache.")
    skip_special_tokens: bool | None = None
    priority: Int32 | None = Field(None, json_schema_extra=within(-MAX_PRIORITY, MAX_PRIORITY))
    workload: str | None = None
    session: str | None = Field(None, description="Conversation whose tail stays warm.")
    stream_interval: Int64 | None = Field(
        None, description="Tokens an event has at least.", json_schema_extra=within(1, 1024)
    )


class ChoicesBody(GenerationBody):
    """Fields of generations with several choices and forms: chat and plain completions."""

    store: OnlyFalse | None = None
    max_tokens: Int64 | None = Field(None, json_schema_extra=within(1, _MAX_INT32))
    n: Int64 | None = Field(None, json_schema_extra=within(1, 16))
    best_of: Int64 | None = Field(None, json_schema_extra=within(1, 16))
    echo: bool | None = None
    prompt_logprobs: Int64 | None = Field(None, json_schema_extra=within(0, MAX_LOGPROBS))
    stream_options: StreamOptions | None = None
    prewarm: bool | None = Field(
        None, description="True: computes the prompt into the cache and generates nothing."
    )
    response_format: ResponseFormat | None = None
    regex: str | None = Field(None, description="The output matches it as a whole.")
    ebnf: str | None = Field(None, description="A grammar; its start is `root`.")
    choice: list[str] | None = Field(None, description="The output is one of these.")
    guided_json: Annotated[JsonObject, BeforeValidator(schema_of)] | None = Field(
        None, description="A JSON Schema, or its text."
    )
    guided_regex: str | None = Field(None, description="The same as regex.")
    guided_grammar: str | None = Field(None, description="The same as ebnf.")
    guided_choice: list[str] | None = Field(None, description="The same as choice.")


def given(body: Body, names: Mapping[str, str]) -> dict[str, Any]:
    """Those of the named fields that are not null, under other names."""
    found = {new: getattr(body, name) for name, new in names.items()}
    return {name: value for name, value in found.items() if value is not None}
