# ruff: noqa: S608 - Names are quoted here, and values are parameters.
"""The SQL that the sink runs, for any parameter style of the DB-API. Pure."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

PARAMSTYLES: Final = ("qmark", "numeric", "named", "format", "pyformat")

_POSITION_COLUMNS: Final = (
    "group_id",
    "topic",
    "partition_id",
    "range_start",
    "range_end",
    "generation",
    "late_end",
)


class Dialect(NamedTuple):
    """How a database wants its parameters and its names."""

    paramstyle: str = "qmark"
    quote: str = '"'

    def name(self, text: str) -> str:
        """Quote a name; dots separate a schema from a table."""
        return ".".join(map(self.column, text.split(".")))

    def column(self, text: str) -> str:
        """Quote a column's name, in which dots are dots."""
        quoted = f"{self.quote}{text.replace(self.quote, self.quote * 2)}{self.quote}"
        # Where parameters are marked by a percent sign, any other one is doubled.
        return quoted.replace("%", "%%") if "format" in self.paramstyle else quoted

    def parameters(self, count: int, first: int = 1) -> list[str]:
        """Return *count* markers; all values are passed as one sequence."""
        markers: dict[str, Callable[[int], str]] = {
            "qmark": lambda _: "?",
            "format": lambda _: "%s",
            "pyformat": lambda _: "%s",
            "numeric": lambda n: f":{n}",
            "named": lambda n: f":{n}",
        }
        return [markers[self.paramstyle](n) for n in range(first, first + count)]


class Statements(NamedTuple):
    """The statements about positions, for one table that keeps them."""

    create: str
    select: str
    insert: str
    update: str
    delete: str


def position_statements(dialect: Dialect, table: str) -> Statements:
    """Return the statements for the table that keeps positions."""
    name = dialect.name(table)
    columns = ", ".join(_POSITION_COLUMNS)
    keys = _POSITION_COLUMNS[:3]
    values = _POSITION_COLUMNS[3:]
    marks = dialect.parameters(len(_POSITION_COLUMNS))
    setting = ", ".join(
        f"{column} = {mark}"
        for column, mark in zip(values, dialect.parameters(len(values)), strict=True)
    )
    where = _equal(dialect, keys, first=1 + len(values))
    # The whole row must be as it was read: end and generation alone could come again.
    unchanged = _equal(dialect, values[:3], first=1 + len(values) + len(keys))
    late = dialect.parameters(1, first=1 + len(values) + len(keys) + 3)[0]
    return Statements(
        create=(
            f"CREATE TABLE IF NOT EXISTS {name} (group_id VARCHAR(255) NOT NULL, "
            "topic VARCHAR(249) NOT NULL, partition_id INTEGER NOT NULL, "
            "range_start BIGINT NOT NULL, range_end BIGINT NOT NULL, "
            "generation INTEGER NOT NULL, late_end BIGINT NOT NULL, "
            "PRIMARY KEY (group_id, topic, partition_id))"
        ),
        select=(
            f"SELECT {', '.join(_POSITION_COLUMNS[1:])} FROM {name} "
            f"WHERE {_equal(dialect, keys[:1], first=1)}"
        ),
        insert=f"INSERT INTO {name} ({columns}) VALUES ({', '.join(marks)})",
        update=f"UPDATE {name} SET {setting} WHERE {where} AND {unchanged} AND late_end = {late}",
        delete=f"DELETE FROM {name} WHERE {_equal(dialect, keys, first=1)}",
    )


def insert_rows(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    """Return the statement that inserts one row."""
    names = ", ".join(map(dialect.column, columns))
    marks = ", ".join(dialect.parameters(len(columns)))
    return f"INSERT INTO {dialect.name(table)} ({names}) VALUES ({marks})"


def insert_from(dialect: Dialect, table: str, staging: str, columns: Sequence[str]) -> str:
    """Return the statement that moves all rows of a staging table."""
    names = ", ".join(map(dialect.column, columns))
    return (
        f"INSERT INTO {dialect.name(table)} ({names}) SELECT {names} FROM {dialect.name(staging)}"
    )


def create_like(dialect: Dialect, staging: str, table: str, columns: Sequence[str]) -> str:
    """Return the statement that makes an empty staging table with the columns of *table*."""
    names = ", ".join(map(dialect.column, columns))
    return (
        f"CREATE TABLE {dialect.name(staging)} AS "
        f"SELECT {names} FROM {dialect.name(table)} WHERE 1 = 0"
    )


def _equal(dialect: Dialect, columns: Sequence[str], first: int) -> str:
    marks = dialect.parameters(len(columns), first)
    return " AND ".join(f"{column} = {mark}" for column, mark in zip(columns, marks, strict=True))
