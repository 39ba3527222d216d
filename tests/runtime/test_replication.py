"""Nodes that follow and lead the journals of a cluster: daemons over an ensemble in memory."""

import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from coordinator.cluster import entries, znodes
from coordinator.cluster.engine import Append, Reply, Request, SetLeader, Suspended
from coordinator.cluster.journal import PAUSE_MS, ReplicatedJournal, Role
from coordinator.cluster.node import FORMAT_AFTER_MS, SUCCESSOR_MS
from coordinator.cluster.znodes import entry_path
from coordinator.log.errors import LogRefused
from coordinator.runtime import replication
from coordinator.runtime.logs import OutOfReach
from coordinator.runtime.shard import Status
from coordinator.server import run
from protocol.consumer import Assignment, encode_assignment
from protocol.errors import ErrorCode
from protocol.messages import (
    CompactLogRequest,
    DeleteTopicsRequest,
    DescribeJournalsRequest,
    FindCoordinatorRequest,
    GroupFetch,
    MemberAssignment,
    MoveJournalRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    ReadOffsetChangesRequest,
    RegisterTopicsRequest,
    ReloadPartitionRequest,
    SyncGroupRequest,
    TopicCommit,
    TopicPartitions,
    TopicRegistration,
)
from protocol.partition import NO_LEADER_EPOCH, TopicPartition
from tests.server.world import Client, beat, commit, join
from tests.sim.cluster import (
    JOURNALS,
    PARTITIONS,
    SESSION_TIMEOUT_MS,
    Cluster,
    Contact,
    Host,
    ask,
    cluster,
    until,
)

SESSION_MS: Final = 10_000


def fetch(group_id: str = "g") -> OffsetFetchRequest:
    """Ask for the committed offset of a group's partition."""
    return OffsetFetchRequest((GroupFetch(group_id, (TopicPartitions("t", (0,)),)),), False)


async def become_member(client: Client, group_id: str = "g") -> tuple[str, int]:
    """Become the only, stable member of a group; return the member id and the generation."""
    told: Any = await ask(client, join(group_id, "", SESSION_MS))
    joined: Any = await ask(client, join(group_id, told.member_id, SESSION_MS))
    assert joined.error == 0
    assignment = encode_assignment(Assignment((TopicPartition("t", 0),)))
    shares = (MemberAssignment(joined.member_id, assignment),)
    synced: Any = await ask(
        client,
        SyncGroupRequest(
            group_id, joined.generation_id, joined.member_id, None, None, None, shares
        ),
    )
    assert synced.error == 0
    return joined.member_id, joined.generation_id


def commit_of(member_id: str, generation: int, offset: int) -> OffsetCommitRequest:
    """Return a member's commit."""
    topics = (TopicCommit("t", (PartitionCommit(0, offset, -1, "", None),)),)
    return OffsetCommitRequest("g", generation, member_id, None, topics)


def move(old: Host, new: Host) -> None:
    """Have the journal of the group handed over, as an operator asks."""
    journal = old.node.shard_of("g").partition % JOURNALS
    old.store.do(old.machine.move(journal, new.number, old.node.now().mono_ms))


def is_balanced(here: Cluster) -> bool:
    """Say whether every node leads as many journals as the others."""
    led = [
        sum(journal.role is Role.LEADING for journal in host.machine.journals)
        for host in here.hosts.values()
    ]
    return set(led) == {JOURNALS // len(led)}


async def error_of(client: Client, request: Any) -> int:
    """Return the error of the answer."""
    answer: Any = await ask(client, request)
    error: int = answer.error
    return error


async def register(registrar: Host, *topics: str, partitions: int = 2) -> None:
    """Register topics, each with so many partitions, at the node that decides about them."""
    for topic in topics:
        request = RegisterTopicsRequest((TopicRegistration(topic, partitions, None),), False)
        assert await error_of(registrar.connect(), request) == 0


def lose_topics(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing more arrive in the journal of what is the cluster's own."""
    submit = host.line.submit

    def lose(request: Request, done: Callable[[Reply], None]) -> None:
        if not (isinstance(request, Append) and not request.journal):
            submit(request, done)

    monkeypatch.setattr(host.line, "submit", lose)


def group_beside_topics(node: Host) -> str:
    """Return a group that lies in another journal than the topics."""
    names = map("g{}".format, range(100))
    return next(name for name in names if node.node.shard_of(name).partition % JOURNALS)


def group_led_elsewhere(here: Cluster, node: Host) -> str:
    """Return a group that another node leads."""
    names = map("g{}".format, range(100))
    return next(name for name in names if here.leader_of(name) is not node)


async def fetched(client: Client, group_id: str = "g") -> int:
    """Return the committed offset of the group's partition."""
    answer: Any = await ask(client, fetch(group_id))
    (group,) = answer.groups
    assert group.error == 0, group
    offset: int = group.topics[0].partitions[0].offset
    return offset


async def test_every_journal_has_one_leader_and_all_others_follow(
    autojump_clock: MockClock,
) -> None:
    """The load is spread, and any node says who has a group."""
    async with cluster() as here:
        # Whoever was ready first has waited for the others.
        assert is_balanced(here)
        assert not any(host.told("journal.handed_over") for host in here.hosts.values())
        led = [
            [shard.partition for shard in host.node.shards if shard.status is Status.ACTIVE]
            for host in here.hosts.values()
        ]
        leader = here.leader_of("g")
        answers: list[Any] = [
            await ask(host.connect(), FindCoordinatorRequest(0, ("g",)))
            for host in here.hosts.values()
        ]
        elsewhere = here.other_than(leader)

        assert sorted(map(len, led)) == [PARTITIONS // JOURNALS] * 3
        assert {found.host for answer in answers for found in answer.coordinators} == {leader.name}
        assert await error_of(elsewhere.connect(), commit(1)) == ErrorCode.NOT_COORDINATOR
        assert await error_of(leader.connect(), commit(1)) == 0


async def test_who_follows_names_no_epoch(autojump_clock: MockClock) -> None:
    """A client that has seen a later one would take the refusal for an answer of the past."""
    async with cluster() as here:
        old = here.leader_of("g")
        client = old.connect()
        assert await error_of(client, commit(1)) == 0
        other = here.other_than(old)
        move(old, other)
        await here.new_leader_of("g", old)
        sent = client.send(commit(2))
        await until(lambda: sent in client.answers())
        refused = client.answers()[sent]

        assert refused.response.error == ErrorCode.NOT_COORDINATOR  # type: ignore[attr-defined]  # of a commit
        assert refused.leader_epoch == NO_LEADER_EPOCH


async def test_a_node_that_loses_the_ensemble_has_nothing_due(autojump_clock: MockClock) -> None:
    """It was about to read on; whoever waits for that time would never wait again."""
    async with cluster() as here:
        leader = here.leader_of("g")
        others = [host.machine for host in here.hosts.values() if host is not leader]
        client = leader.connect()
        client.send(commit(1))
        # What was read is followed by a pause.
        await until(lambda: any(one.next_deadline_ms() is not None for one in others))
        (waits, *_) = [one for one in others if one.next_deadline_ms() is not None]
        now_ms = leader.node.now().mono_ms
        waits.told(Suspended(), now_ms)
        for later_ms in (now_ms + 100, now_ms + 2_000, now_ms + 20_000):
            waits.tick(later_ms)
            due_ms = waits.next_deadline_ms()

            assert due_ms is None or due_ms > later_ms


async def test_a_group_goes_on_when_its_node_is_killed(autojump_clock: MockClock) -> None:
    """With its member, its generation and its offsets: no rebalance, and nobody waits for a load.

    The member has a full session from then on, as nobody could be heard meanwhile.
    """
    async with cluster() as here:
        old = here.leader_of("g")
        client = old.connect()
        member_id, generation = await become_member(client)
        assert await error_of(client, commit_of(member_id, generation, 7)) == 0
        here.kill(old)
        here.end_session(old)
        new = await here.new_leader_of("g", old)
        again = new.connect()

        assert await error_of(again, beat(member_id, generation)) == 0
        await trio.sleep(SESSION_MS / 1000 - 1)
        assert await error_of(again, commit_of(member_id, generation, 8)) == 0
        assert await fetched(again) == 8
        assert new.told("group.rebalance_started") == []
        assert new.told("group.member_removed") == []


async def test_what_was_acknowledged_is_there_on_the_next_node(
    autojump_clock: MockClock,
) -> None:
    """It is in the log of the ensemble, and the other nodes have followed it."""
    async with cluster() as here:
        for offset in range(3):
            old = here.leader_of("g")
            client = old.connect()
            assert await error_of(client, commit(offset)) == 0
            assert await fetched(client) == offset
            here.kill(old)
            here.end_session(old)
            new = await here.new_leader_of("g", old)
            assert await fetched(new.connect()) == offset
            here.start(old.number)
            await until(lambda: here.is_settled)


async def test_a_node_that_stops_hands_over_first(autojump_clock: MockClock) -> None:
    """Nobody waits for the end of its session, and what is parked is told to go elsewhere."""
    async with cluster() as here:
        old = here.leader_of("g")
        client = old.connect()
        member_id, generation = await become_member(client)
        told: Any = await ask(client, join("g", "", SESSION_MS))
        parked = client.send(join("g", told.member_id, SESSION_MS))
        await trio.sleep(0.1)
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(old.stop)
            new = await here.new_leader_of("g", old)
            took_s = trio.current_time() - began_s
        answer: Any = client.answers()[parked].response

        assert took_s < 0.1
        assert answer.error == ErrorCode.NOT_COORDINATOR
        # The join had begun a rebalance, which is soft: the last generation is what counts.
        assert await error_of(new.connect(), beat(member_id, generation)) == 0
        assert {shard.status for shard in old.node.shards} == {Status.CLOSED}


async def test_nobody_waits_for_what_is_forgotten_behind_a_hand_over(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows with the groups; commits paused for it, and joins that are parked can't be lost."""

    async def rest_long(self: Any, now: Any) -> None:
        await trio.sleep(1)
        await rest(self, now)

    rest = replication._Journal._rest
    monkeypatch.setattr(replication._Journal, "_rest", rest_long)
    async with cluster() as here:
        old = here.leader_of("g")
        client = old.connect()
        member_id, generation = await become_member(client)
        told: Any = await ask(client, join("g", "", SESSION_MS))
        parked = client.send(join("g", told.member_id, SESSION_MS))
        await trio.sleep(0.1)
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(old.stop)
            new = await here.new_leader_of("g", old)

            assert trio.current_time() - began_s < 0.3
            assert await error_of(new.connect(), commit_of(member_id, generation, 8)) == 0
        answer: Any = client.answers()[parked].response
        assert answer.error == ErrorCode.NOT_COORDINATOR


async def test_a_node_that_stops_leads_on_until_another_one_is_ready(
    autojump_clock: MockClock,
) -> None:
    """All others may have lost their sessions just now; groups waited for them without a leader."""
    async with cluster() as here:
        old = here.leader_of("g")
        others = [host for host in here.hosts.values() if host is not old]
        for host in others:
            here.end_session(host)
        await until(
            lambda: sorted(peer.is_ready for peer in old.store.nodes()) == [False, False, True]
        )
        began_s = trio.current_time()
        await old.stop()

        assert trio.current_time() - began_s < 0.3
        assert {journal.role for journal in old.machine.journals} == {Role.FOLLOWING}
        await here.new_leader_of("g", old)


async def test_a_node_that_stops_waits_no_longer_than_it_says(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may load for minutes; until then this one serves, and then it answers."""
    async with cluster(nodes=1) as here:
        monkeypatch.setattr(ReplicatedJournal, "is_ready", False)
        (old,) = here.hosts.values()
        here.start(77)
        await until(lambda: 77 in old.machine.nodes)
        client = old.connect()
        told: Any = await ask(client, join("g", "", SESSION_MS))
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(old.stop)
            await trio.sleep(SUCCESSOR_MS / 1000 - 0.1)
            assert await error_of(client, commit(1)) == 0
            parked = client.send(join("g", told.member_id, SESSION_MS))
        took_s = trio.current_time() - began_s
        await until(lambda: parked in client.answers())
        answer: Any = client.answers()[parked].response

        assert took_s == pytest.approx(SUCCESSOR_MS / 1000, abs=0.1)
        assert answer.error == ErrorCode.NOT_COORDINATOR


async def test_a_node_that_stops_and_still_leads_lets_clients_in(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else can serve them. Then the time that it has is half over, and the door closes."""
    async with cluster(nodes=1) as here:
        monkeypatch.setattr(ReplicatedJournal, "is_ready", False)
        (old,) = here.hosts.values()
        here.start(77)
        await until(lambda: 77 in old.machine.nodes)
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run._drain, old.node, old.server, [old.listener], 4_000)
            await trio.sleep(1.9)
            client = old.connect()
            assert await error_of(client, commit(1)) == 0
            await trio.sleep(0.2)
            with pytest.raises(trio.ClosedResourceError):
                old.connect()
        refused = await error_of(client, commit(2))

        assert trio.current_time() - began_s < 2.2
        assert refused == ErrorCode.NOT_COORDINATOR


async def test_nodes_that_all_stop_wait_for_none_of_them(autojump_clock: MockClock) -> None:
    """Each says that it stops: there is nobody who will be ready."""
    async with cluster() as here:
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for host in here.hosts.values():
                nursery.start_soon(host.stop)

        assert trio.current_time() - began_s < 1


async def commit_on(client: Client) -> None:
    """Commit one offset after the other, so that the log has no end for long."""
    for offset in count():
        await ask(client, commit(offset))


async def test_a_node_that_starts_among_commits_is_ready_at_once(
    autojump_clock: MockClock,
) -> None:
    """A look at the log always finds more; an upgrade waited for a moment without commits."""
    async with cluster() as here:
        here.nursery.start_soon(commit_on, here.leader_of("g").connect())
        await trio.sleep(1)
        new = here.start(77)
        began_s = trio.current_time()
        await until(lambda: new.node.ready)

        assert trio.current_time() - began_s < 0.3


async def nothing(_here: Cluster, _old: Host, _new: Host) -> None:
    """Let the hand-over come through."""


async def lose_successor(here: Cluster, _old: Host, new: Host) -> None:
    """End the node that is to lead."""
    here.kill(new)
    here.end_session(new)
    await trio.sleep(0.1)


async def lose_session(here: Cluster, old: Host, _new: Host) -> None:
    """Have others take over from the node."""
    here.end_session(old)
    await trio.sleep(0.1)


async def cut_off(_here: Cluster, old: Host, _new: Host) -> None:
    """Cut the connection to the ensemble, and leave it at that."""
    old.contact = Contact.CUT_OFF
    await trio.sleep(PAUSE_MS / 1000 + 1)


async def cut_off_for_long(_here: Cluster, old: Host, _new: Host) -> None:
    """Cut the connection to the ensemble for longer than a session."""
    old.contact = Contact.CUT_OFF
    await trio.sleep(SESSION_TIMEOUT_MS / 1000 + 1)


async def come_back(_here: Cluster, old: Host, _new: Host) -> None:
    """Cut the connection to the ensemble for a while."""
    old.contact = Contact.CUT_OFF
    await trio.sleep(PAUSE_MS / 1000 + 1)
    old.contact = Contact.FINE
    await trio.sleep(0.1)


async def park(client: Client, node: Host) -> list[int]:
    """Have a JoinGroup parked, and a SyncGroup of another group of the shard; return them."""
    shard = node.node.shard_of("g")
    other = next(name for name in map("g{}".format, count()) if node.node.shard_of(name) is shard)
    await become_member(client)
    told: list[Any] = [
        await ask(client, join(name, "", SESSION_MS)) for name in ("g", *2 * [other])
    ]
    joins = [client.send(join(other, one.member_id, SESSION_MS)) for one in told[1:]]
    await until(lambda: all(sent in client.answers() for sent in joins))
    joined: list[Any] = [client.answers()[sent].response for sent in joins]
    (waits,) = [one for one in joined if one.member_id != one.leader]
    ids = (other, waits.generation_id, waits.member_id)
    parked = [
        client.send(join("g", told[0].member_id, SESSION_MS)),
        client.send(SyncGroupRequest(*ids, None, None, None, ())),
    ]
    await trio.sleep(0.1)
    assert not any(sent in client.answers() for sent in parked)
    return parked


@pytest.mark.parametrize(
    ("is_moved", "stops"),
    [(True, False), (True, True), (False, True)],
    ids=["moved", "moved and stopped", "stopped"],
)
@pytest.mark.parametrize(
    "happens",
    [nothing, lose_successor, lose_session, cut_off, cut_off_for_long, come_back],
    ids=lambda happens: happens.__name__,
)
async def test_whoever_is_parked_is_told_to_go_elsewhere(
    happens: Callable[[Cluster, Host, Host], Awaitable[None]],
    is_moved: bool,
    stops: bool,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever becomes of a hand-over, and of the node: a client would wait for ever.

    Groups come to rest in slices, so anything may happen meanwhile.
    """
    let_go = trio.Event()
    rest = replication._Journal._rest

    async def rest_late(journal: Any, now: Any) -> None:
        await let_go.wait()
        await rest(journal, now)

    monkeypatch.setattr(replication._Journal, "_rest", rest_late)
    async with cluster(nodes=2) as here:
        old = here.leader_of("g")
        new = here.other_than(old)
        client = old.connect()
        parked = await park(client, old)
        if is_moved:
            move(old, new)
            await trio.sleep(0.001)
        await happens(here, old, new)
        if stops:
            here.nursery.start_soon(old.stop)
            await trio.sleep(0.1)
        let_go.set()
        await until(lambda: all(sent in client.answers() for sent in parked), timeout_s=7)
        answers: list[Any] = [client.answers()[sent].response for sent in parked]

        assert [answer.error for answer in answers] == 2 * [ErrorCode.NOT_COORDINATOR]


async def test_a_journal_that_is_handed_over_is_followed_on(autojump_clock: MockClock) -> None:
    """The node keeps what it has, and what it has is what a replay of the log would give."""
    async with cluster(nodes=2) as here:
        old = here.leader_of("g")
        member_id, generation = await become_member(old.connect())
        assert await error_of(old.connect(), commit_of(member_id, generation, 7)) == 0
        held = old.node.shard_of("g").core.hard_state()
        move(old, other := here.other_than(old))
        await until(lambda: other.serves("g"))
        resting = old.node.shard_of("g")
        assert resting.status is Status.FOLLOWING
        assert resting.core.hard_state() == held
        await until(lambda: old.node.totals.used("members") == 0)
        client = other.connect()
        assert await error_of(client, commit_of(member_id, generation, 8)) == 0
        await trio.sleep(0.2)
        assert resting.core.hard_state() == other.node.shard_of("g").core.hard_state()
        move(other, old)
        await until(lambda: old.serves("g"))

        assert await fetched(old.connect()) == 8
        assert await error_of(old.connect(), beat(member_id, generation)) == 0
        assert old.node.totals.used("members") == 1


async def test_an_operator_moves_a_journal_and_hears_when_it_is_done(
    autojump_clock: MockClock,
) -> None:
    """Before a machine is worked on; whoever moves all of them does so one after the other."""
    async with cluster() as here:
        old = here.leader_of("g")
        new = here.other_than(old)
        journal = old.node.shard_of("g").partition % JOURNALS
        asked = MoveJournalRequest(journal, new.number)
        answers: list[Any] = [
            await ask(old.connect(), MoveJournalRequest(JOURNALS, new.number)),
            await ask(old.connect(), MoveJournalRequest(journal, 77)),
            await ask(old.connect(), MoveJournalRequest(journal, old.number)),
            await ask(new.connect(), asked),
            await ask(old.connect(), asked),
        ]
        seen: Any = await ask(old.connect(), DescribeJournalsRequest())

        assert [answer.error for answer in answers] == [42, 42, 42, 16, 0]
        assert answers[3].message == f"journal {journal} is not led by this node"
        assert seen.journals[journal].leader == new.number
        await until(lambda: new.serves("g"))
        # The node has too many now, and another one leaves it.
        await until(lambda: is_balanced(here))
        assert new.serves("g")


async def test_a_move_that_comes_to_nothing_is_told(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator must not go on to the next step."""
    async with cluster() as here:
        old = here.leader_of("g")
        submit = old.line.submit

        def lose(request: Request, done: Callable[[Reply], None]) -> None:
            if isinstance(request, SetLeader):
                old.contact = Contact.CUT_OFF
            submit(request, done)

        monkeypatch.setattr(old.line, "submit", lose)
        new = here.other_than(old)
        client = old.connect()
        journal = old.node.shard_of("g").partition % JOURNALS
        sent = client.send(MoveJournalRequest(journal, new.number))
        await until(lambda: old.contact is Contact.CUT_OFF)
        monkeypatch.undo()
        await trio.sleep(1)
        old.contact = Contact.FINE
        await until(lambda: sent in client.answers())
        answer: Any = client.answers()[sent].response

        assert answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert answer.message == f"journal {journal} did not go to node {new.number}"
        await until(lambda: old.serves("g"))


async def test_every_node_tells_of_the_cluster_what_it_sees(autojump_clock: MockClock) -> None:
    """An operator may ask any of them, and sees by what they differ how far each follows."""
    async with cluster() as here:
        leader = here.leader_of("g")
        journal = leader.node.shard_of("g").partition % JOURNALS
        assert await error_of(leader.connect(), commit(1)) == 0
        await trio.sleep(1)
        seen: list[Any] = [
            await ask(host.connect(), DescribeJournalsRequest()) for host in here.hosts.values()
        ]

        assert [one.node_id for one in seen] == [host.number for host in here.hosts.values()]
        assert all(one.is_connected for one in seen)
        assert {one.journals[journal].leader for one in seen} == {leader.number}
        assert {one.journals[journal].last_entry for one in seen} == {1}
        assert {one.journals[journal].tail_entries for one in seen} == {1}
        assert 0 < seen[0].state_bytes < seen[0].state_bytes_limit


def formats_of(here: Cluster, journal: int) -> list[int]:
    """Return the format of each entry of a journal that an append has made."""
    found: list[int] = []
    while znode := here.ensemble.at(entry_path(journal, len(found) + 1)):
        found.append(znode.data[0])
    return found


async def test_a_rolling_upgrade_writes_what_every_node_reads(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old node would end at the first entry that it can't read."""
    monkeypatch.setattr(entries, "FORMATS", (1, 3))
    async with cluster() as here:
        journal = here.leader_of("g").node.shard_of("g").partition % JOURNALS
        for number in sorted(here.hosts):
            old = here.hosts[number]
            await old.stop()
            here.end_session(old)
            here.kill(old)
            here.formats = (1, 3)
            new = here.start(number)
            await until(lambda: here.is_settled)
            await trio.sleep(1)  # All have heard that it is ready.
            if (leader := here.leader_of("g")) is not new:
                asked = MoveJournalRequest(journal, number)
                assert await error_of(leader.connect(), asked) == 0
            await until(partial(new.serves, "g"))
            await trio.sleep(FORMAT_AFTER_MS / 1000)
            assert await error_of(new.connect(), commit(number)) == 0

        assert await fetched(new.connect()) == number
        assert formats_of(here, journal) == [2, 2, 3]


async def test_an_old_node_that_has_only_lost_its_session_comes_back(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it was away all others read a newer format; it ended at the first entry in that."""
    monkeypatch.setattr(entries, "FORMATS", (1, 3))
    async with cluster(nodes=1) as here:
        (old,) = here.hosts.values()
        here.formats = (1, 3)
        new = here.start(77)
        await until(lambda: here.is_settled)
        journal = old.node.shard_of("g").partition % JOURNALS
        old.contact = Contact.CUT_OFF
        here.end_session(old)
        await until(lambda: new.serves("g"))
        assert await error_of(new.connect(), commit(1)) == 0
        old.contact = Contact.FINE
        await until(lambda: old.machine.is_ready and here.is_settled)
        assert await error_of(here.leader_of("g").connect(), commit(2)) == 0

        assert formats_of(here, journal) == [1, 1]


async def refusal_of(start: Callable[[], Awaitable[None]]) -> str:
    """Return with which words a node that is started is refused; nothing else may fail."""
    with pytest.raises(BaseExceptionGroup) as failed:
        await start()
    refused, others = failed.value.split(LogRefused)
    assert others is None
    return "".join(traceback.format_exception(refused))


async def test_a_release_that_reads_nothing_of_the_others_is_refused(
    autojump_clock: MockClock,
) -> None:
    """Those that are there go on; the newcomer says what to do."""

    async def start_one() -> None:
        async with cluster() as here:
            here.formats = (3, 4)
            here.start(4)
            await trio.sleep(1)

    refusal = await refusal_of(start_one)

    assert "this release 3 to 4: an upgrade has to go by a release that reads both" in refusal


async def test_a_node_that_comes_back_at_another_port_waits_for_its_former_session(
    autojump_clock: MockClock,
) -> None:
    """Port 0 is another one at each start, and a supervisor gives up who is refused."""
    async with cluster() as here:
        old = here.hosts[1]
        here.kill(old)
        here.endpoint = "plain://{}:9311"
        new = here.start(1)
        await trio.sleep(SESSION_TIMEOUT_MS / 1000)
        assert not new.machine.is_connected

        here.end_session(old)
        await until(lambda: here.is_settled)
        assert new.machine.is_connected


@pytest.mark.parametrize(
    ("endpoint", "refused_after_s"),
    [("plain://elsewhere:9310", 0), ("plain://{}:9311", 3 * SESSION_TIMEOUT_MS / 1000)],
)
async def test_a_second_node_of_one_number_is_refused(
    autojump_clock: MockClock, endpoint: str, refused_after_s: float
) -> None:
    """One on the same machine may be itself, until its former session would have ended for long."""
    began_s = 0.0

    async def start_another() -> None:
        nonlocal began_s
        async with cluster() as here:
            here.endpoint = endpoint
            here.start(1)
            began_s = trio.current_time()
            await trio.sleep(60)

    refusal = await refusal_of(start_another)

    there = "node 1 is there already, at plain://node1:9310; each needs its own node.id"
    assert there in refusal
    assert refused_after_s == pytest.approx(trio.current_time() - began_s, abs=1)


async def test_a_node_that_hears_nothing_never_answers_with_the_past(
    autojump_clock: MockClock,
) -> None:
    """It can't know that another node leads, so what memory says waits for the ensemble."""
    async with cluster() as here:
        old = here.leader_of("g")
        client = old.connect()
        assert await error_of(client, commit(7)) == 0
        old.contact = Contact.DEAF
        here.end_session(old)
        read = client.send(fetch())
        new = await here.new_leader_of("g", old)
        assert await error_of(new.connect(), commit(8)) == 0
        assert read not in client.answers()
        old.contact = Contact.FINE
        await trio.sleep(1)
        answer: Any = client.answers()[read].response

        assert [group.error for group in answer.groups] == [ErrorCode.NOT_COORDINATOR]
        assert old.told("journal.deposed")


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param((fetch(), OffsetFetchRequest((GroupFetch("g", None),), False)), id="read"),
        pytest.param((commit(129), commit(130)), id="written"),
        pytest.param((MoveJournalRequest(0, 1), MoveJournalRequest(0, 2)), id="moved"),
    ],
)
async def test_nodes_end_when_the_ensemble_is_set_back_though_their_sessions_live_on(
    requests: Sequence[Any], autojump_clock: MockClock
) -> None:
    """A copy has the sessions, and the fences fit: offsets of long ago were answered and moved."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        assert await error_of(client, commit(6)) == 0
        then = here.ensemble.transactions
        assert await error_of(client, commit(128)) == 0
        await trio.sleep(1)
        hosts, sessions = dict(here.hosts), [host.line.session for host in here.hosts.values()]
        await here.set_back(then)
        asked = [client.send(request) for request in requests]
        await until(lambda: not here.hosts)
        answers = [client.answers().get(sent) for sent in asked]

        assert sessions == [host.line.session for host in hosts.values()]
        assert all("data was lost" in host.ended for host in hosts.values())
        assert all(one is None or _error_in(one.response) for one in answers)


def _error_in(response: Any) -> int:
    error: int = response.groups[0].error if hasattr(response, "groups") else response.error
    return error


async def test_nodes_go_on_when_the_ensemble_is_set_back_to_all_that_they_know(
    autojump_clock: MockClock,
) -> None:
    """Nothing was lost: servers that all restart look the same."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        assert await error_of(client, commit(6)) == 0
        await trio.sleep(1)
        await here.set_back(here.ensemble.transactions)
        await until(lambda: here.is_settled)

        assert here.leader_of("g") is node
        assert await fetched(client) == 6


async def test_changes_of_offsets_are_not_read_before_the_log_is_verified(
    autojump_clock: MockClock,
) -> None:
    """The log may be of another history than the one that the position of a request is from."""
    async with cluster() as here:
        node = here.leader_of("g")
        assert await error_of(node.connect(), commit(1)) == 0
        shard = node.node.shard_of("g")
        node.line.drop()
        node.line.connect()

        with pytest.raises(OutOfReach):
            await shard.log.fetch(shard.partition, 0, 1_000)


async def test_a_read_shows_nothing_that_is_yet_to_be_written(autojump_clock: MockClock) -> None:
    """A check that the node still leads passes a flush on its way, and what gathers behind it."""
    async with cluster() as here:
        old = here.leader_of("g")
        a, b = old.connect(), old.connect()
        assert await error_of(a, commit(0)) == 0
        await trio.sleep(0.5)
        a.send(commit(1))
        for _ in range(3):  # Until its flush is on its way.
            await trio.lowlevel.checkpoint()
        second = b.send(commit(2))
        read = a.send(fetch())
        await until(lambda: read in a.answers())
        here.kill(old)
        here.end_session(old)
        new = await here.new_leader_of("g", old)
        answer: Any = a.answers()[read].response

        assert second in b.answers()
        assert answer.groups[0].topics[0].partitions[0].offset == 2
        assert await fetched(new.connect()) == 2


async def test_what_waits_is_answered_in_the_epoch_of_a_new_session(
    autojump_clock: MockClock,
) -> None:
    """Whoever has heard of that epoch already would take the answer for a former leader's."""
    async with cluster(nodes=1) as here:
        node = here.leader_of("g")
        client = node.connect()
        assert await error_of(client, commit(1)) == 0
        journal = node.machine.journal_of(node.node.shard_of("g").partition)
        before = journal.leader_epoch
        written, read = client.send(commit(2)), client.send(fetch())
        await trio.lowlevel.checkpoint()
        here.end_session(node)
        await until(lambda: {written, read} <= client.answers().keys())
        answers = client.answers()

        assert journal.leader_epoch == before + 1
        assert [answers[sent].leader_epoch for sent in (written, read)] == [before + 1] * 2


async def test_a_node_that_is_cut_off_for_a_while_evicts_nobody(
    autojump_clock: MockClock,
) -> None:
    """Deadlines stand still; who asks is told to come back, and what is parked goes on waiting."""
    async with cluster("group.initial.rebalance.delay.ms=0") as here:
        node = here.leader_of("g")
        client = node.connect()
        member_id, generation = await become_member(client)
        for _ in range(4):
            await trio.sleep(2)
            assert await error_of(client, beat(member_id, generation)) == 0
        node.contact = Contact.CUT_OFF
        await trio.sleep(0.5)
        waiting = client.send(fetch())
        await trio.sleep(1)
        refused = await error_of(client, beat(member_id, generation))
        await trio.sleep(2.5)
        assert waiting not in client.answers()
        node.contact = Contact.FINE
        await trio.sleep(0.5)
        found: Any = client.answers()[waiting].response

        assert refused == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [group.error for group in found.groups] == [0]
        assert node.told("group.member_removed") == []
        assert await error_of(client, beat(member_id, generation)) == 0
        assert [len(node.told(f"journal.{what}")) for what in ("cut_off", "reached")] == [1, 1]
        await trio.sleep(SESSION_MS / 1000 - 1)
        assert await error_of(client, beat(member_id, generation)) == 0


async def test_a_node_that_is_cut_off_for_long_sends_everybody_elsewhere(
    autojump_clock: MockClock,
) -> None:
    """Another node may lead by now, and here nobody would hear of it."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        node.contact = Contact.CUT_OFF
        await trio.sleep(7)

        assert await error_of(client, commit(7)) == ErrorCode.NOT_COORDINATOR
        assert node.node.shard_of("g").status is Status.CUT_OFF


@pytest.mark.parametrize("contact", [Contact.UNHEARD, Contact.DEAF])
async def test_a_node_leads_nothing_a_session_after_the_last_answer(
    contact: Contact, autojump_clock: MockClock
) -> None:
    """A connection without answers breaks late; the session was counted from then on."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        node.contact = contact
        await trio.sleep(4.4)
        node.contact = Contact.CUT_OFF
        await trio.sleep(1.5)
        assert await error_of(client, commit(7)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await trio.sleep(0.2)

        assert await error_of(client, commit(7)) == ErrorCode.NOT_COORDINATOR
        node.contact = Contact.FINE
        await until(lambda: here.is_settled)
        assert await error_of(client, commit(7)) == 0


async def test_a_node_says_that_it_is_cut_off_whether_it_leads_or_not(
    autojump_clock: MockClock,
) -> None:
    """Not ready, so that nobody is sent there; and whoever is woken knows where to look."""
    async with cluster() as here:
        node = here.hosts[1]
        assert parts_not_well(node) == []
        node.contact = Contact.CUT_OFF
        await trio.sleep(0.9)
        assert parts_not_well(node) == []
        await trio.sleep(1.1)

        assert parts_not_well(node) == ["zookeeper"]
        assert node.node.describe(1).status == "unhealthy"
        node.contact = Contact.FINE
        await trio.sleep(20)
        assert parts_not_well(node) == []
        assert node.node.describe(1).status == "ready"
        told = {p.status for host in here.hosts.values() for p in host.node.describe(1).partitions}
        assert told == {"active", "following"}


def parts_not_well(host: Host) -> list[str]:
    """Return which parts of a node are not well."""
    return [check.part for check in host.node.checks.look() if not check.ok]


async def test_a_node_of_a_cluster_has_no_partition_to_load_again(
    autojump_clock: MockClock,
) -> None:
    """Said in words: to be sent to another node would be a search without an end."""
    async with cluster() as here:
        refused: Any = await ask(here.hosts[1].connect(), ReloadPartitionRequest(0))

        assert refused.error == ErrorCode.INVALID_REQUEST
        assert "follows them all" in refused.message


async def test_what_every_node_is_told_of_topics_reaches_the_groups_of_all(
    autojump_clock: MockClock,
) -> None:
    """One node decides about topics, and the groups of the others look at what it decided."""
    async with cluster() as here:
        registrar = here.registrar
        group_id = group_led_elsewhere(here, registrar)
        client = here.leader_of(group_id).connect()
        await register(registrar, "t")
        await trio.sleep(0.2)
        assert await error_of(client, commit(1, 2, group_id=group_id)) == 0
        found: Any = await ask(client, commit(1, 2, group_id=group_id))
        assert found.topics[0].partitions[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        member_id, generation = await become_member(client, group_id)
        await register(registrar, "t", partitions=3)
        await trio.sleep(0.2)

        beaten = await error_of(client, beat(member_id, generation, group_id))
        assert beaten == ErrorCode.REBALANCE_IN_PROGRESS


async def test_changes_of_offsets_are_read_from_the_log(autojump_clock: MockClock) -> None:
    """By whoever follows them, from the node that leads."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        for offset in range(3):
            assert await error_of(client, commit(offset)) == 0
        partition = node.node.shard_of("g").partition
        found: Any = await ask(client, ReadOffsetChangesRequest(partition, 1, 100))

        assert [change.offset for change in found.changes] == [1, 2]


async def test_changes_that_are_in_a_snapshot_by_now_are_out_of_reach(
    autojump_clock: MockClock,
) -> None:
    """The snapshot came while the request waited for its turn: who asks is to begin anew."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        shard = node.node.shard_of("g")
        beside = next(
            name
            for name in map("g{}".format, range(100))
            if node.serves(name) and node.node.shard_of(name) is not shard
        )
        for group_id in ("g", beside):
            assert await error_of(client, commit(1, group_id=group_id)) == 0
        # Of the log itself the last unit is left, and that is of the other partition.
        assert await error_of(client, CompactLogRequest()) == 0

        with pytest.raises(OutOfReach):
            await shard.log.fetch(shard.partition, 0, 1_000)
        assert list(await shard.log.fetch(shard.partition, 1, 1_000)) == []


async def test_a_node_that_was_deposed_reads_no_changes(autojump_clock: MockClock) -> None:
    """It loads what the log says, and before that there are none: they would be skipped."""
    async with cluster() as here:
        old = here.leader_of("g")
        assert await error_of(old.connect(), commit(1)) == 0
        shard = old.node.shard_of("g")
        old.contact = Contact.CUT_OFF
        here.end_session(old)
        await here.new_leader_of("g", old)
        old.contact = Contact.FINE
        await until(lambda: bool(old.told("journal.deposed")))

        with pytest.raises(OutOfReach):
            await shard.log.fetch(shard.partition, 0, 1_000)


async def test_a_node_comes_to_lead_the_topics_while_it_loads_them(
    autojump_clock: MockClock,
) -> None:
    """Its shards follow first; if they were left at that, nobody would serve any group there."""
    async with cluster(nodes=2) as here:
        old = here.registrar
        new = here.other_than(old)
        new.contact = Contact.DEAF
        await register(old, "t", "u", "v")  # The first one's entry is trimmed.
        assert await error_of(old.connect(), CompactLogRequest()) == 0
        await old.stop()
        new.contact = Contact.FINE
        await until(lambda: new.node.registry.refusal() is None and new.serves("g"))

        assert all(holds(new, topic) for topic in ("t", "u", "v"))


async def test_what_somebody_puts_among_the_entries_counts_for_nothing(
    autojump_clock: MockClock,
) -> None:
    """It is told once; a leader that looked for what to remove ended by it."""
    async with cluster() as here:
        old = here.leader_of("g")
        log = f"/journals/{old.node.shard_of('g').partition % JOURNALS}/log"
        strays = [f"{log}/notes", f"{log}/0/notes"]
        made = znodes.Multi(tuple([znodes.Make(path, b"") for path in strays]))
        here.ensemble.do(here.ensemble.connect(), made, None)
        for offset in range(3):
            assert await error_of(old.connect(), commit(offset)) == 0
        for _ in range(2):
            assert await error_of(old.connect(), CompactLogRequest()) == 0
        await trio.sleep(1)
        left = here.ensemble.names(f"{log}/0")
        move(old, here.other_than(old))
        new = await here.new_leader_of("g", old)
        await trio.sleep(1)

        assert left is not None
        assert len(left) == 2  # And the newest entry.
        for host in (old, new):
            told = [fields["znode"] for fields in host.told("zookeeper.stray")]
            assert sorted(told) == sorted(strays)
        assert await error_of(new.connect(), commit(3)) == 0


async def test_what_somebody_puts_there_keeps_no_log_long(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lies in stays; with it stayed all that was to be cleared away, for ever."""
    monkeypatch.setattr(znodes, "ENTRIES_PER_DIRECTORY", 4)
    async with cluster("cluster.tail.bytes=150") as here:
        leader = here.leader_of("g")
        number = leader.node.shard_of("g").partition % JOURNALS
        journal = f"/journals/{number}"
        strays = [f"{journal}/log/0/notes", f"{journal}/snapshots/x", f"{journal}/snapshots/x/y"]
        made = znodes.Multi(tuple([znodes.Make(path, b"") for path in strays]))
        here.ensemble.do(here.ensemble.connect(), made, None)
        for offset in range(9):
            assert await error_of(leader.connect(), commit(offset)) == 0
            if offset % 3:
                assert await error_of(leader.connect(), CompactLogRequest()) == 0
        await trio.sleep(1)

        left = [here.ensemble.names(f"{journal}/log/{directory}") for directory in range(3)]
        assert [None if names is None else len(names) for names in left] == [1, None, 2]
        assert here.ensemble.names(f"{journal}/snapshots/x") == ("y",)
        new = here.start(77)
        await until(lambda: new.machine.is_ready)
        floors = [host.machine.journals[number].compacted_below for host in (leader, new)]
        assert floors[0] == floors[1]


async def test_new_data_is_refused_before_the_ensemble_suffers(autojump_clock: MockClock) -> None:
    """All logs together have a limit, which every node sees for itself."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        assert await error_of(client, commit(1)) == 0
        node.store.state_max_bytes = 10
        await trio.sleep(1)

        assert await error_of(client, commit(2)) == ErrorCode.STORAGE_FULL
        assert node.node.health.problems["storage"].startswith("the logs have reached")


def holds(host: Host, topic: str) -> bool:
    """Say whether any group of that node has offsets of *topic*, or its registry knows it."""
    groups = [g for shard in host.node.shards for g in shard.core.hard_state().values()]
    registry = host.node.registry.core.hard_state().topics
    return any(topic == t for g in groups for t, *_ in g.offsets) or any(
        topic == record.topic for record in registry.topics
    )


def purged(here: Cluster, journal: int) -> bytes:
    """Return up to which version a journal has no offsets of deleted topics."""
    znode = here.ensemble.at(f"/journals/{journal}/purged")
    return b"" if znode is None else znode.data


async def delete(here: Cluster, topic: str) -> None:
    """Delete a topic, at the node that decides about them."""
    answer: Any = await ask(here.registrar.connect(), DeleteTopicsRequest((topic,)))
    assert [found.error for found in answer.topics] == [0]


async def test_a_deleted_topic_is_forgotten_once_no_journal_has_offsets_of_it(
    autojump_clock: MockClock,
) -> None:
    """Each leader says so of its own journals, and the one of the topics forgets it."""
    async with cluster() as here:
        await register(here.registrar, "t", "u")
        await trio.sleep(0.2)
        for number in range(12):
            group_id = f"g{number}"
            client = here.leader_of(group_id).connect()
            assert await error_of(client, commit(number, group_id=group_id)) == 0
        await delete(here, "t")
        await until(lambda: not any(holds(host, "t") for host in here.hosts.values()))

        assert {purged(here, number) for number in range(JOURNALS)} == {b"3"}
        await delete(here, "u")  # Nobody ever had offsets of it.
        await until(lambda: not any(holds(host, "u") for host in here.hosts.values()))


async def test_a_deleted_topic_waits_for_a_journal_that_nobody_leads(
    autojump_clock: MockClock,
) -> None:
    """Forgotten and made anew it would inherit the offsets that are left there."""
    async with cluster() as here:
        registrar = here.registrar
        group_id = group_led_elsewhere(here, registrar)
        await register(registrar, "t")
        await trio.sleep(0.2)
        node = here.leader_of(group_id)
        assert await error_of(node.connect(), commit(7, group_id=group_id)) == 0
        here.kill(node)
        await delete(here, "t")
        await trio.sleep(4)
        assert all(holds(host, "t") for host in here.hosts.values())
        here.end_session(node)
        await until(lambda: not any(holds(host, "t") for host in here.hosts.values()))

        assert registrar.told("topics.forgotten") == [{"count": 1, "topics": ["t"]}]


async def test_a_deletion_that_never_reached_the_log_has_removed_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader knows nothing of it, and numbers another change as this one was.

    Who was told by the first one would take the second for done.
    """
    async with cluster(nodes=1) as here:
        (old,) = here.hosts.values()
        client = old.connect()
        registered = RegisterTopicsRequest((TopicRegistration("t", 2, None),), False)
        assert await error_of(client, registered) == 0
        group_id = group_beside_topics(old)
        assert await error_of(client, commit(7, group_id=group_id)) == 0
        lose_topics(old, monkeypatch)
        client.send(DeleteTopicsRequest(("t",)))
        await trio.sleep(1)
        here.kill(old)
        here.end_session(old)
        new = here.start(2)
        await until(lambda: here.is_settled)
        assert await fetched(new.connect(), group_id) == 7
        assert {purged(here, number) for number in range(JOURNALS)} == {b"0"}
        await delete(here, "t")
        await until(lambda: not holds(new, "t"))
        assert await error_of(new.connect(), registered) == 0

        assert await fetched(new.connect(), group_id) == -1


async def test_a_change_that_never_reached_the_log_hides_none_of_its_number(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group formed meanwhile, and its own log has that: it would take the next one for known."""
    async with cluster(nodes=1) as here:
        (old,) = here.hosts.values()
        await register(old, "t")
        group_id = group_beside_topics(old)
        lose_topics(old, monkeypatch)
        old.connect().send(RegisterTopicsRequest((TopicRegistration("u", 1, None),), False))
        await trio.sleep(0.01)
        member_id, generation = await become_member(old.connect(), group_id)
        here.kill(old)
        here.end_session(old)
        new = here.start(2)
        await until(lambda: new.node.registry.refusal() is None)
        assert not new.serves(group_id)
        client = new.connect()
        client.send(RegisterTopicsRequest((TopicRegistration("t", 4, None),), False))
        await until(lambda: here.is_settled)
        await trio.sleep(0.1)
        beaten = await error_of(client, beat(member_id, generation, group_id))

        assert beaten == ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_group_hears_what_became_of_topics_while_nobody_led_it(
    autojump_clock: MockClock,
) -> None:
    """The next one to lead it knew that before, and tells nobody else anything new."""
    async with cluster() as here:
        registrar = here.registrar
        await register(registrar, "t")
        group_id = group_led_elsewhere(here, registrar)
        old = here.leader_of(group_id)
        member_id, generation = await become_member(old.connect(), group_id)
        here.kill(old)
        await register(registrar, "t", partitions=3)
        await trio.sleep(0.2)
        here.end_session(old)
        new = await here.new_leader_of(group_id, old)
        await trio.sleep(0.1)
        beaten = await error_of(new.connect(), beat(member_id, generation, group_id))

        assert beaten == ErrorCode.REBALANCE_IN_PROGRESS


async def forget_a_topic(here: Cluster, registrar: Host) -> None:
    """Register a topic of nobody, delete it, and wait until nothing but its deletion is known."""
    await register(registrar, "other")
    await delete(here, "other")
    await until(lambda: not any(holds(host, "other") for host in here.hosts.values()))


def is_led(here: Cluster) -> bool:
    """Say whether every journal is led, that of the topics too."""
    registrars = [host for host in here.hosts.values() if host.node.registry.refusal() is None]
    return here.is_settled and len(registrars) == 1


async def test_a_deleted_topic_rebalances_no_group_of_others_at_a_change_of_leaders(
    autojump_clock: MockClock,
) -> None:
    """A follower has seen the deletion: a topic that was never registered is not that one."""
    async with cluster() as here:
        old = here.leader_of("g")
        member_id, generation = await become_member(old.connect())
        await forget_a_topic(here, here.registrar)

        async def goes_on() -> bool:
            await until(lambda: is_led(here))
            await trio.sleep(0.5)  # Groups are told of topics in slices.
            beaten = await error_of(here.leader_of("g").connect(), beat(member_id, generation))
            return beaten == 0

        move(old, new := here.other_than(old))
        await until(lambda: new.serves("g"))
        assert await goes_on()
        registrar, other = here.registrar, here.other_than(here.registrar)
        registrar.store.move(0, other.number, lambda _: None)
        await until(lambda: other.node.registry.refusal() is None)
        assert await goes_on()
        here.kill(dead := here.leader_of("g"))
        here.end_session(dead)
        assert await goes_on()
        again = here.start(dead.number)  # The node reads the whole log, and the deletion in it.
        await until(lambda: again.node.ready and is_led(here))
        await trio.sleep(1)  # All have heard that it is ready.
        if (old := here.leader_of("g")) is not again:
            move(old, again)
        await until(lambda: again.serves("g"))
        assert await goes_on()
        assert not any(host.told("group.rebalance_started") for host in (again, new, other))


@pytest.mark.parametrize("registered", [(), ("t",)])
async def test_what_a_snapshot_left_of_deletions_rebalances_no_group_that_has_seen_them(
    registered: Sequence[str], autojump_clock: MockClock
) -> None:
    """Neither where its topic isn't registered, nor where that came after the assignment."""
    async with cluster() as here:
        old = here.leader_of("g")
        member_id, generation = await become_member(old.connect())
        await register(here.registrar, *registered, partitions=1)
        await forget_a_topic(here, here.registrar)
        await trio.sleep(0.5)  # Groups are told of topics in slices.
        assert await error_of(here.registrar.connect(), CompactLogRequest()) == 0
        new = here.start(77)
        await until(lambda: here.is_settled)
        await trio.sleep(1)  # All have heard that it is ready.
        move(old, new)
        await until(lambda: new.serves("g"))
        await trio.sleep(0.5)

        assert await error_of(new.connect(), beat(member_id, generation)) == 0
        assert not new.told("group.rebalance_started")


async def test_nothing_is_said_to_be_removed_before_that_is_in_the_log(
    autojump_clock: MockClock,
) -> None:
    """The node may end in between: the next leader would never look for it."""
    async with cluster(nodes=2) as here:
        registrar = here.registrar
        await register(registrar, "t", "busy")
        node = here.other_than(registrar)
        group_id = group_led_elsewhere(here, registrar)
        journal = node.node.shard_of(group_id).partition % JOURNALS
        await trio.sleep(0.2)
        assert await error_of(node.connect(), commit(7, group_id=group_id)) == 0

        async def keep_busy(client: Client) -> None:
            with suppress(trio.TooSlowError, AssertionError):
                for offset in count():
                    topics = (TopicCommit("busy", (PartitionCommit(0, offset, -1, "", None),)),)
                    request = OffsetCommitRequest(group_id, -1, "", None, topics)
                    await ask(client, request, timeout_s=1)

        for _ in range(5):
            here.nursery.start_soon(keep_busy, node.connect())
            await trio.sleep(0.003)
        here.nursery.start_soon(delete, here, "t")
        await until(lambda: purged(here, journal) != b"0")
        here.kill(node)
        here.end_session(node)
        await until(lambda: registrar.serves(group_id))
        await until(lambda: bool(registrar.told("topics.forgotten")))

        assert not holds(registrar, "t")
