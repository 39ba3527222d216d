"""What is committed when, and the thread that does it."""

import logging
import queue
from typing import Any

import pytest

from client.exceptions import CommitRefused
from client.spark.listener import commits as module
from client.spark.listener.commits import (
    BackgroundCommitter,
    CoordinatorTarget,
    NotNow,
    OffsetBoard,
    Refused,
)
from protocol.partition import TopicPartition

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
    store.failures = [NotNow("away"), ValueError("a bug"), NotNow("")]
    committer = BackgroundCommitter(store.commit, OffsetBoard())

    committer.want({A: 1})

    assert store.next() == {A: 1}
    committer.close(30)


def test_a_refused_offset_is_not_tried_for_ever() -> None:
    """Members of the group own it; the next batch is another chance."""
    store = Store()
    store.failures = [Refused("no", [A])]
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
    store.failures = [Refused("no", [A])]
    committer = BackgroundCommitter(store.commit, board)
    board.want({A: 1, B: 1})

    assert committer.try_commit(board.due(0))
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


def test_the_state_says_how_well_the_commits_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """For metrics: what is due, for how long, and why."""
    monkeypatch.setattr(module, "PAUSE_MIN_S", 3600.0)
    store = Store()
    store.failures = [NotNow("away")]
    board = OffsetBoard()
    committer = BackgroundCommitter(store.commit, board)
    assert committer.metrics()[1:] == (0, 0, 0, None, 0, None)

    assert not committer.try_commit({A: 1})
    board.want({A: 1})
    assert committer.metrics()[1:] == (1, 1, 0, None, 1, "away")

    assert committer.try_commit({A: 1})
    metrics = committer.metrics()
    assert metrics.stored_s is not None
    assert 0 <= metrics.stored_s < 60
    assert metrics._replace(stored_s=0.0)[1:] == (1, 0, 0, 0.0, 0, None)


def test_a_refusal_of_everything_stores_nothing() -> None:
    """The time of the last commit must not look fresh."""
    store = Store()
    store.failures = [Refused("no", [A])]
    board = OffsetBoard()
    committer = BackgroundCommitter(store.commit, board)
    board.want({A: 1})

    assert committer.try_commit({A: 1})

    assert committer.metrics()[1:] == (1, 0, 1, None, 0, "no")


def test_a_refusal_of_some_says_how_many_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Most are: "offsets are not shown" sent somebody to look for all of them."""
    store = Store()
    committer = BackgroundCommitter(store.commit, OffsetBoard(), "group 'g'")
    store.failures = [Refused("no", [A]), Refused("no", [A, B])]
    committer.try_commit({A: 1, B: 1})
    committer.try_commit({A: 2, B: 2})

    assert caplog.messages == [
        "1 of 2 offsets are not shown in group 'g': no",
        "offsets are not shown in group 'g': no",
    ]


def test_of_many_offsets_those_behind_a_refused_part_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request takes 10,000: what came after one with a refusal counted as stored and wasn't."""
    asked: list[dict[TopicPartition, int]] = []
    monkeypatch.setattr(module, "REQUEST_PARTITIONS_MAX", 1)

    class Client:
        def commit(self, _group: str, offsets: dict[TopicPartition, int]) -> None:
            asked.append(offsets)
            if A in offsets:
                raise CommitRefused({A: 29})

    target = CoordinatorTarget("h:1", "g")
    monkeypatch.setattr(target, "_connect", Client)
    with pytest.raises(Refused) as raised:
        target.commit({A: 1, B: 1})

    assert asked == [{A: 1}, {B: 1}]
    assert raised.value.partitions == {A}


def test_the_same_trouble_is_logged_once_until_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each batch is an attempt, and an outage may last for days."""
    store = Store()
    committer = BackgroundCommitter(store.commit, OffsetBoard(), "group 'g'")
    store.failures = [NotNow("away"), NotNow("away")]
    with caplog.at_level(logging.INFO):
        committer.try_commit({A: 1})
        committer.try_commit({A: 1})
        assert caplog.messages == ["offsets are committed to group 'g' later: away"]
        committer.try_commit({A: 1})
        assert caplog.messages[1:] == ["offsets are committed to group 'g' again"]
        store.failures = [NotNow("away"), Refused("no", [A]), Refused("no", [A])]
        for _ in range(3):
            committer.try_commit({A: 1})

    assert caplog.messages[2:] == [
        "offsets are committed to group 'g' later: away",
        "offsets are not shown in group 'g': no",
    ]
