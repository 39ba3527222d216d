"""The same group from an asyncio program: the blocking client in a thread."""

import asyncio

from client import OffsetAndMetadata, Rebalanced
from client.blocking import BlockingMember, connect_blocking


async def consume(member: BlockingMember) -> None:
    """Read one batch of ten from every partition."""
    assignment = await asyncio.to_thread(member.assignment)
    positions = await asyncio.to_thread(member.fetch, assignment.partitions)
    for tp in assignment.partitions:
        start = positions[tp].offset if tp in positions else 0
        print(f"generation {assignment.generation}: {tp} from {start} to {start + 9}")
        positions[tp] = OffsetAndMetadata(start + 10)
    try:
        await asyncio.to_thread(member.commit, positions)
    except Rebalanced:
        print("somebody else has these partitions by now; nothing was stored")


def main() -> None:
    """Connect in an ordinary thread; heartbeats go on in one of the client's own."""
    with (
        connect_blocking("127.0.0.1:9310", client_id="example") as client,
        client.join("readers", topics=["flights"], partitions={"flights": 6}) as member,
    ):
        asyncio.run(consume(member))


main()
