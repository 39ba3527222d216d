"""Groups in numbers: what the metrics, the API and the page show of them."""

from collections.abc import Iterator
from typing import TypeVar

import pytest
from hypothesis import given, strategies as st

from coordinator.group import facts, lag
from coordinator.group.facts import (
    GroupFacts,
    MemberFacts,
    PartitionFacts,
    RunningFacts,
    TopicEndFacts,
    TopicFacts,
)
from coordinator.group.lag import Turn
from coordinator.group.lag_samples import MINUTE_MS, SAMPLES_KEPT
from coordinator.group.minutes import LagCurves
from tests.group.context import GROUP, SESSION_MS, assignment, subscription
from tests.group.test_lag import Lagging, _counting

T = TypeVar("T")


def _all(found: Iterator[T | None]) -> list[T]:
    return [one for one in found if one is not None]


class Shown(Lagging):
    """Groups whose numbers are asked for."""

    def consuming(self, members: int, *owned: str) -> list[str]:
        """Let members join; the first of them owns everything."""
        ids = self.completing_group(members, protocols={"range": subscription("t")})
        self.sync(ids[0], self.generation, {ids[0]: assignment(*owned)})
        for member in ids[1:]:
            self.sync(member, self.generation)
        return ids

    def group(self, group: str = GROUP) -> GroupFacts:
        """Return the facts of one group."""
        (one,) = _all(self.shard.facts_of(group, self.mono_ms, Turn()))
        return one

    def topics_of(self, group: str = GROUP) -> list[TopicFacts]:
        """Return those of its topics."""
        return _all(self.shard.topic_facts(group, self.mono_ms, Turn()))

    def partitions(self, group: str = GROUP) -> list[PartitionFacts]:
        """Return those of its partitions."""
        return _all(self.shard.partition_facts(group, self.mono_ms, Turn()))

    def members_of(self, group: str = GROUP) -> list[MemberFacts]:
        """Return those of its members."""
        return _all(self.shard.member_facts(group, self.mono_ms, Turn()))


def test_a_group_its_topics_and_partitions_agree() -> None:
    """Three levels of the same numbers; the page shows them side by side."""
    context = Shown()
    context.register({"t": 3})
    context.report("t", {0: 10, 1: 20})
    context.advance(10_000)
    context.report("t", {0: 20, 1: 20})
    told_ms = context.wall_ms
    context.committed({"t-0": 15, "t-1": 20})
    leader, idle = context.consuming(2, "t-0", "t-1", "t-2")
    context.advance(4_999)  # Beside the one in which they joined.
    group = context.group()

    assert (group.state, group.members, group.empty_members) == ("Stable", 2, 1)
    assert (group.partitions, group.unknown, group.lag, group.lag_seconds) == (3, 1, 5, 10.0)
    assert (group.earlier_lag, group.earlier_ms) == (-1, -1)
    assert _all(context.shard.facts(context.mono_ms, Turn())) == [group]
    assert context.topics_of() == [TopicFacts("t", 3, 1, 3, 35, 1, 5, 10.0)]
    assert context.partitions() == [
        PartitionFacts("t", 0, leader, 15, 20, 5, 10.0, told_ms, told_ms),
        PartitionFacts("t", 1, leader, 20, 20, 0, 0.0, told_ms, told_ms),
        PartitionFacts("t", 2, leader, -1, -1, -1, -1.0, -1, -1),
    ]
    assert context.members_of() == [
        MemberFacts(
            leader,
            None,
            "spark0",
            "10.0.0.1",
            True,
            4_999,
            SESSION_MS,
            3,
            1,
            5,
            drained=False,
            waits="",
        ),
        MemberFacts(
            idle,
            None,
            "spark1",
            "10.0.0.1",
            False,
            4_999,
            SESSION_MS,
            0,
            0,
            -1,
            drained=False,
            waits="",
        ),
    ]
    age_ms = context.wall_ms - told_ms
    assert _all(context.topics.topic_facts(context.now, Turn())) == [
        TopicEndFacts("t", 3, 1, 40, age_ms)
    ]


def test_only_a_known_and_empty_assignment_makes_an_empty_member() -> None:
    """What another protocol type assigns is opaque; its members are not idle for that."""
    context = Shown()
    member = context.new_id(protocol_type="connect")
    token = context.join(member, protocol_type="connect")
    context.advance(0)
    context.sync(member, context.joined(token).generation_id, {member: b"opaque"})

    assert (context.group().state, context.group().empty_members) == ("Stable", 0)


def test_a_group_that_lags_by_an_unknown_time_is_not_at_zero() -> None:
    """The partition that is up to date says nothing about the other one."""
    context = Shown()
    context.register({"t": 2})
    context.report("t", {0: 10, 1: 10})
    context.committed({"t-0": 10, "t-1": 5})

    assert (context.group().lag, context.group().lag_seconds) == (5, -1.0)

    context.committed({"t-1": 10})

    assert (context.group().lag, context.group().lag_seconds) == (0, 0.0)


def test_nothing_is_told_of_a_group_that_is_not_there() -> None:
    """Whoever asks says so in words of their own."""
    context = Shown()
    shard = context.shard

    assert _all(shard.facts_of("none", 0, Turn())) == []
    assert _all(shard.topic_facts("none", 0, Turn())) == []
    assert _all(shard.partition_facts("none", 0, Turn())) == []
    assert _all(shard.member_facts("none", 0, Turn())) == []
    assert shard.running("none", 0) is None
    assert shard.curve("none", "t", 0, 0) == shard.group_curve("none", 0) == ()


# --- pages ------------------------------------------------------------------------------


@given(
    st.sets(st.tuples(st.sampled_from("tu"), st.integers(0, 3_000)), max_size=9),
    st.sets(st.tuples(st.sampled_from("uv"), st.integers(0, 3_000)), max_size=9),
    st.one_of(st.none(), st.tuples(st.sampled_from("tuv"), st.integers(-1, 3_000))),
    st.sampled_from([None, "t", "u", "v", "w"]),
)
def test_a_page_begins_after_the_last_partition_of_the_one_before(
    committed: set[tuple[str, int]],
    owned: set[tuple[str, int]],
    after: tuple[str, int] | None,
    topic: str | None,
) -> None:
    """What is committed and what is owned, each once, by topic and number."""
    context = Shown()
    context.committed({f"{name}-{partition}": 7 for name, partition in committed})
    context.consuming(1, *(f"{name}-{partition}" for name, partition in owned))
    found = _all(
        context.shard.partition_facts(GROUP, context.mono_ms, Turn(), topic=topic, after=after)
    )
    expected = sorted(committed | owned)
    topics = _all(context.shard.topic_facts(GROUP, context.mono_ms, Turn()))

    assert [(one.topic, one.partition) for one in found] == [
        one
        for one in expected
        if (topic is None or one[0] == topic) and (after is None or one > after)
    ]
    assert [(one.topic, one.partitions, one.assigned) for one in topics] == [
        (name, sum(one[0] == name for one in expected), sum(one[0] == name for one in owned))
        for name in sorted({name for name, _ in expected})
    ]


# --- the rebalance that goes on ---------------------------------------------------------


def test_the_running_rebalance_tells_who_has_not_come() -> None:
    """At night that is the question while it hangs; afterwards there is the history."""
    context = Shown()
    leader, other = context.stable_group(2)
    context.advance(1_000)

    assert context.shard.running(GROUP, context.mono_ms) is None

    context.join(leader, reason="new config")
    started_ms = context.wall_ms
    context.new_id(client_id="spark2")
    context.advance(400)

    running = context.shard.running(GROUP, context.mono_ms)
    assert running is not None
    pending = running.waiting_for[-1]
    assert running == RunningFacts(
        started_ms=started_ms,
        trigger="leader rejoined",
        member_id=leader,
        client_id="spark0",
        client_host="10.0.0.1",
        reason="leader rejoined: new config",
        old_generation=1,
        phase="join",
        join_ms=400,
        sync_ms=0,
        waiting_for=(other, pending),
    )
    assert pending.startswith("spark2-")
    assert [one.waits for one in context.members_of()] == ["join", ""]

    context.join(other)
    context.join(pending)
    context.advance(100)
    context.sync(other, 2)
    running = context.shard.running(GROUP, context.mono_ms)

    assert running is not None
    assert (running.phase, running.join_ms, running.sync_ms) == ("sync", 400, 100)
    assert running.waiting_for == (leader, pending)
    assert [one.waits for one in context.members_of()] == ["", "sync", ""]

    context.sync(leader, 2)

    assert context.shard.running(GROUP, context.mono_ms) is None


def test_only_some_of_many_that_are_waited_for_are_named() -> None:
    """Ten thousand members may be away."""
    context = Shown()
    members = context.stable_group(facts.WAITING_FOR_MAX + 5)
    context.join(members[0])
    running = context.shard.running(GROUP, context.mono_ms)

    assert running is not None
    assert running.waiting_for == tuple(members[1 : facts.WAITING_FOR_MAX + 1])


# --- curves -----------------------------------------------------------------------------


def test_each_partition_has_a_curve() -> None:
    """Which of them falls behind is seen at a glance; a gap is a minute that nobody knows."""
    context = Shown()
    context.register({"t": 2})
    context.committed({"t-0": 0})
    context.sample()
    for end in range(1, 4):
        context.report("t", {0: 10 * end, 1: 5})
        context.committed({"t-0": end, "t-1": 5})
        context.sample()
    minute = context.mono_ms // MINUTE_MS

    def curve(partition: int, later: int = 0) -> tuple[int, ...]:
        return context.shard.curve(GROUP, "t", partition, minute + later)

    assert (curve(0), curve(1), curve(2)) == ((9, 18, 27), (0, 0, 0), ())
    assert curve(0, later=1) == (9, 18, 27)
    assert curve(0, later=3) == (9, 18, 27, -1, -1)
    assert context.shard.group_curve(GROUP, minute) == (9, 18, 27)
    assert context.shard.curve(GROUP, "u", 0, minute) == ()

    context.advance(2 * MINUTE_MS)
    context.sample()

    assert curve(0, later=3) == (9, 18, 27, -1, -1, 27)


def test_what_is_not_known_costs_no_memory() -> None:
    """Most offsets may be of topics that nobody registers."""
    context = Shown()
    context.register({"t": 1})
    context.report("t", {0: 10})
    context.committed({"t-0": 0, "u-0": 0})
    context.sample()
    stored = context.shard.groups[GROUP].offsets

    assert stored["t"].curves is not None
    assert stored["u"].curves is None


def test_curves_and_ends_are_soft() -> None:
    """A replay of the log gives the same state, and no memory of the minutes."""
    context = Shown()
    context.register({"t": 1})
    context.committed({"t-0": 0})
    context.report("t", {0: 10})
    context.sample()
    context.check()
    context.crash()

    assert context.shard.curve(GROUP, "t", 0, context.mono_ms // MINUTE_MS) == ()
    assert (context.group().lag, context.group().lag_seconds) == (10, -1.0)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 70),
            st.dictionaries(st.sampled_from([0, 1, 127, 128, 4_000]), st.integers(0, 2**24)),
        ),
        max_size=12,
    ),
    st.integers(0, 2 * SAMPLES_KEPT),
)
def test_curves_are_the_last_minutes_of_a_table(
    steps: list[tuple[int, dict[int, int]]], later: int
) -> None:
    """Whatever partitions there are, and however many minutes were missed."""
    curves, table, minute = LagCurves(), dict[tuple[int, int], int](), 1_000
    for missed, lags in steps:
        minute += missed
        curves.put(minute, lags)
        table |= {(partition, minute): lag for partition, lag in lags.items()}
    for partition in (0, 1, 127, 128, 4_000):
        shown = curves.last(partition, minute + later)
        newest = max((m for p, m in table if p >> 7 == partition >> 7), default=0)
        end = max(minute + later - 1, newest)
        kept = range(end - SAMPLES_KEPT + 1, end + 1)
        known = [m for p, m in table if p == partition and m in kept]
        first = min(known, default=end + 1)

        assert shown == tuple(table.get((partition, m), -1) for m in range(first, end + 1))


def test_a_partition_of_which_nothing_is_noted_any_more_has_no_old_numbers() -> None:
    """What was there an hour ago is not what is there now."""
    curves = LagCurves()
    for minute in range(SAMPLES_KEPT):
        curves.put(minute, {0: 1, 1: 2})
    curves.put(SAMPLES_KEPT, {0: 1})

    assert curves.last(1, SAMPLES_KEPT) == (2,) * (SAMPLES_KEPT - 1) + (-1,)

    curves.put(3 * SAMPLES_KEPT, {0: 1})

    assert curves.last(1, 3 * SAMPLES_KEPT) == ()


# --- topics -----------------------------------------------------------------------------


def test_a_topic_that_is_forgotten_leaves_no_ends_to_one_of_the_same_name() -> None:
    """Its curve would tell of records that the new one never had."""
    context = Shown()
    for _ in range(2):
        context.register({"t": 1})
        context.report("t", {0: 10})
        context.committed({"t-0": 5})

        assert context.group().lag_seconds == -1.0

        context.sample()
        context.delete_topics("t")
        context.advance(MINUTE_MS)

        assert _all(context.topics.topic_facts(context.now, Turn())) == []


def test_an_end_is_as_old_as_its_last_report_though_it_did_not_change() -> None:
    """A topic that nobody writes to is not one that nobody looks at."""
    context = Shown()
    context.register({"quiet": 2, "untold": 1, "gone": 1})
    context.report("quiet", {0: 10, 1: 20})
    context.report("gone", {0: 1})
    context.delete_topics("gone")
    context.committed({"quiet-0": 10})
    context.advance(90 * MINUTE_MS)
    context.report("quiet", {0: 10})
    before_ms, context_ms = context.wall_ms - 90 * MINUTE_MS, context.wall_ms

    assert [one.end_reported_ms for one in context.partitions()] == [context_ms]
    (lag,) = context.lag(GROUP).topics
    assert [one.end_reported_ms for one in lag.partitions] == [context_ms]
    ends = context.described("quiet").topics[0].end_offsets
    assert [end.reported_ms for end in ends] == [context_ms, before_ms]
    assert _all(context.topics.topic_facts(context.now, Turn())) == [
        TopicEndFacts("quiet", 2, 0, 30, 90 * MINUTE_MS),
        TopicEndFacts("untold", 1, 1, -1, -1),
    ]

    context.report("quiet", {1: 20})

    assert _all(context.topics.topic_facts(context.now, Turn()))[0].age_ms == 0


# --- turns ------------------------------------------------------------------------------


def _walks(context: Shown) -> dict[str, Iterator[object | None]]:
    shard, now_ms = context.shard, context.mono_ms
    return {
        "facts": shard.facts(now_ms, Turn()),
        "topics": shard.topic_facts("large", now_ms, Turn()),
        "partitions": shard.partition_facts("large", now_ms, Turn()),
        "members": shard.member_facts(GROUP, now_ms, Turn()),
        "ends": context.topics.topic_facts(context.now, Turn()),
        "sample lags": shard.sample_lags(1, Turn()),
    }


@pytest.mark.parametrize(
    "walk", ["facts", "topics", "partitions", "members", "ends", "sample lags"]
)
def test_each_walk_goes_on_after_others_had_their_turn(
    walk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand small groups, and one of ten thousand partitions, hold nobody up."""
    monkeypatch.setattr(lag, "TURN_LOOKS", 100)
    monkeypatch.setattr(facts, "TURN_LOOKS", 100)
    context = Shown()
    context.register({"t": 1_000, **{f"u{n}": 1 for n in range(100)}})
    for step in range(2):
        context.report("t", dict.fromkeys(range(1000), 10 + step))
        context.advance(10)
    for number in range(100):
        context.committed({"u0-0": 1}, f"g{number:03}")
    context.committed({f"t-{n}": 1 for n in range(1_000)}, "large")
    context.consuming(1, *(f"t-{n}" for n in range(1_000)))
    looks: list[int] = []
    monkeypatch.setattr(Turn, "is_over_after", _counting(Turn.is_over_after, looks))
    pauses = sum(one is None for one in _walks(context)[walk])

    assert max(looks) <= 100
    assert pauses >= sum(looks) // 200
    assert sum(looks) >= 1_000


@pytest.mark.parametrize("walk", ["facts", "topics", "partitions", "ends", "sample lags"])
def test_an_end_that_goes_back_while_a_long_topic_is_looked_at_leaves_nothing_of_before(
    walk: str,
) -> None:
    """Once the ends of 1,500 partitions were noted every minute, 1,000 at a time: one that went
    back in between was noted as it had been, and its group was behind by a minute too much.
    """
    looked_at, left_alone = Shown(), Shown()
    for context in (looked_at, left_alone):
        context.register({"t": 1_500})
        context.committed({"t-1400": 3})
        context.committed({f"t-{n}": 3 for n in range(1_500)}, "large")
        for end in (100, 200):
            context.report("t", dict.fromkeys(range(1_500), end))
            context.advance(5 * MINUTE_MS)
    found = _walks(looked_at)[walk]
    next(found)
    for context in (looked_at, left_alone):
        context.report("t", {1_400: 5})
    _all(found)

    for waited_s, end in ((1, 6), (30, 36), (59, 95)):
        for context in (looked_at, left_alone):
            context.advance(waited_s * 1_000)
            context.report("t", {1_400: end})
        (one,) = looked_at.partitions()
        assert [one] == left_alone.partitions()
        assert one.lag_seconds <= 90


@pytest.mark.parametrize("walk", ["facts", "topics", "partitions", "members", "ends"])
def test_what_goes_while_it_is_looked_at_spoils_nothing(
    walk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are decided between two turns; they may delete anything, and add more."""
    monkeypatch.setattr(lag, "TURN_LOOKS", 10)
    monkeypatch.setattr(facts, "TURN_LOOKS", 10)
    context = Shown()
    context.register({"t": 200, "u": 100})
    context.report("t", dict.fromkeys(range(100), 10))
    context.committed({f"t-{n}": 1 for n in range(100)}, "large")
    (member,) = context.consuming(1, *(f"t-{n}" for n in range(100)))
    found = _walks(context)[walk]
    assert next(found) is None
    context.committed({f"t-{n}": 1 for n in range(100, 200)}, "large")
    context.committed({"u-0": 1}, "new")
    context.report("t", dict.fromkeys(range(200), 12))
    context.leave(member)
    context.delete_topics("t")
    outcome, error = context.shard.delete_group("large", context.now)
    context.take(outcome)

    assert error == 0
    assert len(_all(found)) <= 100
