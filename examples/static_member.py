"""A static member: restarted within its session, it has its partitions at once; nobody else moves.

Its end is no leave: the group waits for it until the session timeout. An operator can remove it.
"""

import trio

from client import connect


async def run(name: str) -> None:
    """Live one life of a static member."""
    async with (
        connect("127.0.0.1:9310", client_id=name) as client,
        client.join(
            "static",
            topics=["flights"],
            partitions={"flights": 2},
            group_instance_id=name,
            session_timeout_ms=60_000,  # Longer than a restart takes.
        ) as member,
    ):
        assignment = await member.assignment()
        print(f"generation {assignment.generation}:", *assignment.partitions)


async def main() -> None:
    """Start, restart, and then go for good."""
    await run("reader-1")
    await run("reader-1")
    async with connect("127.0.0.1:9310", client_id="operator") as client:
        await client.remove_static_members("static", ["reader-1"], "not needed any more")
        print([group.state for group in await client.describe_groups(["static"])])


trio.run(main)
