"""A member of a group: read what is assigned, commit how far it came, follow rebalances."""

import signal

import trio

from client import Member, OffsetAndMetadata, OutcomeUnknown, Rebalanced, connect


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
            await trio.sleep(1)


async def main() -> None:
    """Read until Ctrl-C or SIGTERM."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            await anext(signals)
        nursery.cancel_scope.cancel()
    print("left the group")


trio.run(main)
