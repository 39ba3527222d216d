"""The adapter, as far as it goes without a Spark session."""

import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from client.spark.errors import CoordinatedSourceError
from client.spark.logs.folder import FolderLogWriter
from client.spark.options import OptionError
from client.spark.source import data_source
from client.spark.source.core import Task
from client.spark.source.data_source import (
    CoordinatedSource,
    CoordinatedStreamReader,
    RangesPartition,
    log_to_stderr,
    pack_ranges,
    ranges_partitions,
    take_off,
    warm_partitions,
)
from client.spark.source.query_guard import QueryGuard, Refusals, Sources, readers_note
from client.spark.source.reader_options import parse_options
from client.spark.source.reading import SourceRange, with_source_columns
from client.spark.source.stream_offsets import Range
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup
from tests.spark.helpers import MemoryLog, Query, tp

SCHEMA = pa.schema([("id", pa.int64()), ("when", pa.timestamp("us", tz="UTC"))])


@pytest.fixture
def source_options(tmp_path: Path) -> dict[str, str]:
    """Options of a stream over a folder log with three rows."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1) as writer:
        writer.append(0, pa.table({"id": [1, 2, 3], "when": [1, 2, 3]}, schema=SCHEMA))
    return {"coordinator": "h:1", "group": "g", "topics": "t", "path": str(tmp_path)}


def reader_of(source_options: dict[str, str]) -> CoordinatedStreamReader:
    """Make a reader as Spark does."""
    data_source = CoordinatedSource(source_options)
    return data_source.streamReader(data_source.schema())


def test_an_executor_reads_with_a_pickled_copy(source_options: dict[str, str]) -> None:
    """The membership must not travel."""
    reader = pickle.loads(pickle.dumps(reader_of(source_options)))

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
    assert batches[0].schema == to_arrow_schema(
        CoordinatedSource(source_options).schema(), timezone="UTC"
    )


def test_one_task_reads_several_ranges(source_options: dict[str, str]) -> None:
    """Each with its own range columns, as if it had been a task of its own."""
    ranges = [SourceRange("t", 0, 2, 3, 7), SourceRange("t", 0, 0, 1, 8)]

    batches = list(reader_of(source_options).read(RangesPartition(ranges)))

    columns = ["offset", "range_start", "range_end", "generation"]
    rows = pa.Table.from_batches(batches).select(columns).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(2, 2, 3, 7), (0, 0, 1, 8)]


def test_ranges_are_packed_as_the_options_say(source_options: dict[str, str]) -> None:
    """Spark makes a task of each partition that it gets."""
    ranges = [Task(TopicPartition("t", p), Range(0, 10, 1)) for p in range(6)]
    options = parse_options({**source_options, "minTasks": "2", "rowsPerTask": "20"})

    packed = ranges_partitions(ranges, options)

    assert [len(one.ranges) for one in packed if isinstance(one, RangesPartition)] == [2, 2, 2]


def test_a_warm_up_starts_workers_that_load_the_log(
    source_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a task Spark would start none; and they are not settled before there are rows."""
    group, log = FakeGroup([tp(0)]), MemoryLog({0: 100})
    Query(group, log, client_id="at-work").trigger()
    settled: list[bool] = []
    monkeypatch.setattr(data_source, "settle", lambda: settled.append(True))
    reader = reader_of({**source_options, "minTasks": "3"})
    monkeypatch.setattr(reader, "_core", Query(group, log, warms_up=True).core)

    tasks = reader.partitions({}, reader.latestOffset({}, ReadMaxRows(10)))

    assert [list(reader.read(pickle.loads(pickle.dumps(task)))) for task in tasks] == [[], [], []]
    assert not settled
    list(reader.read(RangesPartition([SourceRange("t", 0, 0, 3, 1)])))
    assert settled == [True]


def test_a_warm_up_has_no_more_tasks_than_are_worth_it(source_options: dict[str, str]) -> None:
    """With many partitions on a slow log 'minTasks' may be as many; the warm-up reads none."""
    assert len(warm_partitions(parse_options({**source_options, "minTasks": "2147483647"}))) == 64


def test_making_a_reader_connects_to_nothing(source_options: dict[str, str]) -> None:
    """Spark makes one in planning workers too; the coordinator here doesn't exist."""
    reader = reader_of(source_options)

    assert isinstance(reader, SupportsTriggerAvailableNow)
    assert reader.reportLatestOffset() is None
    reader.stop()


def test_the_read_limit_is_the_option(source_options: dict[str, str]) -> None:
    """Spark hands it back to every latestOffset; only a run of one batch has no limit."""
    without = {**source_options, "maxrowsperpartition": "unlimited"}

    assert reader_of(source_options).getDefaultReadLimit() == ReadMaxRows(10_000)
    assert reader_of(without).getDefaultReadLimit() == ReadMaxRows(2**63 - 1)


@pytest.mark.parametrize("most", ["10", "unlimited"])
def test_a_run_of_one_batch_is_refused(source_options: dict[str, str], most: str) -> None:
    """Nobody asks after its batch, so that is never committed and comes again in each run."""
    reader = reader_of({**source_options, "maxRowsPerPartition": most})

    with pytest.raises(CoordinatedSourceError, match=r"once=True.*use trigger\(availableNow"):
        reader.latestOffset({}, ReadAllAvailable())
    assert os.environ["SPARK_HIDE_TRACEBACK"]


def test_a_wrong_option_is_refused_when_the_source_is_made(source_options: dict[str, str]) -> None:
    """That is at ``load()``, in the user's own stack."""
    with pytest.raises(OptionError, match="option 'group' is missing"):
        CoordinatedSource({**source_options, "group": ""})
    assert os.environ["SPARK_HIDE_TRACEBACK"]  # The message is the first that Spark shows.


def test_a_read_that_is_no_stream_says_what_to_use(source_options: dict[str, str]) -> None:
    """Spark would only say that something is not implemented."""
    made = CoordinatedSource(source_options)

    with pytest.raises(OptionError, match=r"is a stream: use spark\.readStream"):
        made.reader(made.schema())


def test_a_reader_says_when_and_who(capsys: pytest.CaptureFixture[str]) -> None:
    """In a driver's standard error several readers speak, and Spark between them."""
    package = logging.Logger("client")  # noqa: LOG001 - without the handlers of pytest.

    log_to_stderr("spark-100%-1 (group g\n)", package)
    log_to_stderr("a second query of one process", package)
    package.info("batches go on")

    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d INFO spark-100%-1 \(group g\\n\): batches go on", line
    )


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


def test_topics_with_different_columns_are_refused(source_options: dict[str, str]) -> None:
    """A stream has one schema."""
    FolderLogWriter.create(source_options["path"], "u", pa.schema([("x", pa.int64())]), 1).close()

    with pytest.raises(OptionError, match="'t' and 'u' have different columns"):
        CoordinatedSource({**source_options, "topics": "t,u"}).schema()


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


def guard_of(sources: Sources = lambda _: (), folder: Path | None = None) -> QueryGuard:
    """Return the guard of one driver."""
    return QueryGuard("driver", sources, Refusals(folder))


def run(run_id: str, **more: object) -> Any:
    """Return what an event says of a run."""
    return SimpleNamespace(runId=run_id, id="i", name=None, **more)


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

    guard = guard_of(folder=tmp_path)
    guard.onQueryProgress(event(end))
    guard.onQueryProgress(event('{"t":{"0":5}}', "dedupe"))
    assert caplog.text == ""

    guard.onQueryProgress(event(end, "dedupe"))
    guard.onQueryProgress(event(end, "dedupe"))

    assert caplog.text.count("dedupe") == 1
    assert Refusals(tmp_path).reason("spark-1") is None  # As its option says, or an older release.


def test_spark_tells_the_guard_nothing_after_the_program() -> None:
    """It would print a trace; and a session that has ended before must not make one, either."""
    guard, listeners = guard_of(), [object()]
    listeners.append(guard)
    spark: Any = MagicMock()
    spark.streams.removeListener = listeners.remove
    heard = spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty
    heard.side_effect = lambda _: listeners.index(guard)  # Before it is taken off.

    take_off(spark, guard)
    take_off(spark, guard)  # Both raise, as an ended session does.

    assert guard not in listeners
    assert heard.call_count == 2


def test_a_stateful_query_is_told_to_end(tmp_path: Path) -> None:
    """Also when its first progress is that of a batch that an earlier process planned."""
    guard, refusals = guard_of(folder=tmp_path), Refusals(tmp_path)
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

    guard.onQueryTerminated(run("r"))
    assert not list(tmp_path.iterdir())


def test_two_readers_of_a_group_in_one_query_end_before_they_join(
    source_options: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each would wait for the other until the group removes it; the coordinator isn't asked."""
    other = {**source_options, "topics": "other", "maxRowsPerPartition": "7"}
    guard = guard_of(lambda _: [source_options, other], tmp_path / "notes")

    guard.onQueryStarted(run("r"))

    for options in (source_options, other):
        schema = CoordinatedSource(source_options).schema()
        notes = Refusals(tmp_path / "notes")
        reader = CoordinatedStreamReader(options, schema, driver="driver", refusals=notes)
        for ask in (
            reader.initialOffset,
            reader.prepareForTriggerAvailableNow,
            lambda reader=reader: reader.latestOffset({}, ReadMaxRows(10)),
            lambda reader=reader: reader.partitions({}, {"@": {}}),
        ):
            with pytest.raises(CoordinatedSourceError, match=r"query i has 2 readers of group 'g'"):
                ask()
    assert "query i has 2 readers of group 'g'" in caplog.text


@pytest.mark.parametrize("change", [{}, {"group": "g2"}, {"coordinator": "i:1"}])
def test_readers_of_different_groups_and_those_of_other_queries_go_on(
    source_options: dict[str, str], tmp_path: Path, change: dict[str, str]
) -> None:
    """Queries of one driver may share a group, and a query may read several groups."""
    sources = [source_options, {**source_options, **change}] if change else [source_options]
    guard = guard_of(lambda _: sources, tmp_path / "notes")

    guard.onQueryStarted(run("r1"))
    guard.onQueryStarted(run("r2"))

    assert not (tmp_path / "notes").exists()


def test_a_note_stays_while_any_run_needs_it(
    source_options: dict[str, str], tmp_path: Path
) -> None:
    """The end of a run is told after the next run has started."""
    guard = guard_of(lambda _: [source_options, source_options], tmp_path)
    notes = Refusals(tmp_path)
    name = readers_note("driver", parse_options(source_options))

    guard.onQueryStarted(run("r1"))
    guard.onQueryStarted(run("r2"))
    guard.onQueryTerminated(run("r1"))
    assert notes.reason(name)
    assert notes.reason(readers_note("another", parse_options(source_options))) is None

    guard.onQueryTerminated(run("r2"))
    assert notes.reason(name) is None


# --- Ranges packed into tasks --------------------------------------------------------------


def of_sizes(*rows: int) -> list[Task]:
    """Return a range of so many rows for each of as many partitions."""
    return [
        Task(TopicPartition("t", partition), Range(100, 100 + count, 1))
        for partition, count in enumerate(rows)
    ]


def sizes(packed: list[list[Task]]) -> list[int]:
    """Return how many rows each task has."""
    return [sum(one.range.end - one.range.start for one in task) for task in packed]


def test_few_ranges_are_a_task_each() -> None:
    """Nothing is gained by having one wait for another."""
    few = of_sizes(5, 1_000_000, 0)

    assert sorted(pack_ranges(few, 8, 50_000)) == [[one] for one in few]


def test_many_small_ranges_are_few_tasks() -> None:
    """A task costs more than such a range."""
    assert sizes(pack_ranges(of_sizes(*[10] * 1_000), 8, 50_000)) == [1_250] * 8


def test_many_large_ranges_are_many_tasks() -> None:
    """They keep all cores of a cluster busy, and a task that failed is repeated sooner."""
    assert sizes(pack_ranges(of_sizes(*[10_000] * 100), 8, 50_000)) == [50_000] * 20


def test_a_large_range_has_a_task_to_itself() -> None:
    """Else its task would end long after the others."""
    packed = pack_ranges(of_sizes(10, 10, 10_000, 10, 10), 2, 50_000)

    assert sorted(sizes(packed)) == [40, 10_000]


@example([0, 0, 0], 3, 1)
@example([1, 2, 3], 1, 10)
@given(st.lists(st.integers(0, 10**6)), st.integers(1, 50), st.integers(1, 10**6))
def test_every_range_is_in_one_task(rows: list[int], tasks_min: int, rows_per_task: int) -> None:
    """In none it would be lost, in two it would be there twice; and no task is empty."""
    made = of_sizes(*rows)

    packed = pack_ranges(made, tasks_min, rows_per_task)

    assert sorted(one for task in packed for one in task) == made
    assert all(task and task == sorted(task) for task in packed)
    assert len(packed) >= min(len(made), tasks_min)
    if packed:  # As even as of_sizes that aren't cut can be.
        assert max(sizes(packed)) <= sum(rows) / len(packed) + max(rows)
        assert len(packed) <= max(tasks_min, sum(rows) / rows_per_task + 1)
