"""An assignor of your own: one member works, and the others stand by.

All members of a group must offer it. It decides for everybody, in the member that leads.
"""

from collections.abc import Mapping, Sequence

import trio
from stopping import until_stopped

from client import MemberSubscription, TopicPartition, connect


class FirstTakesAll:
    """Everything goes to the member whose id sorts first; the others stand by."""

    name = "first-takes-all"

    def assign(
        self, members: Sequence[MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions of each member; each partition must be somebody's, once."""
        first = min(member.member_id for member in members)
        everything = [TopicPartition(topic, n) for topic in partitions for n in partitions[topic]]
        return {member.member_id: [] for member in members} | {first: everything}


async def main() -> None:
    """Join with it."""
    async with (
        connect("127.0.0.1:9310", client_id="example") as client,
        client.join(
            "own-assignor",
            topics=["flights"],
            partitions={"flights": 2},
            assignors=[FirstTakesAll()],
        ) as member,
    ):
        print(*(await member.assignment()).partitions)
        print([group.protocol_name for group in await client.describe_groups(["own-assignor"])])


trio.run(until_stopped, main)
