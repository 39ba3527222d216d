"""What systemd is told (``Type=notify``): ready, how far a load is, that the loop still turns.

Whoever started the daemon names a datagram socket in NOTIFY_SOCKET; without one nothing is told.
"""

import os
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Final

import trio

from coordinator.runtime.loading import Progress, percent_of

LOAD_PERIOD_S: Final = 1.0
# A load that goes on may take as long as it does: each second it asks for so much more.
EXTENSION_US: Final = 30_000_000


class ServiceManager:
    """The other end of NOTIFY_SOCKET; nobody, if *address* is empty."""

    def __init__(self, address: str = "", watchdog_us: int = 0) -> None:
        self._watchdog_s = watchdog_us / 1e6
        self._socket: socket.socket | None = None
        if address:
            # An abstract one begins with a zero byte, which no variable can have.
            self._address = "\0" + address[1:] if address.startswith("@") else address
            self._socket = socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            )

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> "ServiceManager":
        """Return who is named in *environ*, and take that out: children have nothing to tell."""
        address = environ.pop("NOTIFY_SOCKET", "")
        interval = environ.pop("WATCHDOG_USEC", "")
        whose = environ.pop("WATCHDOG_PID", "")
        is_ours = interval.isdecimal() and whose in {"", str(os.getpid())}
        return cls(address, int(interval) if is_ours else 0)

    def tell(self, *assignments: str) -> None:
        """Send *assignments*, such as READY=1, if anybody wants to know and listens."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto("\n".join(assignments).encode(), self._address)

    def ready(self) -> None:
        """Tell that everything is served."""
        self.tell("READY=1", "STATUS=ready")

    def reloading(self) -> None:
        """Tell that settings are read again; `ready` ends it."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Tell that the end has begun."""
        self.tell("STOPPING=1", "STATUS=stopping")

    async def follow(self, look: Callable[[], Progress | None]) -> None:
        """Tell how far the load is that *look* shows, until cancelled."""
        while self._socket is not None:
            progress = look()
            if progress is not None:
                status = f"STATUS=loading: {percent_of(progress)} %, {progress.entries:,} entries"
                self.tell(status, f"EXTEND_TIMEOUT_USEC={EXTENSION_US}")
            await trio.sleep(LOAD_PERIOD_S)

    async def feed(self) -> None:
        """Feed the watchdog from the event loop until cancelled, twice as often as it asks."""
        while self._socket is not None and self._watchdog_s:
            self.tell("WATCHDOG=1")
            await trio.sleep(self._watchdog_s / 2)

    def close(self) -> None:
        """Tell nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
