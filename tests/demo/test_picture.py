"""The picture of a run."""

from pathlib import Path

from demo.picture import History, Span, draw, spans
from demo.view import Partition, Snapshot


def look(*owners: str, lag: int = 0) -> Snapshot:
    """Return a group whose partitions have these owners."""
    partitions = tuple(Partition(n, owner, 0, lag) for n, owner in enumerate(owners))
    return Snapshot("Stable", 1, (), partitions, 10)


def test_a_span_lasts_as_long_as_nobody_else_has_the_partition() -> None:
    """A take-over must be seen where it was."""
    looks = [
        (0.0, look("", "a")),
        (1.0, look("a", "a")),
        (2.0, look("a", "b")),
        (3.0, look("", "b")),
    ]

    assert spans(looks) == [
        Span(1, "a", 0.0, 2.0),
        Span(0, "a", 1.0, 3.0),
        Span(1, "b", 2.0, 3.0),
    ]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    """With and without anything in it."""
    history = History()
    draw(history, tmp_path / "empty.png")
    history.look(0.0, look("a", "b", lag=5))
    history.look(1.0, look("", "b", lag=3))
    history.mark(0.5, "a killed")
    draw(history, tmp_path / "full.png")

    for name in ("empty.png", "full.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
