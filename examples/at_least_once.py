"""At least once: process, then commit. A crash repeats what wasn't committed; nothing is lost."""

import trio
from source import handle, read
from stopping import until_stopped

from client import OutcomeUnknown, Rebalanced, TopicPartition, connect


async def main() -> None:
    """Read everything; a message counts as done once it is committed."""
    async with (
        connect("127.0.0.1:9310", client_id="example") as client,
        client.join("at-least-once", topics=["flights"], partitions={"flights": 2}) as member,
    ):
        while True:
            assignment = await member.assignment()
            positions = await member.fetch(assignment.partitions)
            ends: dict[TopicPartition, int] = {}
            for tp in assignment.partitions:
                start = positions[tp].offset if tp in positions else 0
                batch = read(tp, start)
                for message in batch:
                    handle(message)
                if batch:
                    ends[tp] = start + len(batch)
            if not ends:
                return
            try:
                await member.commit(ends)
            except (Rebalanced, OutcomeUnknown):
                print("handled, and maybe not stored: then the next owner does it again")


trio.run(until_stopped, main)
