"""One task that watches all descriptors: who is called, when, and who is not."""

import os
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from coordinator.runtime import poller as module
from coordinator.runtime.poller import BROKEN, READABLE, SLICE_S, WRITABLE, Poller


@asynccontextmanager
async def running(*at_round_end: Callable[[], None], stay_s: float = 0) -> AsyncIterator[Poller]:
    """Run a poller as long as the block lasts."""
    poller = Poller(stay_s)

    def end_round() -> None:
        for hook in at_round_end:
            hook()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.run, end_round)
            yield poller
            nursery.cancel_scope.cancel()
    finally:
        poller.close()


class Bell:
    """A descriptor that is readable while it rings, and what it was called with.

    *then* runs in the callback; without one, the callback silences the bell.
    """

    def __init__(self, poller: Poller, then: Callable[[], None] | None = None) -> None:
        self.poller = poller
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.then = then or self.silence
        self.masks: list[int] = []
        poller.watch(self.fd, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        self.masks.append(mask)
        self.then()

    def ring(self) -> None:
        """Become readable."""
        os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        """Be no longer."""
        os.eventfd_read(self.fd)

    def close(self) -> None:
        """End."""
        self.poller.unwatch(self.fd)
        os.close(self.fd)


@contextmanager
def bells(poller: Poller, *thens: Callable[[], None] | None) -> Iterator[list[Bell]]:
    """Watch some bells as long as the block lasts."""
    rack = [Bell(poller, then) for then in thens]
    try:
        yield rack
    finally:
        for bell in rack:
            bell.close()


async def test_who_is_ready_is_called_as_long_as_that_lasts() -> None:
    """Level-triggered: what one call leaves behind, the next one finds."""
    async with running() as poller:
        with bells(poller, None, lambda: None, None) as (once, stubborn, silent):
            once.ring()
            stubborn.ring()
            while len(stubborn.masks) < 5:
                await trio.lowlevel.checkpoint()
            stubborn.silence()
            await wait_all_tasks_blocked()

            assert [READABLE] == once.masks
            assert {READABLE} == set(stubborn.masks)
            assert [] == silent.masks


async def test_who_is_ready_is_called_before_those_that_were_put_off(
    autojump_clock: MockClock,
) -> None:
    """Ten of them take a turn each: who asks for little must not wait for all of these."""
    async with running() as poller:
        order: list[str] = []

        def long() -> None:
            order.append("long")
            autojump_clock.jump(2 * SLICE_S)

        def answer() -> None:
            order.append("ready")
            bell.silence()

        def ring() -> None:
            bell.ring()
            long()

        with bells(poller, answer) as (bell,):
            await wait_all_tasks_blocked()
            poller.call_soon(ring)
            for _ in range(10):
                poller.call_soon(long)
            await wait_all_tasks_blocked()

            assert ["long", "ready", "long"] == order[:3]
            assert 12 == len(order)


async def test_nothing_is_called_for_what_was_told_to_be_left_alone() -> None:
    """A paused session must cost nothing, however much its peer sends."""
    async with running() as poller:
        with bells(poller, None) as (bell,):
            poller.modify(bell.fd, 0)
            bell.ring()
            await wait_all_tasks_blocked()
            assert [] == bell.masks

            bell.then = lambda: poller.modify(bell.fd, 0)
            poller.modify(bell.fd, READABLE | WRITABLE)
            await wait_all_tasks_blocked()
            assert [READABLE | WRITABLE] == bell.masks


async def test_a_broken_connection_is_reported_to_who_asked_for_nothing() -> None:
    """The system reports it for ever, so somebody must be told and let go."""
    async with running() as poller:
        ours, theirs = socket.socketpair()
        masks: list[int] = []

        def on_ready(mask: int) -> None:
            masks.append(mask)
            poller.unwatch(ours.fileno())

        poller.watch(ours.fileno(), on_ready, 0)
        await wait_all_tasks_blocked()
        theirs.close()
        await wait_all_tasks_blocked()
        ours.close()

        (mask,) = masks
        assert mask & BROKEN


async def test_who_was_closed_in_the_round_is_not_called() -> None:
    """Its place in the list of ready ones is worth nothing any more."""
    async with running() as poller:
        rack: list[Bell] = []

        def close_the_others() -> None:
            for bell in rack:
                if bell.masks:
                    bell.silence()
                else:
                    bell.close()

        rack = [Bell(poller, close_the_others) for _ in range(5)]
        for bell in rack:
            bell.ring()
        while not any(bell.masks for bell in rack):
            await trio.lowlevel.checkpoint()
        (called,) = [bell for bell in rack if bell.masks]
        called.close()
        await wait_all_tasks_blocked()

        assert 1 == sum(bool(bell.masks) for bell in rack)


@pytest.mark.parametrize("is_ready", [False, True])
async def test_a_number_that_is_given_away_again_in_the_round(is_ready: bool) -> None:
    """The old one's readiness is not the new one's, which has its own a round later."""
    ended = 0

    def count() -> None:
        nonlocal ended
        ended += 1

    async with running(count) as poller:
        rack: list[Bell] = []
        fresh: list[Bell] = []
        rounds: list[int] = []

        def replace_the_other() -> None:
            if fresh:
                return
            (other,) = [bell for bell in rack if not bell.masks]
            other.close()
            new = Bell(poller)

            def note_round() -> None:
                rounds.append(ended)
                new.silence()

            new.then = note_round
            assert other.fd == new.fd
            fresh.append(new)
            rounds.append(ended)
            if is_ready:
                new.ring()

        rack = [Bell(poller, replace_the_other) for _ in range(2)]
        for bell in rack:
            bell.ring()
        while not fresh:
            await trio.lowlevel.checkpoint()
        (called,) = [bell for bell in rack if bell.masks]
        called.close()
        await wait_all_tasks_blocked()

        assert ([READABLE] if is_ready else []) == fresh[0].masks
        if is_ready:
            assert rounds[1] > rounds[0]
        fresh[0].close()


async def test_a_round_ends_after_all_who_were_ready() -> None:
    """Answers of many sessions leave together, and what was appended goes into one flush."""
    rack: list[Bell] = []
    seen: list[list[int]] = []
    async with running(lambda: seen.append([len(b.masks) for b in rack])) as poller:
        with bells(poller, None, None) as rack:
            await wait_all_tasks_blocked()
            seen.clear()
            for bell in rack:
                bell.ring()
            await wait_all_tasks_blocked()

        assert [[1, 1]] == seen


async def test_what_is_called_soon_wakes_the_poller_and_has_its_round() -> None:
    """From outside, from a callback, and from the hook at the end of a round."""
    seen: list[str] = []
    at_the_end: list[Callable[[], None]] = []

    def end() -> None:
        seen.append("end")
        if at_the_end:
            poller.call_soon(at_the_end.pop())

    async with running(end) as poller:
        await wait_all_tasks_blocked()
        seen.clear()

        def again() -> None:
            seen.append("again")
            poller.call_soon(lambda: seen.append("once more"))

        poller.call_soon(again)
        poller.call_soon(lambda: seen.append("beside"))
        await wait_all_tasks_blocked()

        assert ["again", "beside", "end", "once more", "end"] == seen

        at_the_end.append(seen.clear)
        poller.wake()
        await wait_all_tasks_blocked()
        assert ["end"] == seen


async def test_other_tasks_run_between_the_rounds_of_one_who_is_always_ready() -> None:
    """Flushes and timers must not starve under load."""
    async with running() as poller:
        with bells(poller, lambda: None) as (busy,):
            busy.ring()
            for _ in range(100):
                await trio.lowlevel.checkpoint()

            assert len(busy.masks) <= 100
            busy.silence()


class Passes(trio.abc.Instrument):
    """Counts the passes of trio's loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, _timeout: float) -> None:
        """Count one."""
        self.count += 1


class Epolls:
    """Makes epolls like the system's, but for waiting: that is noted, and never done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[float] = []
        epoll = select.epoll
        noted = self.waits

        class NeverWaiting:
            def __init__(self) -> None:
                self._epoll = epoll()

            def poll(self, timeout_s: float, events_max: int) -> list[tuple[int, int]]:
                ready = self._epoll.poll(0, events_max)
                if timeout_s and not ready:
                    noted.append(timeout_s)
                return ready

            def __getattr__(self, name: str) -> Any:
                return getattr(self._epoll, name)

        monkeypatch.setattr(select, "epoll", NeverWaiting)


STAY_S = 0.001


@pytest.mark.parametrize("stay_s", [0, STAY_S])
async def test_close_requests_need_no_pass_of_trio_each(
    stay_s: float, mock_clock: MockClock
) -> None:
    """Going through its loop costs more than what a heartbeat asks for."""
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    async with running(stay_s=stay_s) as poller:
        with bells(poller, None) as (busy,):

            def work() -> None:
                if len(busy.masks) == 100:
                    busy.silence()

            busy.then = work
            busy.ring()
            await wait_all_tasks_blocked()

    assert 100 == len(busy.masks)
    assert (passes.count <= 10) is (stay_s > 0)
    trio.lowlevel.remove_instrument(passes)


async def test_timers_and_other_descriptors_have_their_turn_while_requests_never_stop(
    mock_clock: MockClock,
) -> None:
    """Signals and new connections come by way of trio, and timers close sessions."""
    when: dict[str, float] = {}
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    ours, theirs = socket.socketpair()
    theirs.send(b"!")

    async def sleep() -> None:
        await trio.sleep(5 * SLICE_S)
        when["timer"] = trio.current_time()

    async def read() -> None:
        await trio.lowlevel.wait_readable(ours)
        when["descriptor"] = trio.current_time()

    async with running(stay_s=STAY_S) as poller, trio.open_nursery() as nursery:
        with bells(poller, None) as (busy,):

            def work() -> None:
                mock_clock.jump(SLICE_S / 8)
                if len(when) == 2 or len(busy.masks) > 1_000:
                    busy.silence()

            busy.then = work
            busy.ring()
            began_s = trio.current_time()
            nursery.start_soon(sleep)
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
    ours.close()
    theirs.close()

    assert when["descriptor"] - began_s <= 2 * SLICE_S
    assert 5 * SLICE_S <= when["timer"] - began_s <= 7 * SLICE_S
    assert passes.count <= len(busy.masks) / 2


async def test_a_task_that_a_round_made_runnable_runs_at_once(mock_clock: MockClock) -> None:
    """A shard's deadline, the compactor's turn, a flush that failed."""
    wanted = trio.Event()
    seen: list[int] = []

    async def wait() -> None:
        await wanted.wait()
        seen.append(len(busy.masks))
        for _ in range(5):  # Its next turns come as soon.
            await trio.lowlevel.checkpoint()
            seen.append(len(busy.masks))

    async with running(stay_s=STAY_S) as poller, trio.open_nursery() as nursery:
        with bells(poller, None) as (busy,):

            def work() -> None:
                if len(busy.masks) == 50:
                    wanted.set()
                elif len(busy.masks) == 100:
                    busy.silence()

            busy.then = work
            nursery.start_soon(wait)
            busy.ring()
            await wait_all_tasks_blocked()

    assert seen[0] in {50, 51}
    assert all(after - before <= 2 for before, after in pairwise(seen))


async def test_nobody_who_could_run_is_kept_waiting_for_a_request(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load goes on in slices, and its next one must not wait until somebody asks."""
    epolls = Epolls(monkeypatch)
    async with running(stay_s=STAY_S) as poller:
        with bells(poller, None) as (bell,):
            for _ in range(50):
                bell.ring()
                await trio.lowlevel.checkpoint()
            assert [] == epolls.waits
            assert bell.masks


async def test_what_is_called_soon_leaves_turns_to_others(mock_clock: MockClock) -> None:
    """Many peers that sent much in one go would keep everybody else waiting together."""
    called = 0
    longest = 0

    def work() -> None:
        nonlocal called
        called += 1
        mock_clock.jump(SLICE_S / 2)

    async with running() as poller:
        with bells(poller, None) as (bell,):
            for _ in range(50):
                poller.call_soon(work)
            bell.ring()
            while called < 50:
                before = called
                await trio.lowlevel.checkpoint()
                longest = max(longest, called - before)
                if called >= 4:
                    assert bell.masks  # Nor does what is ready wait for all of it.

    assert longest <= 4


async def test_what_is_called_soon_waits_for_no_request(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session goes on with what one read has brought, though nobody sends more."""
    epolls = Epolls(monkeypatch)
    seen: list[list[float]] = []
    async with running(stay_s=STAY_S) as poller:
        with bells(poller, None) as (busy,):

            def work() -> None:
                if len(busy.masks) == 10:
                    busy.silence()
                    poller.call_soon(lambda: seen.append(list(epolls.waits)))

            busy.then = work
            busy.ring()
            await wait_all_tasks_blocked()

    assert [[]] == seen
    assert [STAY_S] == epolls.waits


async def ask(bell: Bell, clock: MockClock, *pauses_s: float) -> None:
    """Ring after each of these pauses."""
    for pause_s in pauses_s:
        await wait_all_tasks_blocked()
        clock.jump(pause_s)
        bell.ring()
    await wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("pauses_s", "waits"),
    [
        ([1.0] * 10, 0),
        ([1.0, STAY_S / 2] * 10, 0),  # A lone commit: the request, and the end of its flush.
        ([STAY_S / 2] * 2, 1),
        ([STAY_S / 2] * 3, 1),  # Who waited in vain is not that sure any more.
        ([STAY_S / 2] * 4, 2),
    ],
)
async def test_only_requests_close_to_each_other_make_it_stay(
    pauses_s: list[float], waits: int, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks now and then must not wake the process twice, and silence not at all."""
    epolls = Epolls(monkeypatch)
    async with running(stay_s=STAY_S) as poller:
        with bells(poller, None) as (bell,):
            await ask(bell, mock_clock, 1.0, *pauses_s)

    assert [STAY_S] * waits == epolls.waits
    assert len(pauses_s) + 1 == len(bell.masks)


async def test_nothing_is_waited_for_under_a_virtual_clock(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes next comes from another task of the simulation, which would wait for it."""
    epolls = Epolls(monkeypatch)
    async with running() as poller:
        with bells(poller, None) as (bell,):
            await ask(bell, mock_clock, *[0.0] * 10)

    assert [] == epolls.waits
    assert 10 == len(bell.masks)


async def test_a_busy_poller_is_cancelled_by_a_callback(mock_clock: MockClock) -> None:
    """The daemon ends though its clients never stop."""
    scope = trio.CancelScope()
    with scope:
        async with running(stay_s=STAY_S) as poller:

            def work() -> None:
                mock_clock.jump(SLICE_S / 8)
                if len(bell.masks) == 50:
                    scope.cancel()
                assert len(bell.masks) < 100

            with bells(poller, work) as (bell,):
                bell.ring()
                await trio.sleep_forever()

    assert 50 <= len(bell.masks) <= 60


async def test_a_long_round_is_cut_and_goes_on_where_it_was(mock_clock: MockClock) -> None:
    """Nobody is left out, nobody has two turns, and each slice has its end."""
    ends: list[int] = []
    rack: list[Bell] = []
    async with running(lambda: ends.append(sum(len(bell.masks) for bell in rack))) as poller:
        done: list[Bell] = []
        steps: list[int] = []

        def work() -> None:
            mock_clock.jump(SLICE_S * 0.6)
            (called,) = [bell for bell in rack if bell.masks and bell not in done]
            done.append(called)
            called.silence()

        rack = [Bell(poller, work) for _ in range(6)]
        for bell in rack:
            bell.ring()
        while sum(len(bell.masks) for bell in rack) < 6:
            steps.append(sum(len(bell.masks) for bell in rack))
            await trio.lowlevel.checkpoint()

        assert [1] * 6 == [len(bell.masks) for bell in rack]
        assert [2, 4, 6] == [end for end in ends if end]
        assert {2, 4} & set(steps)
        for bell in rack:
            bell.close()


async def test_more_than_one_list_of_ready_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are called, though the system names only so many at once."""
    monkeypatch.setattr(module, "EVENTS_MAX", 3)
    async with running() as poller:
        with bells(poller, *[None] * 10) as rack:
            for bell in rack:
                bell.ring()
            await wait_all_tasks_blocked()

            assert [[READABLE]] * 10 == [bell.masks for bell in rack]


@pytest.mark.parametrize("stubborn", [False, True])
async def test_who_waits_until_all_were_heard(
    stubborn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers end nobody's session whose heartbeat has arrived, and don't wait for silence."""
    monkeypatch.setattr(module, "EVENTS_MAX", 3)
    async with running() as poller:
        with bells(poller, *[(lambda: None) if stubborn else None] * 10) as rack:
            await wait_all_tasks_blocked()
            for bell in rack:
                bell.ring()
            await poller.caught_up()

            assert all(bell.masks for bell in rack)
            for bell in rack:
                if stubborn:
                    bell.silence()


async def test_waiting_until_all_were_heard_takes_no_time(autojump_clock: MockClock) -> None:
    """Where nothing is ready it ends at once."""
    async with running() as poller:
        before = trio.current_time()
        await poller.caught_up()

        assert before == trio.current_time()


@pytest.mark.parametrize("where", ["callback", "soon", "end"])
async def test_what_a_callback_raises_ends_the_poller_loudly(where: str) -> None:
    """A failed flush must end the process, not only the round."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def run() -> None:
        async with running(*[fail] if where == "end" else []) as poller:
            with bells(poller, fail if where == "callback" else None) as (bell,):
                if where == "soon":
                    poller.call_soon(fail)
                bell.ring()
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as failed:
        await run()
    assert failed.group_contains(ZeroDivisionError)


def test_closing_comes_before_or_after_what_was_watched() -> None:
    """Sessions end as the server does, in any order."""
    poller = Poller()
    early, late = Bell(poller), Bell(poller)
    early.close()
    poller.close()
    late.close()
    poller.close()
    poller.unwatch(99_999)


def test_a_closed_poller_is_woken_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of its descriptor may be a segment's of the log by then."""
    poller = Poller()
    poller.close()
    written: list[int] = []
    monkeypatch.setattr(os, "eventfd_write", lambda fd, _: written.append(fd))
    poller.call_soon(lambda: None)

    assert [] == written
