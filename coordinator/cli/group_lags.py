"""``group-coordinator groups top``, and all groups in a line each: members, lag, how that changes.

The lag of a group is the sum over its partitions of which it is known, beside the number of the
others. People read it as "≥ n" if there are any, and no change of it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click

from coordinator.cli.common import Coordinator, asks, may_watch, show
from coordinator.cli.grammar import Command
from coordinator.cli.output import TABLE, Output, Table, at_least, note
from protocol import messages as m

GROUPS_PER_PAGE: Final = 2_000
ROWS_SHOWN: Final = 20

F = TypeVar("F", bound=Callable[..., Any])

takes_pattern: Final[Callable[[F], F]] = click.option(
    "--pattern", default=None, help="Only groups whose name matches this RE2 expression."
)

_COLUMNS: Final = ("GROUP", "STATE", "#MEMBERS", "#PARTITIONS", "#UNKNOWN", "LAG")


def summarized(
    coordinator: Coordinator, pattern: str | None = None, states: Sequence[str] = ()
) -> list[m.GroupSummary]:
    """Return all groups, or those that match *pattern* and are in one of *states*, by name.

    Raises:
        AskFailed: They can't be listed.
    """
    request = m.SummarizeGroupsRequest(pattern, tuple(states), b"", GROUPS_PER_PAGE, 0)
    answers: list[m.SummarizeGroupsResponse] = coordinator.ask_leaders(request)
    found = [group for answer in answers for group in answer.groups]
    return sorted(found, key=lambda group: group.group_id)


def lag_of(group: m.GroupSummary, output: Output) -> object:
    """Return the lag of a group: for people "≥ n" if it is known in part."""
    is_part = group.unknown > 0 and group.lag >= 0
    return at_least(group.lag) if is_part and output.form == TABLE else group.lag


def trend_columns(output: Output) -> tuple[str, ...]:
    """Return what `trend_of` shows."""
    return ("TREND",) if output.form == TABLE else ("EARLIER-LAG", "EARLIER-MS")


def trend_of(group: m.GroupSummary, output: Output) -> tuple[object, ...]:
    """Return how the lag has changed: for people what came to it, for programs what it was."""
    if output.form != TABLE:
        return group.earlier_lag, group.earlier_ms
    if group.lag < 0 or group.unknown or group.earlier_lag < 0:
        return (None,)
    return (f"{group.lag - group.earlier_lag:+d} in {_time(group.earlier_ms)}",)


def _time(ms: int) -> str:
    return f"{ms // 1000}s" if ms < 60_000 else f"{ms // 60_000}m"


def lag_table(groups: Iterable[m.GroupSummary], output: Output) -> Table:
    """Return a line for each group."""
    rows = [
        (
            g.group_id,
            g.state,
            g.members,
            g.partitions,
            g.unknown,
            lag_of(g, output),
            *trend_of(g, output),
        )
        for g in groups
    ]
    return Table((*_COLUMNS, *trend_columns(output)), rows)


@click.command(
    cls=Command,
    examples={
        "Which groups are furthest behind?": "groups top",
        "Keep looking, every five seconds:": "groups top --watch --every 5",
        "Some groups, all of them, for a program:": "groups top --pattern 'etl-.*' "
        "--limit 100000 --output json",
    },
)
@takes_pattern
@click.option(
    "--limit",
    default=ROWS_SHOWN,
    type=click.IntRange(1),
    show_default=True,
    help="The worst so many.",
)
@may_watch
@asks
def top(
    coordinator: Coordinator,
    output: Output,
    pattern: str | None,
    limit: int,
    every_s: float | None,
) -> None:
    """Show a line for each group, the one that is furthest behind first.

    LAG is the sum over the partitions of which it is known, #UNKNOWN the number of the others:
    then LAG is "≥ n", and n for programs. TREND is the change of LAG in the last minutes.
    """

    def look() -> Table:
        groups = summarized(coordinator, pattern)
        worst = sorted(groups, key=lambda group: (-group.lag, group.group_id))
        if every_s is None and len(worst) > limit:
            note(f"The worst {limit} of {len(worst)} groups; --limit shows more.")
        return lag_table(worst[:limit], output)

    show(output, look, every_s)
