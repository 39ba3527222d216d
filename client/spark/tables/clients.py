"""One connection per coordinator and process, kept for as long as the process lives.

Spark runs the tasks of a scan, fifty of them, in a few Python processes that it uses again; to
connect anew for each would cost more than what it reads.
"""

import os
import threading
from functools import partial
from typing import Final, NamedTuple

from client.api import connect
from client.blocking import BlockingClient

CLIENT_ID: Final = "spark-tables"


class Target(NamedTuple):
    """Which coordinator to ask, and for how long to try before an error."""

    addresses: tuple[str, ...]
    timeout_ms: int


_lock: Final = threading.Lock()
_clients: Final[dict[tuple[int, Target], BlockingClient]] = {}


def client_of(target: Target) -> BlockingClient:
    """Return this process's client of *target*, connected now if there is none.

    It connects again by itself whenever it must.

    Raises:
        CoordinatorUnavailable: nobody answered in time.

    """
    # A forked process has the dictionary of its parent, but not the threads.
    key = os.getpid(), target
    with _lock:
        if key not in _clients:
            connecting = partial(
                connect,
                target.addresses,
                client_id=CLIENT_ID,
                request_timeout_ms=target.timeout_ms,
            )
            _clients[key] = BlockingClient(connecting).__enter__()
        return _clients[key]


def close_all() -> None:
    """Close the connections of this process."""
    with _lock:
        for key in [key for key in _clients if key[0] == os.getpid()]:
            _clients.pop(key).close()
