"""``group-coordinator groups``: what groups are there, how are they, and what may be changed?

The columns and notes are those of kafka-consumer-groups.sh where it has the table.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click
from msgspec import structs

from coordinator.cli.common import (
    PARTITIONS_PER_REQUEST,
    AskFailed,
    Coordinator,
    asks,
    by_topic,
    committed_offsets,
    describe_error,
    described,
    for_each,
    groups_asked_for,
    retention_ms,
    retention_text,
    several_groups,
    topic_scope,
)
from coordinator.cli.output import clean, note, show, show_json, table, time_of
from coordinator.cli.reset_offsets import reset_offsets
from protocol import messages as m
from protocol.consumer import decode_assignment
from protocol.partition import TopicPartition

F = TypeVar("F", bound=Callable[..., Any])
Rows = list[tuple[object, ...]]

STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
CLASSIC: Final = "classic"
TYPES: Final = (CLASSIC, "consumer")
CONSUMER: Final = "consumer"

as_json = click.option("--json", "as_json", is_flag=True, help="For programs; null is unknown.")


@click.group()
def groups() -> None:
    """Look at consumer groups, and change what operators may change.

    Each takes --at HOST:PORT. The status is 0 if all was done, 1 if something was refused, 2 for a
    wrong command line and 69 if no coordinator answers.
    """


groups.add_command(reset_offsets)


def _names(what: str, valid: tuple[str, ...]) -> Callable[..., tuple[str, ...]]:
    """Read some of a few names, in any case; the error of a wrong one lists the right ones."""
    spelled = {name.lower(): name for name in valid}

    def callback(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, ...]:
        asked = [name.strip() for name in text.split(",")] if text else []
        for name in asked:
            if name.lower() not in spelled:
                raise click.BadParameter(f"{name!r} is no {what}; valid: {', '.join(valid)}")
        return tuple(spelled[name.lower()] for name in asked)

    return callback


def _filter(what: str, valid: tuple[str, ...]) -> Callable[[F], F]:
    return click.option(
        f"--{what}",
        f"{what}s",
        default="",
        metavar="CSV",
        callback=_names(what, valid),
        help=f"Only of these: {', '.join(valid)}.",
    )


@groups.command("list")
@_filter("state", STATES)
@_filter("type", TYPES)
@as_json
@asks
def list_groups(
    coordinator: Coordinator, states: tuple[str, ...], types: tuple[str, ...], as_json: bool
) -> None:
    """List the groups with their states."""
    answer = coordinator.ask(m.ListGroupsRequest(states, types))
    if types and CLASSIC not in types:
        note("All groups here are of type classic; the protocol type is another thing.")
    rows = sorted((g.group_id, g.type, g.state, g.protocol_type) for g in answer.groups)
    show(("GROUP", "TYPE", "STATE", "PROTOCOL-TYPE"), rows, as_json=as_json)


@groups.command("describe")
@several_groups
@click.option("--offsets", is_flag=True, help="How far it has come, and its lag (the default).")
@click.option("--members", is_flag=True, help="Who is in it.")
@click.option("--state", is_flag=True, help="How it is.")
@click.option("--verbose", is_flag=True, help="Also assignments (members) or times (offsets).")
@as_json
@asks
def describe_groups(
    coordinator: Coordinator,
    group_ids: tuple[str, ...],
    all_groups: bool,
    offsets: bool,
    members: bool,
    state: bool,
    verbose: bool,
    as_json: bool,
) -> bool:
    """Show offsets and lag of groups, or their members, or their state."""
    if offsets + members + state > 1:
        raise click.UsageError("At most one of --offsets, --members and --state.")
    wanted = groups_asked_for(coordinator, group_ids, all_groups=all_groups)
    verbose = verbose or as_json
    if state:
        return _show_states(coordinator, wanted, as_json=as_json)
    if members:
        return _show_members(coordinator, wanted, verbose=verbose, as_json=as_json)
    return _show_offsets(coordinator, wanted, verbose=verbose, as_json=as_json)


@groups.command("lag")
@several_groups
@as_json
@asks
def describe_lag(
    coordinator: Coordinator, group_ids: tuple[str, ...], all_groups: bool, as_json: bool
) -> bool:
    """Show how far groups are behind, by partition; the same as describe --offsets."""
    wanted = groups_asked_for(coordinator, group_ids, all_groups=all_groups)
    return _show_offsets(coordinator, wanted, verbose=as_json, as_json=as_json)


def _noted(coordinator: Coordinator, group_id: str) -> m.DescribedGroup:
    """Return a group, and tell what is special about its state."""
    found = described(coordinator, group_id)
    if found.state == "Empty":
        note(f"Consumer group '{group_id}' has no active members.")
    elif found.state in {"PreparingRebalance", "CompletingRebalance"}:
        note(f"Warning: Consumer group '{group_id}' is rebalancing.")
    return found


def _show_offsets(
    coordinator: Coordinator, group_ids: Iterable[str], *, verbose: bool, as_json: bool
) -> bool:
    rows: Rows = []

    def one(group_id: str) -> None:
        members = {x.member_id: x for x in _noted(coordinator, group_id).members}
        for topic in coordinator.ask(m.DescribeLagRequest(group_id)).topics:
            for p in topic.partitions:
                owner = members.get(p.member_id)
                host, client_id = (owner.client_host, owner.client_id) if owner else ("", "")
                numbers = (p.partition, p.committed_offset, p.end_offset, p.lag)
                times = (time_of(p.commit_timestamp_ms), time_of(p.end_reported_ms))
                row = (group_id, topic.topic, *numbers, p.member_id, host, client_id)
                rows.append((*row, *times) if verbose else row)

    failed = for_each(group_ids, one)
    head = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    tail = ("COMMITTED", "END-REPORTED") if verbose else ()
    show((*head, "CONSUMER-ID", "HOST", "CLIENT-ID", *tail), rows, as_json=as_json)
    return failed


def _show_members(
    coordinator: Coordinator, group_ids: Iterable[str], *, verbose: bool, as_json: bool
) -> bool:
    found: list[tuple[str, m.DescribedMember, dict[str, list[int]] | None]] = []

    def one(group_id: str) -> None:
        group = _noted(coordinator, group_id)
        found.extend((group_id, x, _assigned(group, x)) for x in group.members)

    failed = for_each(group_ids, one)
    # Like Kafka's tool: a column for what hardly any group has only where one has it.
    has_static = as_json or any(member.group_instance_id is not None for _, member, _ in found)
    rows: Rows = []
    for group_id, x, assigned in found:
        instance = (x.group_instance_id,) if has_static else ()
        count = None if assigned is None else sum(map(len, assigned.values()))
        row = (group_id, x.member_id, *instance, x.client_host, x.client_id, count)
        rows.append((*row, assigned) if verbose else row)
    instance_head = ("GROUP-INSTANCE-ID",) if has_static else ()
    head = ("GROUP", "CONSUMER-ID", *instance_head, "HOST", "CLIENT-ID", "#PARTITIONS")
    show((*head, "ASSIGNMENT") if verbose else head, rows, as_json=as_json)
    return failed


def _assigned(group: m.DescribedGroup, member: m.DescribedMember) -> dict[str, list[int]] | None:
    """Return a member's partitions by topic, None where the bytes can't be read."""
    if group.protocol_type != CONSUMER and member.assignment:
        return None
    assignment = decode_assignment(member.assignment)
    return None if assignment is None else by_topic(sorted(assignment.partitions))


def _show_states(coordinator: Coordinator, group_ids: Iterable[str], *, as_json: bool) -> bool:
    rows: Rows = []

    def one(group_id: str) -> None:
        found = _noted(coordinator, group_id)
        retained = retention_text(found.offsets_retention_ms)
        facts = (found.state, len(found.members), found.generation_id, retained)
        rows.append((group_id, _where(coordinator, group_id), found.protocol_name, *facts))

    failed = for_each(group_ids, one)
    head = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
    show((*head, "GENERATION", "RETENTION"), rows, as_json=as_json)
    return failed


def _where(coordinator: Coordinator, group_id: str) -> str:
    (found,) = coordinator.ask(m.FindCoordinatorRequest(0, (group_id,))).coordinators
    if found.error:
        raise AskFailed(describe_error(found.error, found.message))
    return f"{found.host}:{found.port} ({found.node_id})"


@groups.command("rebalances")
@click.argument("group")
@click.option("--limit", default=20, type=click.IntRange(1, 100), help="The newest so many.")
@as_json
@asks
def describe_rebalances(coordinator: Coordinator, group: str, limit: int, as_json: bool) -> None:
    """Tell why GROUP rebalanced, the newest first."""
    answer = coordinator.ask(m.DescribeRebalancesRequest(group, limit))
    if as_json:
        show_json(
            [
                {**structs.asdict(r), "late": [structs.asdict(late) for late in r.late]}
                for r in answer.rebalances
            ]
        )
        return
    rows = [
        (
            r.number,
            time_of(r.started_ms),
            f"{r.old_generation}->{r.new_generation}",
            r.outcome,
            r.join_ms,
            r.sync_ms,
            r.members,
            r.member_id,
            r.client_host,
            ", ".join(late.member_id for late in r.late),
            _why(r),
        )
        for r in answer.rebalances
    ]
    head = ("#", "STARTED", "GENERATION", "OUTCOME", "JOIN-MS", "SYNC-MS", "#MEMBERS")
    table((*head, "CONSUMER-ID", "HOST", "LATE", "WHY"), rows)


def _why(rebalance: m.Rebalance) -> str:
    """Return what happened and why; most reasons begin with what happened."""
    trigger, reason = rebalance.trigger, rebalance.reason
    return reason if reason.startswith(trigger) else ": ".join(filter(None, (trigger, reason)))


@groups.command("delete")
@several_groups
@asks
def delete(coordinator: Coordinator, group_ids: tuple[str, ...], all_groups: bool) -> bool:
    """Delete groups without members, and their offsets."""

    def one(group_id: str) -> None:
        (done,) = coordinator.ask(m.DeleteGroupsRequest((group_id,))).groups
        if done.error:
            raise AskFailed(describe_error(done.error))
        click.echo(f"{clean(group_id)}: deleted")

    return for_each(groups_asked_for(coordinator, group_ids, all_groups=all_groups), one)


@groups.command("delete-offsets")
@click.argument("group")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="T[:P,P]",
    help="All committed partitions of a topic, or these; may be given several times.",
)
@asks
def delete_offsets(coordinator: Coordinator, group: str, topics: tuple[str, ...]) -> bool:
    """Forget committed offsets of topics that nobody in GROUP subscribes to."""
    scope = topic_scope(topics)
    described(coordinator, group)
    committed = committed_offsets(coordinator, group)
    known = by_topic(committed)
    wanted = [
        TopicPartition(topic, partition)
        for topic, named in scope.items()
        for partition in sorted(known.get(topic, ()) if named is None else named)
    ]
    rows: list[tuple[object, ...]] = []
    failed = False
    try:
        for at in range(0, len(wanted), PARTITIONS_PER_REQUEST):
            chunk = wanted[at : at + PARTITIONS_PER_REQUEST]
            asked = tuple(m.TopicPartitions(t, tuple(p)) for t, p in by_topic(chunk).items())
            for topic in coordinator.ask(m.OffsetDeleteRequest(group, asked)).topics:
                for one in topic.partitions:
                    there = TopicPartition(topic.topic, one.partition) in committed
                    done = "deleted" if there else "nothing was committed"
                    said = describe_error(one.error) if one.error else done
                    rows.append((topic.topic, one.partition, said))
                    failed |= bool(one.error)
    finally:
        table(("TOPIC", "PARTITION", "STATUS"), rows)
    for topic, named in scope.items():
        if named is None and topic not in known:
            note(f"{group}: nothing is committed of topic {topic}")
            failed = True
    return failed


@groups.command("remove-static")
@click.argument("group")
@click.option(
    "--instance",
    "instance_ids",
    multiple=True,
    required=True,
    metavar="ID",
    help="The member's group instance id; may be given several times.",
)
@click.option("--reason", default=None, help="What to keep in the history of rebalances.")
@asks
def remove_static(
    coordinator: Coordinator, group: str, instance_ids: tuple[str, ...], reason: str | None
) -> bool:
    """Remove static members of GROUP that won't come back, all in one rebalance."""
    described(coordinator, group)
    names = tuple(dict.fromkeys(instance_ids))
    leaving = tuple(m.LeavingMember("", name, reason) for name in names)
    answer: m.LeaveGroupResponse = coordinator.ask(m.LeaveGroupRequest(group, leaving))
    failed = False
    for name, left in zip(names, answer.members, strict=True):
        if left.error:
            note(f"{name}: {describe_error(left.error, left.message)}")
            failed = True
        else:
            click.echo(f"{clean(name)}: removed")
    return failed


def _kept(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | str | None:
    """Return milliseconds, -1 for "never", and "default" as itself."""
    if text is None or text == "default":
        return text
    try:
        return retention_ms(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@groups.command("retention")
@click.argument("group")
@click.option(
    "--set",
    "kept",
    callback=_kept,
    metavar="14d|never|default",
    help="Keep them so long once nobody uses them; default is what the server is set to.",
)
@asks
def retention(coordinator: Coordinator, group: str, kept: int | str | None) -> None:
    """Tell how long GROUP's offsets are kept once nobody uses them, or change that."""
    found = described(coordinator, group)
    if kept is not None:
        kept_ms = kept if isinstance(kept, int) else None
        coordinator.ask(m.AlterGroupRetentionRequest(group, kept_ms))
        found = described(coordinator, group)
    click.echo(f"{clean(group)}: {retention_text(found.offsets_retention_ms)}")
