"""A member in an ordinary thread, which leaves its group at once when the process is stopped."""

import os
import signal

from client.blocking import connect_blocking

with (
    connect_blocking("127.0.0.1:9310", client_id="example") as client,
    client.join("blocking", topics=["flights"], partitions={"flights": 6}) as member,
):

    def stop(_signum: int, _frame: object) -> None:
        """Leave, and end."""
        member.leave_soon()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    assignment = member.assignment(timeout_s=60)
    member.commit(dict.fromkeys(assignment.partitions, 10))
    print(*sorted(member.fetch()), flush=True)
    signal.raise_signal(signal.SIGTERM)
