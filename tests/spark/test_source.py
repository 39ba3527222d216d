"""The adapter, as far as it goes without a Spark session."""

import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from client.spark.logs.folder import FolderLogWriter
from client.spark.options import OptionError
from client.spark.source import data_source
from client.spark.source.core import Task
from client.spark.source.data_source import (
    CoordinatedSource,
    CoordinatedStreamReader,
    RangesPartition,
    Refusals,
    StatefulGuard,
    ranges_partitions,
    warm_partitions,
)
from client.spark.source.reader_options import parse_options
from client.spark.source.reading import SourceRange, with_source_columns
from client.spark.source.stream_offsets import Range
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup
from tests.spark.helpers import MemoryLog, Query, tp

SCHEMA = pa.schema([("id", pa.int64()), ("when", pa.timestamp("us", tz="UTC"))])


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """Options of a stream over a folder log with three rows."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1) as writer:
        writer.append(0, pa.table({"id": [1, 2, 3], "when": [1, 2, 3]}, schema=SCHEMA))
    return {"coordinator": "h:1", "group": "g", "topics": "t", "path": str(tmp_path)}


def reader_of(given: dict[str, str]) -> CoordinatedStreamReader:
    """Make a reader as Spark does."""
    data_source = CoordinatedSource(given)
    return data_source.streamReader(data_source.schema())


def test_an_executor_reads_with_a_pickled_copy(given: dict[str, str]) -> None:
    """The membership must not travel."""
    reader = pickle.loads(pickle.dumps(reader_of(given)))

    batches = list(reader.read(RangesPartition([SourceRange("t", 0, 1, 3, 7)])))

    assert pa.Table.from_batches(batches).drop_columns(["when"]).to_pylist() == [
        {
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "id": offset + 1,
            "range_start": 1,
            "range_end": 3,
            "generation": 7,
        }
        for offset in (1, 2)
    ]
    # Spark compares the schema exactly, and says nothing helpful about a difference.
    assert batches[0].schema == to_arrow_schema(CoordinatedSource(given).schema(), timezone="UTC")


def test_one_task_reads_several_ranges(given: dict[str, str]) -> None:
    """Each with its own range columns, as if it had been a task of its own."""
    ranges = [SourceRange("t", 0, 2, 3, 7), SourceRange("t", 0, 0, 1, 8)]

    batches = list(reader_of(given).read(RangesPartition(ranges)))

    columns = ["offset", "range_start", "range_end", "generation"]
    rows = pa.Table.from_batches(batches).select(columns).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(2, 2, 3, 7), (0, 0, 1, 8)]


def test_ranges_are_packed_as_the_options_say(given: dict[str, str]) -> None:
    """Spark makes a task of each partition that it gets."""
    ranges = [Task(TopicPartition("t", p), Range(0, 10, 1)) for p in range(6)]
    options = parse_options({**given, "minTasks": "2", "rowsPerTask": "20"})

    packed = ranges_partitions(ranges, options)

    assert [len(one.ranges) for one in packed if isinstance(one, RangesPartition)] == [2, 2, 2]


def test_a_warm_up_starts_workers_that_load_the_log(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a task Spark would start none; and they are not settled before there are rows."""
    group, log = FakeGroup([tp(0)]), MemoryLog({0: 100})
    Query(group, log, client_id="at-work").trigger()
    settled: list[bool] = []
    monkeypatch.setattr(data_source, "settle", lambda: settled.append(True))
    reader = reader_of({**given, "minTasks": "3"})
    monkeypatch.setattr(reader, "_core", Query(group, log, warms_up=True).core)

    tasks = reader.partitions({}, reader.latestOffset({}, ReadMaxRows(10)))

    assert [list(reader.read(pickle.loads(pickle.dumps(task)))) for task in tasks] == [[], [], []]
    assert not settled
    list(reader.read(RangesPartition([SourceRange("t", 0, 0, 3, 1)])))
    assert settled == [True]


def test_a_warm_up_has_no_more_tasks_than_are_worth_it(given: dict[str, str]) -> None:
    """With many partitions on a slow log 'minTasks' may be as many; the warm-up reads none."""
    assert len(warm_partitions(parse_options({**given, "minTasks": "2147483647"}))) == 64


def test_making_a_reader_connects_to_nothing(given: dict[str, str]) -> None:
    """Spark makes one in planning workers too; the coordinator here doesn't exist."""
    reader = reader_of(given)

    assert isinstance(reader, SupportsTriggerAvailableNow)
    assert reader.reportLatestOffset() is None
    reader.stop()


def test_the_read_limit_is_the_option(given: dict[str, str]) -> None:
    """Spark hands it back to every latestOffset."""
    assert reader_of(given).getDefaultReadLimit() == ReadMaxRows(10_000)
    assert reader_of({**given, "maxrowsperpartition": "unlimited"}).getDefaultReadLimit() == (
        ReadAllAvailable()
    )


def test_a_wrong_option_is_refused_when_the_source_is_made(given: dict[str, str]) -> None:
    """That is at ``load()``, in the user's own stack."""
    with pytest.raises(OptionError, match="option 'group' is missing"):
        CoordinatedSource({**given, "group": ""})


@pytest.mark.parametrize("missing", [-1, 1])
def test_a_log_that_returns_too_few_or_too_many_rows_is_caught(missing: int) -> None:
    """It would be loss, or rows under two keys."""
    schema = pa.schema([("offset", pa.int64()), ("id", pa.int64())])
    rows = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})

    with pytest.raises(ValueError, match="for a range that ends at"):
        list(with_source_columns(iter([rows]), SourceRange("t", 0, 0, 3 + missing, 1), schema))


def test_columns_that_clash_with_the_sources_own_are_refused(tmp_path: Path) -> None:
    """One of them would be hidden."""
    FolderLogWriter.create(tmp_path, "t", pa.schema([("offset", pa.int64())]), 1).close()

    with pytest.raises(OptionError, match="columns named offset"):
        CoordinatedSource(
            {"coordinator": "h:1", "group": "g", "topics": "t", "path": str(tmp_path)}
        ).schema()


def test_topics_with_different_columns_are_refused(given: dict[str, str]) -> None:
    """A stream has one schema."""
    FolderLogWriter.create(given["path"], "u", pa.schema([("x", pa.int64())]), 1).close()

    with pytest.raises(OptionError, match="'t' and 'u' have different columns"):
        CoordinatedSource({**given, "topics": "t,u"}).schema()


# No print(): the signal may come while the main thread is inside one, and holds its lock.
SIGTERM_SCRIPT = """
import os
import threading
from client.spark.source.data_source import LeaveOnSigterm

def leave():
    os.write(1, b"left\\n")
    {leave}

LeaveOnSigterm(leave).install()
lock = threading.Lock()
lock.acquire()
os.write(1, b"ready\\n")
lock.acquire()  # As a reader that blocks for a rebalance.
"""


@pytest.mark.parametrize("leave", ["pass", "threading.Event().wait()", "raise ValueError"])
def test_sigterm_leaves_once_and_ends_the_process(leave: str) -> None:
    """Also when it comes twice, in the middle of a lock, and when leaving hangs or fails."""
    with subprocess.Popen(
        [sys.executable, "-c", SIGTERM_SCRIPT.format(leave=leave)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)

        assert process.stdout.read() == "left\n"
        assert process.wait(30) == 0


def test_a_stateful_query_is_reported_once_a_run(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Only over a coordinated source; other stateful queries are none of our business."""
    end = '{"@":{"v":1,"coordinator":"h:1","group":"g","client_id":"spark-1"}}'

    def event(end_offset: str, *operators: str) -> Any:
        return SimpleNamespace(
            progress=SimpleNamespace(
                runId="r",
                id="i",
                name=None,
                stateOperators=[SimpleNamespace(operatorName=name) for name in operators],
                sources=[SimpleNamespace(endOffset=end_offset)],
            )
        )

    guard = StatefulGuard(Refusals(tmp_path))
    guard.onQueryProgress(event(end))
    guard.onQueryProgress(event('{"t":{"0":5}}', "dedupe"))
    assert caplog.text == ""

    guard.onQueryProgress(event(end, "dedupe"))
    guard.onQueryProgress(event(end, "dedupe"))

    assert caplog.text.count("dedupe") == 1
    assert Refusals(tmp_path).reason("spark-1") is None  # As its option says, or an older release.


def test_a_stateful_query_is_told_to_end(tmp_path: Path) -> None:
    """Also when its first progress is that of a batch that an earlier process planned."""
    guard, refusals = StatefulGuard(Refusals(tmp_path)), Refusals(tmp_path)
    for client_id in ("spark-old", "spark-new"):
        about = {"v": 1, "coordinator": "h:1", "group": "g", "client_id": client_id}
        data_source = SimpleNamespace(endOffset=json.dumps({"@": {**about, "stateful": "fail"}}))
        operators = [SimpleNamespace(operatorName="dedupe")]
        guard.onQueryProgress(
            SimpleNamespace(  # type: ignore[arg-type] # Only what it looks at.
                progress=SimpleNamespace(
                    runId="r", id="i", name="q", stateOperators=operators, sources=[data_source]
                )
            )
        )

        reason = refusals.reason(client_id)
        assert reason is not None
        assert "query q is stateful (dedupe)" in reason
