"""A reader's memory of its group, to detect that the coordinator has lost the group's offsets.

A coordinator's folder can be lost, a group deleted, its offsets can expire, a backup can be
restored, and another coordinator can answer at the address. The reader then finds a group without
offsets, or with older ones, and must not take it for a new one. It compares the group with the one
it last saw itself, in this process or, according to its checkpoint, in an earlier one:

- the cluster's id is another one;
- the generation is a lower one: generations of a group only grow;
- there is no offset of a partition that had one;
- an offset lies further back, without a reset.

A reset of offsets on purpose either raises the counter of resets in the pin (the bulk writer), or
leaves no pin at all (all other tools). A reader that takes over an offset without a pin, stored by
another client, therefore counts a reset. The count is at least the
generation, so that a reader that knows of no reset before still comes to a higher one.

Each reader knows only the partitions that it had, and the checkpoint of a stopped reader may be
older than the work of another reader since. After a loss all readers therefore write their places
(positions) into a group beside their own, which never has members (`places_group`): there the owner
of a partition finds how far the others were. Each place has a mark of its reliability:

- CERTAIN: its reader ran at the moment of the loss, and had the partition. The partition is put
  back at once.
- HAD: its reader had the partition when its checkpoint was written. Probably no other reader knows
  a later place, but one may come a little later.
- GIVEN_AWAY: its reader had given the partition up, and another reader has gone on from there. If
  no better place is known, or none at all, a reader is missing, and the wait is longer.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from client.offsets import OffsetAndMetadata
from client.spark.source.planning import Position
from client.spark.source.stream_offsets import Memory, parse_pin
from protocol.group_ids import GROUP_ID_BYTES_MAX
from protocol.partition import NO_GENERATION, TopicPartition
from protocol.text import some_of

logger = logging.getLogger(__name__)

PLACES_SUFFIX: Final = ".places"

# Marks of a place, stored in the field of the leader's epoch: see above.
CERTAIN: Final = 1
HAD: Final = 0
GIVEN_AWAY: Final = -1

# Maximum number of partitions named in a message.
NAMED_MAX: Final = 3


class Loss(NamedTuple):
    """Differences between a group and the memory of a reader."""

    before: Memory
    cluster: str  # The current one.
    generation: int  # The current one; NO_GENERATION before the reader is a member.
    missing: tuple[TopicPartition, ...]
    behind: tuple[tuple[TopicPartition, int], ...]  # With the stored offsets.

    def __str__(self) -> str:
        found = []
        if self.is_elsewhere:
            found.append(f"this is cluster {self.cluster}, it was {self.before.cluster}")
        if self.is_younger:
            found.append(
                f"the group is in generation {self.generation}, it was in {self.before.generation}"
            )
        offsets = self.before.offsets
        if self.missing:
            was = (f"{tp} (was at {offsets[tp].offset})" for tp in self.missing)
            found.append(
                f"there is no offset of {some_of(was, NAMED_MAX, count=len(self.missing))}"
            )
        if self.behind:
            was = (f"{tp} is at {at} (was at {offsets[tp].offset})" for tp, at in self.behind)
            found.append(some_of(was, NAMED_MAX, count=len(self.behind)))
        return "; ".join(found)

    @property
    def is_elsewhere(self) -> bool:
        """Whether another cluster answers."""
        return bool(self.cluster and self.before.cluster) and self.cluster != self.before.cluster

    @property
    def is_younger(self) -> bool:
        """Whether the group was made anew, or is an older copy."""
        return self.generation != NO_GENERATION and self.generation < self.before.generation


def places_group(group: str) -> str:
    """Return the group into which readers of *group* write their places after a loss."""
    if len(group.encode()) + len(PLACES_SUFFIX) <= GROUP_ID_BYTES_MAX:
        return group + PLACES_SUFFIX
    return hashlib.sha256(group.encode()).hexdigest() + PLACES_SUFFIX


def is_gone(known: Position, stored: Position) -> bool:
    """Say whether a group is behind the position *known* without a reset."""
    return stored.offset is None or _place(stored) < _place(known)


def farther(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    than: Mapping[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the places in *offsets* that are further than those in *than*, or missing there."""
    return {
        tp: value
        for tp, value in offsets.items()
        if tp not in than or _worth(value) > _worth(than[tp])
    }


class GroupMemory:
    """The memory of one reader: its group as last seen.

    Args:
        clock: a monotonic clock in seconds.

    Attributes:
        seen: the group as last seen, for the next end offset.
        is_lost: whether this run found a loss and puts the group back.
        mine: the partitions that this reader owns, or owned when it was last a member.

    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seen = Memory()
        self.is_lost = False
        self._clock = clock
        self.mine: frozenset[TopicPartition] = frozenset()
        self._certain: frozenset[TopicPartition] = frozenset()
        self._owed: set[TopicPartition] = set()  # Lost, not yet put back.
        self._may_come_until_s = 0.0
        self._wait_until_s = 0.0
        self._resets: dict[TopicPartition, int] = {}

    def remember(self, memory: Memory) -> None:
        """Take over the memory of a checkpoint."""
        self.seen = memory
        self.mine = frozenset()
        self._owed = set()

    def read(
        self, tp: TopicPartition, stored: OffsetAndMetadata | None, generation: int
    ) -> Position:
        """Return the stored position of a partition; an offset without a pin counts as a reset."""
        position = Position.of(stored)
        if stored is None:
            return position._replace(resets=self._resets.get(tp, 0))
        if parse_pin(stored.metadata) is None:
            known = Position.of(self.seen.offsets.get(tp))
            return position._replace(resets=max(generation, known.resets + 1))
        return position

    def find_loss(
        self, cluster: str, generation: int, found: Mapping[TopicPartition, Position]
    ) -> Loss | None:
        """Compare the positions found with those last seen; return the loss, or None.

        Args:
            cluster: the id of the cluster that answers.
            generation: the group's, `NO_GENERATION` before this reader is a member.
            found: the stored positions of some partitions.

        """
        offsets = self.seen.offsets.items()
        known = {tp: Position.of(at) for tp, at in offsets if tp in found and tp not in self._owed}
        gone = sorted(tp for tp, position in known.items() if is_gone(position, found[tp]))
        behind = ((tp, found[tp].offset) for tp in gone)
        loss = Loss(
            self.seen,
            cluster,
            generation,
            tuple(tp for tp in gone if found[tp].offset is None),
            tuple((tp, offset) for tp, offset in behind if offset is not None),
        )
        return loss if gone or loss.is_elsewhere or loss.is_younger else None

    def put_back(self, loss: Loss, may_come_s: float, wait_s: float) -> None:
        """Go on after a loss with the remembered places, after a wait for those of other readers.

        Args:
            loss: the loss that was found.
            may_come_s: wait for partitions that have a place marked HAD, in seconds.
            wait_s: minimum wait for partitions without a reliable place, in seconds.

        """
        self._accept(loss)
        self.is_lost = True
        self._certain, self.mine = self.mine, frozenset()
        self._owed = set(self.seen.offsets)
        now_s = self._clock()
        self._may_come_until_s = now_s + may_come_s
        self._wait_until_s = now_s + max(may_come_s, wait_s)

    def own(self, tps: Collection[TopicPartition]) -> None:
        """Note the owned partitions; all others in the memory are given away."""
        self.mine = frozenset(tps)
        away = self.seen.away | (self.seen.offsets.keys() - self.mine)
        self.seen = self.seen._replace(away=away)

    def begin_anew(self, loss: Loss) -> None:
        """Go on after a loss with the offsets that the group has now.

        Rows that come again have a higher counter of resets than those before.
        """
        offsets = dict(self.seen.offsets)
        for tp in (*loss.missing, *(tp for tp, _ in loss.behind)):
            self._resets[tp] = Position.of(offsets.pop(tp)).resets + 1
        self._accept(loss)
        self.seen = self.seen._replace(offsets=offsets, away=self.seen.away & offsets.keys())

    def note(
        self, cluster: str, generation: int, positions: Mapping[TopicPartition, Position]
    ) -> None:
        """Note certain positions of the group."""
        offsets = {
            tp: OffsetAndMetadata(position.offset, _pin_of(position))
            for tp, position in positions.items()
            if position.offset is not None
        }
        away = self.seen.away - offsets.keys()
        self.seen = Memory(cluster, generation, {**self.seen.offsets, **offsets}, away)
        self._owed.difference_update(offsets)

    def places(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return this reader's places, for the group's other readers after a loss."""
        return self._marked(self.mine)

    def to_restore(
        self,
        found: Mapping[TopicPartition, Position],
        places: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> tuple[dict[TopicPartition, Position], set[TopicPartition]]:
        """Return the positions to put partitions back to, and the partitions to wait for.

        Args:
            found: the stored positions.
            places: the places that all readers have written.

        """
        known = self._marked(self._certain)
        known |= farther(places, known)
        best = {tp: Position.of(known[tp]) for tp in found if tp in known}
        back = {tp: place for tp, place in best.items() if is_gone(place, found[tp])}
        if not self.is_waiting():
            return back, set()
        enough = CERTAIN if self._clock() < self._may_come_until_s else HAD
        unset = {tp for tp, position in found.items() if position.offset is None}
        said = {tp for tp, place in known.items() if place.leader_epoch >= enough}
        held = (unset | back.keys()) - said - self._certain
        return {tp: place for tp, place in back.items() if tp not in held}, held

    def is_waiting(self) -> bool:
        """Say whether the other readers still have time to write their places."""
        return self.is_lost and self._clock() < self._wait_until_s

    def _marked(
        self, certain: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        marks = {
            **dict.fromkeys(self.seen.offsets, HAD),
            **dict.fromkeys(self.seen.away, GIVEN_AWAY),
            **dict.fromkeys(certain, CERTAIN),
        }
        return {
            tp: stored._replace(leader_epoch=marks[tp]) for tp, stored in self.seen.offsets.items()
        }

    def _accept(self, loss: Loss) -> None:
        self.seen = self.seen._replace(cluster=loss.cluster, generation=loss.generation)


def refusal(loss: Loss, coordinator: str, group: str) -> str:
    """Return the message of the error that ends the query."""
    return (
        f"the coordinator at {coordinator} no longer has what it had of group {group!r}: {loss}. "
        "Its data folder was lost, replaced or restored from a backup, the group or its offsets "
        "were deleted or have expired, or another coordinator has this address. Bring the data "
        "back, or choose with option 'onGroupLoss': 'checkpoint' puts the group back where its "
        "readers were; 'startingOffsets' goes on with what the group has now, and where it has "
        "nothing as in a new group (with startingOffsets 'latest' rows are skipped, with "
        "'earliest' all come again)"
    )


def _place(position: Position) -> tuple[int, int]:
    return position.resets, -1 if position.offset is None else position.offset


def _worth(place: OffsetAndMetadata) -> tuple[int, int, int]:
    return *_place(Position.of(place)), place.leader_epoch


def _pin_of(position: Position) -> str:
    return "" if parse_pin(position.metadata) is None else position.metadata


def listed(tps: Collection[TopicPartition]) -> str:
    """Return partitions for a message, at most `NAMED_MAX` of them by name."""
    return some_of(sorted(tps), NAMED_MAX)
