"""The parts of the story that need no processes."""

from demo.processes import Line, parse_line
from demo.story import KillMidBatch


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
