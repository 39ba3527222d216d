"""What the demo shows."""

import io

from rich.console import Console

from demo.view import NOTHING, Driver, Partition, Snapshot, View, plain, render

NOW = Snapshot(
    "Stable",
    7,
    (Driver("driver-1", "killed", 4, 900), Driver("driver-2", "working", 12, 61_234)),
    (Partition(0, "driver-2", 1_000, 2_500), Partition(1, "", 0, 10)),
    336_776,
)


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    """Return a console that writes to memory."""
    out = io.StringIO()
    return Console(file=out, width=120, force_terminal=terminal, highlight=False), out


def test_the_plain_line_has_all_that_matters() -> None:
    """A log file of the demo must tell the story too."""
    assert plain(NOW) == (
        "generation 7, Stable | driver-1 killed [], driver-2 working [0] | "
        "committed 1,000 of 336,776, lag 1,510"
    )


def test_before_the_first_member_there_is_no_group() -> None:
    """A generation of -1 would puzzle the reader."""
    assert plain(NOW._replace(generation=-1, state="Dead")).startswith("no group yet |")


def test_the_table_shows_members_partitions_offsets_and_lag() -> None:
    """That is what an operator looks for."""
    shown, out = console(terminal=False)
    shown.print(render(NOW))

    text = out.getvalue()
    for part in ("generation 7", "driver-2", "61,234", "1,000", "2,500", "1,500", "336,776"):
        assert part in text


def test_without_a_terminal_lines_come_seldom() -> None:
    """A table four times a second would fill a log file."""
    shown, out = console(terminal=False)
    with View(shown) as view:
        for _ in range(100):
            view.show(NOW)
        view.tell("the end")

    assert [line.split("s  ", 1)[1] for line in out.getvalue().splitlines()] == [
        plain(NOW),
        "the end",
    ]


def test_nothing_is_shown_before_there_is_something() -> None:
    """An empty table is noise."""
    shown, out = console(terminal=False)
    with View(shown) as view:
        view.show(NOTHING)

    assert out.getvalue() == ""


def test_on_a_terminal_the_story_stands_above_the_table() -> None:
    """Lines that are printed meanwhile must not break the table."""
    shown, out = console(terminal=True)
    with View(shown) as view:
        view.show(NOW)
        view.tell("driver-1 is killed")

    text = out.getvalue()
    assert "driver-1 is killed" in text
    assert text.rindex("generation 7") > text.index("driver-1 is killed")
