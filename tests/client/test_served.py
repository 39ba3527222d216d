"""Operators' calls and members against the real daemon, in memory. The clock is virtual."""

import pytest
import trio
from trio.testing import MockClock

from client import (
    Acl,
    Assignor,
    Client,
    CommitRefused,
    CooperativeStickyAssignor,
    ErrorCode,
    FatalError,
    Lag,
    MemberLost,
    OffsetAndMetadata,
    PositionTooOld,
    RangeAssignor,
    TopicPartition,
    TopicSource,
)
from client.operators import offsets_of_page
from coordinator.group import scans
from protocol.acls import Operation, ResourceType
from protocol.messages import PartitionHosts
from protocol.scram import ITERATIONS
from tests.client.served import served
from tests.fakes.disk import Disk

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
State = dict[tuple[str, TopicPartition], int]


async def test_registered_topics_are_described_as_they_are(autojump_clock: MockClock) -> None:
    """Whoever asks must hear what the source said, and when it reported last."""
    async with served() as here, here.connect() as client:
        await client.register_topics({"t": TopicSource(2, {1: ["a", "b"]}), "u": 1})
        await client.report_end_offsets({T0: 7})

        (t,) = await client.describe_topics(["t"], with_end_offsets=True)
        assert (t.partition_count, t.hosts) == (2, (PartitionHosts(1, ("a", "b")),))
        assert [(end.partition, end.end_offset) for end in t.end_offsets] == [(0, 7)]
        assert [one.topic for one in await client.describe_topics(pattern="[u-z]")] == ["u"]
        with pytest.raises(FatalError, match="INVALID_REGULAR_EXPRESSION"):
            await client.describe_topics(pattern="(")
        with pytest.raises(FatalError, match="INVALID_PARTITIONS"):
            await client.register_topics({"t": 1})
        with pytest.raises(FatalError, match="u-1"):
            await client.report_end_offsets({TopicPartition("u", 1): 1})


async def test_a_report_about_topics_that_nobody_registered_is_short_and_says_what_to_do(
    autojump_clock: MockClock,
) -> None:
    """Of 136 partitions each had its own sentence: 13,000 characters in a line of a log."""
    async with served() as here, here.connect() as client:
        await client.register_topics({"known": 4})
        ends = {TopicPartition("orders", number): 5 for number in range(136)}
        ends |= {TopicPartition("known", number): 5 for number in range(4)}
        with pytest.raises(FatalError) as raised:
            await client.report_end_offsets(ends)
        text = str(raised.value)

        assert text.startswith(
            "136 of 140 end offsets were not taken: orders-0, orders-1, orders-2, orders-3, "
            "orders-4 and 131 more: UNKNOWN_TOPIC_OR_PARTITION (3)"
        )
        assert "topics register" in text
        assert len(text) < 500
        (described,) = await client.describe_topics(["known"], with_end_offsets=True)
        assert len(described.end_offsets) == 4


async def test_rules_users_and_quotas_are_changed_and_outlive_a_restart(
    autojump_clock: MockClock,
) -> None:
    """They are in the log, and each call says what became of it."""
    disk = Disk()
    rule = Acl("User:alice", Operation.READ, ResourceType.GROUP, "etl", prefix=True)
    async with served(disk=disk) as here, here.connect() as client:
        await client.create_acls([rule, rule._replace(deny=True)])
        with pytest.raises(FatalError, match="User:<name>"):
            await client.create_acls([rule._replace(principal="alice")])
        await client.set_password("alice", "correct horse")
        with pytest.raises(FatalError, match="UNACCEPTABLE_CREDENTIAL"):
            await client.set_password("*", "correct horse")
        with pytest.raises(FatalError, match="RESOURCE_NOT_FOUND"):
            await client.remove_password("bob")
        with pytest.raises(ValueError, match="PLAIN"):
            await client.remove_password("bob", "PLAIN")
        await client.alter_quotas("User:alice", {"connections": 5, "byte_rate": 7})
        await client.alter_quotas(None, {"connections": 1})
        await client.alter_quotas("User:alice", {"byte_rate": None})
        with pytest.raises(FatalError, match="wings"):
            await client.alter_quotas(None, {"wings": 1})
    disk.kill()
    async with served(disk=disk) as here, here.connect() as client:
        concerned = await client.describe_acls("User:alice", ResourceType.GROUP, "etl-7")
        assert set(concerned) == {rule, rule._replace(deny=True)}
        assert await client.describe_acls(resource_type=ResourceType.TOPIC) == []
        assert await client.describe_users() == {"alice": {"SCRAM-SHA-256": ITERATIONS}}
        assert await client.describe_quotas() == {
            None: {"connections": 1},
            "User:alice": {"connections": 5},
        }
        assert await client.delete_acls([rule, rule]) == [rule]
        await client.remove_password("alice")
        assert await client.describe_users() == {}


async def test_a_group_rebalances_when_its_topics_grow_or_come(autojump_clock: MockClock) -> None:
    """Nobody has to restart a consumer for a new partition."""
    async with served() as here, here.connect() as client, here.connect() as operator:
        await operator.register_topics({"orders-eu": 1, "other": 1})
        async with client.join("g", pattern="orders-.*") as member:
            assert len((await member.assignment()).partitions) == 1
            for topics in ({"orders-us": 1}, {"orders-eu": 2}):
                await operator.register_topics(topics)
                with trio.fail_after(60):
                    await member.wait_rebalance_needed()
                assignment = await member.assignment()

            assert list(map(str, assignment.partitions)) == [
                "orders-eu-0",
                "orders-eu-1",
                "orders-us-0",
            ]
        reasons = [rebalance.reason for rebalance in await operator.rebalances("g")]
        assert any("orders-eu grew from 1 to 2" in reason for reason in reasons)


async def test_the_offsets_of_a_deleted_topic_go_with_it(autojump_clock: MockClock) -> None:
    """A topic of the same name that comes later begins at its beginning."""
    async with served() as here, here.connect() as client:
        await client.register_topics({"t": 2})
        await client.commit("g", {T0: 5, TopicPartition("u", 0): 6})

        assert await client.delete_topics(["t", "v"]) == {"t": 0, "v": 3}
        await client.register_topics({"t": 1})

        assert await client.fetch_offsets("g") == {TopicPartition("u", 0): OffsetAndMetadata(6)}
        with pytest.raises(CommitRefused) as caught:
            await client.commit("g", {T0: 1, T1: 1})
        assert caught.value.errors == {T1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_lag_tells_the_owner_and_what_is_not_known(autojump_clock: MockClock) -> None:
    """A partition that nobody has reported is not one that is up to date."""
    async with served() as here, here.connect() as client:
        await client.register_topics({"t": 2})
        await client.report_end_offsets({T0: 3})
        with pytest.raises(FatalError, match="GROUP_ID_NOT_FOUND"):
            await client.lag("g")
        async with client.join("g", ["t"]) as member:
            await member.assignment()
            await member.commit({T0: 5})

            assert await member.lag() == {
                T0: Lag(5, 3, None, member.member_id),  # The report is old.
                T1: Lag(None, None, None, member.member_id),
            }


async def test_the_history_tells_who_caused_each_rebalance(autojump_clock: MockClock) -> None:
    """That it is rebalancing is all that most coordinators say."""
    async with served() as here, here.connect("reader") as client, here.connect() as operator:
        async with client.join("g", ["t"], {"t": 1}, reason="a first try") as member:
            await member.assignment()
            member_id = member.member_id
            await member.leave("shutting down")

        left, joined = await operator.rebalances("g")
        assert (joined.number, joined.member_id, joined.client_id) == (1, member_id, "reader")
        assert (joined.old_generation, joined.new_generation, joined.members) == (0, 1, 1)
        assert "a first try" in joined.reason
        assert (left.outcome, left.new_generation) == ("empty", 2)
        assert "shutting down" in left.reason
        assert [one.number for one in await operator.rebalances("g", 1)] == [2]


async def test_offsets_of_a_topic_that_is_read_cannot_be_deleted(autojump_clock: MockClock) -> None:
    """Its reader would begin anew without knowing why."""
    u0 = TopicPartition("u", 0)
    async with served() as here, here.connect() as client:
        await client.commit("g", {T0: 1, u0: 1})
        async with client.join("g", ["t"], {"t": 1}) as member:
            await member.assignment()
            assert await client.delete_offsets("g", [T0, u0]) == {T0: 86, u0: 0}
            assert await member.fetch() == {T0: OffsetAndMetadata(1)}
        with pytest.raises(FatalError, match="GROUP_ID_NOT_FOUND"):
            await client.delete_offsets("nobody", [T0])


async def test_a_group_with_members_is_put_elsewhere(autojump_clock: MockClock) -> None:
    """What nobody owns beside them; what a member owns with the member taken out and back in."""
    async with (
        served() as here,
        here.connect() as operator,
        here.connect("reader") as client,
        client.join("g", ["t"], {"t": 1}) as member,
    ):
        await member.assignment()
        await member.commit({T0: 5})
        first = member.member_id
        refused = await operator.alter_offsets("g", {T0: 50, T1: OffsetAndMetadata(7, "m")})
        assert refused == ({T0: 1009, T1: 0}, ())
        wrong = await operator.alter_offsets("g", {T0: 50}, {T0: 4}, remove_owners=True)
        assert wrong == ({T0: 1003}, ())
        done = await operator.alter_offsets(
            "g", {T0: 50}, {T0: 5}, remove_owners=True, reason="wrong rows"
        )
        assert done == ({T0: 0}, (first,))
        with pytest.raises(MemberLost, match="offsets altered on request: wrong rows"):
            await member.commit({T0: 6})
        await member.assignment()
        assert member.member_id != first
        assert await member.fetch([T0]) == {T0: OffsetAndMetadata(50)}
        await member.commit({T0: 51})


async def test_a_retention_of_its_own_is_shown_with_the_group(autojump_clock: MockClock) -> None:
    """An operator has to see what was set, also long after."""
    async with served() as here, here.connect() as client:
        await client.commit("g", {T0: 1})
        seen = []
        for retention_ms in (60_000, -1, None):
            await client.set_offsets_retention("g", retention_ms)
            seen += [one.offsets_retention_ms for one in await client.describe_groups(["g"])]
        with pytest.raises(FatalError, match="GROUP_ID_NOT_FOUND"):
            await client.set_offsets_retention("nobody", 1)

    assert seen == [60_000, -1, 7 * 24 * 3_600_000]


async def test_a_restarted_static_member_disturbs_nobody_and_can_be_removed(
    autojump_clock: MockClock,
) -> None:
    """A rolling restart of a hundred of them is a hundred rebalances otherwise."""
    async with served() as here, here.connect() as operator:
        for _ in range(2):
            async with (
                here.connect() as client,
                client.join("g", ["t"], {"t": 2}, group_instance_id="one") as member,
            ):
                assert (await member.assignment())[0::2] == (1, (T0, T1))

        assert await operator.remove_static_members("g", ["one", "two"]) == {"one": 0, "two": 25}
        assert [group.state for group in await operator.describe_groups(["g"])] == ["Empty"]


async def test_a_static_member_that_is_replaced_is_told_by_whom(autojump_clock: MockClock) -> None:
    """Two programs with the same name are a mistake that somebody has to find."""
    async with (
        served() as here,
        here.connect("old") as old,
        here.connect("new") as new,
        old.join("g", ["t"], {"t": 1}, group_instance_id="one") as first,
        new.join("g", ["t"], {"t": 1}, group_instance_id="one") as second,
    ):
        await first.assignment()
        await second.assignment()
        with pytest.raises(FatalError, match="client new"):
            await first.commit({T0: 1})
        await second.commit({T0: 2})


async def test_a_cooperative_member_commits_what_it_gives_up(autojump_clock: MockClock) -> None:
    """Its next owner begins where it was, though the generation is a new one by then."""
    given_up: list[TopicPartition] = []

    async def revoked(partitions: tuple[TopicPartition, ...]) -> None:
        given_up.extend(partitions)
        await one.commit(dict.fromkeys(partitions, 7))

    cooperative = [CooperativeStickyAssignor()]
    async with (
        served() as here,
        here.connect() as client,
        client.join("g", ["t"], {"t": 4}, assignors=cooperative, on_revoked=revoked) as one,
        client.join("g", ["t"], {"t": 4}, assignors=cooperative) as two,
        trio.open_nursery() as nursery,
    ):
        kept = (await one.assignment()).partitions
        nursery.start_soon(two.assignment)
        step = 0
        while len(kept) == 4 or len((await two.assignment()).partitions) < 2:
            step += 1
            await one.commit(dict.fromkeys(kept, step))  # Never in the way of the rebalance.
            await trio.sleep(1)
            kept = (await one.assignment()).partitions

        handed_over = (await two.assignment()).partitions
        assert handed_over == tuple(given_up)
        seven = OffsetAndMetadata(7)
        assert await two.fetch(handed_over) == dict.fromkeys(handed_over, seven)
        assert set(kept).isdisjoint(handed_over)


async def test_a_group_becomes_cooperative_member_by_member(autojump_clock: MockClock) -> None:
    """First all offer both kinds, then only the new one; nobody has to stop the group."""
    old, new = RangeAssignor(), CooperativeStickyAssignor()
    rollout: list[list[Assignor]] = [[old], [new, old], [new]]
    running: dict[int, trio.CancelScope] = {}
    owned: dict[int, set[TopicPartition]] = {}

    async def run(client: Client, number: int, assignors: list[Assignor]) -> None:
        with trio.CancelScope() as running[number]:
            async with client.join("g", ["t"], {"t": 4}, assignors=assignors) as member:
                while True:
                    partitions = (await member.assignment()).partitions
                    await member.commit(dict.fromkeys(partitions, 1))
                    owned[number] = set(partitions)
                    await trio.sleep(1)

    async with served() as here, here.connect() as client, trio.open_nursery() as nursery:
        for assignors in rollout:
            for number in (0, 1):
                if number in running:
                    running[number].cancel()
                nursery.start_soon(run, client, number, assignors)
                await trio.sleep(30)
                if len(owned) > 1:
                    assert sorted(map(len, owned.values())) == [2, 2]
                    assert not owned[0] & owned[1]
        (group,) = await client.describe_groups(["g"])
        assert group.protocol_name == new.name
        nursery.cancel_scope.cancel()


async def test_auto_commit_hands_over_what_was_stored(autojump_clock: MockClock) -> None:
    """Nothing that was processed is done again because somebody joined."""
    async with (
        served() as here,
        here.connect() as client,
        client.join("g", ["t"], {"t": 2}, auto_commit_interval_ms=3_600_000) as one,
        client.join("g", ["t"], {"t": 2}) as two,
    ):
        await one.assignment()
        one.store({T0: 3, T1: 4})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(two.assignment)
            await one.wait_rebalance_needed()
            assert await client.fetch_offsets("g") == {}
            await one.assignment()

        assert await client.fetch_offsets("g") == {
            T0: OffsetAndMetadata(3),
            T1: OffsetAndMetadata(4),
        }


async def follow(client: Client, state: State, where: int, position: int) -> int:
    """Apply the changes of an offsets partition from *position* on, a few at a time."""
    while True:
        changes = await client.offset_changes(where, position, max_changes=3)
        for change in changes.changes:
            key = (change.group_id, TopicPartition(change.topic, change.partition))
            match change.kind:
                case "committed":
                    state[key] = change.offset
                case "removed":
                    state.pop(key, None)
                case _:
                    for other in [key for key in state if key[0] == change.group_id]:
                        del state[other]
        position = changes.next_position
        if position == changes.end_position:
            return position


async def committed(client: Client, groups: list[str]) -> State:
    """Return what is committed in *groups*."""
    return {
        (group, tp): entry.offset
        for group in groups
        for tp, entry in (await client.fetch_offsets(group)).items()
    }


async def test_a_scan_and_its_changes_are_the_state(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits, removals and deleted groups between any two pages included."""
    monkeypatch.setattr(scans, "SCAN_PAGE_MAX", 3)
    groups = [f"g{number}" for number in range(6)]
    async with served("offsets.topic.num.partitions=1") as here, here.connect() as client:
        for group in groups:
            await client.commit(group, {TopicPartition("t", n): 1 for n in range(4)})
        scan = client.scan_offset_columns(await client.offsets_partition("g0"))
        state: State = {}
        step = 0
        while page := await scan.page():
            for one in offsets_of_page(page):
                state[one.group_id, TopicPartition(one.topic, one.partition)] = one.offset
            step += 1
            group = groups[step % 5]
            await client.commit(group, {T0: 10 + step, TopicPartition("u", step): step})
            await client.delete_offsets(group, [T1])
            if step == 2:  # One that was read already, and one that was not.
                await client.delete_groups([groups[5], groups[0]])

        position = await follow(client, state, 0, scan.position)
        assert state == await committed(client, groups)

        await client.commit("g1", {T0: 99})
        position = await follow(client, state, 0, position)
        assert state == await committed(client, groups)
        with pytest.raises(PositionTooOld):
            await client.offset_changes(0, position + 1_000)
        with pytest.raises(FatalError):
            await client.scan_offset_columns(1).page()
