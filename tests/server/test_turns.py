"""Whoever asks for much has it done a turn at a time, behind everybody who asks for little."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from coordinator.runtime.poller import SLICE_S
from protocol.messages import (
    GroupFetch,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    Request,
)
from tests.server.test_sockets import door, peers, until
from tests.server.world import Client, World, beat, commit, world

COSTLY = "costly"


def make_costly(
    w: World, clock: MockClock, monkeypatch: pytest.MonkeyPatch, slices: int = 1
) -> list[Any]:
    """Let requests of one group take some slices; return the groups of all, as decided."""
    dispatch = w.server.dispatcher.dispatch
    decided: list[str] = []

    def costing(call: Any, *rest: Any) -> None:
        group_id = getattr(call.request, "group_id", "")
        decided.append(group_id)
        dispatch(call, *rest)
        if group_id == COSTLY:
            clock.jump(slices * SLICE_S)

    monkeypatch.setattr(w.server.dispatcher, "dispatch", costing)
    return decided


async def test_a_turn_ends_when_its_time_is_over(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 requests of one read took seconds where each of them was long."""
    async with world() as w:
        decided = make_costly(w, autojump_clock, monkeypatch)
        greedy, friend = w.connect(), w.connect()
        await trio.testing.wait_all_tasks_blocked()
        greedy.transport.put(b"".join(greedy.frame(beat(group_id=COSTLY))[1] for _ in range(64)))
        friend.send(beat())
        await trio.testing.wait_all_tasks_blocked()

        assert [COSTLY, "g", COSTLY] == decided[:3]
        assert 64 == len(greedy.answers())


async def test_who_asks_for_little_waits_for_one_turn_however_many_ask_for_much(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once nine connections are known for long requests, they share one turn of each round."""
    async with door() as w:
        decided = make_costly(w, mock_clock, monkeypatch)
        with peers(w, 10) as (friend, *greedy):
            await until(lambda: len(w.sessions()) == 10)
            for number in range(1, 30):
                for peer in greedy:
                    peer.send(*[beat(group_id=COSTLY)] * 4)
                friend.send(beat())
                await until(partial(friend.has, number))

            at = [n for n, group_id in enumerate(decided) if group_id == "g"]
            await until(lambda: all(peer.has(4 * 29) for peer in greedy))

        waited = [after - before - 1 for before, after in pairwise(at)]
        assert max(waited) <= 2


async def test_a_long_request_is_decided_in_a_turn_of_its_own(autojump_clock: MockClock) -> None:
    """To read it took long already."""
    async with world() as w:
        client, friend = w.connect(), w.connect()
        await trio.testing.wait_all_tasks_blocked()
        client.transport.put(client.frame(beat())[1] + client.frame(commit(1, *range(5_000)))[1])
        sent = friend.send(beat())
        while sent not in friend.answers():
            await trio.lowlevel.checkpoint()
        assert 1 == len(client.answers())
        await trio.testing.wait_all_tasks_blocked()
        assert 2 == len(client.answers())


async def until_soon(condition: Callable[[], bool], step_s: float = SLICE_S / 10) -> None:
    """Let time pass in small steps until *condition* holds."""
    for _ in range(10_000):
        if condition():
            return
        await trio.sleep(step_s)
    raise AssertionError("it never came")


def make_lists_long(
    w: World, clock: MockClock, monkeypatch: pytest.MonkeyPatch, slices: int = 3
) -> None:
    """Let each look at an offsets partition take so many slices."""

    def looking(_: object) -> Iterator[None]:
        for _ in range(slices):
            clock.jump(SLICE_S)
            yield

    for shard in w.node.shards:
        monkeypatch.setattr(shard.core, "list_groups", looking)


async def test_a_long_list_is_made_in_slices_and_everybody_has_a_turn_in_between(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 lists of 100,000 groups took ten seconds, in which nobody else was heard."""
    async with world() as w:
        make_lists_long(w, autojump_clock, monkeypatch)
        greedy, friend = w.connect(), w.connect()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(64):
            greedy.send(ListGroupsRequest((), ()))
        began_s = trio.current_time()
        sent = friend.send(beat())
        await until_soon(lambda: sent in friend.answers())
        assert trio.current_time() - began_s <= 4 * SLICE_S
        assert 0 == len(greedy.answers())

        sent = friend.send(ListGroupsRequest((), ()))
        await until_soon(lambda: sent in friend.answers())
        assert len(greedy.answers()) <= 3
        await trio.testing.wait_all_tasks_blocked()
        assert 64 == len(greedy.answers())


async def test_long_work_leaves_most_of_the_time_to_who_asks_for_little(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of it at most, as for HTTP and handshakes; all of it when nobody asks."""
    async with world() as w:
        make_lists_long(w, autojump_clock, monkeypatch)
        greedy, friend = w.connect(), w.connect()
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        sent = greedy.send(ListGroupsRequest((), ()))
        await until_soon(lambda: sent in greedy.answers())
        alone_s = trio.current_time() - began_s
        began_s = trio.current_time()
        sent = greedy.send(ListGroupsRequest((), ()))
        while sent not in greedy.answers():
            friend.send(beat())
            await trio.sleep(SLICE_S / 10)

        assert trio.current_time() - began_s >= 2 * alone_s


async def test_what_nobody_waits_for_any_more_is_not_made(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one could ask, leave, and ask again."""
    async with world() as w:
        make_lists_long(w, autojump_clock, monkeypatch)
        client = w.connect()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(64):
            client.send(ListGroupsRequest((), ()))
        client.transport.reset()
        await trio.testing.wait_all_tasks_blocked()

        assert trio.current_time() < 64 * SLICE_S
        monkeypatch.undo()
        assert ListGroupsResponse(0, ()) == await w.connect().ask(ListGroupsRequest((), ()))


async def test_what_was_half_made_ends_with_its_client(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch of all offsets would have every commit keep the old ones for it."""
    async with world() as w:
        client = w.connect()
        await client.ask(commit())
        core = w.node.shard_of("g").core
        fetch_in_slices = core.fetch_in_slices

        def looking(*asked: Any) -> Iterator[None]:
            for _ in fetch_in_slices(*asked):
                for _ in range(10):
                    autojump_clock.jump(SLICE_S)
                    yield

        monkeypatch.setattr(core, "fetch_in_slices", looking)
        client.send(OffsetFetchRequest((GroupFetch("g", None),), False))
        await until_soon(lambda: len(core.groups["g"].pictures) == 1)
        client.transport.reset()
        await until_soon(lambda: not core.groups["g"].pictures)


async def test_a_list_over_a_partition_that_is_loaded_again_meanwhile_is_refused(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have seen what was never durable."""
    async with world() as w:
        make_lists_long(w, autojump_clock, monkeypatch)
        client = w.connect()
        await trio.testing.wait_all_tasks_blocked()
        sent = client.send(ListGroupsRequest((), ()))
        await until_soon(lambda: w.node.slices.served is not None)
        w.node.unload(0)
        await w.node.load_partition(0)
        await until_soon(lambda: sent in client.answers())

        assert ListGroupsResponse(16, ()) == client.answers()[sent].response


def has_answers(client: Client, number: int) -> bool:
    """Say whether so many have come."""
    return len(client.answers()) == number


async def test_a_silent_member_is_missed_in_time_beside_those_who_ask_for_much(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of some seconds, and turns of 64 long commits, left its partitions with nobody."""
    session_ms = 6_000
    async with world() as w:

        async def attack(request: Request) -> None:
            client = w.connect()
            for number in itertools.count(1):
                for _ in range(64):
                    client.send(request)
                await until_soon(partial(has_answers, client, 64 * number), SLICE_S)

        await w.connect().join_alone(session_ms=session_ms)
        heard_s = trio.current_time()
        make_lists_long(w, autojump_clock, monkeypatch, slices=300)
        decided = make_costly(w, autojump_clock, monkeypatch, slices=20)
        for _ in range(3):
            for request in (ListGroupsRequest((), ()), commit(group_id=COSTLY)):
                w.nursery.start_soon(attack, request)
        await until_soon(lambda: "group.member_removed" in w.event_names(), SLICE_S)
        late_s = trio.current_time() - heard_s - session_ms / 1000
        w.nursery.cancel_scope.cancel()

    assert late_s <= 1
    assert decided.count(COSTLY) > 64
