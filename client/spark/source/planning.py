"""Planning of the next batch: ranges of the partitions, the commit that pins them, rows. Pure.

Three things are known about an owned partition: the position that the coordinator keeps
(`Position`), the range that this process has finished but not committed (`Finished`), and the
log's bounds (`Seen`). From these `plan_partition` makes a `Step`: the next range, and the position
that the coordinator must have stored before that range may start.

`Admission` then bounds the batch. Its rules, in this order:

1. Pinned ranges come first and whole, as many as fit, and at least one: they are owed, and cutting
   one would make a second key for the same rows.
2. The remaining rows go to the other partitions by max-min fairness: all get the same number, and
   rows that a small partition doesn't need go to the others. A partition with a huge backlog
   therefore can't hold up partitions that are nearly up to date.
3. A share is not made smaller than `SHARE_MIN` rows, because a range costs a task and a pin
   whatever its size. If some partitions get no share, those that waited longest go first.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from client.offsets import OffsetAndMetadata
from client.spark.errors import DataLossError
from client.spark.source.stream_offsets import Pin, Range, parse_pin
from protocol.partition import NO_OFFSET, TopicPartition

# Minimum share of a partition in a batch, in rows; less only if the partition has fewer rows.
SHARE_MIN: Final = 100

# Reasons for the loss of rows that should come next.
_MADE_ANEW: Final = "The log was made anew, so its rows are others than those before"
_ENDS_EARLY: Final = "The log was cut or made anew"
_DELETED: Final = "Rows were deleted before the group read them"


class Position(NamedTuple):
    """The position that the coordinator keeps for a partition; without a commit *offset* is None.

    *end*, *resets* and *identity* are those of the `Pin` in *metadata*, if that holds one.
    """

    offset: int | None
    metadata: str = ""
    end: int = 0
    resets: int = 0
    identity: str = ""

    @classmethod
    def of(cls, stored: OffsetAndMetadata | None) -> Self:
        """Return the position of a fetched offset; None is a partition without a commit."""
        if stored is None:
            return cls(None)
        pin = parse_pin(stored.metadata)
        return cls(stored.offset, stored.metadata, *(pin or ()))

    @classmethod
    def pinned(cls, offset: int | None, end: int, resets: int, identity: str) -> Self:
        """Return a position with the pin of a range that ends at *end*."""
        pin = Pin(end, resets, identity)
        return cls(offset, pin.to_metadata(), *pin)

    @property
    def pinned_end(self) -> int | None:
        """The end of the range that must come next, or None where none is planned."""
        return None if self.offset is None or self.end <= self.offset else self.end


class Finished(NamedTuple):
    """A range that this process itself handed to Spark, under this reset counter."""

    range: Range
    resets: int


class Seen(NamedTuple):
    """The bounds of a partition in the log: rows ``earliest <= offset < end``.

    *identity* tells apart logs of the same name; empty if the log has no identity. *lag_over* is
    true if the log has ended before the next row for longer than a listing can lag.
    """

    earliest: int
    end: int
    identity: str = ""
    lag_over: bool = False


class Limits(NamedTuple):
    """Bounds of the next range of each partition."""

    max_rows: int | None
    targets: Mapping[TopicPartition, int] | None  # End offsets of AvailableNow.
    latest_from: Collection[TopicPartition]  # Partitions that begin at the log's end.
    on_data_loss: str  # Policy for lost rows: "error", "earliest" or "latest".
    plan_ranges: bool = True  # False before a hand-over: commit only.
    # Start offsets of partitions without an offset, if an option gives a time.
    start_at: Mapping[TopicPartition, int] = MappingProxyType({})


class Step(NamedTuple):
    """The next range ``at <= offset < stop`` (empty: none), and the position it needs."""

    at: int
    stop: int
    needs: Position
    waiting: str = ""  # Why the rows that should come next are not readable now.
    pinned: bool = False  # The range was begun before, with these bounds.
    lost: str = ""  # Which rows are gone, and the offset at which reading goes on.


class Commit(NamedTuple):
    """One OffsetCommit: the positions to store, and the offsets that must be stored before."""

    positions: dict[TopicPartition, Position]
    expected: dict[TopicPartition, int]

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets and metadata of the request; positions without an offset are left out."""
        return {
            tp: OffsetAndMetadata(position.offset, position.metadata)
            for tp, position in self.positions.items()
            if position.offset is not None
        }

    def add(self, tp: TopicPartition, position: Position, before: Position) -> None:
        """Store *position* where *before* is stored; without an offset it is not stored."""
        if position.offset is not None:
            self.positions[tp] = position
            self.expected[tp] = NO_OFFSET if before.offset is None else before.offset


def plan_partition(
    tp: TopicPartition,
    position: Position,
    finished: Finished | None,
    seen: Seen,
    limits: Limits,
) -> Step:
    """Decide the next range of one partition.

    Args:
        tp: the partition.
        position: the position that the coordinator keeps.
        finished: the range that this process has finished but not committed.
        seen: the log's bounds.
        limits: the bounds of the range.

    Raises:
        DataLossError: rows that should come next are gone and that is to fail.

    """
    pinned, lost = None, ""
    if finished is not None:
        at = finished.range.end
    elif position.offset is not None:
        at, pinned = position.offset, position.pinned_end
    else:
        at = _first_offset(tp, seen, limits)
    # A start at the log's end or at a time is stored as soon as it is found: later it differs.
    from_latest = position.offset is None and (tp in limits.latest_from or tp in limits.start_at)
    identity = seen.identity
    if limits.plan_ranges and (loss := _loss(position, at, pinned, seen)):
        upto = f" (up to {pinned}, as planned before)" if pinned is not None else ""
        due = f"{tp}: offset {at} comes next{upto}"
        if (
            (loss == _ENDS_EARLY and not seen.lag_over)
            # A finished range is committed first, in any case; the loss is handled after that.
            or (finished is not None and (loss != _DELETED or limits.on_data_loss == "error"))
        ):
            kept = _kept(position, at, pinned, from_latest=from_latest)
            return Step(at, at, kept, waiting=f"{due}, but the log ends at {seen.end}")
        lost = f"{due}, but the log holds {seen.earliest} to {seen.end}. {loss}"
        if limits.on_data_loss == "error":
            raise DataLossError(
                f"{lost}. Reset the group's offsets (group-coordinator groups reset-offsets), or "
                "set option 'onDataLoss' to 'earliest' (go on at the first row that is there) or "
                "'latest' (skip what is there)"
            )
        at = seen.end if limits.on_data_loss == "latest" else seen.earliest
        lost += f". Reading goes on at {at} (option 'onDataLoss' is '{limits.on_data_loss}')"
        # Rows of a log made anew are others than those that had these offsets before.
        resets = position.resets + (loss != _DELETED)
        position, pinned = Position.pinned(position.offset, at, resets, identity), None
    target = seen.end if limits.targets is None else limits.targets.get(tp, 0)
    stop = min(seen.end, target)
    if limits.max_rows is not None:
        stop = min(stop, at + limits.max_rows)
    if not limits.plan_ranges or at >= target or (pinned is None and stop <= at):
        return Step(at, at, _kept(position, at, pinned, from_latest=from_latest), lost=lost)
    if pinned is not None:
        return Step(at, pinned, position, pinned=True)  # Exactly the range that was begun before.
    return Step(at, stop, _pinned(at, stop, position, identity), lost=lost)


def hold_partition(position: Position, finished: Finished | None, why: str) -> Step:
    """Return the step of a partition whose log can't be asked: commit what is finished."""
    if finished is not None:
        at = finished.range.end
        return Step(at, at, _kept(position, at, None, from_latest=False), waiting=why)
    at = position.offset or 0
    return Step(at, at, position, waiting=why)


def cut_step(step: Step, rows: int, position: Position) -> Step:
    """Return *step* with a range of at most *rows* rows; a pinned range is kept whole or left out.

    Args:
        step: the step that `plan_partition` planned.
        rows: the most rows that may be read.
        position: the position that the coordinator keeps.

    """
    if rows >= step.stop - step.at:
        return step
    if step.pinned:
        return step._replace(stop=step.at)  # The range stays pinned.
    if rows == 0 and position.offset is None:
        return step._replace(stop=step.at, needs=position)
    stop = step.at + rows
    return step._replace(stop=stop, needs=_pinned(step.at, stop, step.needs, ""))


def commit_for(
    steps: Mapping[TopicPartition, Step], positions: Mapping[TopicPartition, Position]
) -> Commit:
    """Return the one commit that brings the coordinator to what the steps need."""
    commit = Commit({}, {})
    for tp, step in steps.items():
        if step.needs != positions[tp]:
            commit.add(tp, step.needs, positions[tp])
    return commit


def is_stored(finished: Finished, stored: Position | None) -> bool:
    """Say whether the position *stored* is at or behind the end of a finished range."""
    return stored is not None and stored.offset is not None and finished.range.end <= stored.offset


def still_ours(finished: Finished, position: Position | None) -> bool:
    """Say whether a finished range may be committed: no other client has moved the partition."""
    return (
        position is not None
        and position.offset == finished.range.start
        and position.resets == finished.resets
    )


def _first_offset(tp: TopicPartition, seen: Seen, limits: Limits) -> int:
    """Return the first offset of a partition without a committed offset."""
    start_at = limits.start_at.get(tp)
    if start_at is not None:
        return max(seen.earliest, min(start_at, seen.end))
    return seen.end if tp in limits.latest_from else seen.earliest


def _loss(position: Position, at: int, pinned: int | None, seen: Seen) -> str:
    """Return how the rows that come next were lost, or an empty text."""
    if position.identity and seen.identity and position.identity != seen.identity:
        return _MADE_ANEW
    if max(at, pinned or 0) > seen.end:
        # A pinned range was in the log once, as its owner then saw it.
        return _ENDS_EARLY
    return _DELETED if at < seen.earliest else ""


def _kept(position: Position, at: int, pinned: int | None, *, from_latest: bool) -> Position:
    """Return the position without a planned range; a pin stands as long as its offset."""
    if position.offset == at and (pinned is not None or position.pinned_end is None):
        return position
    if position.offset is None and not from_latest:
        return position  # The log's beginning need not be remembered.
    return _pinned(at, at, position, "")


def _pinned(at: int, stop: int, before: Position, identity: str) -> Position:
    return Position.pinned(at, stop, before.resets, identity or before.identity)


# --- Batches of bounded size -----------------------------------------------------------------


class Demand(NamedTuple):
    """The rows that a partition would put into an unbounded batch."""

    rows: int
    pinned: bool = False
    served: int = 0  # The turn in which it last got rows; 0: never.


def share_rows(
    demands: Mapping[TopicPartition, Demand], rows_max: int, share_min: int = SHARE_MIN
) -> dict[TopicPartition, int]:
    """Return how many rows of each partition go into a batch of at most *rows_max* rows.

    The batch is larger than *rows_max* only if the first pinned range alone is larger.

    Args:
        demands: the rows that each partition has.
        rows_max: the most rows in the batch, at least 1.
        share_min: the minimum share in rows; less only if the partition has fewer rows.

    """
    shares = dict.fromkeys(demands, 0)
    left = rows_max
    for tp in sorted(tp for tp, demand in demands.items() if demand.pinned):
        rows = demands[tp].rows
        if rows <= left or left == rows_max:
            shares[tp] = rows
            left = max(left - rows, 0)
    fresh = [tp for tp, demand in demands.items() if not demand.pinned]
    fresh.sort(key=lambda tp: (demands[tp].served, tp))
    admitted = _admitted([demands[tp].rows for tp in fresh], left, share_min)
    # The smallest first: rows that a partition doesn't need go to the others.
    by_size = sorted(fresh[:admitted], key=lambda tp: demands[tp].rows)
    for index, tp in enumerate(by_size):
        shares[tp] = min(demands[tp].rows, left // (admitted - index))
        left -= shares[tp]
    for tp in fresh[admitted:]:
        shares[tp] = min(demands[tp].rows, left)
        left -= shares[tp]
    return shares


def _admitted(rows_in_turn: Sequence[int], rows_max: int, share_min: int) -> int:
    """Return how many partitions, in their turn, may have a share that is worth a range."""
    promised = 0
    for count, rows in enumerate(rows_in_turn):
        promised += min(rows, share_min)
        if promised > rows_max:
            return max(count, 1)
    return len(rows_in_turn)


class Admission:
    """Bounds one batch after the other, and remembers whose turn it is.

    Args:
        rows_max: the most rows in a batch; None for no limit.

    """

    def __init__(self, rows_max: int | None) -> None:
        self._rows_max = rows_max
        self._served: dict[TopicPartition, int] = {}
        self._turn = 0

    def admit(
        self,
        steps: Mapping[TopicPartition, Step],
        positions: Mapping[TopicPartition, Position],
    ) -> dict[TopicPartition, Step]:
        """Return the steps with their ranges cut to what the batch may hold."""
        if self._rows_max is None:
            return dict(steps)
        demands = {
            tp: Demand(step.stop - step.at, step.pinned, self._served.get(tp, 0))
            for tp, step in steps.items()
        }
        shares = share_rows(demands, self._rows_max)
        return {tp: cut_step(step, shares[tp], positions[tp]) for tp, step in steps.items()}

    def served(self, steps: Mapping[TopicPartition, Step]) -> None:
        """Note the ranges of a batch that may start: their partitions had their turn."""
        if self._rows_max is None:
            return
        self._turn += 1
        for tp, step in steps.items():
            if step.stop > step.at:
                self._served[tp] = self._turn
