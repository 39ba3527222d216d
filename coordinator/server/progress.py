"""A bar on the operator's terminal while the log is loaded, out of the way of log lines."""

from collections.abc import Callable
from typing import Final, TextIO

import trio

from coordinator.runtime.loading import Progress

WIDTH: Final = 30
PERIOD_S: Final = 0.1
_CLEAR: Final = "\r\x1b[K"  # To the start of the line, and nothing behind it.


class Bar:
    """One line at the bottom; without a terminal nothing at all."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._line = ""

    def draw(self, progress: Progress) -> None:
        """Show how far *progress* is."""
        total_bytes, done_bytes = max(progress.total_bytes, 1), progress.done_bytes
        done = min(WIDTH * done_bytes // total_bytes, WIDTH)
        percent = min(100 * done_bytes // total_bytes, 100)
        self._show(
            f"loading [{'#' * done}{'.' * (WIDTH - done)}] {percent:3} %  "
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
                await trio.sleep(PERIOD_S)
        finally:
            self.remove()
