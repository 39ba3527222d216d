"""How the daemon speaks: readable lines on a terminal, one JSON object a line elsewhere."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO

import structlog

_VALUE_CHARS_MAX: Final = 512


def configure_logging(
    stream: TextIO | None = None, around: Callable[[Callable[[], None]], None] | None = None
) -> None:
    """Send structlog's events to *stream* (standard output), for a person or for a program.

    *around* is called to write each line, such as by whoever has something else on the terminal.
    """
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
        logger_factory=structlog.WriteLoggerFactory(file=_Forgiving(out, around)),  # type: ignore[arg-type]  # it only writes and flushes
        cache_logger_on_first_use=False,
    )


class _Forgiving:
    """A stream whose reader may go away, or whose disk may fill: lines are lost, nothing else."""

    def __init__(self, stream: TextIO, around: Callable[[Callable[[], None]], None] | None) -> None:
        self._stream = stream
        self._around = around

    def write(self, text: str) -> None:
        """Write *text* if that is possible."""
        if self._around is None:
            self._write(text)
        else:
            self._around(lambda: self._write(text))

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)
            if self._around is not None:
                self._stream.flush()

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
