"""What is measured, and what the numbers are held against."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from bench.dialects import COMMIT, FETCH, HEARTBEAT
from bench.measures import median


class Target(Enum):
    """Who is measured."""

    DAEMON = "daemon"
    ECHO = "echo"
    ECHO_SOCKET = "echo_socket"


class Row(NamedTuple):
    """One load.

    Attributes:
        window: Requests in flight per connection.
        open_share: None is a closed loop; else an open loop at this share of the rate that
            the row `CLOSED_LOOP` reached in the same repetition.
    """

    name: str
    title: str
    target: Target
    workload: str
    connections: int
    window: int = 1
    partitions: int = 1
    open_share: float | None = None


FLOOR: Final = "fsync_floor"
IDLE_MEMORY: Final = "idle_memory"
LOADED_MEMORY: Final = "memory_after_load"
CLOSED_LOOP: Final = "commit_64"

# The ceiling of a row stands right before it, so that both see the same weather.
ROWS: Final = (
    Row("echo_1", "echo, 1 connection", Target.ECHO, COMMIT, 1),
    Row("commit_1", "commit, 1 connection", Target.DAEMON, COMMIT, 1),
    Row("echo_commit_64", "echo of commits, 64 connections", Target.ECHO, COMMIT, 64),
    Row(CLOSED_LOOP, "commit, 64 connections", Target.DAEMON, COMMIT, 64),
    Row("echo_fetch_64", "echo of fetches, 64 connections", Target.ECHO, FETCH, 64),
    Row("fetch_64", "fetch, 64 connections", Target.DAEMON, FETCH, 64),
    Row("heartbeat_64", "heartbeat, 64 connections", Target.DAEMON, HEARTBEAT, 64),
    Row("echo_commit_64_p100", "echo, 100 partitions", Target.ECHO, COMMIT, 64, 1, 100),
    Row("commit_64_p100", "commit of 100 partitions", Target.DAEMON, COMMIT, 64, 1, 100),
    Row("echo_commit_8x64", "echo, 8 connections x 64", Target.ECHO, COMMIT, 8, 64),
    Row("commit_8x64", "commit, 8 connections x 64", Target.DAEMON, COMMIT, 8, 64),
    Row("echo_commit_256", "echo, 256 connections", Target.ECHO, COMMIT, 256),
    Row("commit_256", "commit, 256 connections", Target.DAEMON, COMMIT, 256),
    Row("commit_open_50", "commit, open loop at 50 %", Target.DAEMON, COMMIT, 64, 8, 1, 0.5),
    Row("echo_socket_64", "echo without stream", Target.ECHO_SOCKET, COMMIT, 64),
)


class Aim(NamedTuple):
    """A number that the project wants to reach.

    Attributes:
        at_least: True if the value should be this or more, False if this or less.
    """

    name: str
    title: str
    value: Callable[["Medians"], float | None]
    bound: float
    at_least: bool
    unit: str


class Judged(NamedTuple):
    """An aim and what was measured; ``reached`` is None if it could not be."""

    name: str
    title: str
    value: float | None
    bound: float
    at_least: bool
    unit: str
    reached: bool | None


class Medians:
    """Medians over the repetitions, by row and field."""

    def __init__(self, samples: Mapping[str, Sequence[Mapping[str, float | None]]]) -> None:
        self._samples = samples

    def of(self, row: str, field: str) -> float | None:
        """Return the median of what the repetitions measured, None if nothing."""
        values = [
            value
            for sample in self._samples.get(row, ())
            if (value := sample.get(field)) is not None
        ]
        return median(values) if values else None

    def spread(self, row: str, field: str) -> tuple[float, float] | None:
        """Return lowest and highest of the repetitions."""
        values = [
            value
            for sample in self._samples.get(row, ())
            if (value := sample.get(field)) is not None
        ]
        return (min(values), max(values)) if values else None

    def ratio(self, row: str, ceiling: str) -> float | None:
        """Return the ratio of two rows' median rates."""
        rate, top = self.of(row, "rate_per_s"), self.of(ceiling, "rate_per_s")
        return rate / top if rate is not None and top else None


CEILINGS: Final[Mapping[str, str]] = {
    "commit_1": "echo_1",
    "commit_64": "echo_commit_64",
    "fetch_64": "echo_fetch_64",
    "heartbeat_64": "echo_commit_64",
    "commit_64_p100": "echo_commit_64_p100",
    "commit_8x64": "echo_commit_8x64",
    "commit_256": "echo_commit_256",
    "echo_socket_64": "echo_commit_64",
}


def _over_floor_ms(medians: Medians) -> float | None:
    commit, floor = medians.of("commit_1", "p50_us"), medians.of(FLOOR, "p50_us")
    return None if commit is None or floor is None else (commit - floor) / 1000


AIMS: Final = (
    Aim(
        "commit_ratio",
        "durable one-partition commits at 64 connections, of the echo's rate",
        lambda medians: medians.ratio("commit_64", "echo_commit_64"),
        0.35,
        at_least=True,
        unit="",
    ),
    Aim(
        "fetch_ratio",
        "one-partition fetches at 64 connections, of the echo's rate",
        lambda medians: medians.ratio("fetch_64", "echo_fetch_64"),
        0.6,
        at_least=True,
        unit="",
    ),
    Aim(
        "commit_over_floor",
        "one connection's commit, p50 over the fsync floor",
        _over_floor_ms,
        0.4,
        at_least=False,
        unit="ms",
    ),
    Aim(
        "idle_memory",
        "resident memory of the idle daemon",
        lambda medians: medians.of(IDLE_MEMORY, "resident_mb"),
        60.0,
        at_least=False,
        unit="MB",
    ),
)


def judge(medians: Medians, aims: Sequence[Aim] = AIMS) -> list[Judged]:
    """Hold the medians against the aims."""
    judged = []
    for aim in aims:
        value = aim.value(medians)
        reached: bool | None = None
        if value is not None:
            reached = value >= aim.bound if aim.at_least else value <= aim.bound
        judged.append(
            Judged(aim.name, aim.title, value, aim.bound, aim.at_least, aim.unit, reached)
        )
    return judged
