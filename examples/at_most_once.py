"""At most once: commit, then process. A crash loses what was committed; nothing comes twice."""

import trio
from source import handle, read

from client import Rebalanced, TopicPartition, connect


async def main() -> None:
    """Read everything; what was committed and not handled is never seen again."""
    async with (
        connect("127.0.0.1:9310", client_id="example") as client,
        client.join("at-most-once", topics=["flights"], partitions={"flights": 2}) as member,
    ):
        while True:
            assignment = await member.assignment()
            positions = await member.fetch(assignment.partitions)
            messages: list[str] = []
            ends: dict[TopicPartition, int] = {}
            for tp in assignment.partitions:
                start = positions[tp].offset if tp in positions else 0
                batch = read(tp, start)
                messages += batch
                ends[tp] = start + len(batch)
            if not messages:
                return
            try:
                await member.commit(ends)
            except Rebalanced:
                continue  # Nothing was stored, and nothing handled: the next owner reads it.
            for message in messages:
                handle(message)


trio.run(main)
