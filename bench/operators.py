"""What operators do, in one run: ``python -m bench.operators [--quick]``.

``groups top`` as somebody types it, start-up included, and commits beside somebody who looks at all
groups all the time. As in `bench.run`: the daemon on one core, all else on another one.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final, NamedTuple

from bench.command import Bench, Benchmark, command
from bench.dialects import TOPIC, first_offset
from bench.fill import FillPlan
from bench.measures import Medians, Samples, at_most, field_at_most
from bench.processes import (
    DAEMON_NOTES,
    ProcessError,
    Server,
    cpu_ns,
    daemon,
    on_core,
    run_json,
)
from bench.report import Table, fields_table
from bench.talk import Talk, ask, connect
from client.blocking import connect_blocking
from protocol import messages as m
from protocol.partition import TopicPartition

PARTITIONS: Final = 6
# So far ends are beyond the first offset; one of them is committed.
AHEAD: Final = 1_000
TOPS: Final = 5
COMMITS_S: Final = 10.0


class Row(NamedTuple):
    """So many groups on a daemon of its own."""

    name: str
    title: str
    groups: int
    quick: int


TOP: Final = Row("top_2000", "groups top of 2,000 groups with 6 partitions", 2_000, 20)
ALONE: Final = Row("commits_alone", "commits, one after the other, 100,000 groups", 100_000, 200)
BESIDE: Final = Row(
    "commits_beside_top", "the same, beside somebody who looks at all groups", 100_000, 200
)
_TITLES: Final = {row.name: row.title for row in (TOP, ALONE, BESIDE)}
_FIELDS: Final = (
    (TOP.name, "wall_s", "s, the slowest", 3),
    (TOP.name, "cpu_s", "s of CPU of the command", 3),
    (TOP.name, "server_cpu_s", "s of CPU of the daemon", 3),
    *(
        (row.name, field, what, digits)
        for row in (ALONE, BESIDE)
        for field, what, digits in (
            ("p50_ms", "ms, p50", 2),
            ("p99_ms", "ms, p99", 2),
            ("max_ms", "ms, the slowest", 1),
        )
    ),
    (BESIDE.name, "looks", "looks at all groups meanwhile", 0),
)


def _longer(medians: Medians) -> float | None:
    alone, beside = (medians.of(row.name, "p99_ms") for row in (ALONE, BESIDE))
    return None if alone is None or beside is None else beside - alone


_AIMS: Final = (
    field_at_most(TOP.name, "wall_s", TOP.title, 1.0, "s"),
    at_most("longer", "p99 of a commit while all groups are looked at, more", _longer, 10.0, "ms"),
)


def _tables(samples: Samples) -> Mapping[str, Table]:
    return {"Operators": fields_table(Medians(samples), _TITLES, _FIELDS)}


class OperatorBench(Bench):
    """Each row has a daemon of its own, or shares it with the one before."""

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process failed.
        """
        with self._filled(number, TOP) as server:
            self.keep(TOP.name, self._top(server))
        with self._filled(number, ALONE) as server, on_core(self.choice.cores.load):
            self.keep(ALONE.name, self._commits(server))
            with _looking(server) as seen:
                found = self._commits(server)
            self.keep(BESIDE.name, {**found, "looks": seen()})

    @contextmanager
    def _filled(self, number: int, row: Row) -> Iterator[Server]:
        """Start a daemon that has the groups of *row*, whose lag is known."""
        cores = self.choice.cores
        groups = row.quick if self.choice.quick else row.groups
        with daemon(self.folder / f"{number}-{row.name}", cores.server) as server:
            fill_with_lag(server, groups, PARTITIONS, cores.load)
            yield server

    def _top(self, server: Server) -> dict[str, float]:
        before_ns = cpu_ns(server.pid)
        walls, cpus = [], []
        for _ in range(1 if self.choice.quick else TOPS):
            with on_core(self.choice.cores.load):
                children_s = _children_s()
                began = perf_counter()
                _run_top(server)
                walls.append(perf_counter() - began)
                cpus.append(_children_s() - children_s)
        spent_s = (cpu_ns(server.pid) - before_ns) / 1e9 / len(walls)
        return {"wall_s": max(walls), "cpu_s": max(cpus), "server_cpu_s": spent_s}

    def _commits(self, server: Server) -> dict[str, float]:
        duration_s = 0.5 if self.choice.quick else COMMITS_S
        talk = connect(server.host, server.port)
        try:
            took = sorted(_committed(talk, duration_s))
        finally:
            talk.close()
        return {
            "p50_ms": 1000 * took[len(took) // 2],
            "p99_ms": 1000 * took[len(took) * 99 // 100],
            "max_ms": 1000 * took[-1],
            "wrong": 0,
        }


def _committed(talk: Talk, duration_s: float) -> Iterator[float]:
    """Commit one after the other, and yield how long each took."""
    end = perf_counter() + duration_s
    offset = 0
    while (began := perf_counter()) < end:
        offset += 1
        partitions = (m.PartitionCommit(0, offset, -1, "", None),)
        request = m.OffsetCommitRequest("busy", -1, "", None, (m.TopicCommit(TOPIC, partitions),))
        (answer,) = ask([talk], [request])
        yield perf_counter() - began
        if answer.error or answer.topics[0].partitions[0].error:
            raise ProcessError(f"a commit was refused: {answer}")


def fill_with_lag(server: Server, groups: int, partitions: int, core: int | None) -> None:
    """Have groups commit, from *core*, and tell how far the partitions reach.

    Raises:
        ProcessError: It failed.
    """
    plan = FillPlan(server.host, server.port, "coordinator", groups, partitions)
    run_json("bench.fill", plan, core=core)
    with connect_blocking(server.address) as client:
        client.register_topics({TOPIC: partitions})
        client.report_end_offsets(
            {TopicPartition(TOPIC, p): first_offset(p) + AHEAD for p in range(partitions)}
        )


def _run_top(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coordinator", "groups", "top", "--at", server.address],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != 21 or str(PARTITIONS * (AHEAD - 1)) not in lines[1]:
        raise ProcessError(f"groups top: {done.stdout[:500]} {done.stderr[-500:]}")


@contextmanager
def _looking(server: Server) -> Iterator[Any]:
    """Have all groups looked at again and again; yield what returns how often."""
    script = (
        "import sys\n"
        "from client.blocking import connect_blocking\n"
        "with connect_blocking(sys.argv[1]) as client:\n"
        "    while True:\n"
        "        client.summarize_groups()\n"
        "        print(flush=True)\n"
    )
    looks = 0
    process = subprocess.Popen(
        [sys.executable, "-c", script, server.address], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()  # The first is done: it is at work.
    try:
        yield lambda: looks
    finally:
        process.terminate()
        looks = process.stdout.read().count(b"\n")
        process.wait()


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


main = command(
    Benchmark(
        module="bench.operators",
        help="Measure what operators do, and write the results.",
        name="operators",
        repetitions=3,
        make=OperatorBench,
        settings=lambda _quick: DAEMON_NOTES,
        titles=_TITLES,
        aims=_AIMS,
        tables=_tables,
    )
)


if __name__ == "__main__":
    main()
