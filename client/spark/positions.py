"""What the reader plans: which rows come next, and which commit pins them. Pure.

Three things are known about an owned partition: the position that the coordinator keeps
(`Position`), the range that this process has finished but not committed (`Finished`), and the
log's bounds. From these `plan_partition` makes a `Step`: the next range, and what the
coordinator must say before that range may start.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

from client.spark.errors import DataLossError
from client.spark.offsets import Pin, Range, parse_pin
from client.types import OffsetAndMetadata
from protocol.types import NO_OFFSET, TopicPartition


class Position(NamedTuple):
    """What the coordinator keeps for a partition; *offset* None where nothing is committed."""

    offset: int | None
    metadata: str
    pin: Pin | None

    @classmethod
    def of(cls, stored: OffsetAndMetadata | None) -> Self:
        """Read what a fetch returned."""
        if stored is None:
            return cls(None, "", None)
        pin = parse_pin(stored.metadata)
        return cls(stored.offset, stored.metadata, pin)

    @property
    def resets(self) -> int:
        """How often the group's offsets were reset, as far as the pin tells."""
        return self.pin.resets if self.pin else 0

    @property
    def pinned_end(self) -> int | None:
        """The end of the range that must come next, or None where none is planned."""
        if self.pin is None or self.offset is None or self.pin.end <= self.offset:
            return None
        return self.pin.end


class Finished(NamedTuple):
    """A range that this process itself handed to Spark, under this reset counter."""

    range: Range
    resets: int


class Limits(NamedTuple):
    """What bounds the next range of each partition."""

    max_rows: int | None
    targets: Mapping[TopicPartition, int] | None  # Where AvailableNow stops.
    latest_from: Collection[TopicPartition]  # What begins at the log's end, not at its start.
    fail_on_data_loss: bool
    plan_ranges: bool = True  # False before a hand-over: commit only.


class Step(NamedTuple):
    """The next range ``at <= offset < stop`` (empty: none), and the position it needs."""

    at: int
    stop: int
    needs: Position
    waiting: bool = False  # Rows that come next were there before, but the log shows them not.


class Commit(NamedTuple):
    """One OffsetCommit: what to store, and what must be stored before."""

    offsets: dict[TopicPartition, OffsetAndMetadata]
    expected: dict[TopicPartition, int]


def plan_partition(
    tp: TopicPartition,
    position: Position,
    finished: Finished | None,
    bounds: tuple[int, int],
    limits: Limits,
    *,
    lag_over: bool = False,
) -> Step:
    """Decide the next range of one partition.

    Args:
        tp: the partition.
        position: what the coordinator keeps.
        finished: what this process has to commit.
        bounds: what the log shows.
        limits: what bounds the range.
        lag_over: whether the log has ended before *position* for longer than a listing can lag.

    Raises:
        DataLossError: rows that should come next are gone and that is to fail.

    """
    earliest, end = bounds
    from_latest = tp in limits.latest_from
    at = _next_offset(position, finished, bounds, from_latest=from_latest)
    pinned = position.pinned_end if finished is None else None
    if at > end and (finished is not None or not lag_over):
        # What is finished is committed in any case, before the log is judged.
        kept = _kept(position, at, pinned, from_latest=from_latest)
        return Step(at, at, kept, waiting=True)
    if not earliest <= at <= end:
        if limits.fail_on_data_loss:
            raise _data_loss(tp, at, bounds)
        if at > end:
            # A log made anew: its rows are others than those that had these offsets before.
            position = position._replace(pin=Pin(earliest, position.resets + 1))
        at, pinned = earliest, None  # A new offset, so a new range.
    if pinned is not None and pinned > end and limits.plan_ranges:
        # The range was begun before, by whomever, so the log has it all; its writer's view and
        # ours may differ for a moment.
        return Step(at, at, position, waiting=True)
    target = end if limits.targets is None else limits.targets.get(tp, 0)
    if not limits.plan_ranges or at >= target:
        return Step(at, at, _kept(position, at, pinned, from_latest=from_latest))
    if pinned is not None:
        return Step(at, pinned, position)  # Exactly the range that was begun before.
    stop = min(end, target)
    if limits.max_rows is not None:
        stop = min(stop, at + limits.max_rows)
    if stop <= at:
        return Step(at, at, _kept(position, at, None, from_latest=from_latest))
    pin = Pin(stop, position.resets)
    return Step(at, stop, Position(at, pin.to_metadata(), pin))


def commit_for(
    steps: Mapping[TopicPartition, Step], positions: Mapping[TopicPartition, Position]
) -> Commit | None:
    """Return the one commit that brings the coordinator to what the steps need; None if there."""
    commit = Commit({}, {})
    for tp, step in steps.items():
        position, needs = positions[tp], step.needs
        if needs.offset is None or needs == position:
            continue
        commit.offsets[tp] = OffsetAndMetadata(needs.offset, needs.metadata)
        commit.expected[tp] = NO_OFFSET if position.offset is None else position.offset
    return commit if commit.offsets else None


def still_ours(finished: Finished, position: Position | None) -> bool:
    """Say whether a finished range may be committed: nobody moved the partition meanwhile."""
    return (
        position is not None
        and position.offset == finished.range.start
        and position.resets == finished.resets
    )


def _next_offset(
    position: Position, finished: Finished | None, bounds: tuple[int, int], *, from_latest: bool
) -> int:
    if finished is not None:
        return finished.range.end
    if position.offset is not None:
        return position.offset
    return bounds[1] if from_latest else bounds[0]


def _kept(position: Position, at: int, pinned: int | None, *, from_latest: bool) -> Position:
    """Return the position without a planned range; a pin stands as long as its offset."""
    if position.offset == at and (pinned is not None or position.pinned_end is None):
        return position
    if position.offset is None and not from_latest:
        return position  # The log's beginning need not be remembered.
    pin = Pin(at, position.resets)
    return Position(at, pin.to_metadata(), pin)


def _data_loss(tp: TopicPartition, at: int, bounds: tuple[int, int]) -> DataLossError:
    earliest, end = bounds
    return DataLossError(
        f"{tp}: offset {at} comes next, but the log holds {earliest} to {end}. Rows were deleted "
        "or the log was made anew; reset the group's offsets, or set option 'failOnDataLoss' to "
        "'false' to go on with what is there"
    )
