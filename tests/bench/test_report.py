"""What a run's result says."""

import json
from collections.abc import Mapping

import pytest

from bench.report import SMOKE_NOTE, Run, document, failures, markdown, table, text
from bench.rows import AIMS, CEILINGS, FLOOR, IDLE_MEMORY, ROWS, Medians, judge

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


def samples(**changed: list[dict[str, float | None]]) -> dict[str, list[dict[str, float | None]]]:
    """A run in which every aim is reached just so."""
    found = {row.name: [sample(1000.0), sample(1100.0), sample(900.0)] for row in ROWS}
    found["commit_64"] = [sample(350.0), sample(350.0), sample(1.0)]
    found["fetch_64"] = [sample(600.0), sample(5000.0), sample(600.0)]
    found["commit_1"] = [sample(1.0, p50_us=740.0)] * 3
    found[FLOOR] = [sample(1.0, p50_us=340.0)] * 3
    found[IDLE_MEMORY] = [{"resident_mb": 60.0}] * 3
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
    return {judged.name: judged.reached for judged in judge(Medians(found))}


def test_aims_are_reached_at_their_bound_and_judged_by_medians() -> None:
    """One lucky or unlucky repetition decides nothing."""
    assert verdicts(samples()) == dict.fromkeys([aim.name for aim in AIMS], True)


@pytest.mark.parametrize(
    ("aim", "row", "value"),
    [
        ("commit_ratio", "commit_64", sample(349.0)),
        ("fetch_ratio", "fetch_64", sample(599.0)),
        ("commit_over_floor", "commit_1", sample(1.0, p50_us=741.0)),
        ("idle_memory", IDLE_MEMORY, {"resident_mb": 60.1}),
    ],
)
def test_each_aim_is_missed_just_beyond_its_bound(
    aim: str, row: str, value: dict[str, float | None]
) -> None:
    """And only that one."""
    found = verdicts(samples(**{row: [value]}))
    assert [name for name, reached in found.items() if not reached] == [aim]


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
    found = samples(commit_256=[sample(1000.0, **{field: 2})])
    assert failures(found) == [f"commit, 256 connections: 2 {field}"]
    assert f"2 {field}" in markdown(run(found))
    assert failures(samples()) == []


def test_the_document_keeps_all_samples_beside_the_medians() -> None:
    """So that others can judge the spread for themselves."""
    content = json.loads(json.dumps(document(run(samples()))))
    row = content["rows"]["commit_64"]
    assert [s["rate_per_s"] for s in row["samples"]] == [350.0, 350.0, 1.0]
    assert row["medians"]["rate_per_s"] == 350.0
    assert row["spread"]["rate_per_s"] == [1.0, 350.0]
    assert row["of_its_echo"] == pytest.approx(0.35)


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
    lines = table(run(samples()))
    assert {len(line) for line in lines} == {len(lines[0])}
    assert text([("a", "bb"), ("ccc", "d")]) == "a    bb\nccc   d"
