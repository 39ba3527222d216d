"""What a run of groups says."""

import json
from collections.abc import Mapping

import pytest

from bench.group_rows import (
    ASSIGN_ROWS,
    GROUP_AIMS,
    GROUP_ROWS,
    KAFKA_CPU_S,
    SIZES,
    TITLES,
    document,
    failures,
    growth,
    markdown,
    other_table,
    rebalance_row,
    rebalance_table,
)
from bench.judging import Medians, judge
from bench.report import SMOKE_NOTE, Run, text

Samples = dict[str, list[Mapping[str, float | None]]]


def rebalance(members: int, cpu_s: float) -> dict[str, float | None]:
    """Return what one row of rebalances measures."""
    return {"members": members, "cpu_s": cpu_s, "wall_s": cpu_s, "wall_max_s": cpu_s}


def samples(**changed: Mapping[str, float | None]) -> Samples:
    """Return a run in which every aim is reached, most of them just so."""
    found: dict[str, Mapping[str, float | None]] = {
        rebalance_row(size): rebalance(size, size * 0.000_125) for size in SIZES
    }
    found["heartbeats_20000"] = {"server_busy": 0.5, "wrong": 0, "unanswered": 0}
    found["sticky_100"] = {"slowest_s": 0.1, "wrong": 0}
    found["sticky_1000"] = {"slowest_s": 3.0, "wrong": 0}
    found["endurance"] = {"grown_mb": 1.0, "before_mb": 40.0, "after_mb": 41.0}
    return {name: [sample] * 3 for name, sample in (found | changed).items()}


def run(found: Samples, *, quick: bool = False) -> Run:
    """Return a run with these samples."""
    return Run("sample", quick, "2026-01-01", {"CPU": "made up"}, {}, found, "python -m x")


def missed(found: Samples) -> list[str]:
    """Return the aims that are missed."""
    return [aim.name for aim in judge(Medians(found), GROUP_AIMS) if aim.reached is False]


def test_aims_are_reached_at_their_bound() -> None:
    """Kafka's number itself is good enough."""
    assert missed(samples()) == []


@pytest.mark.parametrize(
    ("row", "sample", "aims"),
    [
        ("rebalance_100", rebalance(100, 0.031), ["kafka_100"]),
        ("rebalance_1000", rebalance(1_000, 0.201), ["kafka_1000"]),
        ("rebalance_4000", rebalance(4_000, 0.501), ["kafka_4000"]),
        ("rebalance_10", rebalance(10, 0.000_5), ["growth_cpu", "growth_wall"]),
        ("heartbeats_20000", {"server_busy": 0.51}, ["heartbeats"]),
        ("sticky_100", {"slowest_s": 0.11}, ["sticky_100"]),
        ("sticky_1000", {"slowest_s": 3.1}, ["sticky_1000"]),
        ("endurance", {"grown_mb": 1.1}, ["endurance"]),
    ],
)
def test_each_aim_is_missed_just_beyond_its_bound(
    row: str, sample: Mapping[str, float | None], aims: list[str]
) -> None:
    """And only that one."""
    found = samples(**{row: sample})
    if row == "rebalance_10":  # Steeper everywhere: a point that is off bends the line too little.
        found |= {rebalance_row(n): [rebalance(n, 1e-6 * n**1.2)] for n in SIZES}
    assert missed(found) == aims


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.37, 2.0])
def test_the_growth_is_the_exponent_of_a_power_law(exponent: float) -> None:
    """Twice the members, twice the work: 1."""
    found = samples() | {rebalance_row(n): [rebalance(n, 3e-5 * n**exponent)] for n in SIZES}

    assert growth(Medians(found), "cpu_s") == pytest.approx(exponent)


def test_growth_without_a_size_is_not_known() -> None:
    """A line through fewer points would be another number under the same name."""
    found = samples()
    del found[rebalance_row(1_000)]

    assert growth(Medians(found), "cpu_s") is None


def test_every_row_has_a_title_of_its_own() -> None:
    """Two rows of one name would mix their samples."""
    assert len(TITLES) == len(GROUP_ROWS) + len(ASSIGN_ROWS) == len(set(TITLES.values()))
    assert set(KAFKA_CPU_S) <= set(SIZES)


@pytest.mark.parametrize("field", ["wrong", "unanswered"])
def test_a_run_with_wrong_answers_says_so(field: str) -> None:
    """Fast and wrong is not a result."""
    found = samples(heartbeats_20000={"server_busy": 0.1, field: 2.0})

    assert failures(found) == [f"{TITLES['heartbeats_20000']}: 6 {field}"]
    assert f"6 {field}" in markdown(run(found))
    assert failures(samples()) == []


def test_the_document_keeps_all_samples_beside_the_medians() -> None:
    """So that others can judge the spread for themselves."""
    row = json.loads(json.dumps(document(run(samples()))))["rows"]["endurance"]

    assert len(row["samples"]) == 3
    assert row["medians"]["grown_mb"] == 1.0


def test_the_page_has_aims_rows_and_how_to_repeat() -> None:
    """Nobody should need the code to read a result."""
    page = markdown(run(samples()))
    for line in (*(aim.title for aim in GROUP_AIMS), "made up", "python -m x"):
        assert line in page
    assert SMOKE_NOTE not in page
    assert SMOKE_NOTE in markdown(run(samples(), quick=True))


def test_tables_are_aligned() -> None:
    """All lines have all columns."""
    for lines in (rebalance_table(Medians(samples())), other_table(Medians(samples()))):
        assert {len(line) for line in lines} == {len(lines[0])}
        assert text(lines)
