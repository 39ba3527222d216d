"""Clients that break the rules: old generations, stolen ids, garbage, silence."""

import random
from contextlib import suppress

import trio

from protocol import consumer
from protocol.connection import ClientConnection
from protocol.errors import RemoteProtocolError
from protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    OffsetCommitRequest,
    PartitionCommit,
    Request,
    Response,
    SyncGroupRequest,
    TopicCommit,
)
from protocol.partition import TopicPartition
from tests.sim.network import ClientStream
from tests.sim.world import World

TOPIC = "flights"
_PATIENCE_S = 3.0
_STREAM_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Rogue:
    """Opens a connection, does one bad thing, and goes away; again and again."""

    def __init__(self, world: World, name: str, groups: list[str]) -> None:
        self.world = world
        self.name = name
        self._groups = groups
        self._rng: random.Random = world.rng(f"rogue {name}")
        self._tricks = [
            self._commit_as_somebody,
            self._heartbeat_as_somebody,
            self._sync_as_somebody,
            self._join_and_vanish,
            self._join_and_never_sync,
            self._assign_twice,
            self._send_garbage,
            self._stop_in_a_frame,
        ]

    async def run(self) -> None:
        """Misbehave until the faults are over."""
        while not self.world.healed:
            await trio.sleep(self._rng.uniform(0, 4))
            trick = self._rng.choice(self._tricks)
            with suppress(*_STREAM_ERRORS, RemoteProtocolError):
                stream = await self.world.network.open(self.name)
                async with stream:
                    await trick(Speaker(stream))

    def _somebody(self) -> tuple[str, str, int, str | None]:
        """Return group, member id, a generation near one that somebody was told, and instance."""
        seen = [
            (
                a.request.group_id,
                a.response.member_id,
                a.response.generation_id,
                a.request.group_instance_id,
            )
            for a in self.world.history.attempts[-300:]
            if isinstance(a.request, JoinGroupRequest)
            and isinstance(a.response, JoinGroupResponse)
            and a.response.error == 0
        ]
        if not seen:
            return self._rng.choice(self._groups), "nobody", 1, None
        group, member_id, generation, instance_id = self._rng.choice(seen)
        generation = max(0, generation + self._rng.choice((-1, 0, 0, 1)))
        return group, member_id, generation, self._rng.choice((instance_id, None))

    def _join_request(self, group: str, member_id: str) -> JoinGroupRequest:
        metadata = consumer.encode_subscription(consumer.Subscription((TOPIC,), b"", (), -1, None))
        # After a crash a member is known with the one protocol that was chosen, so that a
        # rogue which had chosen another would keep the group's own members out.
        eager = ("range", "roundrobin")
        names = ("cooperative-sticky",) if self.world.is_cooperative(group) else eager
        protocols = tuple(JoinProtocol(name, metadata) for name in names)
        return JoinGroupRequest(group, 2_000, 3_000, member_id, None, "consumer", protocols, None)

    async def _commit_as_somebody(self, speaker: "Speaker") -> None:
        group, member_id, generation, instance_id = self._somebody()
        number = self.world.next_id()
        item = PartitionCommit(self._rng.randrange(5), number, -1, f"id-{number}", None)
        topics = (TopicCommit(TOPIC, (item,)),)
        await speaker.ask(OffsetCommitRequest(group, generation, member_id, instance_id, topics))

    async def _heartbeat_as_somebody(self, speaker: "Speaker") -> None:
        group, member_id, generation, instance_id = self._somebody()
        await speaker.ask(HeartbeatRequest(group, generation, member_id, instance_id))

    async def _sync_as_somebody(self, speaker: "Speaker") -> None:
        group, member_id, generation, instance_id = self._somebody()
        mine = (MemberAssignment(member_id, _assignment(0, 1, 2, 3, 4)),)
        await speaker.ask(
            SyncGroupRequest(group, generation, member_id, instance_id, None, None, mine)
        )

    async def _join(self, speaker: "Speaker") -> tuple[str, JoinGroupResponse | None]:
        group = self._rng.choice(self._groups)
        first = await speaker.ask(self._join_request(group, ""))
        if not isinstance(first, JoinGroupResponse) or self._rng.random() < 0.2:
            return group, None  # An id that is never used.
        answer = await speaker.ask(self._join_request(group, first.member_id))
        return group, answer if isinstance(answer, JoinGroupResponse) else None

    async def _join_and_vanish(self, speaker: "Speaker") -> None:
        with trio.move_on_after(self._rng.uniform(0, 1)):
            await self._join(speaker)

    async def _join_and_never_sync(self, speaker: "Speaker") -> None:
        group, answer = await self._join(speaker)
        await trio.sleep(self._rng.uniform(0, 2))
        if answer is not None and self._rng.random() < 0.5:
            leaving = (LeavingMember(answer.member_id, None, "bored"),)
            await speaker.ask(LeaveGroupRequest(group, leaving))

    async def _assign_twice(self, speaker: "Speaker") -> None:
        """Lead, and give one partition to everybody."""
        group, answer = await self._join(speaker)
        if answer is None or answer.error:
            return
        given = tuple(MemberAssignment(m.member_id, _assignment(0)) for m in answer.members)
        sync = SyncGroupRequest(
            group, answer.generation_id, answer.member_id, None, None, None, given
        )
        await speaker.ask(sync)

    async def _send_garbage(self, speaker: "Speaker") -> None:
        size = self._rng.randint(1, 60)
        await speaker.stream.send_all(self._rng.randbytes(size))
        with trio.move_on_after(_PATIENCE_S):
            await speaker.stream.receive_some()

    async def _stop_in_a_frame(self, speaker: "Speaker") -> None:
        frame = ClientConnection().send(self._join_request(self._groups[0], ""))[1]
        await speaker.stream.send_all(frame[: self._rng.randrange(len(frame))])
        await trio.sleep(self._rng.uniform(0, 15))


class Speaker:
    """A connection without any manners of its own."""

    def __init__(self, stream: ClientStream) -> None:
        self.stream = stream
        self._protocol = ClientConnection()

    async def ask(self, request: Request) -> Response | None:
        """Return the answer, or None if it takes too long."""
        await self.stream.send_all(self._protocol.send(request)[1])
        with trio.move_on_after(_PATIENCE_S):
            while True:
                data = await self.stream.receive_some()
                if not data:
                    return None
                events = self._protocol.receive(data)
                if events:
                    return events[0].response
        return None


def _assignment(*partitions: int) -> bytes:
    listed = tuple(TopicPartition(TOPIC, n) for n in partitions)
    return consumer.encode_assignment(consumer.Assignment(listed, b""))
