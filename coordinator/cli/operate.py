"""Commands for a running coordinator: what groups and topics are there, and how are they?

The columns are those of kafka-consumer-groups.sh where it has the table; "-" is "unknown".
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from coordinator.cli.asking import AskFailed, ask, describe_error
from coordinator.config import Address, ConfigError
from protocol import messages as m

TOPICS_PER_PAGE = 1_000

F = TypeVar("F", bound=Callable[..., Any])


class Coordinator:
    """Where the questions go."""

    def __init__(self, address: str, timeout_s: float) -> None:
        try:
            self._host, self._port = Address.parse("--at", address)
        except ConfigError as exc:
            raise click.BadParameter(str(exc)) from exc
        self._timeout_s = timeout_s

    def ask(self, request: m.Request) -> Any:
        """Return the answer; end the process with 1 and a line that says why there is none."""
        try:
            return ask(self._host, self._port, request, timeout_s=self._timeout_s)
        except AskFailed as exc:
            fail(str(exc))


def fail(reason: str) -> None:
    """End the process with 1."""
    click.echo(reason, err=True)
    sys.exit(1)


def _at(command: F) -> F:
    command = click.option("--timeout", default=10.0, help="Seconds to wait for an answer.")(
        command
    )
    return click.option(
        "--at",
        default="127.0.0.1:9310",
        metavar="HOST:PORT",
        help="The coordinator.",
        show_default=True,
    )(command)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print *rows* under *columns*, as wide as they need."""
    lines = [tuple(columns), *(tuple(_cell(value) for value in row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    text = "-" if value in {None, "", -1} else str(value)
    # Names come from clients; a terminal must not obey them.
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


@click.group()
def groups() -> None:
    """Look at consumer groups."""


@groups.command("list")
@_at
def list_groups(at: str, timeout: float) -> None:
    """All groups with their states."""
    answer = Coordinator(at, timeout).ask(m.ListGroupsRequest((), ()))
    rows = [(g.group_id, g.type, g.state, g.protocol_type) for g in sorted(answer.groups)]
    table(("GROUP", "TYPE", "STATE", "PROTOCOL-TYPE"), rows)


@groups.command("describe")
@click.argument("group")
@_at
def describe_group(group: str, at: str, timeout: float) -> None:
    """State and members of GROUP."""
    found = _described(Coordinator(at, timeout), group)
    head = ("GROUP", "STATE", "GENERATION", "ASSIGNMENT-STRATEGY", "#MEMBERS", "RETENTION-MS")
    retention = "for ever" if found.offsets_retention_ms < 0 else found.offsets_retention_ms
    facts = (found.state, found.generation_id, found.protocol_name, len(found.members), retention)
    table(head, [(group, *facts)])
    click.echo()
    rows = [(x.member_id, x.group_instance_id, x.client_host, x.client_id) for x in found.members]
    table(("CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID"), rows)


@groups.command("lag")
@click.argument("group")
@_at
def describe_lag(group: str, at: str, timeout: float) -> None:
    """How far GROUP is behind, by partition."""
    coordinator = Coordinator(at, timeout)
    answer = coordinator.ask(m.DescribeLagRequest(group))
    members = {x.member_id: x for x in _described(coordinator, group).members}
    rows = []
    for topic, partitions in answer.topics:
        for p in partitions:
            owner = members.get(p.member_id)
            host, client_id = (owner.client_host, owner.client_id) if owner else ("", "")
            numbers = (p.partition, p.committed_offset, p.end_offset, p.lag)
            rows.append((group, topic, *numbers, p.member_id, host, client_id))
    head = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    table((*head, "CONSUMER-ID", "HOST", "CLIENT-ID"), rows)


@groups.command("rebalances")
@click.argument("group")
@click.option("--limit", default=20, type=click.IntRange(1, 100), help="The newest so many.")
@_at
def describe_rebalances(group: str, limit: int, at: str, timeout: float) -> None:
    """Why GROUP rebalanced, the newest first."""
    answer = Coordinator(at, timeout).ask(m.DescribeRebalancesRequest(group, limit))
    rows = [
        (
            r.number,
            datetime.fromtimestamp(r.started_ms / 1000, UTC).isoformat(timespec="seconds"),
            f"{r.old_generation}->{r.new_generation}",
            r.outcome,
            r.join_ms,
            r.sync_ms,
            r.members,
            r.member_id,
            r.client_host,
            ", ".join(late.member_id for late in r.late),
            f"{r.trigger}: {r.reason}" if r.reason else r.trigger,
        )
        for r in answer.rebalances
    ]
    head = ("#", "STARTED", "GENERATION", "OUTCOME", "JOIN-MS", "SYNC-MS", "#MEMBERS")
    table((*head, "CONSUMER-ID", "HOST", "LATE", "WHY"), rows)


def _described(coordinator: Coordinator, group: str) -> m.DescribedGroup:
    answer: m.DescribeGroupsResponse = coordinator.ask(m.DescribeGroupsRequest((group,)))
    (found,) = answer.groups
    if found.error:
        fail(describe_error(found.error, found.message))
    return found


@click.group()
def topics() -> None:
    """Look at the topic registry, and change it."""


@topics.command("list")
@click.option("--pattern", default=None, help="Only names that match this RE2 expression.")
@_at
def list_topics(pattern: str | None, at: str, timeout: float) -> None:
    """All registered topics."""
    coordinator = Coordinator(at, timeout)
    rows: list[tuple[object, ...]] = []
    after, has_more = "", True
    while has_more:
        answer = coordinator.ask(
            m.DescribeTopicsRequest(None, pattern, True, after, TOPICS_PER_PAGE)
        )
        rows += [(t.topic, t.partition_count, len(t.end_offsets)) for t in answer.topics]
        has_more = answer.has_more and bool(answer.topics)
        after = answer.topics[-1].topic if answer.topics else ""
    table(("TOPIC", "#PARTITIONS", "#END-OFFSETS"), rows)


@topics.command("register")
@click.argument("topic")
@click.argument("partitions", type=click.IntRange(1))
@_at
def register_topic(topic: str, partitions: int, at: str, timeout: float) -> None:
    """Make TOPIC known with so many PARTITIONS, or tell that it has grown."""
    wanted = (m.TopicRegistration(topic, partitions, None),)
    (done,) = Coordinator(at, timeout).ask(m.RegisterTopicsRequest(wanted)).topics
    _finish(topic, done.error, done.message)


@topics.command("delete")
@click.argument("topic")
@_at
def delete_topic(topic: str, at: str, timeout: float) -> None:
    """Forget TOPIC, and what groups have committed for it."""
    (done,) = Coordinator(at, timeout).ask(m.DeleteTopicsRequest((topic,))).topics
    _finish(topic, done.error, None)


def _finish(topic: str, error: int, message: str | None) -> None:
    if error:
        fail(f"{topic}: {describe_error(error, message)}")
    click.echo("ok")
