"""Bodies of /v1/completions, and the prompts in them."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import Field, WithJsonSchema

from protos.errors import InvalidRequest
from tokenizer_svc.http.bodies import ChoicesBody, Int64, within
from tokenizer_svc.validation_sampling import MAX_LOGPROBS

MAX_PROMPTS = 256
_ID = {"type": "integer", "minimum": 0}
_IDS = {"type": "array", "items": _ID, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}

Prompts = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_PROMPTS},
                _IDS,
                {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
            ]
        }
    ),
]


class CompletionBody(ChoicesBody):
    """POST /v1/completions."""

    prompt: Prompts
    logprobs: Int64 | None = Field(None, json_schema_extra=within(0, MAX_LOGPROBS))


class OnePrompt(NamedTuple):
    """One of the prompts of a body, and what the body calls it."""

    field: str
    text: str | None
    ids: list[int]


def prompts_of(value: object) -> list[OnePrompt]:
    """The prompts of a body: a text, a list of ids, or a list of either.

    Raises:
        InvalidRequest: it is none of these; names the place.
    """
    if isinstance(value, str) or _is_ids(value):
        return [_one("prompt", value)]
    if not isinstance(value, list):
        raise InvalidRequest("prompt", "must be a text, a list of token ids, or a list of either")
    if not 1 <= len(value) <= MAX_PROMPTS:
        raise InvalidRequest("prompt", f"{len(value)} prompts; 1 to {MAX_PROMPTS} are taken")
    return list(_several(value))


def _several(values: list[object]) -> Iterator[OnePrompt]:
    for i, value in enumerate(values):
        if not (isinstance(value, str) or _is_ids(value)):
            raise InvalidRequest(f"prompt[{i}]", "must be a text or a list of token ids")
        yield _one(f"prompt[{i}]", value)


def _is_ids(value: object) -> bool:
    # By type and not by class: true is no id.
    return isinstance(value, list) and bool(value) and set(map(type, value)) == {int}


def _one(field: str, value: Any) -> OnePrompt:
    if isinstance(value, str):
        return OnePrompt(field, value, [])
    for i, token_id in enumerate(value if max(value) >= 1 << 31 or min(value) < 0 else ()):
        if not 0 <= token_id < 1 << 31:
            raise InvalidRequest(f"{field}[{i}]", f"{str(token_id)[:40]} is no token id")
    return OnePrompt(field, None, value)
