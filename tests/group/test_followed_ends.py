"""Ends as a follower has them: made of the log alone, and the same as where they were decided."""

from collections.abc import Iterable, Mapping

import msgpack
import pytest
from hypothesis import given, strategies as st

from coordinator.group.core import Now
from coordinator.group.ends_history import REPEAT_LOG_MS
from coordinator.group.lag_samples import MINUTE_MS, UNKNOWN
from coordinator.group.node_records import read_item
from coordinator.group.node_shard import NodeShard
from coordinator.group.records import MalformedRecord
from coordinator.group.registry import EndsRepeated, Registry, TopicRecord
from tests.group.node_context import last_per_key, roundtrip
from tests.group.topics_context import TopicsContext
from tests.packed import node_entry

PARTITIONS = 3
ENDS = 12


class Follower:
    """A second node, which replays what the first one decides.

    Args:
        context: The first node.
        started_ms: Time by which the second one started before it.
    """

    def __init__(self, context: TopicsContext, started_ms: int = 0) -> None:
        self._context = context
        self._started_ms = started_ms
        self._taken = 0
        self.shard = NodeShard(Registry())

    @property
    def now(self) -> Now:
        """The time of this node."""
        return Now(self._context.mono_ms + self._started_ms, self._context.wall_ms)

    def replay(self, records: Iterable[TopicRecord]) -> None:
        """Replay some records."""
        self.shard.begin_replay(self.now)
        for record in records:
            self.shard.replay(roundtrip(record))

    def follow(self) -> None:
        """Replay what was decided since the last call."""
        records = self._context.topic_records
        self.replay(records[self._taken :])
        self._taken = len(records)

    def behind_ms(self) -> list[int]:
        """Return how far each committed offset is behind, for each partition."""
        registry, found = self.shard.registry, []
        for partition in range(PARTITIONS):
            ends = [registry.end_offset("t", partition)] * ENDS
            history = registry.ends_history.of("t")
            found += history.behind_ms(ends, range(ENDS), self.now.mono_ms)
        return found

    def ages_ms(self) -> list[int]:
        """Return how old each known end is."""
        registry, now = self.shard.registry, self.now
        age_ms = registry.ends_history.of("t").age_ms
        ends = registry.ends_of("t")
        return [age_ms(ends[p], now.mono_ms, now.wall_ms) for p in sorted(ends)]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2 * MINUTE_MS),
        st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(0, ENDS - 1), max_size=2),
        st.booleans(),
    ),
    max_size=30,
)


@given(STEPS, st.integers(0, 100))
def test_a_replay_gives_the_same_answers_as_deciding(
    steps: list[tuple[int, Mapping[int, int], bool]], minutes: int
) -> None:
    """At once or late, by a node that runs for longer; a load of the log gives them, too."""
    context = TopicsContext()
    context.register({"t": PARTITIONS})
    follower = Follower(context, minutes * MINUTE_MS)
    leader = Follower(context)
    leader.shard = context.topics
    for wait_ms, ends, follows in steps:
        context.advance(wait_ms)
        context.report("t", ends)
        if follows:
            follower.follow()
            assert follower.behind_ms() == leader.behind_ms()
            pairs = zip(follower.ages_ms(), leader.ages_ms(), strict=True)
            assert all(theirs >= ours for theirs, ours in pairs)
    follower.follow()
    loaded, compacted = Follower(context), Follower(context)
    loaded.replay(context.topic_records)
    compacted.replay(last_per_key(context.topic_records))

    assert leader.behind_ms() == follower.behind_ms() == loaded.behind_ms()
    assert follower.ages_ms() == loaded.ages_ms() == compacted.ages_ms()
    # Compaction leaves the last report of each partition: the lag by that alone is the least.
    for least, exact in zip(compacted.behind_ms(), loaded.behind_ms(), strict=True):
        assert least <= exact or exact == UNKNOWN


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=60))
def test_an_end_that_is_told_steadily_is_about_as_old_everywhere(waits_ms: list[int]) -> None:
    """A follower is behind by what the log is told at most, and a report more."""
    context = TopicsContext()
    context.register({"t": PARTITIONS})
    follower = Follower(context)
    for wait_ms in waits_ms:
        context.advance(wait_ms)
        context.report("t", {0: 5, 1: 7})
        follower.follow()

        assert max(follower.ages_ms()) <= REPEAT_LOG_MS
    seconds = sum(waits_ms) / 1000
    repeats = [r for r in context.topic_records if type(r) is EndsRepeated]
    assert len(repeats) <= seconds * 1000 / REPEAT_LOG_MS


def test_reports_of_several_clients_are_one_entry() -> None:
    """Each tells of its own partitions; the topic is the measure of what it may cost."""
    context = TopicsContext()
    context.register({"t": 100})
    context.report("t", dict.fromkeys(range(100), 1))
    written = len(context.topic_records)
    for _ in range(20):
        for partition in range(100):
            context.advance(10)
            context.report("t", {partition: 1})

    (first, second) = context.topic_records[written:]
    assert type(first) is type(second) is EndsRepeated
    assert sorted(first.partitions) == sorted(second.partitions) == list(range(100))
    assert len(set(second.reported_ms)) == 100
    assert len(msgpack.packb(node_entry(first))) < 100 * 12


def test_a_clock_that_is_ahead_makes_no_report_come_from_the_future() -> None:
    """A report dated ahead counts as made when read; one dated behind is older by as much."""
    context = TopicsContext()
    context.register({"t": PARTITIONS})
    context.report("t", {0: 5})
    for ahead_ms, age_ms in ((60_000, 60_000), (-60_000, 0)):
        follower = Follower(context)
        context.wall_ms += ahead_ms
        follower.replay(context.topic_records)
        context.wall_ms -= ahead_ms

        assert (
            follower.shard.registry.ends_history.of("t").age_ms(
                follower.shard.registry.ends["t"][0], context.mono_ms, 0
            )
            == age_ms
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [([[]], [1]), ([[1, 2]], [[1]]), ([], [1]), ([1], [1]), ([[1]], [1, 2]), ([[1]], [None])],
)
def test_a_repeated_end_of_another_shape_is_no_record(key: object, value: object) -> None:
    """The record is damage, and no news of a newer release."""
    with pytest.raises(MalformedRecord):
        read_item((0, 1013, 0, "t", key, value))
