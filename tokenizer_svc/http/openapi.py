"""GET /openapi.json: every path, its body and its replies; bodies come from the classes that read.

Not here: what a reply says, beyond its shape.  It is written by the endpoint itself.
"""

from functools import cache
from importlib import metadata
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from tokenizer_svc.http.bodies import SCHEMAS, schema_ref
from tokenizer_svc.http.bodies_chat import ChatBody, ChatMessageBody, NamedFunction, TextPart
from tokenizer_svc.http.bodies_completions import CompletionBody
from tokenizer_svc.http.bodies_responses import InputItem, InputText, ResponseBody
from tokenizer_svc.http.cancels import CancelBody
from tokenizer_svc.http.preheats import ChatPrefix, PreheatBody
from tokenizer_svc.http.tokens import DetokenizeBody, TokenizeBody
from tokenizer_svc.validation import MAX_SESSION_LENGTH

_BODIES: tuple[type[BaseModel], ...] = (
    *(ChatBody, CompletionBody, ResponseBody, TokenizeBody, DetokenizeBody, PreheatBody),
    *(CancelBody, TextPart, ChatMessageBody, NamedFunction, InputItem, InputText, ChatPrefix),
)
_ERRORS = {
    "400": "A field is wrong; `param` names it.",
    "401": "A known key is needed.",
    "403": "The key is not one for this.",
    "404": "There is no such path, model, request or session.",
    "405": "The path takes another method.",
    "408": "The body did not come in time, or no token before the deadline that the request set.",
    "409": "A live request has this id, or it was cancelled.",
    "413": "The body is too long.",
    "415": "The body is compressed.",
    "429": "As many requests wait as may wait; try again later.",
    "500": "A defect of the server.",
    "503": "The server starts, shuts down, or its worker is away; try again later.",
}
_POST_ONLY = {"408", "409", "413", "415", "429"}


async def show_openapi(request: Request) -> ASGIApp:
    """The description of this server."""
    return JSONResponse(description())


@cache
def description() -> dict[str, Any]:
    """OpenAPI 3.1 of the gateway."""
    _, schemas = models_json_schema(
        [(body, "validation") for body in _BODIES], ref_template=SCHEMAS + "{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "radixd",
            "version": metadata.version("radixd"),
            "description": "OpenAI's paths for text, and radixd's own.",
        },
        "paths": _paths(),
        "security": [{}, {"bearer": []}, {"apiKey": []}],
        "components": {
            "schemas": schemas["$defs"] | _reply_schemas(),
            "responses": {
                status: {"description": text, "content": _json_content("Error")}
                for status, text in _ERRORS.items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _paths() -> dict[str, Any]:
    paths = {
        "/v1/chat/completions": _post("Answers a conversation.", ChatBody, "Completion"),
        "/v1/completions": _post("Continues prompts.", CompletionBody, "Completion"),
        "/v1/responses": _post("Answers a conversation.", ResponseBody, "Response"),
        "/tokenize": _post("Text or messages to token ids.", TokenizeBody, "Tokens"),
        "/detokenize": _post("Token ids to text.", DetokenizeBody, "Text"),
        "/preheat": _post("Computes prefixes into the cache.", PreheatBody, "Preheated"),
        "/cancel": _post("Ends a live request.", CancelBody, "Nothing"),
        "/v1/models": _get("The model that is served.", _json_content("Models")),
        "/v1/models/{model}": _get("The same, by its name.", _json_content("Model")),
        "/v1/sessions": _get("Conversations that are kept warm.", _json_content("Sessions")),
        "/v1/sessions/{session}": {
            "delete": _get("Forgets one of them.", _json_content("Nothing"))["get"]
        },
        "/health": _get("Whether the process lives.", _json_content("Status")),
        "/ready": _get("Whether requests are served at once.", _json_content("Status")),
        "/metrics": _get("For Prometheus.", {"text/plain": {"schema": {"type": "string"}}}),
        "/openapi.json": _get("This description.", _json_content("Nothing")),
    }
    paths["/v1/models/{model}"]["get"]["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    paths["/v1/sessions/{session}"]["delete"]["parameters"] = [
        {"name": "session", "in": "path", "required": True, "schema": _SESSION},
        {"name": "cache_domain", "in": "query", "schema": {"type": "string"}},
    ]
    for path in ("/health", "/ready", "/openapi.json"):
        paths[path]["get"]["security"] = []
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        content = paths[path]["post"]["responses"]["200"]["content"]
        content["text/event-stream"] = {}  # no schema: it describes one JSON value
    return paths


def _post(summary: str, body: type[BaseModel], reply: str) -> dict[str, Any]:
    operation = _operation(summary, _json_content(reply), set(_ERRORS))
    operation["requestBody"] = {"required": True, "content": _json_content(body.__name__)}
    return {"post": operation}


def _get(summary: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"get": _operation(summary, content, set(_ERRORS) - _POST_ONLY)}


def _operation(summary: str, content: dict[str, Any], errors: set[str]) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": content}}
    for status in sorted(errors):
        responses[status] = {"$ref": f"#/components/responses/{status}"}
    return {"summary": summary, "responses": responses}


def _json_content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": schema_ref(schema)}}


_SESSION = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_SESSION_LENGTH,
    "description": "Printable characters.",
}
_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_COUNT = {"type": "integer", "minimum": 0}
_OBJECT = {"type": "object"}


def _object(**properties: Any) -> dict[str, Any]:
    """An object that has at least these."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _reply_schemas() -> dict[str, Any]:
    model = schema_ref("Model")
    usage = _object(
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        prompt_tokens_details=_object(cached_tokens=_COUNT),
        completion_tokens_details=_object(reasoning_tokens=_COUNT),
    )
    choice = _object(index=_COUNT, finish_reason={"enum": ["stop", "length", "tool_calls"]})
    prefix = _object(num_tokens=_COUNT, cached_tokens=_COUNT, computed_tokens=_COUNT)
    return {
        "Error": _object(error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT)),
        "Completion": _object(
            id=_TEXT,
            object=_TEXT,
            created=_COUNT,
            model=_TEXT,
            seed=_COUNT,
            choices=_list_of(choice),
            usage=usage,
        ),
        "Response": _object(
            id=_TEXT, status=_TEXT, model=_TEXT, output=_list_of(_OBJECT), usage=_OBJECT
        ),
        "Tokens": _object(tokens=_list_of(_COUNT), count=_COUNT),
        "Text": _object(text=_TEXT),
        "Preheated": _object(prefixes=_list_of(prefix)),
        "Nothing": _OBJECT,
        "Sessions": _object(object=_TEXT, data=_list_of(_OBJECT)),
        "Models": _object(object=_TEXT, data=_list_of(model)),
        "Model": _object(id=_TEXT, object=_TEXT, created=_COUNT, owned_by=_TEXT),
        "Status": _object(status=_TEXT),
    }
