"""Bodies of requests: from bytes to a checked value, each refusal naming the field.

JSON that leaves a doubt is refused: a name given twice, NaN, half of a surrogate pair.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive

from protos.errors import InvalidRequest
from tokenizer_svc.http.errors import ClientGone, HttpRefusal

BODY_TIMEOUT_S = 60.0
"""Time a client has to send a body."""

_WHOLE = "body"
"""What errors call the body as a whole."""

Body = TypeVar("Body", bound=BaseModel)

_PROBLEMS = {
    "extra_forbidden": "not a field that is known here",
    "missing": "needed",
    "string_type": "must be a text",
    "string_unicode": "not valid Unicode: it has half of a surrogate pair",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "none_required": "only null is taken here",
    "finite_number": "must be a finite number",
    "recursion_loop": "nested too deeply",
}


async def read_body(receive: Receive, headers: Headers, *, max_bytes: int) -> bytes:
    """The body of a request.

    Raises:
        HttpRefusal: it is too long, compressed, or does not come in time.
        ClientGone: the client left before its end.
    """
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpRefusal(415, "compressed_body", "compressed bodies are not taken")
    length = headers.get("content-length", "")
    is_announced = length.isdigit() and (len(length) > 18 or int(length) > max_bytes)
    if is_announced and "expect" in headers:
        raise _too_long(max_bytes)  # the client waits with its body for a word from here
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in _parts(receive):
                num_bytes += len(part)
                if num_bytes > 2 * max_bytes:
                    break
                # A client that is still writing would not read the refusal.
                if num_bytes <= max_bytes and not is_announced:
                    parts.append(part)
    except TimeoutError:
        text = f"the body did not come within {BODY_TIMEOUT_S:g} s"
        raise HttpRefusal(408, "slow_body", text, headers={"connection": "close"}) from None
    if num_bytes > max_bytes or is_announced:
        raise _too_long(max_bytes)
    return b"".join(parts)


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _too_long(max_bytes: int) -> HttpRefusal:
    # The rest is not read, so that the connection cannot go on.
    return HttpRefusal(
        413,
        "body_too_long",
        f"the body is longer than {max_bytes} bytes",
        headers={"connection": "close"},
    )


def read_json(data: bytes, kind: type[Body]) -> Body:
    """The body as a checked value.

    Raises:
        InvalidRequest: it is no JSON object, or a field is wrong; names the field.
    """
    try:
        value = _parsed(data)
        if not isinstance(value, dict):
            raise InvalidRequest(_WHOLE, "must be a JSON object")
        return kind.model_validate(value)
    except RecursionError:
        raise InvalidRequest(_WHOLE, "nested too deeply") from None
    except ValidationError as error:
        raise _first_problem(error) from None


def json_text(value: object) -> str:
    """A part of a body as JSON text, for those who read it further.

    Raises:
        InvalidRequest: nested too deeply.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise InvalidRequest(_WHOLE, "nested too deeply") from None


def _parsed(data: bytes) -> Any:
    if not data.strip():
        raise InvalidRequest(_WHOLE, "empty; a JSON object is needed")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(_WHOLE, f"not valid UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(_WHOLE, f"not valid JSON at {where}") from None
    except ValueError:
        # Python refuses to read numbers of thousands of digits.
        raise InvalidRequest(_WHOLE, "it has a number that is too long") from None
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidRequest(_printable(twice), "given twice in one object")
    return found


def _refuse_constant(name: str) -> None:
    raise InvalidRequest(_WHOLE, f"{name} is not JSON")


def _refuse_surrogates(value: Any) -> None:
    """Escapes can spell what no text may hold; found where it is, so that the field is named."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, str):
            _check_unicode(part, path)
        elif isinstance(part, dict):
            for name in part:
                _check_unicode(name, path)
            waiting += [((*path, name), inner) for name, inner in part.items()]
        elif isinstance(part, list):
            waiting += [((*path, i), inner) for i, inner in enumerate(part)]


def _check_unicode(text: str, path: Sequence[str | int]) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(path_text(path), _PROBLEMS["string_unicode"]) from None


def path_text(path: Sequence[str | int]) -> str:
    """A place in a body, as errors name it: messages[0].content."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{_printable(part)}" if text else _printable(part)
    return text or _WHOLE


def _printable(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode() if not name.isprintable() else name


def _first_problem(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    problem = _PROBLEMS.get(first["type"]) or _reworded(first["msg"])
    if first["type"] == "literal_error":
        expected = first["ctx"]["expected"]
        problem = f"must be {'one of ' * (' or ' in expected)}{expected}"
    elif first["type"] in ("greater_than_equal", "less_than_equal"):
        side, bound = next(iter(first["ctx"].items()))
        problem = f"must be at {'least' if side == 'ge' else 'most'} {bound}"
    elif first["type"] == "too_long":
        problem = f"must have at most {first['ctx']['max_length']} entries"
    return InvalidRequest(path_text(first["loc"]), problem)


def _reworded(problem: str) -> str:
    """The library's sentence without its own words."""
    return problem.removeprefix("Value error, ").replace("Input should", "must")


class BodyReader:
    """Reads the bodies of one server."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    async def __call__(self, request: Request, kind: type[Body]) -> Body:
        """The checked body of a request.

        Raises:
            HttpRefusal: its bytes are not taken.
            InvalidRequest: they are no JSON, or a field is wrong; names the field.
            ClientGone: the client left before its end.
        """
        data = await read_body(request.receive, request.headers, max_bytes=self._max_bytes)
        return read_json(data, kind)
