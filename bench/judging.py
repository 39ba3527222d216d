"""Medians over the repetitions, and the numbers that they are held against."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.measures import median

Samples = Mapping[str, Sequence[Mapping[str, float | None]]]


class Aim(NamedTuple):
    """A number that the project wants to reach.

    Attributes:
        at_least: True if the value should be this or more, False if this or less.
    """

    name: str
    title: str
    value: Callable[["Medians"], float | None]
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
        self._samples = samples

    def of(self, row: str, field: str) -> float | None:
        """Return the median of what the repetitions measured, None if nothing."""
        values = [
            value
            for sample in self._samples.get(row, ())
            if (value := sample.get(field)) is not None
        ]
        return median(values) if values else None

    def repetitions(self) -> list["Medians"]:
        """Return each repetition on its own."""
        count = max((len(samples) for samples in self._samples.values()), default=0)
        return [
            Medians({row: samples[n : n + 1] for row, samples in self._samples.items()})
            for n in range(count)
        ]

    def spread(self, row: str, field: str) -> tuple[float, float] | None:
        """Return lowest and highest of the repetitions."""
        values = [
            value
            for sample in self._samples.get(row, ())
            if (value := sample.get(field)) is not None
        ]
        return (min(values), max(values)) if values else None

    def ratio(self, row: str, ceiling: str) -> float | None:
        """Return the ratio of two rows' median rates."""
        rate, top = self.of(row, "rate_per_s"), self.of(ceiling, "rate_per_s")
        return rate / top if rate is not None and top else None


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
