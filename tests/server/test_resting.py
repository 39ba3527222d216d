"""Many quiet members share wake-ups; nobody who waits for an answer does."""

import trio
import trio.testing
from trio.testing import MockClock

from coordinator.runtime.poller import Poller
from coordinator.server.resting import (
    REST_S,
    ROUND_REQUESTS_MAX,
    WINDOW_MS,
    WINDOW_REQUESTS_MIN,
    Resting,
)
from tests.server.world import Client, World, beat, commit, world

PER_MS = WINDOW_REQUESTS_MIN // WINDOW_MS


def quiet(resting: Resting, start_ms: int, until_ms: int, per_ms: int = PER_MS) -> int:
    """Let so many requests come each millisecond; return the time."""
    for now_ms in range(start_ms, until_ms):
        resting.round_over(now_ms, per_ms, False)
    return until_ms


def test_it_rests_when_many_come_and_nobody_waits() -> None:
    """After a window in which that was so, and as long as it stays so."""
    resting = Resting()
    now_ms = quiet(resting, 1_000, 1_000 + WINDOW_MS)
    assert not resting.is_resting
    now_ms = quiet(resting, now_ms, now_ms + 10)
    assert resting.is_resting

    now_ms = quiet(resting, now_ms, now_ms + 1_000)
    assert resting.is_resting
    now_ms = quiet(resting, now_ms, now_ms + 2 * WINDOW_MS, per_ms=PER_MS - 1)
    assert not resting.is_resting


def test_who_waits_ends_the_rest_at_once_and_for_a_while() -> None:
    """The next requests of the same kind are to find the daemon awake."""
    resting = Resting()
    now_ms = quiet(resting, 1_000, 1_200)
    assert resting.is_resting
    resting.round_over(now_ms, 1, True)
    assert not resting.is_resting

    now_ms = quiet(resting, now_ms, now_ms + WINDOW_MS // 2)
    assert not resting.is_resting
    quiet(resting, now_ms, now_ms + 2 * WINDOW_MS)
    assert resting.is_resting


def test_large_rounds_need_no_rest() -> None:
    """Under full load it would only cost throughput."""
    resting = Resting()
    quiet(resting, 1_000, 2_000, per_ms=ROUND_REQUESTS_MAX + 1)

    assert not resting.is_resting


def test_what_came_long_ago_does_not_count() -> None:
    """A hundred requests over a minute are few."""
    resting = Resting()
    for now_ms in range(1_000, 61_000, 500):
        resting.round_over(now_ms, 10, False)

        assert not resting.is_resting


async def test_a_resting_poller_looks_a_thousand_times_a_second(autojump_clock: MockClock) -> None:
    """What comes meanwhile is handled in one round."""
    poller = Poller()
    poller.rest_s = REST_S
    ends: list[float] = []
    poller.at_round_end.append(lambda: ends.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        for _ in range(40):
            poller.call_soon(lambda: None)
            await trio.sleep(REST_S / 4)
        nursery.cancel_scope.cancel()
    poller.close()

    assert 10 <= len(ends) <= 12


async def answered(client: Client, sent: int) -> None:
    """Return when the answer is there."""
    while sent not in client.answers():  # noqa: ASYNC110 - nothing tells of it
        await trio.sleep(0.000_05)


async def heartbeats(w: World, clients: list[Client], seconds: float) -> list[float]:
    """Let the clients in turn send a heartbeat, 4 a millisecond; return how long each took."""
    took: list[float] = []
    end = trio.current_time() + seconds
    async with trio.open_nursery() as nursery:

        async def one(client: Client) -> None:
            began = trio.current_time()
            await answered(client, client.send(beat()))
            took.append(trio.current_time() - began)

        number = 0
        while trio.current_time() < end:
            nursery.start_soon(one, clients[number % len(clients)])
            number += 1
            await trio.sleep(0.000_25)
    return took


async def test_quiet_members_share_wake_ups_and_a_commit_ends_that(
    autojump_clock: MockClock,
) -> None:
    """A heartbeat may be a millisecond late; one commit may too, and those behind it may not."""
    async with world("offsets.commit.timeout.ms=60000") as w:
        clients = []
        for _ in range(800):
            clients.append(w.connect())
            await trio.lowlevel.checkpoint()
        committer = w.connect()
        await heartbeats(w, clients, 0.3)
        assert w.server.poller.rest_s
        late = await heartbeats(w, clients, 0.1)
        assert REST_S / 3 < sum(late) / len(late)
        assert max(late) <= 1.2 * REST_S

        waits: list[float] = []

        async def commits() -> None:
            for number in range(5):
                began = trio.current_time()
                await answered(committer, committer.send(commit(number)))
                waits.append(trio.current_time() - began)
                await trio.sleep(0.002)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commits)
            await heartbeats(w, clients, 0.03)

        assert waits[0] <= 1.2 * REST_S
        assert max(waits[1:]) < 0.000_2
        assert not w.server.poller.rest_s


async def test_who_asks_again_and_again_is_never_kept_waiting(autojump_clock: MockClock) -> None:
    """A client that waits for each answer would be held to a thousand requests a second."""
    async with world() as w:
        await heartbeats(w, [w.connect() for _ in range(8)], 0.3)

        assert not w.server.poller.rest_s
