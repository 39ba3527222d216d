"""A node whose shards lie in several logs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec
import outcome
import trio
import trio.testing

from coordinator.config import load_settings
from coordinator.log.errors import LogFailed
from coordinator.runtime.calls import Call
from coordinator.runtime.environment import Done, Work
from coordinator.runtime.folder import Folder
from coordinator.runtime.logs import Log, LogUser, ReplayLog
from coordinator.runtime.node import Node
from coordinator.server.run import make_folder, make_node
from protocol.errors import ErrorCode
from protocol.messages import (
    DeleteTopicsRequest,
    RegisterTopicsRequest,
    Request,
    Response,
    TopicRegistration,
)
from tests.fakes.compaction import MemoryChild
from tests.fakes.disk import Disk
from tests.fakes.environment import environment
from tests.log.helpers import open_journal
from tests.server.world import commit

LOGS: Final = 3
SETTINGS: Final = load_settings(
    overrides=["offsets.topic.num.partitions=4", "storage.reserve.bytes=0"]
)


class Folders:
    """A store of several folders, as if their disks were one."""

    def __init__(self, folders: Sequence[Folder]) -> None:
        self._folders = folders
        self.logs: Sequence[Log] = folders
        self.replays: Sequence[ReplayLog] = folders
        self.end_round = None
        self.health = folders[0].health
        self.cluster_id = folders[0].cluster_id
        self.num_partitions = folders[0].num_partitions
        self.refuses = self.is_exhausted = False
        self.logs_repeats = True
        self.alarm_bytes = 1_000_000

    def begin(self) -> None:
        """Nothing is kept small."""

    flushed = look = tend = begin

    def purged(self, log: int) -> int:
        """Return what the folder says."""
        return self._folders[log].purged(0)

    def set_purged(self, log: int, version: int) -> None:
        """Tell the folder."""
        self._folders[log].set_purged(0, version)

    def compact(self, call: Call) -> None:
        """Nobody asks."""
        raise AssertionError

    async def run(self, _node: LogUser) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    hand_over = stop


class Asked(Call):
    """A request, and its answers."""

    answers: list[Any] = msgspec.field(default_factory=list)

    def prepare(self, answer: Response, leader_epoch: int, error: int | None = None) -> Any:
        """Keep the answer as it is."""
        return answer

    def send(self, prepared: Any) -> None:
        """Take it."""
        self.answers.append(prepared)


class Disks:
    """The disks of a node, and the node of the moment."""

    def __init__(self) -> None:
        self.disks = [Disk() for _ in range(LOGS)]
        self.held: set[int] = set()
        self.jobs: list[tuple[int, Work, Done]] = []
        self.node: Node

    def start(self) -> Node:
        """Return a node over the disks as they are."""
        folders = [self._folder(number) for number in range(LOGS)]
        self.folders = folders
        self.node = make_node(
            SETTINGS, Folders(folders), environment(submit=partial(self._submit, 0))
        )
        return self.node

    def _folder(self, number: int) -> Folder:
        journal = open_journal(self.disks[number])
        surroundings = environment(submit=partial(self._submit, number))
        child = MemoryChild(journal.directory)
        return make_folder(SETTINGS, journal, surroundings, child.run)

    def _submit(self, number: int, work: Work, done: Done) -> None:
        if number in self.held:
            self.jobs.append((number, work, done))
        else:
            done(outcome.capture(work))

    def let_go(self) -> None:
        """Let all disks write."""
        self.held = set()
        jobs, self.jobs = self.jobs, []
        for _, work, done in jobs:
            done(outcome.capture(work))

    def ask(self, request: Request) -> Asked:
        """Ask for what is the node's own, or for one group."""
        call, now = Asked(request), self.node.now()
        if isinstance(request, RegisterTopicsRequest | DeleteTopicsRequest):
            self.node.decide(request, call, call.caller, now)
        else:
            group_id: str = request.group_id  # type: ignore[attr-defined]  # all others here
            self.node.shard_of(group_id).handle(request, call, call.caller, now)
        self.node.start_flushes()
        return call

    def group_of(self, partition: int) -> str:
        """Return a group of that offsets partition."""
        names = (f"g{number}" for number in range(1_000))
        return next(n for n in names if self.node.shard_of(n).partition == partition)


@asynccontextmanager
async def running(disks: Disks) -> AsyncIterator[Node]:
    """Load a node and run it as long as the block lasts."""
    node = disks.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run)
        await node.load()
        yield node
        nursery.cancel_scope.cancel()
    for disk in disks.disks:
        disk.kill()


async def test_every_partition_lies_in_the_log_of_its_number(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """And what is the node's own in the first one; a start finds all of it."""
    disks = Disks()
    async with running(disks):
        groups = [disks.group_of(partition) for partition in range(4)]
        for group_id in groups:
            assert disks.ask(commit(7, group_id=group_id)).answers
        disks.ask(RegisterTopicsRequest((TopicRegistration("t", 1, None),), False))
        ends = [[folder.end_offset(p) for p in (0, 1, 2, 3, 0xFFFF)] for folder in disks.folders]
    async with running(disks) as node:
        found = [node.shard_of(g).core.groups[g].offset_of("t", 0) for g in groups]
        topics = node.registry.core.registry.names()
        loaded = [node.shards[p].log.end_offset(p) for p in range(4)]

    assert ends == [[1, 0, 0, 1, 2], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]]
    assert [offset and offset.offset for offset in found] == [7] * 4
    assert topics == ["t"]
    assert loaded == [1] * 4


async def test_a_log_that_hangs_holds_up_its_own_groups_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each log has its own flushes, and they wait for each other nowhere."""
    disks = Disks()
    async with running(disks) as node:
        groups = [disks.group_of(partition) for partition in range(4)]
        disks.held = {1}
        asked = [disks.ask(commit(7, group_id=group_id)) for group_id in groups]
        before = [len(call.answers) for call in asked]
        disks.let_go()
        await node.wait_durable()

        assert before == [1, 0, 1, 1]
        assert [len(call.answers) for call in asked] == [1] * 4


async def test_a_log_that_hangs_for_long_is_told_whatever_the_others_do(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The oldest flush counts, and not the latest one."""
    disks = Disks()
    async with running(disks):
        disks.held = {1}
        late = disks.ask(commit(7, group_id=disks.group_of(1)))
        for _ in range(6):
            await trio.sleep(1)
            disks.ask(commit(7, group_id=disks.group_of(0)))
        unwell = [check.part for check in disks.node.checks.look() if not check.ok]
        disks.let_go()

        assert unwell == ["disk"]
        assert [answer.error for answer in late.answers] == [ErrorCode.OUTCOME_UNKNOWN]


async def test_one_log_that_fails_ends_the_node() -> None:
    """Nothing may be acknowledged behind it, and a topic concerns all of them."""
    disks = Disks()
    failures: list[BaseException] = []
    try:
        async with running(disks):
            disks.disks[2].plan(fail_at=0)
            disks.ask(commit(7, group_id=disks.group_of(2)))
            await trio.sleep_forever()
    except BaseExceptionGroup as group:
        known, rest = group.split(LogFailed)
        assert rest is None
        assert known is not None
        failures.append(known)

    assert len(failures) == 1
