"""What queries of release 0.1.0 left behind is read as it was, and gone on with.

tests/fixtures/release_0_1/README.md says how it was made. Spark itself isn't needed: a query that
is restarted hands its source the offsets of its checkpoint, and so do these tests.
"""

import gc
import json
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pytest

from client.spark import SqlSink, checkpoint_offsets, register
from tests.fakes.frames import batch_of
from tests.integration.daemon import daemon

FIXTURES: Final = Path(__file__).parents[1] / "fixtures" / "release_0_1"
GROUP: Final = "g"
TOPIC: Final = "events"
# What the coordinator was started with when the fixture was written.
SETTINGS: Final = ("offsets.topic.num.partitions=4", "group.initial.rebalance.delay.ms=0")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of what the queries left."""
    shutil.copytree(FIXTURES / "spark", tmp_path / "spark")
    return tmp_path / "spark"


@pytest.fixture
def address(old: Path) -> Iterator[str]:
    """A coordinator on the old data folder."""
    with daemon(old / "data", *SETTINGS) as running:
        yield f"127.0.0.1:{running.ready().port}"


def before(name: str) -> Any:
    """Return what the code that wrote the fixture read from it."""
    return json.loads((FIXTURES / "spark.json").read_text(encoding="ascii"))[name]


def in_json(offsets: Mapping[Any, int]) -> dict[str, int]:
    """Return offsets by partition, with keys that JSON has."""
    return {f"{key.topic}-{key.partition}": offset for key, offset in offsets.items()}


@contextmanager
def reading(address: str, path: Path, **options: str) -> Iterator[Any]:
    """Return the coordinated source's reader, as Spark makes it in a query's reader process."""
    formats: list[Any] = []
    spark: Any = SimpleNamespace(
        conf={},
        sparkContext=SimpleNamespace(pythonExec=sys.executable),
        dataSource=SimpleNamespace(register=formats.append),
        streams=SimpleNamespace(addListener=lambda _listener: None),
    )
    register(spark)
    (made,) = [one for one in formats if one.name() == "coordinated"]
    source = made(
        {"coordinator": address, "group": GROUP, "topics": TOPIC, "path": str(path), **options}
    )
    reader = source.streamReader(source.schema())
    handler = signal.getsignal(signal.SIGTERM)  # It takes this process for its own.
    try:
        yield reader
    finally:
        reader.stop()
        signal.signal(signal.SIGTERM, handler)
        gc.unfreeze()


def rows_of(reader: Any, start: object, end: object, column: str) -> list[list[Any]]:
    """Return partition, offset and a column of the rows of a batch, sorted."""
    batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    table = pa.Table.from_batches(batches) if batches else pa.table({})
    return sorted([row["partition"], row["offset"], row[column]] for row in table.to_pylist())


def logged(checkpoint: Path, batch_id: int) -> Any:
    """Return the offset that Spark wrote down before a batch."""
    return json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2])


# --- checkpoints --------------------------------------------------------------------------------


def test_checkpoints_tell_how_far_their_queries_are(old: Path) -> None:
    """Of the coordinated source, of Spark's file source and of its Kafka source."""
    others = before("others")
    folder_names = {"*": "in"}

    assert (
        in_json(checkpoint_offsets(str(old / "source/checkpoint")))
        == (before("source")["finished"])
    )
    assert in_json(checkpoint_offsets(str(old / "others/kafka"))) == others["kafka"]
    assert others["files"] == in_json(
        checkpoint_offsets(str(old / "others/files"), file_topics=folder_names)
    )


@pytest.mark.integration
def test_a_batch_that_was_planned_is_replayed_as_it_was_and_the_next_one_follows(
    old: Path, address: str
) -> None:
    """The end offset says its ranges, and the pins agree."""
    checkpoint, committed = old / "source/checkpoint", before("source")["committed"]
    start, end = logged(checkpoint, 2), logged(checkpoint, 3)
    planned = {key: (value["s"], value["e"]) for key, value in end.items() if key != "@"}
    assert {key: (at, int(pin.split(":")[1])) for key, (at, pin) in committed.items()} == planned

    with reading(address, old / "source/log", maxRowsPerPartition="10") as reader:
        replayed = rows_of(reader, start, end, "id")
        following = reader.latestOffset(end, reader.getDefaultReadLimit())
        rest = rows_of(reader, end, following, "id")

    assert replayed == [
        *([0, offset, offset] for offset in range(25, 35)),
        *([1, offset, 1_000_000 + offset] for offset in range(12, 15)),
    ]
    assert rest == [[0, offset, offset] for offset in range(35, 40)]


@pytest.mark.integration
def test_without_its_checkpoint_a_query_begins_with_the_ranges_that_were_pinned(
    old: Path, address: str
) -> None:
    """The pins lie in the metadata of the group's commits: a sink sees the same bounds again."""
    with reading(address, old / "source/log", maxRowsPerPartition="4") as reader:
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())

    assert {key: (value["s"], value["e"]) for key, value in end.items() if key != "@"} == {
        "events-0": (25, 35),
        "events-1": (12, 15),
    }


# --- logs of files ------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("name", ["lines", "json", "parquet"])
def test_every_row_of_a_log_of_files_has_the_offset_that_it_had(
    old: Path, address: str, name: str
) -> None:
    """The index decides, whatever a new release would call them; what is new goes behind."""
    told = before("files")[name]
    column = "value" if name == "lines" else "id"
    folder = old / "files" / name
    if name == "lines":
        (folder / TOPIC / "partition=0" / "0-new.txt").write_text("new\n")
    new = [[0, 5, "new"]] if name == "lines" else []

    options = {"log": "files", "group": f"anew-{name}", **told["options"]}
    with reading(address, folder, **options) as reader:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        found = rows_of(reader, start, end, column)

    assert found == sorted(told["rows"] + new)


# --- sinks --------------------------------------------------------------------------------------


def test_a_table_of_a_database_has_its_positions_and_takes_what_follows(
    old: Path, tmp_path: Path
) -> None:
    """A known range is not taken again."""
    path = tmp_path / "sink.db"
    with sqlite3.connect(path) as db:
        db.executescript((old / "database.sql").read_text(encoding="ascii"))
    db.close()

    sink = SqlSink(partial(sqlite3.connect, path), table="events", group=GROUP)
    sink(batch_of((0, 3, 6, 2), (1, 5, 7, 1)), 2)
    sink(batch_of((0, 6, 8, 4)), 3)

    db = sqlite3.connect(path)
    found = db.execute("SELECT partition, offset FROM events ORDER BY 1, 2").fetchall()
    db.close()
    assert found == [*((0, offset) for offset in range(8)), (1, 5), (1, 6)]
