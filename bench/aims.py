"""What the project wants to reach, held against peers and limits of the same run."""

from typing import Final

from bench.judging import Aim, Medians
from bench.rows import (
    BEFORE_COMPACTION,
    FLOOR,
    IDLE_MEMORY,
    KAFKA_START,
    START,
    START_FLOOR,
    WHILE_COMPACTING,
)


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
