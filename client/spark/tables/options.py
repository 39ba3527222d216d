"""Options of a query of a table, and its conditions on groups and topics. Pure.

These conditions are pushed down, so that only matching groups and topics are read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from typing import Final, NamedTuple

from pyspark.sql.datasource import DataSourceReader, EqualNullSafe, EqualTo, Filter, In, IsNotNull

from client.security import PLAINTEXT, PREFIXES as SECURITY_PREFIXES, Security
from client.spark.options import OptionError, read_addresses, read_duration_ms, read_security
from protocol.partition import INT32_MAX

Names = frozenset[str] | None

# Whether Spark keeps pushed-down filters per query. Up to 4.3.0 Spark keeps them per DataFrame: a
# second query of the same DataFrame, or the other side of a join, would get only the rows of the
# first query. The release that corrects this also adds the push-down of limits.
SPARK_SCOPES_FILTERS: Final = hasattr(DataSourceReader, "pushLimit")

# Most names in one request. A name takes at most 255 bytes, and a request at most 1 MiB.
NAMES_PER_REQUEST: Final = 1_000


class Target(NamedTuple):
    """Addresses of the coordinator, and how long to try to reach it, in ms."""

    addresses: tuple[str, ...]
    timeout_ms: int
    security: Security = PLAINTEXT


class Wanted(NamedTuple):
    """Selected groups and topics; None stands for all."""

    groups: Names = None
    topics: Names = None

    @property
    def is_nothing(self) -> bool:
        """Whether no row can match, as the conditions contradict each other."""
        return self.groups == frozenset() or self.topics == frozenset()


class TableOptions:
    """Options by name, upper or lower case; each method reads one option.

    Args:
        options: The options given to Spark.
        known: All valid names; any other name is refused, as a spelling mistake.

    Raises:
        OptionError: from every method; the message names the option and its valid values.

    """

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._values:
            if name not in names and not name.startswith(SECURITY_PREFIXES):
                near = get_close_matches(name, names, n=1)
                hint = f"; did you mean '{names[near[0]]}'?" if near else ""
                raise OptionError(
                    f"option {name!r} is unknown{hint} (there are {', '.join(known)})"
                )

    def text(self, name: str) -> str | None:
        """Return the option's text without blanks around it; None if it is missing or empty."""
        return self._values.get(name.lower(), "").strip() or None

    def target(self, timeout: str, timeout_name: str = "coordinatorTimeout") -> Target:
        """Return the coordinator's addresses (``host:port``, one or more), timeout and security.

        Args:
            timeout: The default timeout, such as "60s".
            timeout_name: The name of the option for the timeout.

        """
        value = self.text("coordinator")
        if value is None:
            raise OptionError("option 'coordinator' is missing: the coordinator's host:port")
        timeout_ms = read_duration_ms(timeout_name, self.text(timeout_name) or timeout)
        security = read_security(self._values)
        return Target(read_addresses("coordinator", value), timeout_ms, security)

    def names(self, name: str) -> frozenset[str] | None:
        """Return the names in a list separated by commas; None if the option is missing."""
        value = self.text(name)
        if value is None:
            return None
        names = frozenset(part.strip() for part in value.split(","))
        if "" in names:
            raise OptionError(f"option '{name}' is {value!r}: it must be names separated by commas")
        return names

    def choice(self, name: str, *choices: str) -> str:
        """Return the chosen one of *choices*; the first is the default."""
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            listed = " or ".join(repr(choice) for choice in choices)
            raise OptionError(f"option '{name}' is {value!r}: it must be {listed}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether the option is ``true``."""
        return self.choice(name, "false", "true") == "true"

    def number(self, name: str, default: int) -> int:
        """Return a whole number of at least 1; *default* if the option is missing."""
        value = self.text(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdecimal() or not 1 <= int(value) <= INT32_MAX:
            raise OptionError(
                f"option '{name}' is {value!r}: it must be a whole number from 1 to {INT32_MAX}"
            )
        return int(value)


def push(
    filters: Iterable[Filter], wanted: Wanted, never_null: Collection[str]
) -> tuple[Wanted, list[Filter]]:
    """Narrow *wanted* by those of *filters* that name groups or topics.

    Args:
        filters: The filters of the query; all must hold.
        wanted: The groups and topics that the options select.
        never_null: Columns that always have a value; group, and topic if the table has it.

    Returns:
        The groups and topics still selected, and the filters that Spark has to apply.

    """
    rest: list[Filter] = []
    for one in filters:
        match one:
            case EqualTo(("group" | "topic" as column,), value) | EqualNullSafe(
                ("group" | "topic" as column,), value
            ) if column in never_null:
                wanted = _narrowed(wanted, column, [value])
            case In(("group" | "topic" as column,), values) if column in never_null:
                wanted = _narrowed(wanted, column, values)
            case IsNotNull((column,)) if column in never_null:
                pass
            case _:
                rest.append(one)
    return wanted, rest


def _narrowed(wanted: Wanted, column: str, values: Iterable[object]) -> Wanted:
    # Null values are dropped: no comparison with null holds, and no name is null.
    names = frozenset(value for value in values if isinstance(value, str))
    groups, topics = wanted
    if column == "group":
        return Wanted(names if groups is None else groups & names, topics)
    return Wanted(groups, names if topics is None else topics & names)


def name_parts(
    wanted: Wanted, size: int = NAMES_PER_REQUEST
) -> Iterator[tuple[Sequence[str] | None, Sequence[str] | None]]:
    """Divide *wanted* into requests of at most *size* names each; yield groups and topics.

    None stands for all groups, or all topics.
    """
    yield from product(_parts(wanted.groups, size), _parts(wanted.topics, size))


def _parts(names: Names, size: int) -> list[Sequence[str] | None]:
    if names is None:
        return [None]
    ordered = sorted(names)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
