"""Snapshots of the journals that a node leads: daemons over an ensemble in memory."""

from itertools import count
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from coordinator.runtime.children import CompactionFailed
from coordinator.runtime.compactor import RETRY_FIRST_S
from protocol.errors import ErrorCode
from protocol.messages import (
    CompactLogRequest,
    DeleteGroupsRequest,
    OffsetCommitRequest,
    PartitionCommit,
    ReadOffsetChangesRequest,
    TopicCommit,
)
from tests.runtime.test_replication import error_of, fetched, move
from tests.server.world import Client, commit
from tests.sim.cluster import JOURNALS, Cluster, Contact, Host, ask, cluster, until

EVERY: Final = "cluster.snapshot.entries=16"
DIED: Final = CompactionFailed("the compaction process was killed by signal 9")
DAMAGED: Final = CompactionFailed("entry 3 is empty", is_damage=True)


async def commit_often(client: Client, times: int, first: int = 0) -> None:
    """Commit one after the other, each in an entry of its own."""
    for offset in range(first, first + times):
        assert await error_of(client, commit(offset)) == 0


def journal_of(host: Host) -> Any:
    """Return the journal of the group, as that node has it."""
    return host.machine.journals[host.node.shard_of("g").partition % JOURNALS]


def entries(here: Cluster, number: int) -> list[int]:
    """Return which entries of a journal there are."""
    return sorted(map(int, here.ensemble.names(f"/journals/{number}/log/0") or ()))


def snapshots(here: Cluster, number: int) -> tuple[str, ...]:
    """Return of which snapshots of a journal there are chunks."""
    return here.ensemble.names(f"/journals/{number}/snapshots") or ()


async def snapshot_of(host: Host) -> str:
    """Wait for the next snapshot of the group's journal to be done; return its name."""
    done = len(host.told("compaction.finished"))
    await until(lambda: len(host.told("compaction.finished")) > done)
    name: str = journal_of(host).snapshot.name
    return name


async def test_a_long_log_becomes_a_snapshot_and_is_trimmed(autojump_clock: MockClock) -> None:
    """Else ZooKeeper's memory fills up, and a start takes ever longer."""
    async with cluster(EVERY) as here:
        node = here.leader_of("g")
        client = node.connect()
        await commit_often(client, 15)
        await trio.sleep(2)
        assert node.told("compaction.started") == []
        await commit_often(client, 1, first=15)
        name = await snapshot_of(node)
        journal = journal_of(node)

        assert snapshots(here, journal.number) == (name,)
        # The newest one stays: the next is appended behind it.
        assert entries(here, journal.number) == [journal.applied]
        assert journal.tail_size == (0, 0)
        assert [told["journal"] for told in node.told("compaction.finished")] == [journal.number]
        await commit_often(client, 16, first=16)
        newer = await snapshot_of(node)
        assert (snapshots(here, journal.number), newer != name) == ((newer,), True)
        assert await fetched(client) == 31


async def test_a_node_that_starts_has_what_the_snapshot_says(autojump_clock: MockClock) -> None:
    """The log before it is gone."""
    async with cluster(EVERY, nodes=2) as here:
        old = here.leader_of("g")
        await commit_often(old.connect(), 16)
        await snapshot_of(old)
        await commit_often(old.connect(), 3, first=16)
        third = here.start(2)
        await until(lambda: here.is_settled)
        held = old.node.shard_of("g").core.hard_state()

        assert third.node.shard_of("g").core.hard_state() == held
        for host in [host for host in here.hosts.values() if host is not third]:
            here.kill(host)
            here.end_session(host)
        await until(lambda: third.serves("g"))
        assert await fetched(third.connect()) == 18


async def test_a_follower_that_missed_what_was_trimmed_loads_the_snapshot(
    autojump_clock: MockClock,
) -> None:
    """It was away for longer than the log is kept."""
    async with cluster(EVERY, "cluster.session.timeout.ms=6000") as here:
        node = here.leader_of("g")
        away = here.other_than(node)
        away.contact = Contact.CUT_OFF
        await commit_often(node.connect(), 16)
        await snapshot_of(node)
        away.contact = Contact.FINE
        held = node.node.shard_of("g").core.hard_state()
        await until(lambda: away.node.shard_of("g").core.hard_state() == held)

        assert journal_of(away).snapshot == journal_of(node).snapshot


async def test_a_child_that_dies_is_started_again_and_health_says_so(
    autojump_clock: MockClock,
) -> None:
    """Groups are served all the while; what the child has left is removed."""
    async with cluster(EVERY) as here:
        node = here.leader_of("g")
        number = journal_of(node).number
        node.child.deaths += [DIED, DIED]
        await commit_often(node.connect(), 16)
        await until(lambda: bool(node.told("compaction.failed")))

        assert node.node.health.problems["compaction"] == f"journal {number}: {DIED}"
        await until(lambda: snapshots(here, number) == ())
        assert await error_of(node.connect(), commit(16)) == 0
        await snapshot_of(node)
        pauses = [told["retry_in_ms"] for told in node.told("compaction.failed")]
        assert pauses == [RETRY_FIRST_S * 1000, RETRY_FIRST_S * 2000]
        assert node.node.health.problems == {}


async def test_a_failure_is_over_when_there_is_nothing_to_be_made_any_more(
    autojump_clock: MockClock,
) -> None:
    """A child after the other would find that the newest snapshot has all that there is."""
    async with cluster() as here:
        node = here.leader_of("g")
        for journal in node.machine.journals:
            if journal.is_leading:
                node.child.deaths.append(DIED)
        await ask(node.connect(), CompactLogRequest())
        assert "compaction" in node.node.health.problems
        node.child.deaths.clear()
        await trio.sleep(RETRY_FIRST_S + 5)
        tries = len(node.child.jobs)
        await trio.sleep(60)

        assert len(node.child.jobs) == tries
        assert node.node.health.problems == {}


async def test_damage_is_not_looked_at_again_until_another_node_leads(
    autojump_clock: MockClock,
) -> None:
    """Each look would find the same; a person has to."""
    async with cluster(EVERY, nodes=2) as here:
        node = here.leader_of("g")
        node.child.deaths.append(DAMAGED)
        await commit_often(node.connect(), 16)
        await until(lambda: bool(node.told("compaction.failed")))
        await trio.sleep(20)
        assert [told["retry_in_ms"] for told in node.told("compaction.failed")] == [-1]
        assert "compaction" in node.node.health.problems
        other = here.other_than(node)
        move(node, other)
        await snapshot_of(other)

        assert node.node.health.problems == {}


async def test_a_child_of_a_leader_that_is_none_any_more_comes_to_nothing(
    autojump_clock: MockClock,
) -> None:
    """The next leader removes what it finds, and makes its own."""
    async with cluster(EVERY, nodes=2) as here:
        node = here.leader_of("g")
        other = here.other_than(node)
        node.child.pause_s = 1.0
        await commit_often(node.connect(), 16)
        await until(lambda: bool(node.told("compaction.started")))
        await trio.sleep(1.5)
        move(node, other)
        name = await snapshot_of(other)

        assert snapshots(here, journal_of(node).number) == (name,)
        await trio.sleep(10)
        assert node.told("compaction.finished") == []
        assert node.told("compaction.failed") == []


async def test_a_leader_that_dies_while_it_trims_is_followed_by_one_that_goes_on(
    autojump_clock: MockClock,
) -> None:
    """Old chunks and entries would stay for ever."""
    async with cluster("cluster.snapshot.entries=300") as here:
        node = here.leader_of("g")
        number = journal_of(node).number
        await commit_often(node.connect(), 300)
        await until(lambda: 0 < len(entries(here, number)) < 300)
        assert node.told("compaction.finished") == []
        here.kill(node)
        here.end_session(node)
        new = await here.new_leader_of("g", node)
        await until(lambda: len(entries(here, number)) < 3)

        assert await fetched(new.connect()) == 299


async def test_an_operator_has_a_snapshot_made_of_each_journal_that_is_led(
    autojump_clock: MockClock,
) -> None:
    """Before a copy of ZooKeeper, or when room is wanted at once."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        await commit_often(client, 3)
        answer: Any = await ask(client, CompactLogRequest())
        led = [journal.number for journal in node.machine.journals if journal.is_leading]

        assert (answer.error, node.child.jobs) == (0, led)
        assert answer.live_bytes == sum(j.snapshot.size_bytes for j in node.machine.journals)
        node.child.deaths.append(DIED)
        answer = await ask(client, CompactLogRequest())
        assert (answer.error, answer.message) == (ErrorCode.OUTCOME_UNKNOWN, str(DIED))


async def test_a_snapshot_that_is_larger_than_the_log_removes_nothing(
    autojump_clock: MockClock,
) -> None:
    """Of one commit it was told that it removed -52 bytes."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        await commit_often(client, 1)
        answer: Any = await ask(client, CompactLogRequest())

        assert answer.removed_bytes == 0
        assert {told["removed_bytes"] for told in node.told("compaction.finished")} == {0}


async def test_changes_that_are_only_in_the_snapshot_are_too_old(
    autojump_clock: MockClock,
) -> None:
    """Who follows them begins anew from what is committed."""
    async with cluster(EVERY) as here:
        node = here.leader_of("g")
        client = node.connect()
        await commit_often(client, 16)
        await snapshot_of(node)
        partition = node.node.shard_of("g").partition
        end = node.store.logs[partition % JOURNALS].end_offset(partition)

        assert await error_of(client, ReadOffsetChangesRequest(partition, end, 100)) == 0
        too_old = ReadOffsetChangesRequest(partition, 0, 100)
        assert await error_of(client, too_old) == ErrorCode.POSITION_TOO_OLD


async def test_changes_are_kept_for_longer_where_the_settings_say_so(
    autojump_clock: MockClock,
) -> None:
    """Also by a node that has started since: it reads where they lie, too."""
    async with cluster(EVERY, "cluster.tail.bytes=1000000", nodes=1) as here:
        node = here.leader_of("g")
        await commit_often(node.connect(), 16)
        await snapshot_of(node)
        number = journal_of(node).number
        kept = entries(here, number)
        second = here.start(1)
        await until(lambda: here.is_settled)
        here.kill(node)
        here.end_session(node)
        await until(lambda: second.serves("g"))
        partition = second.node.shard_of("g").partition
        client = second.connect()
        await commit_often(client, 20, first=16)
        await snapshot_of(second)
        found: Any = await ask(client, ReadOffsetChangesRequest(partition, 0, 100))

        assert [change.offset for change in found.changes] == list(range(36))
        assert entries(here, number)[: len(kept)] == kept


async def test_room_comes_back_when_something_is_removed(autojump_clock: MockClock) -> None:
    """Where nothing new is taken the log may never again be as long as a snapshot waits for."""
    async with cluster() as here:
        node = here.leader_of("g")
        client = node.connect()
        for number in range(30):
            metadata = f"{here.rng.getrandbits(800):0200x}"
            topic = TopicCommit(f"t{number}", (PartitionCommit(0, 1, -1, metadata, None),))
            assert await error_of(client, OffsetCommitRequest("g", -1, "", None, (topic,))) == 0
        node.store.state_max_bytes = 2_000
        await snapshot_of(node)  # Which alone has more.
        assert await error_of(client, commit(30)) == ErrorCode.STORAGE_FULL
        deleted: Any = await ask(client, DeleteGroupsRequest(("g",)))
        assert [group.error for group in deleted.groups] == [0]
        await snapshot_of(node)
        await trio.sleep(1)

        assert await error_of(client, commit(31)) == 0
        assert node.node.health.problems == {}


async def test_a_child_that_is_due_again_waits_for_a_connection(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last one has left can't be removed before; and nobody computes meanwhile."""
    async with cluster(EVERY) as here:
        node = here.leader_of("g")
        journal, tries = journal_of(node), count()
        begin = journal.begin_snapshot

        def begin_seldom() -> str | None:
            assert next(tries) < 50
            name: str | None = begin()
            return name

        monkeypatch.setattr(journal, "begin_snapshot", begin_seldom)
        node.child.deaths.append(DIED)
        node.child.pause_s = 0.1
        await commit_often(node.connect(), 16)
        await until(lambda: bool(node.told("compaction.started")))
        node.contact = Contact.CUT_OFF
        await until(lambda: bool(node.told("compaction.failed")))
        await trio.sleep(3)
        node.contact = Contact.FINE

        assert await snapshot_of(node) == journal.snapshot.name
