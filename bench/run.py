"""Everything in one run: ``python -m bench.run [--quick] [--only commit,fetch] [--no-peers]``.

Servers run on one core, the load generator on another one. Every repetition starts daemon and echo
anew, the daemon with an empty data folder, and goes through all rows, so that a machine that gets
slower or faster meanwhile hits a row and what it is compared with alike. The peers, and a daemon
with much in memory, are started and warmed up once and stay; while none of their rows is measured,
they are on the load's core.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import big_log, report
from bench.aims import AIMS
from bench.big_log import BigLog, Cores, Size
from bench.command import Benchmark, Choice, command
from bench.fill import FillPlan
from bench.fsync_floor import RECORD_BYTES
from bench.judging import Medians, judge
from bench.load import Plan
from bench.peers import PEERS, PROGRAMS, java_version, missing, peer_serving, version
from bench.processes import LOAD_CORE, SERVER_CORE, Server, moved, resident_mb, run_json, serving
from bench.rows import (
    CLOSED_LOOP,
    FILLED,
    FILLED_MEMORY,
    FLOOR,
    IDLE_MEMORY,
    LOADED_MEMORY,
    PARTS,
    ROWS,
    Row,
    Target,
)

_IDLE_S: Final = 1.0
_SETUP_S: Final = 120
_FILL_S: Final = 600


class Scale(NamedTuple):
    """How long it takes, and how much it is.

    Attributes:
        jvm_warmup_s: Of each row of a peer, in place of ``warmup_s``.
        first_warmup_s: Of each kind of load, once, before a peer is measured.
        filled: What the daemon holds that has much in memory.
        big_log: What is loaded and compacted.
    """

    warmup_s: float
    duration_s: float
    jvm_warmup_s: float
    first_warmup_s: float
    filled: Size
    big_log: Size


FULL: Final = Scale(0.7, 2.0, 1.2, 5.0, Size(100_000, 10), Size(10_000, 100))
QUICK: Final = Scale(0.1, 0.4, 0.2, 0.3, Size(500, 10), Size(200, 100))
_PEER_OF: Final = {Target(peer.name): peer for peer in PEERS}
_DIALECTS: Final = {
    Target.DAEMON: "coordinator",
    Target.FILLED: "coordinator",
    Target.ECHO: "echo",
    Target.ECHO_SOCKET: "echo",
    **{target: peer.dialect for target, peer in _PEER_OF.items()},
}


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
        self._big_log = BigLog(scale.big_log, folder, self._cores, choice, scale.duration_s)

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
                "bytes_per_offset": big_log.bytes_per_offset(before_mb, after_mb, size),
            },
        )

    def _warm_up(self, target: Target, server: Server) -> None:
        """Let a peer's compiler see every kind of load before any of it is measured."""
        kinds = {(row.workload, row.partitions) for row in ROWS if row.target is target}
        for workload, partitions in sorted(kinds):
            row = Row("warm-up", "", target, workload, 64, 1, partitions)
            run = f"warm-up-{workload}-{partitions}"
            self._measure(row, server, self._scale.first_warmup_s, 0.2, run)

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
            is_peer = row.target in _PEER_OF
            warmup_s = self._scale.jvm_warmup_s if is_peer else self._scale.warmup_s
            run = f"{number}-{row.name}"
            self._keep(
                row.name,
                self._measure(row, servers[row.target], warmup_s, self._scale.duration_s, run),
            )

    def _keep(self, name: str, sample: dict[str, Any]) -> None:
        self.samples.setdefault(name, []).append(sample)

    def _daemon(self, name: str) -> AbstractContextManager[Server]:
        return big_log.daemon(self._folder / f"data-{name}", self._cores)

    def _echo(self, kind: str, number: int) -> AbstractContextManager[Server]:
        return serving(
            ["bench.echo_server", kind],
            output=self._folder / f"echo-{kind}-{number}.log",
            core=self._cores.server,
            graceful=False,
        )

    def _floor(self) -> None:
        """Measure the disk where the daemon's worker thread would: on its core and its disk."""
        arguments = [str(self._folder), str(self._scale.duration_s), str(RECORD_BYTES)]
        self._keep(
            FLOOR,
            run_json(
                ["bench.fsync_floor", *arguments], core=self._cores.server, timeout_s=_SETUP_S
            ),
        )

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

    def _measure(
        self, row: Row, server: Server, warmup_s: float, duration_s: float, run: str
    ) -> dict[str, Any]:
        rate_per_s = None
        if row.open_share is not None:
            rate_per_s = row.open_share * self.samples[CLOSED_LOOP][-1]["rate_per_s"]
        plan = Plan(
            host=server.host,
            port=server.port,
            dialect=_DIALECTS[row.target],
            workload=row.workload,
            connections=row.connections,
            window=row.window,
            partitions=row.partitions,
            warmup_s=warmup_s,
            duration_s=duration_s,
            run=run,
            rate_per_s=rate_per_s,
            server_pid=server.pid,
        )
        with self._on_server_core(row.target, server):
            return run_json(
                ["bench.load", json.dumps(asdict(plan))],
                core=self._cores.load,
                timeout_s=_SETUP_S + warmup_s + duration_s,
            )


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
        "warm-up, s": scale.warmup_s,
        "measured, s": scale.duration_s,
        "warm-up of a row of a peer, s": scale.jvm_warmup_s,
        "and once of each kind of load, s": scale.first_warmup_s,
        "much in memory": f"{scale.filled.groups:,} groups x {scale.filled.partitions}",
        "large log": f"{scale.big_log.groups:,} groups x {scale.big_log.partitions}",
        "daemon": "defaults, " + ", ".join(big_log.DAEMON_SETTINGS),
        "durability": "fdatasync before every acknowledgement",
        "fsync floor record, bytes": RECORD_BYTES,
        **peers,
    }


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
        document=report.document,
        markdown=report.markdown,
        tables=lambda run: (
            report.table(run),
            report.other_table(run),
            report.aim_lines(judge(Medians(run.samples), AIMS)),
        ),
        failures=report.failures,
        parts=PARTS,
        peers=PROGRAMS,
    )
)


if __name__ == "__main__":
    main()
