"""How the daemon speaks: readable lines on a terminal, one JSON object a line elsewhere."""

import sys
from contextlib import suppress
from typing import Any, Final, TextIO

import structlog

_VALUE_CHARS_MAX: Final = 512


def configure_logging(stream: TextIO | None = None) -> None:
    """Send structlog's events to *stream* (standard output), for a person or for a program."""
    out = sys.stdout if stream is None else stream
    renderer: Any
    if out.isatty():
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    else:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _tame_values,
            renderer,
        ],
        logger_factory=structlog.WriteLoggerFactory(file=_Forgiving(out)),  # type: ignore[arg-type]  # it only writes and flushes
        cache_logger_on_first_use=False,
    )


class _Forgiving:
    """A stream whose reader may go away, or whose disk may fill: lines are lost, nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write *text* if that is possible."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush if that is possible."""
        with suppress(OSError):
            self._stream.flush()


def _tame_values(_logger: Any, _method: str, event: Any) -> Any:
    """Escape control characters and cut long text: names come from clients."""
    for key, value in event.items():
        if key != "exception" and isinstance(value, str):
            event[key] = tame(value)
    return event


def tame(text: str) -> str:
    """Return *text* without control characters and of bounded length."""
    if len(text) > _VALUE_CHARS_MAX:
        text = text[:_VALUE_CHARS_MAX] + "…"
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
