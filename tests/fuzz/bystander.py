"""Somebody who asks the daemon something small again and again, from a process of its own.

How long that takes is what the daemon's other clients do to it, and what the machine does: the
time in which the daemon or this process was ready to run and had no core is taken off.
"""

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from protocol.messages import HeartbeatRequest
from tests.fuzz import people
from tests.integration.daemon import ROOT, Connection

PERIOD_S: Final = 0.01


class Bystander:
    """The process."""

    def __init__(self, daemon_pid: int, port: int, *, asks: bool) -> None:
        """Start it against the daemon at *port*, which *asks* for a log-in."""
        who = [str(daemon_pid), str(port), str(int(asks))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.bystander", *who],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def stop(self) -> list[float]:
        """End it; return for how many seconds each of its requests waited."""
        told, _ = self._process.communicate("")
        waited_s: list[float] = json.loads(told)
        return waited_s


def connect(port: int, *, asks: bool) -> Connection:
    """Return a connection of somebody who may do everything."""
    connection = Connection(port)
    if asks:
        people.log_in(connection.ask, people.ROOT)
    return connection


def main(daemon_pid: int, port: int, *, asks: bool) -> None:
    """Ask until standard input ends."""
    waited_s: list[float] = []
    connection = connect(port, asks=asks)
    request = HeartbeatRequest("bystander", 1, "nobody", None)
    while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        began_s, delayed_s = time.monotonic(), _delayed_s(daemon_pid)
        connection.ask(request)
        took_s = time.monotonic() - began_s
        waited_s.append(max(0.0, took_s - (_delayed_s(daemon_pid) - delayed_s)))
    sys.stdout.write(json.dumps(waited_s))


def _delayed_s(daemon_pid: int) -> float:
    """Return for how long the two processes have waited for a core so far."""
    paths = (f"/proc/{daemon_pid}/task/{daemon_pid}/schedstat", "/proc/self/schedstat")
    waits_ns = [int(Path(path).read_text(encoding="ascii").split()[1]) for path in paths]
    return sum(waits_ns) / 1e9


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), asks=sys.argv[3] == "1")
