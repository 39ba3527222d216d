"""What the coordinator is told of the log: topics and ends, seldom, and without harm."""

import logging
from collections.abc import Iterable, Mapping

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock

from client.exceptions import ClientClosed, CoordinatorUnavailable, FatalError
from client.offsets import OffsetAndMetadata
from client.spark.source import end_reports
from client.spark.source.end_reports import PERIOD_S, RETRY_S, EndReporter
from protocol.errors import ErrorCode
from protocol.partition import TopicPartition
from tests.spark.helpers import tp

FLIGHTS = "flights"


class Registry:
    """The calls for topics, over a registry in memory."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.ends: dict[TopicPartition, int] = {}
        self.registered: list[dict[str, int]] = []
        self.reports: list[dict[TopicPartition, int]] = []
        self.error: Exception | None = None

    async def register_topics(self, topics: Mapping[str, int], *, observed: bool) -> None:
        """Take what grows, as the coordinator does from consumers."""
        await self._answer()
        assert observed
        self.registered.append(dict(topics))
        for topic, count in topics.items():
            self.counts[topic] = max(count, self.counts.get(topic, 0))

    async def report_end_offsets(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take those of registered topics."""
        await self._answer()
        self.reports.append(dict(ends))
        known = {one: end for one, end in ends.items() if self._has(one)}
        self.ends |= known
        if len(known) < len(ends):
            raise FatalError("no such topic", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _has(self, one: TopicPartition) -> bool:
        return one.partition < self.counts.get(one.topic, 0)

    async def _answer(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error


def reporter_of(registry: Registry) -> EndReporter:
    """Return a reporter that asks this registry."""
    return EndReporter(registry)  # type: ignore[arg-type]  # has what is used


def running(nursery: trio.Nursery, registry: Registry) -> EndReporter:
    """Start a reporter."""
    reporter = reporter_of(registry)
    nursery.start_soon(reporter.run)
    return reporter


async def test_topics_and_ends_are_there_within_a_second(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Who describes the group right after the driver's start is to see numbers."""
    registry = Registry()
    reporter = running(nursery, registry)

    reporter.note_topics({FLIGHTS: [0, 1]})
    reporter.note_ends({tp(0): 7, tp(1): 0})
    await trio.sleep(PERIOD_S + 0.1)

    assert registry.counts == {FLIGHTS: 2}
    assert registry.ends == {tp(0): 7, tp(1): 0}


async def test_only_changes_are_reported_and_once_a_second(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """A driver with short batches would make a hundred requests a second."""
    registry = Registry()
    reporter = running(nursery, registry)
    reporter.note_topics({FLIGHTS: [0, 1]})

    for end in range(100):
        reporter.note_ends({tp(0): end, tp(1): 5})
        await trio.sleep(0.1)
    await trio.sleep(10)

    assert len(registry.reports) <= 12
    assert registry.ends == {tp(0): 99, tp(1): 5}
    assert [report for report in registry.reports if tp(1) in report] == [registry.reports[0]]


async def test_an_end_is_reported_before_a_commit_is_beyond_the_last_report(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """A driver with short batches is otherwise ahead of its own reports: its lag is not known."""
    registry = Registry()
    reporter = running(nursery, registry)
    reporter.note_topics({FLIGHTS: [0, 1]})
    reporter.note_ends({tp(0): 5, tp(1): 5})
    await trio.sleep(PERIOD_S + 0.1)

    reporter.note_ends({tp(0): 9, tp(1): 5})
    reporter.note_commit({tp(0): OffsetAndMetadata(5), tp(1): OffsetAndMetadata(5)})
    await trio.sleep(0.001)

    assert registry.ends[tp(0)] == 5

    reporter.note_commit({tp(0): OffsetAndMetadata(9)})
    await trio.sleep(0.001)

    assert registry.ends[tp(0)] == 9
    assert len(registry.reports) == 2


async def test_a_commit_hastens_no_report_that_waits_after_a_failure(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """A coordinator in trouble is asked no more often because a driver commits."""
    registry = Registry()
    reporter = running(nursery, registry)
    reporter.note_topics({FLIGHTS: [0]})
    reporter.note_ends({tp(0): 5})
    await trio.sleep(PERIOD_S + 0.1)
    registry.error = CoordinatorUnavailable("away")
    reporter.note_ends({tp(0): 9})
    reporter.note_commit({tp(0): OffsetAndMetadata(9)})
    await trio.sleep(0.001)
    registry.error = None

    reporter.note_commit({tp(0): OffsetAndMetadata(9)})
    await trio.sleep(RETRY_S / 2)

    assert registry.ends[tp(0)] == 5

    await trio.sleep(RETRY_S)

    assert registry.ends[tp(0)] == 9


async def test_an_end_that_stays_is_told_again_while_somebody_looks(
    autojump_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quiet topic must not look like one that nobody watches, nor the other way round."""
    monkeypatch.setattr(end_reports, "REPEATS_MAX", 2)
    registry = Registry()
    reporter = running(nursery, registry)
    reporter.note_topics({FLIGHTS: [0, 1, 2]})

    for second in range(150):
        reporter.note_ends({tp(0): second, tp(1): 5, tp(2): 5})
        await trio.sleep(1)
    quiet = [report.keys() - {tp(0)} for report in registry.reports]
    count = len(registry.reports)

    assert [sum(one in report for report in quiet) for one in (tp(1), tp(2))] == [3, 3]

    await trio.sleep(300)

    assert len(registry.reports) <= count + 1

    reporter.note_ends({tp(1): 5, tp(2): 5})
    await trio.sleep(PERIOD_S + 0.1)

    assert registry.reports[-1].keys() == {tp(1), tp(2)}


async def test_a_topic_that_grew_is_registered_at_once(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Else the group would share it out a second time; gaps in the numbers count as partitions."""
    registry = Registry()
    reporter = running(nursery, registry)
    reporter.note_topics({FLIGHTS: [0, 1]})
    await trio.sleep(5.5)

    reporter.note_topics({FLIGHTS: [0, 1, 4]})
    await trio.testing.wait_all_tasks_blocked()

    assert registry.counts == {FLIGHTS: 5}


async def test_a_failure_is_said_once_and_so_is_its_end(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of an hour is one line; nothing else of the driver depends on it."""
    caplog.set_level(logging.INFO)
    registry = Registry()
    reporter = running(nursery, registry)
    registry.error = CoordinatorUnavailable("nobody listens there")
    reporter.note_topics({FLIGHTS: [0]})
    for end in range(60):
        reporter.note_ends({tp(0): end})
        await trio.sleep(1)
    registry.error = None
    await trio.sleep(2 * RETRY_S)

    assert [record.message for record in caplog.records] == [
        "ends are not reported, so no lag is shown; trying again: nobody listens there",
        "ends are reported again",
    ]
    assert registry.ends == {tp(0): 59}


async def test_a_bug_here_ends_nothing_else(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """The task shares a nursery with the membership."""
    registry = Registry()
    registry.error = ZeroDivisionError("a bug")
    reporter = running(nursery, registry)

    reporter.note_topics({FLIGHTS: [0]})
    await trio.sleep(100)

    assert caplog.text.count("a bug") == 1


async def test_a_closed_client_ends_it_without_a_word(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """That is how each query ends."""
    registry = Registry()
    registry.error = ClientClosed("closed")
    reporter = reporter_of(registry)
    reporter.note_topics({FLIGHTS: [0]})

    await reporter.run()
    await reporter.finish()

    assert caplog.text == ""


async def test_a_coordinator_that_forgot_is_told_again(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder was lost, or somebody deleted the topic, which the log still has.

    At once, and nobody need be told: what there is to say, the reader says of its group.
    """
    registry = Registry()
    reporter = running(nursery, registry)
    reporter.note_topics({FLIGHTS: [0, 1]})
    reporter.note_ends({tp(0): 7, tp(1): 8})
    await trio.sleep(3)

    registry.counts, registry.ends = {}, {}
    reporter.note_ends({tp(0): 9, tp(1): 8})
    await trio.sleep(2)

    assert registry.counts == {FLIGHTS: 2}
    assert registry.ends == {tp(0): 9, tp(1): 8}
    assert caplog.text == ""


async def test_a_topic_that_nobody_takes_is_said_and_tried_again_later(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """A deletion that is going on would else be fought."""
    registry = Registry()
    reporter = running(nursery, registry)
    reporter.note_topics({FLIGHTS: [0]})
    reporter.note_ends({tp(0): 7})
    await trio.sleep(3)
    registry.error = FatalError("gone", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    reporter.note_ends({tp(0): 9})
    await trio.sleep(2 * RETRY_S)

    assert caplog.text.count("no lag is shown; trying again: gone") == 1


async def test_what_is_left_is_told_at_the_end(autojump_clock: MockClock) -> None:
    """A query with AvailableNow may be over within the second."""
    registry = Registry()
    reporter = reporter_of(registry)
    reporter.note_topics({FLIGHTS: [0]})
    reporter.note_ends({tp(0): 7})

    await reporter.finish()

    assert registry.ends == {tp(0): 7}


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 9))), min_size=1, max_size=5
    ),
)
def test_whatever_was_seen_is_registered_once_and_never_with_less(
    looks: list[dict[str, set[int]]],
) -> None:
    """Lag is known of all that a reader saw, also after a look that showed less."""
    registry = Registry()

    async def main() -> None:
        reporter = reporter_of(registry)
        for look in looks:
            reporter.note_topics({topic: sorted(listed) for topic, listed in look.items()})
            reporter.note_ends({TopicPartition(t, p): 1 for t, ps in look.items() for p in ps})
            await reporter.finish()
            for topic, listed in look.items():
                assert registry.counts.get(topic, 0) > max(listed, default=-1)

    trio.run(main)

    _expect_growing(registry.registered)


def _expect_growing(told: Iterable[Mapping[str, int]]) -> None:
    """Check that nothing is told twice, nor less than before."""
    counts: dict[str, int] = {}
    for topics in told:
        assert topics
        assert all(count > counts.get(topic, 0) for topic, count in topics.items())
        counts |= topics
