"""What operators look at: lag, rebalances, and all committed offsets with their changes."""

import trio

from client import TopicPartition, connect

T0, T1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


async def main() -> None:
    """Commit a little, then look at it from all sides."""
    async with connect("127.0.0.1:9310", client_id="operator") as client:
        await client.register_topics({"clicks": 2})
        await client.report_end_offsets({T0: 20})
        async with client.join("watched", topics=["clicks"], reason="a look") as member:
            await member.assignment()
            await member.commit({T0: 15, T1: 15})
            for tp, lag in (await client.lag("watched")).items():
                print(f"{tp}: committed {lag.committed}, end {lag.end}, lag {lag.lag}")
        for rebalance in await client.rebalances("watched", limit=2):
            print(f"rebalance {rebalance.number}: {rebalance.reason}")

        await client.commit("watched", {T0: 20})
        await client.delete_offsets("watched", [T1])
        known: dict[TopicPartition, int] = {}
        with trio.move_on_after(2):
            async for event in client.watch_offsets(["watched"], from_beginning=True):
                tp = TopicPartition(event.topic or "", event.partition or 0)
                match event.kind:
                    case "found" | "committed":
                        known[tp] = event.offset or 0
                    case "removed":
                        known.pop(tp, None)
                    case "scan" | "group deleted":
                        known.clear()
        print({str(tp): offset for tp, offset in known.items()})


trio.run(main)
