"""What the tests of the Delta sink look at in a table."""

from pathlib import Path

from deltalake import DeltaTable


def offsets(path: Path) -> list[tuple[int, int]]:
    """Return partition and offset of each row, sorted, repeats included."""
    rows = DeltaTable(path).to_pyarrow_table(columns=["partition", "offset"])
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))
