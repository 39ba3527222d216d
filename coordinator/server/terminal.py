"""What the daemon prints: lines of its log, and on a terminal a bar while the log is loaded.

The lines are readable on a terminal, and one JSON object each elsewhere; see `LogOutput`.

Whoever reads them may stop reading: a pipe is full after 64 KiB, a terminal can be halted, a disk
can hang. So all of it is printed by a thread (see `Printer`), and the event loop never waits.
"""

import os
import select
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TextIO

import structlog
import trio

from coordinator import names
from coordinator.events import LEVELS, level_of
from coordinator.runtime.loading import Progress, percent_of

log: Final = structlog.get_logger()

_VALUE_CHARS_MAX: Final = 512
# What may wait to be printed; some thousand lines.
WAITING_CHARS_MAX: Final = 1024 * 1024
TELL_PERIOD_S: Final = 1.0
BAR_WIDTH: Final = 30
BAR_PERIOD_S: Final = 0.1
_CLEAR: Final = "\r\x1b[K"  # To the start of the line, and nothing behind it.


class Printer:
    """Prints in a thread of its own once it is started, and until then at once.

    What finds no room behind a reader that has stopped is dropped, and so is what comes after it,
    until half of the room is free again and an event has said how many lines that were.

    Attributes:
        dropped: How many lines were dropped so far.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._untold = 0
        self._waiting_chars = 0
        self._counting = threading.Lock()  # For the three numbers; nobody waits while he has it.
        self._jobs: SimpleQueue[tuple[Callable[[], None], int]] = SimpleQueue()
        self._is_started = False

    def start(self) -> None:
        """Print in a thread from now on. It is a daemon, so that it may be stuck at the end."""
        self._is_started = True
        threading.Thread(target=self._print_for_ever, name="printer", daemon=True).start()

    def put(self, job: Callable[[], None], chars: int) -> None:
        """Have *job* print a line of so many characters, if there is room for it."""
        if not self._is_started:
            job()
            return
        with self._counting:
            if self._untold or self._waiting_chars + chars > WAITING_CHARS_MAX:
                self.dropped += 1
                self._untold += 1
                return
            self._waiting_chars += chars
        self._jobs.put((job, chars))

    async def watch(self) -> None:
        """Tell of dropped lines until cancelled."""
        while True:
            await trio.sleep(TELL_PERIOD_S)
            self.tell()

    def tell(self) -> None:
        """Tell of dropped lines, if there is room again."""
        with self._counting:
            if self._waiting_chars > WAITING_CHARS_MAX // 2:
                return
            untold, self._untold = self._untold, 0
        if untold:
            log_event("lines.dropped", {"count": untold})

    def run(self, job: Callable[[], None]) -> None:
        """Run *job* behind what waits, in any case."""
        if self._is_started:
            self._jobs.put((job, 0))
        else:
            job()

    def finish(self, timeout_s: float) -> None:
        """Return when everything is printed that waits, or after *timeout_s*."""
        done = threading.Event()
        self.run(done.set)
        done.wait(timeout_s)

    def _print_for_ever(self) -> None:
        while True:
            job, chars = self._jobs.get()
            job()
            with self._counting:
                self._waiting_chars -= chars


def _print_now(stream: TextIO, text: str) -> None:
    """Print *text* past the stream's own buffer. Raises OSError, or ValueError: it is closed.

    A thread that was stuck with the buffer's lock would turn the end of the process into an abort.
    """
    try:
        descriptor = stream.fileno()
    except OSError:  # Nothing of the system's, such as in a test.
        stream.write(text)
        stream.flush()
        return
    left = text.encode(errors="backslashreplace")
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # Whoever started us has left it so.
            select.select([], [descriptor], [])


class LogOutput:
    """Where lines go, which ones, and how they look; all of it may change while the daemon runs.

    *around* is called to write each line, such as by whoever has something else on the terminal.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        around: Callable[[Callable[[], None]], None] | None = None,
        printer: Printer | None = None,
        node_id: int | None = None,
    ) -> None:
        """Write to *stream* (standard output), unless a file is asked for.

        With *node_id* each line says that it is of this node.
        """
        self.printer = printer or Printer()
        self._common = {} if node_id is None else {"node_id": node_id}
        self._stream = sys.stdout if stream is None else stream
        self._around = around
        self._file: TextIO | None = None

    def configure(self, level: str = "info", form: str = "auto", path: str = "") -> None:
        """Send structlog's events of at least *level* to the file *path*, opened anew, if any.

        Raises:
            OSError: The file can't be opened; everything is as it was.
        """
        file = open(path, "a", encoding="utf-8", opener=_open_at_once) if path else None  # noqa: SIM115 - it stays open
        out = file or self._stream
        is_text = form == "text" or (form == "auto" and out.isatty())
        structlog.configure(
            processors=[
                self._add_common,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                _escape_values,
                _text(colors=out.isatty()) if is_text else structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
            logger_factory=structlog.WriteLoggerFactory(
                file=_LossyStream(out, self._around, self.printer)  # type: ignore[arg-type]  # it only writes and flushes
            ),
            cache_logger_on_first_use=False,
        )
        self.close()
        self._file = file

    def _add_common(self, _logger: Any, _method: str, event: Any) -> Any:
        return event | self._common

    def close(self) -> None:
        """Close the file; what is written afterwards is lost."""
        file, self._file = self._file, None
        if file is not None:
            self.printer.run(partial(_close, file))


def _open_at_once(path: str, flags: int) -> int:
    """Open a file. Raises OSError also for a pipe that nobody reads: its open would wait."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _close(file: TextIO) -> None:
    with suppress(OSError):
        file.close()


def _text(*, colors: bool) -> Any:
    return structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback
    )


def log_event(name: str, fields: Mapping[str, Any]) -> None:
    """Log an event of the core or the runtime, at the level that the catalogue has for it."""
    log.log(level_of(name), name, **fields)


class _LossyStream:
    """A stream whose reader may go away, or whose disk may fill: lines are lost, nothing else."""

    def __init__(
        self,
        stream: TextIO,
        around: Callable[[Callable[[], None]], None] | None,
        printer: Printer,
    ) -> None:
        self._stream = stream
        self._around = around
        self._printer = printer

    def write(self, text: str) -> None:
        """Have *text* printed, if that is possible."""
        self._printer.put(partial(self._print, text), len(text))

    def flush(self) -> None:
        """Do nothing: what is printed is printed."""

    def _print(self, text: str) -> None:
        if self._around is None:
            self._print_alone(text)
        else:
            self._around(partial(self._print_alone, text))

    def _print_alone(self, text: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it was closed.
            _print_now(self._stream, text)


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
    """How far a load is, as one line below those of the log; without a terminal nothing at all.

    What is on the terminal is known where it is printed: by the printer's thread.
    """

    def __init__(self, stream: TextIO, printer: Printer | None = None) -> None:
        self._stream = stream if stream.isatty() else None
        self._printer = printer or Printer()
        self._line = ""

    def draw(self, progress: Progress) -> None:
        """Show how far *progress* is."""
        total_bytes, done_bytes = max(progress.total_bytes, 1), progress.done_bytes
        done = min(BAR_WIDTH * done_bytes // total_bytes, BAR_WIDTH)
        line = (
            f"loading [{'#' * done}{'.' * (BAR_WIDTH - done)}] {percent_of(progress):3} %  "
            f"{progress.entries:,} entries"
        )
        self._printer.put(partial(self._show, line), len(line))

    def remove(self) -> None:
        """Leave nothing of it."""
        self._printer.run(partial(self._show, ""))

    def around(self, write: Callable[[], None]) -> None:
        """Have *write* put whole lines where the bar is, and the bar below them.

        For who is printing already.
        """
        line = self._line
        self._show("")
        write()
        self._show(line)

    def _show(self, line: str) -> None:
        if self._stream is None or not (line or self._line):
            return
        self._line = line
        try:
            _print_now(self._stream, _CLEAR + line)
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
