"""The migration of one partition as a model: restarts, frozen owners, lost replies, crashes.

Every history is a seed. The znode is written by the machine that the client writes it with.
"""

from collections.abc import Iterator
from enum import Enum, auto
from random import Random

import pytest

from client.zookeeper import znodes
from client.zookeeper.znodes import Found, Reply, Request, Set, Status, ZnodeWrite, offsets_path
from tests.fakes.znodes import carried_out

PATH = offsets_path("g", "t", 0)
HISTORIES = 4_000
STEPS = 80
# What happens next, and how often.
ACTIONS = (("work", "wake", "hand over", "kill", "restart"), (60, 12, 6, 4, 18))


class Mode(Enum):
    """What a member's properties say."""

    ZOOKEEPER = auto()
    DUAL = auto()
    COORDINATOR = auto()


# Which members may be there at the same time; one step at a time, to and fro.
PHASES = (
    (Mode.ZOOKEEPER,),
    (Mode.ZOOKEEPER, Mode.DUAL),
    (Mode.DUAL,),
    (Mode.DUAL, Mode.COORDINATOR),
    (Mode.COORDINATOR,),
)
ALL_DUAL = PHASES.index((Mode.DUAL,))


class World:
    """What everybody sees: the coordinator, the znode, and which generation may commit."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.coordinator: int | None = None
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self.generation = 0
        self.acknowledged = 0
        self.processed = 0

    @property
    def znode(self) -> int | None:
        """The offset in the znode."""
        return int(self.nodes[PATH][0]) if PATH in self.nodes else None

    def ask(self, request: Request) -> Reply:
        """Do a request; now and then the reply is lost, or the request itself."""
        chance = self.random.random()
        if chance < 0.1:
            return Status.LOST
        reply = carried_out(self.nodes, request)
        return Status.LOST if chance < 0.2 else reply


class Owner:
    """A process that has the partition, or had it; a frozen one goes on when it is let."""

    levels = True

    def __init__(self, world: World, mode: Mode) -> None:
        self.world = world
        self.mode = mode
        world.generation += 1
        self.generation = world.generation
        self.version: int | None = None
        self.position: int | None = None
        self.is_even = False
        self._work: Iterator[None] = self._begin()

    def step(self) -> bool:
        """Do the next step of what it is about; say whether there was one."""
        return any(True for _ in zip(range(1), self._work, strict=False))

    def commit(self) -> None:
        """Begin to commit how far it is."""
        assert self.position is not None
        self._work = self._store(self.position)

    def _begin(self) -> Iterator[None]:
        """Fetch, and have both places the same if it knows both."""
        world = self.world
        znode = coordinator = None
        if self.mode is not Mode.ZOOKEEPER:
            coordinator = world.coordinator
            yield
        if self.mode is not Mode.COORDINATOR:
            znode = world.znode
            self.version = world.nodes[PATH][1] if PATH in world.nodes else None
            yield
        self.position = max((x for x in (coordinator, znode) if x is not None), default=0)
        if self.mode is Mode.DUAL and znode != coordinator and self.levels:
            yield from self._store(self.position)
        self.is_even = True

    def _store(self, offset: int) -> Iterator[None]:
        """Commit, as `client.zookeeper.offset_calls` does it."""
        world = self.world
        if self.generation != world.generation:
            return  # The heartbeat, or the commit, is refused.
        yield from self._places(offset)
        # A znode knows no generation: whoever is replaced within a commit may see it accepted,
        # and its successor has begun before that.
        if self.mode is not Mode.ZOOKEEPER or self.generation == world.generation:
            world.acknowledged = max(world.acknowledged, offset)

    def _places(self, offset: int) -> Iterator[None]:
        if self.mode is not Mode.ZOOKEEPER:
            self.world.coordinator = offset
            yield
        if self.mode is not Mode.COORDINATOR:
            yield from self._write(offset)

    def _write(self, offset: int) -> Iterator[None]:
        yield
        write = ZnodeWrite(PATH, offset, self.version, is_reset=False)
        while write.request is not None:
            write.take(self.world.ask(write.request))
            yield
        self.version = write.version


class ZnodeFirst(Owner):
    """A mistake: it writes the znode, and then commits to the coordinator."""

    def _places(self, offset: int) -> Iterator[None]:
        if self.mode is not Mode.COORDINATOR:
            yield from self._write(offset)
        if self.mode is not Mode.ZOOKEEPER and self.generation == self.world.generation:
            self.world.coordinator = offset


class Uneven(Owner):
    """A mistake: it leaves what it fetches as it is."""

    levels = False


def run(seed: int, kind: type[Owner] = Owner) -> None:
    """Live through a history of a team that restarts its members, forward and back.

    Raises:
        AssertionError: Rows are skipped, or what was acknowledged would be read again.
    """
    random = Random(seed)
    world = World(random)
    phase = 0
    owner = kind(world, Mode.ZOOKEEPER)
    frozen: list[Owner] = []
    for _ in range(STEPS):
        match random.choices(*ACTIONS)[0]:
            case "work":
                if not owner.step() and owner.position is not None:
                    owner.position += random.randint(0, 3)
                    world.processed = max(world.processed, owner.position)
                    owner.commit()
            case "wake":
                if frozen:
                    random.choice(frozen).step()
            case "restart":
                after = phase + random.choice((-1, 1))
                # The guide's check tells, before anybody reads only one place, that they differ.
                may = phase != ALL_DUAL or owner.is_even
                if 0 <= after < len(PHASES) and may and owner.mode in PHASES[after]:
                    phase = after
                    frozen = [one for one in frozen if one.mode in PHASES[phase]]
            case how:
                if how == "hand over":
                    frozen.append(owner)
                owner = kind(world, random.choice(PHASES[phase]))
        check(world, PHASES[phase])


def check(world: World, modes: tuple[Mode, ...]) -> None:
    """See that whoever could come next begins where all is done, and nothing was skipped."""
    znode, coordinator = world.znode or 0, world.coordinator or 0
    assert max(znode, coordinator) <= world.processed
    found = {
        Mode.ZOOKEEPER: znode,
        Mode.DUAL: max(znode, coordinator),
        Mode.COORDINATOR: coordinator,
    }
    for mode in modes:
        assert found[mode] >= world.acknowledged, mode


def test_nothing_is_lost_on_the_way_there_and_back() -> None:
    """Any two neighbouring steps at once, with owners that sleep in the middle of a commit."""
    for seed in range(HISTORIES):
        run(seed)


def is_found(kind: type[Owner] = Owner) -> bool:
    """Say whether some history shows a mistake."""
    for seed in range(HISTORIES):
        try:
            run(seed, kind)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("kind", [ZnodeFirst, Uneven])
def test_a_wrong_order_is_found(kind: type[Owner]) -> None:
    """A model that finds nothing proves nothing."""
    assert is_found(kind)


def test_a_write_that_goes_back_over_anothers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka 0.8 wrote them, whatever was there."""

    def found(self: ZnodeWrite, data: bytes, version: int) -> None:
        self.request = self._set(version)
        if data == self._set(0).data:
            self._end(version)

    monkeypatch.setattr(ZnodeWrite, "_found", found)

    assert is_found()


def test_a_write_without_a_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is all that stops an owner that was replaced."""
    do = carried_out

    def any_version(nodes: dict[str, tuple[bytes, int]], request: Request) -> Reply:
        if isinstance(request, Set) and request.path in nodes:
            request = request._replace(version=nodes[request.path][1])
        return do(nodes, request)

    monkeypatch.setattr("tests.zookeeper.test_dual_commit.carried_out", any_version)

    assert is_found()


def test_a_lost_reply_that_is_taken_for_done_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether it was."""
    take = ZnodeWrite.take

    def hopeful(self: ZnodeWrite, reply: Reply) -> None:
        take(self, Found(self._set(0).data, 0) if reply is Status.LOST else reply)

    monkeypatch.setattr(znodes.ZnodeWrite, "take", hopeful)

    assert is_found()
