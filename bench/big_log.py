"""A log of many live offsets: how long it takes to load, and what its compaction costs others.

The folder is made once, by a daemon that is told every offset, and loaded in each repetition. The
peer is Kafka with as many offsets. For the compaction the folder is made dirty (every offset was
committed twice), and each repetition gets a copy.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.command import Choice
from bench.dialects import COMMIT
from bench.fill import FillPlan, is_there
from bench.load import Plan
from bench.peers import KAFKA, peer_serving
from bench.processes import ProcessError, Server, events_of, resident_mb, run_json, serving
from bench.rows import (
    BEFORE_COMPACTION,
    COMPACTION,
    KAFKA_START,
    LOAD,
    START,
    START_FLOOR,
    WHILE_COMPACTING,
)

# A member that is alone in its group need not wait for others; all else is as by default.
DAEMON_SETTINGS: Final = ("group.initial.rebalance.delay.ms=0",)
_FILL_S: Final = 600
_SETTLE_S: Final = 1.0
_KAFKA_LOADED_S: Final = 120
_COMPACTION_S: Final = 300
_POLL_S: Final = 0.01
_CONNECTIONS: Final = 64
# Of what a closed loop reaches. An open loop's requests come one by one and cost more, so that at
# half of that rate they take nearly all of a core, which the compaction has to share.
_OPEN_SHARE: Final = 0.25
# It begins when it is told to.
_BY_COMMAND_ONLY: Final = "log.cleaner.enable=false"


class Size(NamedTuple):
    """How many groups, and offsets in each."""

    groups: int
    partitions: int


class Cores(NamedTuple):
    """Where what runs; None is anywhere."""

    server: int | None
    load: int | None


def bytes_per_offset(before_mb: float | None, after_mb: float | None, size: Size) -> float | None:
    """Return what an offset adds to the resident memory."""
    if before_mb is None or after_mb is None:
        return None
    return (after_mb - before_mb) * 1e6 / (size.groups * size.partitions)


def daemon(folder: Path, cores: Cores, *settings: str) -> AbstractContextManager[Server]:
    """Start our daemon on this folder; its output is beside it."""
    arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", str(folder)]
    for setting in (*DAEMON_SETTINGS, *settings):
        arguments += ["--set", setting]
    return serving(
        ["coordinator", *arguments],
        output=output_of(folder),
        core=cores.server,
        graceful=True,
    )


def output_of(folder: Path) -> Path:
    """Return where the output of the daemon on this folder is."""
    return folder.with_name(f"{folder.name}.log")


class BigLog:
    """Measures the load and the compaction of a large log."""

    def __init__(
        self, size: Size, folder: Path, cores: Cores, choice: Choice, duration_s: float
    ) -> None:
        self._size = size
        self._cores = cores
        self._duration_s = duration_s
        self._parts = choice.only
        self._live = folder / "large"
        self._dirty = folder / "dirty"
        self._kafka = folder / "large-kafka"
        self._with_kafka = False

    def prepare(self, *, with_kafka: bool) -> None:
        """Make the folders.

        Raises:
            ProcessError: A process failed.
        """
        if LOAD in self._parts:
            with daemon(self._live, self._cores, _BY_COMMAND_ONLY) as server:
                self._fill(server, "coordinator", passes=1)
            self._with_kafka = with_kafka
            if with_kafka:
                with peer_serving(KAFKA, self._kafka, core=self._cores.server) as server:
                    self._fill(server, "kafka", passes=1)
        if COMPACTION in self._parts:
            with daemon(self._dirty, self._cores, _BY_COMMAND_ONLY) as server:
                self._fill(server, "coordinator", passes=2)

    def _plan(self, server: Server, dialect: str, passes: int) -> FillPlan:
        return FillPlan(server.host, server.port, dialect, *self._size, passes)

    def _fill(self, server: Server, dialect: str, passes: int) -> None:
        plan = self._plan(server, dialect, passes)
        module = ["bench.fill", json.dumps(asdict(plan))]
        run_json(module, core=self._cores.load, timeout_s=_FILL_S)

    def measure(self, number: int, idle_mb: float | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Measure all once: name and sample of each row.

        Args:
            number: Of the repetition.
            idle_mb: Resident memory of a daemon that holds nothing.

        Raises:
            ProcessError: A process failed, or something isn't there that was stored.
        """
        if LOAD in self._parts:
            yield START_FLOOR, self._floor()
            yield START, self._start(idle_mb)
            if self._with_kafka:
                yield KAFKA_START, self._kafka_start()
        if COMPACTION in self._parts:
            yield from self._compaction(number)

    def _floor(self) -> dict[str, Any]:
        module = ["bench.replay_floor", str(self._live)]
        return run_json(module, core=self._cores.server, timeout_s=_FILL_S)

    def _start(self, idle_mb: float | None) -> dict[str, Any]:
        began_s = time.monotonic()
        with daemon(self._live, self._cores, _BY_COMMAND_ONLY) as server:
            if not is_there(self._plan(server, "coordinator", 1)):
                raise ProcessError("the daemon doesn't hold what was stored")
            start_s = time.monotonic() - began_s
            time.sleep(_SETTLE_S)
            loaded_mb = resident_mb(server.pid)
            ready = events_of(output_of(self._live))["ready"]
        return {
            "start_s": start_s,
            "load_s": ready["load_ms"] / 1000,
            "entries": ready["entries"],
            "resident_mb": loaded_mb,
            "bytes_per_offset": bytes_per_offset(idle_mb, loaded_mb, self._size),
        }

    def _kafka_start(self) -> dict[str, Any]:
        began_s = time.monotonic()
        with peer_serving(KAFKA, self._kafka, core=self._cores.server) as server:
            serving_s = time.monotonic() - began_s
            plan = self._plan(server, "kafka", 1)
            while not is_there(plan):
                if time.monotonic() - began_s > _KAFKA_LOADED_S:
                    raise ProcessError("Kafka doesn't hold what was stored")
                time.sleep(_POLL_S)
            start_s = time.monotonic() - began_s
            return {
                "start_s": start_s,
                "serving_s": serving_s,
                "resident_mb": resident_mb(server.pid),
            }

    def _compaction(self, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        folder = self._dirty.with_name(f"dirty-{number}")
        shutil.copytree(self._dirty, folder)
        with daemon(folder, self._cores, _BY_COMMAND_ONLY) as server:
            plan = Plan(
                host=server.host,
                port=server.port,
                dialect="coordinator",
                workload=COMMIT,
                connections=_CONNECTIONS,
                window=1,
                partitions=1,
                warmup_s=self._duration_s / 4,
                duration_s=self._duration_s,
                run=f"alone-{number}",
                server_pid=server.pid,
            )
            alone = self._load(plan)["rate_per_s"]
            plan = plan.at_rate(_OPEN_SHARE * alone, f"before-{number}")
            yield BEFORE_COMPACTION, self._load(plan)
            plan = plan.at_rate(_OPEN_SHARE * alone, f"while-{number}", compact=True)
            yield WHILE_COMPACTING, self._load(plan)
            if not is_there(self._plan(server, "coordinator", 2)):
                raise ProcessError("after the compaction the daemon doesn't hold what was stored")
        shutil.rmtree(folder)

    def _load(self, plan: Plan) -> dict[str, Any]:
        module = ["bench.load", json.dumps(asdict(plan))]
        return run_json(module, core=self._cores.load, timeout_s=_COMPACTION_S + plan.duration_s)
