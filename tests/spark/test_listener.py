"""The listener's bookkeeping, its thread, and what it takes from an event."""

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from client.exceptions import CommitRefused, CoordinatorUnavailable
from client.spark import listener as module
from client.spark.listener import BackgroundCommitter, GroupOffsetListener, OffsetBoard
from protocol.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
DAY_S = 24 * 3600.0


def test_only_news_is_due() -> None:
    """An event may repeat what was committed."""
    board = OffsetBoard()
    board.want({A: 5, B: 7})
    assert board.due(0) == {A: 5, B: 7}

    board.stored({A: 5}, 0)
    board.want({A: 5, B: 8})

    assert board.due(1) == {B: 8}


def test_a_quiet_partition_is_committed_again_each_day() -> None:
    """Its offset would expire, and the lag with it."""
    board = OffsetBoard()
    assert board.next_due_s() is None
    board.want({A: 5, B: 5})
    board.stored({A: 5}, 0)
    board.stored({B: 5}, 10)

    assert board.next_due_s() == DAY_S
    assert board.due(DAY_S - 1) == {}
    assert board.due(DAY_S) == {A: 5}


class Store:
    """Commits, in order, and failures to come."""

    def __init__(self) -> None:
        self.stored: queue.SimpleQueue[dict[TopicPartition, int]] = queue.SimpleQueue()
        self.failures: list[Exception] = []

    def commit(self, offsets: Any) -> None:
        """Store or fail."""
        if self.failures:
            raise self.failures.pop(0)
        self.stored.put(dict(offsets))

    def next(self) -> dict[TopicPartition, int]:
        """Wait for the next commit."""
        return self.stored.get(timeout=30)


def test_the_thread_commits_what_it_is_given() -> None:
    """The caller is Spark's callback thread and never waits."""
    store = Store()
    committer = BackgroundCommitter(store.commit, OffsetBoard())

    committer.want({A: 1})
    assert store.next() == {A: 1}
    committer.want({A: 2, B: 2})

    assert store.next() == {A: 2, B: 2}
    committer.close(30)


def test_an_outage_is_retried_with_the_newest_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old ones are of no interest any more."""
    monkeypatch.setattr(module, "PAUSE_MIN_S", 0.0)
    store = Store()
    store.failures = [
        CoordinatorUnavailable("away"),
        ValueError("a bug"),
        CoordinatorUnavailable(""),
    ]
    committer = BackgroundCommitter(store.commit, OffsetBoard())

    committer.want({A: 1})

    assert store.next() == {A: 1}
    committer.close(30)


def test_a_refused_offset_is_not_tried_for_ever() -> None:
    """Members of the group own it; the next batch is another chance."""
    store = Store()
    store.failures = [CommitRefused({A: 3})]
    committer = BackgroundCommitter(store.commit, OffsetBoard())

    committer.want({A: 1})
    committer.close(30)
    assert store.stored.empty()


def test_what_was_refused_is_tried_again_with_the_next_batch() -> None:
    """Also where that batch says nothing new about it: it isn't stored, so it is not settled."""
    board = OffsetBoard()
    board.want({A: 1, B: 1})
    board.stored({B: 1}, 0)
    board.refused([A], 1)
    assert board.due(1) == {}
    assert board.next_due_s() == DAY_S
    assert board.due(DAY_S + 1) == {A: 1, B: 1}

    board.want({B: 2})

    assert board.due(1) == {A: 1, B: 2}


def test_a_partly_refused_commit_settles_only_the_rest() -> None:
    """The other partitions are stored."""
    board, store = OffsetBoard(), Store()
    store.failures = [CommitRefused({A: 3})]
    committer = BackgroundCommitter(store.commit, board)
    board.want({A: 1, B: 1})

    assert committer._try(board.due(0))
    assert board.due(0) == {}
    board.want({})

    assert board.due(0) == {A: 1}


def test_closing_commits_what_is_due() -> None:
    """The last batch of a query should not be missing."""
    store = Store()
    committer = BackgroundCommitter(store.commit, OffsetBoard())
    committer.want({A: 1})

    committer.close(30)

    assert store.next() == {A: 1}
    BackgroundCommitter(store.commit, OffsetBoard()).close(30)


def event(*end_offsets: str, name: str = "orders") -> Any:
    """Return an event as Spark makes it."""
    sources = [SimpleNamespace(endOffset=end) for end in end_offsets]
    return SimpleNamespace(progress=SimpleNamespace(name=name, sources=sources))


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[dict[TopicPartition, int]]:
    """What the listener hands to its committer."""
    handed: list[dict[TopicPartition, int]] = []
    monkeypatch.setattr(BackgroundCommitter, "want", lambda _, offsets: handed.append(offsets))
    return handed


def test_all_sources_of_a_query_are_committed(wanted: list[dict[TopicPartition, int]]) -> None:
    """By topic name, never by the source's place in the list."""
    listener = GroupOffsetListener("h:1", "lag")

    listener.onQueryProgress(event('{"t":{"0":5}}', "None", '{"u-1":{"s":1,"e":9,"g":1}}'))
    listener.onQueryProgress(event("None"))

    assert wanted == [{A: 5, TopicPartition("u", 1): 9}]
    listener.close()


def test_other_queries_are_left_alone(wanted: list[dict[TopicPartition, int]]) -> None:
    """Two queries on one topic have different lags."""
    listener = GroupOffsetListener("h:1", "lag", query_name="orders")

    listener.onQueryProgress(event('{"t":{"0":5}}', name="other"))
    listener.onQueryProgress(event('{"t":{"0":6}}'))

    assert wanted == [{A: 6}]


def test_the_group_of_a_coordinated_source_is_refused_loudly(
    wanted: list[dict[TopicPartition, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """Its readers own the offsets; a commit from outside would be refused, or worse, not."""
    listener = GroupOffsetListener("h:1", "g")
    end = (
        '{"t-0":{"s":1,"e":9,"g":1},'
        '"@":{"v":1,"coordinator":"h:1","group":"g","client_id":"spark-1"}}'
    )

    listener.onQueryProgress(event(end))
    listener.onQueryProgress(event(end))

    assert wanted == []
    assert caplog.text.count("a group of its own") == 1
