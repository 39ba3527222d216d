"""The lag of all groups: sums, samples a minute apart, and turns that end soon."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import pytest
from hypothesis import given, strategies as st

from coordinator.group import lag
from coordinator.group.core import GroupConfig
from coordinator.group.lag import Turn
from coordinator.group.lag_samples import (
    CHANGE_MINUTES,
    MINUTE_MS,
    SAMPLES_KEPT,
    UNKNOWN,
    LagSamples,
)
from protocol.messages import GroupSummary, SummarizeGroupsRequest
from tests.group.context import GROUP, assignment, returned, subscription
from tests.group.topics_context import TopicsContext

T = TypeVar("T")


class Lagging(TopicsContext):
    """Groups whose lag is asked for."""

    def __init__(self) -> None:
        super().__init__(GroupConfig(group_initial_rebalance_delay_ms=0))

    def committed(self, offsets: Mapping[str, int], group: str = GROUP) -> None:
        """Commit as a group without members."""
        offered = [(name, offset, None, None) for name, offset in offsets.items()]
        assert self.commit_raw("", -1, offered, group).error == 0

    def summaries(
        self,
        after: str = "",
        *,
        pattern: str | None = None,
        states: Iterable[str] = (),
        samples: int = 0,
    ) -> list[GroupSummary]:
        """Return all groups after one."""
        request = SummarizeGroupsRequest(pattern, tuple(states), b"", 100, samples)
        found = self.shard.summaries(after, request, _all, self.now.mono_ms, Turn())
        return [one for one in found if one is not None]

    def lags(self, **options: Any) -> dict[str, int]:
        """Return the lag of each group."""
        return {one.group_id: one.lag for one in self.summaries(**options)}

    def sample(self) -> None:
        """Let the next minute begin, and note the lag."""
        minute = self.now.mono_ms // MINUTE_MS + 1
        self.advance(minute * MINUTE_MS - self.now.mono_ms)
        assert list(self.shard.sample_lags(minute, Turn())) == []


def test_the_lag_of_a_group_is_that_of_the_partitions_of_which_it_is_known() -> None:
    """Beside how many they are not: unknown is never 0."""
    context = Lagging()
    context.register({"t": 4})
    context.report("t", {0: 10, 1: 3, 3: 7})
    context.committed({"t-0": 4, "t-1": 3, "t-2": 1, "u-0": 9})

    (one,) = context.summaries()

    assert (one.partitions, one.unknown, one.lag) == (4, 2, 6)


def test_a_commit_beyond_the_reported_end_leaves_the_lag_unknown() -> None:
    """The end is old, or the commit is wrong: 0 would say that nothing is left to do."""
    context = Lagging()
    context.register({"t": 2})
    context.report("t", {0: 10, 1: 10})
    context.committed({"t-0": 4, "t-1": 11})

    (one,) = context.summaries()
    ((_, beyond),) = [topic.partitions for topic in context.lag(GROUP).topics]

    assert (one.partitions, one.unknown, one.lag) == (2, 1, 6)
    assert (beyond.committed_offset, beyond.end_offset, beyond.lag) == (11, 10, UNKNOWN)

    context.report("t", {1: 11})

    assert context.lags() == {GROUP: 6}
    assert [one.unknown for one in context.summaries()] == [0]


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_lag_that_is_known_leads_from_the_commit_to_the_end(committed: int, end: int) -> None:
    """A number that doesn't is not a lag: by partition, in sums, of members and in time."""
    context = Lagging()
    context.register({"t": 1})
    context.report("t", {0: end})
    context.committed({"t-0": committed})
    context.advance(10 * MINUTE_MS)
    ((partition,),) = [topic.partitions for topic in context.lag(GROUP).topics]
    columns = lag.lag_columns(
        context.topics.registry,
        "t",
        context.shard.groups[GROUP].offsets["t"].offsets.values(),
        context.now.mono_ms,
    )

    assert (partition.lag == UNKNOWN) == (committed > end)
    assert partition.lag == UNKNOWN or committed + partition.lag == end
    assert context.lags() == {GROUP: partition.lag}
    assert columns.lags == [partition.lag]
    assert [one == UNKNOWN for one in columns.behind_ms] == [partition.lag == UNKNOWN]


def test_a_group_of_which_nothing_is_known_has_no_lag() -> None:
    """Neither one that nobody reports ends for, nor one that has committed nothing."""
    context = Lagging()
    context.register({"t": 1})
    context.committed({"t-0": 4})
    context.join(group="new")

    assert context.lags() == {GROUP: UNKNOWN, "new": UNKNOWN}


def test_what_is_owned_and_not_committed_counts_as_unknown() -> None:
    """Nobody knows where its reader began."""
    context = Lagging()
    context.register({"t": 3})
    context.report("t", {0: 10, 1: 10, 2: 10})
    context.committed({"t-0": 4})
    member = context.new_id()
    context.join(member, protocols={"range": subscription("t")})
    context.advance(0)
    context.sync(member, context.generation, {member: assignment("t-0", "t-1", "t-2")})

    (one,) = context.summaries()

    assert (one.members, one.state, one.protocol_type) == (1, "Stable", "consumer")
    assert (one.partitions, one.unknown, one.lag) == (3, 2, 6)


def test_a_deleted_topic_has_no_ends() -> None:
    """It is still there until its offsets are gone."""
    context = Lagging()
    context.register({"t": 1})
    context.report("t", {0: 10})
    context.committed({"t-0": 4})

    assert context.lags() == {GROUP: 6}

    context.delete_topics("t")

    assert context.lags() == {GROUP: UNKNOWN}


def test_a_lag_that_no_number_of_the_protocol_holds_is_the_largest_of_them() -> None:
    """Ends come from clients, which may report anything."""
    context = Lagging()
    context.register({"t": 2})
    context.report("t", {0: 2**63 - 1, 1: 2**63 - 1})
    context.committed({"t-0": 0, "t-1": 0})
    context.sample()

    (one,) = context.summaries(samples=1)

    assert (one.lag, one.samples) == (2**63 - 1, (2**63 - 1,))

    context.committed({"u-0": 0})
    context.sample()

    (one,) = context.summaries(samples=1)

    assert (one.unknown, one.lag, one.samples) == (1, 2**63 - 1, (2**63 - 2,))


@given(
    st.dictionaries(
        st.sampled_from(["t", "u"]), st.dictionaries(st.integers(0, 3), st.integers(0, 9))
    ),
    st.dictionaries(
        st.sampled_from(["t", "u"]), st.dictionaries(st.integers(0, 3), st.integers(0, 9))
    ),
)
def test_the_sum_is_that_of_the_partitions(
    ends: dict[str, dict[int, int]], offsets: dict[str, dict[int, int]]
) -> None:
    """Two ways to the same number; the one by partition is older."""
    context = Lagging()
    context.register({"t": 4, "u": 4})
    for topic, reported in ends.items():
        context.report(topic, reported)
    for topic, committed in offsets.items():
        context.committed({f"{topic}-{p}": offset for p, offset in committed.items()})
    lags = [p.lag for t in context.lag(GROUP).topics for p in t.partitions]
    known = [one for one in lags if one != UNKNOWN]

    assert [(len(lags), len(lags) - len(known), sum(known) if known else UNKNOWN)] * bool(lags) == [
        (one.partitions, one.unknown, one.lag) for one in context.summaries()
    ]


def test_groups_come_in_their_order_from_one_on_and_filtered() -> None:
    """A page goes on where the one before has ended."""
    context = Lagging()
    for group in ("b", "a", "c-1", "c-2"):
        context.committed({"t-0": 1}, group)
    context.join(group="c-2", protocols={"range": subscription("t")})
    context.advance(0)

    assert list(context.lags()) == ["a", "b", "c-1", "c-2"]
    assert list(context.lags(after="b")) == ["c-1", "c-2"]
    assert list(context.lags(after="c")) == ["c-1", "c-2"]
    assert list(context.lags(pattern="c-.*")) == ["c-1", "c-2"]
    assert list(context.lags(pattern="c")) == []
    assert list(context.lags(states=["EMPTY"])) == ["a", "b", "c-1", "c-2"]
    assert list(context.lags(states=["stable"])) == []


# --- samples ----------------------------------------------------------------------------


def test_the_lag_of_some_minutes_ago_is_remembered() -> None:
    """Is it getting better? One number says nothing."""
    context = Lagging()
    context.register({"t": 1})
    context.committed({"t-0": 0})
    for end in range(8):
        context.report("t", {0: 10 * end})
        context.sample()
    context.advance(30_000)

    (one,) = context.summaries(samples=3)

    assert one.samples == (50, 60, 70)
    assert (one.lag, one.earlier_lag, one.earlier_ms) == (
        70,
        20,
        CHANGE_MINUTES * MINUTE_MS + 30_000,
    )


def test_a_lag_that_was_known_in_part_is_no_measure_of_change() -> None:
    """Partitions that become known, or unknown, would look like messages that came or were done."""
    context = Lagging()
    context.register({"t": 2})
    context.committed({"t-0": 0, "t-1": 0})
    context.report("t", {0: 7})
    context.sample()
    context.report("t", {1: 1000})
    context.sample()
    context.report("t", {0: 8})

    (one,) = context.summaries(samples=2)

    assert one.samples == (7, 1007)
    assert (one.lag, one.earlier_lag) == (1008, 1007)


def test_a_minute_in_which_the_lag_was_not_known_is_a_gap() -> None:
    """It is not 0, and neither what it was before."""
    context = Lagging()
    context.register({"t": 1})
    context.committed({"t-0": 0})
    context.sample()
    context.report("t", {0: 5})
    context.sample()
    context.delete_topics("t")
    context.sample()
    context.register({"t": 1})
    context.report("t", {0: 6})
    context.committed({"t-0": 0})
    context.sample()

    (one,) = context.summaries(samples=60)

    assert one.samples == (5, UNKNOWN, 6)


def test_a_group_of_which_no_lag_is_known_costs_no_memory() -> None:
    """A hundred thousand of them may be there."""
    context = Lagging()
    context.register({"t": 1})
    context.committed({"t-0": 0})
    context.sample()

    assert context.shard.groups[GROUP].lag_samples is None

    context.report("t", {0: 5})
    context.sample()
    context.delete_topics("t")
    context.committed({"u-0": 0})
    for _ in range(SAMPLES_KEPT):
        assert context.shard.groups[GROUP].lag_samples is not None
        context.sample()

    assert context.shard.groups[GROUP].lag_samples is None


def test_samples_are_soft() -> None:
    """After a crash, and of a group that is made anew, nothing is known of before."""
    context = Lagging()
    context.register({"t": 1})
    context.report("t", {0: 5})
    context.committed({"t-0": 0})
    context.sample()
    context.crash()

    (one,) = context.summaries(samples=60)

    assert (one.lag, one.earlier_lag, one.earlier_ms, one.samples) == (5, UNKNOWN, UNKNOWN, ())


@given(
    st.lists(
        st.tuples(
            st.integers(1, 70),
            st.one_of(st.integers(0, 9), st.just(2**63 - 2)),
            st.booleans(),
        ),
        max_size=12,
    ),
    st.integers(0, 2 * SAMPLES_KEPT),
    st.integers(0, 70),
    st.integers(0, MINUTE_MS - 1),
)
def test_samples_are_the_last_minutes_of_a_table(
    steps: list[tuple[int, int, bool]], later: int, count: int, ms: int
) -> None:
    """However many minutes were missed; change is told by lags that were known as a whole."""
    samples, table, minute = LagSamples(), dict[int, int](), 1_000
    wholes: dict[int, int] = {}
    for missed, value, is_whole in steps:
        minute += missed
        samples.put(minute, value, is_whole=is_whole)
        table[minute] = value
        if is_whole:
            wholes[minute] = value
    if not table:
        return
    now = minute + later

    assert len(samples) <= SAMPLES_KEPT
    shown = samples.last(now, count)
    newest = max(minute, now - 1)
    assert shown == tuple(table.get(m, UNKNOWN) for m in range(newest - len(shown) + 1, newest + 1))
    assert len(shown) <= count

    known = [m for m in wholes if max(now - CHANGE_MINUTES, minute - SAMPLES_KEPT + 1) <= m]
    expected = (UNKNOWN, UNKNOWN)
    if known:
        expected = (wholes[min(known)], (now - min(known)) * MINUTE_MS + ms)
    assert samples.earlier(now * MINUTE_MS + ms) == expected


# --- turns ------------------------------------------------------------------------------


def _all(_name: str) -> bool:
    return True


def _turns(found: Iterable[T | None]) -> int:
    return sum(one is None for one in found)


@pytest.mark.parametrize("walk", ["summaries", "samples"])
def test_a_turn_ends_soon_whatever_the_groups_are_like(
    walk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand small groups, and one of ten thousand partitions, hold nobody up."""
    monkeypatch.setattr(lag, "TURN_LOOKS", 100)
    monkeypatch.setattr(lag, "TURN_NAMES", 30)
    context = Lagging()
    context.register({"t": 1_000})
    for number in range(100):
        context.committed({"t-0": 1}, f"g{number:03}")
    context.committed({f"t-{n}": 1 for n in range(1_000)}, "large")
    looks: list[int] = []
    monkeypatch.setattr(Turn, "is_over_after", _counting(Turn.is_over_after, looks))
    request = SummarizeGroupsRequest(None, (), b"", 1, 0)
    turns = (
        _turns(context.shard.summaries("", request, _all, 0, Turn()))
        if walk == "summaries"
        else _turns(context.shard.sample_lags(1, Turn()))
    )

    assert max(looks) <= 100
    assert turns >= sum(looks) // 200
    assert sum(looks) == 101 * lag.GROUP_LOOKS + 1_100


@given(st.lists(st.integers(0, 300), max_size=200), st.lists(st.integers(0, 3), max_size=200))
def test_numbers_are_put_in_order_a_few_at_a_time(some: list[int], others: list[int]) -> None:
    """100,000 partitions took five milliseconds in one step; who owns some committed most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lag, "TURN_NUMBERS", 10)
        pauses = sum(1 for _ in lag.numbers_in_order(some, others))
        found = returned(lag.numbers_in_order(some, others))

    assert found == sorted({*some, *others})
    assert pauses >= (len(some) + len(others) - 1) // 10


def _counting(count: Callable[[Turn, int], bool], looks: list[int]) -> Callable[[Turn, int], bool]:
    def counted(turn: Turn, number: int) -> bool:
        looks.append(number)
        return count(turn, number)

    return counted


def test_a_group_that_goes_while_it_is_looked_at_spoils_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests are decided between two turns; one may delete the group, or its offsets."""
    monkeypatch.setattr(lag, "TURN_LOOKS", 10)
    context = Lagging()
    context.register({"t": 100})
    context.committed({f"t-{n}": 1 for n in range(100)}, "a")
    context.committed({"t-0": 1}, "b")
    request = SummarizeGroupsRequest(None, (), b"", 1, 0)
    found = context.shard.summaries("", request, _all, 0, Turn())
    samples = context.shard.sample_lags(1, Turn())
    assert next(found) is next(samples) is None
    for group in ("a", "b"):
        outcome, error = context.shard.delete_group(group, context.now)
        assert error == 0
        context.take(outcome)

    assert [one.group_id for one in found if one is not None] == ["a"]
    assert {*samples} == {None}
