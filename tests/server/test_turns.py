"""Whoever asks for much has it done a turn at a time, behind everybody who asks for little."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from coordinator.runtime.poller import SLICE_S
from tests.server.test_sockets import door, peers, until
from tests.server.world import World, beat, commit, world

COSTLY = "costly"


def make_costly(w: World, clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let requests of one group take a slice each; return the groups of all, as decided."""
    dispatch = w.server.dispatcher.dispatch
    decided: list[str] = []

    def costing(call: Any, *rest: Any) -> None:
        decided.append(call.request.group_id)
        dispatch(call, *rest)
        if call.request.group_id == COSTLY:
            clock.jump(SLICE_S)

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
