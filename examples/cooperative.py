"""Cooperative: partitions that stay with a member are read on while the group rebalances."""

from collections.abc import Callable

import trio
from stopping import until_stopped

from client import Client, CooperativeStickyAssignor, Member, TopicPartition, connect


def tell(who: str, what: str) -> Callable[[tuple[TopicPartition, ...]], None]:
    """Return a callback that prints the partitions that it is about."""
    return lambda partitions: print(who, what, *(partitions or ["nothing new"]))


def join(client: Client, name: str) -> Member:
    """Return a member that tells what changes."""
    return client.join(
        "cooperative",
        topics=["flights"],
        partitions={"flights": 4},
        assignors=[CooperativeStickyAssignor()],
        on_assigned=tell(name, "gets"),
        on_revoked=tell(name, "gives up"),
    )


async def read(member: Member) -> None:
    """Read until the partitions are shared equally."""
    assignment = await member.assignment()
    while len(assignment.partitions) != 2:
        await trio.sleep(0.05)  # Read and commit all of them here: they are this member's.
        assignment = await member.assignment()  # Waits only for a member without partitions.


async def main() -> None:
    """Read alone, then share with a second member, which costs the first only what it gives up."""
    async with connect("127.0.0.1:9310", client_id="example") as client, join(client, "one") as one:
        await one.assignment()
        async with join(client, "two") as two, trio.open_nursery() as nursery:
            nursery.start_soon(read, one)
            nursery.start_soon(read, two)


trio.run(until_stopped, main)
