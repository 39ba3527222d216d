"""A member in an ordinary thread, until Ctrl-C or SIGTERM: then it leaves its group at once."""

import os
import signal
import time

from client import OffsetAndMetadata, OutcomeUnknown, Rebalanced
from client.blocking import BlockingMember, connect_blocking


def consume(member: BlockingMember) -> None:
    """Read ten more of each partition. Each call waits while the coordinator is away."""
    assignment = member.assignment()  # Joins, or joins again, if that is needed.
    positions = member.fetch(assignment.partitions)
    for tp in assignment.partitions:
        start = positions[tp].offset if tp in positions else 0
        text = f"generation {assignment.generation}: {tp} from {start} to {start + 9}"
        print(text, flush=True)
        positions[tp] = OffsetAndMetadata(start + 10)  # The next offset to read.
    try:
        member.commit(positions)
    except Rebalanced:
        print("other members have these partitions by now; nothing was stored")
    except OutcomeUnknown:
        print("other members have these partitions by now; fetch tells what was stored before")


with (
    connect_blocking("127.0.0.1:9310", client_id="example") as client,
    client.join("blocking", topics=["flights"], partitions={"flights": 6}) as member,
):

    def stop(_signum: int, _frame: object) -> None:
        """Leave, and end; also in the middle of a call that waits."""
        member.leave_soon()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    while True:
        consume(member)
        time.sleep(1)
