"""Which partitions the caller has, and what to tell it before that changes. Pure."""

# An eager member gives everything up before it joins again. A cooperative one keeps what it has
# until a new assignment is there, and then gives up only what that takes away. Both are told of
# losses that have happened already in the same way, and before anything else.

from enum import Enum
from typing import NamedTuple

from protocol.types import TopicPartition

Owned = tuple[TopicPartition, ...]


class Change(Enum):
    """What becomes of partitions."""

    LOST = "they are somebody else's already; commits of them are refused"
    REVOKED = "they are given up next; until then commits of them count"
    GIVEN = "they are added; to an eager member, all that the assignment holds"


class Step(NamedTuple):
    """One thing that the caller must be told; ``partitions`` is sorted."""

    change: Change
    partitions: Owned


class HandOver:
    """What the caller has and what is due.

    Tell it what `due` returns, as far as it is `untold`, then call `called`; and `done` for what
    is given up, once the rest of that is done as well.

    Attributes:
        owned: What the caller has, sorted.
        gone: All of ``owned`` is lost, and the caller doesn't know it yet.

    """

    def __init__(self, *, cooperative: bool) -> None:
        """Begin with nothing."""
        self.owned: Owned = ()
        self.gone = False
        self._cooperative = cooperative
        self._next: Owned | None = None
        self._parting: Owned = ()  # Owned, but the caller was told already that they go.

    @property
    def is_waiting(self) -> bool:
        """Whether there is an assignment that the caller doesn't know of yet."""
        return self._next is not None

    @property
    def kept(self) -> Owned:
        """What a JoinGroup may claim."""
        return () if self.gone else self.owned

    @property
    def usable(self) -> Owned:
        """What the caller may commit: also what it is only just being told of."""
        return () if self.gone else (*self.owned, *_without(self._next or (), self.owned))

    def assigned(self, partitions: Owned) -> None:
        """Take a new assignment, sorted."""
        self._next = partitions

    def lose(self) -> None:
        """Take note that everything is somebody else's, what was just assigned as well."""
        self.owned = _without(self.owned, self._parting)
        self._parting = ()
        self.gone = bool(self.owned)
        self._next = None

    def due(self, *, give_up_all: bool) -> Step | None:
        """Return what the caller must be told next, None if nothing."""
        if self.gone:
            return Step(Change.LOST, self.owned)
        if give_up_all and self.owned:
            return Step(Change.REVOKED, self.owned)
        if self._next is None:
            return None
        if not self._cooperative:
            return Step(Change.GIVEN, self._next)
        if revoked := _without(self.owned, self._next):
            return Step(Change.REVOKED, revoked)
        return Step(Change.GIVEN, _without(self._next, self.owned))

    def untold(self, step: Step) -> Step | None:
        """Return what of *step* the caller must still be told of, None if nothing."""
        if step.change is not Change.REVOKED:
            return step
        partitions = _without(step.partitions, self._parting)
        return Step(step.change, partitions) if partitions else None

    def called(self, step: Step) -> None:
        """Take note that the caller was told."""
        if step.change is Change.REVOKED and not self.gone:
            self._parting = tuple(sorted({*self._parting, *step.partitions}))
        else:
            self.done(step)

    def done(self, step: Step) -> None:
        """Take note that the caller was told, and that nothing else is to be done about it."""
        if step.change is Change.GIVEN:
            # Fenced while it was told: then a loss comes next, and names these, too.
            self.owned = tuple(sorted({*self.owned, *step.partitions}))
            self.gone = self._next is None and bool(self.owned)
            self._next = None
        else:
            self.owned = _without(self.owned, step.partitions)
            self._parting = _without(self._parting, step.partitions)
            self.gone = self.gone and bool(self.owned)


def _without(partitions: Owned, others: Owned) -> Owned:
    if not partitions:
        return ()
    gone = frozenset(others)
    return tuple([tp for tp in partitions if tp not in gone])
