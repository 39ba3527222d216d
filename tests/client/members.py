"""What a caller is told, written down; and a cooperative member whose group rebalances."""

from typing import Any

import trio

from client import Client, Member, TopicPartition
from client.assignors import CooperativeStickyAssignor
from protocol import consumer, messages as m
from tests.client.conftest import World
from tests.fakes.scripted_server import MEMBER_ID, Answer, Hang, Hold

NAME = CooperativeStickyAssignor().name


class Told:
    """Callbacks that write down what they are told, and do *then* afterwards."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[TopicPartition, ...]]] = []

    def __call__(self, name: str, then: Any = None) -> Any:
        """Return the callback *name*."""

        async def callback(partitions: tuple[TopicPartition, ...]) -> None:
            await trio.lowlevel.checkpoint()
            self.calls.append((name, partitions))
            if then is not None:
                await then()

        return callback

    @property
    def all(self) -> dict[str, Any]:
        """All three, for `Client.join`."""
        return {name: self(name) for name in ("on_assigned", "on_revoked", "on_lost")}


def join(client: Client, partitions: Any = None, **options: Any) -> Member:
    """Return a cooperative member of a group that reads one topic of two partitions."""
    assignors = [CooperativeStickyAssignor()]
    return client.join("g", ["t"], partitions or {"t": 2}, assignors=assignors, **options)


def joined(generation: int) -> m.JoinGroupResponse:
    """Answer a JoinGroup of a follower."""
    return m.JoinGroupResponse(0, generation, "consumer", NAME, "other", False, MEMBER_ID, ())


def synced(*partitions: TopicPartition) -> m.SyncGroupResponse:
    """Answer a SyncGroup."""
    data = consumer.encode_assignment(consumer.Assignment(partitions, b""))
    return m.SyncGroupResponse(0, "consumer", NAME, data)


async def rebalance(
    world: World,
    member: Member,
    joining: Answer | Hang | Hold | m.Response,
    syncing: Answer | Hang | Hold | m.Response,
) -> None:
    """Have the group rebalance; say how the next JoinGroup and SyncGroup are answered."""
    world.server.script(m.HeartbeatRequest, 27)
    await member.wait_rebalance_needed()
    answer(world, m.JoinGroupRequest, joining)
    answer(world, m.SyncGroupRequest, syncing)


def answer(world: World, kind: type, what: Answer | Hang | Hold | m.Response) -> None:
    """Answer the next request of *kind*."""
    step = what if isinstance(what, Answer | Hang | Hold) else Answer(what)
    world.server.script(kind, step)
