"""One client as a process: ``python -m tests.soak.one_client '{"kind": "driver", …}'``.

What the library says goes to standard output, a line each; standard input tells when there are no
more faults ("healed"), and when to come to an end ("stop").
"""

import json
import logging
import random
import sys
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Final

import trio

from client import (
    AssignmentWarning,
    AuthenticationFailed,
    Client,
    CoordinatorUnavailable,
    RetriableError,
)
from protocol.partition import TopicPartition
from tests.sim.history import History, Key, Outcome
from tests.sim.workload import (
    BaseWorld,
    Driver,
    Operator,
    Surroundings,
    commit_without_members,
    connect_as,
    new_offsets,
)

# More commits than one process ever makes: so no two processes make the same.
_IDS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a client is told. *number* is that of this process, *seed* the one of the run."""

    kind: str
    name: str
    groups: list[str]
    security: dict[str, str]
    port: int
    number: int
    seed: int

    @property
    def protocol(self) -> str:
        """What it speaks."""
        return self.security["security.protocol"]


def say(**fields: object) -> None:
    """Tell the conductor."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Spoken(History):
    """What the library says, told instead of kept."""

    def claim(self, key: Key, metadata: str, outcome: Outcome) -> None:
        """Tell it."""
        say(claim=[key, metadata, outcome.value])


class Loopback:
    """The one way to the coordinator, whatever address that gives itself."""

    def __init__(self, port: int) -> None:
        self._port = port

    def opener(self, _client: str) -> Callable[[str, int], Awaitable[trio.abc.Stream]]:
        """Return what connects there."""

        async def open_stream(_host: str, _port: int) -> trio.abc.Stream:
            return await trio.open_tcp_stream("127.0.0.1", self._port)

        return open_stream

    def cut_off(self, _client: str) -> None:
        """Whoever conducts does that."""

    reconnect = cut_off

    def reset_some(self, _client: str | None) -> None:
        """The same."""


class OwnProcess(BaseWorld):
    """The `Surroundings` of a client that is alone in its process."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.seed, Spoken())
        self.address = f"127.0.0.1:{plan.port}"
        self.security = plan.security
        self.network = Loopback(plan.port)
        self._plan = plan
        self._last_id = plan.number * _IDS

    def rng(self, purpose: str) -> random.Random:
        """Return other randomness for each process."""
        return random.Random(f"{self._plan.seed} {self._plan.number} {purpose}")

    def is_cooperative(self, group: str) -> bool:
        """Say the same as all other members."""
        return random.Random(f"{self._plan.seed} {group}").random() < 0.5

    def violate(self, invariant: str, text: str) -> None:
        """Tell it."""
        say(violation=[invariant, text])


class Committer:
    """Commits as often as it may, for a group without members, and looks now and then."""

    PARTITIONS: Final = 3
    PAUSE_S: Final = 0.03

    def __init__(self, world: Surroundings, name: str, group: str) -> None:
        self._world = world
        self._name = name
        self._group = group
        self._rng = world.rng(f"committer {name}")

    async def run(self) -> None:
        """Work until it is told to stop."""
        while not self._world.stopping:
            try:
                async with self._connect() as client:
                    while not self._world.stopping:
                        await self._step(client)
                        await trio.sleep(self.PAUSE_S)
            except CoordinatorUnavailable:
                await trio.sleep(1)
            except AuthenticationFailed:
                if self._world.healed:  # No password changes any more.
                    raise
                await trio.sleep(1)

    def _connect(self) -> AbstractAsyncContextManager[Client]:
        return connect_as(self._world, self._name, self._rng)

    async def _step(self, client: Client) -> None:
        if self._rng.random() < 0.05:
            with suppress(RetriableError):
                await client.fetch_offsets(self._group)
            return
        topic = f"topic of {self._group}"
        partitions = [TopicPartition(topic, p) for p in range(self.PARTITIONS)]
        offsets = new_offsets(self._world, partitions)
        await commit_without_members(self._world, client, self._group, offsets)


async def listen(world: OwnProcess, nursery: trio.Nursery) -> None:
    """Do as standard input says; without it there is nobody to work for."""
    buffered = b""
    async with trio.lowlevel.FdStream(sys.stdin.fileno()) as stream:
        async for data in stream:
            *lines, buffered = (buffered + data).split(b"\n")
            world.healed = world.healed or b"healed" in lines
            world.stopping = world.stopping or b"stop" in lines
    if not world.stopping:
        nursery.cancel_scope.cancel()


async def run(plan: Plan) -> None:
    """Be that client until the end."""
    world = OwnProcess(plan)
    kinds: dict[str, Callable[[], Driver | Operator | Committer]] = {
        "driver": lambda: Driver(world, plan.name, plan.groups[0]),
        "operator": lambda: Operator(world, plan.name, plan.groups),
        "committer": lambda: Committer(world, plan.name, plan.groups[0]),
    }
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, world, nursery)
        await kinds[plan.kind]().run()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    # A client that tries again is no news here; what else it would say is. Some drivers give away
    # what nobody wants, as planned.
    logging.basicConfig(level=logging.ERROR)
    warnings.simplefilter("ignore", AssignmentWarning)
    trio.run(run, Plan(**json.loads(sys.argv[1])))
