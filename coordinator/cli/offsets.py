"""``group-coordinator offsets``: follow committed offsets, and move them in files."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

import click
from msgspec import structs

from coordinator.cli.common import (
    GROUP,
    TOPIC,
    AskFailed,
    Coordinator,
    Unreachable,
    asks,
    described,
    for_each,
    groups_asked_for,
    several_groups,
)
from coordinator.cli.grammar import Commands
from coordinator.cli.import_offsets import import_offsets
from coordinator.cli.offset_files import COLUMNS, FileOffset, csv_line, json_line, write_offsets
from coordinator.cli.offset_log import Feed, offsets_partitions, passes, read_all
from coordinator.cli.output import CSV, JSON, TABLE, Output, counted, note, time_of
from coordinator.names import escaped
from protocol.offset_feed import SCAN, OffsetEvent

F = TypeVar("F", bound=Callable[..., Any])

FOLLOW_S: Final = 0.5
AWAY_S_MAX: Final = 5.0


@click.group(
    cls=Commands,
    examples={
        "Follow what a group commits:": "offsets watch --group billing",
        "Keep a copy of all offsets:": "offsets export --all-groups --file offsets.csv",
        "See what importing it would do:": "offsets import offsets.csv",
    },
)
def offsets() -> None:
    """Follow committed offsets, and move them in files."""


offsets.add_command(import_offsets)


def _only(what: str, type_: click.ParamType[str]) -> Callable[[F], F]:
    several = "Only this one; may be given several times."
    return click.option(f"--{what}", f"{what}s", multiple=True, type=type_, help=several)


# --- watch ------------------------------------------------------------------------------


@offsets.command(
    "watch",
    examples={
        "Follow everything that is committed and removed, from now on:": "offsets watch",
        "One group's offsets as they are, and then as they change:": "offsets watch "
        "--group billing --from beginning",
        "For a program, one JSON object a line:": "offsets watch --output json",
    },
)
@_only("group", GROUP)
@_only("topic", TOPIC)
@click.option(
    "--from",
    "start",
    type=click.Choice(("now", "beginning")),
    default="now",
    show_default=True,
    help="Beginning: what is committed comes first.",
)
@asks
def watch(
    coordinator: Coordinator,
    output: Output,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    start: str,
) -> None:
    """Print what is committed and removed, as it comes, until Ctrl-C.

    It outlives a restart of the coordinator, and goes on where it was. Where the log no longer has
    what came meanwhile, it says so, and what is committed then follows.
    """
    feed = Feed(
        list(dict.fromkeys(groups)) or None,
        frozenset(topics) or None,
        from_beginning=start == "beginning",
        tell=note,
    )
    line = EventLines(output.form)
    try:
        _follow(coordinator, feed, line)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Python would flush what is left as it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _follow(coordinator: Coordinator, feed: Feed, line: "EventLines") -> None:
    """Print rounds of *feed* for ever.

    Raises:
        AskFailed: The first round failed, or there is no use in trying again.
        BrokenPipeError: Nobody reads the output any more.
    """
    away = _Away()
    is_begun = False
    while True:
        try:
            feed.connect(coordinator)
            if not is_begun:
                sys.stdout.write(line.head())
                is_begun = True
            for event in feed.events(coordinator):
                away.is_back()
                sys.stdout.write(line.of(event))
            away.is_back()
        except AskFailed as exc:
            if not passes(exc) and not (is_begun and isinstance(exc, Unreachable)):
                raise
            away.failed(str(exc))
        sys.stdout.flush()
        pause(away.pause_s)


class _Away:
    """Says once that the coordinator is away, and once that it is back."""

    def __init__(self) -> None:
        self.pause_s = FOLLOW_S
        self._since_s: float | None = None

    def failed(self, why: str) -> None:
        """Note a failed attempt."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            note(f"{why}; trying again")
        self.pause_s = min(self.pause_s * 2, AWAY_S_MAX)

    def is_back(self) -> None:
        """Note one that succeeded."""
        if self._since_s is not None:
            note(f"The coordinator is back after {time.monotonic() - self._since_s:.1f} s.")
        self._since_s = None
        self.pause_s = FOLLOW_S


def pause(seconds: float) -> None:
    """Wait; a reader of the output that goes meanwhile ends it.

    Raises:
        BrokenPipeError: Nobody reads the output any more.
    """
    try:
        poll = select.poll()
        # Without events to wait for, only errors are told.
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # It is no file.
        time.sleep(seconds)
        return
    if poll.poll(seconds * 1000):
        raise BrokenPipeError


class EventLines:
    """Makes a line of each event."""

    _HEAD: Final = ("TIME", "KIND", "GROUP", "TOPIC", "PARTITION", "OFFSET", "METADATA")
    _KEYS: Final = ("time", *OffsetEvent._fields[1:])
    _METADATA_CHARS_MAX: Final = 60

    def __init__(self, form: str) -> None:
        self._form = form
        # A table whose rows nobody knows yet: columns grow when they must.
        self._widths = [25, 13, 12, 12, 9, 8, 0]

    def head(self) -> str:
        """Return what stands in front of all lines."""
        if self._form == JSON:
            return ""
        if self._form == CSV:
            return csv_line(self._KEYS)
        return self._padded(self._HEAD)

    def of(self, event: OffsetEvent) -> str:
        """Return the line of *event*; empty where it is for programs only."""
        time_ms = event.timestamp_ms
        when = None if time_ms is None else time_of(time_ms)
        if self._form == TABLE:
            if event.kind == SCAN:
                return ""
            where = event[2:6]
            metadata = event.metadata or ""
            if len(metadata) > self._METADATA_CHARS_MAX:
                metadata = metadata[: self._METADATA_CHARS_MAX] + "…"
            return self._padded((when, event.kind, *where, metadata))
        values = (when, *event[1:])
        if self._form == CSV:
            return csv_line(values, for_terminal=sys.stdout.isatty())
        return json_line(self._KEYS, values)

    def _padded(self, row: Sequence[object]) -> str:
        cells = ["-" if cell is None else escaped(str(cell)) for cell in row]
        self._widths = [max(w, len(c)) for w, c in zip(self._widths, cells, strict=True)]
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        return "  ".join(padded).rstrip() + "\n"


# --- export -----------------------------------------------------------------------------


@offsets.command(
    "export",
    examples={
        "Keep a copy of what two groups have committed:": "offsets export billing shipping "
        "--file offsets.csv",
        "Everything, for a program:": "offsets export --all-groups --output json",
    },
)
@several_groups
@_only("topic", TOPIC)
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to; without it, to the standard output.",
)
@asks
def export(
    coordinator: Coordinator,
    output: Output,
    group_ids: tuple[str, ...],
    all_groups: bool,
    topics: tuple[str, ...],
    path: Path | None,
) -> bool:
    """Write committed offsets, as `offsets import` reads them.

    As CSV, or with --output json as JSON lines; with leader epochs and metadata. Each group is as
    it was at one moment, also while its members commit. A file is there as a whole or not at all.
    """
    wanted = None
    if group_ids or not all_groups:
        wanted = groups_asked_for(coordinator, group_ids, all_groups=all_groups)
    scope = frozenset(topics) or None
    seen: set[str] = set()
    count = 0
    with _target(path) as stream:
        form = JSON if output.form == JSON else CSV
        if form == CSV:
            stream.write(csv_line(COLUMNS))
        for number, groups in offsets_partitions(coordinator, wanted).items():
            found = [
                FileOffset(*structs.astuple(one)[: len(COLUMNS)])
                for one in read_all(coordinator, number, groups, scope)
            ]
            write_offsets(found, form, stream)
            seen.update(one.group_id for one in found)
            count += len(found)
        absent = [g for g in wanted or () if g not in seen]
        failed = for_each(absent, partial(_tell_empty, coordinator))
        if failed and not count:
            raise click.exceptions.Exit(1)  # What the file held is better than nothing.
    if path is not None:
        note(f"{counted(count, 'offset')} of {counted(len(seen), 'group')} in {path}")
    return failed


def _tell_empty(coordinator: Coordinator, group_id: str) -> None:
    described(coordinator, group_id)
    note(f"{group_id}: nothing is committed")


@contextmanager
def _target(path: Path | None) -> Iterator[TextIO]:
    """Give where to write; a file takes its name when it is whole.

    Raises:
        AskFailed: It can't be written.
    """
    if path is None:
        yield sys.stdout
        return
    part = path.with_name(f"{path.name}.part")
    try:
        try:
            with part.open("w", encoding="utf-8", newline="") as stream:
                yield stream
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as exc:
        raise AskFailed(f"{path}: {exc.strerror}") from exc
