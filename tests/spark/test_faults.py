"""The faults of the coordinator and of members, as the reader's core meets them."""

import json
import random
from collections.abc import Iterator

import pytest

from client.exceptions import CoordinatorUnavailable
from tests.fakes.group_session import FakeGroup
from tests.spark.fault_support import FaultyLog, expect_all, finish, make, shows
from tests.spark.helpers import Checkpoint, Offset, Query, ranges, tp


def heal_at(group: FakeGroup, query: Query, seconds: float) -> None:
    """End the outage when the query has waited for so long."""

    def heal() -> None:
        group.outage = query.clock.now_s < seconds

    query.clock.on_sleep = heal


@shows("coordinator down at start")
def test_a_query_that_starts_before_the_coordinator_waits_for_it() -> None:
    """Both may come up after a power failure, in any order."""
    group, log = make({0: 25, 1: 5})
    group.outage = True
    query = Query(group, log)
    heal_at(group, query, 20)

    expect_all(finish(query), log.ends)


@shows("coordinator down during a batch")
def test_a_coordinator_that_is_away_when_a_batch_ends_costs_nothing() -> None:
    """The batch is committed when the coordinator is back."""
    group, log = make({0: 25, 1: 5})
    query = Query(group, log)
    steps = query.steps()
    while not query.sunk:
        next(steps)
    group.outage = True
    list(steps)
    assert query.triggers(5)[2:] == []
    assert group.offset(tp(0)) == 0

    group.outage = False

    expect_all(finish(query), log.ends)
    assert group.offset(tp(0)) == 25


@shows("coordinator down for 60 s")
@pytest.mark.parametrize("available_now", [False, True])
def test_an_outage_of_a_minute_is_an_idle_minute(available_now: bool) -> None:
    """Longer than a session, so that the group may be gone when it ends."""
    group, log = make({0: 25, 1: 5})
    query = Query(group, log, coordinatorTimeout="90s")
    if available_now:
        query.core.prepare_available_now()
    query.trigger()
    group.outage = True
    heal_at(group, query, 60)

    while group.outage:
        query.trigger()
    group.evict(query.session, noticed=False)

    assert query.clock.now_s >= 60
    expect_all(finish(query), log.ends)


@shows("coordinator restarted")
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_restarted_coordinator_is_an_idle_moment(forgotten: bool) -> None:
    """Whether it still knows the member or not: nobody else touched the partitions."""
    group, log = make({0: 50, 1: 5})
    query = Query(group, log)
    for _ in range(3):
        query.trigger()
        group.outage = True
        query.triggers(3)
        group.outage = False
        if forgotten:
            group.evict(query.session, noticed=False)

    expect_all(finish(query), log.ends)


@shows("coordinator loading")
@pytest.mark.parametrize("call", ["join", "commit", "fetch"])
def test_a_loading_coordinator_is_waited_for(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, but not yet with what counts."""
    group, log = make({0: 25, 1: 5})
    query = Query(group, log)
    query.trigger()
    group.evict(query.session)

    def loading(*_: object) -> None:
        raise CoordinatorUnavailable("COORDINATOR_LOAD_IN_PROGRESS")

    with monkeypatch.context() as patch:
        patch.setattr(query.session if call == "fetch" else group, call, loading)
        assert query.triggers(4) == []

    expect_all(finish(query), log.ends)


@shows("member frozen past its session and thawed")
@pytest.mark.parametrize("step", range(2, 7))
def test_a_frozen_reader_costs_its_batch_in_flight_and_no_more(step: int) -> None:
    """Its sink can't be stopped, but it can't move offsets, nor start another batch."""
    group, log = make({0: 40, 1: 40})
    frozen = Query(group, log, client_id="a")
    frozen.trigger()
    steps = frozen.steps()
    for _ in range(step):
        next(steps)
    group.evict(frozen.session, noticed=False)
    heir = Query(group, log, client_id="b", checkpoint=Checkpoint(["{}"], 1), max_rows=7)
    heir.triggers(2)
    before = {p: group.offset(tp(p)) for p in (0, 1)}

    list(steps)  # Thawed: the batch goes on where it was.

    assert {p: group.offset(tp(p)) for p in (0, 1)} == before
    expect_all(finish(frozen, heir), log.ends, repeated=2)


def killed(group: FakeGroup, log: FaultyLog, sunk: int, *, committed: bool = False) -> Query:
    """Return a reader that died in its second batch, after so many ranges of it."""
    query = Query(group, log, client_id="a")
    query.trigger()
    steps = query.steps()
    while len(query.checkpoint.offsets) < 2 or len(query.sunk) < 2 + sunk:
        next(steps)
    if committed:
        list(steps)
    group.evict(query.session)
    return query


def restarts(group: FakeGroup, log: FaultyLog, dead: Query) -> Iterator[list[Query]]:
    """Yield who goes on: the same query, or another one and then the same."""
    again = Query(group, log, client_id="a2", checkpoint=dead.checkpoint, max_rows=13)
    yield [again]
    heir = Query(group, log, client_id="b", checkpoint=Checkpoint(["{}"], 1), max_rows=7)

    def hand_over() -> None:
        heir.trigger()

    again.clock.on_sleep = hand_over
    yield [heir, again]


@pytest.mark.parametrize("who", [0, 1], ids=["restarted", "taken over"])
@pytest.mark.parametrize(
    ("sunk", "committed", "repeated"),
    [
        pytest.param(0, False, 0, id="before the sink"),
        pytest.param(1, False, 1, id="within the sink"),
        pytest.param(2, False, 2, id="after the sink"),
        pytest.param(2, True, 2, id="after the commit log"),
    ],
)
@shows("killed before the sink", "killed after the sink", "killed after the commit log")
def test_a_kill_repeats_at_most_what_was_in_flight(
    sunk: int, committed: bool, repeated: int, who: int
) -> None:
    """Wherever it strikes: no gap, and the replay adds nothing to what a take-over repeats."""
    group, log = make({0: 40, 1: 40})
    dead = killed(group, log, sunk, committed=committed)

    survivors = list(restarts(group, log, dead))[who]
    if who:
        survivors[0].triggers(3)
    written = finish(*survivors)

    expect_all(dead.sunk + written, log.ends, repeated=repeated)
    assert ranges(written)[:2] == [(0, 10, 20), (1, 10, 20)]  # With the bounds of the dead one.


class ConcurrentUpdateError(Exception):
    """CONCURRENT_STREAM_LOG_UPDATE: another query wrote this batch."""


class SharedCheckpoint:
    """One of several runs on the same checkpoint, each with Spark's own memory of where it is."""

    def __init__(self, query: Query, offsets: dict[int, str], commits: set[int]) -> None:
        self.query = query
        self.dead = False
        self._offsets = offsets
        self._commits = commits
        self._life = self._run()

    def step(self) -> None:
        """Go one step; if another query was faster, this one ends, and its reader leaves."""
        if not self.dead:
            try:
                next(self._life)
            except ConcurrentUpdateError:
                self.dead = True
                self.query.group.evict(self.query.session)

    def _run(self) -> Iterator[None]:
        batch = max(self._offsets, default=-1)
        start = json.loads(self._offsets.get(batch, "{}"))
        if batch >= 0 and batch not in self._commits:  # The replay.
            yield from self._batch(batch, {}, start)
        while True:
            yield
            end = self.query.core.latest_offset(start, 10)
            if end == start:
                continue
            yield
            batch += 1
            if batch in self._offsets:
                raise ConcurrentUpdateError
            self._offsets[batch] = json.dumps(end)
            yield from self._batch(batch, start, json.loads(self._offsets[batch]))
            start = json.loads(self._offsets[batch])

    def _batch(self, batch: int, start: Offset, end: Offset) -> Iterator[None]:
        for task in self.query.core.partitions(start, end):
            yield
            self.query.sunk.append(task)
        yield
        if batch in self._commits:
            raise ConcurrentUpdateError
        self._commits.add(batch)


@shows("two queries on one checkpoint")
@pytest.mark.parametrize("seed", range(40))
def test_of_two_queries_on_one_checkpoint_one_ends_and_the_other_misses_nothing(seed: int) -> None:
    """Spark lets the first to write a batch win; the group must not have lost the other's share."""
    rng = random.Random(seed)
    group, log = make({0: 90, 1: 90})
    disk: tuple[dict[int, str], set[int]] = ({}, set())
    first = SharedCheckpoint(Query(group, log, client_id="a"), *disk)
    for _ in range(rng.randrange(1, 12)):
        first.step()
    second = SharedCheckpoint(Query(group, log, client_id="b"), *disk)
    second.query.clock.on_sleep = first.step
    for _ in range(200):
        rng.choice([first, second]).step()

    assert first.dead != second.dead
    survivor = second if first.dead else first
    for _ in range(100):
        survivor.step()
    expect_all(first.query.sunk + second.query.sunk, log.ends, repeated=2)
