"""Cancel the client and its members at every await. Nothing may leak, hang, or stay half done."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from client import Assignor, Client, OffsetAndMetadata, RangeAssignor, TopicPartition
from client.assignors import CooperativeStickyAssignor
from protocol import messages as m
from tests.client.conftest import World
from tests.fakes.scripted_server import Drop, ScriptedServer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST_CONNECTION = 1


class CancelAtStep(trio.abc.Instrument):
    """Cancel *scope* when any task has run for the *step*-th time.

    A task runs from one await to the next. Counting the steps of all tasks, those in the
    background as well, cuts the caller off at every moment that anything can tell apart.
    """

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self._left = step
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count; called by trio."""
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()

    @property
    def reached(self) -> bool:
        """Whether that many steps were made."""
        return self._left <= 0


async def cancelled_at(step: int, scenario: Callable[[], Awaitable[None]]) -> bool:
    """Run *scenario*, cancelled at its *step*-th await; return whether there was one."""
    with trio.CancelScope() as scope:
        instrument = CancelAtStep(step, scope)
        trio.lowlevel.add_instrument(instrument)
        try:
            await scenario()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return instrument.reached


async def a_life(client: Client) -> None:
    """Join, commit over a connection that breaks, fetch, rejoin, leave."""
    async with client.join("g", ["t"], {"t": 2}) as member:
        assignment = await member.assignment()
        await member.commit(dict.fromkeys(assignment.partitions, 1))
        await member.fetch()
        await member.request_rejoin("test")
        await member.assignment()
        await member.commit({T0: 2})
    await client.fetch_offsets("g")
    await client.describe_groups(["g"])


def script_trouble(server: ScriptedServer) -> None:
    """Have every kind of retry happen once in a life."""
    server.forget_script()
    server.script(m.FindCoordinatorRequest, 15)
    server.script(m.JoinGroupRequest, 14)
    server.script(m.SyncGroupRequest, 27)
    server.script(m.OffsetCommitRequest, Drop())
    server.script(m.OffsetFetchRequest, 16)


async def settle() -> None:
    """Let servers notice what was closed."""
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("troubled", [False, True], ids=["smooth", "troubled"])
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.nightly)])
async def test_a_client_cancelled_anywhere_leaves_nothing_behind(
    autojump_clock: MockClock, world: World, *, troubled: bool, stride: int
) -> None:
    """The connection is closed, the group left, within the second that leaving may take."""
    step, steps = 1 - stride, 0
    while True:
        step += stride
        server = world.server
        server.seen.clear()
        if troubled:
            script_trouble(server)

        async def scenario() -> None:
            async with world.connect() as client:
                await a_life(client)

        cancelled = await cancelled_at(step, scenario)
        await settle()

        assert server.open_connections == 0, step
        joins = server.requests(m.SyncGroupRequest)
        leaves = server.requests(m.LeaveGroupRequest)
        assert not joins or len(leaves) == 1, step
        if not cancelled:
            break
        steps = step

    assert steps >= 100


@pytest.mark.parametrize("troubled", [False, True], ids=["smooth", "troubled"])
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.nightly)])
async def test_a_client_goes_on_after_a_call_was_cancelled_anywhere(
    autojump_clock: MockClock, world: World, *, troubled: bool, stride: int
) -> None:
    """Whatever was cut off, the same client does its next work as if nothing had been."""
    step = 1 - stride
    async with world.connect() as client:
        while True:
            step += stride
            server = world.server
            if troubled:
                script_trouble(server)

            async def scenario() -> None:
                await a_life(client)

            cancelled = await cancelled_at(step, scenario)
            server.forget_script()
            with trio.fail_after(60):
                async with client.join("g", ["t"], {"t": 2}) as member:
                    assignment = await member.assignment()

                    assert assignment.partitions == (T0, T1)

                    await member.commit({T0: step, T1: step})

                    assert await member.fetch() == dict.fromkeys((T0, T1), OffsetAndMetadata(step))
            await settle()

            assert server.open_connections == FIRST_CONNECTION, step
            if not cancelled:
                break

    await settle()

    assert world.server.open_connections == 0
    assert step > 100


async def test_a_cancelled_caller_never_tears_a_frame(
    autojump_clock: MockClock, world: World
) -> None:
    """The server reads whole requests, or refuses them as garbage (the fake asserts)."""
    async with world.connect() as client:
        await client.fetch_offsets("g")
        for step in range(1, 6):

            async def scenario() -> None:
                await client.commit("g", {T0: OffsetAndMetadata(1, "x" * 10_000)})

            await cancelled_at(step, scenario)

        assert await client.fetch_offsets("g") == {T0: OffsetAndMetadata(1, "x" * 10_000)}

    assert world.server.connections == 1


class Holder:
    """A caller that goes by its callbacks alone."""

    def __init__(self) -> None:
        self.holds: set[TopicPartition] = set()

    async def on_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Begin; nothing that it has already."""
        await trio.lowlevel.checkpoint()
        assert not self.holds & set(partitions)
        self.holds |= set(partitions)

    async def on_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        """End; nothing that it doesn't have."""
        await trio.lowlevel.checkpoint()
        assert set(partitions) <= self.holds
        self.holds -= set(partitions)

    @property
    def callbacks(self) -> dict[str, Any]:
        """For `Client.join`."""
        return {
            "on_assigned": self.on_assigned,
            "on_revoked": self.on_revoked,
            "on_lost": self.on_revoked,
        }


@pytest.mark.parametrize(
    "assignor", [RangeAssignor(), CooperativeStickyAssignor()], ids=["eager", "cooperative"]
)
@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.nightly)])
async def test_a_call_that_was_cut_off_anywhere_is_gone_on_with(
    autojump_clock: MockClock, world: World, assignor: Assignor, stride: int
) -> None:
    """The callbacks tell the same story as the assignments, however often a caller looked away."""
    step = 1 - stride
    async with world.connect() as client:
        while True:
            step += stride
            holder = Holder()
            async with join(client, holder, assignor) as member:

                async def scenario() -> None:
                    for trouble in (None, 27, 25):
                        if trouble is not None:
                            world.server.script(m.HeartbeatRequest, trouble)
                            await member.wait_rebalance_needed()
                        for _ in range(3):
                            await member.assignment()
                            member.store({T0: 1})
                            await trio.sleep(1)

                cancelled = await cancelled_at(step, scenario)
                with trio.fail_after(60):
                    while True:
                        assignment = await member.assignment()
                        await trio.sleep(1)
                        if not member.rebalance_needed:
                            break

                assert holder.holds == set(assignment.partitions)
                member.store({T0: 2})

            assert holder.holds == set()
            assert (await client.fetch_offsets("g"))[T0].offset == 2
            if not cancelled:
                break

    assert step > 50


def join(client: Client, holder: Holder, assignor: Assignor) -> Any:
    """Return a member with everything on."""
    return client.join(
        "g",
        ["t"],
        {"t": 2},
        assignors=[assignor],
        auto_commit_interval_ms=2_000,
        **holder.callbacks,
    )
