"""Nodes of a cluster over a real ensemble, each a process, and clients of all of them."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio

from client import Client, Member, OffsetAndMetadata, Rebalanced, connect
from protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from tests.integration.daemon import Daemon, until

# Any number of them may be at work at a time; a journal each has more to do with its node.
PAUSE_S: Final = 0.02


class Nodes:
    """The nodes of one cluster, by number. A node that is started again has its port again.

    Attributes:
        settings: Of all of them.
        running: Those that were not stopped or killed by this.
    """

    def __init__(self, settings: Sequence[str]) -> None:
        """Make none yet; *settings* are those of all."""
        self.running: dict[int, Daemon] = {}
        self.settings = settings
        self._ports: dict[int, int] = {}

    def start(self, *numbers: int) -> None:
        """Start nodes, and wait until they are ready."""
        for number in numbers:
            settings = (*self.settings, f"node.id={number}")
            port = self._ports.get(number, 0)
            self.running[number] = Daemon(None, settings, port=port)
        for number in numbers:
            self._ports[number] = self.running[number].ready().port

    def kill(self, number: int) -> Daemon:
        """End a node as `kill -9` does; return it."""
        ended = self.running.pop(number)
        ended.kill()
        return ended

    def stop(self, number: int) -> Daemon:
        """Ask a node to stop; return it when it has ended."""
        ended = self.running.pop(number)
        assert ended.stop() == 0, (ended.lines, ended.stray)
        return ended

    @property
    def addresses(self) -> list[str]:
        """Where they are, or were: what clients begin with."""
        return [f"127.0.0.1:{port}" for port in self._ports.values()]

    def leader_of(self, group_id: str) -> int:
        """Return the node that leads a group, as soon as all that run agree about it."""
        found: set[int] = set()

        def agree() -> bool:
            found.clear()
            found.update(_leader(daemon, group_id) for daemon in self.running.values())
            return len(found) == 1 and found <= set(self.running)

        until(agree, f"one leader of {group_id}")
        return found.pop()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what those that run logged under *name*."""
        return [line for daemon in self.running.values() for line in daemon.events(name)]


def _leader(daemon: Daemon, group_id: str) -> int:
    with daemon.connect() as connection:
        answer = connection.ask(FindCoordinatorRequest(0, (group_id,)))
    assert isinstance(answer, FindCoordinatorResponse)
    return answer.coordinators[0].node_id


@contextmanager
def cluster(zookeeper: str, *settings: str, nodes: int = 3) -> Iterator[Nodes]:
    """Run a cluster whose logs are in *zookeeper*, servers and chroot."""
    made = Nodes((f"cluster.zookeeper={zookeeper}", "cluster.create=true", *settings))
    try:
        made.start(*range(1, nodes + 1))
        yield made
    finally:
        for number in tuple(made.running):
            made.kill(number)


class Worker:
    """A member that commits one offset after the other, and reads each back.

    Attributes:
        member_ids: All that it had; likewise ``generations``.
        committed: The last offset that was acknowledged.
        pause_s: The longest time without an acknowledgement.
    """

    def __init__(self, client: Client, member: Member) -> None:
        self.member_ids: set[str] = set()
        self.generations: set[int] = set()
        self.committed = 0
        self.pause_s = 0.0
        self._client = client
        self._member = member

    async def run(self) -> None:
        """Work until cancelled."""
        member, since_s = self._member, time.monotonic()
        while True:
            assignment = await member.assignment()
            self.member_ids.add(assignment.member_id)
            self.generations.add(assignment.generation)
            wanted = OffsetAndMetadata(self.committed + 1)
            try:
                await member.commit(dict.fromkeys(assignment.partitions, wanted))
            except Rebalanced:
                continue
            found = await member.fetch(assignment.partitions)
            assert set(found.values()) == {wanted}
            self.committed += 1
            now_s = time.monotonic()
            self.pause_s, since_s = max(self.pause_s, now_s - since_s), now_s
            await trio.sleep(PAUSE_S)

    async def commits_on(self, count: int = 5) -> None:
        """Return when so many more are acknowledged."""
        until_offset = self.committed + count
        with trio.fail_after(60):
            while self.committed < until_offset:  # noqa: ASYNC110 - of other processes
                await trio.sleep(PAUSE_S)


@asynccontextmanager
async def workers(nodes: Nodes, *groups: str) -> AsyncIterator[dict[str, Worker]]:
    """Have one member in each of *groups* at work."""
    async with trio.open_nursery() as nursery:
        working: dict[str, Worker] = {}

        async def work(group_id: str) -> None:
            async with (
                connect(nodes.addresses, client_id=group_id) as client,
                client.join(group_id, topics=["t"], partitions={"t": 2}) as member,
            ):
                working[group_id] = worker = Worker(client, member)
                await worker.run()

        for group_id in groups:
            nursery.start_soon(work, group_id)
        with trio.fail_after(60):
            while len(working) < len(groups):  # noqa: ASYNC110 - of other processes
                await trio.sleep(PAUSE_S)
        for worker in working.values():
            await worker.commits_on()
        yield working
        nursery.cancel_scope.cancel()
