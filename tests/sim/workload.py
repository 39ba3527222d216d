"""What honest clients do: members over the real client library, and operators."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

import trio

from client import (
    Assignment,
    Assignor,
    Client,
    CommitRefused,
    CooperativeStickyAssignor,
    CoordinatorError,
    CoordinatorUnavailable,
    ErrorCode,
    FatalError,
    Member,
    MemberSubscription,
    OffsetAndMetadata,
    OutcomeUnknown,
    RangeAssignor,
    Rebalanced,
    RetriableError,
    RoundRobinAssignor,
    connect,
)
from protocol.partition import TopicPartition
from tests.sim.history import History, Key, Outcome
from tests.sim.registers import Violation

TOPIC = "flights"
NUM_PARTITIONS = 5
PLAIN_GROUP = "plain"  # It has no members; operators commit to it, and delete it.


class Wires(Protocol):
    """What lies between clients and the coordinator."""

    def opener(self, client: str, /) -> Callable[[str, int], Awaitable[trio.abc.Stream]]:
        """Return the `open_stream` of the client with that name."""

    def cut_off(self, client: str, /) -> None:
        """Hold everything between the client and the server."""

    def reconnect(self, client: str, /) -> None:
        """Deliver again."""

    def reset_some(self, client: str | None, /) -> None:
        """Reset the connections of one client, or all."""


class Surroundings(Protocol):
    """What a client lives in: a simulated world, or a process of its own.

    Attributes:
        away: Clients that are not running: static ones never say goodbye.
        healed: No more faults; everybody should recover.
        stopping: The workload comes to its end.
    """

    away: set[str]
    healed: bool
    stopping: bool

    @property
    def security(self) -> dict[str, str] | None:
        """How clients say who they are; None is not at all."""

    @property
    def address(self) -> str | Sequence[str]:
        """Where the coordinator is, or several nodes of it."""

    @property
    def history(self) -> History:
        """Where it is written down what the library says."""

    @property
    def network(self) -> Wires:
        """What lies between."""

    def rng(self, purpose: str) -> random.Random:
        """Return randomness of its own for each purpose."""

    def is_cooperative(self, group: str) -> bool:
        """Say how the members of *group* hand partitions over."""

    def next_id(self) -> int:
        """Return a number that no commit has had."""

    def violate(self, invariant: str, text: str) -> None:
        """Note a promise that was broken."""


class BaseWorld:
    """What `Surroundings` have in common.

    Attributes:
        violations: The promises that were broken.
    """

    def __init__(self, seed: int, history: History) -> None:
        self.seed = seed
        self.history = history
        self.violations: list[Violation] = []
        self.away: set[str] = set()
        self.healed = False
        self.stopping = False
        self.security: dict[str, str] | None = None
        self._last_id = 0

    def rng(self, purpose: str) -> random.Random:
        """Return randomness of its own for each purpose, so that they don't shift each other."""
        return random.Random(f"{self.seed} {purpose}")

    def is_cooperative(self, group: str) -> bool:
        """Say how the members of *group* hand partitions over: all of them must agree."""
        return self.rng(f"group {group}").random() < 0.4

    def next_id(self) -> int:
        """Return a number that no commit has had: offset and metadata of the next one."""
        self._last_id += 1
        return self._last_id

    def violate(self, invariant: str, text: str) -> None:
        """Note a promise that was broken."""
        self.history.note("violation", invariant, text)
        self.violations.append(Violation(invariant, text))


class Lookalike(str):
    """A topic that equals no other, so that the client doesn't see that it is given twice."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 0


class Overlapping:
    """An assignor with a bug: it gives the first partition to everybody."""

    def __init__(self, name: str, *, cooperative: bool = False) -> None:
        self.name = name
        self.cooperative = cooperative

    def assign(
        self, members: Sequence[MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """Ignore all but one partition."""
        return {m.member_id: [TopicPartition(Lookalike(TOPIC), 0)] for m in members}


class Driver:
    """One program that reads as a member of a group, dies now and then, and comes back."""

    def __init__(self, world: Surroundings, name: str, group: str) -> None:
        self.world = world
        self.name = name
        self.group = group
        self.member: Member | None = None
        self.session_timeout_ms = 0
        self.assignment: Assignment | None = None
        self._rng = world.rng(f"driver {name}")
        self._instance_id = name if self._rng.random() < 0.3 else None
        self._life = trio.CancelScope()
        self._is_buggy = False

    @property
    def settled(self) -> bool:
        """Whether it has an assignment that nobody has called into question."""
        member = self.member
        return (
            member is not None
            and self.assignment is not None
            and not member.lost
            and not member.rebalance_needed
        )

    async def run(self) -> None:
        """Live again and again until the world stops."""
        world, rng = self.world, self._rng
        await trio.sleep(rng.uniform(0, 3))
        while not world.stopping:
            self._life = trio.CancelScope()
            world.away.discard(self.name)
            try:
                with self._life:
                    await self._live()
            except CoordinatorUnavailable:
                pass
            except CoordinatorError as exc:
                if not self._was_to_be_expected(getattr(exc, "code", None)):
                    world.violate("client: gave up", f"{self.name}: {exc!r}")
            self.member = self.assignment = None
            world.away.add(self.name)
            world.network.reconnect(self.name)
            if not world.stopping:
                await trio.sleep(rng.uniform(0.1, 1 if world.healed else 5))

    def _was_to_be_expected(self, code: int | None) -> bool:
        """Say whether a driver may give up for *code*."""
        if code == ErrorCode.INVALID_REQUEST:
            return self._is_buggy  # A leader whose nonsense was refused is told so.
        if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
            return not self.world.healed  # Its password is being changed.
        # An older JoinGroup of its own that arrives late looks like its next incarnation.
        return code == ErrorCode.FENCED_INSTANCE_ID and self._instance_id is not None

    def crash(self) -> None:
        """Die without a word."""
        self.world.history.note("crash", self.name)
        self.world.network.cut_off(self.name)
        self.world.network.reset_some(self.name)
        self._life.cancel()

    async def _live(self) -> None:
        rng = self._rng
        # A static one would keep what it assigned, with its next incarnation.
        is_static = self._instance_id is not None
        self._is_buggy = not (self.world.healed or is_static) and rng.random() < 0.1
        self.session_timeout_ms = rng.choice((2_000, 4_000, 8_000))
        async with (
            connect_as(self.world, self.name, rng) as client,
            client.join(
                self.group,
                [TOPIC],
                {TOPIC: NUM_PARTITIONS},
                session_timeout_ms=self.session_timeout_ms,
                rebalance_timeout_ms=rng.choice((3_000, 6_000)),
                assignors=self._assignors(),
                group_instance_id=self._instance_id,
                # Some wait for as long as it takes, others see errors that pass.
                request_timeout_ms=rng.choice((None, 5_000)),
            ) as member,
        ):
            self.member = member
            while not self.world.stopping:
                try:
                    self.assignment = await member.assignment()
                except RetriableError:
                    continue
                if await self._work(client, member, self.assignment):
                    return

    def _assignors(self) -> list[Assignor]:
        if self.world.is_cooperative(self.group):
            name = CooperativeStickyAssignor().name
            buggy: list[Assignor] = [Overlapping(name, cooperative=True)]
            return buggy if self._is_buggy else [CooperativeStickyAssignor()]
        assignors: list[Assignor] = [RangeAssignor(), RoundRobinAssignor()]
        self._rng.shuffle(assignors)
        return [Overlapping(a.name) for a in assignors] if self._is_buggy else assignors

    async def _work(self, client: Client, member: Member, assignment: Assignment) -> bool:
        """Read and commit until a rebalance; return whether it wants to leave."""
        world, rng = self.world, self._rng
        while not member.rebalance_needed and not world.stopping:
            await trio.sleep(rng.uniform(0, 1))
            if self._is_buggy and world.healed:
                return True
            # A member that was drained gets nothing until it has left and come back.
            if rng.random() < (0.2 if not assignment.partitions else 0.02 * (not world.healed)):
                return True
            with suppress(RetriableError):
                await self._step(client, member, assignment)
        # What was read is committed before the partitions are given away.
        if rng.random() < 0.5 and assignment.partitions:
            await self._commit(member, assignment, None)
        return False

    async def _step(self, client: Client, member: Member, assignment: Assignment) -> None:
        rng = self._rng
        choice = rng.random()
        if choice < 0.25 or not assignment.partitions:
            await member.fetch(rng.choice((None, assignment.partitions)))
        elif choice < 0.35:
            fetched = await member.fetch(assignment.partitions)
            expected = {
                tp: fetched[tp].offset if tp in fetched else -1 for tp in assignment.partitions
            }
            await self._commit(member, assignment, expected)
        elif choice < 0.37 and not self.world.healed:
            await member.request_rejoin("more partitions")
        elif choice < 0.39 and not self.world.healed:
            with suppress(FatalError, OutcomeUnknown):
                await client.drain_member(self.group, self.name)
        else:
            await self._commit(member, assignment, None)

    async def _commit(
        self, member: Member, assignment: Assignment, expected: dict[TopicPartition, int] | None
    ) -> None:
        rng = self._rng
        count = rng.randint(1, len(assignment.partitions))
        chosen = sorted(rng.sample(assignment.partitions, count))
        offsets = new_offsets(self.world, chosen)
        checked = None if expected is None else {tp: expected[tp] for tp in chosen}
        claims = Claims(self.world, self.group, offsets)
        try:
            await member.commit(offsets, checked)
        except (OutcomeUnknown, FatalError):
            claims.all(Outcome.INFO)
        except CommitRefused as exc:
            claims.refused(exc)
        except (Rebalanced, RetriableError):
            claims.all(Outcome.FAIL)
        else:
            claims.all(Outcome.OK)


class Claims:
    """Writes down what the library said of one commit."""

    def __init__(
        self, world: Surroundings, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        self._world = world
        self._group = group
        self._offsets = offsets

    def all(self, outcome: Outcome) -> None:
        """The same of every partition."""
        for tp in self._offsets:
            self._one(tp, outcome)

    def refused(self, exc: CommitRefused) -> None:
        """Some were refused, the others are stored."""
        for tp in self._offsets:
            if tp not in exc.errors:
                self._one(tp, Outcome.OK)
            else:
                self._one(tp, Outcome.INFO if exc.maybe_stored else Outcome.FAIL)

    def _one(self, tp: TopicPartition, outcome: Outcome) -> None:
        key: Key = (self._group, tp.topic, tp.partition)
        self._world.history.claim(key, self._offsets[tp].metadata, outcome)


class Operator:
    """Commits for a group without members, looks at everything, deletes."""

    def __init__(self, world: Surroundings, name: str, groups: list[str]) -> None:
        self.world = world
        self.name = name
        self._groups = groups
        self._rng = world.rng(f"operator {name}")

    async def run(self) -> None:
        """Work until the world stops."""
        while not self.world.stopping:
            try:
                async with connect_as(self.world, self.name, self._rng) as client:
                    while not self.world.stopping:
                        with suppress(RetriableError, OutcomeUnknown):
                            await self._step(client)
                        await trio.sleep(self._rng.uniform(0, 1.5))
            except CoordinatorUnavailable:
                await trio.sleep(1)

    async def _step(self, client: Client) -> None:
        rng = self._rng
        choice = rng.random()
        if choice < 0.4:
            await self._commit(client)
        elif choice < 0.75:
            await client.fetch_offsets(rng.choice([*self._groups, PLAIN_GROUP]))
        elif choice < 0.9:
            await client.describe_groups([*self._groups, PLAIN_GROUP])
        elif choice < 0.94:
            await client.list_groups()
        elif choice < 0.97 and not self.world.healed:
            group, driver = rng.choice(self._groups), rng.randrange(4)
            with suppress(FatalError):
                await client.drain_member(group, f"{group}-{driver}")
        elif not self.world.healed:
            await client.delete_groups([PLAIN_GROUP])

    async def _commit(self, client: Client) -> None:
        partitions = [TopicPartition(TOPIC, n) for n in range(2)]
        chosen = sorted(self._rng.sample(partitions, self._rng.randint(1, 2)))
        offsets = new_offsets(self.world, chosen)
        await commit_without_members(self.world, client, PLAIN_GROUP, offsets)


async def commit_without_members(
    world: Surroundings,
    client: Client,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> None:
    """Commit for a group that has none, and write down what the library says of it."""
    claims = Claims(world, group, offsets)
    try:
        await client.commit(group, offsets)
    except OutcomeUnknown:
        claims.all(Outcome.INFO)
    except RetriableError:
        claims.all(Outcome.FAIL)
    else:
        claims.all(Outcome.OK)


def new_offsets(
    world: Surroundings, partitions: list[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return commits that can be told from all others."""
    offsets = {}
    for tp in partitions:
        number = world.next_id()
        offsets[tp] = OffsetAndMetadata(number, f"id-{number}")
    return offsets


def connect_as(
    world: Surroundings, name: str, rng: random.Random
) -> AbstractAsyncContextManager[Client]:
    """Connect the real client library to the world's network."""
    return connect(
        world.address,
        client_id=name,
        request_timeout_ms=5_000,
        rng=rng,
        security=world.security,
        open_stream=world.network.opener(name),
    )
