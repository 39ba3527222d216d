"""What a query's conditions say about groups and topics, so that only those are read. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Final, NamedTuple

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    IsNotNull,
)

Names = frozenset[str] | None

# Up to 4.3.0, Spark keeps what was pushed down with the DataFrame and not with the query: another
# query of the same DataFrame, or the other side of a join, would read what the first one asked for
# and miss the rest. The release that mends it brings the push-down of limits.
SPARK_SCOPES_FILTERS: Final = hasattr(DataSourceReader, "pushLimit")

# A name takes at most 255 bytes, and a request 1 MiB.
NAMES_PER_REQUEST: Final = 1_000


class Wanted(NamedTuple):
    """Some groups and some topics; None stands for all of them."""

    groups: Names = None
    topics: Names = None

    @property
    def is_nothing(self) -> bool:
        """Whether nothing can fit: the conditions contradict each other."""
        return self.groups == frozenset() or self.topics == frozenset()


def both(left: Names, right: Names) -> Names:
    """Return what both allow."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


class Pushed(NamedTuple):
    """What became of some filters: what is still wanted, and those that Spark has to apply."""

    wanted: Wanted
    rest: list[Filter]


def push(
    filters: Iterable[Filter], wanted: Wanted, never_null: Sequence[str], *, has_topic: bool = True
) -> Pushed:
    """Narrow *wanted* down by those of *filters* that name groups or topics.

    Args:
        filters: All of them must hold.
        wanted: What the options allow.
        never_null: Columns that always have a value.
        has_topic: Whether the table has a column for the topic.

    """
    rest: list[Filter] = []
    for one in filters:
        match one:
            case EqualTo(("group",), value) | EqualNullSafe(("group",), value):
                wanted = wanted._replace(groups=both(wanted.groups, _texts([value])))
            case EqualTo(("topic",), value) | EqualNullSafe(("topic",), value) if has_topic:
                wanted = wanted._replace(topics=both(wanted.topics, _texts([value])))
            case In(("group",), values):
                wanted = wanted._replace(groups=both(wanted.groups, _texts(values)))
            case In(("topic",), values) if has_topic:
                wanted = wanted._replace(topics=both(wanted.topics, _texts(values)))
            case IsNotNull((column,)) if column in never_null:
                pass
            case _:
                rest.append(one)
    return Pushed(wanted, rest)


def _texts(values: Iterable[object]) -> frozenset[str]:
    # Nothing is equal to null, and no name is null.
    return frozenset(value for value in values if isinstance(value, str))


def name_parts(
    wanted: Wanted, size: int = NAMES_PER_REQUEST
) -> Iterator[tuple[Sequence[str] | None, Sequence[str] | None]]:
    """Yield groups and topics (None: all) of requests that together ask for all of *wanted*."""
    yield from product(_parts(wanted.groups, size), _parts(wanted.topics, size))


def _parts(names: Names, size: int) -> list[Sequence[str] | None]:
    if names is None:
        return [None]
    ordered = sorted(names)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
