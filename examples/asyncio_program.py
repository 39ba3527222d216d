"""A consumer in an asyncio program, until Ctrl-C: then it leaves the group at once."""

import asyncio
from contextlib import suppress

from client import OffsetAndMetadata, Rebalanced
from client.aio import Member, connect


async def consume(member: Member) -> None:
    """Read a batch of ten from every partition."""
    async with asyncio.timeout(60):
        assignment = await member.assignment()  # Joins, or joins again, if that is needed.
    positions = await member.fetch(assignment.partitions)
    for tp in assignment.partitions:
        start = positions[tp].offset if tp in positions else 0
        print(f"generation {assignment.generation}: {tp} from {start} to {start + 9}")
        positions[tp] = OffsetAndMetadata(start + 10)  # The next offset to read.
    try:
        await member.commit(positions)
    except Rebalanced:
        print("somebody else has these partitions by now; nothing was stored")


async def main() -> None:
    """Read a batch every second; what else the program does goes on meanwhile."""
    async with (
        connect("127.0.0.1:9310", client_id="example") as client,
        client.join("readers", topics=["flights"], partitions={"flights": 6}) as member,
    ):
        while True:
            await consume(member)
            await asyncio.sleep(1)


with suppress(KeyboardInterrupt):
    asyncio.run(main())
