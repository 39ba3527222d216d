"""A flood of HTTP, and what commits make of it.

As a process (``python -m bench.http_flood '{"host": …}'``, a `Flood`) it floods until its input
ends, and then prints what it got. `measure` runs an open loop of commits alone, and beside each of
the floods of `FLOODS`, several times in turns: what is compared stands side by side.

    python -m bench.http_flood            # all of it, about three minutes
    python -m bench.http_flood --quick    # a smoke run
"""

import select
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click

from bench.command import work_dir_option
from bench.load import Plan, allow_descriptors
from bench.processes import (
    Cores,
    ProcessError,
    Server,
    beside,
    cores_of_this_machine,
    daemon,
    events_of,
    output_of,
    run_json,
    run_plan,
)
from bench.report import Table, number, text
from bench.talk import Talk, ask, connect
from protocol.messages import (
    OffsetCommitRequest,
    PartitionCommit,
    PartitionEnd,
    ReportEndOffsetsRequest,
    TopicCommit,
    TopicEnds,
)

_READ_BYTES: Final = 1 << 18
_CHANGE_PERIOD_S: Final = 1.0
_ANSWER: Final = b"HTTP/1.1 "
_WELL: Final = b"HTTP/1.1 200"
COMMITS_PER_S: Final = 4_000


@dataclass(frozen=True, slots=True)
class Flood:
    """What to do.

    Attributes:
        askers: Connections that ask for `path` again as soon as they have an answer.
        deaf: Connections that ask for `path` for ever and never read.
        streams: Connections that follow all events.
        native_port: Where to change a group once a second; None for no changes.
    """

    host: str
    port: int
    askers: int = 0
    deaf: int = 0
    streams: int = 0
    path: str = "/api/v1/groups"
    native_port: int | None = None


class Flooding:
    """All connections of a flood, and what came of them.

    Attributes:
        counts: ``answers``, those of them that were ``well``, ``event_bytes``, connections that
            were ``closed``, and ``changes``.
    """

    def __init__(self, flood: Flood, stack: ExitStack) -> None:
        """Connect; *stack* closes everything."""
        self.counts = dict.fromkeys(("answers", "well", "event_bytes", "closed", "changes"), 0.0)
        self._address = (flood.host, flood.port)
        self._stack = stack
        self._epoll = stack.enter_context(select.epoll())
        self._askers: dict[int, socket.socket] = {}
        self._streams: dict[int, socket.socket] = {}
        self._request = _get(flood.host, flood.path)
        for _ in range(flood.streams):
            self._watch(self._connect(_get(flood.host, "/api/v1/events")), self._streams)
        for _ in range(flood.deaf):
            self._connect(self._request * 1000)
        for _ in range(flood.askers):
            self._watch(self._connect(self._request), self._askers)
        self._talk = None
        if flood.native_port is not None:
            self._talk = stack.enter_context(closing(connect(flood.host, flood.native_port)))
        self._epoll.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)

    def _connect(self, first: bytes) -> socket.socket:
        sock = socket.create_connection(self._address, timeout=30)
        self._stack.callback(sock.close)
        sock.sendall(first)
        sock.setblocking(False)
        return sock

    def _watch(self, sock: socket.socket, peers: dict[int, socket.socket]) -> None:
        self._epoll.register(sock, select.EPOLLIN)
        peers[sock.fileno()] = sock

    def run(self) -> None:
        """Go on until standard input ends."""
        next_change_s = time.monotonic()
        while True:
            for fd, _ in self._epoll.poll(0.1):
                if fd == sys.stdin.fileno():
                    return
                self._readable(fd)
            if self._talk is not None and time.monotonic() >= next_change_s:
                next_change_s += _CHANGE_PERIOD_S
                self.counts["changes"] += 1
                _change(self._talk, int(self.counts["changes"]))

    def _readable(self, fd: int) -> None:
        sock = self._askers.get(fd)
        data = _received(sock or self._streams[fd])
        if not data:
            self.counts["closed"] += 1
            self._epoll.unregister(fd)
        elif sock is None:
            self.counts["event_bytes"] += len(data)
        else:
            # An answer that comes in parts has its head in one of them.
            answers = data.count(_ANSWER)
            self.counts["answers"] += answers
            self.counts["well"] += data.count(_WELL)
            with suppress(OSError):  # If the daemon has closed it, the next read shows that.
                sock.sendall(self._request * answers)


def run(flood: Flood) -> dict[str, float]:
    """Flood until standard input ends; return the counts of `Flooding`, and the ``seconds``."""
    allow_descriptors(flood.askers + flood.deaf + flood.streams + 64)
    with ExitStack() as stack:
        flooding = Flooding(flood, stack)
        print("begun", flush=True)
        began_s = time.monotonic()
        flooding.run()
        return {**flooding.counts, "seconds": time.monotonic() - began_s}


def _get(host: str, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(_READ_BYTES)
    except BlockingIOError:  # Read already.
        return b" "
    except OSError:
        return b""


def _change(talk: Talk, count: int) -> None:
    """Let a group have another lag than before."""
    ends = (TopicEnds("flood", (PartitionEnd(0, 10 * count),)),)
    commits = (TopicCommit("flood", (PartitionCommit(0, count, -1, "", None),)),)
    ask([talk], [ReportEndOffsetsRequest(ends)])
    ask([talk], [OffsetCommitRequest("flood", -1, "", None, commits)])


class Row(NamedTuple):
    """One load beside commits; of a flood of nothing, commits are alone."""

    name: str
    title: str
    flood: Mapping[str, Any]


FLOODS: Final = (
    Row("alone", "commits alone", {}),
    Row("askers", "16 connections that ask without a pause", {"askers": 16}),
    Row("probes", "the same for /livez", {"askers": 16, "path": "/livez"}),
    Row("scrapes", "the same for /metrics", {"askers": 16, "path": "/metrics"}),
    Row("deaf", "and 64 that never read", {"askers": 16, "deaf": 64}),
    Row("streams", "and 500 event streams, a change a second", {"askers": 16, "streams": 500}),
)


class Times(NamedTuple):
    """How long, and how often."""

    rounds: int
    warmup_s: float
    seconds: float


FULL: Final = Times(5, 1.0, 4.0)
QUICK: Final = Times(1, 0.1, 0.3)


@contextmanager
def http_daemon(folder: Path, cores: Cores, *settings: str) -> Iterator[tuple[Server, int]]:
    """Run a daemon that answers HTTP; the port is that of HTTP."""
    with daemon(folder, cores.server, "http.listeners=127.0.0.1:0", *settings) as server:
        yield server, int(events_of(output_of(folder))["http.listening"]["port"])


def measure(folder: Path, cores: Cores, times: Times) -> dict[str, list[dict[str, float]]]:
    """Return, by row, what each round has measured: latencies of commits, and answers of HTTP.

    Raises:
        ProcessError: One of the processes failed.
    """
    samples: dict[str, list[dict[str, float]]] = {row.name: [] for row in FLOODS}
    with http_daemon(folder, cores) as (server, http_port):
        for turn in range(times.rounds):
            for row in FLOODS[:: 1 if turn % 2 else -1]:
                samples[row.name].append(commits_beside(server, http_port, row, cores, times))
    return samples


def commits_beside(
    server: Server, http_port: int, row: Row, cores: Cores, times: Times
) -> dict[str, float]:
    """Return the latencies of commits beside the flood of *row*, and its answers.

    Raises:
        ProcessError: One of the processes failed.
    """
    native_port = server.port if "streams" in row.flood else None
    flood = Flood(server.host, http_port, native_port=native_port, **row.flood)
    with (
        beside("bench.http_flood", flood, core=cores.load)
        if row.flood
        else nullcontext(dict[str, Any]())
    ) as flooded:
        found: dict[str, float] = run_json("bench.load", _commits(server, times), core=cores.load)
    found["answers_per_s"] = flooded.get("answers", 0) / flooded.get("seconds", 1)
    found["not_well"] = flooded.get("answers", 0) - flooded.get("well", 0)
    found["event_mb_per_s"] = flooded.get("event_bytes", 0) / flooded.get("seconds", 1) / 1e6
    return found


def _commits(server: Server, times: Times) -> Plan:
    """Return a load by 512 groups, the same ones each time."""
    return Plan(
        host=server.host,
        port=server.port,
        dialect="coordinator",
        workload="commit",
        connections=64,
        window=8,
        partitions=1,
        window_s=times.warmup_s,
        warmup_s=times.warmup_s,
        duration_s=times.seconds,
        run="flood",
        rate_per_s=COMMITS_PER_S,
        server_pids=(server.pid,),
        sleeps=True,
    )


# Field -> its title, its unit, and digits.
_COLUMNS: Final = {
    "p50_us": ("p50 ms", 1000, 1),
    "p99_us": ("p99 ms", 1000, 1),
    "max_us": ("max ms", 1000, 1),
    "server_cpu_us": ("CPU us a commit, HTTP in it", 1, 1),
    "server_busy": ("busy", 1, 2),
    "answers_per_s": ("HTTP answers/s", 1, 0),
    "not_well": ("not 200", 1, 0),
    "event_mb_per_s": ("events MB/s", 1, 2),
}


def table(samples: Mapping[str, list[dict[str, float]]]) -> Table:
    """Return medians over the rounds, and the p99 of commits against that of the same round."""
    titles = [title for title, _, _ in _COLUMNS.values()]
    found: Table = [("beside commits", "p99 of alone", *titles)]
    alone = samples[FLOODS[0].name]
    for row in FLOODS:
        of_row = samples[row.name]
        ratios = [
            mine["p99_us"] / theirs["p99_us"] for mine, theirs in zip(of_row, alone, strict=True)
        ]
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        medians = [
            number(median(sample[field] / unit for sample in of_row), digits)
            for field, (_, unit, digits) in _COLUMNS.items()
        ]
        found.append((row.title, ratio, *medians))
    return found


@click.command()
@click.option("--quick", is_flag=True, help="A smoke run.")
@work_dir_option
def main(*, quick: bool, work_dir: Path) -> None:
    """Show how commits fare beside floods of HTTP."""
    work_dir.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="http-flood-", dir=work_dir) as folder:
            samples = measure(
                Path(folder) / "data", cores_of_this_machine(), QUICK if quick else FULL
            )
    except ProcessError as exc:
        sys.exit(f"bench.http_flood: {exc}")
    print(text(table(samples)))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        run_plan("bench.http_flood", Flood, run)
    else:
        main()
