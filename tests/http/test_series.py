"""The series of groups and topics: what is written, and what is left out."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import trio
from hypothesis import given, strategies as st
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from coordinator.config import Settings
from coordinator.group.core import Now
from coordinator.group.facts import GroupFacts, TopicEndFacts, TopicFacts
from coordinator.group.lag import LagColumns, Turn
from coordinator.group.records import GroupMetadata, MemberMetadata, OffsetsCommitted
from coordinator.group.registry import EndReported, Registry, TopicRegistered
from coordinator.group.shard import GroupShard
from coordinator.group.totals import Totals
from coordinator.http.routes import Pause
from coordinator.http.series import (
    ITEMS,
    LEVELS,
    PART_BYTES,
    TURN_SORTED,
    PrincipalFacts,
    Texts,
    Walk,
    end_texts,
    group_texts,
    partition_texts,
    principal_texts,
    registry_texts,
    topic_texts,
)
from coordinator.server.run import group_config
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.messages import EndOffset, PartitionOffset
from protocol.partition import TopicPartition

NOW_MS: Final = 1_700_000_000_000
NOW: Final = Now(10_000_000, NOW_MS)
STABLE: Final = "Stable"
# What a client may call things: anything but control characters. Those are tried all the same.
NAMES: Final = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20) | st.sampled_from(
    ['a"b', "a\\b", "a\nb", 'x"} 1\nevil{a="', "\\n", "é\u202e\u2028", "\\", '"', "#", " "]
)
# Group -> topic -> partition -> committed offset.
Committed = Mapping[str, Mapping[str, Mapping[int, int]]]


def registry_of(
    topics: Mapping[str, Sequence[int]], *, behind_ms: int = 0, told_ms: int = NOW_MS
) -> Registry:
    """Return registered topics with their ends.

    With *behind_ms* they reached half as far so long ago, and stood still until now.
    """
    made = Registry()
    made.now_ms = (NOW.mono_ms, NOW_MS)
    for version, (name, ends) in enumerate(topics.items(), 1):
        made.replay(TopicRegistered(name, max(len(ends), 1), (), False, version))
        for at, last in enumerate(ends):
            if behind_ms:
                made.replay(EndReported(name, at, last // 2, told_ms - behind_ms))
            made.replay(EndReported(name, at, last, told_ms))
    return made


def shard_of(
    registry: Registry, committed: Committed, members: Mapping[str, Sequence[TopicPartition]] = {}
) -> GroupShard:
    """Return groups with what they committed; *members* are those of each, with what they own."""
    made = GroupShard(config=group_config(Settings()), new_uuid=lambda: "id", registry=registry)
    if members:
        for group_id in committed:
            made.replay(stable_group(group_id, members))
    for group_id, topics in committed.items():
        for topic, offsets in topics.items():
            values = {at: PartitionOffset(at, offset, 0, "", 0) for at, offset in offsets.items()}
            made.replay(OffsetsCommitted(group_id, topic, values, NOW_MS - 2_500))
    made.loaded(NOW)
    return made


def stable_group(group_id: str, owned: Mapping[str, Sequence[TopicPartition]]) -> GroupMetadata:
    """Return the record of a stable group with members that own what is said."""
    subscription = encode_subscription(Subscription(("t",)))
    members = tuple(
        MemberMetadata(
            name,
            None,
            "c",
            "h",
            60_000,
            60_000,
            subscription,
            encode_assignment(Assignment((*tps,))),
        )
        for name, tps in owned.items()
    )
    return GroupMetadata(group_id, "consumer", 3, "range", next(iter(owned)), NOW_MS, members)


async def walked(
    shard: GroupShard,
    registry: Registry,
    max_series: int = 10**6,
    pause: Pause = trio.lowlevel.checkpoint,
) -> tuple[Walk, list[bytes]]:
    """Return a walk that is over, and what it wrote."""
    walk = Walk(
        registry,
        max_series=max_series,
        node_id=1,
        now=NOW,
        throttled={},
        pause=pause,
    )
    return walk, await walk.go([shard.groups])


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(parts: Sequence[bytes]) -> Samples:
    """Return what Prometheus reads: each value by name and labels."""
    found = [
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(b"".join(parts).decode())
        for sample in family.samples
    ]
    assert len(found) == len(dict(found))
    return dict(found)


def level_counts(parts: Sequence[bytes]) -> dict[str, int]:
    """Return how many series of each level were written."""
    level_of = {family.name: level for level, families in LEVELS.items() for family in families}
    counts = Counter(level_of[name] for name, _ in samples_of(parts))
    return {level: counts[level] for level in LEVELS}


# --- lines ----------------------------------------------------------------------------------


class Theirs(Collector):
    """Samples of one family after the other, for prometheus-client to write."""

    def __init__(
        self, rows: Mapping[str, Sequence[tuple[Mapping[str, str], Sequence[float]]]]
    ) -> None:
        self.rows = rows

    def collect(self) -> Iterator[Metric]:
        """Yield each family."""
        for level, rows in self.rows.items():
            for at, family in enumerate(LEVELS[level]):
                metric = Metric(family.name, family.help, family.kind)
                for values, numbers in rows:
                    labels = {label: values[label] for label in family.labels}
                    metric.add_sample(family.name, labels, numbers[at])
                yield metric


@given(group_id=NAMES, topic=NAMES, protocol=NAMES)
def test_lines_are_those_of_prometheus_client(group_id: str, topic: str, protocol: str) -> None:
    """There are two writers of one format, and names are whatever clients say."""
    group = GroupFacts(group_id, "consumer", protocol, STABLE, 3, 2, 1, 1, 0, 7, 4.5, -1, -1)
    texts: dict[str, Texts] = {
        "group": group_texts(group, 1),
        "principal": principal_texts([PrincipalFacts(group_id, 1, 2, 3, 4, 5, 0.5, 6, 7_500)]),
        "topic": topic_texts(group_id, [TopicFacts(topic, 1, 2, 1, 100, 0, 7, 4.5)]),
        "registry": registry_texts([TopicEndFacts(topic, 12, 0, 107, 2_500)]),
        "partition": partition_texts(
            group_id, topic, LagColumns([3], [100], [7], [4_500]), [NOW_MS - 2_500], NOW_MS
        ),
        "registry_partition": end_texts(topic, [EndOffset(3, 107, NOW_MS)]),
    }
    labels = {
        "group_id": group_id,
        "principal": group_id,
        "topic_name": topic,
        "partition_id": "3",
        "partition_count": "12",
        "state": STABLE,
        "protocol": protocol,
        "protocol_type": "consumer",
        "coordinator_id": "1",
    }
    numbers: dict[str, Sequence[float]] = {
        "group": (1, 2, 1, 7, 4.5, 0, 3),
        "principal": (1, 2, 3, 4, 5, 0.5, 6, 7.5),
        "topic": (7, 100, 2, 1),
        "registry": (1, 107, 2.5),
        "partition": (7, 4.5, 100, 2.5),
        "registry_partition": (107,),
    }
    theirs = generate_latest(Theirs({level: [(labels, numbers[level])] for level in LEVELS}))
    lines = [line for line in theirs.decode().split("\n") if not line.startswith("#")]

    # Whole numbers are written as such: as a float a large offset would lose its last digits.
    assert [line.removesuffix(".0") for line in lines] == [
        *(line for level in LEVELS for line in "".join(texts[level]).split("\n") if line),
        "",
    ]


def test_a_large_offset_keeps_its_digits() -> None:
    """Somebody compares it with what the source says."""
    (text,) = end_texts("t", [EndOffset(0, 2**63 - 1, 0)])
    assert text.endswith(" 9223372036854775807")


def test_what_is_not_known_has_no_line() -> None:
    """A lag that nobody knows must not look like none."""
    texts = partition_texts("g", "t", LagColumns([0, 1], [3, 4], [-1, 5], [-1, -1]), [1, 1], NOW_MS)

    assert [text.count("\n") for text in texts] == [1, 0, 2, 2]


# --- the walk -------------------------------------------------------------------------------


async def test_each_partition_has_the_age_of_its_own_commit() -> None:
    """One that is stuck among others that go on must not look as fresh as they do."""
    registry = registry_of({"t": [5, 5]})
    shard = shard_of(registry, {"g": {"t": {0: 3, 1: 3}}})
    later = {1: PartitionOffset(1, 4, 0, "", 0)}
    shard.replay(OffsetsCommitted("g", "t", later, NOW_MS - 500))
    _, parts = await walked(shard, registry)
    ages = {
        dict(labels)["partition_id"]: value
        for (name, labels), value in samples_of(parts).items()
        if name == "group_coordinator_partition_commit_age_seconds"
    }

    assert ages == {"0": 2.5, "1": 0.5}


async def test_every_value_is_where_it_belongs() -> None:
    """Seven values in a row are easily exchanged."""
    registry = registry_of({"t0": [107, 50]}, behind_ms=8_000, told_ms=NOW_MS - 1_500)
    owned = {"m": [TopicPartition("t0", 0), TopicPartition("t0", 1)], "idle": []}
    shard = shard_of(registry, {"g": {"t0": {0: 80}}}, owned)
    _, parts = await walked(shard, registry)
    samples = samples_of(parts)
    seconds = {name: value for (name, _), value in samples.items() if name.endswith("lag_seconds")}
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

    assert {key: value for key, value in samples.items() if not key[0].endswith("lag_seconds")} == {
        ("kminion_kafka_consumer_group_info", info): 1,
        ("kminion_kafka_consumer_group_members", of_group): 2,
        ("kminion_kafka_consumer_group_empty_members", of_group): 1,
        ("group_coordinator_group_lag", of_group): 27,
        ("group_coordinator_group_unknown_partitions", of_group): 1,
        ("group_coordinator_group_generation", of_group): 3,
        ("kminion_kafka_consumer_group_topic_lag", of_topic): 27,
        ("kminion_kafka_consumer_group_topic_offset_sum", of_topic): 80,
        ("kminion_kafka_consumer_group_topic_members", of_topic): 1,
        ("kminion_kafka_consumer_group_topic_assigned_partitions", of_topic): 2,
        ("kminion_kafka_consumer_group_topic_partition_lag", of_partition): 27,
        ("group_coordinator_partition_committed_offset", of_partition): 80,
        ("group_coordinator_partition_commit_age_seconds", of_partition): 2.5,
        ("kminion_kafka_topic_info", frozenset([t, ("partition_count", "2")])): 1,
        ("kminion_kafka_topic_high_water_mark_sum", frozenset([t])): 157,
        ("group_coordinator_topic_end_age_seconds", frozenset([t])): 1.5,
        ("kminion_kafka_topic_partition_high_water_mark", frozenset([t, p])): 107,
        (
            "kminion_kafka_topic_partition_high_water_mark",
            frozenset([t, ("partition_id", "1")]),
        ): 50,
    }
    assert len(seconds) == 2
    assert len(set(seconds.values())) == 1
    assert 0 < seconds["group_coordinator_group_lag_seconds"] < 8


@given(
    ends=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    committed=st.dictionaries(
        st.sampled_from(["a", "b", "never registered"]),
        st.dictionaries(st.integers(0, 5), st.integers(0, 20), min_size=1),
        max_size=3,
    ),
    owned=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=6, unique=True),
    behind_ms=st.sampled_from([0, 5_000]),
)
def test_a_group_is_added_up_as_it_is_for_everybody_else(
    ends: list[int],
    committed: dict[str, dict[int, int]],
    owned: list[tuple[str, int]],
    behind_ms: int,
) -> None:
    """The walk goes over its partitions on its own, as it writes them on its way."""
    registry = registry_of({"a": ends, "b": ends}, behind_ms=behind_ms)
    members = {
        "m": [TopicPartition(*one) for one in owned[::2]],
        "n": [],
        "o": [TopicPartition(*one) for one in owned[1::2]],
    }
    shard = shard_of(registry, {"g": committed}, members)
    facts = [one for one in shard.facts(NOW.mono_ms, Turn()) if one is not None]
    topics = [one for one in shard.topic_facts("g", NOW.mono_ms, Turn()) if one is not None]
    theirs = {
        *[line for one in facts for text in group_texts(one, 1) for line in text.splitlines()],
        *[
            line
            for text in (topic_texts("g", topics) if topics else ())
            for line in text.splitlines()
        ],
    }
    _, parts = trio.run(walked, shard, registry)
    levels = {family.name for level in ("group", "topic") for family in LEVELS[level]}
    lines = b"".join(parts).decode().splitlines()

    assert {line for line in lines if line.partition("{")[0] in levels} == theirs - {""}


@given(
    sizes=st.lists(st.integers(1, 9), max_size=6),
    topics=st.integers(1, 3),
    max_series=st.integers(0, 300),
)
def test_what_is_left_out_and_what_is_there_add_up(
    sizes: list[int], topics: int, max_series: int
) -> None:
    """The bound holds exactly, and nobody takes a part for the whole."""
    registry = registry_of({f"t{at}": [20] * 9 for at in range(topics)}, behind_ms=5_000)
    shard = shard_of(
        registry,
        {
            f"g{at}": {f"t{number}": dict.fromkeys(range(size), 15) for number in range(topics)}
            for at, size in enumerate(sizes)
        },
    )

    async def both() -> tuple[list[bytes], Walk, list[bytes]]:
        _, everything = await walked(shard, registry)
        return everything, *await walked(shard, registry, max_series)

    everything, walk, parts = trio.run(both)
    there = level_counts(parts)

    assert sum(there.values()) <= max_series
    assert {level: there[level] + walk.left_out[level] for level in LEVELS} == level_counts(
        everything
    )
    assert samples_of(parts).items() <= samples_of(everything).items()
    if sum(walk.left_out.values()):
        assert sum(there.values()) > max_series - max(map(len, LEVELS.values()))


async def test_the_worst_groups_keep_their_lag_and_the_others_lose_it() -> None:
    """Who is woken by the first must find it in the scrape, however many groups there are."""
    registry = registry_of({"t": [100], "new": [100], "silent": []}, behind_ms=60_000)
    registry.ends_history.forget("new")  # So far behind, but nobody knows since when.
    shard = shard_of(
        registry,
        {
            "well": {"t": {0: 100}},
            "worst": {"t": {0: 55}},
            "bad": {"t": {0: 95}},
            "unknown": {"silent": {0: 1}},
            "new": {"new": {0: 0}},
        },
    )
    _, parts = await walked(shard, registry, max_series=2 * len(LEVELS["group"]))
    _, three = await walked(shard, registry, max_series=3 * len(LEVELS["group"]))

    assert groups_in(parts) == {"worst", "bad"}
    assert groups_in(three) == {"worst", "bad", "new"}


def groups_in(parts: Sequence[bytes]) -> set[str]:
    """Return the groups that have series."""
    found = [dict(labels).get("group_id", "") for _, labels in samples_of(parts)]
    return set(found) - {""}


async def test_once_something_is_left_out_nothing_smaller_takes_its_place() -> None:
    """A topic of a group that is not there itself would be a riddle."""
    registry = registry_of({"t": [5]}, behind_ms=1_000)
    shard = shard_of(registry, {"a": {"t": {0: 3}}, "b": {"t": {0: 3}}})
    _, parts = await walked(shard, registry, max_series=7 + 6)

    assert level_counts(parts) == {**dict.fromkeys(LEVELS, 0), "group": 7}


async def test_the_partitions_of_the_worst_are_there_whichever_were_looked_at_first() -> None:
    """Texts are kept of those that come first, and the worst come last here."""
    registry = registry_of({"t": [100] * 10}, behind_ms=60_000)
    shard = shard_of(
        registry,
        {f"g{at}": {"t": dict.fromkeys(range(10), 90 - at)} for at in range(10)},
    )
    room = 10 * 7 + 10 * 4 + 3 + 15 * 4
    _, parts = await walked(shard, registry, room)
    lags = Counter(
        dict(labels)["group_id"]
        for name, labels in samples_of(parts)
        if name == "kminion_kafka_consumer_group_topic_partition_lag"
    )

    assert lags == {"g9": 10, "g8": 5}


async def test_a_walk_pauses_and_its_parts_are_small() -> None:
    """Commits wait no longer than for a few hundred lines, and no answer is one huge string."""
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1
        await trio.lowlevel.checkpoint()

    registry = registry_of({"t": [100] * 5_000}, behind_ms=60_000)
    shard = shard_of(registry, {"g": {"t": dict.fromkeys(range(5_000), 90)}})
    walk = Walk(registry, max_series=10**6, node_id=1, now=NOW, throttled={}, pause=pause)
    parts = await walk.go([shard.groups])

    assert pauses >= 5_000 // (2 * ITEMS)
    assert max(map(len, parts)) <= PART_BYTES
    assert b"".join(parts).count(b'{group_id="g",partition_id="') == 20_000


async def test_groups_are_counted_by_state() -> None:
    """They are counted in the walk, so that the numbers fit the series."""
    registry = registry_of({})
    shard = shard_of(registry, {"a": {"t": {0: 1}}, "b": {"t": {0: 1, 1: 1}}}, {"m": [], "n": []})
    shard.replay(OffsetsCommitted("c", "t", {0: PartitionOffset(0, 1, 0, "", 0)}, 0))
    walk, _ = await walked(shard, registry, max_series=0)

    assert walk.states == {STABLE: 2, "Empty": 1}
    assert (walk.members, walk.offsets) == (4, 4)


async def test_a_group_that_goes_during_the_walk_does_no_harm() -> None:
    """A scrape takes seconds on a busy daemon."""
    registry = registry_of({"t": [100] * 500}, behind_ms=60_000)
    shard = shard_of(registry, {f"g{at}": {"t": dict.fromkeys(range(500), 90)} for at in range(3)})
    groups = dict(shard.groups)

    async def pause() -> None:
        groups.pop("g2", None)
        await trio.lowlevel.checkpoint()

    walk = Walk(registry, max_series=10**6, node_id=1, now=NOW, throttled={}, pause=pause)

    assert groups_in(await walk.go([groups])) >= {"g0", "g1"}


async def test_principals_have_series_those_first_that_are_nearest_to_a_quota() -> None:
    """They come after the groups and before all else, within the same bound."""
    registry = Registry(Totals(has_principals=True))
    registry.totals.quota = lambda who, name: 10 if (who, name) == ("User:a", "topics") else None
    for who, topics in (("User:b", 3), ("User:a", 5)):
        registry.totals.share(who).count("topics", topics)
    throttled = {"User:c": (2, 1_500)}

    def walk(max_series: int) -> Walk:
        return Walk(
            registry,
            max_series=max_series,
            node_id=1,
            now=NOW,
            throttled=throttled,
            pause=trio.lowlevel.checkpoint,
        )

    whole = samples_of(await walk(10**6).go([]))
    assert {
        (name, dict(labels)["principal"]): value
        for (name, labels), value in whole.items()
        if name.endswith(("topics", "ratio", "answers_total", "seconds_total")) and value
    } == {
        ("group_coordinator_principal_topics", "User:a"): 5,
        ("group_coordinator_principal_topics", "User:b"): 3,
        ("group_coordinator_principal_quota_ratio", "User:a"): 0.5,
        ("group_coordinator_principal_throttled_answers_total", "User:c"): 2,
        ("group_coordinator_principal_throttled_seconds_total", "User:c"): 1.5,
    }

    bounded = walk(20)
    some = samples_of(await bounded.go([]))
    assert {dict(labels)["principal"] for _, labels in some} == {"User:a", "User:c"}
    assert bounded.left_out["principal"] == 8


async def test_what_was_walked_is_let_go_in_turns() -> None:
    """At the end of a scrape of 10,000 groups nobody was heard for 4 ms, while they were freed."""
    registry = registry_of({"t": [10]})
    shard = shard_of(registry, {f"g{number}": {"t": {0: 1}} for number in range(5 * TURN_SORTED)})
    groups = list(shard.groups.values())
    kept: list[int] = []

    async def count() -> None:
        kept.append(sum(map(sys.getrefcount, groups)))

    await count()
    await walked(shard, registry, pause=count)
    await count()

    assert max(kept) - kept[0] >= len(groups)
    assert max(before - after for before, after in pairwise(kept)) <= 2 * TURN_SORTED
