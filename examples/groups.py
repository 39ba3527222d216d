"""Members of one group share the messages; every other group gets all of them as well."""

import trio
from source import handle, read
from stopping import until_stopped

from client import Client, OutcomeUnknown, Rebalanced, connect


async def reader(client: Client, group: str, name: str) -> None:
    """Read what the group gives this member, until nothing is left."""
    async with client.join(group, topics=["flights"], partitions={"flights": 4}) as member:
        while True:
            assignment = await member.assignment()
            positions = await member.fetch(assignment.partitions)
            starts = {
                tp: positions[tp].offset if tp in positions else 0 for tp in assignment.partitions
            }
            batches = {tp: read(tp, start) for tp, start in starts.items()}
            if not any(batches.values()):
                return
            try:
                await member.commit({tp: starts[tp] + len(batches[tp]) for tp in batches})
            except (Rebalanced, OutcomeUnknown):
                continue
            for batch in batches.values():
                for message in batch:
                    handle(f"{group}: {name} has {message}")


async def main() -> None:
    """Two members share the work of billing, and audit sees everything, too."""
    async with (
        connect("127.0.0.1:9310", client_id="example") as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(reader, client, "billing", "one")
        nursery.start_soon(reader, client, "billing", "two")
        nursery.start_soon(reader, client, "audit", "one")


trio.run(until_stopped, main)
