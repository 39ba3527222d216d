"""Leaving the group when Spark ends the reader process.

Spark stops a query by sending SIGTERM to its reader process, sometimes twice, while the main
thread may be anywhere, also inside a lock. So the handler takes no lock: it writes a byte to a
pipe on whose other end a thread waits, gives that thread a moment to leave, and exits.
"""

import logging
import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

logger = logging.getLogger(__name__)

# Spark itself waits for nobody; a coordinator that doesn't answer in this time finds out by the
# session timeout.
LEAVE_WAIT_S: Final = 1.0


class LeaveOnSigterm:
    """Calls *leave* in a thread of its own when SIGTERM arrives, then ends the process.

    Args:
        leave: leaves the group; must be safe to call while other threads use the group.

    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._asked_r, self._asked_w = os.pipe()
        self._left_r, self._left_w = os.pipe()

    def install(self) -> None:
        """Take over SIGTERM. Does nothing but warn outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning("not in the main thread: the reader will not leave on SIGTERM")
            return
        threading.Thread(target=self._wait_and_leave, name="leave-on-sigterm", daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _wait_and_leave(self) -> None:
        os.read(self._asked_r, 1)
        try:
            self._leave()
        finally:
            os.write(self._left_w, b".")

    def _on_sigterm(self, _signum: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(self._asked_w, b".")
        select.select([self._left_r], [], [], LEAVE_WAIT_S)
        os._exit(0)
