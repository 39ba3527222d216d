"""The catalogue of events is what the code logs, and what the documentation says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from coordinator.events import CATALOGUE, LEVELS, level_of, problem_of

ROOT: Final = Path(__file__).parent.parent
# What is called with an event's name, in any module of the daemon.
TELLERS: Final = frozenset(
    {"debug", "info", "warning", "error", "critical", "emit_event", "_emit_event", "event", "Event"}
    | {"warn", "_warn", "log_event", "_log", "Tell"}
)
NAMES: Final = frozenset(kind.name for kind in CATALOGUE)


def trees() -> Iterator[ast.Module]:
    """Yield every module of the daemon but the catalogue."""
    for path in sorted((ROOT / "coordinator").rglob("*.py")):
        if path.name != "events.py" or path.parent.name != "coordinator":
            yield ast.parse(path.read_text(encoding="utf-8"))


def test_every_event_that_the_code_names_is_in_the_catalogue() -> None:
    """An event that nobody knows of is in no dashboard and in no search."""
    told = {
        node.args[0].value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args
        if ast.unparse(node.func).rpartition(".")[2] in TELLERS
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }

    told |= {
        node.elts[0].value  # What the log found when it was opened is told later, as pairs.
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Tuple) and len(node.elts) == 2
        if isinstance(node.elts[0], ast.Constant) and isinstance(node.elts[0].value, str)
        if node.elts[0].value.startswith("log.")
    }

    assert {"ready", "refused", "group.rebalanced", "log.torn_tail_cut"} <= told
    assert sorted(told - NAMES) == []


def test_every_event_of_the_catalogue_is_told_by_the_code() -> None:
    """Whoever waits for an event that never comes waits for ever."""
    texts = {
        node.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert sorted(NAMES - texts) == []


def rows() -> list[tuple[str, ...]]:
    """Return the cells of the lines of the documentation's tables of events."""
    page = (ROOT / "docs/logs.md").read_text(encoding="utf-8")
    row = re.compile(rf"\| `[a-z._]+` \| ({'|'.join(LEVELS)}) \|")
    lines = [line for line in page.splitlines() if row.match(line)]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]


def test_the_documentation_has_the_catalogue_word_for_word() -> None:
    """It is what operators search, and what collectors are set up by."""
    expected = []
    for kind in CATALOGUE:
        keys = ", ".join(f"`{key}`" for key in kind.keys)
        expected.append((f"`{kind.name}`", kind.level, keys, kind.meaning))

    assert rows() == expected


def test_no_event_is_in_the_catalogue_twice() -> None:
    """The second one would be dead."""
    assert len(NAMES) == len(CATALOGUE)
    assert {kind.level for kind in CATALOGUE} <= set(LEVELS)


@pytest.mark.parametrize(
    ("line", "level", "problem"),
    [
        ({"event": "x"}, None, "no event x"),
        ({"event": "stalled"}, None, "lacks ['late_ms']"),
        ({"event": "stalled", "late_ms": 1, "more": 2}, None, "has ['more']"),
        ({"event": "stalled", "late_ms": 1}, "info", "as info, and not as warning"),
        ({"event": "stalled", "late_ms": 1, "level": "error"}, None, "as error"),
        ({"event": "stalled", "late_ms": 1, "level": "warning", "timestamp": "…"}, None, None),
    ],
)
def test_what_a_line_lacks_is_found(
    line: dict[str, object], level: str | None, problem: str | None
) -> None:
    """The check of all other tests is only worth as much as this."""
    found = problem_of(line, level)

    assert found is None if problem is None else problem in str(found)


def test_an_unknown_event_is_still_logged() -> None:
    """A mistake in the catalogue must not lose a line, nor end a request."""
    assert level_of("never.heard.of") == LEVELS["info"]
