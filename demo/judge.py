"""Was anything lost, and was anything done twice that the coordinator can't explain? Pure.

The promise that is judged: every row is written at least once, and the only rows written more
than once are those of the one batch that an evicted driver had in flight. Ranges are pinned, so
whoever does such a range again does it with the same bounds, and removing the repeated ranges
leaves every row exactly once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple


class Written(NamedTuple):
    """What one batch of one driver wrote of one range, as found in its files."""

    driver: str
    batch: int
    partition: int
    start: int
    end: int
    generation: int
    rows: int
    offsets: int
    first: int
    last: int

    @property
    def range(self) -> tuple[int, int, int]:
        """Partition and bounds: the same for every attempt at this range."""
        return self.partition, self.start, self.end


class Eviction(NamedTuple):
    """A member that the coordinator removed, and which driver it was."""

    driver: str
    reason: str


class Repeated(NamedTuple):
    """A batch whose ranges somebody had to do again."""

    driver: str
    batch: int
    ranges: int
    rows: int


class Verdict(NamedTuple):
    """What was found; all is well without problems."""

    rows: int
    distinct_rows: int
    repeated: tuple[Repeated, ...]
    problems: tuple[str, ...]

    @property
    def repeated_rows(self) -> int:
        """Rows written again."""
        return sum(batch.rows for batch in self.repeated)


def judge(
    written: Sequence[Written], evictions: Sequence[Eviction], ends: Mapping[int, int]
) -> Verdict:
    """Compare what was written with what the log holds and with what the coordinator recorded.

    Args:
        written: every range in the output, once for each batch that wrote it.
        evictions: the members that the coordinator removed although they had not left.
        ends: how many rows the log holds, for each partition.

    """
    repeated = _repeated(written)
    attempts: defaultdict[tuple[int, int, int], list[Written]] = defaultdict(list)
    for one in written:
        attempts[one.range].append(one)
    problems = [
        *_damaged(written),
        *_holes_and_overlaps(attempts, ends),
        *_shared_generations(attempts.values()),
        *_unexplained(repeated, evictions),
    ]
    return Verdict(
        rows=sum(one.rows for one in written),
        distinct_rows=sum(end - start for _, start, end in attempts),
        repeated=repeated,
        problems=tuple(problems),
    )


def _damaged(written: Iterable[Written]) -> list[str]:
    """A file becomes visible whole, so each range must be there with each of its rows once."""
    return [
        f"{_name(one)} has {one.rows} rows, {one.offsets} different offsets from {one.first} "
        f"to {one.last}"
        for one in written
        if (one.rows, one.offsets, one.first, one.last)
        != (one.end - one.start, one.end - one.start, one.start, one.end - 1)
    ]


def _holes_and_overlaps(
    ranges: Iterable[tuple[int, int, int]], ends: Mapping[int, int]
) -> list[str]:
    """The different ranges of a partition must be its rows, one range beginning after the other."""
    problems = []
    by_partition: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for partition, start, end in ranges:
        by_partition[partition].append((start, end))
    for partition in sorted(by_partition.keys() | ends.keys()):
        log_end = ends.get(partition, 0)
        edges = [(0, 0), *sorted(by_partition[partition]), (log_end, log_end)]
        for (_, end), (start, _) in pairwise(edges):
            if start > end:
                problems.append(f"partition {partition}: rows {end} to {start - 1} are missing")
            elif start < end:
                problems.append(
                    f"partition {partition}: rows {start} to {end - 1} are in two different "
                    "ranges, or beyond the log's end"
                )
    return problems


def _shared_generations(attempts: Iterable[Sequence[Written]]) -> list[str]:
    """In a generation a partition has one owner."""
    problems = []
    for same_range in attempts:
        drivers: defaultdict[int, set[str]] = defaultdict(set)
        for one in same_range:
            drivers[one.generation].add(one.driver)
        problems += [
            f"partition {same_range[0].partition}: {' and '.join(sorted(names))} both wrote it "
            f"in generation {generation}"
            for generation, names in sorted(drivers.items())
            if len(names) > 1
        ]
    return problems


def _repeated(written: Iterable[Written]) -> tuple[Repeated, ...]:
    """Return the batches with a range that was done again later, by driver and batch."""
    last: dict[tuple[int, int, int], Written] = {}
    again: defaultdict[tuple[str, int], list[Written]] = defaultdict(list)
    for one in sorted(written, key=lambda one: (one.generation, one.batch)):
        if (before := last.get(one.range)) is not None:
            again[before.driver, before.batch].append(before)
        last[one.range] = one
    return tuple(
        Repeated(driver, batch, len(ranges), sum(one.rows for one in ranges))
        for (driver, batch), ranges in sorted(again.items())
    )


def _unexplained(repeated: Iterable[Repeated], evictions: Iterable[Eviction]) -> list[str]:
    """Each eviction explains one batch of the driver that was evicted, and no other."""
    explained = Counter(eviction.driver for eviction in evictions)
    batches = Counter(batch.driver for batch in repeated)
    return [
        f"{count} batches of {driver} were done again, but the coordinator recorded "
        f"{explained[driver]} evictions of it"
        for driver, count in sorted(batches.items())
        if count > explained[driver]
    ]


def _name(one: Written) -> str:
    return f"{one.driver}, batch {one.batch}, partition {one.partition} [{one.start}, {one.end})"
