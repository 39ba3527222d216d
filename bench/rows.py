"""What `bench.run` measures, what it is held against, and how it is shown."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from bench.dialects import (
    COMMIT,
    EXPECTED,
    FETCH,
    HEARTBEAT,
    MEMBERS,
    METADATA,
    MIXED,
    TOPICS,
    UNIFORM,
)
from bench.measures import (
    Aim,
    Medians,
    Samples,
    at_most,
    faster,
    field_at_most,
    ratio_at_most,
)
from bench.report import Table, between, fields_table, number


class Target(Enum):
    """Who is measured."""

    DAEMON = "daemon"
    FILLED = "filled"
    ECHO = "echo"
    ECHO_SOCKET = "echo_socket"
    KAFKA = "kafka"
    KAFKA_FSYNC = "kafka_fsync"
    ZOOKEEPER = "zookeeper"


_WHO: Final[Mapping[Target, str]] = {
    Target.DAEMON: "",
    Target.FILLED: ", much in memory",
    Target.ECHO: ": echo",
    Target.ECHO_SOCKET: ": echo without stream",
    Target.KAFKA: ": Kafka",
    Target.KAFKA_FSYNC: ": Kafka, fsync",
    Target.ZOOKEEPER: ": ZooKeeper",
}

# What ``--only`` chooses from.
LOAD, FILLED = "load", "filled"
COMPACTION, COMPACTION_ONE_CORE = "compaction", "compaction-one-core"
PARTS: Final = (COMMIT, FETCH, HEARTBEAT, FILLED, LOAD, COMPACTION, COMPACTION_ONE_CORE)


class Row(NamedTuple):
    """One load.

    Attributes:
        window: Requests in flight per connection.
        open_share: None is a closed loop; else an open loop at this share of the rate that
            the row `CLOSED_LOOP` reached in the same repetition.
        kind: What the requests are like, a name of `bench.dialects.KINDS`.
        rebalances: Other groups of the same daemon rebalance meanwhile.
    """

    name: str
    what: str
    target: Target
    workload: str
    connections: int
    window: int = 1
    partitions: int = 1
    open_share: float | None = None
    kind: str = UNIFORM
    rebalances: bool = False

    @property
    def title(self) -> str:
        """What it is called in tables."""
        return self.what + _WHO[self.target]

    @property
    def part(self) -> str:
        """What it belongs to, of `PARTS`."""
        return FILLED if self.target is Target.FILLED else self.workload


FLOOR: Final = "fsync_floor"
OVERWRITE_FLOOR: Final = "fsync_floor_overwrite"
IDLE_MEMORY: Final = "idle_memory"
LOADED_MEMORY: Final = "memory_after_load"
FILLED_MEMORY: Final = "filled_memory"
# A log of many live offsets is loaded: by the daemon, from commits of many partitions and of one
# each, and by Kafka.
START: Final = "start"
START_FROM_SINGLES: Final = "start_from_singles"
KAFKA_START: Final = "kafka_start"


class Compaction(NamedTuple):
    """The same open loop of commits before and while a large log is compacted.

    Attributes:
        one_core: All that belongs to the daemon shares the servers' core.
        before: The name of a row, as is ``meanwhile``.
    """

    part: str
    one_core: bool
    before: str
    meanwhile: str
    title: str


COMPACTIONS: Final = (
    Compaction(
        *(COMPACTION, False, "before_compaction", "while_compacting"),
        "with a core to spare",
    ),
    Compaction(
        *(COMPACTION_ONE_CORE, True, "before_compaction_one_core", "while_compacting_one_core"),
        "on one core",
    ),
)
CLOSED_LOOP: Final = "commit_64"
OPEN_LOOP: Final = "commit_open_50"


def _rows(
    name: str,
    what: str,
    workload: str,
    connections: int,
    window: int = 1,
    partitions: int = 1,
    kind: str = UNIFORM,
    *,
    against: Sequence[Target] = (),
) -> list[Row]:
    """Return the same load for the daemon and others, one right after the other."""
    targets = sorted({Target.DAEMON, *against}, key=(Target.ECHO, *Target).index)
    return [
        Row(
            name if target is Target.DAEMON else f"{target.value}_{name}",
            *(what, target, workload, connections, window, partitions, None, kind),
        )
        for target in targets
    ]


# What is compared stands side by side, so that all of it sees the same weather.
ROWS: Final = (
    *_rows(
        *("commit_1", "commit, 1 connection", COMMIT, 1),
        against=[Target.ECHO, Target.KAFKA, Target.KAFKA_FSYNC],
    ),
    *_rows(
        *(CLOSED_LOOP, "commit, 64 connections", COMMIT, 64),
        against=[
            *(Target.ECHO, Target.FILLED),
            *(Target.KAFKA, Target.KAFKA_FSYNC, Target.ZOOKEEPER),
        ],
    ),
    *_rows(
        *("metadata_64", "commit with metadata", COMMIT, 64, 1, 1, METADATA),
        against=[Target.KAFKA],
    ),
    *_rows("expected_64", "commit with an expected offset", COMMIT, 64, 1, 1, EXPECTED),
    *_rows("members_64", "commit of a member", COMMIT, 64, 1, 1, MEMBERS),
    Row(
        *("rebalancing_64", "commit of a member, others rebalance", Target.DAEMON, COMMIT, 64),
        kind=MEMBERS,
        rebalances=True,
    ),
    *_rows("commit_256", "commit, 256 connections", COMMIT, 256, against=[Target.KAFKA]),
    *_rows(
        *("commit_64_p100", "commit of 100 partitions", COMMIT, 64, 1, 100),
        against=[Target.KAFKA],
    ),
    *_rows("mixed_64_p100", "commit of 100, mixed", COMMIT, 64, 1, 100, MIXED),
    *_rows(
        *("topics_64_p100", "commit of 100, over four topics", COMMIT, 64, 1, 100, TOPICS),
        against=[Target.KAFKA],
    ),
    *_rows(
        *("commit_8x64", "commit, 8 connections x 64", COMMIT, 8, 64),
        against=[Target.KAFKA, Target.ZOOKEEPER],
    ),
    *_rows("commit_8x64_p100", "commit of 100 partitions, 8 x 64", COMMIT, 8, 64, 100),
    *_rows(
        *("fetch_64", "fetch, 64 connections", FETCH, 64),
        against=[Target.ECHO, Target.FILLED, Target.KAFKA, Target.ZOOKEEPER],
    ),
    *_rows(
        *("fetch_64_p100", "fetch of 100 partitions", FETCH, 64, 1, 100),
        against=[Target.KAFKA],
    ),
    *_rows("mixed_fetch_64_p100", "fetch of 100, mixed", FETCH, 64, 1, 100, MIXED),
    *_rows("fetch_8x64", "fetch, 8 connections x 64", FETCH, 8, 64),
    *_rows("heartbeat_64", "heartbeat, 64 connections", HEARTBEAT, 64, against=[Target.ECHO]),
    Row(OPEN_LOOP, "commit, open loop at 50 %", Target.DAEMON, COMMIT, 64, 8, 1, 0.5),
    Row("echo_socket_64", "commit, 64 connections", Target.ECHO_SOCKET, COMMIT, 64),
)

# The daemon's closed loops, which can be looked at one by one.
OURS: Final = {row.name: row for row in ROWS if row.target is Target.DAEMON and not row.open_share}
CEILINGS: Final[Mapping[str, str]] = {
    row.name: f"{Target.ECHO.value}_{row.name}"
    for row in ROWS
    if any(other.name == f"{Target.ECHO.value}_{row.name}" for other in ROWS)
} | {"echo_socket_64": f"{Target.ECHO.value}_{CLOSED_LOOP}"}


def uniform_row(row: Row) -> Row | None:
    """Return the row with which another kind of request compares: the uniform one."""
    for other in ROWS:
        same = row._replace(name=other.name, what=other.what, kind=UNIFORM, rebalances=False)
        if row.kind != UNIFORM and other == same:
            return other
    return None


# --- aims, held against peers and limits of the same run -----------------------------------------


def _over_floor_ms(medians: Medians) -> float | None:
    commit, floor = medians.of("commit_1", "p50_us"), medians.of(FLOOR, "p50_us")
    return None if commit is None or floor is None else (commit - floor) / 1000


def cheaper(row: str, against: str, title: str, bound: float) -> Aim:
    """Return the aim that a request costs a server at most so many times what it costs another."""
    return ratio_at_most(row, against, "server_cpu_us", f"{title}, CPU", bound)


AIMS: Final = (
    cheaper("commit_64", "zookeeper_commit_64", "commit, 64 connections, of ZooKeeper's set", 0.9),
    faster("commit_64", "zookeeper_commit_64", "commit, 64 connections, of ZooKeeper's set", 1.0),
    faster("commit_64", "kafka_commit_64", "commit, 64 connections, of Kafka's (not durable)", 2.0),
    faster(
        "commit_64", "kafka_fsync_commit_64", "commit, 64 connections, of Kafka's with fsync", 3.5
    ),
    cheaper("commit_256", "kafka_commit_256", "commit, 256 connections, of Kafka's", 0.8),
    faster("commit_256", "kafka_commit_256", "commit, 256 connections, of Kafka's", 1.3),
    cheaper("commit_8x64", "zookeeper_commit_8x64", "commit, 8 x 64, of ZooKeeper's set", 0.6),
    faster("commit_8x64", "kafka_commit_8x64", "commit, 8 x 64, of Kafka's", 50),
    faster("commit_64_p100", "kafka_commit_64_p100", "commit of 100 partitions, of Kafka's", 1.8),
    cheaper("fetch_64", "kafka_fetch_64", "fetch, 64 connections, of Kafka's", 0.75),
    cheaper("fetch_64", "zookeeper_fetch_64", "fetch, 64 connections, of ZooKeeper's get", 0.75),
    cheaper("fetch_64_p100", "kafka_fetch_64_p100", "fetch of 100 partitions, of Kafka's", 0.8),
    at_most(
        "commit_1", "one connection's commit, p50 over the fsync floor", _over_floor_ms, 0.25, "ms"
    ),
    faster("heartbeat_64", "echo_heartbeat_64", "heartbeat, 64 connections, of the echo's", 1.3),
    faster("fetch_64", "echo_fetch_64", "fetch, 64 connections, of the echo's", 0.6),
    faster("commit_64", "echo_commit_64", "commit, 64 connections, of the echo's", 0.4),
    faster(
        "filled_commit_64", "commit_64", "commit, much in memory, of the same with little", 0.85
    ),
    faster("filled_fetch_64", "fetch_64", "fetch, much in memory, of the same with little", 0.85),
    field_at_most(START, "load_s", "load of many offsets, from commits of 100", 0.6, "s"),
    field_at_most(
        START_FROM_SINGLES, "load_s", "load of many offsets, from single commits", 2.5, "s"
    ),
    ratio_at_most(
        START, KAFKA_START, "start_s", "start until all of them are there, of Kafka's time", 0.25
    ),
    field_at_most(START, "bytes_per_offset", "resident memory of a live offset", 350, "bytes"),
    *(
        ratio_at_most(
            *(compaction.meanwhile, compaction.before, "p99_us"),
            f"p99 of commits while the log is compacted {compaction.title}, of the p99 before",
            2.0,
        )
        for compaction in COMPACTIONS
    ),
    field_at_most(IDLE_MEMORY, "resident_mb", "resident memory of the idle daemon", 60.0, "MB"),
)


# --- results -------------------------------------------------------------------------------------

TITLES: Final[Mapping[str, str]] = {
    FLOOR: "fsync floor (append + fdatasync)",
    OVERWRITE_FLOOR: "the same, over zeros",
    IDLE_MEMORY: "idle daemon",
    LOADED_MEMORY: "daemon after all loads",
    FILLED_MEMORY: "daemon with much in memory",
    START: "start with a large log, commits of 100",
    START_FROM_SINGLES: "start with a large log, single commits",
    KAFKA_START: "start with a large log: Kafka",
    **{c.before: f"commit, open loop before a compaction {c.title}" for c in COMPACTIONS},
    **{c.meanwhile: f"commit, open loop during a compaction {c.title}" for c in COMPACTIONS},
    **{row.name: row.title for row in ROWS},
}
# What is neither a rate nor a latency: row, field, unit and digits.
_OTHER: Final = (
    (IDLE_MEMORY, "resident_mb", "MB resident", 1),
    (LOADED_MEMORY, "resident_mb", "MB resident", 1),
    (FILLED_MEMORY, "resident_mb", "MB resident", 1),
    (FILLED_MEMORY, "bytes_per_offset", "bytes an offset", 0),
    (START, "start_s", "s until every offset is there", 2),
    (START, "load_s", "s of it to load", 2),
    (START, "resident_mb", "MB resident", 1),
    (START, "bytes_per_offset", "bytes an offset", 0),
    (START_FROM_SINGLES, "start_s", "s until every offset is there", 2),
    (START_FROM_SINGLES, "load_s", "s of it to load", 2),
    (KAFKA_START, "start_s", "s until every offset is there", 2),
    (KAFKA_START, "serving_s", "s of it until it coordinates", 2),
    (KAFKA_START, "resident_mb", "MB resident", 1),
    *((compaction.meanwhile, "seconds", "s to compact", 2) for compaction in COMPACTIONS),
    (OPEN_LOOP, "late_p99_us", "us that the generator itself was late, p99", 0),
)


def tables(samples: Samples) -> Mapping[str, Table]:
    """Return all tables, by heading."""
    medians = Medians(samples)
    return {
        "Rows": _table(medians),
        "Other requests than the uniform ones": _kinds_table(medians),
        "Memory, start, compaction": fields_table(medians, TITLES, _OTHER),
    }


def _table(medians: Medians) -> Table:
    """Return a line a row: medians, and the spread of the rate."""
    lines: Table = [
        (
            *("load", "per s", "CPU us", "(spread of per s)", "p50 ms", "p99 ms", "max ms"),
            *("of echo", "CPU", "warm after s"),
        )
    ]
    for name in medians.samples:
        if (rate := medians.of(name, "rate_per_s")) is None:
            continue
        latencies = (medians.of(name, field) for field in ("p50_us", "p99_us", "max_us"))
        of_echo = medians.ratio(name, CEILINGS[name]) if name in CEILINGS else None
        lines.append(
            (
                *(TITLES[name], number(rate, 0), number(medians.of(name, "server_cpu_us"), 1)),
                between(medians.spread(name, "rate_per_s"), 0),
                *(number(None if us is None else us / 1000, 3) for us in latencies),
                *(number(of_echo, 2), number(medians.of(name, "server_busy"), 2)),
                _warm_after(medians, name),
            )
        )
    return lines


def _warm_after(medians: Medians, name: str) -> str:
    seconds, flat = medians.of(name, "warmup_s"), medians.of(name, "flat")
    return "" if seconds is None else f"{seconds:.1f}{'' if flat else ', not flat'}"


def _kinds_table(medians: Medians) -> Table:
    """Return a line for each kind of request that isn't uniform."""
    lines: Table = [("load", "CPU us", "of the uniform one's")]
    for row in ROWS:
        uniform = uniform_row(row)
        if uniform is not None and row.name in medians.samples:
            cost = medians.of(row.name, "server_cpu_us")
            ratio = medians.ratio(row.name, uniform.name, "server_cpu_us")
            lines.append((row.title, number(cost, 1), number(ratio, 2)))
    return lines
