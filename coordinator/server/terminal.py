"""What the daemon writes: lines of its log, and on a terminal a bar while the log is loaded.

The lines are readable on a terminal, and one JSON object each elsewhere; see `LogOutput`.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO

import structlog
import trio

from coordinator import names
from coordinator.events import LEVELS, level_of
from coordinator.runtime.loading import Progress, percent_of

log: Final = structlog.get_logger()

_VALUE_CHARS_MAX: Final = 512
BAR_WIDTH: Final = 30
BAR_PERIOD_S: Final = 0.1
_CLEAR: Final = "\r\x1b[K"  # To the start of the line, and nothing behind it.


class LogOutput:
    """Where lines go, which ones, and how they look; all of it may change while the daemon runs.

    *around* is called to write each line, such as by whoever has something else on the terminal.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        around: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Write to *stream* (standard output), unless a file is asked for."""
        self._stream = sys.stdout if stream is None else stream
        self._around = around
        self._file: TextIO | None = None

    def configure(self, level: str = "info", form: str = "auto", path: str = "") -> None:
        """Send structlog's events of at least *level* to the file *path*, opened anew, if any.

        Raises:
            OSError: The file can't be opened; everything is as it was.
        """
        file = open(path, "a", encoding="utf-8") if path else None  # noqa: SIM115, PTH123 - it stays open
        out = file or self._stream
        is_text = form == "text" or (form == "auto" and out.isatty())
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                _escape_values,
                _text(colors=out.isatty()) if is_text else structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
            logger_factory=structlog.WriteLoggerFactory(file=_LossyStream(out, self._around)),  # type: ignore[arg-type]  # it only writes and flushes
            cache_logger_on_first_use=False,
        )
        self.close()
        self._file = file

    def close(self) -> None:
        """Close the file; what is written afterwards is lost."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def _text(*, colors: bool) -> Any:
    return structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback
    )


def log_event(name: str, fields: Mapping[str, Any]) -> None:
    """Log an event of the core or the runtime, at the level that the catalogue has for it."""
    log.log(level_of(name), name, **fields)


class _LossyStream:
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
        with suppress(OSError, ValueError):  # ValueError: it was closed.
            self._stream.write(text)
            if self._around is not None:
                self._stream.flush()

    def flush(self) -> None:
        """Flush if that is possible."""
        with suppress(OSError, ValueError):
            self._stream.flush()


def _escape_values(_logger: Any, _method: str, event: Any) -> Any:
    """Escape control characters and cut long text: names come from clients."""
    for key, value in event.items():
        if key != "exception" and isinstance(value, str):
            event[key] = escaped(value)
    return event


def escaped(text: str) -> str:
    """Return *text* without control characters and of bounded length."""
    if len(text) > _VALUE_CHARS_MAX:
        text = text[:_VALUE_CHARS_MAX] + "…"
    return names.escaped(text)


class Bar:
    """How far a load is, as one line below those of the log; without a terminal nothing at all."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._line = ""

    def draw(self, progress: Progress) -> None:
        """Show how far *progress* is."""
        total_bytes, done_bytes = max(progress.total_bytes, 1), progress.done_bytes
        done = min(BAR_WIDTH * done_bytes // total_bytes, BAR_WIDTH)
        self._show(
            f"loading [{'#' * done}{'.' * (BAR_WIDTH - done)}] {percent_of(progress):3} %  "
            f"{progress.entries:,} entries"
        )

    def remove(self) -> None:
        """Leave nothing of it."""
        self._show("")

    def around(self, write: Callable[[], None]) -> None:
        """Have *write* put whole lines where the bar is, and the bar below them."""
        line = self._line
        self._show("")
        write()
        self._show(line)

    def _show(self, line: str) -> None:
        if self._stream is None or not (line or self._line):
            return
        self._line = line
        try:
            self._stream.write(_CLEAR + line)
            self._stream.flush()
        except OSError:
            self._stream = None  # The terminal is gone, which is no reason to stop.

    async def follow(self, look: Callable[[], Progress | None]) -> None:
        """Draw what *look* shows until cancelled."""
        if self._stream is None:
            return
        try:
            while True:
                progress = look()
                if progress is not None:
                    self.draw(progress)
                await trio.sleep(BAR_PERIOD_S)
        finally:
            self.remove()
