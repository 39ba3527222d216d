"""Everything in one run: ``python -m bench.run [--quick] [--only commit,fetch] [--no-peers]``.

Servers run on one core, the load generator on another one. Every repetition starts daemon and echo
anew, the daemon with an empty data folder, and goes through all rows, so that a machine that gets
slower or faster meanwhile hits a row and what it is compared with alike. The peers, and a daemon
with much in memory, are started and warmed up once and stay; while none of their rows is measured,
they are on the load's core. Each row is measured once its rate is flat.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import rows
from bench.command import Bench, Benchmark, Choice, command
from bench.fill import FillPlan, is_there
from bench.floors import RECORD_BYTES, echo
from bench.group_load import CHURN, GroupPlan
from bench.load import Plan
from bench.measures import NS_PER_S
from bench.peer_jars import version_of
from bench.peers import KAFKA, PEERS, PROGRAMS, java_version, missing, peer_serving
from bench.processes import (
    DAEMON_NOTES,
    ProcessError,
    Server,
    beside,
    cpu_ns,
    daemon,
    events_of,
    moved,
    output_of,
    resident_mb,
    run_json,
)
from bench.rows import (
    CLOSED_LOOP,
    COMPACTIONS,
    FILLED,
    FILLED_MEMORY,
    FLOOR,
    IDLE_MEMORY,
    KAFKA_START,
    LOAD,
    LOADED_MEMORY,
    OVERWRITE_FLOOR,
    PARTS,
    ROWS,
    START,
    START_FROM_SINGLES,
    Compaction,
    Row,
    Target,
)

_IDLE_S: Final = 1.0
_SETTLE_S: Final = 1.0
_KAFKA_LOADED_S: Final = 120
_POLL_S: Final = 0.01
_CONNECTIONS: Final = 64
# Of what a closed loop reaches. An open loop's requests come one by one and cost more, so that at
# half of that rate they take nearly all of a core, which the compaction has to share.
_OPEN_SHARE: Final = 0.25
# Ten rebalances a second, each of some 25 members who join and sync.
_CHURN: Final[Mapping[str, Any]] = {
    "members": 25,
    "connections": 8,
    "groups": 8,
    "interval_s": 0.1,
}
# It begins when it is told to.
BY_COMMAND_ONLY: Final = "log.cleaner.enable=false"


class Size(NamedTuple):
    """How many groups, and offsets in each."""

    groups: int
    partitions: int

    @property
    def offsets(self) -> int:
        """How many that makes."""
        return self.groups * self.partitions

    def bytes_each(self, before_mb: float, after_mb: float) -> float:
        """Return what an offset adds to the resident memory."""
        return (after_mb - before_mb) * 1e6 / self.offsets


class Times(NamedTuple):
    """How long a row takes.

    Attributes:
        window_s: The warm-up ends when the rates of a few windows of this length are alike.
        warmup_s: The longest that the warm-up lasts.
        duration_s: How long is measured.
    """

    window_s: float
    warmup_s: float
    duration_s: float


class Scale(NamedTuple):
    """How long it takes, and how much it is.

    Attributes:
        first: Of each kind of load, once, before a peer is measured: its compiler sees it.
        filled: What the daemon holds that has much in memory.
        big_log: What is loaded and compacted.
    """

    times: Times
    first: Times
    filled: Size
    big_log: Size


FULL: Final = Scale(
    Times(0.3, 1.8, 2.0), Times(2.0, 20.0, 0.2), Size(100_000, 10), Size(10_000, 100)
)
QUICK: Final = Scale(Times(0.03, 0.1, 0.2), Times(0.1, 0.3, 0.2), Size(500, 10), Size(200, 100))
_PEER_OF: Final = {Target(peer.name): peer for peer in PEERS}
_DIALECTS: Final = {
    Target.DAEMON: "coordinator",
    Target.FILLED: "coordinator",
    Target.ECHO: "echo",
    Target.ECHO_SOCKET: "echo",
    **{target: peer.dialect for target, peer in _PEER_OF.items()},
}


def plan_of(
    row: Row, server: Server, *, run: str, times: Times, rate_per_s: float | None = None
) -> Plan:
    """Return the plan of this row's load; see `Plan`."""
    return Plan(
        host=server.host,
        port=server.port,
        dialect=_DIALECTS[row.target],
        workload=row.workload,
        connections=row.connections,
        window=row.window,
        partitions=row.partitions,
        run=run,
        rate_per_s=rate_per_s,
        server_pids=(server.pid,),
        kind=row.kind,
        **times._asdict(),
    )


def load_row(
    row: Row,
    server: Server,
    *,
    core: int | None,
    run: str,
    times: Times,
    rate_per_s: float | None = None,
) -> dict[str, Any]:
    """Put the load of *row* on *server* from a process on *core*, and return its sample.

    Raises:
        ProcessError: It failed.
    """
    plan = plan_of(row, server, run=run, times=times, rate_per_s=rate_per_s)
    churn = GroupPlan(CHURN, server.host, server.port, server.pid, **_CHURN)
    # Let groups of this daemon rebalance meanwhile; it is known how often once that is over.
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        if row.rebalances:
            found = stack.enter_context(
                beside("bench.group_load", churn, core=core, gives_way=False)
            )
        measured = run_json("bench.load", plan, core=core)
    return measured | found


def fill_plan(
    server: Server, size: Size, dialect: str = "coordinator", *, passes: int = 1
) -> FillPlan:
    """Return the plan to store as many offsets."""
    return FillPlan(server.host, server.port, dialect, *size, passes)


def start_on(
    folder: Path, size: Size, core: int | None, checkout: Path | None = None
) -> dict[str, float]:
    """Start a daemon on a log of many live offsets, until every one is there; return a sample.

    Raises:
        ProcessError: The daemon failed, or something isn't there that was stored.
    """
    began_s = time.monotonic()
    with daemon(folder, core, BY_COMMAND_ONLY, checkout=checkout) as server:
        ready_s, cpu_s = time.monotonic() - began_s, cpu_ns(server.pid) / NS_PER_S
        if not is_there(fill_plan(server, size)):
            raise ProcessError("the daemon doesn't hold what was stored")
        start_s = time.monotonic() - began_s
        time.sleep(_SETTLE_S)
        ready = events_of(output_of(folder))["ready"]
        return {
            "ready_s": ready_s,
            "cpu_s": cpu_s,
            "start_s": start_s,
            "load_s": ready["load_ms"] / 1000,
            "entries": ready["entries"],
            "resident_mb": resident_mb(server.pid),
        }


class RunBench(Bench):
    """The rows, and what a large log costs at a start and in its compaction.

    Large logs are made once, by a daemon that is told every offset, and loaded in each repetition:
    one from commits of all partitions of a group, one from a commit for each partition. The peer
    is Kafka with as many offsets. For the compaction the folder is made dirty (every offset was
    committed twice), and each repetition gets a copy.
    """

    def __init__(self, folder: Path, choice: Choice) -> None:
        super().__init__(folder, choice)
        self._scale = QUICK if choice.quick else FULL
        self._cores = choice.cores
        self._standing: dict[Target, Server] = {}
        self._rows = [row for row in ROWS if row.part in choice.only]
        self._compactions = [one for one in COMPACTIONS if one.part in choice.only]
        self._live, self._singles = folder / "large", folder / "large-singles"
        self._dirty, self._kafka = folder / "dirty", folder / "large-kafka"

    def _prepare(self) -> None:
        """Start what stays: the peers, and the daemon with much in memory; make the large logs."""
        here = set()
        for program in PROGRAMS:
            reason = missing(program) if program in self.choice.peers else "not asked for"
            if reason is None:
                here.add(program)
            self.about[program] = version_of(program) if reason is None else f"skipped: {reason}"
            print(f"{program}: {self.about[program]}", flush=True)
        if here:
            self.about["Java"] = java_version()
        for target, peer in _PEER_OF.items():
            if peer.program in here and any(row.target is target for row in self._rows):
                folder = self.folder / peer.name
                self._stand(target, peer_serving(peer, folder, core=self._cores.server))
                self._warm_up(target)
        if FILLED in self.choice.only:
            self._stand(Target.FILLED, self._daemon("filled"))
            self._fill_standing()
        self._make_logs(with_kafka="kafka" in here)

    def _stand(self, target: Target, starting: AbstractContextManager[Server]) -> None:
        self._standing[target] = server = self.stack.enter_context(starting)
        moved(server.pid, self._cores.load)

    def _fill_standing(self) -> None:
        daemon, size = self._standing[Target.FILLED], self._scale.filled
        before_mb = resident_mb(daemon.pid)
        with self._on_server_core(Target.FILLED):
            self._fill(fill_plan(daemon, size))
        after_mb = resident_mb(daemon.pid)
        bytes_each = size.bytes_each(before_mb, after_mb)
        self.keep(FILLED_MEMORY, {"resident_mb": after_mb, "bytes_per_offset": bytes_each})

    def _fill(self, plan: FillPlan) -> None:
        run_json("bench.fill", plan, core=self._cores.load)

    def _warm_up(self, target: Target) -> None:
        """Let a peer's compiler see every kind of load before any of it is measured."""
        rows_by_kind = {
            f"{row.workload} of {row.partitions}, {row.kind}": row._replace(
                connections=_CONNECTIONS, window=1
            )
            for row in self._rows
            if row.target is target
        }
        took = []
        for kind, row in rows_by_kind.items():
            run = f"warm-up-{row.name}"
            found = self._measure(row, self._standing[target], self._scale.first, run)
            flat = "" if found["flat"] else ", not flat"
            took.append(f"{kind} {found['warmup_s']:.0f} s{flat}")
        self.about[f"warm-up, {_PEER_OF[target].title}"] = "; ".join(took)

    def repetition(self, number: int) -> None:
        """Start daemon and echo, measure all rows once, stop them; then the large logs.

        Raises:
            ProcessError: A process failed.
        """
        if number == 1:
            self._prepare()
        with ExitStack() as stack:
            daemon = stack.enter_context(self._daemon(str(number)))
            servers = {**self._standing, Target.DAEMON: daemon}
            for target, kind in ((Target.ECHO, "stream"), (Target.ECHO_SOCKET, "socket")):
                output = self.folder / f"echo-{kind}-{number}.log"
                servers[target] = stack.enter_context(echo(kind, output, self._cores.server))
            time.sleep(_IDLE_S)
            idle_mb = resident_mb(daemon.pid)
            self.keep(IDLE_MEMORY, {"resident_mb": idle_mb})
            self._floor()
            for row in self._rows:
                if row.target in servers:
                    run = f"{number}-{row.name}"
                    sample = self._measure(row, servers[row.target], self._scale.times, run)
                    self.keep(row.name, sample)
            self.keep(LOADED_MEMORY, {"resident_mb": resident_mb(daemon.pid)})
        if LOAD in self.choice.only:
            self._load_logs(idle_mb)
        for compaction in self._compactions:
            self._compact(compaction, number)

    def _daemon(self, name: str) -> AbstractContextManager[Server]:
        return daemon(self.folder / f"data-{name}", self._cores.server)

    def _floor(self) -> None:
        """Measure the disk where the daemon's worker thread would: on its core and its disk."""
        arguments = (self.folder, self._scale.times.duration_s)
        for name, how in ((FLOOR, "append"), (OVERWRITE_FLOOR, "overwrite")):
            sample = run_json("bench.floors", "disk", how, *arguments, core=self._cores.server)
            self.keep(name, sample)

    @contextmanager
    def _on_server_core(self, target: Target) -> Iterator[None]:
        """What stands aside comes to the servers' core for as long as it is measured."""
        server = self._standing.get(target)
        if server is None:
            yield
            return
        moved(server.pid, self._cores.server)
        try:
            yield
        finally:
            moved(server.pid, self._cores.load)

    def _measure(self, row: Row, server: Server, times: Times, run: str) -> dict[str, Any]:
        rate_per_s = None
        if row.open_share is not None:
            rate_per_s = row.open_share * (self.samples[CLOSED_LOOP][-1]["rate_per_s"] or 0)
        core = self._cores.load
        with self._on_server_core(row.target):
            return load_row(row, server, core=core, run=run, times=times, rate_per_s=rate_per_s)

    # --- a large log -----------------------------------------------------------------------------

    def _make_logs(self, *, with_kafka: bool) -> None:
        size, core = self._scale.big_log, self._cores.server
        if LOAD in self.choice.only:
            with daemon(self._live, core, BY_COMMAND_ONLY) as server:
                self._fill(fill_plan(server, size))
            with daemon(self._singles, core, BY_COMMAND_ONLY) as server:
                plan = fill_plan(server, size)
                self._fill(replace(plan, per_commit=1, connections=8, window=64))
            if with_kafka:
                with peer_serving(KAFKA, self._kafka, core=core) as server:
                    self._fill(fill_plan(server, size, "kafka"))
        if self._compactions:
            with daemon(self._dirty, core, BY_COMMAND_ONLY) as server:
                self._fill(fill_plan(server, size, passes=2))

    def _load_logs(self, idle_mb: float) -> None:
        size, core = self._scale.big_log, self._cores.server
        for name, folder in ((START, self._live), (START_FROM_SINGLES, self._singles)):
            sample = start_on(folder, size, core)
            sample["bytes_per_offset"] = size.bytes_each(idle_mb, sample["resident_mb"])
            self.keep(name, sample)
        if not self._kafka.exists():
            return
        began_s = time.monotonic()
        with peer_serving(KAFKA, self._kafka, core=core) as server:
            serving_s = time.monotonic() - began_s
            while not is_there(fill_plan(server, size, "kafka")):
                if time.monotonic() - began_s > _KAFKA_LOADED_S:
                    raise ProcessError("Kafka doesn't hold what was stored")
                time.sleep(_POLL_S)
            sample = {"start_s": time.monotonic() - began_s, "serving_s": serving_s}
            self.keep(KAFKA_START, {**sample, "resident_mb": resident_mb(server.pid)})

    def _compact(self, compaction: Compaction, number: int) -> None:
        size, folder = self._scale.big_log, self.folder / f"{compaction.part}-{number}"
        shutil.copytree(self._dirty, folder)
        (row,) = (row for row in ROWS if row.name == CLOSED_LOOP)
        core = self._cores.server if compaction.one_core else None
        with daemon(folder, core, BY_COMMAND_ONLY) as server:

            def load(plan: Plan) -> dict[str, Any]:
                return run_json("bench.load", plan, core=self._cores.load)

            plan = plan_of(row, server, run=f"alone-{number}", times=self._scale.times)
            plan = replace(plan, sleeps=True)
            rate_per_s = _OPEN_SHARE * load(plan)["rate_per_s"]
            plan = replace(plan, run=f"before-{number}", rate_per_s=rate_per_s)
            self.keep(compaction.before, load(plan))
            self.keep(
                compaction.meanwhile, load(replace(plan, run=f"while-{number}", compact=True))
            )
            if not is_there(fill_plan(server, size, passes=2)):
                raise ProcessError("after the compaction the daemon doesn't hold what was stored")
        shutil.rmtree(folder)


def _settings(quick: bool) -> dict[str, str | float]:
    scale = QUICK if quick else FULL
    peers = {
        peer.title: ", ".join(f"{name}={value}" for name, value in peer.settings.items())
        for peer in PEERS
    }
    return {
        "warm-up": f"until the rates of windows of {scale.times.window_s} s are alike, "
        f"at most {scale.times.warmup_s} s",
        "first warm-up of a peer, each kind of load": f"windows of {scale.first.window_s} s, "
        f"at most {scale.first.warmup_s} s",
        "measured, s": scale.times.duration_s,
        "rebalances meanwhile": f"{_CHURN['groups']} groups of {_CHURN['members']} members, "
        f"one each {_CHURN['interval_s']} s",
        "much in memory": f"{scale.filled.groups:,} groups x {scale.filled.partitions}",
        "large log": f"{scale.big_log.groups:,} groups x {scale.big_log.partitions}",
        **DAEMON_NOTES,
        "fsync floor record, bytes": RECORD_BYTES,
        **peers,
    }


main = command(
    Benchmark(
        module="bench.run",
        help="Measure the coordinator against its peers, a bare echo and the disk, and write the "
        "results.",
        name="latest",
        repetitions=5,
        make=RunBench,
        settings=_settings,
        titles=rows.TITLES,
        aims=rows.AIMS,
        tables=rows.tables,
        parts=PARTS,
        peers=PROGRAMS,
    )
)


if __name__ == "__main__":
    main()
