"""A DataFrame as ``foreachBatch`` hands it over, without Spark: only what the sinks use of it."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import pyarrow as pa
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

    def __getitem__(self, name: str) -> Condition:
        return Condition(lambda row: row[name])

    def where(self, condition: Condition) -> "Frame":
        """Filter."""
        kept = [row for row in self.rows.to_pylist() if condition.of(row)]
        return Frame(pa.Table.from_pylist(kept, self.rows.schema))

    def select(self, *names: str) -> "Frame":
        """Project."""
        return Frame(self.rows.select(list(names)))

    def distinct(self) -> "Frame":
        """Leave out rows that are there already."""
        kept = {tuple(row.values()): row for row in self.rows.to_pylist()}
        return Frame(pa.Table.from_pylist([*kept.values()], self.rows.schema))

    def collect(self) -> list[tuple[Any, ...]]:
        """Return the rows."""
        return [tuple(row.values()) for row in self.rows.to_pylist()]

    def sortWithinPartitions(self, *names: str) -> "Frame":  # noqa: N802 - Spark's name.
        """Order the rows of each task."""
        return Frame(self.rows.sort_by([(name.strip("`"), "ascending") for name in names]))

    def mapInArrow(  # noqa: N802 - Spark's name.
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _schema: str
    ) -> "Frame":
        """Run the one task that these rows are; what sinks return has one column of texts."""
        found = [row for batch in function(iter(self.rows.to_batches())) for row in batch[0]]
        return Frame(pa.table({"found": pa.array([row.as_py() for row in found], pa.string())}))

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
