"""The network may cut a stream anywhere."""

import trio
from trio.testing import MockClock

from client import OffsetAndMetadata, TopicPartition, TopicSource
from protocol.messages import PartitionHosts
from tests.client.conftest import World

T0 = TopicPartition("t", 0)


class Trickle(trio.abc.Stream):
    """Gives one byte at a time, and takes one byte at a time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return one byte."""
        return await self._stream.receive_some(1)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send byte by byte."""
        for position in range(len(data)):
            await self._stream.send_all(data[position : position + 1])

    async def wait_send_all_might_not_block(self) -> None:
        """Pass on."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Pass on."""
        await self._stream.aclose()


async def test_every_answer_may_come_byte_by_byte(autojump_clock: MockClock, world: World) -> None:
    """Every request that a client has, over the slowest network there is."""
    world.network.wrap = Trickle
    async with world.connect() as client:
        async with client.join("g", ["t"], {"t": 1}) as member:
            assert (await member.assignment()).partitions == (T0,)

            await trio.sleep(10)
            await member.commit({T0: OffsetAndMetadata(5, "é", 3)}, expected={T0: -1})

            assert await member.fetch() == {T0: OffsetAndMetadata(5, "é", 3)}

        assert [one.group_id for one in await client.describe_groups(["g"])] == ["g"]
        assert [one.group_id for one in await client.list_groups()] == ["g"]
        assert await client.delete_groups(["g"]) == {"g": 0}
        assert [one.drained for one in await client.drain_member("g", "client")] == [True]
        await client.register_topics({"t": TopicSource(1, {0: ["é"]})})
        (described,) = await client.describe_topics(pattern="t")
        assert described.hosts == (PartitionHosts(0, ("é",)),)
        assert await client.delete_topics(["t"]) == {"t": 0}

    assert world.server.connections == 1
