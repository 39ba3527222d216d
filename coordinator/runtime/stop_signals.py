"""SIGTERM and SIGINT between the first line of a daemon and the event loop that obeys them.

Imports nothing that takes time: until `catch` is called, the system's default ends the process.
"""

import signal
from types import FrameType
from typing import Final

_STOP: Final = (signal.SIGTERM, signal.SIGINT)
# Signals that would end the process without a drain, though other daemons give them a meaning.
# SIGHUP is answered later: a rotation of logs must not end a daemon that starts.
_IGNORED: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_came: list[int] = []


def catch() -> None:
    """Note the first signal from now on; the second one ends the process at once."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for number in _STOP:
        signal.signal(number, _note)


def have_come() -> bool:
    """Say whether a signal to stop was noted."""
    return bool(_came)


def release() -> None:
    """Let the next signal end the process at once, if they were caught."""
    for number in _STOP:
        if signal.getsignal(number) is _note:
            signal.signal(number, signal.SIG_DFL)


def _note(number: int, _frame: FrameType | None) -> None:
    _came.append(number)
    release()
