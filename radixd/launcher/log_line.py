"""A child's line as the terminal shows it.  Children write JSON, since they write to a pipe."""

import json
from typing import Any

_BAR_WIDTH = 24
_PROGRESS = ("progress", "preheat_progress")
_SHOWN_ELSEWHERE = ("timestamp", "level", "event", "service", "exception")


def for_terminal(name: str, line: str) -> str:
    """A JSON event as one readable line, anything else behind the child's name."""
    event = _event(line)
    if event is None:
        return _named(name, line)
    clock = str(event.get("timestamp", ""))[11:19]
    level = str(event.get("level", "info"))
    text = f"{clock} {level:<7} {event.get('service', name)}: {_said(event)}"
    return f"{text}\n{event['exception']}" if event.get("exception") else text


def for_machine(name: str, line: str) -> str:
    """A JSON event as it is, anything else behind the child's name."""
    return line if line.startswith("{") else _named(name, line)


def is_progress(line: str) -> bool:
    """Whether a line only says how far something is: one for the live line, not one to keep."""
    event = _event(line)
    return event is not None and event["event"] in _PROGRESS


def preheat_failure(line: str) -> str | None:
    """What a line says of a prefix that could not be warmed or pinned; None: it says no such."""
    event = _event(line)
    if event is None or event["event"] != "preheat_prefix_failed":
        return None
    return f"entry {_number(event, 'entry')}: {event.get('problem', '')}"


def brief(line: str) -> str:
    """What a line says, short enough for a progress line; progress is drawn as a bar."""
    event = _event(line)
    if event is not None and event["event"] == "progress":
        return _bar(str(event.get("what", "")), _number(event, "percent"))
    if event is not None and event["event"] == "preheat_progress":
        done, total = _number(event, "done"), max(1, _number(event, "total"))
        facts = f"{done} of {total} prefixes, {_number(event, 'tokens')} tokens"
        return f"{_bar('preheating', 100 * done // total)}, {facts}"
    text = line if event is None else _said(event)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bar(what: str, percent: int) -> str:
    percent = max(0, min(100, percent))
    num_full = percent * _BAR_WIDTH // 100
    bar = "█" * num_full + "░" * (_BAR_WIDTH - num_full)
    return f"{what} {bar} {percent} %"


def _number(event: dict[str, Any], key: str) -> int:
    value = event.get(key)
    return int(value) if isinstance(value, int | float) else 0


def _named(name: str, line: str) -> str:
    """A line behind its speaker's name, which complaints begin with already."""
    return line if line.startswith(f"{name}: ") else f"{name}: {line}"


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _said(event: dict[str, Any]) -> str:
    keys = (f"{key}={value}" for key, value in event.items() if key not in _SHOWN_ELSEWHERE)
    return " ".join((str(event["event"]), *keys))
