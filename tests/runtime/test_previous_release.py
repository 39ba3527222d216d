"""What the previous release left on disk is loaded as it was, and its members just go on.

tests/fixtures/previous_release/README.md says how the folders were made.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from trio.testing import MockClock

from protocol.consumer import Subscription, encode_subscription
from protocol.messages import (
    DescribeGroupsRequest,
    GroupFetch,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
)
from tests.fakes.disk import Disk
from tests.server.world import Client, World, world

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "previous_release"
SETTINGS: Final = ("offsets.topic.segment.bytes=4096",)
MAX_OFFSET: Final = 2**63 - 1

pytestmark = pytest.mark.parametrize("name", ["clean", "unclean"])


def expected(name: str) -> dict[str, Any]:
    """Return what the code that wrote the folder read from it, by group."""
    groups: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="ascii"))
    return groups


def hard_state(w: World) -> dict[str, Any]:
    """Return what the present code holds, as far as the previous one could know it."""
    return {
        group_id: {
            "generation": group.generation,
            "stable": None if group.stable is None else _described(group.stable),
            "offsets": [[topic, partition, *value] for topic, partition, value in group.offsets],
        }
        for shard in w.node.shards
        for group_id, group in shard.core.hard_state().items()
    }


def _described(stable: Any) -> dict[str, Any]:
    members = [
        {name: v.hex() if type(v) is bytes else v for name, v in member._asdict().items()}
        for member in stable.members
    ]
    described: dict[str, Any] = stable._asdict() | {"members": members}
    return described


def known(found: Any, before: Any) -> Any:
    """Return *found* without the fields that records have got since, at every depth."""
    if isinstance(found, dict) and isinstance(before, dict):
        return {key: known(found.get(key), value) for key, value in before.items()}
    if isinstance(found, list) and isinstance(before, list) and len(found) == len(before):
        return [known(f, b) for f, b in zip(found, before, strict=True)]
    return found


async def ask(client: Client, request: Any) -> Any:
    """Return the answer."""
    return await client.ask(request)


async def test_all_hard_state_is_as_it_was_written(name: str, autojump_clock: MockClock) -> None:
    """Offsets, generations, members, assignments: nothing may get lost in an update."""
    before = expected(name)
    async with world(*SETTINGS, disk=Disk.with_files_of(FOLDER / name)) as w:
        found = hard_state(w)

    assert set(found) == set(before)
    assert {group_id: known(found[group_id], before[group_id]) for group_id in before} == before


async def test_clients_find_their_offsets_and_groups(name: str, autojump_clock: MockClock) -> None:
    """The same, as a client sees it."""
    before = expected(name)
    async with world(*SETTINGS, disk=Disk.with_files_of(FOLDER / name)) as w:
        client = w.connect()
        listed = await ask(client, ListGroupsRequest((), ()))
        assert {group.group_id for group in listed.groups} == set(before)
        fetch = OffsetFetchRequest(tuple(GroupFetch(group_id, None) for group_id in before), True)
        for group in (await ask(client, fetch)).groups:
            offsets = [
                [topic.topic, p.partition, p.offset, p.leader_epoch, p.metadata]
                for topic in group.topics
                for p in topic.partitions
            ]
            assert sorted(offsets) == [entry[:5] for entry in before[group.group_id]["offsets"]]
        described = (await ask(client, DescribeGroupsRequest(("stable", "empty")))).groups
        assert [(g.state, g.generation_id) for g in described] == [("Stable", 3), ("Empty", 2)]
        assert {member.member_id: member.assignment.hex() for member in described[0].members} == {
            member["member_id"]: member["assignment"]
            for member in before["stable"]["stable"]["members"]
        }


@pytest.mark.parametrize("group_id", ["stable", "opaque"])
async def test_members_go_on_with_their_ids(
    name: str, group_id: str, autojump_clock: MockClock
) -> None:
    """An update of the server must not make a healthy group rebalance."""
    stable = expected(name)[group_id]["stable"]
    async with world(*SETTINGS, disk=Disk.with_files_of(FOLDER / name)) as w:
        client = w.connect()
        for member in stable["members"]:
            beat = HeartbeatRequest(group_id, stable["generation"], member["member_id"], None)
            assert await client.error(beat) == 0


async def test_a_member_may_commit_what_it_owned(name: str, autojump_clock: MockClock) -> None:
    """Ownership is read from the old record's assignment; another's partition stays refused."""
    async with world(*SETTINGS, disk=Disk.with_files_of(FOLDER / name)) as w:
        client = w.connect()
        one, two = (m["member_id"] for m in expected(name)["stable"]["stable"]["members"])
        for member_id, error in ((one, 0), (two, 1002)):
            entry = TopicCommit("flights", (PartitionCommit(2, 301, -1, "", None),))
            answer = await ask(client, OffsetCommitRequest("stable", 3, member_id, None, (entry,)))
            assert answer.topics[0].partitions[0].error == error


async def test_a_generation_that_was_told_is_never_told_again(
    name: str, autojump_clock: MockClock
) -> None:
    """Generation 2 was never assigned, but somebody may act in it."""
    (member,) = expected(name)["told"]["stable"]["members"]
    subscription = encode_subscription(Subscription(("flights",)))
    async with world(*SETTINGS, disk=Disk.with_files_of(FOLDER / name)) as w:
        client = w.connect()
        assert await client.error(HeartbeatRequest("told", 2, member["member_id"], None)) == 27
        protocols = (JoinProtocol("range", subscription),)
        joined = await ask(
            client,
            JoinGroupRequest(
                "told", 30_000, 60_000, member["member_id"], None, "consumer", protocols, None
            ),
        )

        assert (joined.error, joined.generation_id) == (0, 3)


async def test_what_is_written_now_lies_behind_what_was(
    name: str, autojump_clock: MockClock
) -> None:
    """The log goes on, and a second start reads old and new records together."""
    disk = Disk.with_files_of(FOLDER / name)
    before = expected(name)
    async with world(*SETTINGS, disk=disk) as w:
        entry = TopicCommit("flights", (PartitionCommit(1, MAX_OFFSET, -1, "now", None),))
        request = OffsetCommitRequest("deleted and back", -1, "", None, (entry,))
        assert await w.connect().error(request) == 0
    disk.kill()
    async with world(*SETTINGS, disk=disk) as w:
        found = hard_state(w)

    assert found.pop("deleted and back")["offsets"][0][:5] == ["flights", 1, MAX_OFFSET, -1, "now"]
    del before["deleted and back"]
    assert {group_id: known(found[group_id], before[group_id]) for group_id in before} == before
