"""A DataFrame as ``foreachBatch`` hands it over, without Spark: only what the sinks use of it."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("name", pa.string()),
        ("range_start", pa.int64()),
        ("range_end", pa.int64()),
        ("generation", pa.int32()),
    ]
)

Row = dict[str, Any]


class Condition:
    """What a column expression comes to for one row."""

    def __init__(self, of: Callable[[Row], Any]) -> None:
        self.of = of

    def __eq__(self, other: object) -> Self:  # type: ignore[override]  # As Spark's columns do.
        return type(self)(lambda row: self.of(row) == other)

    def __hash__(self) -> int:
        return id(self)

    def __ge__(self, other: object) -> Self:
        return type(self)(lambda row: self.of(row) >= other)

    def __and__(self, other: "Condition") -> Self:
        return type(self)(lambda row: self.of(row) and other.of(row))

    def __or__(self, other: "Condition") -> Self:
        return type(self)(lambda row: self.of(row) or other.of(row))


class Level(NamedTuple):
    """Where a frame is kept."""

    useMemory: bool  # noqa: N815 - Spark's name.
    useDisk: bool  # noqa: N815 - Spark's name.


class Writer:
    """Writes Parquet as Spark does: some files of some tasks, with names of their own."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self._by: tuple[str, ...] = ()

    def option(self, _name: str, _value: object) -> Self:
        """Take an option."""
        return self

    def partitionBy(self, *columns: str) -> Self:  # noqa: N802 - Spark's name.
        """Make sub-folders."""
        self._by = columns
        return self

    def parquet(self, path: str) -> None:
        """Write one file per sub-folder."""
        groups: dict[str, list[Row]] = {"": []}
        for row in self.rows.to_pylist():
            folder = "/".join(f"{name}={row[name]}" for name in self._by)
            groups.setdefault(folder, []).append(row)
        for folder, rows in groups.items():
            target = Path(path.removeprefix("file://")) / folder
            target.mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pylist(rows, self.rows.schema).drop_columns(list(self._by))
            pq.write_table(table, target / f"part-{uuid4().hex}.parquet")


class Frame:
    """Some rows."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.storageLevel = Level(useMemory=False, useDisk=False)

    @property
    def columns(self) -> list[str]:
        """The names."""
        return list(self.rows.column_names)

    @property
    def schema(self) -> StructType:
        """The types."""
        return from_arrow_schema(self.rows.schema)

    @property
    def write(self) -> Writer:
        """A writer."""
        return Writer(self.rows)

    def __getitem__(self, name: str) -> Condition:
        return Condition(lambda row: row[name])

    def where(self, condition: Condition) -> "Frame":
        """Filter."""
        kept = [row for row in self.rows.to_pylist() if condition.of(row)]
        return Frame(pa.Table.from_pylist(kept, self.rows.schema))

    def select(self, *names: str) -> "Frame":
        """Project."""
        return Frame(self.rows.select(list(names)))

    def groupBy(self, *names: str) -> "Grouped":  # noqa: N802 - Spark's name.
        """Put rows with equal values together."""
        return Grouped(self.select(*names).rows)

    def collect(self) -> list[tuple[Any, ...]]:
        """Return the rows."""
        return [tuple(row.values()) for row in self.rows.to_pylist()]

    def count(self) -> int:
        """Return how many rows there are."""
        return int(self.rows.num_rows)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name.
        """Return the rows."""
        return self.rows

    def persist(self) -> None:
        """Note it."""
        self.storageLevel = Level(useMemory=True, useDisk=True)

    def unpersist(self) -> None:
        """Note it."""
        self.storageLevel = Level(useMemory=False, useDisk=False)


class Grouped:
    """Rows by their values."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def count(self) -> Frame:
        """Return each one's values, and how many there are of it."""
        counted = Counter(tuple(row.values()) for row in self.rows.to_pylist())
        names = [*self.rows.column_names, "count"]
        rows = [dict(zip(names, (*row, count), strict=True)) for row, count in counted.items()]
        return Frame(
            pa.Table.from_pylist(rows, self.rows.schema.append(pa.field("count", pa.int64())))
        )


def batch_of(*ranges: tuple[int, int, int, int], topic: str = "events") -> Any:
    """Return the rows of ranges (partition, start, end, generation), as the source makes them."""
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "name": f"n{offset}",
            "range_start": start,
            "range_end": end,
            "generation": generation,
        }
        for partition, start, end, generation in ranges
        for offset in range(start, end)
    ]
    return Frame(pa.Table.from_pylist(rows, SCHEMA))


def folder_offsets(files: list[Path]) -> Iterator[tuple[int, int]]:
    """Yield (partition, offset) of each row in the files."""
    for file in files:
        for row in pq.ParquetFile(file).read(["partition", "offset"]).to_pylist():
            yield row["partition"], row["offset"]
