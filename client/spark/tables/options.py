"""The options of the tables, checked before anything is asked. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from typing import Final, NamedTuple, TypeVar

from pyspark.sql.datasource import DataSourceReader, EqualNullSafe, EqualTo, Filter, In, IsNotNull

from client.spark.options import OptionError, read_addresses, read_duration_ms

# ------------------------------------------------------------------------------------------
# What a query's conditions say about groups and topics, so that only those are read. Pure.

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


# ------------------------------------------------------------------------------------------
# The options of the tables, checked before anything is asked. Pure.

INT32_MAX: Final = 2**31 - 1

T = TypeVar("T")


class Given:
    """Options by name, in any case; each method reads one of them.

    Args:
        options: As they were given to Spark.
        known: The names that there are; another one is refused, since it is misspelt.

    Raises:
        OptionError: from every method, with a message that names the option and what it may be.

    """

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._given:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f"; did you mean '{names[near[0]]}'?" if near else ""
                raise OptionError(
                    f"option {name!r} is unknown{hint} (there are {', '.join(known)})"
                )

    def text(self, name: str) -> str | None:
        """Return the text without blanks around it, None if it was not given or is empty."""
        return self._given.get(name.lower(), "").strip() or None

    def addresses(self, name: str = "coordinator") -> tuple[str, ...]:
        """Return one or more of ``host:port``."""
        value = self.text(name)
        if value is None:
            raise OptionError(f"option '{name}' is missing: the coordinator's host:port")
        return read_addresses(name, value)

    def names(self, name: str) -> frozenset[str] | None:
        """Return names that are separated by commas, None if the option was not given."""
        value = self.text(name)
        if value is None:
            return None
        names = frozenset(part.strip() for part in value.split(","))
        if "" in names:
            raise OptionError(f"option '{name}' is {value!r}: it must be names separated by commas")
        return names

    def choice(self, name: str, *choices: str) -> str:
        """Return one of *choices*, the first one by default."""
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            listed = " or ".join(repr(choice) for choice in choices)
            raise OptionError(f"option '{name}' is {value!r}: it must be {listed}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return whether the option is ``true``."""
        choices = ("true", "false") if default else ("false", "true")
        return self.choice(name, *choices) == "true"

    def pushes_filters(self, *, by_default: bool) -> bool:
        """Return whether conditions are pushed down; ``auto`` is the default: where it is safe."""
        value = self.choice("pushFilters", "auto", "true", "false")
        return by_default if value == "auto" else value == "true"

    def number(self, name: str, default: T, *, low: int = 1, high: int = INT32_MAX) -> int | T:
        """Return a whole number of *low* … *high*, *default* if the option was not given."""
        value = self.text(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdecimal() or not low <= int(value) <= high:
            raise OptionError(
                f"option '{name}' is {value!r}: it must be a whole number from {low} to {high}"
            )
        return int(value)

    def duration_ms(self, name: str, default: str) -> int:
        """Return a duration in ms."""
        return read_duration_ms(name, self.text(name) or default)
