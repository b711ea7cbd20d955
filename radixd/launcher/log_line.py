"""A child's line as the terminal shows it.  Children write JSON, since they write to a pipe."""

import json
from typing import Any

_SHOWN_ELSEWHERE = ("timestamp", "level", "event", "service", "exception")


def for_terminal(name: str, line: str) -> str:
    """A JSON event as one readable line, anything else behind the child's name."""
    event = _event(line)
    if event is None:
        return f"{name}: {line}"
    clock = str(event.get("timestamp", ""))[11:19]
    level = str(event.get("level", "info"))
    text = f"{clock} {level:<7} {event.get('service', name)}: {_said(event)}"
    return f"{text}\n{event['exception']}" if event.get("exception") else text


def for_machine(name: str, line: str) -> str:
    """A JSON event as it is, anything else behind the child's name."""
    return line if line.startswith("{") else f"{name}: {line}"


def brief(line: str) -> str:
    """What a line says, short enough for a progress line."""
    event = _event(line)
    text = line if event is None else _said(event)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _said(event: dict[str, Any]) -> str:
    keys = (f"{key}={value}" for key, value in event.items() if key not in _SHOWN_ELSEWHERE)
    return " ".join((str(event["event"]), *keys))
