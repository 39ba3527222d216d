"""What a run of the Spark rows says, and what its arithmetic makes of batches."""

import json
from collections.abc import Mapping, Sequence

import pytest

from bench.judging import Medians, judge
from bench.processes import ProcessError
from bench.report import SMOKE_NOTE, Run, text
from bench.spark_cost import SIZES, row_name, summary
from bench.spark_pauses import (
    EVENTS,
    JOIN,
    KILL,
    LEAVE,
    PARTITIONS,
    SESSION_TIMEOUT_MS,
    Batch,
    pauses,
)
from bench.spark_rows import (
    COLD_JOIN,
    RATE_TITLES,
    SPARK_AIMS,
    TITLES,
    cost_table,
    document,
    failures,
    markdown,
    pause_table,
    rate_table,
)

# The logs; each is held against Spark's own source of such rows.
HALF_AS_FAST = {
    "folder_log": "spark_files",
    "files_log_parquet": "spark_files",
    "files_log_json": "spark_json",
    "files_log_lines": "spark_text",
    "kafka_log": "spark_kafka",
}

Samples = dict[str, list[Mapping[str, float | None]]]


def batch(milliseconds: float) -> dict[str, float | None]:
    """Return what one row of batches measures."""
    return {
        "batch_ms": milliseconds + 50,
        "outside_ms": milliseconds,
        "latest_offset_ms": 9,
        "wrong": 0,
    }


def rate(per_s: float, seconds: float = 1.0) -> dict[str, float | None]:
    """Return what one row of rows a second measures."""
    return {"rate_per_s": per_s, "seconds": seconds, "wrong": 0}


def pause(moved_s: float, limit_s: float = 0.5) -> dict[str, float | None]:
    """Return what an event costs."""
    over = moved_s - limit_s
    return {"moved_s": moved_s, "stayed_s": 0.5, "limit_s": limit_s, "over_s": over}


def samples(**changed: Mapping[str, float | None]) -> Samples:
    """Return a run in which every aim is reached just so."""
    found: dict[str, Mapping[str, float | None]] = {}
    for size in SIZES:
        found[row_name("plain", size)] = batch(100)
        found[row_name("coordinated", size)] = batch(130)
    found |= {name: rate(1_000_000) for name in RATE_TITLES}
    found |= {name: rate(500_000) for name in HALF_AS_FAST}
    found["group_offsets"] = rate(800_000, 2.0)
    made = {name: [sample] * 3 for name, sample in (found | changed).items()}
    return made | {name: [pause(0.1 * n) for n in range(1, 21)] for name in (COLD_JOIN, *EVENTS)}


def run(found: Samples, *, quick: bool = False) -> Run:
    """Return a run with these samples."""
    return Run("sample", quick, "2026-01-01", {"CPU": "made up"}, {}, found, "python -m x")


def missed(found: Samples) -> list[str]:
    """Return the aims that are missed."""
    return [aim.name for aim in judge(Medians(found), SPARK_AIMS) if aim.reached is False]


def test_aims_are_reached_at_their_bound() -> None:
    """The number itself is good enough."""
    assert missed(samples()) == []
    assert all(aim.reached for aim in judge(Medians(samples()), SPARK_AIMS))


@pytest.mark.parametrize(
    ("row", "sample", "aims"),
    [
        *((row_name("coordinated", size), batch(131), [f"cost_{size}"]) for size in SIZES),
        *((name, rate(490_000), [f"{name}/{own}"]) for name, own in HALF_AS_FAST.items()),
        ("group_offsets", rate(800_000, 2.1), ["group_offsets_s"]),
        ("group_offsets", rate(790_000, 1.9), ["group_offsets/made_up_table"]),
    ],
)
def test_each_aim_is_missed_just_beyond_its_bound(
    row: str, sample: Mapping[str, float | None], aims: list[str]
) -> None:
    """And only that one."""
    assert missed(samples(**{row: sample})) == aims


def test_a_part_that_was_not_run_is_not_judged() -> None:
    """Nothing is reached by not being measured."""
    only = {name: found for name, found in samples().items() if name in EVENTS}

    assert {aim.reached for aim in judge(Medians(only), SPARK_AIMS)} == {None}
    assert len(cost_table(Medians(only))) == len(rate_table(Medians(only))) == 1


def test_every_row_has_a_title_of_its_own() -> None:
    """Two rows of one name would mix their samples."""
    assert len(TITLES) == len(set(TITLES.values()))
    assert set(samples()) == set(TITLES)


def test_the_table_of_pauses_shows_how_they_are_distributed() -> None:
    """A median alone would hide the one that hurts."""
    lines = text(pause_table(samples())).splitlines()

    assert lines[1].split()[-8:] == ["20", "1.05", "1.80", "2.00", "0.50", "0.55", "0.50", "0.50"]
    assert len(lines) == 1 + len(EVENTS) + 1


def test_the_page_has_every_table_and_how_to_repeat() -> None:
    """Nobody should need the code to read a result."""
    page = markdown(run(samples()))
    for line in (*(aim.title for aim in SPARK_AIMS), "made up", "python -m x", "a driver stops"):
        assert line in page
    assert SMOKE_NOTE not in page
    assert SMOKE_NOTE in markdown(run(samples(), quick=True))
    assert len(json.loads(json.dumps(document(run(samples()))))["rows"][JOIN]["samples"]) == 20


def test_a_run_with_wrong_rows_says_so() -> None:
    """Fast and wrong is not a result."""
    found = samples(folder_log={**rate(1_000_000), "wrong": 7})

    assert failures(found) == ["folder log: 21 wrong"]
    assert failures(samples()) == []


def test_a_summary_takes_medians_and_counts_batches_of_another_size() -> None:
    """A batch without all partitions is less work, so it must not count as the same."""
    times = {"triggerExecution": 300, "addBatch": 200, "latestOffset": 12}
    full = {"numInputRows": 60, "durationMs": times}
    slow = {"numInputRows": 60, "durationMs": {**times, "triggerExecution": 900}}
    short = {"numInputRows": 50, "durationMs": times}

    assert summary([full, slow, short], 6) == {
        "batches": 3,
        "batch_ms": 300,
        "outside_ms": 100,
        "latest_offset_ms": 12,
        "wrong": 1,
    }


def made(*taken: tuple[float, str, Sequence[int]]) -> list[Batch]:
    """Return batches."""
    return [Batch(at_s, driver, frozenset(partitions)) for at_s, driver, partitions in taken]


ALL, LOW, HIGH = range(PARTITIONS), range(3), range(3, PARTITIONS)
SHARES = (("a", LOW), ("b", HIGH))


def test_a_pause_is_the_longest_time_between_two_batches_around_the_event() -> None:
    """Of the partitions that moved, and of those that stayed, apart."""
    batches = made(
        (1.0, "a", ALL),
        (1.5, "a", ALL),
        (2.0, "a", ALL),  # The event: 2.1.
        (2.5, "a", LOW),
        (3.3, "a", LOW),
        (4.0, "b", HIGH),
        (4.1, "a", LOW),
        (4.5, "b", HIGH),
    )

    assert pauses(batches, JOIN, 2.1) == pytest.approx(
        {"moved_s": 2.0, "stayed_s": 0.8, "batch_s": 0.5, "limit_s": 0.5, "over_s": 1.5}
    )


def test_a_kill_can_not_be_noticed_before_the_session_is_over() -> None:
    """So that much is no fault of the hand-over."""
    batches = made(
        *((at_s, driver, share) for at_s in (1.0, 1.5) for driver, share in SHARES),
        (2.0, "a", LOW),
        (6.5, "a", ALL),
    )

    measured = pauses(batches, KILL, 1.6)

    assert measured["limit_s"] == 0.5 + SESSION_TIMEOUT_MS / 1000
    assert measured["over_s"] == 6.5 - 1.5 - 3.5
    assert measured["stayed_s"] == 4.5


def test_events_that_moved_nothing_or_lost_a_partition_are_no_measurement() -> None:
    """A number made from nothing would look very good."""
    quiet = made(*((at_s, "a", ALL) for at_s in (1.0, 1.5, 2.0)))

    with pytest.raises(ProcessError, match="no partition moved"):
        pauses(quiet, LEAVE, 1.6)
    with pytest.raises(ProcessError, match="partition 3 made no progress"):
        pauses([*quiet[:2], *made((2.0, "b", LOW))], LEAVE, 1.6)
