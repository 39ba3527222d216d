"""A member's calls cancelled at every await: no callback is skipped, nothing stays half done."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from client import Assignor, Client, RangeAssignor, TopicPartition
from client.assignors import CooperativeStickyAssignor
from protocol import messages as m
from tests.client.conftest import World
from tests.client.test_cancel import cancelled_at

T0 = TopicPartition("t", 0)


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
