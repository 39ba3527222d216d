"""Requests of one connection are decided in the order in which they came, however long each is."""

from typing import Any, Final

import pytest
import trio
import trio.testing
from msgspec import structs
from trio.testing import MockClock

from protocol import messages as m
from tests.server.world import Client, World, beat, commit, join, without_words, world

INSTANCES: Final = tuple(f"i{n}" for n in range(120))
GROUPS: Final = tuple(f"g{n}" for n in range(200))
TOPICS: Final = tuple(f"t{n}" for n in range(200))
PARTITIONS: Final = tuple(range(1_200))


def static(instance_id: str) -> m.JoinGroupRequest:
    """Return the JoinGroup of a static member."""
    return structs.replace(join(), group_instance_id=instance_id)


def leave(*instances: str) -> m.LeaveGroupRequest:
    """Return a LeaveGroup that names members by their instance ids."""
    return m.LeaveGroupRequest("g", tuple(m.LeavingMember("", one, None) for one in instances))


def report(*partitions: int, end: int) -> m.ReportEndOffsetsRequest:
    """Return a report that all of *partitions* end at *end*."""
    ends = tuple(m.PartitionEnd(partition, end) for partition in partitions)
    return m.ReportEndOffsetsRequest((m.TopicEnds("many", ends),))


def register(partitions: int, *topics: str) -> m.RegisterTopicsRequest:
    """Return the registration of *topics*."""
    return m.RegisterTopicsRequest(
        tuple(m.TopicRegistration(topic, partitions, None) for topic in topics)
    )


def quotas(limit: int, users: int) -> m.AlterClientQuotasRequest:
    """Return a request that gives each of so many users a limit."""
    change = (m.QuotaChange("connections", limit),)
    entries = tuple(m.AlteredPrincipal(f"User:u{n}", change) for n in reversed(range(users)))
    return m.AlterClientQuotasRequest(entries)


# Of each, some come behind others of the same list.
ABOUT_GROUPS: Final[tuple[m.Request, ...]] = (
    leave(*INSTANCES, "late"),
    m.OffsetDeleteRequest("plain", (m.TopicPartitions("t", PARTITIONS),)),
    m.DeleteGroupsRequest(GROUPS),
)
SHORT_ABOUT_GROUPS: Final[tuple[m.Request, ...]] = (
    static("late"),
    static(INSTANCES[-1]),
    leave(INSTANCES[-1]),
    commit(7),
    commit(7, PARTITIONS[-1], group_id="plain"),
    commit(7, group_id=GROUPS[-1]),
    m.OffsetFetchRequest(
        (m.GroupFetch("plain", (m.TopicPartitions("t", PARTITIONS[-1:]),)),), False
    ),
    m.DescribeGroupsRequest(GROUPS[-1:]),
    beat("nobody"),
)
ABOUT_THE_NODE: Final[tuple[m.Request, ...]] = (
    register(2, *TOPICS),
    m.DeleteTopicsRequest((*TOPICS, "many")),
    report(*PARTITIONS, end=5),
    quotas(5, users=100),
)
SHORT_ABOUT_THE_NODE: Final[tuple[m.Request, ...]] = (
    register(3, TOPICS[-1]),
    m.DeleteTopicsRequest(TOPICS[-1:]),
    report(PARTITIONS[-1], end=9),
    quotas(9, users=1),
)


async def prepare(here: World) -> Client:
    """Fill a node; return a connection."""
    members, client = here.connect(), here.connect()
    for instance_id in INSTANCES:
        members.send(static(instance_id))
    await members.ask(commit(1, *PARTITIONS, group_id="plain"))
    for group_id in GROUPS:
        await members.ask(commit(1, group_id=group_id))
    await members.ask(register(len(PARTITIONS), "many"))
    await members.ask(quotas(1, users=100))
    return client


async def outcome(asked: tuple[m.Request, ...], *, is_pipelined: bool) -> tuple[Any, ...]:
    """Return the answers to what is asked, and all that the node knows afterwards."""
    async with world("max.parked.requests=1000") as here:
        client = await prepare(here)
        slices = here.node.slices
        slices._is_done = lambda steps: next(steps, steps) is steps  # type: ignore[method-assign]  # each step takes a slice
        frames = [client.frame(request) for request in asked]
        for _, frame in frames:
            client.transport.put(frame)
            if not is_pipelined:
                await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        answers = [client.answers().get(number) for number, _ in frames]
        said = [None if one is None else without_words(one.response) for one in answers]
        kept = [shard.core.hard_state() for shard in here.node.shards]
        topics = here.node.registry.core.hard_state()
        static_ids = [dict(g.static) for s in here.node.shards for g in s.core.groups.values()]
        return said, kept, topics, static_ids


@pytest.mark.parametrize("behind", SHORT_ABOUT_GROUPS, ids=lambda request: type(request).__name__)
@pytest.mark.parametrize("long", ABOUT_GROUPS, ids=lambda request: type(request).__name__)
async def test_what_is_pipelined_behind_a_long_change_of_groups_is_decided_after_it(
    long: m.Request, behind: m.Request, autojump_clock: MockClock
) -> None:
    """A member that joined behind a LeaveGroup of 121 members was taken out by it."""
    asked = (behind, long, behind)

    assert await outcome(asked, is_pipelined=True) == await outcome(asked, is_pipelined=False)


@pytest.mark.parametrize("behind", SHORT_ABOUT_THE_NODE, ids=lambda request: type(request).__name__)
@pytest.mark.parametrize("long", ABOUT_THE_NODE, ids=lambda request: type(request).__name__)
async def test_what_is_pipelined_behind_a_long_change_of_topics_or_quotas_is_decided_after_it(
    long: m.Request, behind: m.Request, autojump_clock: MockClock
) -> None:
    """An end that was reported behind those of 1,200 partitions was set back by them."""
    asked = (behind, long, behind)

    assert await outcome(asked, is_pipelined=True) == await outcome(asked, is_pipelined=False)


async def test_a_report_that_comes_while_a_longer_one_is_being_done_is_decided_after_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer one has left its line by then."""
    async with world() as here:
        client, slices = here.connect(), here.node.slices
        await client.ask(register(len(PARTITIONS), "many"))
        monkeypatch.setattr(slices, "_is_done", lambda steps: next(steps, steps) is steps)
        client.send(report(*PARTITIONS, end=5))
        while slices.served is None:
            await trio.lowlevel.checkpoint()
        client.send(report(PARTITIONS[-1], end=9))
        await trio.testing.wait_all_tasks_blocked()

        end = here.node.registry.core.registry.end_offset("many", PARTITIONS[-1])
        assert end is not None
        assert end.end_offset == 9


async def test_members_and_commits_pass_a_long_report_of_the_same_connection(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver reports the ends of a thousand partitions every second, perhaps in a long line."""
    async with world() as here:
        client, greedy = here.connect(), here.connect()
        await client.ask(register(len(PARTITIONS), "many"))
        monkeypatch.setattr(here.node.slices, "_is_done", lambda _steps: False)  # For ever.
        greedy.send(m.ListGroupsRequest((), ()))
        first, second = (client.send(report(*PARTITIONS, end=end)) for end in (5, 6))
        sent = [client.send(commit(7)), client.send(beat()), client.send(static("one"))]
        for _ in range(100):
            await trio.lowlevel.checkpoint()

        assert client.answers().keys() >= set(sent[:2])
        assert "one" in here.node.shard_of("g").core.groups["g"].static
        assert not {first, second} & client.answers().keys()
        here.nursery.cancel_scope.cancel()


async def test_a_connection_that_ends_behind_a_long_change_leaves_nothing_counted(
    autojump_clock: MockClock,
) -> None:
    """Requests behind the change are dropped, and their bytes are given back."""
    async with world() as here:
        client = await prepare(here)
        slices = here.node.slices
        slices._is_done = lambda steps: next(steps, steps) is steps  # type: ignore[method-assign]  # as above
        client.transport.put(client.frame(ABOUT_GROUPS[0])[1] + client.frame(static("late"))[1])
        while slices.served is None:
            await trio.lowlevel.checkpoint()
        client.transport.reset()
        await trio.testing.wait_all_tasks_blocked()

        assert "late" not in here.node.shard_of("g").core.groups["g"].static
        assert here.metrics["requests_waiting_bytes"]() == 0
        assert here.metrics["connections"]() == 1
