"""Effectively once: results and offset change in one transaction of the database.

The database decides how far a partition is; the group decides who reads it, and shows its lag.
A reader that lost its partition without knowing it finds that the offset has moved on.
"""

import sqlite3

import trio
from source import read
from stopping import until_stopped

from client import CommitRefused, OutcomeUnknown, Rebalanced, TopicPartition, connect

db = sqlite3.connect("results.db")
db.execute("CREATE TABLE IF NOT EXISTS results (message TEXT)")
db.execute("CREATE TABLE IF NOT EXISTS positions (tp TEXT PRIMARY KEY, next INTEGER)")


def position(tp: TopicPartition) -> int:
    """Return how far *tp* is done."""
    found = db.execute("SELECT next FROM positions WHERE tp = ?", [str(tp)]).fetchone()
    return 0 if found is None else int(found[0])


def store(tp: TopicPartition, start: int, messages: list[str]) -> bool:
    """Store the results, unless somebody else has moved on from *start*; return whether."""
    with db:
        db.execute("INSERT OR IGNORE INTO positions VALUES (?, 0)", [str(tp)])
        move = "UPDATE positions SET next = ? WHERE tp = ? AND next = ?"
        if not db.execute(move, [start + len(messages), str(tp), start]).rowcount:
            return False
        db.executemany("INSERT INTO results VALUES (?)", [[message] for message in messages])
    return True


async def main() -> None:
    """Read everything."""
    async with (
        connect("127.0.0.1:9310", client_id="example") as client,
        client.join("effectively-once", topics=["flights"], partitions={"flights": 2}) as member,
    ):
        while True:
            assignment = await member.assignment()
            committed = await member.fetch(assignment.partitions)
            starts = {tp: position(tp) for tp in assignment.partitions}
            if all(read(tp, start) == [] for tp, start in starts.items()):
                return
            for tp, start in starts.items():
                batch = read(tp, start)
                if not store(tp, start, batch):
                    continue
                expected = committed[tp].offset if tp in committed else -1
                try:
                    await member.commit({tp: start + len(batch)}, {tp: expected})
                except (Rebalanced, CommitRefused, OutcomeUnknown):
                    print("the group's offset follows with the next commit")


trio.run(until_stopped, main)
