"""What a run's result says."""

import json
from collections.abc import Mapping

import pytest

from bench.aims import AIMS
from bench.judging import Medians, judge
from bench.report import SMOKE_NOTE, Run, document, failures, markdown, other_table, table, text
from bench.rows import (
    BEFORE_COMPACTION,
    CEILINGS,
    FILLED_MEMORY,
    FLOOR,
    IDLE_MEMORY,
    KAFKA_START,
    LOADED_MEMORY,
    ROWS,
    START,
    START_FLOOR,
    WHILE_COMPACTING,
)

Sample = Mapping[str, float | None]


def sample(rate_per_s: float, p50_us: float = 100.0, **other: float) -> dict[str, float | None]:
    """What the load generator prints, as far as the report needs it."""
    return {
        "rate_per_s": rate_per_s,
        "p50_us": p50_us,
        "p99_us": 2 * p50_us,
        "max_us": 3 * p50_us,
        "wrong": 0,
        "unanswered": 0,
        "differences": 0,
        "server_busy": 0.9,
        **other,
    }


# Rates at which every aim is reached just so; the others run at 1000.
RATES: Mapping[str, float] = {
    "echo_commit_64": 5000.0,
    "commit_64": 2000.0,
    "zookeeper_commit_64": 2000.0,
    "kafka_fsync_commit_64": 2000 / 3.5,
    "filled_commit_64": 1700.0,
    "commit_256": 1300.0,
    "commit_64_p100": 1500.0,
    "commit_8x64": 60_000.0,
    "zookeeper_commit_8x64": 30_000.0,
    "commit_8x64_p100": 800.0,
    "fetch_64": 1200.0,
    "echo_fetch_64": 2000.0,
    "filled_fetch_64": 1020.0,
    "echo_heartbeat_64": 1000 / 0.6,
}


def samples(**changed: list[dict[str, float | None]]) -> dict[str, list[dict[str, float | None]]]:
    """A run in which every aim is reached just so."""
    found = {}
    for row in ROWS:
        rate = RATES.get(row.name, 1000.0)
        found[row.name] = [sample(rate), sample(1.1 * rate), sample(0.9 * rate)]
    found["commit_1"] = [sample(1.0, p50_us=640.0)] * 3
    found[FLOOR] = [sample(1.0, p50_us=340.0)] * 3
    found[IDLE_MEMORY] = [{"resident_mb": 60.0}] * 3
    found[LOADED_MEMORY] = [{"resident_mb": 70.0}] * 3
    found[FILLED_MEMORY] = [{"resident_mb": 400.0, "bytes_per_offset": 340.0}]
    found[START] = [{"start_s": 3.5, "load_s": 3.0, "resident_mb": 1.0, "bytes_per_offset": 350.0}]
    found[START_FLOOR] = [{"seconds": 1.0}]
    found[KAFKA_START] = [{"start_s": 14.0, "serving_s": 13.0, "resident_mb": 900.0}]
    found[BEFORE_COMPACTION] = [sample(1.0, p50_us=1000.0)] * 3
    found[WHILE_COMPACTING] = [sample(1.0, p50_us=2000.0, seconds=9.0)] * 3
    return found | changed


def run(found: dict[str, list[dict[str, float | None]]], *, quick: bool = False) -> Run:
    """A run with these samples."""
    return Run(
        name="sample",
        quick=quick,
        started="2026-01-01 00:00 UTC",
        environment={"CPU": "made up"},
        settings={"repetitions": 3},
        samples=found,
        repeat="python -m bench.run",
    )


def verdicts(found: dict[str, list[dict[str, float | None]]]) -> dict[str, bool | None]:
    """Say by aim whether it is reached."""
    return {judged.name: judged.reached for judged in judge(Medians(found), AIMS)}


def test_aims_are_reached_at_their_bound_and_judged_by_medians() -> None:
    """One lucky or unlucky repetition decides nothing."""
    assert verdicts(samples()) == dict.fromkeys([aim.name for aim in AIMS], True)


@pytest.mark.parametrize(
    ("aim", "row", "value"),
    [
        ("commit_64/kafka_commit_64", "kafka_commit_64", sample(1001.0)),
        ("commit_256/kafka_commit_256", "kafka_commit_256", sample(1001.0)),
        ("commit_64_p100/kafka_commit_64_p100", "kafka_commit_64_p100", sample(1001.0)),
        ("commit_over_floor", "commit_1", sample(1.0, p50_us=641.0)),
        ("commit_64/kafka_fsync_commit_64", "kafka_fsync_commit_64", sample(572.0)),
        ("commit_64/zookeeper_commit_64", "zookeeper_commit_64", sample(2001.0)),
        ("commit_8x64/kafka_commit_8x64", "kafka_commit_8x64", sample(1001.0)),
        ("commit_8x64/zookeeper_commit_8x64", "zookeeper_commit_8x64", sample(30_001.0)),
        ("commit_8x64_p100/redis_commit_8x64_p100", "redis_commit_8x64_p100", sample(1001.0)),
        ("fetch_64/kafka_fetch_64", "kafka_fetch_64", sample(1001.0)),
        ("fetch_64_p100/kafka_fetch_64_p100", "kafka_fetch_64_p100", sample(1001.0)),
        ("heartbeat_64/echo_heartbeat_64", "echo_heartbeat_64", sample(1667.0)),
        ("fetch_64/echo_fetch_64", "echo_fetch_64", sample(2001.0)),
        ("commit_64/echo_commit_64", "echo_commit_64", sample(5001.0)),
        ("filled_commit_64/commit_64", "filled_commit_64", sample(1699.0)),
        ("filled_fetch_64/fetch_64", "filled_fetch_64", sample(1019.0)),
        ("load_of_floor", START_FLOOR, {"seconds": 0.99}),
        ("start_of_kafka", KAFKA_START, {"start_s": 13.9}),
        ("compaction_p99", BEFORE_COMPACTION, sample(1.0, p50_us=999.0)),
        ("idle_memory", IDLE_MEMORY, {"resident_mb": 60.1}),
    ],
)
def test_each_aim_is_missed_just_beyond_its_bound(
    aim: str, row: str, value: dict[str, float | None]
) -> None:
    """And only that one."""
    found = verdicts(samples(**{row: [value]}))
    assert [name for name, reached in found.items() if not reached] == [aim]


def test_a_log_that_loads_too_slowly_or_takes_too_much_memory_misses_these_aims() -> None:
    """They are fields of one row, and the load has two aims."""
    slow: dict[str, float | None] = {
        "start_s": 3.5,
        "load_s": 3.01,
        "resident_mb": 1.0,
        "bytes_per_offset": 350.1,
    }
    found = verdicts(samples(**{START: [slow]}))
    missed = [name for name, reached in found.items() if not reached]
    assert missed == ["load_of_floor", "load_s", "offset_bytes"]


def test_an_aim_is_judged_by_medians_and_shown_with_its_spread() -> None:
    """The spread is of the repetitions, each held against its own weather."""
    ours = [sample(rate) for rate in (2000.0, 3000.0, 100.0)]
    peers = [sample(rate) for rate in (1000.0, 1000.0, 50.0)]
    found = samples(commit_64=ours, kafka_commit_64=peers)
    (judged,) = [
        one for one in judge(Medians(found), AIMS) if one.name.endswith("/kafka_commit_64")
    ]
    assert judged.value == pytest.approx(2.0)
    assert judged.spread == pytest.approx((2.0, 3.0))
    assert "2.00 to 3.00" in markdown(run(found))


def test_without_a_peer_its_aims_are_not_measured_and_the_others_are() -> None:
    """A machine without Kafka still tells how far the echo is."""
    found = {name: one for name, one in samples().items() if "kafka" not in name}
    judged = {one.name: one.reached for one in judge(Medians(found), AIMS)}
    assert {name for name, reached in judged.items() if reached is None} == {
        name for name in judged if "kafka" in name
    }


def test_a_peers_row_says_whose_it_is() -> None:
    """Two rows of the same load would look alike otherwise."""
    titles = [row.title for row in ROWS]
    assert len(set(titles)) == len(titles)


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    """A system without /proc tells no memory."""
    untold: dict[str, float | None] = {"resident_mb": None}
    assert verdicts(samples(**{IDLE_MEMORY: [untold]}))["idle_memory"] is None


def test_every_ceiling_is_a_row() -> None:
    """A misspelt one would silently give no ratio."""
    names = {row.name for row in ROWS}
    assert len(names) == len(ROWS)
    assert set(CEILINGS) | set(CEILINGS.values()) <= names


@pytest.mark.parametrize("field", ["wrong", "unanswered", "differences"])
def test_a_run_with_failed_requests_says_so(field: str) -> None:
    """Fast and wrong is not a result."""
    found = samples(kafka_commit_256=[sample(1000.0, **{field: 2})])
    assert failures(found) == [f"commit, 256 connections: Kafka: 2 {field}"]
    assert f"2 {field}" in markdown(run(found))
    assert failures(samples()) == []


def test_the_document_keeps_all_samples_beside_the_medians() -> None:
    """So that others can judge the spread for themselves."""
    content = json.loads(json.dumps(document(run(samples()))))
    row = content["rows"]["commit_64"]
    assert [s["rate_per_s"] for s in row["samples"]] == [2000.0, 2200.0, 1800.0]
    assert row["medians"]["rate_per_s"] == 2000.0
    assert row["spread"]["rate_per_s"] == [1800.0, 2200.0]
    assert row["of_its_echo"] == pytest.approx(0.4)


def test_the_page_has_aims_rows_environment_and_how_to_repeat() -> None:
    """Nobody should need the code to read a result."""
    page = markdown(run(samples()))
    for row in ROWS:
        assert row.title in page
    for aim in AIMS:
        assert aim.title in page
    assert "made up" in page
    assert "python -m bench.run" in page
    assert SMOKE_NOTE not in page


def test_a_smoke_run_says_that_its_numbers_mean_nothing() -> None:
    """Somebody will quote them otherwise."""
    assert SMOKE_NOTE in markdown(run(samples(), quick=True))


def test_tables_are_aligned() -> None:
    """All lines have all columns."""
    for lines in (table(run(samples())), other_table(run(samples()))):
        assert {len(line) for line in lines} == {len(lines[0])}
    assert text([("a", "bb"), ("ccc", "d")]) == "a    bb\nccc   d"
