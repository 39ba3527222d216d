"""A consumer in an asyncio program, until Ctrl-C or SIGTERM: then it leaves the group at once."""

import asyncio
import signal
from contextlib import suppress

from client import OffsetAndMetadata, OutcomeUnknown, Rebalanced
from client.aio import Member, connect


async def consume(member: Member) -> None:
    """Read ten more of each partition. Each call waits while the coordinator is away."""
    assignment = await member.assignment()  # Joins, or joins again, if that is needed.
    positions = await member.fetch(assignment.partitions)
    for tp in assignment.partitions:
        start = positions[tp].offset if tp in positions else 0
        print(f"generation {assignment.generation}: {tp} from {start} to {start + 9}")
        positions[tp] = OffsetAndMetadata(start + 10)  # The next offset to read.
    try:
        await member.commit(positions)
    except Rebalanced:
        print("other members have these partitions by now; nothing was stored")
    except OutcomeUnknown:
        print("other members have these partitions by now; fetch tells what was stored before")


async def read() -> None:
    """Read each second, until cancelled; then leave the group."""
    async with (
        connect("127.0.0.1:9310", client_id="example") as client,
        client.join("readers", topics=["flights"], partitions={"flights": 6}) as member,
    ):
        while True:
            await consume(member)
            await asyncio.sleep(1)


async def main() -> None:
    """Read until Ctrl-C or SIGTERM; what else the program does goes on meanwhile."""
    reading = asyncio.create_task(read())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, reading.cancel)
    with suppress(asyncio.CancelledError):
        await reading
    print("left the group")


asyncio.run(main())
