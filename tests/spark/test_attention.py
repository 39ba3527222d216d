"""A reader that nobody asks any more, and what it does then."""

import pytest

from client.spark.errors import FencedError
from client.spark.source.attention import Attention
from tests.spark.helpers import Clock, Query, group_and_log, ranges, tp

LIMIT_S = 300.0


class Watched:
    """An `Attention` on a clock of the test's."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.gave_up: list[float] = []
        self.attention = Attention(LIMIT_S, self.gave_up.append, self.clock)

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and the watching thread look whenever it wants to."""
        end_s = self.clock.now_s + seconds
        while True:
            next_s = self.attention.look()
            if self.clock.now_s + next_s > end_s:
                self.clock.now_s = end_s
                return
            self.clock.now_s += next_s


def test_a_silent_spark_is_given_up_once() -> None:
    """And not before its time; later calls are answered again, and silence counts anew."""
    watched = Watched()
    watched.pass_s(LIMIT_S - 1)
    with watched.attention:
        pass
    watched.pass_s(LIMIT_S - 1)
    assert watched.gave_up == []

    watched.pass_s(3 * LIMIT_S)
    assert watched.gave_up == [LIMIT_S]

    with watched.attention:
        pass
    watched.pass_s(LIMIT_S)
    watched.pass_s(1)
    assert watched.gave_up == [LIMIT_S, LIMIT_S]


def test_a_call_that_goes_on_is_no_silence() -> None:
    """A reader that waits ten minutes for the coordinator has Spark's attention all the while."""
    watched = Watched()

    with watched.attention:
        watched.pass_s(5 * LIMIT_S)
    watched.pass_s(LIMIT_S - 1)

    assert watched.gave_up == []


def test_a_call_that_fails_is_over() -> None:
    """Else the reader of a query that retries would never be given up."""
    watched = Watched()

    with pytest.raises(ZeroDivisionError), watched.attention:
        raise ZeroDivisionError
    watched.pass_s(2 * LIMIT_S)

    assert watched.gave_up == [LIMIT_S]


def silent(query: Query) -> None:
    """Have Spark ask the reader of *query* nothing for too long."""
    query.core.depart(LIMIT_S)


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_others_take_over_and_who_comes_back_commits_nothing_that_it_lost(assignor: str) -> None:
    """The batch in flight runs twice, with the same bounds, and offsets never go back."""
    group, log = group_and_log({0: 100})
    frozen = Query(group, log, client_id="frozen", assignor=assignor)
    frozen.trigger()
    frozen.trigger()  # Its second range, 10 to 20, is done and not committed.
    other = Query(group, log, client_id="other", assignor=assignor, maxRowsPerPartition="7")

    silent(frozen)
    written = other.triggers(3)
    assert ranges(written)[0] == (0, 10, 20)
    committed = group.offset(tp(0))
    frozen.triggers(3)

    assert frozen.session.departed == [
        "Spark has not asked its reader for 300 s (option 'maxPollInterval')"
    ]
    assert (group.offset(tp(0)) or 0) >= (committed or 0)
    assert all(request[tp(0)].offset >= 10 for request in group.commits[2:] if tp(0) in request)


def test_who_comes_back_alone_goes_on_without_a_repeat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A trigger interval longer than the option costs a join each time, and each line names it."""
    group, log = group_and_log({0: 100, 1: 100})
    query = Query(group, log)
    for _ in range(4):
        query.trigger()
        silent(query)

    query.triggers(8)

    assert ranges(query.sunk)[:4] == [(0, 0, 10), (1, 0, 10), (0, 10, 20), (1, 10, 20)]
    assert len(set(ranges(query.sunk))) == len(query.sunk)
    lines = [record.message for record in caplog.records]
    assert len(lines) == 8
    assert all("(option 'maxPollInterval')" in line for line in lines)


def test_a_commit_in_doubt_is_not_repeated_by_who_has_left() -> None:
    """It is of a member that is no more; what is stored is read back."""
    group, log = group_and_log({0: 100})
    query = Query(group, log)
    query.trigger()
    group.outage = True
    query.trigger()
    silent(query)
    group.outage = False

    query.triggers(3)

    written = ranges(query.sunk)
    assert written == [(0, 0, 10), (0, 10, 20), (0, 20, 30), (0, 30, 40)][: len(written)]


def test_a_query_that_is_to_fail_when_fenced_fails() -> None:
    """Its partitions may have been somebody else's, whoever began it."""
    group, log = group_and_log({0: 100})
    query = Query(group, log, onFence="fail")
    query.trigger()

    silent(query)

    with pytest.raises(FencedError, match=r"left the group: Spark has not asked .*onFence"):
        query.trigger()


def test_a_reader_that_has_not_joined_has_nothing_to_leave(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark froze right after its start."""
    group, log = group_and_log({0: 100})
    query = Query(group, log)

    silent(query)

    assert caplog.text == ""
    assert query.trigger()


# --- What is noted for the lag -------------------------------------------------------------------


def test_a_reader_notes_topics_before_it_joins_and_ends_with_each_plan() -> None:
    """A topic that is registered after the join would make the group rebalance once more."""
    group, log = group_and_log({0: 100, 1: 50})
    query = Query(group, log)
    query.trigger()

    assert query.session.noted_topics == {"flights": [0, 1]}
    assert query.session.noted_ends == {tp(0): 100, tp(1): 50}

    log.ends[0] = 200
    query.trigger()
    assert query.session.noted_ends == {tp(0): 200, tp(1): 50}


def test_an_end_that_the_log_does_not_tell_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a lag that nobody has measured."""
    group, log = group_and_log({0: 100, 1: 50})
    bounds = log.bounds

    def half(topic: str, partition: int) -> tuple[int, int]:
        if partition:
            raise OSError("this one can't be asked now")
        return bounds(topic, partition)

    monkeypatch.setattr(log, "bounds", half)
    query = Query(group, log)
    query.trigger()

    assert query.session.noted_ends == {tp(0): 100}
