"""The parts of the story that need no processes."""

import pytest

from demo.group import Eviction
from demo.names import FLIGHTS
from demo.processes import Line, parse_line
from demo.story import KillMidBatch, wrong


def written(batch: int, rows: int) -> Line:
    """Return the event of a written batch."""
    return Line("driver-1", "batch.written", {"batch": batch, "rows": rows})


def test_the_kill_waits_for_a_batch_with_rows() -> None:
    """An empty batch in flight would prove nothing."""
    kills: list[str] = []
    killer = KillMidBatch(lambda: kills.append("killed"))

    killer(written(1, 10))
    assert (kills, killer.batch) == ([], None)

    killer.armed = True
    killer(Line("driver-1", "batch.begun", {"batch": 2}))
    killer(written(2, 0))
    assert (kills, killer.batch) == ([], None)

    killer(written(3, 10))
    killer(written(4, 10))
    assert (kills, killer.batch) == (["killed"], written(3, 10))


def test_output_that_is_no_event_is_passed_over() -> None:
    """Spark and Java print what they like."""
    assert parse_line("x", '{"event": "ready", "n": 1}') == Line(
        "x", "ready", {"event": "ready", "n": 1}
    )
    for text in ("Picked up JAVA_TOOL_OPTIONS", "[]", "3", '{"event": 3}', "{"):
        assert parse_line("x", text) is None


RIGHT = {"flights": FLIGHTS, "rows": FLIGHTS, "different": FLIGHTS, "missing": 0, "foreign": 0}
EVICTED = [Eviction("one", "session expired")]


def test_each_flight_once_after_an_eviction_is_well() -> None:
    """The one end that the demo may have."""
    assert wrong(RIGHT, EVICTED) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"missing": 1}, "1 flights are missing"),
        ({"foreign": 2}, "2 rows of the table are too many"),
        ({"rows": FLIGHTS + 5}, "rows: 336,781 in place of 336,776"),
        ({"different": FLIGHTS - 1}, "different: 336,775 in place of 336,776"),
        ({"flights": 0}, "flights: 0 in place of"),
    ],
)
def test_a_row_too_few_or_too_many_is_found(found: dict[str, int], said: str) -> None:
    """Nothing is removed before it is counted."""
    (problem,) = wrong(RIGHT | found, EVICTED)

    assert problem.startswith(said)


def test_a_demo_in_which_nobody_was_evicted_proved_nothing() -> None:
    """The kill is what it shows."""
    assert wrong(RIGHT, []) == ["the coordinator recorded no eviction of the killed driver"]
