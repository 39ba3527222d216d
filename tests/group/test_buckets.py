"""Rates, counted in buckets."""

from hypothesis import given, strategies as st

from coordinator.group.buckets import BURST_MS, Bucket, Rate

STEPS = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 3_000)), max_size=60)


@given(rate=st.integers(1, 1_000_000), steps=STEPS)
def test_over_any_time_no_more_is_taken_than_the_rate_a_burst_and_the_last_thing(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    """It is what the others are promised, whatever somebody asks for and when."""
    bucket, now_ms = Bucket(0), 0
    taken: list[tuple[int, int]] = []
    for amount, past_ms in steps:
        now_ms += past_ms
        if bucket.wait_ms(rate, now_ms) == 0:
            bucket.take(amount, rate, now_ms)
            taken.append((now_ms, amount))

    for first, (from_ms, _) in enumerate(taken):
        for last in range(first, len(taken)):
            before_last = sum(amount for _, amount in taken[first:last])
            allowed = rate * (taken[last][0] - from_ms + BURST_MS) / 1_000
            assert before_last <= allowed


@given(rate=st.integers(1, 1_000_000), steps=STEPS)
def test_a_rate_that_is_rarely_looked_at_lets_a_tenth_of_a_burst_more_through(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    """The clock is asked rarely, and what was promised to others still holds, but for that."""
    bucket, now_ms = Rate(rate, 0, 10**9), 0
    taken: list[tuple[int, int]] = []
    free_ms = 0
    for amount, past_ms in steps:
        now_ms = max(now_ms + past_ms, free_ms)
        bucket.left -= amount
        taken.append((now_ms, amount))
        if bucket.left < 0:
            free_ms = now_ms + bucket.wait_ms(now_ms)

    for first, (from_ms, _) in enumerate(taken):
        for last in range(first, len(taken)):
            before_last = sum(amount for _, amount in taken[first:last])
            allowed = rate * (taken[last][0] - from_ms + BURST_MS * 1.1) / 1_000
            assert before_last <= allowed


@given(rate=st.integers(1, 10_000), steps=STEPS)
def test_a_rate_that_is_rarely_looked_at_takes_nothing_from_who_keeps_to_it(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    """Whoever takes no more than came back, after each time, never waits."""
    bucket, now_ms = Rate(rate, 0, 10**9), 0
    for _, past_ms in steps:
        now_ms += past_ms
        bucket.left -= rate * min(past_ms, BURST_MS) // 1_000
        assert bucket.left >= 0 or bucket.wait_ms(now_ms) == 0


@given(rate=st.integers(1, 10_000), steps=STEPS)
def test_a_wait_that_was_told_is_enough_and_none_too_long(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    """Who is told to wait, waits once; a millisecond less would not do."""
    bucket, now_ms = Bucket(0), 0
    for amount, past_ms in steps:
        now_ms += past_ms
        bucket.take(amount, rate, now_ms)
        wait_ms = bucket.wait_ms(rate, now_ms)
        if wait_ms:
            assert bucket.wait_ms(rate, now_ms + wait_ms - 1) > 0
            now_ms += wait_ms
            assert bucket.wait_ms(rate, now_ms) == 0


def test_one_large_thing_gets_through_and_is_paid_afterwards() -> None:
    """A request of eight seconds' bytes must not be refused for ever."""
    bucket = Bucket(0)
    assert bucket.wait_ms(1_000, 0) == 0

    bucket.take(8_000, 1_000, 0)

    assert bucket.wait_ms(1_000, 0) == 7_000
    assert bucket.wait_ms(1_000, 6_999) == 1
    assert bucket.wait_ms(1_000, 7_000) == 0


def test_a_rate_that_was_raised_holds_at_once() -> None:
    """Whoever gives somebody more doesn't want to wait for what he owed at the old rate."""
    bucket = Bucket(0)
    bucket.take(100, 10, 0)

    assert bucket.wait_ms(10, 0) == 9_000
    assert bucket.wait_ms(100, 0) == 0


def test_what_was_not_used_is_given_back_and_no_more_than_that() -> None:
    """A gift would be a burst that nobody has granted."""
    bucket = Bucket(0)
    bucket.take(10, 10, 0)
    bucket.give_back(25)
    bucket.take(11, 10, 0)

    assert bucket.wait_ms(10, 0) == 100


def test_a_clock_that_stands_or_goes_back_gives_nothing() -> None:
    """A late reader of the time must not refill what was taken since."""
    bucket = Bucket(1_000)
    bucket.take(20, 10, 1_000)

    assert bucket.wait_ms(10, 500) == 1_000
    assert bucket.wait_ms(10, 1_000) == 1_000


@given(st.integers(1, 10**9), st.integers(0, 10**12), st.integers(0, 100_000))
def test_what_is_owed_beyond_a_time_can_be_forgiven(rate: int, amount: int, beyond_ms: int) -> None:
    """Then nobody waits longer than that, and who owes less waits as long as before."""
    strict, kind = Bucket(0), Bucket(0)
    for bucket in (strict, kind):
        bucket.take(amount, rate, 0)
    kind.forgive(rate, beyond_ms)

    assert kind.wait_ms(rate, 0) == min(strict.wait_ms(rate, 0), beyond_ms)
