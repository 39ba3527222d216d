"""Descriptors: what the process itself needs is kept, and clients get the others.

A log that lacks one for its next segment fails, and ends the daemon; a compaction that lacks one
doesn't begin. So the daemon says at its start what it will have open at most, and what is left is
divided: a quarter for HTTP, an eighth for handshakes of TLS, the rest for clients. Of each listener
one connection may be accepted that isn't counted in any of these.
"""

import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from coordinator.config import ConfigError, Settings
from coordinator.server.handshakes import HANDSHAKES_MAX

# With fewer for clients a start is refused.
CLIENTS_MIN: Final = 16

_TRIO: Final = 3  # Its epoll, and the two sockets that wake it.
_POLLER: Final = 2  # Its epoll, and what wakes it.
_MAILBOX: Final = 1
# The lock, the newest segment, `durable` and its memory; at a roll the next segment and the folder;
# a segment that is read.
_FOLDER: Final = 7
# A client of ZooKeeper: its connection, and the two sockets that wake it.
_ZOOKEEPER: Final = 3
# A child that starts: both ends of its pipes and of the one that tells so, and the process.
_CHILD: Final = 9
# Read again: certificates, users' files, settings, /proc. Opened anew: the log's file.
_FILES: Final = 4
# Itself, and a connection that is accepted and counts nowhere: it waits, or is closed at once.
_LISTENER: Final = 2

_OPEN: Final = Path("/proc/self/fd")


class Room(NamedTuple):
    """How many connections there are descriptors for.

    Attributes:
        clients: Of the native listeners.
        http: Of those of HTTP.
        handshakes: On the way into either.
    """

    clients: int
    http: int
    handshakes: int

    def max_connections(self, settings: Settings) -> int:
        """Return how many connections of clients there may be."""
        return min(settings.max_connections, self.clients)


def open_descriptors() -> int:
    """Return how many descriptors this process has."""
    # Linux tells how many there are since 6.2. To list ten thousand takes 20 ms.
    return _OPEN.stat().st_size or sum(1 for _ in _OPEN.iterdir())


def find_room(settings: Settings) -> Room:
    """Return what is left for clients, at the start of a daemon that has opened nothing yet.

    The process may open as many as the system lets it ask for, from here on.

    Raises:
        ConfigError: It may open too few.
    """
    allowed = _raise_limit()
    own = open_descriptors() + _needed(settings)
    if allowed - own < CLIENTS_MIN:
        raise ConfigError(
            f"this process may open {allowed} files (ulimit -n): it needs {own} itself and "
            f"{CLIENTS_MIN} for clients, so {own + CLIENTS_MIN} at least"
        )
    return divided(allowed - own, settings)


def divided(left: int, settings: Settings) -> Room:
    """Return what each kind of connections gets of *left* descriptors."""
    http = min(settings.http_max_connections, left // 4) if settings.http_listeners else 0
    handshakes = min(HANDSHAKES_MAX, left // 8) if settings.has_tls else 0
    return Room(left - http - handshakes, http, handshakes)


def _needed(settings: Settings) -> int:
    """Return how many the process has open at most, beside those of clients."""
    ensemble = settings.zookeeper()
    pollers = 1 + settings.has_tls + bool(settings.http_listeners)
    listeners = len(settings.listener_addresses()) + len(settings.http_addresses())
    # One client that hangs, the next one, and at the start one to each server.
    logs = _FOLDER if ensemble is None else _MAILBOX + _ZOOKEEPER * (2 + len(ensemble.servers))
    fixed = _TRIO + _MAILBOX + _CHILD + _FILES
    return fixed + pollers * _POLLER + listeners * _LISTENER + logs


def _raise_limit() -> int:
    """Let the process open as many files as it may; return how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
