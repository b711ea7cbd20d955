"""How every service logs: events with keys; lines of JSON for machines, colors for a terminal.

Configures structlog once per process; libraries that log the standard way come out alike.
"""

import logging
import sys
from typing import Any

import structlog
from structlog.typing import Processor

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logs(service: str, level: str) -> None:
    """Sends log events to stderr, each with timestamp, level, event and service.

    `level` is one of debug, info, warning, error.
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
