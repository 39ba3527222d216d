"""Lag on real Spark: against a model in Python, from real sources, and as a job."""

import json
import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - As usual.

from client.blocking import connect_blocking
from client.spark.lag import (
    group_lag,
    kafka_ends,
    keep_sample,
    log_ends,
    partition_lag,
    read_ends,
    read_samples,
    registry_ends,
    take_sample,
    watch,
    windowed,
    worst,
)
from client.spark.lag.history import Sample
from client.spark.lag.job import Shown, main
from protocol.partition import TopicPartition
from tests.integration.kafka_support import Broker
from tests.integration.spark_support import ROOT, TOPIC, Daemon, Feeder, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.spark]
nightly = pytest.mark.nightly

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OFFSETS = "group string, topic string, partition int, offset long"
ENDS = "topic string, partition int, end_offset long, sampled_at timestamp"


def ago(seconds: float) -> datetime:
    """Return a time before now."""
    return NOW - timedelta(seconds=seconds)


class Expected(NamedTuple):
    """What the model says of one partition."""

    end: int | None
    lag: int | None
    seconds: float | None
    at_least: bool | None


def model(committed: int, samples: list[tuple[float, int]]) -> Expected:
    """Say how far behind *committed* is, given (seconds ago, end), in one life of the log."""
    lives = sorted((-age, end) for age, end in samples if age >= 0)
    for index in range(len(lives) - 1, 0, -1):
        if lives[index][1] < lives[index - 1][1]:
            lives = lives[index:]
            break
    if not lives:
        return Expected(None, None, None, None)
    end = lives[-1][1]
    lag = end - committed
    if lag < 0:  # The samples are old, or the commit is wrong.
        return Expected(end, None, None, None)
    if lag == 0:
        return Expected(end, 0, 0.0, at_least=False)
    if lives[0][1] > committed:
        return Expected(end, lag, -lives[0][0], at_least=True)
    for (t0, end0), (t1, end1) in pairwise(lives):
        if end0 <= committed < end1:
            since = t0 + (committed - end0) / (end1 - end0) * (t1 - t0)
            return Expected(end, lag, -since, at_least=False)
    raise AssertionError("an end that is past it was reached at some time")


def test_lag_is_what_a_model_says_of_hundreds_of_histories(spark: SparkSession) -> None:
    """Growth between samples, deletions and new logs, late samples, nothing known."""
    rng = random.Random(5)
    offsets, ends = [], []
    expected: dict[int, Expected] = {}
    for partition in range(300):
        at, samples = 0, []
        for age in sorted(rng.sample(range(-2, 60), rng.randrange(6)), reverse=True):
            at = rng.randrange(5) if rng.random() < 0.1 else at + rng.randrange(0, 40)
            samples.append((float(age), at))
        committed = rng.randrange(max(at, 1) + 10)
        offsets.append(("g", "t", partition, committed))
        ends += [("t", partition, end, ago(age)) for age, end in samples]
        expected[partition] = model(committed, samples)

    lags = partition_lag(
        spark.createDataFrame(offsets, OFFSETS), spark.createDataFrame(ends, ENDS), at=NOW
    )

    found = {
        row["partition"]: Expected(
            row["end_offset"], row["lag"], row["lag_seconds"], row["at_least"]
        )
        for row in lags.collect()
    }
    assert found.keys() == expected.keys()
    for partition, want in expected.items():
        got = found[partition]
        assert got._replace(seconds=None) == want._replace(seconds=None), partition
        assert got.seconds == pytest.approx(want.seconds), partition


@pytest.fixture
def lags(spark: SparkSession) -> DataFrame:
    """Lag of two groups of a topic with three partitions, one of which one group never read."""
    offsets = spark.createDataFrame(
        [
            ("a", "t", 0, 90, ago(5)),
            ("a", "t", 1, 10, ago(50)),
            ("b", "t", 0, 100, ago(1)),
            ("b", "t", 1, 95, ago(2)),
            ("b", "t", 2, 7, ago(3)),
            ("b", "gone", 0, 7, ago(3)),
        ],
        f"{OFFSETS}, committed_at timestamp",
    )
    ends = spark.createDataFrame(
        [("t", p, 20, end, ago(age)) for p in range(3) for age, end in ((60, 0), (0, 100))],
        "topic string, partition int, begin_offset long, end_offset long, sampled_at timestamp",
    )
    return partition_lag(offsets, ends, at=NOW)


@nightly
def test_a_group_may_be_further_behind_if_a_partition_may(spark: SparkSession) -> None:
    """Also where another partition's lag in seconds is larger, and exact."""
    offsets = spark.createDataFrame([("a", "t", 0, 10), ("a", "t", 1, 10)], OFFSETS)
    ends = spark.createDataFrame(
        [("t", 0, 0, ago(100)), ("t", 0, 100, ago(0)), ("t", 1, 50, ago(50))],
        "topic string, partition int, end_offset long, sampled_at timestamp",
    )
    (found,) = group_lag(partition_lag(offsets, ends, at=NOW)).collect()

    assert (found["lag_seconds"], found["at_least"]) == (pytest.approx(90.0), True)


@nightly
def test_what_is_not_known_is_counted_and_never_taken_for_nothing(lags: DataFrame) -> None:
    """A group that never committed is no group without lag."""
    found = {(row["group"], row["topic"]): row.asDict() for row in group_lag(lags).collect()}

    a = found["a", "t"]
    assert (a["partitions"], a["unknown"], a["behind"]) == (3, 1, 2)
    assert (a["lag"], a["lag_max"], a["worst_topic"], a["worst_partition"]) == (100, 90, "t", 1)
    assert a["lag_seconds"] == pytest.approx(54.0)
    assert a["at_least"] is True
    assert a["expired"] == 10
    assert a["last_commit"] == ago(5).replace(tzinfo=None)
    assert found["b", "t"]["at_least"] is False
    gone = found["b", "gone"]
    assert gone["at_least"] is None
    assert (gone["partitions"], gone["unknown"], gone["lag"], gone["lag_seconds"]) == (
        1,
        1,
        None,
        None,
    )
    by_group = {row["group"]: row["lag"] for row in group_lag(lags, by=["group"]).collect()}
    assert by_group == {"a": 100, "b": 98}


@nightly
def test_the_worst_come_first_overall_and_of_each_topic(lags: DataFrame) -> None:
    """An alert names a few; equals must not change places from one look to the next."""
    names = [(row["group"], row["partition"], row["lag"]) for row in worst(lags, 3).collect()]
    each = [
        (row["group"], row["partition"])
        for row in worst(lags, 1, by="lag_seconds", per=["group"]).collect()
    ]

    assert names == [("b", 2, 93), ("a", 1, 90), ("a", 0, 10)]
    assert each == [("a", 1), ("b", 2)]
    with pytest.raises(ValueError, match="by is 'age'"):
        worst(lags, by="age")  # type: ignore[arg-type]  # That is the point.
    with pytest.raises(ValueError, match="n is 0"):
        worst(lags, 0)


def test_a_lag_that_is_known_in_part_is_at_least_so_much(
    lags: DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table, and in windows of it; a change of a part is no growth."""
    later = group_lag(lags.withColumn("at", F.expr("at + interval 1 minute")))
    groups = group_lag(lags)
    shown = Shown(
        level="groups", top=9, by="lag", per=(), output="table", max_lag=None, max_seconds=None
    )
    shown.report(Sample(lags, groups))
    listed = capsys.readouterr().out.splitlines()
    windows = windowed(groups.unionByName(later)).where("topic = 't'").orderBy("group")
    shown.show(windows, "windows")
    part, whole = capsys.readouterr().out.splitlines()[1:]

    assert [line.replace("≥ ", "≥").split()[:7] for line in listed[1:]] == [
        ["a", "t", "≥100", "≥54.0", "yes", "2", "3"],
        ["b", "t", "98", "55.8", "no", "2", "3"],
        ["b", "gone", "-", "-", "-", "0", "1"],
    ]
    assert part.replace("≥ ", "≥").split()[-7:] == [
        "≥100",
        "≥100.0",
        "≥100",
        "≥100",
        "≥54.0",
        "-",
        "1",
    ]
    assert whole.split()[-7:] == ["98", "98.0", "98", "98", "55.8", "0.0", "0"]


SAMPLES = "at timestamp, group string, topic string, lag long, lag_seconds double"


def samples_of(*ages: tuple[float, int]) -> list[tuple[Any, ...]]:
    """Return samples (seconds ago, lag) of one group."""
    return [(ago(age), "g", "t", lag, age / 10) for age, lag in ages]


@nightly
def test_windows_show_how_lag_went(spark: SparkSession, tmp_path: Path) -> None:
    """Growth tells a group that catches up from one that is lost; the same for a stream."""
    rows = samples_of((290, 10), (200, 40), (10, 66), (-10, 7))
    samples = spark.createDataFrame(rows, SAMPLES)

    found = windowed(samples, "5 minutes").orderBy("window_start").collect()

    first, second = (row.asDict() for row in found)
    assert (first["samples"], first["lag_min"], first["lag_max"], first["lag_last"]) == (
        3,
        10,
        66,
        66,
    )
    assert first["growth"] == pytest.approx(56 / 280)
    assert first["lag_seconds_max"] == pytest.approx(29.0)
    assert (second["samples"], second["growth"]) == (1, None)

    source = tmp_path / "samples"
    samples.write.parquet(str(source))
    stream = spark.readStream.schema(SAMPLES).parquet(str(source))
    with pytest.raises(ValueError, match="needs watermark="):
        windowed(stream)
    query = (
        windowed(stream, "1 minute", slide="30 seconds", watermark="10 seconds")
        .writeStream.format("memory")
        .queryName("windows")
        .outputMode("append")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    closed = spark.table("windows").orderBy("window_start").collect()
    assert [(row["samples"], row["lag_last"]) for row in closed][:2] == [(1, 10), (1, 10)]


@nightly
def test_offsets_may_be_a_stream_of_commits(spark: SparkSession, tmp_path: Path) -> None:
    """Lag at each commit, for whoever follows the changes."""
    offsets = spark.createDataFrame([("g", "t", 0, 60)], OFFSETS)
    offsets.write.parquet(str(tmp_path / "commits"))
    ends = spark.createDataFrame([("t", 0, 50, ago(60)), ("t", 0, 100, ago(0))], ENDS)
    commits = spark.readStream.schema(OFFSETS).parquet(str(tmp_path / "commits"))

    with pytest.raises(ValueError, match="offsets is a stream"):
        partition_lag(commits, ends, missing=True)
    query = (
        partition_lag(commits, ends, at=NOW)
        .writeStream.format("memory")
        .queryName("commit_lag")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )

    assert query.awaitTermination(90)
    (row,) = spark.table("commit_lag").collect()
    assert (row["lag"], row["lag_seconds"]) == (40, pytest.approx(48.0))


@nightly
def test_a_wrong_table_is_refused_with_the_columns_it_has(spark: SparkSession) -> None:
    """The two tables are easily passed in the wrong order."""
    offsets = spark.createDataFrame([("g", "t", 0, 60)], OFFSETS)

    with pytest.raises(ValueError, match=r"ends has no column 'end_offset' \(there are group, top"):
        partition_lag(offsets, offsets)


@nightly
def test_ends_come_from_the_registry_and_from_a_log(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder
) -> None:
    """Nobody should have to write that reader."""
    feeder.append(25)
    with connect_blocking(coordinator.address, client_id="test") as client:
        client.register_topics({"orders": 2, "other": 1})
        client.report_end_offsets({TopicPartition("orders", 1): 40, TopicPartition("other", 0): 3})

    reported = registry_ends(spark, coordinator.address, pattern="ord.*").collect()
    bounds = log_ends(spark, {"log": "folder", "path": str(feeder.root)}, [TOPIC]).collect()

    assert [tuple(row)[:4] for row in reported] == [("orders", 1, None, 40)]
    assert [tuple(row)[:4] for row in bounds] == [(TOPIC, p, 0, 25) for p in range(4)]


@nightly
def test_ends_come_from_kafka(spark: SparkSession, kafka: Broker) -> None:
    """The usual place."""
    kafka.create("lag-orders", 2)
    kafka.produce("lag-orders", {1: ["a", "b", "c"]})
    config = {"bootstrap.servers": kafka.address}

    found = kafka_ends(spark, config, topics=["lag-orders"]).collect()

    assert [tuple(row)[:4] for row in found] == [("lag-orders", 0, 0, 0), ("lag-orders", 1, 0, 3)]
    with pytest.raises(ValueError, match="Kafka has no topic 'lag-unknown'"):
        kafka_ends(spark, config, topics=["lag-unknown"])


@nightly
def test_samples_that_are_kept_give_later_ones_their_seconds(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One look can't tell since when; two can."""
    offsets = spark.createDataFrame([("g", "t", 0, 60)], OFFSETS)

    def ends(end: int) -> DataFrame:
        return spark.createDataFrame([("t", 0, end)], "topic string, partition int, end_offset int")

    first = keep_sample(spark, offsets, ends(50), tmp_path, at=ago(60))
    second = keep_sample(spark, offsets, ends(100), tmp_path, at=NOW)

    assert [row["lag"] for row in first.partitions.collect()] == [0]
    (row,) = second.partitions.collect()
    assert (row["lag"], row["lag_seconds"]) == (40, pytest.approx(48.0))
    kept = read_samples(spark, tmp_path).orderBy("at").collect()
    assert [(row["group"], row["lag"]) for row in kept] == [("g", 0), ("g", 40)]
    assert read_ends(spark, tmp_path, since=ago(30)).count() == 1


@nightly
def test_a_watch_keeps_samples_until_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """A dashboard reads the folder."""
    told = []

    def take(session: SparkSession) -> tuple[DataFrame, DataFrame]:
        ends = session.createDataFrame([("t", 0, 9)], "topic string, partition int, end_offset int")
        return session.createDataFrame([("g", "t", 0, 4)], OFFSETS), ends

    query = watch(
        spark,
        take,
        tmp_path / "history",
        every="1 second",
        checkpoint=tmp_path / "checkpoint",
        then=lambda sample: told.append(sample.groups.count()),
    )
    try:
        wait_until("two samples", lambda: len(told) >= 2)
    finally:
        query.stop()

    assert {row["lag"] for row in read_samples(spark, tmp_path / "history").collect()} == {5}


def run(*arguments: str) -> tuple[int, str]:
    """Run the job here, in the session that there is."""
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


@nightly
def test_the_job_lists_who_is_behind_and_ends_as_asked(
    spark: SparkSession, coordinator: Daemon, tmp_path: Path
) -> None:
    """Cron, a terminal, and a script that reads JSON."""
    with connect_blocking(coordinator.address, client_id="test") as client:
        client.register_topics({"orders": 2})
        client.commit("etl", {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 40})
        client.commit("other", {TopicPartition("orders", 0): 20})
        client.report_end_offsets(
            {TopicPartition("orders", 0): 20, TopicPartition("orders", 1): 40}
        )
    history = str(tmp_path / "history")
    asked = ("--coordinator", coordinator.address, "--history", history)

    code, text = run(*asked, "--output", "json")
    assert code == 0, text
    first, second = (json.loads(line) for line in text.splitlines())
    assert (first["group"], first["lag"], first["worst_partition"]) == ("etl", 15, 0)
    assert (second["group"], second["lag"], second["unknown"]) == ("other", 0, 1)
    code, text = run(*asked, "--group", "etl", "--level", "partitions", "--max-lag", "10")
    assert code == 3
    assert text.splitlines()[0].split()[:4] == ["group", "topic", "partition", "lag"]
    assert text.splitlines()[1].split()[:4] == ["etl", "orders", "0", "15"]
    code, text = run("--history", history, "--window", "1 hour")
    assert code == 0, text
    assert "growth" in text


@nightly
def test_the_job_reads_tables_of_any_origin(spark: SparkSession, tmp_path: Path) -> None:
    """Offsets of a Kafka cluster, say, that something else exported."""
    spark.createDataFrame([("g", "t", 0, 4)], OFFSETS).write.parquet(str(tmp_path / "offsets"))
    spark.createDataFrame([("t", 0, 9, ago(0))], ENDS).write.parquet(str(tmp_path / "ends"))

    code, text = run("--offsets", str(tmp_path / "offsets"), "--ends", str(tmp_path / "ends"))

    assert code == 0, text
    assert text.splitlines()[1].split()[:3] == ["g", "t", "5"]


def lag_of_the_job(*arguments: str) -> int:
    """Return the lag in the only row that the job prints."""
    code, text = run(*arguments, "--output", "json")
    assert code == 0, text
    (row,) = map(json.loads, text.splitlines())
    return int(row["lag"])


def test_the_job_counts_ends_that_it_asks_a_log_for(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """An end that is a moment younger than the sample was left out, with all of the lag."""
    feeder.append(5_000)
    spark.createDataFrame([("g", TOPIC, 0, 0)], OFFSETS).write.parquet(str(tmp_path / "offsets"))
    log = ("--ends", "log", "--log", "log=folder", "--log", f"path={feeder.root}")

    assert lag_of_the_job("--offsets", str(tmp_path / "offsets"), *log, "--topic", TOPIC) == 5_000


@nightly
def test_the_job_counts_ends_that_it_asks_kafka_for(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    """The same at the usual place."""
    kafka.create("lag-asked", 1)
    kafka.produce("lag-asked", {0: ["row"] * 20_000})
    offsets = spark.createDataFrame([("g", "lag-asked", 0, 0)], OFFSETS)
    offsets.write.parquet(str(tmp_path / "offsets"))
    ends = ("--ends", "kafka", "--kafka", f"bootstrap.servers={kafka.address}")

    assert lag_of_the_job("--offsets", str(tmp_path / "offsets"), *ends) == 20_000


def test_an_end_from_a_clock_ahead_is_one_of_now(spark: SparkSession) -> None:
    """The coordinator, which says when an end was reported, runs on another machine."""
    offsets = spark.createDataFrame([("g", "t", 0, 4)], OFFSETS)
    ends = spark.createDataFrame([("t", 0, 9, ago(-5))], ENDS)

    (row,) = take_sample(spark, offsets, ends, None, at=NOW).partitions.collect()

    assert (row["lag"], row["lag_seconds"]) == (5, 0.0)


def test_the_job_lists_groups_whose_lag_nobody_knows(spark: SparkSession, tmp_path: Path) -> None:
    """An empty table says that nobody is behind."""
    offsets = [("g", "t", 0, 4), ("g", "u", 0, 4)]
    spark.createDataFrame(offsets, OFFSETS).write.parquet(str(tmp_path / "offsets"))
    spark.createDataFrame([("t", 0, 9, ago(0))], ENDS).write.parquet(str(tmp_path / "ends"))

    code, text = run("--offsets", str(tmp_path / "offsets"), "--ends", str(tmp_path / "ends"))

    assert code == 0, text
    listed = [line.split()[:3] for line in text.splitlines()[1:]]
    assert listed == [["g", "t", "5"], ["g", "u", "-"]]


@pytest.mark.nightly
def test_the_notebook_runs_as_a_script_and_leaves_its_plots(tmp_path: Path) -> None:
    """Whoever has no notebook at hand runs it first."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "lag_notebook.py")],
        cwd=tmp_path,
        env={**environment, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "lag.png").stat().st_size > 20_000
