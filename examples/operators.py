"""What operators look at: lag, rebalances, and all committed offsets with their changes."""

import trio

from client import TopicPartition, connect

T0, T1 = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
Key = tuple[str, str, int]


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

        where = await client.offsets_partition("watched")
        scan = client.scan_offset_columns(where)
        offsets: dict[Key, int] = {
            (one.group_id, one.topic, one.partition): one.offset async for one in scan
        }
        await client.commit("watched", {T0: 20})
        await client.delete_offsets("watched", [T1])
        changes = await client.offset_changes(where, scan.position)
        for change in changes.changes:
            match change.kind:
                case "committed":
                    offsets[change.group_id, change.topic, change.partition] = change.offset
                case "removed":
                    offsets.pop((change.group_id, change.topic, change.partition), None)
                case "group deleted":
                    for key in [key for key in offsets if key[0] == change.group_id]:
                        del offsets[key]
        print({key: offset for key, offset in offsets.items() if key[0] == "watched"})


trio.run(main)
