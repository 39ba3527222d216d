"""What `bench.run` measures, what it is held against, and how it is shown."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from bench import report
from bench.dialects import COMMIT, FETCH, HEARTBEAT
from bench.measures import Aim, Medians, Samples, judge
from bench.report import HOW_TO_READ, SMOKE_NOTE, Run, aim_lines, markdown_table, number


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
LOAD, COMPACTION, FILLED = "load", "compaction", "filled"
PARTS: Final = (COMMIT, FETCH, HEARTBEAT, FILLED, LOAD, COMPACTION)


class Row(NamedTuple):
    """One load.

    Attributes:
        window: Requests in flight per connection.
        open_share: None is a closed loop; else an open loop at this share of the rate that
            the row `CLOSED_LOOP` reached in the same repetition.
    """

    name: str
    what: str
    target: Target
    workload: str
    connections: int
    window: int = 1
    partitions: int = 1
    open_share: float | None = None

    @property
    def title(self) -> str:
        """What it is called in tables."""
        return self.what + _WHO[self.target]

    @property
    def part(self) -> str:
        """What it belongs to, of `PARTS`."""
        return FILLED if self.target is Target.FILLED else self.workload


FLOOR: Final = "fsync_floor"
IDLE_MEMORY: Final = "idle_memory"
LOADED_MEMORY: Final = "memory_after_load"
FILLED_MEMORY: Final = "filled_memory"
# A log of many live offsets is loaded: by the daemon, by Kafka, and as far as any program must.
START: Final = "start"
START_FLOOR: Final = "start_floor"
KAFKA_START: Final = "kafka_start"
# The same open loop of commits before and while a large log is compacted.
BEFORE_COMPACTION: Final = "before_compaction"
WHILE_COMPACTING: Final = "while_compacting"
CLOSED_LOOP: Final = "commit_64"


def _rows(
    name: str,
    what: str,
    workload: str,
    connections: int,
    window: int = 1,
    partitions: int = 1,
    *,
    against: Sequence[Target],
) -> list[Row]:
    """Return the same load for the daemon and others, one right after the other."""
    return [
        Row(
            name if target is Target.DAEMON else f"{target.value}_{name}",
            *(what, target, workload, connections, window, partitions),
        )
        for target in (Target.ECHO, Target.DAEMON, *against)
    ]


# What is compared stands side by side, so that all of it sees the same weather.
ROWS: Final = (
    *_rows(
        *("commit_1", "commit, 1 connection", COMMIT, 1),
        against=[Target.KAFKA, Target.KAFKA_FSYNC],
    ),
    *_rows(
        *(CLOSED_LOOP, "commit, 64 connections", COMMIT, 64),
        against=[Target.FILLED, Target.KAFKA, Target.KAFKA_FSYNC, Target.ZOOKEEPER],
    ),
    *_rows(
        *("commit_256", "commit, 256 connections", COMMIT, 256),
        against=[Target.KAFKA],
    ),
    *_rows(
        *("commit_64_p100", "commit of 100 partitions", COMMIT, 64, 1, 100),
        against=[Target.KAFKA],
    ),
    *_rows(
        *("commit_8x64", "commit, 8 connections x 64", COMMIT, 8, 64),
        against=[Target.KAFKA, Target.ZOOKEEPER],
    ),
    *_rows(
        *("commit_8x64_p100", "commit of 100 partitions, 8 x 64", COMMIT, 8, 64, 100),
        against=[],
    ),
    *_rows(
        *("fetch_64", "fetch, 64 connections", FETCH, 64),
        against=[Target.FILLED, Target.KAFKA, Target.ZOOKEEPER],
    ),
    *_rows(
        *("fetch_64_p100", "fetch of 100 partitions", FETCH, 64, 1, 100),
        against=[Target.KAFKA],
    ),
    *_rows(
        *("fetch_8x64", "fetch, 8 connections x 64", FETCH, 8, 64),
        against=[],
    ),
    *_rows(
        *("heartbeat_64", "heartbeat, 64 connections", HEARTBEAT, 64),
        against=[],
    ),
    Row("commit_open_50", "commit, open loop at 50 %", Target.DAEMON, COMMIT, 64, 8, 1, 0.5),
    Row("echo_socket_64", "commit, 64 connections", Target.ECHO_SOCKET, COMMIT, 64),
)

CEILINGS: Final[Mapping[str, str]] = {
    row.name: f"{Target.ECHO.value}_{row.name}"
    for row in ROWS
    if row.target is Target.DAEMON and row.open_share is None
} | {"echo_socket_64": f"{Target.ECHO.value}_{CLOSED_LOOP}"}


# --- aims, held against peers and limits of the same run -----------------------------------------


def _rate(row: str, against: str, title: str, bound: float) -> Aim:
    """Return the aim that a row is so many times as fast as another one."""
    return Aim(
        f"{row}/{against}",
        title,
        lambda medians: medians.ratio(row, against),
        bound,
        at_least=True,
        unit="",
    )


def _most(
    name: str,
    title: str,
    top: tuple[str, str],
    bottom: tuple[str, str],
    bound: float,
) -> Aim:
    """Return the aim that one field of a row is at most so many times another one."""

    def value(medians: Medians) -> float | None:
        above, below = medians.of(*top), medians.of(*bottom)
        return above / below if above is not None and below else None

    return Aim(name, title, value, bound, at_least=False, unit="")


def _at_most(name: str, title: str, row: str, field: str, bound: float, unit: str) -> Aim:
    return Aim(
        name, title, lambda medians: medians.of(row, field), bound, at_least=False, unit=unit
    )


def _over_floor_ms(medians: Medians) -> float | None:
    commit, floor = medians.of("commit_1", "p50_us"), medians.of(FLOOR, "p50_us")
    return None if commit is None or floor is None else (commit - floor) / 1000


AIMS: Final = (
    _rate("commit_64", "kafka_commit_64", "commit, 64 connections, of Kafka's (not durable)", 2.0),
    _rate("commit_256", "kafka_commit_256", "commit, 256 connections, of Kafka's", 1.3),
    _rate("commit_64_p100", "kafka_commit_64_p100", "commit of 100 partitions, of Kafka's", 1.5),
    Aim(
        "commit_over_floor",
        "one connection's commit, p50 over the fsync floor",
        _over_floor_ms,
        0.3,
        at_least=False,
        unit="ms",
    ),
    _rate(
        "commit_64", "kafka_fsync_commit_64", "commit, 64 connections, of Kafka's with fsync", 3.5
    ),
    _rate("commit_64", "zookeeper_commit_64", "commit, 64 connections, of ZooKeeper's set", 1.0),
    _rate("commit_8x64", "kafka_commit_8x64", "commit, pipelined 8 x 64, of Kafka's", 60),
    _rate(
        "commit_8x64", "zookeeper_commit_8x64", "commit, pipelined 8 x 64, of ZooKeeper's set", 2
    ),
    _rate("fetch_64", "kafka_fetch_64", "fetch, 64 connections, of Kafka's", 1.2),
    _rate("fetch_64_p100", "kafka_fetch_64_p100", "fetch of 100 partitions, of Kafka's", 1.0),
    _rate("heartbeat_64", "echo_heartbeat_64", "heartbeat, 64 connections, of the echo's", 0.6),
    _rate("fetch_64", "echo_fetch_64", "fetch, 64 connections, of the echo's", 0.6),
    _rate("commit_64", "echo_commit_64", "commit, 64 connections, of the echo's", 0.4),
    _rate("filled_commit_64", "commit_64", "commit, much in memory, of the same with little", 0.85),
    _rate("filled_fetch_64", "fetch_64", "fetch, much in memory, of the same with little", 0.85),
    _most(
        "load_of_floor",
        "load of many live offsets, of the time for crc and unpackb of the same batches",
        (START, "load_s"),
        (START_FLOOR, "seconds"),
        3.0,
    ),
    _at_most("load_s", "load of many live offsets", START, "load_s", 3.0, "s"),
    _most(
        "start_of_kafka",
        "start until all of them are there, of Kafka's time",
        (START, "start_s"),
        (KAFKA_START, "start_s"),
        0.25,
    ),
    _at_most(
        "offset_bytes", "resident memory of a live offset", START, "bytes_per_offset", 350, "bytes"
    ),
    _most(
        "compaction_p99",
        "p99 of commits while the log is compacted, of the p99 before",
        (WHILE_COMPACTING, "p99_us"),
        (BEFORE_COMPACTION, "p99_us"),
        2.0,
    ),
    _at_most(
        "idle_memory", "resident memory of the idle daemon", IDLE_MEMORY, "resident_mb", 60.0, "MB"
    ),
)


# --- results -------------------------------------------------------------------------------------

_SCALED: Final = ("rate_per_s", "p50_us", "p99_us", "max_us")
_TITLES: Final[Mapping[str, str]] = {
    FLOOR: "fsync floor (write + fdatasync)",
    IDLE_MEMORY: "idle daemon",
    LOADED_MEMORY: "daemon after all loads",
    FILLED_MEMORY: "daemon with much in memory",
    START: "start with a large log",
    START_FLOOR: "crc and unpackb of its batches",
    KAFKA_START: "start with a large log: Kafka",
    BEFORE_COMPACTION: "commit, open loop before a compaction",
    WHILE_COMPACTING: "commit, open loop while the log is compacted",
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
    (START_FLOOR, "seconds", "s", 2),
    (KAFKA_START, "start_s", "s until every offset is there", 2),
    (KAFKA_START, "serving_s", "s of it until it coordinates", 2),
    (KAFKA_START, "resident_mb", "MB resident", 1),
    (WHILE_COMPACTING, "seconds", "s to compact", 2),
)


def document(run: Run) -> dict[str, Any]:
    """Return the whole run as what JSON can hold: samples, medians, ratios, aims."""
    medians = Medians(run.samples)

    def of_its_echo(name: str) -> dict[str, float | None]:
        ratio = medians.ratio(name, CEILINGS[name]) if name in CEILINGS else None
        return {"of_its_echo": ratio}

    return report.document_of(run, _title, judge(medians, AIMS), of_its_echo)


def _title(name: str) -> str:
    titles = {row.name: row.title for row in ROWS}
    return (titles | dict(_TITLES))[name]


def table(run: Run) -> list[tuple[str, ...]]:
    """Return the header and a line a row: medians, and the spread of the rate."""
    medians = Medians(run.samples)
    lines: list[tuple[str, ...]] = [
        ("load", "per s", "(spread)", "p50 ms", "p99 ms", "max ms", "of echo", "CPU", "CPU us")
    ]
    for name in run.samples:
        spread = medians.spread(name, "rate_per_s")
        if spread is None:
            continue
        rate, p50, p99, most = (medians.of(name, field) for field in _SCALED)
        lines.append(
            (
                _title(name),
                number(rate, 0),
                f"{spread[0]:,.0f}-{spread[1]:,.0f}",
                *(number(None if us is None else us / 1000, 3) for us in (p50, p99, most)),
                number(medians.ratio(name, CEILINGS[name]), 2) if name in CEILINGS else "",
                number(medians.of(name, "server_busy"), 2),
                number(medians.of(name, "server_cpu_us"), 1),
            )
        )
    return lines


def other_table(run: Run) -> list[tuple[str, ...]]:
    """Return the header and a line for each other number that was measured."""
    medians = Medians(run.samples)
    lines: list[tuple[str, ...]] = [("", "median", "(spread)", "")]
    for name, field, unit, digits in _OTHER:
        value, spread = medians.of(name, field), medians.spread(name, field)
        if value is not None and spread is not None:
            between = "-".join(number(end, digits) for end in spread)
            lines.append((_title(name), number(value, digits), between, unit))
    return lines


def failures(samples: Samples) -> list[str]:
    """Return what went wrong under load: such a run's numbers must not be used."""
    return report.failures(samples, _title)


def markdown(run: Run) -> str:
    """Return the page for people."""
    medians = Medians(run.samples)
    late = medians.of("commit_open_50", "late_p99_us")
    parts = [
        f"# Benchmark: {run.name}",
        *([f"**{SMOKE_NOTE}**"] if run.quick else []),
        f"Run on {run.started}. Repeat it with `{run.repeat}`.",
        HOW_TO_READ,
        "## Aims",
        markdown_table(aim_lines(judge(medians, AIMS))),
        "## Rows",
        markdown_table(table(run)),
        *(
            []
            if late is None
            else [f"In the open loop the generator itself was late by {late / 1000:.3f} ms (p99)."]
        ),
        "## Memory, start, compaction",
        markdown_table(other_table(run)),
        *[f"**Failed: {failure}**" for failure in failures(run.samples)],
        "## Environment",
        markdown_table([("", ""), *run.environment.items()]),
        "## Settings",
        markdown_table([("", ""), *((k, str(v)) for k, v in run.settings.items())]),
    ]
    return "\n\n".join(parts) + "\n"
