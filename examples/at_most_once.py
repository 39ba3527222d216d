"""At most once: commit, then process. A crash loses what was committed; nothing comes twice."""

import trio
from source import handle, read
from stopping import until_stopped

from client import OutcomeUnknown, Rebalanced, TopicPartition, connect


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
            except (Rebalanced, OutcomeUnknown):
                continue  # Nothing was handled: what was not stored, the next owner reads.
            for message in messages:
                handle(message)


trio.run(until_stopped, main)
