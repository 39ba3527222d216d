"""What a streaming offset of the coordinated source says, and what a pin says. Pure.

An end offset describes itself: it holds exactly the ranges of its own batch, so a replay
needs nothing but the offset, and no code ever subtracts a start from an end::

    {"flights-3": {"s": 100, "e": 200, "g": 7},
     "@": {"v": 1, "coordinator": "host:9310", "group": "etl", "client_id": "...",
           "topics": ["flights"], "stateful": "fail",
           "cluster": "...", "generation": 7,
           "at": {"flights": {"2": [40, "gc1:40:0"], "3": [100, "gc1:200:0"]}},
           "away": {"flights": [2]}}}

``cluster``, ``generation`` and ``at`` say what the reader last saw of its group: which cluster it
was, and where the group was in each partition that this reader ever had; ``away`` are those of
them that it gave away. Checkpoints of releases before don't have them; what the ranges say is then
all that is known.

A pin is the planned end of the range that begins at a committed offset. It is stored as the
metadata of the commit, ``gc1:<end>:<resets>``; an end equal to the offset means "no range
planned". The counter of resets makes the ranges before and after a reset of the group's
offsets different for a sink that remembers what it has seen. Where the log can tell one topic
from another one of the same name, its identity follows, ``gc1:<end>:<resets>:<identity>``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from client.offsets import OffsetAndMetadata
from protocol.partition import NO_GENERATION, TopicPartition

READER_KEY: Final = "@"
FORMAT_VERSION: Final = 1

IDENTITY: Final = re.compile(r"[A-Za-z0-9._~-]{1,64}", re.ASCII)

_PIN: Final = re.compile(
    rf"gc1:(0|[1-9][0-9]{{0,18}}):(0|[1-9][0-9]{{0,18}})(?::({IDENTITY.pattern}))?", re.ASCII
)


class OffsetFormatError(ValueError):
    """An offset in the checkpoint is not one that this source writes."""


class Range(NamedTuple):
    """Rows ``start <= offset < end`` of one partition, planned in *generation*."""

    start: int
    end: int
    generation: int


class Pin(NamedTuple):
    """Where the range that begins at a committed offset ends, and the group's reset counter.

    *identity* says which log of this name the offset is of; empty where nothing tells.
    """

    end: int
    resets: int = 0
    identity: str = ""

    def to_metadata(self) -> str:
        """Return the text that is stored with the commit."""
        identity = f":{self.identity}" if self.identity else ""
        return f"gc1:{self.end}:{self.resets}{identity}"


class ReaderIdentity(NamedTuple):
    """Which reader process planned a batch, so that a drain can find it."""

    coordinator: str
    group: str
    client_id: str


class Memory(NamedTuple):
    """What a reader last saw of its group; *cluster* is empty where that is not known.

    The metadata of its offsets are pins, or empty. *away* are the partitions that the reader gave
    away: others have gone on from their offsets.
    """

    cluster: str = ""
    generation: int = NO_GENERATION
    offsets: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({})
    away: frozenset[TopicPartition] = frozenset()

    def names(self, other: "Memory") -> bool:
        """Say whether it is of the same cluster and the same partitions, wherever they are."""
        is_same = self.cluster == other.cluster and self.away == other.away
        return is_same and self.offsets.keys() == other.offsets.keys()


_NO_MEMORY: Final = Memory()


class EndOffset(NamedTuple):
    """A decoded end offset; *reader* is None for the initial offset ``{}``.

    *topics* are those that the query read, empty if that is not known; *stateful* is what the
    option ``onStateful`` said; *memory* is what the reader knew of its group.
    """

    ranges: dict[TopicPartition, Range]
    reader: ReaderIdentity | None
    topics: tuple[str, ...] = ()
    stateful: str = ""
    memory: Memory = _NO_MEMORY


def parse_pin(metadata: str | None) -> Pin | None:
    """Return the pin in a commit's metadata, or None where it holds no pin of ours."""
    match = _PIN.fullmatch(metadata or "")
    return Pin(int(match[1]), int(match[2]), match[3] or "") if match else None


def encode_end(
    ranges: Mapping[TopicPartition, Range],
    reader: ReaderIdentity,
    *,
    topics: Sequence[str] = (),
    stateful: str = "",
    memory: Memory = _NO_MEMORY,
) -> dict[str, dict[str, object]]:
    """Return the offset, ready for JSON, of a batch of exactly these ranges; see `EndOffset`."""
    end: dict[str, dict[str, object]] = {
        str(tp): {"s": start, "e": stop, "g": generation}
        for tp, (start, stop, generation) in sorted(ranges.items())
    }
    end[READER_KEY] = {"v": FORMAT_VERSION, **reader._asdict()}
    if topics:
        end[READER_KEY]["topics"] = list(topics)
    if stateful:
        end[READER_KEY]["stateful"] = stateful
    if memory.cluster:
        end[READER_KEY]["cluster"] = memory.cluster
    if memory.generation != NO_GENERATION:
        end[READER_KEY]["generation"] = memory.generation
    if memory.offsets:
        at: dict[str, dict[str, list[object]]] = {}
        for (topic, partition), stored in memory.offsets.items():
            at.setdefault(topic, {})[str(partition)] = [stored.offset, stored.metadata]
        end[READER_KEY]["at"] = at
    if memory.away:
        away: dict[str, list[int]] = {}
        for topic, partition in sorted(memory.away):
            away.setdefault(topic, []).append(partition)
        end[READER_KEY]["away"] = away
    return end


def decode_end(offset: object) -> EndOffset:
    """Read an end offset.

    Raises:
        OffsetFormatError: it is of another source or of a newer format.

    """
    if not isinstance(offset, Mapping) or not all(
        isinstance(value, Mapping) for value in offset.values()
    ):
        raise _unreadable(offset)
    about = offset.get(READER_KEY)
    # First of all the version: it says whether the rest can be understood.
    reader = None if about is None else _decode_reader(about, offset)
    ranges: dict[TopicPartition, Range] = {}
    for key, value in offset.items():
        if key == READER_KEY:
            continue
        tp = _partition_of(key)
        match value.get("s"), value.get("e"), value.get("g"):
            case int() as start, int() as end, int() as generation if tp and 0 <= start < end:
                ranges[tp] = Range(start, end, generation)
            case _:
                raise _unreadable(offset)
    if reader is None or about is None:
        return EndOffset(ranges, None)
    topics = about.get("topics")
    return EndOffset(
        ranges,
        reader,
        tuple(map(str, topics)) if isinstance(topics, list) else (),
        str(about.get("stateful", "")),
        _decode_memory(about, ranges, offset),
    )


def finished_offsets(offset_json: str | None) -> dict[TopicPartition, int]:
    """Return what a source has finished, from the JSON text in a query's progress.

    Understands Kafka's form ``{"topic": {"0": 20}}`` and that of this source. Anything else
    (other sources, the text ``None`` of a first batch) gives an empty dict.
    """
    try:
        offset = json.loads(offset_json or "")
    except ValueError:
        return {}
    if not isinstance(offset, dict):
        return {}
    finished: dict[TopicPartition, int] = {}
    for key, value in offset.items():
        if key == READER_KEY or not isinstance(value, dict):
            continue
        if set(value) == {"s", "e", "g"} and isinstance(value["e"], int):
            if tp := _partition_of(key):
                finished[tp] = value["e"]
            continue
        finished.update(
            (TopicPartition(key, int(partition)), end)
            for partition, end in value.items()
            if partition.isdecimal() and type(end) is int and end >= 0
        )
    return finished


def read_end(offset_json: str | None) -> EndOffset | None:
    """Return what a progress's offset says, or None where it is of another source."""
    try:
        return decode_end(json.loads(offset_json or ""))
    except ValueError:
        return None


def reader_of(offset_json: str | None) -> ReaderIdentity | None:
    """Return the reader that a progress's offset names, or None."""
    end = read_end(offset_json)
    return end.reader if end else None


def _partition_of(key: str) -> TopicPartition | None:
    topic, _, partition = key.rpartition("-")
    return TopicPartition(topic, int(partition)) if topic and partition.isdecimal() else None


def _decode_reader(value: Mapping[object, object], offset: object) -> ReaderIdentity:
    if value.get("v") != FORMAT_VERSION:
        raise OffsetFormatError(
            f"the checkpoint's offset has format version {value.get('v')!r}, this release reads "
            f"version {FORMAT_VERSION}: use the release that wrote it, or a new checkpoint"
        )
    match value.get("coordinator"), value.get("group"), value.get("client_id"):
        case str(coordinator), str(group), str(client_id):
            return ReaderIdentity(coordinator, group, client_id)
    raise _unreadable(offset)


def _decode_memory(
    about: Mapping[object, object], ranges: Mapping[TopicPartition, Range], offset: object
) -> Memory:
    # A range was pinned at its start before it was handed to Spark.
    offsets = {
        tp: OffsetAndMetadata(one.start, Pin(one.end).to_metadata()) for tp, one in ranges.items()
    }
    generation = max((one.generation for one in ranges.values()), default=NO_GENERATION)
    match (
        about.get("cluster", ""),
        about.get("generation", generation),
        about.get("at", {}),
        about.get("away", {}),
    ):
        case str(cluster), int(generation), dict(at), dict(away):
            try:
                for topic, places in at.items():
                    for partition, (place, metadata) in places.items():
                        tp = TopicPartition(str(topic), int(partition))
                        offsets[tp] = OffsetAndMetadata(int(place), str(metadata))
                gone = frozenset(
                    TopicPartition(str(topic), int(partition))
                    for topic, partitions in away.items()
                    for partition in partitions
                )
            except (AttributeError, TypeError, ValueError):
                raise _unreadable(offset) from None
            return Memory(cluster, generation, offsets, gone)
    raise _unreadable(offset)


def _unreadable(offset: object) -> OffsetFormatError:
    return OffsetFormatError(
        f"the checkpoint holds an offset that the coordinated source did not write: "
        f"{json.dumps(offset)[:200]}; each query needs a checkpoint of its own, and this one "
        "needs a new one"
    )
