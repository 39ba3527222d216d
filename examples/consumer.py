"""A member of a group: read what is assigned, commit how far it came, follow rebalances."""

import trio

from client import OffsetAndMetadata, Rebalanced, connect


async def main() -> None:
    """Read ten more of every partition each second, until Ctrl-C; then leave the group."""
    async with (
        connect("127.0.0.1:9310", client_id="example") as client,
        client.join("readers", topics=["flights"], partitions={"flights": 6}) as member,
    ):
        while True:
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
            await trio.sleep(1)


try:
    trio.run(main)
except* KeyboardInterrupt:
    print("left the group")
