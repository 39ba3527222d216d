"""A pattern of topics: those that come later, and partitions that are added, are read as well."""

import trio
from stopping import until_stopped

from client import Client, connect


async def grow(client: Client) -> None:
    """Tell the coordinator what there is, as whoever makes the topics should."""
    for topics in ({"orders-eu": 1, "invoices": 1}, {"orders-us": 2}, {"orders-eu": 2}):
        await client.register_topics(topics)
        await trio.sleep(0.5)


async def main() -> None:
    """Follow the topics until there are four partitions."""
    async with (
        connect("127.0.0.1:9310", client_id="example") as client,
        client.join("patterns", pattern="orders-.*") as member,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(grow, client)
        while True:
            assignment = await member.assignment()
            print(f"generation {assignment.generation}:", *assignment.partitions)
            if len(assignment.partitions) == 4:
                return
            await member.wait_rebalance_needed()


trio.run(until_stopped, main)
