"""What is counted, and who hears of events."""

from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st

from coordinator.runtime.telemetry import Tee, Telemetry
from protocol.histogram import Histogram
from tests.fakes.environment import answered_alike


def rebalanced(outcome: str, join_ms: int = 400, sync_ms: int = 20_000) -> dict[str, Any]:
    """Return the fields of a rebalance's event, with some that nobody counts."""
    return {
        "group": "g",
        "trigger": "member joined",
        "outcome": outcome,
        "join_ms": join_ms,
        "sync_ms": sync_ms,
        "members": 2,
    }


def test_a_value_that_equals_a_bound_is_below_it() -> None:
    """Prometheus' buckets are "less or equal"; one off, and quantiles lie by a whole bucket."""
    histogram = Histogram((1.0, 2.0))

    histogram.note(1.0)
    histogram.note(1.5, 3)
    histogram.note(2.5)

    assert histogram.counts == [1, 3, 1]
    assert histogram.total == 8.0


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 99.0])))
def test_many_values_are_counted_as_if_they_came_one_by_one(values: list[float]) -> None:
    """The quick way is the one that every commit goes."""
    one_by_one, together = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))

    for value in values:
        one_by_one.note(value)
    together.note_all(list(values))

    assert together.counts == one_by_one.counts
    assert together.total == one_by_one.total


@given(
    st.lists(st.tuples(st.sampled_from([8, 12]), st.sampled_from([0, 25, -1]), st.integers(1, 3)))
)
def test_answers_are_all_there_whenever_somebody_looks(
    answers: list[tuple[int, int, int]],
) -> None:
    """They are booked by the hundred, and a scrape may come at any time."""
    telemetry = Telemetry()
    answered: Counter[int] = Counter()
    errors: Counter[tuple[int, int]] = Counter()

    for api_key, error, times in answers * 20:
        answered_alike(telemetry, api_key, error, 0.003, times)
        telemetry.flushed(0.003, 700, 0.002, wait_s=0.001)
        telemetry.flushed(0.003, 700, 0.002, wait_s=None)
        answered[api_key] += times
        if error:
            errors[api_key, error] += times

    assert {key: sum(found.counts) for key, found in telemetry.requests.items()} == answered
    assert telemetry.errors == errors
    assert sum(telemetry.flush_s.counts) == sum(telemetry.fsync_s.counts) == 40 * len(answers)
    assert sum(telemetry.flush_wait_s.counts) == 20 * len(answers)
    assert telemetry.flush_bytes.total == 700 * 40 * len(answers)


def test_rebalances_are_counted_by_what_began_them_and_timed_if_they_came_to_an_end() -> None:
    """One that was overtaken took no time of its own: its members went on into the next one."""
    telemetry = Telemetry()

    telemetry.event("group.rebalanced", rebalanced("stable"))
    telemetry.event("group.rebalanced", rebalanced("overtaken"))
    telemetry.event("group.rebalanced", rebalanced("empty"))

    trigger = "member joined"
    assert telemetry.rebalances == {
        (trigger, "stable"): 1,
        (trigger, "overtaken"): 1,
        (trigger, "empty"): 1,
    }
    assert telemetry.rebalance_s[trigger].total == pytest.approx(20.4)
    assert telemetry.rebalance_s[trigger].counts[telemetry.phase_s["sync"].bounds.index(30)] == 1
    assert telemetry.phase_s["join"].total == pytest.approx(0.4)
    assert telemetry.phase_s["sync"].total == pytest.approx(20)


def test_removals_and_offsets_are_read_off_the_events_too() -> None:
    """The core tells of them anyway, and nothing in it counts."""
    telemetry = Telemetry()

    telemetry.event("group.member_removed", {"reason": "session expired", "member_id": "m"})
    telemetry.event("offsets.expired", {"count": 3, "topics": ["t"]})
    telemetry.event("offsets.removed", {"count": 2, "topics": ["t"], "reason": "on request"})
    telemetry.event("group.deleted", {"generation": 1, "offsets": 5})
    telemetry.event("group.stable", {})

    assert +Counter(telemetry.members_removed) == {"session expired": 1}
    assert telemetry.offsets_expired == 3
    assert telemetry.offsets_removed == 7


async def test_a_loop_that_stands_still_is_seen(autojump_clock: trio.testing.MockClock) -> None:
    """Every request may have waited for so long, and no other number says so."""
    telemetry = Telemetry()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(telemetry.watch_stalls)
        await trio.sleep(1.05)
        assert sum(telemetry.stall_s.counts) == 10
        assert telemetry.stall_s.total == pytest.approx(0)

        autojump_clock.jump(2.05)  # No task runs meanwhile: this one is the loop.
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert telemetry.stall_s.total == pytest.approx(2.0)


def test_a_listener_that_raises_neither_ends_the_decision_nor_keeps_others_from_hearing() -> None:
    """The event tells of what is in the log already; a bug of the page must not undo its answer."""
    logged: list[tuple[str, dict[str, Any]]] = []
    heard: list[str] = []

    def broken(_name: str, _fields: dict[str, Any]) -> None:
        raise KeyError("page")

    tee = Tee(lambda name, fields: logged.append((name, fields)), broken)
    tee.add(lambda name, _fields: heard.append(name))

    tee("group.rebalanced", {"group": "g"})

    assert heard == ["group.rebalanced"]
    assert logged == [
        ("group.rebalanced", {"group": "g"}),
        ("event.unheard", {"of": "group.rebalanced", "reason": "KeyError('page')"}),
    ]
