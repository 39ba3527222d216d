"""What is measured."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from bench.dialects import COMMIT, FETCH, HEARTBEAT


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
