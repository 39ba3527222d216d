"""Two sources under one topic name are told of; two that report one source are not."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from coordinator.group import end_sources
from coordinator.group.core import Caller
from coordinator.group.end_sources import FORGET_MS, LOOK_MS, NODE_PERIOD_MS, TOPIC_PERIOD_MS
from protocol.messages import (
    PartitionEnd,
    ReportEndOffsetsRequest,
    ReportEndOffsetsResponse,
    TopicEnds,
)
from tests.group.topics_context import TopicsContext

FOLDER = Caller("spark-one", "10.0.0.1", connection=1)
KAFKA = Caller("listener", "10.0.0.2", connection=2)
THIRD = Caller("spark-two", "10.0.0.3", connection=3)


class Reported(TopicsContext):
    """Topics whose ends several clients report."""

    def __init__(self, *topics: str) -> None:
        super().__init__()
        self.register(dict.fromkeys(topics or ("orders",), 4))

    def tells(self, caller: Caller, ends: dict[int, int], topic: str = "orders") -> None:
        """Report ends as *caller*."""
        partitions = tuple(PartitionEnd(*item) for item in ends.items())
        request = ReportEndOffsetsRequest((TopicEnds(topic, partitions),))
        assert self.ask(request, ReportEndOffsetsResponse, caller).error == 0

    def told(self) -> list[dict[str, Any]]:
        """Return what was logged of sources since the last call."""
        found = [one.fields for one in self.events if one.name == "topics.ends_disagree"]
        self.events.clear()
        return found

    def back_and_forth(self, times: int, topic: str = "orders") -> None:
        """Have two sources report, each once in ten seconds."""
        for n in range(times):
            self.tells(KAFKA, dict.fromkeys(range(4), 15500 + n), topic)
            self.advance(5_000)
            self.tells(FOLDER, dict.fromkeys(range(4), 2500), topic)
            self.advance(5_000)


def test_two_sources_of_one_name_are_named_in_one_line() -> None:
    """15,500 a partition in place of 2,500, and then no lag at all: nothing said why."""
    context = Reported()
    context.back_and_forth(4)

    assert context.told() == [
        {
            "topic": "orders",
            "partition": 0,
            "end": 2_500,
            "client_id": "spark-one",
            "client_host": "10.0.0.1",
            "other_end": 15_502,
            "other_client_id": "listener",
            "other_client_host": "10.0.0.2",
            "advice": end_sources.ADVICE,
        }
    ]


def test_the_line_comes_at_the_third_time_that_an_end_goes_back() -> None:
    """The first may be of a topic that was made anew, the second of a look before the first."""
    context = Reported()
    context.back_and_forth(2)
    context.tells(KAFKA, {0: 15_502})
    context.advance(LOOK_MS)

    assert context.told() == []

    context.tells(FOLDER, {0: 2_500})

    assert len(context.told()) == 1


def test_the_line_is_repeated_seldom_while_it_goes_on() -> None:
    """It is true the whole night, and no reason to fill the disk."""
    context = Reported()
    context.back_and_forth(TOPIC_PERIOD_MS // 10_000 * 3 + 5)

    assert len(context.told()) == 4


def test_topics_that_collide_at_once_are_told_one_after_the_other() -> None:
    """A thousand of them are no burst of a thousand lines, and none is left out for ever."""
    topics = [f"t{n}" for n in range(5)]
    context = Reported(*topics)
    lines = []
    for n in range(12):
        for caller, end in ((KAFKA, 15_500 + n), (FOLDER, 2_500)):
            for topic in topics:
                context.tells(caller, {0: end}, topic)
            lines.append(context.told())
            context.advance(LOOK_MS)

    assert max(map(len, lines)) == 1
    assert LOOK_MS >= NODE_PERIOD_MS
    assert sorted(one["topic"] for some in lines for one in some) == topics


def test_a_client_whose_own_ends_go_back_is_not_told_of() -> None:
    """A topic that is emptied again and again is a topic of one source."""
    context = Reported()
    for n in range(9):
        context.tells(FOLDER, {0: 100 + n if n % 2 else n})
        context.advance(LOOK_MS)

    assert context.told() == []


def test_a_client_that_comes_back_is_not_told_of_beside_itself() -> None:
    """Its ends go back, and it connects anew in between."""
    context = Reported()
    again = FOLDER._replace(connection=9)
    for caller in (FOLDER, again, again):
        for end in (100, 10):
            context.tells(caller, {0: end})
            context.advance(LOOK_MS)

    assert context.told() == []


def test_each_partition_has_ends_of_its_own() -> None:
    """Readers of one group report a partition each; one that goes back is compared with itself."""
    context = Reported()
    steps = (
        (FOLDER, {0: 100, 1: 50}),
        (FOLDER, {0: 10}),
        (KAFKA, {1: 60}),  # It raises another partition.
        (FOLDER, {0: 100}),
        (FOLDER, {0: 10}),
        (KAFKA, {0: 100}),
        (FOLDER, {0: 10}),
        (KAFKA, {0: 100}),
        (FOLDER, {1: 20}),  # It lowers another one.
    )
    for caller, ends in steps:
        context.tells(caller, ends)
        context.advance(LOOK_MS)

    assert context.told() == []


def test_a_client_that_caught_up_was_late() -> None:
    """It tells later of the same source, as a query with long batches does."""
    context = Reported()
    for n in range(9):
        context.tells(KAFKA, {0: 100 * n + 100})
        context.advance(LOOK_MS)
        context.tells(FOLDER, {0: 100 * n})  # Less than what is known, by one batch.
        context.advance(LOOK_MS)

    assert context.told() == []


def test_a_batch_that_began_before_the_report_of_the_last_one_is_late_too() -> None:
    """A listener commits in the background: its next batch has looked at the source already."""
    context = Reported()
    start_ms = context.now.mono_ms
    for minute in range(1, 9):
        for at_ms, caller, end in (
            (60_000 * minute - 1_000, KAFKA, 60_000 * minute - 1_000),
            (60_000 * minute, FOLDER, 60_000 * minute - 61_500),
        ):
            context.advance(start_ms + at_ms - context.now.mono_ms)
            context.tells(caller, {0: max(end, 0)})

    assert context.told() == []


def test_a_client_that_is_late_in_between_repeats_no_line() -> None:
    """Both of its sources have a place in the same ten minutes."""
    context = Reported()
    lines = []
    for n in range(30):
        context.tells(KAFKA, {0: 15_500 + 10 * n})
        context.advance(LOOK_MS)
        context.tells(FOLDER, {0: 15_495 + 10 * n if n % 8 == 0 else 2_500})
        context.advance(LOOK_MS)
        lines += context.told()

    assert len(lines) == 1


def test_a_third_client_hides_nothing() -> None:
    """Several readers share the topic of one of the sources."""
    context = Reported()
    for n in range(4):
        for caller, end in ((KAFKA, 9_000 + n), (FOLDER, 50), (KAFKA, 9_001 + n), (THIRD, 60)):
            context.tells(caller, {0: end})
            context.advance(LOOK_MS)

    (line,) = context.told()
    assert (line["client_id"], line["other_client_id"]) == ("spark-one", "listener")


def test_a_client_that_connects_anew_for_each_report_is_the_same() -> None:
    """A command in a crontab does."""
    context = Reported()
    for n in range(4):
        context.tells(KAFKA._replace(connection=10 + n), {0: 9_000})
        context.advance(LOOK_MS)
        context.tells(FOLDER._replace(connection=20 + n), {0: 50})
        context.advance(LOOK_MS)

    assert len(context.told()) == 1


def test_two_connections_of_one_name_and_host_are_two() -> None:
    """Programs seldom choose a client id."""
    context = Reported()
    for n in range(4):
        context.tells(FOLDER._replace(connection=7), {0: 9_000 + n})
        context.advance(LOOK_MS)
        context.tells(FOLDER, {0: 50})
        context.advance(LOOK_MS)

    assert len(context.told()) == 1


def test_what_went_back_long_ago_counts_for_nothing() -> None:
    """The client that was watched may be gone: another one takes its place."""
    context = Reported()
    context.back_and_forth(2)
    context.tells(KAFKA, {0: 15_502})
    context.advance(FORGET_MS)
    context.tells(FOLDER, {0: 2_500})

    assert context.told() == []

    context.advance(FORGET_MS)
    for n in range(4):
        context.tells(KAFKA, {1: 9_000 + n})
        context.tells(THIRD, {1: 60})
        context.advance(LOOK_MS)

    assert len(context.told()) == 1


def test_a_topic_that_is_deleted_has_no_past() -> None:
    """The next one of its name is another one."""
    context = Reported()
    context.back_and_forth(2)
    context.tells(KAFKA, {0: 15_502})
    context.delete_topics("orders")
    context.advance(0)
    assert context.register({"orders": 4}) == [0]
    context.back_and_forth(1)

    assert context.told() == []


def test_few_topics_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may lower the ends of all topics that it may write."""
    monkeypatch.setattr(end_sources, "WATCHED_MAX", 3)
    topics = [f"t{n}" for n in range(9)]
    context = Reported(*topics)
    for topic in topics:
        context.back_and_forth(1, topic)

    assert list(context.topics._topics._sources._watched) == ["t6", "t7", "t8"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([FOLDER, KAFKA, THIRD]),
            st.integers(0, 3_000),  # How far the source grows, and time passes, before the report.
            st.integers(0, LOOK_MS - 1),  # How old the look is that is reported.
        ),
        max_size=40,
    )
)
def test_looks_at_one_source_disagree_with_nobody(
    reports: list[tuple[Caller, int, int]],
) -> None:
    """Two groups that read one topic report it side by side, each a bit late."""
    context = Reported()
    start_ms = context.now.mono_ms
    for caller, wait_ms, age_ms in reports:
        context.advance(wait_ms)
        context.tells(caller, {0: max(context.now.mono_ms - start_ms - age_ms, 0)})

    assert context.told() == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from([FOLDER, KAFKA, THIRD]),
            st.sampled_from([0, LOOK_MS // 2, LOOK_MS, 60_000]),
            st.sampled_from([0, LOOK_MS, 60_000]),  # How long a batch takes, at most.
        ),
        max_size=40,
    )
)
def test_batches_that_report_the_end_of_their_start_disagree_with_nobody(
    reports: list[tuple[Caller, int, int]],
) -> None:
    """A listener tells of a batch in the background, a moment after the next one has begun."""
    context = Reported()
    start_ms = context.now.mono_ms
    last_ms = dict.fromkeys((FOLDER, KAFKA, THIRD), start_ms)
    for caller, wait_ms, age_ms in reports:
        context.advance(wait_ms)
        now_ms = context.now.mono_ms
        looked_ms = max(now_ms - age_ms, last_ms[caller] - LOOK_MS + 1)
        last_ms[caller] = now_ms
        context.tells(caller, {0: max(looked_ms - start_ms, 0)})

    assert context.told() == []


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 60_000)), min_size=1, max_size=30),
    st.integers(0, 1_000),
    st.integers(2_000, 9_000),
)
def test_two_sources_are_told_of_as_soon_as_the_low_one_has_gone_back_three_times(
    reports: list[tuple[bool, int]], low: int, high: int
) -> None:
    """In whatever order and however often; each time later than a look takes."""
    context = Reported()
    fell_ms = heard_ms = None
    has_risen = is_in_doubt = expected = False
    end = None
    for is_low, wait_ms in reports:
        context.advance(wait_ms)
        now_ms = context.now.mono_ms
        before, end = end, low if is_low else high
        context.tells(FOLDER if is_low else KAFKA, {0: end})
        if before is None or before == end:
            continue
        if not is_low:
            has_risen = fell_ms is not None
        elif fell_ms is None or heard_ms is None or now_ms - heard_ms >= FORGET_MS:
            fell_ms, heard_ms, has_risen, is_in_doubt = now_ms, now_ms, False, False
        else:
            heard_ms = now_ms
            if has_risen and now_ms - fell_ms >= LOOK_MS:
                fell_ms, is_in_doubt, expected = now_ms, True, expected or is_in_doubt

    assert bool(context.told()) == expected
