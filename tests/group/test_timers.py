"""Deadlines under every order of moves, against a model that just looks at all of them."""

from hypothesis import given, strategies as st

from coordinator.group.member import PRUNE_MIN, Timer, TimerKind, Timers

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arm", "cancel", "shift", "tick"]), st.integers(0, 3), st.integers(0, 9)
    ),
    max_size=60,
)


@given(STEPS)
def test_timers_fire_exactly_when_they_are_due(steps: list[tuple[str, int, int]]) -> None:
    """Each arming fires once, never early, and at the first chance."""
    timers = Timers()
    all_timers = [Timer(TimerKind.JOIN, str(n)) for n in range(4)]
    due: dict[int, int] = {}
    now = 0
    for what, which, by in steps:
        if what == "arm":
            timers.arm(all_timers[which], now + by)
            due[which] = now + by
        elif what == "cancel":
            timers.cancel(all_timers[which])
            due.pop(which, None)
        elif what == "shift":
            timers.shift(by)
            due = {n: at + by for n, at in due.items()}
        else:
            now += by
            fired = []
            while (timer := timers.pop_due(now)) is not None:
                fired.append(all_timers.index(timer))
            assert sorted(n for n, at in due.items() if at <= now) == sorted(fired)
            assert sorted(due[n] for n in fired) == [due[n] for n in fired]
            due = {n: at for n, at in due.items() if at > now}
        assert min(due.values(), default=None) == timers.next_deadline_ms()


def test_moving_a_deadline_later_again_and_again_costs_no_memory() -> None:
    """A member that commits a thousand times a second has one entry."""
    timers = Timers()
    timer = Timer(TimerKind.SESSION, "g")
    for now in range(10_000):
        timers.arm(timer, now + 1_000)

    assert len(timers) == 1


def test_ties_go_by_the_order_of_arming() -> None:
    """So that a run can be repeated."""
    timers = Timers()
    first, second = (Timer(TimerKind.JOIN, name) for name in "ab")
    timers.arm(second, 5)
    timers.arm(first, 5)

    assert [second, first] == [timers.pop_due(5), timers.pop_due(5)]


def test_timers_that_were_turned_off_are_forgotten_long_before_they_would_be_due() -> None:
    """Else members that come and go stay in memory as long as their sessions would have been."""
    timers = Timers()
    kept = Timer(TimerKind.JOIN, "kept")
    timers.arm(kept, 7)
    for n in range(20 * PRUNE_MIN):
        timer = Timer(TimerKind.SESSION, "gone")
        timers.arm(timer, 10_000_000 + n)
        timers.cancel(timer)

    assert len(timers) <= PRUNE_MIN
    assert timers.pop_due(7) is kept


def test_moving_a_deadline_earlier_again_and_again_costs_little_memory() -> None:
    """Each time leaves an entry behind."""
    timers = Timers()
    timer = Timer(TimerKind.JOIN, "g")
    for n in range(20 * PRUNE_MIN):
        timers.arm(timer, 10_000_000 - n)

    assert len(timers) <= PRUNE_MIN


def test_a_pruned_timer_can_be_armed_again() -> None:
    """For the time it had before, and for another."""
    timers = Timers()
    timer = Timer(TimerKind.JOIN, "g")
    timers.arm(timer, 50)
    timers.cancel(timer)
    for n in range(2 * PRUNE_MIN):
        other = Timer(TimerKind.JOIN, "g")
        timers.arm(other, 1_000 + n)
    timers.arm(timer, 50)

    assert timers.pop_due(50) is timer
