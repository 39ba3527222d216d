"""Everything in one run: ``python -m bench.run [--quick] [--only commit,fetch] [--no-peers]``.

Servers run on one core, the load generator on another one. Every repetition starts daemon and echo
anew, the daemon with an empty data folder, and goes through all rows, so that a machine that gets
slower or faster meanwhile hits a row and what it is compared with alike. The peers, and a daemon
with much in memory, are started and warmed up once and stay; while none of their rows is measured,
they are on the load's core. Each row is measured once its rate is flat.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import report, rows
from bench.command import Benchmark, Choice, command
from bench.dialects import COMMIT
from bench.fill import FillPlan, is_there
from bench.floors import RECORD_BYTES
from bench.group_load import CHURN, GroupPlan
from bench.load import Plan
from bench.measures import Medians, judge
from bench.peers import KAFKA, PEERS, PROGRAMS, java_version, missing, peer_serving, version
from bench.processes import (
    DAEMON_SETTINGS,
    LOAD_CORE,
    SERVER_CORE,
    ProcessError,
    Server,
    beside,
    daemon,
    events_of,
    moved,
    output_of,
    resident_mb,
    run_json,
    serving,
)
from bench.rows import (
    AIMS,
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
_SETUP_S: Final = 120
_FILL_S: Final = 600
_SETTLE_S: Final = 1.0
_KAFKA_LOADED_S: Final = 120
_COMPACTION_S: Final = 300
_POLL_S: Final = 0.01
_CONNECTIONS: Final = 64
_WINDOW: Final = 64
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

    Args:
        row: What is asked, by how many, and in which protocol.
        server: Who is asked.
        core: Where the load generator runs; None for anywhere.
        run: Makes the names of the groups unique.
        times: How long the load lasts before anything is measured, and then.
        rate_per_s: All connections together; None is a closed loop.

    Raises:
        ProcessError: It failed.
    """
    plan = Plan(
        host=server.host,
        port=server.port,
        dialect=_DIALECTS[row.target],
        workload=row.workload,
        connections=row.connections,
        window=row.window,
        partitions=row.partitions,
        run=run,
        rate_per_s=rate_per_s,
        server_pid=server.pid,
        kind=row.kind,
        **times._asdict(),
    )
    module = ["bench.load", json.dumps(asdict(plan))]
    with rebalancing(server, core) if row.rebalances else nullcontext({}) as found:
        measured = run_json(module, core=core, timeout_s=_SETUP_S + sum(times))
    return measured | found


def rebalancing(server: Server, core: int | None) -> AbstractContextManager[dict[str, Any]]:
    """Let groups of this daemon rebalance meanwhile; yields how often, once it is over."""
    plan = GroupPlan(CHURN, server.host, server.port, server.pid, **_CHURN)
    return beside(["bench.group_load", json.dumps(asdict(plan))], core=core)


class Bench:
    """One run; collects samples by row.

    Attributes:
        about: What was found out about the peers.
    """

    def __init__(self, scale: Scale, folder: Path, choice: Choice) -> None:
        self._scale = scale
        self._folder = folder
        self._only = choice.only
        self._cores = Cores(SERVER_CORE, LOAD_CORE) if choice.pinned else Cores(None, None)
        self._standing: dict[Target, Server] = {}
        self.samples: dict[str, list[dict[str, Any]]] = {}
        self.about: dict[str, str] = {}
        self._big_log = BigLog(scale.big_log, folder, self._cores, choice, scale.times)

    def prepare(self, stack: ExitStack, programs: frozenset[str]) -> None:
        """Start what stays for the whole run: the peers, and the daemon with much in memory.

        Raises:
            ProcessError: A process failed.
        """
        here = set()
        for program in PROGRAMS:
            reason = missing(program) if program in programs else "not asked for"
            if reason is None:
                here.add(program)
            self.about[program] = version(program) if reason is None else f"skipped: {reason}"
            print(f"{program}: {self.about[program]}", flush=True)
        if here:
            self.about["Java"] = java_version()
        for target, peer in _PEER_OF.items():
            if peer.program in here and any(
                row.target is target and row.part in self._only for row in ROWS
            ):
                folder = self._folder / peer.name
                starting = peer_serving(peer, folder, core=self._cores.server)
                self._warm_up(target, self._stand(stack, target, starting))
        if FILLED in self._only:
            self._fill(self._stand(stack, Target.FILLED, self._daemon("filled")))
        self._big_log.prepare(with_kafka="kafka" in here)

    def _stand(
        self, stack: ExitStack, target: Target, starting: AbstractContextManager[Server]
    ) -> Server:
        self._standing[target] = server = stack.enter_context(starting)
        moved(server.pid, self._cores.load)
        return server

    def _fill(self, daemon: Server) -> None:
        before_mb = resident_mb(daemon.pid)
        size = self._scale.filled
        plan = FillPlan(daemon.host, daemon.port, "coordinator", *size)
        with self._on_server_core(Target.FILLED, daemon):
            run_json(
                ["bench.fill", json.dumps(asdict(plan))],
                core=self._cores.load,
                timeout_s=_FILL_S,
            )
        after_mb = resident_mb(daemon.pid)
        self._keep(
            FILLED_MEMORY,
            {
                "resident_mb": after_mb,
                "bytes_per_offset": bytes_per_offset(before_mb, after_mb, size),
            },
        )

    def _warm_up(self, target: Target, server: Server) -> None:
        """Let a peer's compiler see every kind of load before any of it is measured."""
        rows_by_kind = {
            f"{row.workload} of {row.partitions}, {row.kind}": row._replace(
                connections=_CONNECTIONS, window=1
            )
            for row in ROWS
            if row.target is target and row.part in self._only
        }
        took = []
        for kind, row in rows_by_kind.items():
            found = self._measure(row, server, self._scale.first, f"warm-up-{row.name}")
            flat = "" if found["flat"] else ", not flat"
            took.append(f"{kind} {found['warmup_s']:.0f} s{flat}")
        self.about[f"warm-up, {_PEER_OF[target].title}"] = "; ".join(took)

    def repetition(self, number: int) -> None:
        """Start daemon and echo, measure all rows once, stop them; then the large log.

        Raises:
            ProcessError: A process failed.
        """
        with ExitStack() as stack:
            daemon = stack.enter_context(self._daemon(str(number)))
            servers = {
                **self._standing,
                Target.DAEMON: daemon,
                Target.ECHO: stack.enter_context(self._echo("stream", number)),
                Target.ECHO_SOCKET: stack.enter_context(self._echo("socket", number)),
            }
            time.sleep(_IDLE_S)
            idle_mb = resident_mb(daemon.pid)
            self._keep(IDLE_MEMORY, {"resident_mb": idle_mb})
            self._floor()
            self._rows(servers, number)
            self._keep(LOADED_MEMORY, {"resident_mb": resident_mb(daemon.pid)})
        for name, sample in self._big_log.measure(number, idle_mb):
            self._keep(name, sample)

    def _rows(self, servers: Mapping[Target, Server], number: int) -> None:
        for row in ROWS:
            if row.part not in self._only or row.target not in servers:
                continue
            run = f"{number}-{row.name}"
            sample = self._measure(row, servers[row.target], self._scale.times, run)
            self._keep(row.name, sample)

    def _keep(self, name: str, sample: dict[str, Any]) -> None:
        self.samples.setdefault(name, []).append(sample)

    def _daemon(self, name: str) -> AbstractContextManager[Server]:
        return daemon(self._folder / f"data-{name}", self._cores.server)

    def _echo(self, kind: str, number: int) -> AbstractContextManager[Server]:
        return serving(
            ["bench.floors", "echo", kind],
            output=self._folder / f"echo-{kind}-{number}.log",
            core=self._cores.server,
            graceful=False,
        )

    def _floor(self) -> None:
        """Measure the disk where the daemon's worker thread would: on its core and its disk."""
        arguments = [str(self._folder), str(self._scale.times.duration_s), str(RECORD_BYTES)]
        for name, how in ((FLOOR, "append"), (OVERWRITE_FLOOR, "overwrite")):
            module = ["bench.floors", "disk", how, *arguments]
            self._keep(name, run_json(module, core=self._cores.server, timeout_s=_SETUP_S))

    @contextmanager
    def _on_server_core(self, target: Target, server: Server) -> Iterator[None]:
        """What stands aside comes to the servers' core for as long as it is measured."""
        if target not in self._standing:
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
            rate_per_s = row.open_share * self.samples[CLOSED_LOOP][-1]["rate_per_s"]
        core = self._cores.load
        with self._on_server_core(row.target, server):
            return load_row(row, server, core=core, run=run, times=times, rate_per_s=rate_per_s)


@contextmanager
def _bench(folder: Path, choice: Choice) -> Iterator[Bench]:
    bench = Bench(QUICK if choice.quick else FULL, folder, choice)
    with ExitStack() as stack:
        bench.prepare(stack, choice.peers)
        yield bench


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
        "daemon": "defaults, " + ", ".join(DAEMON_SETTINGS),
        "durability": "fdatasync before every acknowledgement",
        "fsync floor record, bytes": RECORD_BYTES,
        **peers,
    }


# --- a large log ---------------------------------------------------------------------------------


class BigLog:
    """Measures how long a large log takes to load, and what its compaction costs others.

    Folders are made once, by a daemon that is told every offset, and loaded in each repetition:
    one from commits of all partitions of a group, one from a commit for each partition. The peer
    is Kafka with as many offsets. For the compaction the folder is made dirty (every offset was
    committed twice), and each repetition gets a copy.
    """

    def __init__(
        self, size: Size, folder: Path, cores: Cores, choice: Choice, times: Times
    ) -> None:
        self._size = size
        self._cores = cores
        self._times = times
        self._parts = choice.only
        self._compactions = [one for one in COMPACTIONS if one.part in choice.only]
        self._live = folder / "large"
        self._singles = folder / "large-singles"
        self._dirty = folder / "dirty"
        self._kafka = folder / "large-kafka"
        self._with_kafka = False

    def prepare(self, *, with_kafka: bool) -> None:
        """Make the folders.

        Raises:
            ProcessError: A process failed.
        """
        if LOAD in self._parts:
            with daemon(self._live, self._cores.server, _BY_COMMAND_ONLY) as server:
                self._fill(self._plan(server, "coordinator"))
            with daemon(self._singles, self._cores.server, _BY_COMMAND_ONLY) as server:
                plan = self._plan(server, "coordinator")
                self._fill(replace(plan, per_commit=1, connections=8, window=_WINDOW))
            self._with_kafka = with_kafka
            if with_kafka:
                with peer_serving(KAFKA, self._kafka, core=self._cores.server) as server:
                    self._fill(self._plan(server, "kafka"))
        if self._compactions:
            with daemon(self._dirty, self._cores.server, _BY_COMMAND_ONLY) as server:
                self._fill(self._plan(server, "coordinator", passes=2))

    def _plan(self, server: Server, dialect: str, passes: int = 1) -> FillPlan:
        return FillPlan(server.host, server.port, dialect, *self._size, passes)

    def _fill(self, plan: FillPlan) -> None:
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
            yield START, self._start(self._live, idle_mb)
            yield START_FROM_SINGLES, self._start(self._singles, idle_mb)
            if self._with_kafka:
                yield KAFKA_START, self._kafka_start()
        for compaction in self._compactions:
            yield from self._compaction(compaction, number)

    def _start(self, folder: Path, idle_mb: float | None) -> dict[str, Any]:
        began_s = time.monotonic()
        with daemon(folder, self._cores.server, _BY_COMMAND_ONLY) as server:
            if not is_there(self._plan(server, "coordinator")):
                raise ProcessError("the daemon doesn't hold what was stored")
            start_s = time.monotonic() - began_s
            time.sleep(_SETTLE_S)
            loaded_mb = resident_mb(server.pid)
            ready = events_of(output_of(folder))["ready"]
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
            plan = self._plan(server, "kafka")
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

    def _compaction(
        self, compaction: Compaction, number: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        folder = self._dirty.with_name(f"{compaction.part}-{number}")
        shutil.copytree(self._dirty, folder)
        core = self._cores.server if compaction.one_core else None
        with daemon(folder, core, _BY_COMMAND_ONLY) as server:
            plan = Plan(
                host=server.host,
                port=server.port,
                dialect="coordinator",
                workload=COMMIT,
                connections=_CONNECTIONS,
                window=1,
                partitions=1,
                run=f"alone-{number}",
                server_pid=server.pid,
                sleeps=True,
                **self._times._asdict(),
            )
            alone = self._load(plan)["rate_per_s"]
            plan = plan.at_rate(_OPEN_SHARE * alone, f"before-{number}")
            yield compaction.before, self._load(plan)
            plan = plan.at_rate(_OPEN_SHARE * alone, f"while-{number}", compact=True)
            yield compaction.meanwhile, self._load(plan)
            if not is_there(self._plan(server, "coordinator", passes=2)):
                raise ProcessError("after the compaction the daemon doesn't hold what was stored")
        shutil.rmtree(folder)

    def _load(self, plan: Plan) -> dict[str, Any]:
        module = ["bench.load", json.dumps(asdict(plan))]
        return run_json(module, core=self._cores.load, timeout_s=_COMPACTION_S + plan.duration_s)


main = command(
    Benchmark(
        module="bench.run",
        help="Measure the coordinator against its peers, a bare echo and the disk, and write the "
        "results.\n\n"
        "Exit status 1: something failed, or an answer was wrong. A missed aim is no failure.",
        name="latest",
        quick_name="quick",
        repetitions=5,
        make=_bench,
        settings=_settings,
        document=rows.document,
        markdown=rows.markdown,
        tables=lambda run: (
            rows.table(run),
            rows.kinds_table(run),
            rows.other_table(run),
            report.aim_lines(judge(Medians(run.samples), AIMS)),
        ),
        failures=rows.failures,
        parts=PARTS,
        peers=PROGRAMS,
    )
)


if __name__ == "__main__":
    main()
