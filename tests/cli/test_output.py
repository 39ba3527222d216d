"""Results for people and for programs, and names that would like to be more than names."""

import csv
import io
import itertools
import json
import re
import sys
import time

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from rich.console import Console

from coordinator.cli.common import AskFailed, show
from coordinator.cli.main import main
from coordinator.cli.output import Output, Table, at_least, print_table, styled, tracked
from coordinator.names import QUOTED_CHARS_MAX, did_you_mean, escaped, quoted
from tests.fakes.command_line import Terminal

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name not in {"-", ""})
ROWS = st.lists(st.tuples(NAMES, st.integers(0) | st.none()), max_size=5)
COLUMNS = ("GROUP-ID", "#MEMBERS")


def printed(form: str, rows: list[tuple[str, int | None]]) -> str:
    """Return what `Output.show` prints."""
    runner = CliRunner()
    with runner.isolation() as (stdout, *_):
        Output(form).show(COLUMNS, rows)
        sys.stdout.flush()
        return stdout.getvalue().decode()


@given(ROWS)
def test_json_has_every_name_as_it_is(rows: list[tuple[str, int | None]]) -> None:
    """A program needs the name itself; a terminal that shows it gets ASCII only."""
    text = printed("json", rows)

    assert text.isascii()
    assert json.loads(text) == [{"group_id": name, "members": count} for name, count in rows]


@given(ROWS)
def test_csv_has_a_line_for_each_row(rows: list[tuple[str, int | None]]) -> None:
    """Whatever is in a name: a comma, a quote, the end of a line."""
    text = printed("csv", rows)

    assert all(line.isprintable() for line in text.split("\n"))
    assert list(csv.reader(io.StringIO(text))) == [
        ["group_id", "members"],
        *([escaped(name), "" if count is None else str(count)] for name, count in rows),
    ]


@given(ROWS)
def test_a_table_has_a_line_for_each_row_and_commands_no_terminal(
    rows: list[tuple[str, int | None]],
) -> None:
    """Names are whatever a client sends."""
    lines = printed("table", rows).split("\n")

    assert len(lines) == len(rows) + 2
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("name", ["[bold red]x[/]", "[link=file:///x]y[/link]", ":smile:", "[/]"])
def test_nothing_in_a_name_is_markup(name: str) -> None:
    """On a terminal the table is styled, and its cells are not."""
    terminal = Terminal()
    print_table(Table(("[red]GROUP",), [(name,)]), terminal)

    assert name in terminal.getvalue()
    assert "[red]GROUP" in terminal.getvalue()


def test_a_hostile_name_commands_no_terminal_that_is_styled_for() -> None:
    """The styles are ours alone."""
    terminal = Terminal()
    print_table(Table(("GROUP",), [("\x1b[2Jevil\u202e",)]), terminal)

    assert "\\x1b[2Jevil" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()
    assert "\u202e" not in terminal.getvalue()


def test_a_narrow_terminal_cuts_names_and_no_numbers() -> None:
    """Whoever watches a lag in a corner of the screen watches numbers."""
    table = Table(("GROUP", "STATE", "#MEMBERS", "LAG"), [("g" * 80, "Stable", 12, 1_234_567)])
    terminal = Terminal()
    Console(file=terminal, width=40).print(styled(table, 40))

    head, row, end = terminal.getvalue().split("\n")
    assert re.search("GROUP .* #MEM… .* LAG", re.sub(r"\x1b\[\d*m", "", head))
    assert re.fullmatch("g{9,}… +Stable +12 +1234567 *", row)
    assert len(row) <= 40
    assert end == ""


def test_a_number_that_is_known_in_part_stands_among_the_numbers() -> None:
    """To the right, and not cut: it is the lag that one looks at."""
    table = Table(("GROUP", "LAG"), [("g" * 80, at_least(7)), ("h", 1_234), ("i", -1)])
    terminal = Terminal()
    Console(file=terminal, width=30).print(styled(table, 30))

    assert [line[-6:].strip() for line in terminal.getvalue().split("\n")[1:4]] == [
        "≥ 7",
        "1234",
        "-",
    ]


def test_many_rows_are_not_styled() -> None:
    """It would take minutes for the partitions of a large group."""
    terminal = Terminal()
    print_table(Table(("N",), [(n,) for n in range(100_000)]), terminal)

    assert terminal.getvalue().count("\n") == 100_001


def test_plain_columns_are_as_wide_as_they_need() -> None:
    """Scripts read them with cut and awk."""
    assert printed("table", [("a", 1), ("bcdefghij", None)]) == (
        "GROUP-ID   #MEMBERS\na          1\nbcdefghij  -\n"
    )


def test_a_bar_yields_everything_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal or not."""
    assert list(tracked(range(100), "Deleting")) == list(range(100))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    assert list(tracked(range(100), "[red]Deleting")) == list(range(100))


class Looks:
    """What is seen at each look; the last one is followed by Ctrl-C."""

    def __init__(self, *seen: str | AskFailed) -> None:
        self._seen = iter(seen)
        self._left = len(seen)

    def __call__(self) -> Table:
        """Look once more."""
        self._left -= 1
        seen = next(self._seen)
        if isinstance(seen, AskFailed):
            raise seen
        return Table(("GROUP",), [(seen,)])

    def sleep(self, _: float) -> None:
        """Wait for the next look, or be ended."""
        if not self._left:
            raise KeyboardInterrupt


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Return three looks, of which the second fails."""
    found = Looks("one", AskFailed("[red]gone\x1b[2J"), "two")
    monkeypatch.setattr(time, "sleep", found.sleep)
    return found


def test_watching_without_a_terminal_prints_one_table_after_the_other(
    looks: Looks, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restart of the coordinator ends no watch; Ctrl-C does, as it is meant to."""
    show(Output(), looks, 1.0)

    told = capsys.readouterr()
    assert told.out == "GROUP\none\n\nGROUP\ntwo\n"
    assert told.err == "[red]gone\\x1b[2J\n"


def test_an_outage_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A night of it would fill the file that the watch is written to."""
    looks = Looks("one", *[AskFailed("gone")] * 3, AskFailed("loading"), "two", AskFailed("gone"))
    monkeypatch.setattr(time, "sleep", looks.sleep)
    show(Output(), looks, 1.0)

    assert capsys.readouterr().err.splitlines() == ["gone", "loading", "gone"]


def test_watching_on_a_terminal_draws_over_what_was_there(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last table stays."""
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show(Output(), looks, 1.0)

    assert "[red]gone\\x1b[2J" in terminal.getvalue()
    assert "two" in terminal.getvalue().rpartition("GROUP")[2]
    assert "\x1b[2J" not in terminal.getvalue()


def test_watching_on_a_terminal_that_only_prints_shows_one_table_below_the_other(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell in an editor draws over nothing; there the tables came only at the end."""
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    show(Output(), looks, 1.0)

    assert terminal.getvalue().count("GROUP") == 2
    assert "one" in terminal.getvalue()
    assert "two" in terminal.getvalue()


def test_a_first_look_that_fails_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong address would be watched for ever."""
    with pytest.raises(AskFailed):
        show(Output(), Looks(AskFailed("nobody")), 1.0)


@given(st.text())
def test_a_quoted_name_is_harmless_and_short(name: str) -> None:
    """It stands in the middle of a sentence."""
    assert quoted(name).isprintable()
    assert len(quoted(name)) <= QUOTED_CHARS_MAX + 3


@given(st.text(max_size=300), st.lists(st.text(max_size=300), max_size=20))
def test_only_what_is_there_is_suggested(name: str, known: list[str]) -> None:
    """A suggestion that leads nowhere is worse than none."""
    hint = did_you_mean(name, known)

    assert hint.isprintable()
    assert not hint or any(quoted(one) in hint for one in known if one != name)
    assert hint == did_you_mean(name, [one for one in known if one != name])


def test_a_name_is_never_suggested_for_itself() -> None:
    """It came between the question and the look at all names."""
    assert did_you_mean("orders", ["orders"]) == ""
    assert did_you_mean("orders", ["orders", "Orders"]) == " Did you mean 'Orders'?"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("biling", " Did you mean 'billing'?"),
        ("BILLING", " Did you mean 'billing'?"),
        ("audit", ""),
        ("b" * 10_000, ""),
    ],
)
def test_what_is_near_is_suggested(name: str, hint: str) -> None:
    """Letters that are missing, doubled, swapped, or large."""
    assert did_you_mean(name, ["billing", "orders", "b" * 10_000]) == hint


def test_a_name_is_compared_with_so_many_only() -> None:
    """An error must not take seconds in a cluster of a million groups."""
    assert did_you_mean("billing", itertools.repeat("x" * 200)) == ""


def test_an_address_of_six_is_told_as_it_is_typed() -> None:
    """In brackets."""
    done = CliRunner().invoke(main, ["ping", "--at", "[::1]:1"])

    assert done.exit_code == 1
    assert done.stderr.startswith("No coordinator answers at [::1]:1: ")
