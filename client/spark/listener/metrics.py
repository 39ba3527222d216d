"""What a listener knows, as an object, as JSON and as Prometheus text. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from protocol.partition import TopicPartition

Labels = Mapping[str, str]
Family = tuple[str, str, str, list[tuple[Labels, float]]]


class PartitionLag(NamedTuple):
    """One partition of a query.

    Attributes:
        finished: the next offset that the query reads.
        end: where the source ended when the last batch was planned; None if it doesn't say.
        lag: ``end - finished``; None if the end isn't known, or is older than what is finished.
        quiet_s: seconds since ``finished`` moved.

    """

    finished: int
    end: int | None
    lag: int | None
    quiet_s: float


class TopicLag(NamedTuple):
    """A topic of a query: its sums; None if some partition's end isn't known."""

    partitions: int
    lag: int | None
    lag_max: int | None


class QueryMetrics(NamedTuple):
    """One query.

    Attributes:
        query_id: the id that its checkpoint keeps.
        name: the query's name, None if it has none.
        active: whether it runs.
        batch_id: the last batch that is known to be done; -1 for none.
        quiet_s: seconds since a batch ended. It grows while a query has nothing to do.
        silent_s: seconds since anything was heard of it, "nothing to do" included.
        batches: how many batches this listener was told of.
        dropped_events: batches of which no event came.
        late_events: events that came after a later one, and were left out.
        healed: offsets learned from the checkpoint instead of an event.
        partitions: how far it is in each partition.

    """

    query_id: str
    name: str | None
    active: bool
    batch_id: int
    quiet_s: float
    silent_s: float
    batches: int
    dropped_events: int
    late_events: int
    healed: int
    partitions: dict[TopicPartition, PartitionLag]

    @property
    def topics(self) -> dict[str, TopicLag]:
        """The lag of each topic."""
        lags: dict[str, list[int | None]] = {}
        for tp, one in sorted(self.partitions.items()):
            lags.setdefault(tp.topic, []).append(one.lag)
        return {topic: TopicLag(len(some), _sum(some), _max(some)) for topic, some in lags.items()}

    @property
    def lag(self) -> int | None:
        """Rows behind, over all partitions; None if some partition's end isn't known."""
        return _sum([one.lag for one in self.partitions.values()])


class TargetMetrics(NamedTuple):
    """One group that offsets are committed to.

    Attributes:
        target: the group and where it is.
        wanted: partitions whose offset is to be shown.
        due: how many of them are not stored yet.
        refused: how many of them were refused.
        stored_s: seconds since something was stored; None for never.
        failures: attempts in a row that stored nothing.
        error: why the last attempt failed, None if it did not.

    """

    target: str
    wanted: int
    due: int
    refused: int
    stored_s: float | None
    failures: int
    error: str | None


class ListenerMetrics(NamedTuple):
    """All that a listener knows at one moment."""

    queries: tuple[QueryMetrics, ...]
    targets: tuple[TargetMetrics, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {
            "queries": [_query_dict(query) for query in self.queries],
            "targets": [target._asdict() for target in self.targets],
        }

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def families(self) -> Iterator[Family]:
        """Yield each family that has samples: name, type, meaning, and labels with values."""
        for name, kind, meaning, samples in _families(self):
            known = [(labels, value) for labels, value in samples if value is not None]
            if known:
                yield f"spark_listener_{name}", kind, meaning, known

    def to_prometheus(self) -> str:
        """Return it in Prometheus' text format; what isn't known has no sample."""
        lines: list[str] = []
        for name, kind, meaning, samples in self.families():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{_labels(labels)}}} {_number(value)}" for labels, value in samples]
        return "".join(line + "\n" for line in lines)


# Of each family: its name, its type, its meaning, and the field that it shows.
_OF_QUERIES: Final = (
    ("query_active", "gauge", "Whether the query runs.", "active"),
    ("query_batch", "gauge", "The last finished batch.", "batch_id"),
    ("query_lag", "gauge", "Rows behind, over all partitions.", "lag"),
    ("query_quiet_seconds", "gauge", "Since a batch ended.", "quiet_s"),
    ("query_silent_seconds", "gauge", "Since anything was heard.", "silent_s"),
    ("batches_total", "counter", "Batches heard of.", "batches"),
    ("dropped_events_total", "counter", "Batches without event.", "dropped_events"),
    ("late_events_total", "counter", "Events left out.", "late_events"),
    ("healed_offsets_total", "counter", "Learned from checkpoints.", "healed"),
)
_OF_PARTITIONS: Final = (
    ("offset", "gauge", "The next offset that the query reads.", "finished"),
    ("end_offset", "gauge", "Where the source ended.", "end"),
    ("lag", "gauge", "Rows behind.", "lag"),
    ("quiet_seconds", "gauge", "Since the partition moved.", "quiet_s"),
)
_OF_TARGETS: Final = (
    ("target_wanted", "gauge", "Partitions to be shown.", "wanted"),
    ("target_due", "gauge", "Partitions that are not stored yet.", "due"),
    ("target_refused", "gauge", "Partitions that were refused.", "refused"),
    ("target_stored_seconds", "gauge", "Since something was stored.", "stored_s"),
    ("target_failures", "gauge", "Attempts in a row that failed.", "failures"),
)


def _families(
    metrics: ListenerMetrics,
) -> Iterator[tuple[str, str, str, list[tuple[Labels, float | None]]]]:
    queries: list[tuple[Labels, Any]] = [
        ({"query": query.name or "", "query_id": query.query_id}, query)
        for query in metrics.queries
    ]
    partitions = [
        ({**labels, "topic": tp.topic, "partition": str(tp.partition)}, one)
        for labels, query in queries
        for tp, one in sorted(query.partitions.items())
    ]
    targets = [({"target": target.target}, target) for target in metrics.targets]
    for families, shown in (
        (_OF_QUERIES, queries),
        (_OF_PARTITIONS, partitions),
        (_OF_TARGETS, targets),
    ):
        for name, kind, meaning, field in families:
            yield name, kind, meaning, [(labels, getattr(one, field)) for labels, one in shown]


def _query_dict(query: QueryMetrics) -> dict[str, Any]:
    return {
        **query._asdict(),
        "lag": query.lag,
        "topics": {topic: lag._asdict() for topic, lag in query.topics.items()},
        "partitions": [
            {"topic": tp.topic, "partition": tp.partition, **one._asdict()}
            for tp, one in sorted(query.partitions.items())
        ],
    }


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _number(value: float) -> str:
    # Offsets are too long for the usual formats of floats.
    return str(int(value)) if isinstance(value, int) else f"{value:.3f}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _sum(numbers: Sequence[int | None]) -> int | None:
    return sum(_all_known(numbers)) if _all_known(numbers) else None


def _max(numbers: Sequence[int | None]) -> int | None:
    return max(_all_known(numbers), default=None)


def _all_known(numbers: Sequence[int | None]) -> list[int]:
    """Return the numbers, or none of them if one isn't known."""
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else []
