"""How long partitions stand still when a member joins, leaves or is killed.

Two drivers, each with a JVM of its own. One stays, the other one comes and goes. Each says when a
batch of which partitions is in its sink; a partition's pause is the longest time between two of
its batches around the event.
"""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.measures import median
from bench.processes import ProcessError, Server
from bench.spark_session import ROOT

PARTITIONS: Final = 6
TRIGGER_MS: Final = 500
SESSION_TIMEOUT_MS: Final = 3_000
JOIN, LEAVE, KILL = "join", "leave", "kill"
EVENTS: Final = (JOIN, LEAVE, KILL)
# What a driver is told, and what it says as it does it.
_COMMANDS: Final = {
    JOIN: ("start", "starting"),
    LEAVE: ("stop", "stopping"),
    KILL: ("kill", "killing"),
}
DAEMON_SETTINGS: Final = ("group.min.session.timeout.ms=500",)
# Until both drivers, or the one that is left, do nothing but their own batches again.
_SETTLED_BATCHES: Final = 3
_TIMEOUT_S: Final = 300.0
_OPTIONS: Final = {
    "group": "pauses",
    "log.partitions": str(PARTITIONS),
    "sessionTimeout": f"{SESSION_TIMEOUT_MS}ms",
    "rebalanceTimeout": "30s",
    "coordinatorTimeout": "60s",
}


class Batch(NamedTuple):
    """What a driver's sink has taken, and when."""

    at_s: float
    driver: str
    partitions: frozenset[int]


def pauses(batches: Sequence[Batch], event: str, event_s: float) -> dict[str, float | None]:
    """Return what an event cost, in seconds, from the batches around it, in order of time.

    ``moved_s``: The longest pause of a partition that has another owner than before.
    ``stayed_s``: Likewise of one that has the same; None if there is none.
    ``batch_s``: The time between two batches of a partition before the event.
    ``limit_s``: What a hand-over takes at least: the next batch, and after a kill the session
    timeout before it (which began with the last heartbeat, up to a third of it before the kill).

    Raises:
        ProcessError: a partition had no batch before, or after the event.

    """
    moved: list[float] = []
    stayed: list[float] = []
    quiet: list[float] = []
    for partition in range(PARTITIONS):
        mine = [batch for batch in batches if partition in batch.partitions]
        before = [batch for batch in mine if batch.at_s <= event_s]
        after = [batch for batch in mine if batch.at_s > event_s]
        if not before or not after:
            raise ProcessError(f"partition {partition} made no progress around a {event}")
        quiet += [late.at_s - early.at_s for early, late in pairwise(before)]
        around = [before[-1], *after]
        pause = max(late.at_s - early.at_s for early, late in pairwise(around))
        (stayed if before[-1].driver == after[-1].driver else moved).append(pause)
    if not moved or not quiet:
        raise ProcessError(f"no partition moved after a {event}")
    batch_s = median(quiet)
    limit_s = batch_s + (SESSION_TIMEOUT_MS / 1000 if event == KILL else 0)
    return {
        "moved_s": max(moved),
        "stayed_s": max(stayed) if stayed else None,
        "batch_s": batch_s,
        "limit_s": limit_s,
        "over_s": max(moved) - limit_s,
    }


class Driver:
    """A process of `bench.spark_driver`."""

    def __init__(self, name: str, folder: Path, address: str) -> None:
        self.name = name
        folder.mkdir(parents=True)
        given = {
            "folder": str(folder),
            "options": {**_OPTIONS, "coordinator": address},
            "trigger_ms": TRIGGER_MS,
        }
        self._output = folder / "errors"
        self.batches: list[Batch] = []
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._output.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.spark_driver", json.dumps(given)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, command: str) -> None:
        """Say what to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def wait(self, event: str) -> float:
        """Return the time of the next event of this name.

        Raises:
            ProcessError: it doesn't come.

        """
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                said = self._events.get(timeout=max(deadline_s - time.monotonic(), 0))
            except queue.Empty:
                errors = self._output.read_text(encoding="utf-8", errors="replace")
                raise ProcessError(f"{self.name}: no {event!r}:\n{errors[-2000:]}") from None
            if said["event"] == event:
                return float(said["at_s"])

    def close(self) -> None:
        """End the process, and with it its JVM."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            if said["event"] == "batch":
                partitions = frozenset(said["partitions"])
                self.batches.append(Batch(said["at_s"], self.name, partitions))
            else:
                self._events.put(said)


class Pair:
    """The driver that stays, and the one that comes and goes."""

    def __init__(self, stays: Driver, comes: Driver) -> None:
        self._stays = stays
        self._comes = comes
        self._quiet_s = 0.0
        for driver in (stays, comes):
            driver.wait("prepared")
        stays.tell("start")
        self._settle(time.monotonic(), alone=True)

    def event(self, event: str) -> dict[str, float | None]:
        """Have the other driver join, leave or be killed; return what it cost."""
        command, said = _COMMANDS[event]
        since_s = self._quiet_s
        self._comes.tell(command)
        event_s = self._comes.wait(said)
        self._settle(event_s, alone=event != JOIN)
        if event != JOIN:
            self._comes.wait("stopped")
        return pauses(self._since(since_s), event, event_s)

    def _settle(self, since_s: float, *, alone: bool) -> None:
        """Wait until the partitions are shared out as they are to be, and for some batches more."""
        share = PARTITIONS if alone else PARTITIONS // 2
        drivers = [self._stays] if alone else [self._stays, self._comes]

        def settled() -> bool:
            last = [
                [batch for batch in driver.batches if batch.at_s > since_s][-_SETTLED_BATCHES:]
                for driver in drivers
            ]
            self._quiet_s = min((some[0].at_s for some in last if some), default=since_s)
            return all(
                len(some) == _SETTLED_BATCHES and all(len(b.partitions) == share for b in some)
                for some in last
            )

        _wait_until(
            lambda: (
                "partitions shared out; last were "
                + ", ".join(str(driver.batches[-2:]) for driver in drivers)
            ),
            settled,
        )

    def _since(self, since_s: float) -> list[Batch]:
        batches = [*self._stays.batches, *self._comes.batches]
        return sorted(batch for batch in batches if batch.at_s >= since_s)


@contextmanager
def pair(folder: Path, daemon: Server) -> Iterator[Pair]:
    """Run two drivers against a daemon."""
    address = f"{daemon.host}:{daemon.port}"
    with ExitStack() as stack:
        drivers = []
        for name in ("stays", "comes"):
            driver = Driver(name, folder / name, address)
            stack.callback(driver.close)
            drivers.append(driver)
        yield Pair(*drivers)


def _wait_until(what: Callable[[], str], condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise ProcessError(f"not within {_TIMEOUT_S:.0f} s: {what()}")
        time.sleep(0.05)
