"""A cluster on ZooKeeper, in one run: ``python -m bench.cluster [--quick]``.

Three servers of ZooKeeper with three nodes, and three brokers of Kafka, all on this machine. No
process is tied to a core: there are more of them than cores, on either side. How long nobody
commits when the node that leads a group is killed, and when it is stopped; commits beside
Kafka's; one commit beside the bare transaction that it comes to; and a node that finds a million
offsets in ZooKeeper.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from kazoo.client import KazooClient

from bench.command import Bench, Benchmark, Choice, command
from bench.dialects import COMMIT, CoordinatorDialect, Load, group_of
from bench.ensemble import HOST, Ensemble, ZooKeeperServer, ensemble
from bench.fill import FillPlan, is_there
from bench.load import Plan
from bench.measures import (
    Medians,
    Samples,
    at_most,
    faster,
    field_at_most,
)
from bench.peer_jars import version_of
from bench.peers import brokers_serving, java_version, missing
from bench.processes import (
    ProcessError,
    Server,
    daemon,
    events_of,
    listening_in,
    resident_mb,
    run_json,
    serving,
)
from bench.report import Table, between, fields_table, number
from bench.run import BY_COMMAND_ONLY, Size, Times, fill_plan
from bench.talk import connect
from client import Rebalanced
from client.blocking import connect_blocking
from protocol.group_ids import offsets_partition
from protocol.partition import TopicPartition

NODES: Final = (1, 2, 3)
JOURNALS: Final = 6
# As by default. After so long without a word from a node its journals are claimed.
SESSION_S: Final = 6.0

KILLED, STOPPED = PAUSES = ("killed", "stopped")
ONE, MULTI = "commit_1", "multi_1"
KAFKA: Final = "kafka"
START: Final = "start"
_CONNECTIONS: Final = (64, 256)


def row(connections: int, peer: str = "") -> str:
    """Return the name of the row of commits through so many connections."""
    return f"{peer and peer + '_'}commit_{connections}"


_TITLES: Final = {
    KILLED: "the node that leads a group is killed (-9)",
    STOPPED: "it is stopped (SIGTERM)",
    **{
        row(count, peer): f"commit, {count} connections: {name}"
        for count in _CONNECTIONS
        for peer, name in (("", "three nodes"), (KAFKA, "Kafka, three brokers"))
    },
    ONE: "commit, 1 connection",
    MULTI: "a multi of the same bytes, by itself",
    START: "a node's start with a million offsets in ZooKeeper",
}
_AIMS: Final = (
    field_at_most(KILLED, "pause_s", f"{_TITLES[KILLED]}: no commits for", SESSION_S + 1, "s"),
    field_at_most(STOPPED, "pause_s", f"{_TITLES[STOPPED]}: no commits for", 0.3, "s"),
    *(field_at_most(name, "rebalances", f"{_TITLES[name]}: rebalances", 0) for name in PAUSES),
    *(
        faster(row(count), row(count, KAFKA), f"commits a second, {count} connections: of Kafka", 1)
        for count in _CONNECTIONS
    ),
    at_most(
        "commit_1, p50",
        "p50 of one commit, more than the multi",
        lambda medians: _more(medians, "p50_us", 1_000),
        0.5,
        "ms",
    ),
    field_at_most(START, "ready_s", f"{_TITLES[START]}, until ready", 5, "s"),
    field_at_most(START, "bytes_per_offset", "memory of an offset in a node", 350, "B"),
    field_at_most(
        START, "heap_over_mb", "heap of a ZooKeeper server, more than twice the state", 300, "MB"
    ),
)


def _more(medians: Medians, field: str, unit: float) -> float | None:
    ours, bare = (medians.of(name, field) for name in (ONE, MULTI))
    return None if ours is None or bare is None else (ours - bare) / unit


class Scale(NamedTuple):
    """How long it takes, and how much it is.

    Attributes:
        first: Of each load, once: the compilers of the virtual machines see it.
        size: What a node finds.
        steady_s: How long commits go on before and after a node is taken away.
    """

    times: Times
    first: Times
    size: Size
    steady_s: float


FULL: Final = Scale(Times(0.5, 3.0, 4.0), Times(2.0, 12.0, 0.2), Size(10_000, 100), 1.0)
QUICK: Final = Scale(Times(0.03, 0.1, 0.3), Times(0.1, 0.3, 0.2), Size(200, 100), 0.2)
# What the aim allows: the whole run has to do with it.
_HEAP_MB: Final = 360
_JVM: Final = (f"-Xmx{_HEAP_MB}m",)
_WAIT_S: Final = 120.0
_POLL_S: Final = 0.05
_IDLE_S: Final = 1.0
_TOPIC: Final = "flights"
_PARTITIONS: Final = 50  # Of the offsets, as by default.
_HEAP_USED: Final = re.compile(r"total \d+K, used (\d+)K")


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise ProcessError(f"not within {_WAIT_S:.0f} s: {what}")
        time.sleep(_POLL_S)


class Nodes:
    """The nodes of one cluster; each may go, and come back.

    Attributes:
        running: By number, those that are there.
    """

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.running: dict[int, Server] = {}
        self._folder = folder
        self._zookeeper = zookeeper
        self._ends: dict[int, ExitStack] = {}
        self._outputs: dict[int, Path] = {}
        self._starts = 0
        folder.mkdir(exist_ok=True)

    def start(self, node: int) -> None:
        """Start one, and wait until it is ready. Raises ProcessError."""
        self._starts += 1
        output = self._outputs[node] = self._folder / f"node-{node}-{self._starts}.log"
        # Nobody else is to come: a member need not wait for others.
        settings = (
            f"cluster.zookeeper={self._zookeeper}",
            "cluster.create=true",
            f"cluster.journals={JOURNALS}",
            f"node.id={node}",
            "group.initial.rebalance.delay.ms=0",
        )
        words = [word for setting in settings for word in ("--set", setting)]
        end = self._ends[node] = ExitStack()
        self.running[node] = end.enter_context(
            serving(
                [sys.executable, "-m", "coordinator", "serve", "--listen", f"{HOST}:0", *words],
                listening_in(output),
                output=output,
                core=None,
            )
        )

    def events(self, node: int) -> dict[str, dict[str, Any]]:
        """Return what one that is there has told, by name."""
        return events_of(self._outputs[node])

    def kill(self, node: int) -> None:
        """End one as the loss of its machine would."""
        os.kill(self.running[node].pid, signal.SIGKILL)
        self.stop(node)

    def stop(self, node: int) -> None:
        """Ask one to stop, and wait until it has. Raises ProcessError."""
        del self.running[node]
        self._ends.pop(node).close()

    def close(self) -> None:
        """Kill all."""
        for node in tuple(self.running):
            self.kill(node)

    @property
    def pids(self) -> list[int]:
        """Of all that are there."""
        return [server.pid for server in self.running.values()]

    @property
    def addresses(self) -> list[str]:
        """Where clients connect."""
        return [server.address for server in self.running.values()]

    def leader_of(self, group: str) -> int:
        """Return which node leads a group."""
        any_one = next(iter(self.running.values()))
        dialect = CoordinatorDialect(Load(COMMIT, 1, 1, ""))
        with closing(connect(any_one.host, any_one.port)) as talk:
            _, port = dialect.home(talk, group)
        return next(node for node, server in self.running.items() if server.port == port)


class Committing:
    """A member that commits one offset after the other, in a thread.

    Attributes:
        acknowledged_s: When each was acknowledged, monotonic.
        rebalances: How often its commit was refused for one.
    """

    def __init__(self, addresses: list[str], group: str) -> None:
        self.acknowledged_s: list[float] = []
        self.rebalances = 0
        self._addresses = addresses
        self._group = group
        self._is_over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_more(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        try:
            with (
                connect_blocking(self._addresses) as client,
                client.join(self._group, [_TOPIC], {_TOPIC: 1}, register=False) as member,
            ):
                member.assignment()
                while not self._is_over:
                    self._commit(member)
        except BaseException as exc:  # noqa: BLE001 - `wait_for_more` raises it
            self._failure = exc

    def _commit(self, member: Any) -> None:
        try:
            member.commit({TopicPartition(_TOPIC, 0): len(self.acknowledged_s)})
        except Rebalanced:
            self.rebalances += 1
            member.assignment()
        else:
            self.acknowledged_s.append(time.monotonic())

    def wait_for_more(self, since_s: float) -> None:
        """Wait until one was acknowledged after *since_s*. Raises ProcessError."""

        def is_there() -> bool:
            if self._failure is not None:
                raise ProcessError(f"a commit failed: {self._failure!r}")
            return bool(self.acknowledged_s) and self.acknowledged_s[-1] > since_s

        _until(is_there, "a commit is acknowledged")

    def longest_pause_s(self, since_s: float) -> float:
        """Return the longest time between two acknowledgements, of which the later came since."""
        return max(b - a for a, b in pairwise(self.acknowledged_s) if b > since_s)


class ClusterBench(Bench):
    """The ensemble and the brokers stay; nodes go and come back."""

    def __init__(self, folder: Path, choice: Choice) -> None:
        super().__init__(folder, choice)
        if why := missing("zookeeper"):
            raise ProcessError(f"no ZooKeeper: {why}")
        self._scale = QUICK if choice.quick else FULL
        self.about["ZooKeeper"] = version_of("zookeeper")
        self.about["Java"] = java_version()
        self._brokers: list[Server] = []

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process failed.
        """
        if number == 1:
            self._prepare()
        _until(self._is_balanced, "each node leads two journals")
        times = self._scale.times
        for connections in _CONNECTIONS:
            run = f"{number}-{connections}"
            self.keep(row(connections), self._commits(connections, run, times))
            if self._brokers:
                self.keep(row(connections, KAFKA), self._kafka_commits(connections, run, times))
        self._one(number, times)
        for name, end in ((KILLED, self._nodes.kill), (STOPPED, self._nodes.stop)):
            self.keep(name, self._pause(f"{name}-{number}", end))
        self.keep(START, self._start())

    # --- what stays ---

    def _prepare(self) -> None:
        running = ensemble(self.folder / "zookeeper", jvm=_JVM)
        self._ensemble: Ensemble = self.stack.enter_context(running)
        self._zookeeper = KazooClient(self._ensemble.hosts)
        self._zookeeper.start()
        self.stack.callback(self._zookeeper.stop)
        self._nodes = Nodes(self.folder, f"{self._ensemble.hosts}/gc")
        self.stack.callback(self._nodes.close)
        for node in NODES:
            self._nodes.start(node)
        time.sleep(_IDLE_S)
        # It leads less than the others, and none of them anything but empty journals.
        self._idle_mb = resident_mb(self._nodes.running[NODES[-1]].pid)
        self._fill()
        if KAFKA in self.choice.peers and missing(KAFKA) is None:
            self.about["Kafka"] = version_of(KAFKA)
            brokers = brokers_serving(self.folder / KAFKA, len(NODES))
            self._brokers = self.stack.enter_context(brokers)
        for connections in _CONNECTIONS:
            self._commits(connections, f"first-{connections}", self._scale.first)
            if self._brokers:
                self._kafka_commits(connections, f"first-{connections}", self._scale.first)

    def _fill(self) -> None:
        """Make another cluster, of a folder with all the offsets."""
        folder, place = self.folder / "data", f"{self._ensemble.hosts}/filled"
        with daemon(folder, None, BY_COMMAND_ONLY) as server:
            run_json("bench.fill", self._fill_plan(server), core=None)
        settings = [f"--set=cluster.zookeeper={place}", f"--set=cluster.journals={JOURNALS}"]
        words = ["cluster", "init", "--from", str(folder), "--yes", *settings]
        done = subprocess.run(
            [sys.executable, "-m", "coordinator", *words],
            capture_output=True,
            check=False,
            text=True,
        )
        if done.returncode:
            raise ProcessError(f"the cluster could not be made: {done.stderr[-2000:]}")
        pointers = [
            self._json(f"/filled/journals/{journal}/snapshot") for journal in range(JOURNALS)
        ]
        self._state_mb: float = sum(pointer["bytes"] for pointer in pointers) / 1e6

    def _fill_plan(self, server: Server) -> FillPlan:
        return replace(fill_plan(server, self._scale.size), is_varied=True)

    def _json(self, path: str) -> Any:
        return json.loads(self._zookeeper.get(path)[0])

    def _is_balanced(self) -> bool:
        leaders = [self._json(f"/gc/journals/{journal}/leader") for journal in range(JOURNALS)]
        led = Counter(leader["node"] for leader in leaders)
        return led == dict.fromkeys(NODES, JOURNALS // len(NODES))

    # --- rows ---

    def _commits(self, connections: int, run: str, times: Times) -> dict[str, Any]:
        pids = self._nodes.pids + [server.pid for server in self._ensemble.servers]
        server = next(iter(self._nodes.running.values()))
        return run_json(
            "bench.load", _plan(server, "coordinator", connections, run, times, pids), core=None
        )

    def _kafka_commits(self, connections: int, run: str, times: Times) -> dict[str, Any]:
        pids = [server.pid for server in self._brokers]
        return run_json(
            "bench.load", _plan(self._brokers[0], KAFKA, connections, run, times, pids), core=None
        )

    def _one(self, number: int, times: Times) -> None:
        """Measure one commit after the other, and multis of as many bytes by the same server."""
        run = f"{number}-1"
        self.keep(ONE, self._commits(1, run, times))
        group = group_of(Load(COMMIT, 1, 1, run), 0, 0)
        log = f"/gc/journals/{offsets_partition(group, _PARTITIONS) % JOURNALS}/log/0"
        newest = max(map(int, self._zookeeper.get_children(log)))
        entry, _ = self._zookeeper.get(f"{log}/{newest}")
        at: str = self._nodes.events(self._nodes.leader_of(group))["zookeeper.connected"]["server"]
        server = next(one for one in self._ensemble.servers if at.endswith(f":{one.port}"))
        plan = _plan(server, "zookeeper_multi", 1, run, times, [])
        plan = replace(plan, is_cluster=False, size_bytes=len(entry))
        self.keep(MULTI, run_json("bench.load", plan, core=None))
        self.about["bytes of such an entry"] = str(len(entry))

    def _pause(self, group: str, end: Callable[[int], None]) -> dict[str, float]:
        with Committing(self._nodes.addresses, group) as member:
            time.sleep(self._scale.steady_s)
            node, began_s = self._nodes.leader_of(group), time.monotonic()
            end(node)
            member.wait_for_more(began_s + 1.0)
            time.sleep(self._scale.steady_s)
        self._nodes.start(node)
        return {
            "pause_s": member.longest_pause_s(began_s),
            "rebalances": member.rebalances,
            "commits": len(member.acknowledged_s),
        }

    def _start(self) -> dict[str, float]:
        nodes = Nodes(self.folder / "alone", f"{self._ensemble.hosts}/filled")
        began_s = time.monotonic()
        with closing(nodes):
            nodes.start(1)
            ready_s = time.monotonic() - began_s
            (server,) = nodes.running.values()
            _until(partial(is_there, self._fill_plan(server)), "the node answers for every group")
            start_s = time.monotonic() - began_s
            time.sleep(_IDLE_S)
            resident = resident_mb(server.pid)
            nodes.stop(1)
        heap_mb = max(_live_heap_mb(server.pid) for server in self._ensemble.servers)
        return {
            "ready_s": ready_s,
            "start_s": start_s,
            "resident_mb": resident,
            "bytes_per_offset": self._scale.size.bytes_each(self._idle_mb, resident),
            "state_mb": self._state_mb,
            "heap_mb": heap_mb,
            "heap_over_mb": heap_mb - 2 * self._state_mb,
        }


def _plan(
    at: Server | ZooKeeperServer,
    dialect: str,
    connections: int,
    run: str,
    times: Times,
    pids: Sequence[int],
) -> Plan:
    """Return a load of commits by the node of each group, whichever is asked first."""
    return Plan(
        host=HOST,
        port=at.port,
        dialect=dialect,
        workload=COMMIT,
        connections=connections,
        window=1,
        partitions=1,
        run=run,
        server_pids=pids,
        is_cluster=True,
        **times._asdict(),
    )


def _live_heap_mb(pid: int) -> float:
    """Return what a virtual machine has in its heap that is in use."""
    for words in (("GC.run",), ("GC.heap_info",)):
        done = subprocess.run(
            ["jcmd", str(pid), *words], capture_output=True, check=False, text=True
        )
        if done.returncode:
            raise ProcessError(f"jcmd {words[0]}: {done.stderr[-2000:]}")
    return sum(map(int, _HEAP_USED.findall(done.stdout))) * 1024 / 1e6


def _tables(samples: Samples) -> Mapping[str, Table]:
    medians = Medians(samples)
    commits: Table = [("commits", "per s", "(spread)", "p50 ms", "p99 ms", "CPU us of all servers")]
    for name in (*(row(n, who) for n in _CONNECTIONS for who in ("", KAFKA)), ONE, MULTI):
        if name in samples:
            latencies = [medians.of(name, field) for field in ("p50_us", "p99_us")]
            commits.append(
                (
                    _TITLES[name],
                    number(medians.of(name, "rate_per_s"), 0),
                    between(medians.spread(name, "rate_per_s"), 0),
                    *(number(us and us / 1_000, 2) for us in latencies),
                    number(medians.of(name, "server_cpu_us"), 0),
                )
            )
    fields = (
        *((name, "pause_s", "s without commits", 2) for name in PAUSES),
        (START, "ready_s", "s until ready", 2),
        (START, "start_s", "s until every group is answered", 2),
        (START, "resident_mb", "MB, the node", 0),
        (START, "bytes_per_offset", "bytes an offset", 0),
        (START, "state_mb", "MB, the state in ZooKeeper", 1),
        (START, "heap_mb", "MB, live in the heap of a ZooKeeper server", 0),
    )
    return {"Commits": commits, "Nodes": fields_table(medians, _TITLES, fields)}


main = command(
    Benchmark(
        module="bench.cluster",
        help="Measure a cluster, and write the results.",
        name="cluster",
        repetitions=3,
        make=ClusterBench,
        settings=lambda quick: {
            "cores": "any for every process",
            "offsets that a node finds": (QUICK if quick else FULL).size.offsets,
            "nodes": f"{len(NODES)}, {JOURNALS} journals, a session of {SESSION_S:g} s",
            "servers of ZooKeeper": f"{len(NODES)}, a heap of {_HEAP_MB} MB each",
            "brokers of Kafka": f"{len(NODES)}, each a controller, too; the offsets' topic on all",
            "durability": "ZooKeeper syncs a majority before each answer; Kafka has it in the "
            "memory of all three",
        },
        titles=_TITLES,
        aims=_AIMS,
        tables=_tables,
        peers=(KAFKA,),
    )
)


if __name__ == "__main__":
    main()
