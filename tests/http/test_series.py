"""The series of groups and topics: what is written, and what is left out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import trio
from hypothesis import given, strategies as st
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from coordinator.group.core import Now
from coordinator.group.facts import GroupFacts, PartitionFacts, TopicFacts
from coordinator.group.lag import Turn
from coordinator.group.registry import EndReported, Registry, TopicRegistered
from coordinator.http.series import LEVELS, PART_BYTES, TURN_LINES, Series, Walk, escaped

NOW_MS: Final = 1_700_000_000_000
NOW: Final = Now(5_000, NOW_MS)
STABLE: Final = "Stable"
# What a client may call things: anything but control characters. Those are tried all the same.
NAMES: Final = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20) | st.sampled_from(
    ['a"b', "a\\b", "a\nb", 'x"} 1\nevil{a="', "\\n", "é\u202e\u2028", "\\", '"', "#", " "]
)


def group(group_id: str, lag_seconds: float = 4.5, lag: int = 7, partitions: int = 1) -> GroupFacts:
    """Return a stable group."""
    return GroupFacts(
        group_id=group_id,
        protocol_type="consumer",
        protocol="range",
        state=STABLE,
        generation=3,
        members=2,
        empty_members=1,
        partitions=partitions,
        unknown=0,
        lag=lag,
        lag_seconds=lag_seconds,
        earlier_lag=-1,
        earlier_ms=-1,
    )


def topic(name: str, partitions: int = 1) -> TopicFacts:
    """Return a topic of a group."""
    return TopicFacts(name, partitions, 2, partitions, 100, 7, 4.5)


def partition(topic_name: str, number: int) -> PartitionFacts:
    """Return a partition of a group, of which everything is known."""
    return PartitionFacts(topic_name, number, "m", 100, 107, 7, 4.5, NOW_MS - 2_500, NOW_MS)


class FakeGroups:
    """Groups with as many topics, and partitions of each, as the test says."""

    def __init__(self, groups: Sequence[GroupFacts], topics: int = 1) -> None:
        self.groups = groups
        self.topics = topics

    def facts(self, now_ms: int, turn: Turn) -> Iterator[GroupFacts | None]:
        """Yield each, and pause after it."""
        for one in self.groups:
            yield one
            yield None

    def topic_facts(self, group_id: str, now_ms: int, turn: Turn) -> Iterator[TopicFacts | None]:
        """Yield each topic."""
        (found,) = (one for one in self.groups if one.group_id == group_id)
        yield None
        for number in range(self.topics):
            yield topic(f"t{number}", found.partitions // self.topics)

    def partition_facts(
        self, group_id: str, now_ms: int, turn: Turn
    ) -> Iterator[PartitionFacts | None]:
        """Yield each partition."""
        (found,) = (one for one in self.groups if one.group_id == group_id)
        for number in range(self.topics):
            for at in range(found.partitions // self.topics):
                yield partition(f"t{number}", at)
            yield None


def registry(topics: Mapping[str, Sequence[int]], reported_ms: int = NOW_MS) -> Registry:
    """Return registered topics with their ends."""
    made = Registry()
    for version, (name, ends) in enumerate(topics.items(), 1):
        made.replay(TopicRegistered(name, max(len(ends), 1), (), False, version))
        for at, end in enumerate(ends):
            made.replay(EndReported(name, at, end, reported_ms))
    return made


async def walked(
    groups: FakeGroups, topics: Registry | None = None, max_series: int = 10**6
) -> Walk:
    """Return a walk over all of it, once it is over."""
    walk = Walk(max_series, 1, NOW, trio.lowlevel.checkpoint)
    await walk.go([groups], topics or registry({}))
    return walk


def text_of(series: Series) -> str:
    """Return what is sent."""
    return b"".join(series.parts()).decode()


def samples_of(series: Series) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return what Prometheus reads: each value by name and labels."""
    found = [
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text_of(series))
        for sample in family.samples
    ]
    assert len(found) == len(dict(found))
    return dict(found)


def level_counts(series: Series) -> dict[str, int]:
    """Return how many series of each level were written."""
    level_of = {family.name: level for level, families in LEVELS.items() for family in families}
    counts = Counter(level_of[name] for name, _ in samples_of(series))
    return {level: counts[level] for level in LEVELS}


@given(
    names=st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=4, unique_by=lambda n: n[0])
)
def test_lines_are_those_of_prometheus_client(names: list[tuple[str, str, str]]) -> None:
    """There are two writers of one format, and names are whatever clients say."""
    series = Series(10**6, 1, NOW_MS)
    for group_id, topic_name, protocol in names:
        series.add_group(group(group_id)._replace(protocol=protocol))
        series.add_partition(escaped(group_id), partition(topic_name, 3))

    class Theirs(Collector):
        def collect(self) -> Iterator[Metric]:
            for level in ("group", "partition"):
                for at, family in enumerate(LEVELS[level]):
                    metric = Metric(family.name, family.help, family.kind)
                    for group_id, topic_name, protocol in names:
                        values = {
                            "group_id": group_id,
                            "topic_name": topic_name,
                            "partition_id": "3",
                            "state": STABLE,
                            "protocol": protocol,
                            "protocol_type": "consumer",
                            "coordinator_id": "1",
                        }
                        labels = {label: values[label] for label in family.labels}
                        numbers = {
                            "group": (1, 2, 1, 7, 4.5, 0, 3),
                            "partition": (7, 4.5, 100, 2.5),
                        }
                        metric.add_sample(family.name, labels, numbers[level][at])
                    yield metric

    theirs = generate_latest(Theirs()).decode().split("\n")
    ours = [line for line in text_of(series).split("\n") if is_of_groups(line)]

    assert list(map(without_fraction, theirs)) == [*ours, ""]


def is_of_groups(line: str) -> bool:
    """Say whether a line is of the levels that the test looks at."""
    wanted = {family.name for level in ("group", "partition") for family in LEVELS[level]}
    words = line.split(" ")
    return (words[2] if line.startswith("#") else line.split("{", maxsplit=1)[0]) in wanted


def without_fraction(line: str) -> str:
    """Return a line with its number as ours are: a whole one as such, however large."""
    return line.removesuffix(".0") if not line.startswith("#") else line


async def test_what_is_not_known_has_no_sample() -> None:
    """A lag that nobody knows must not look like none."""
    unknown = group("g", lag_seconds=-1.0, lag=-1)
    series = (await walked(FakeGroups([unknown]))).series
    names = {name for name, _ in samples_of(series)}

    assert "kminion_kafka_consumer_group_members" in names
    assert not {"group_coordinator_group_lag", "group_coordinator_group_lag_seconds"} & names


async def test_a_topic_without_an_end_has_no_age() -> None:
    """Nobody has ever reported: that is not an end which is 50 years old."""
    topics = registry({"t": []})
    series = (await walked(FakeGroups([]), topics)).series

    assert "group_coordinator_topic_end_age_seconds" not in {n for n, _ in samples_of(series)}


async def test_every_value_is_where_it_belongs() -> None:
    """Seven values in a row are easily exchanged."""
    topics = registry({"t0": [107, 5]}, reported_ms=NOW_MS - 1_500)
    series = (await walked(FakeGroups([group("g")]), topics)).series
    g, t, p = ("group_id", "g"), ("topic_name", "t0"), ("partition_id", "0")
    info = frozenset(
        [
            g,
            ("state", STABLE),
            ("protocol", "range"),
            ("protocol_type", "consumer"),
            ("coordinator_id", "1"),
        ]
    )
    of_group, of_topic, of_partition = frozenset([g]), frozenset([g, t]), frozenset([g, t, p])

    assert samples_of(series) == {
        ("kminion_kafka_consumer_group_info", info): 1,
        ("kminion_kafka_consumer_group_members", of_group): 2,
        ("kminion_kafka_consumer_group_empty_members", of_group): 1,
        ("group_coordinator_group_lag", of_group): 7,
        ("group_coordinator_group_lag_seconds", of_group): 4.5,
        ("group_coordinator_group_unknown_partitions", of_group): 0,
        ("group_coordinator_group_generation", of_group): 3,
        ("kminion_kafka_consumer_group_topic_lag", of_topic): 7,
        ("kminion_kafka_consumer_group_topic_offset_sum", of_topic): 100,
        ("kminion_kafka_consumer_group_topic_members", of_topic): 2,
        ("kminion_kafka_consumer_group_topic_assigned_partitions", of_topic): 1,
        ("kminion_kafka_consumer_group_topic_partition_lag", of_partition): 7,
        ("group_coordinator_partition_lag_seconds", of_partition): 4.5,
        ("group_coordinator_partition_committed_offset", of_partition): 100,
        ("group_coordinator_partition_commit_age_seconds", of_partition): 2.5,
        ("kminion_kafka_topic_info", frozenset([t, ("partition_count", "2")])): 1,
        ("kminion_kafka_topic_high_water_mark_sum", frozenset([t])): 112,
        ("group_coordinator_topic_end_age_seconds", frozenset([t])): 1.5,
        ("kminion_kafka_topic_partition_high_water_mark", frozenset([t, p])): 107,
        (
            "kminion_kafka_topic_partition_high_water_mark",
            frozenset([t, ("partition_id", "1")]),
        ): 5,
    }


@given(
    sizes=st.lists(st.integers(0, 9), max_size=6),
    topics=st.integers(1, 3),
    ends=st.lists(st.integers(1, 4), max_size=3),
    max_series=st.integers(0, 200),
)
def test_what_is_left_out_and_what_is_there_add_up(
    sizes: list[int], topics: int, ends: list[int], max_series: int
) -> None:
    """The bound holds exactly, and nobody takes a part for the whole."""
    groups = FakeGroups(
        [group(f"g{at}", partitions=size * topics) for at, size in enumerate(sizes)], topics
    )
    registered = registry({f"t{at}": range(count) for at, count in enumerate(ends)})

    async def both() -> tuple[Series, Series]:
        everything = await walked(groups, registered)
        bounded = await walked(groups, registered, max_series)
        return everything.series, bounded.series

    everything, bounded = trio.run(both)
    there = level_counts(bounded)

    assert sum(there.values()) <= max_series
    assert {level: there[level] + bounded.left_out[level] for level in LEVELS} == level_counts(
        everything
    )
    if sum(bounded.left_out.values()):
        assert sum(there.values()) > max_series - max(map(len, LEVELS.values()))


async def test_the_worst_group_keeps_its_lag_and_the_best_one_loses_it() -> None:
    """Who is woken by the first must find it in the scrape, however many groups there are."""
    groups = FakeGroups(
        [
            group("well", lag_seconds=0.0, lag=0, partitions=10),
            group("never reported", lag_seconds=-1.0, lag=-1, partitions=10),
            group("worst", lag_seconds=90.0, lag=1, partitions=10),
            group("bad", lag_seconds=90.0, lag=0, partitions=10),
        ]
    )
    series = (await walked(groups, max_series=2 * len(LEVELS["group"]))).series
    told = {dict(labels)["group_id"] for _, labels in samples_of(series)}

    assert told == {"worst", "bad"}


async def test_once_something_is_left_out_nothing_smaller_takes_its_place() -> None:
    """A topic of a group that is not there itself would be a riddle."""
    series = (await walked(FakeGroups([group("a"), group("b")]), max_series=7 + 6)).series

    assert level_counts(series) == {**dict.fromkeys(LEVELS, 0), "group": 7}


async def test_a_walk_pauses_and_cuts_its_text() -> None:
    """Commits wait no longer than for a few hundred lines, and no answer is one huge string."""
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1
        await trio.lowlevel.checkpoint()

    walk = Walk(10**6, 1, NOW, pause)
    await walk.go([FakeGroups([group("g", partitions=10_000)])], registry({}))
    parts = walk.series.parts()

    assert pauses >= 40_000 // TURN_LINES
    assert max(map(len, parts)) <= PART_BYTES
    assert b"".join(parts).count(b'partition_id="') == 40_000


async def test_groups_are_counted_by_state() -> None:
    """They are counted in the walk, so that the numbers fit the series."""
    groups = [group("a"), group("b")._replace(state="Empty", members=0), group("c")]
    walk = await walked(FakeGroups(groups), max_series=0)

    assert walk.states == {STABLE: 2, "Empty": 1}
    assert walk.members == 4
