"""Offsets out of ZooKeeper: ``python -m bench.zookeeper [--quick]``.

A ZooKeeper is filled once, with groups as consumers of old leave them. Each repetition imports all
of it into an empty daemon, by the command that people use, and then does that again, which finds
nothing to do. The command runs on the load's core, ZooKeeper and the daemon on the other one.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from kazoo.client import KazooClient

from bench.command import Bench, Benchmark, Choice, command
from bench.measures import Aim, Medians, Samples
from bench.peer_jars import version_of
from bench.peers import ZOOKEEPER, missing, peer_serving
from bench.processes import DAEMON_NOTES, ProcessError, daemon, on_core
from bench.report import Table, fields_table

IMPORT: Final = "import"
AGAIN: Final = "again"
TITLES: Final = {
    IMPORT: "zookeeper import, into an empty daemon",
    AGAIN: "the same again, which changes nothing",
}
AIMS: Final = (
    Aim(
        f"{IMPORT}, offsets_per_s",
        "offsets imported a second, the start of the command included",
        lambda medians: medians.of(IMPORT, "offsets_per_s"),
        20_000,
        at_least=True,
        unit="/s",
    ),
)
_TOPICS: Final = 4


class Size(NamedTuple):
    """How many groups there are, and partitions of each of their topics."""

    groups: int
    partitions: int

    @property
    def offsets(self) -> int:
        """How many offsets that makes."""
        return self.groups * self.partitions * _TOPICS


_FULL: Final = Size(500, 100)
_QUICK: Final = Size(10, 20)


def fill(address: str, size: Size) -> None:
    """Write the znodes, those of a group at once."""
    client = KazooClient(address)
    client.start()
    try:
        client.ensure_path("/consumers")
        for group in range(size.groups):
            making = client.transaction()
            path = f"/consumers/group-{group}"
            for above in (path, f"{path}/offsets"):
                making.create(above)
            for topic in range(_TOPICS):
                making.create(f"{path}/offsets/topic-{topic}")
                for partition in range(size.partitions):
                    making.create(f"{path}/offsets/topic-{topic}/{partition}", b"123456789")
            if failed := [one for one in making.commit() if isinstance(one, Exception)]:
                raise ProcessError(f"ZooKeeper makes no nodes: {failed[0]!r}")
    finally:
        client.stop()
        client.close()


class ZooKeeperBench(Bench):
    """One ZooKeeper, and a new daemon in each repetition."""

    def __init__(self, folder: Path, choice: Choice) -> None:
        super().__init__(folder, choice)
        if why := missing("zookeeper"):
            raise ProcessError(f"no ZooKeeper: {why}")
        self._size = _QUICK if choice.quick else _FULL
        serving = peer_serving(ZOOKEEPER, self.folder / "zookeeper", core=choice.cores.server)
        self._address = self.stack.enter_context(serving).address
        self.about["ZooKeeper"] = version_of("zookeeper")
        fill(self._address, self._size)

    def repetition(self, number: int) -> None:
        """Import, twice."""
        cores = self.choice.cores
        with daemon(self.folder / f"data-{number}", cores.server) as server, on_core(cores.load):
            for name in (IMPORT, AGAIN):
                self.keep(name, self._imported(server.address))

    def _imported(self, at: str) -> dict[str, float | None]:
        words = ["zookeeper", "import", self._address, "--summary", "--yes", "--at", at]
        began_ns = time.monotonic_ns()
        process = subprocess.Popen(
            [sys.executable, "-m", "coordinator", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise ProcessError(f"{' '.join(words)} ended with {process.returncode}")
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        return {
            "offsets_per_s": self._size.offsets / took_s,
            "took_s": took_s,
            "cpu_s": usage.ru_utime + usage.ru_stime,
        }


def tables(samples: Samples) -> dict[str, Table]:
    """Return what each import took."""
    fields = [
        (name, field, unit, digits)
        for name in TITLES
        for field, unit, digits in (
            ("offsets_per_s", "offsets a second", 0),
            ("took_s", "s until it has ended", 2),
            ("cpu_s", "s of CPU of the command", 2),
        )
    ]
    return {"Imports": fields_table(Medians(samples), TITLES, fields)}


main = command(
    Benchmark(
        module="bench.zookeeper",
        help="Measure imports out of ZooKeeper, and write the results.",
        name="zookeeper",
        repetitions=5,
        make=ZooKeeperBench,
        settings=lambda quick: {
            "offsets in ZooKeeper": (_QUICK if quick else _FULL).offsets,
            "of so many groups": (_QUICK if quick else _FULL).groups,
            **DAEMON_NOTES,
        },
        titles=TITLES,
        aims=AIMS,
        tables=tables,
    )
)


if __name__ == "__main__":
    main()
