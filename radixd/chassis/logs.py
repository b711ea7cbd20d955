"""How every service logs: events with keys; lines of JSON for machines, colors for a terminal.

Configures structlog once per process; libraries that log the standard way come out alike.
"""

import logging
import sys
import traceback
from typing import Any

import structlog
from structlog.typing import Processor

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logs(service: str, level: str, *, shows_values: bool = True) -> None:
    """Sends log events to stderr, each with timestamp, level, event and service.

    `level` is one of debug, info, warning, error.  Without `shows_values` an exception is logged
    as its kind and where it came from, without its message, which may quote what a user wrote.
    """

    def add_service(_logger: Any, _method: str, event: Any) -> Any:
        event["service"] = service
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_service,
    ]
    if not shows_values:
        shared.append(_without_messages)
    last: list[Processor]
    if sys.stderr.isatty():
        last = [structlog.dev.ConsoleRenderer()]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    _adopt_standard_logging(shared, last, _LEVELS[level])


def _without_messages(_logger: Any, _method: str, event: Any) -> Any:
    """Replaces an exception by the lines of code it went through and its kind."""
    given = event.pop("exc_info", None)
    error = sys.exc_info()[1] if given is True else given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        lines = traceback.format_tb(error.__traceback__)
        event["exception"] = "".join(lines) + type(error).__qualname__
    return event


def _adopt_standard_logging(shared: list[Processor], last: list[Processor], level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Other people's info is our noise.
    root.setLevel(max(level, logging.WARNING))
