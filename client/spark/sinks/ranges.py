"""What a sink does with a range that it is given: write it, or know better. Pure.

Theory of operation
-------------------
The coordinated source reads each partition in ranges, one after the other, and pins a range
before it starts. So whoever runs a range, it has the same bounds, and it starts only after the
one before it is finished. A sink that keeps, in the same transaction as the rows, up to where it
has a partition (`Stored`) can therefore tell from a range alone:

- it begins where the last one ended: it is the next one, written now;
- it is the last one again: its first writer died before it could say so, or is still at it;
- it is older, and of an older generation: a late writer, which the group removed meanwhile;
- it is older, and of the same or a newer generation: the group's offsets were moved back;
- it begins later: rows in between never came here, or there are none: offsets of Kafka have gaps,
  and a range that lies in one comes to no sink.

A late writer runs one batch, then learns from the coordinator that it was removed. So two late
ranges in a row are none: that is a group that was deleted and made anew, whose generations
began again. The end of the last late range is kept for this.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, Literal, NamedTuple

OnGap = Literal["error", "accept"]
OnReset = Literal["error", "skip", "append"]

ON_GAP: Final = ("error", "accept")
ON_RESET: Final = ("error", "skip", "append")


class SinkError(RuntimeError):
    """The sink can't take a batch; the message says why, and what to do."""


class PartitionKey(NamedTuple):
    """Whose position: one partition, as read by one group."""

    group: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} of group {self.group!r}"


class SinkRange(NamedTuple):
    """Rows ``start <= offset < end`` of one partition, planned in *generation*."""

    topic: str
    partition: int
    start: int
    end: int
    generation: int


class Stored(NamedTuple):
    """Up to where a sink has a partition: the last range it took, and the last late one."""

    start: int
    end: int
    generation: int
    late_end: int | None = None


# Says whether a log has no rows of a topic's partition from one offset to another.
IsEmpty = Callable[[str, int, int, int], bool]


class Policy(NamedTuple):
    """What to do about what only the owner of the data can judge."""

    on_gap: OnGap = "error"
    on_reset: OnReset = "error"
    is_empty: IsEmpty | None = None


class Verdict(Enum):
    """What becomes of a range."""

    WRITE = "write"
    REPEAT = "repeat"
    LATE = "late"


class Decision(NamedTuple):
    """What becomes of a range: its rows from *from_offset* on are written, or none."""

    range: SinkRange
    verdict: Verdict
    from_offset: int
    before: Stored | None
    after: Stored

    @property
    def changes(self) -> bool:
        """Whether the sink's position changes."""
        return self.after != self.before


def checked_policy(on_gap: str, on_reset: str, is_empty: IsEmpty | None = None) -> Policy:
    """Return the policy.

    Raises:
        ValueError: there is no such policy; the message names the argument.

    """
    for name, value, known in (("on_gap", on_gap, ON_GAP), ("on_reset", on_reset, ON_RESET)):
        if value not in known:
            raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(known)}")
    return Policy(on_gap, on_reset, is_empty)  # type: ignore[arg-type]  # Checked just above.


def decide_all(
    group: str,
    ranges: Iterable[SinkRange],
    stored: Mapping[PartitionKey, Stored],
    policy: Policy,
) -> dict[PartitionKey, Decision]:
    """Decide about the ranges of one batch, at most one per partition.

    Raises:
        SinkError: the policy says that one of them must not be taken.

    """
    decisions = {}
    for one in sorted(ranges):
        key = PartitionKey(group, one.topic, one.partition)
        decisions[key] = decide(key, one, stored.get(key), policy)
    return decisions


def decide(key: PartitionKey, one: SinkRange, stored: Stored | None, policy: Policy) -> Decision:
    """Decide about one range.

    Raises:
        SinkError: the policy says that it must not be taken.

    """
    if stored is None:
        return _write(one, None)
    if one.start >= stored.end:
        if one.start > stored.end and not _may_miss(one, stored, policy):
            raise _gap(key, one, stored)
        return _write(one, stored)
    if (one.start, one.end) == (stored.start, stored.end):
        return Decision(one, Verdict.REPEAT, one.end, stored, stored)
    is_late = one.generation < stored.generation and one.end <= stored.end
    if is_late and one.start != stored.late_end:
        after = stored._replace(late_end=one.end)
        return Decision(one, Verdict.LATE, one.end, stored, after)
    return _moved_back(key, one, stored, policy)


def _may_miss(one: SinkRange, stored: Stored, policy: Policy) -> bool:
    if policy.on_gap == "accept":
        return True
    return policy.is_empty is not None and policy.is_empty(
        one.topic, one.partition, stored.end, one.start
    )


def _write(one: SinkRange, stored: Stored | None) -> Decision:
    generation = one.generation if stored is None else max(one.generation, stored.generation)
    after = Stored(one.start, one.end, generation)
    return Decision(one, Verdict.WRITE, one.start, stored, after)


def _moved_back(key: PartitionKey, one: SinkRange, stored: Stored, policy: Policy) -> Decision:
    if policy.on_reset == "append":
        after = Stored(one.start, one.end, one.generation)
        return Decision(one, Verdict.WRITE, one.start, stored, after)
    if policy.on_reset == "skip":
        if one.end <= stored.end:
            return Decision(one, Verdict.REPEAT, one.end, stored, stored)
        after = Stored(one.start, one.end, one.generation)
        return Decision(one, Verdict.WRITE, stored.end, stored, after)
    raise SinkError(
        f"{key}: the rows from {one.start} to {one.end} come again, but the sink has them up to "
        f"{stored.end}. The group's offsets were moved back, or the group or the log was made "
        "anew. To write them once more call forget() of the sink for this partition and reset "
        "the group's offsets again, or set on_reset='append'; to leave out what the sink has "
        "set on_reset='skip'"
    )


def _gap(key: PartitionKey, one: SinkRange, stored: Stored) -> SinkError:
    return SinkError(
        f"{key}: the rows from {one.start} on come next, but the sink has them up to "
        f"{stored.end} only. The rows between were lost from the log, the group's offsets were "
        "moved forward, the sink was restored from a backup, a filter before the sink dropped a "
        "whole range (hand it to the sink as transform= instead), or the log's offsets have gaps, "
        "as Kafka's have (hand the log's options to the sink as log=, so that it can look). To go "
        "on without these rows set on_gap='accept'"
    )
