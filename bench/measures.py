"""The arithmetic of the benchmarks: latencies, medians, aims. Pure."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from statistics import median
from typing import NamedTuple

NS_PER_S = 1_000_000_000
NS_PER_US = 1_000


class Latency(NamedTuple):
    """Latencies of one run in microseconds."""

    p50_us: float
    p99_us: float
    max_us: float


def percentile(ordered: Sequence[int], share: float) -> int:
    """Return the nearest-rank percentile: a value that was measured, never one in between.

    Args:
        ordered: What was measured, ascending and not empty.
        share: 0.5 for the median, 0.99 for the 99th percentile.

    Raises:
        ValueError: There is nothing to take it from, or the share is not in (0, 1].
    """
    if not ordered:
        raise ValueError("no measurements")
    if not 0 < share <= 1:
        raise ValueError(f"share {share} is not in (0, 1]")
    return ordered[ceil(share * len(ordered)) - 1]


def latency_of(samples_ns: Sequence[int]) -> Latency:
    """Summarize latencies given in nanoseconds, in any order.

    Raises:
        ValueError: There are none.
    """
    ordered = sorted(samples_ns)
    return Latency(
        p50_us=percentile(ordered, 0.5) / NS_PER_US,
        p99_us=percentile(ordered, 0.99) / NS_PER_US,
        max_us=percentile(ordered, 1.0) / NS_PER_US,
    )


def intended_ns(start_ns: int, rate_per_s: float, index: int) -> int:
    """Return when request number ``index`` (from 0) of an open loop is meant to leave.

    It depends on nothing that the server does: a stall of the server is waiting time of every
    request that was meant to leave during it.
    """
    return start_ns + int(index * NS_PER_S / rate_per_s)


def due_count(start_ns: int, rate_per_s: float, now_ns: int) -> int:
    """Return how many requests of an open loop were meant to leave by now.

    The inverse of `intended_ns`: exactly the requests whose intended time is not after ``now_ns``.
    """
    if now_ns < start_ns:
        return 0
    count = int((now_ns - start_ns) * rate_per_s / NS_PER_S)
    # Floating point may land on either side of a request's own nanosecond.
    while count > 0 and intended_ns(start_ns, rate_per_s, count - 1) > now_ns:
        count -= 1
    while intended_ns(start_ns, rate_per_s, count) <= now_ns:
        count += 1
    return count


# --- judging --------------------------------------------------------------------------------------

Samples = Mapping[str, Sequence[Mapping[str, float | None]]]
Value = Callable[["Medians"], float | None]


class Aim(NamedTuple):
    """A number that the project wants to reach.

    Attributes:
        at_least: True if the value should be this or more, False if this or less.
    """

    name: str
    title: str
    value: Value
    bound: float
    at_least: bool
    unit: str


class Judged(NamedTuple):
    """An aim and what was measured; ``reached`` is None if it could not be.

    Attributes:
        value: Of the medians.
        spread: Lowest and highest of the repetitions, each on its own.
    """

    name: str
    title: str
    value: float | None
    bound: float
    at_least: bool
    unit: str
    reached: bool | None
    spread: tuple[float, float] | None = None


class Medians:
    """Medians over the repetitions, by row and field."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def of(self, row: str, field: str) -> float | None:
        """Return the median of what the repetitions measured, None if nothing."""
        values = self.values(row, field)
        return median(values) if values else None

    def spread(self, row: str, field: str) -> tuple[float, float] | None:
        """Return lowest and highest of the repetitions."""
        values = self.values(row, field)
        return (values[0], values[-1]) if values else None

    def values(self, row: str, field: str) -> list[float]:
        """Return what the repetitions measured, ascending."""
        found = (sample.get(field) for sample in self.samples.get(row, ()))
        return sorted(value for value in found if value is not None)

    def repetitions(self) -> list["Medians"]:
        """Return each repetition on its own."""
        count = max((len(samples) for samples in self.samples.values()), default=0)
        return [
            Medians({row: samples[n : n + 1] for row, samples in self.samples.items()})
            for n in range(count)
        ]

    def ratio(self, row: str, against: str, field: str = "rate_per_s") -> float | None:
        """Return the ratio of two rows' medians, of the rates if nothing else is said."""
        value, other = self.of(row, field), self.of(against, field)
        return value / other if value is not None and other else None


def judge(medians: Medians, aims: Sequence[Aim]) -> list[Judged]:
    """Hold the medians against the aims."""
    judged = []
    repetitions = medians.repetitions()
    for aim in aims:
        value = aim.value(medians)
        reached: bool | None = None
        if value is not None:
            reached = value >= aim.bound if aim.at_least else value <= aim.bound
        each = [found for one in repetitions if (found := aim.value(one)) is not None]
        spread = (min(each), max(each)) if each else None
        judged.append(
            Judged(aim.name, aim.title, value, aim.bound, aim.at_least, aim.unit, reached, spread)
        )
    return judged


def at_most(name: str, title: str, value: Value, bound: float, unit: str = "") -> Aim:
    """Return the aim that a value is no more than this."""
    return Aim(name, title, value, bound, at_least=False, unit=unit)


def field_at_most(row: str, field: str, title: str, bound: float, unit: str = "") -> Aim:
    """Return the aim that the median of a row's field is no more than this."""
    return at_most(f"{row}, {field}", title, lambda medians: medians.of(row, field), bound, unit)


def ratio_at_most(row: str, against: str, field: str, title: str, bound: float) -> Aim:
    """Return the aim that a row's field is at most so many times another row's."""
    name = f"{row}/{against}, {field}"
    return at_most(name, title, lambda medians: medians.ratio(row, against, field), bound)


def ratio_at_least(row: str, against: str, field: str, title: str, bound: float) -> Aim:
    """Return the aim that a row's field is at least so many times another row's."""
    name = f"{row}/{against}, {field}"
    return Aim(name, title, lambda medians: medians.ratio(row, against, field), bound, True, "")


def faster(row: str, against: str, title: str, bound: float) -> Aim:
    """Return the aim that a row is so many times as fast as another one."""
    name = f"{row}/{against}"
    return Aim(name, title, lambda medians: medians.ratio(row, against), bound, True, "")
