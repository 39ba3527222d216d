"""``group-coordinator groups``: what groups are there, how are they, and what may be changed?

The columns and notes are those of kafka-consumer-groups.sh where it has the table.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click
from msgspec import structs

from coordinator.cli.common import (
    GROUP,
    PARTITIONS_PER_REQUEST,
    AskFailed,
    Change,
    Coordinator,
    as_topics,
    asks,
    asks_to_change,
    assignment_of,
    by_topic,
    committed_offsets,
    describe_error,
    described,
    for_each,
    groups_asked_for,
    has_members,
    missing_group,
    partition_count,
    retention_ms,
    retention_text,
    several_groups,
    topic_scope,
)
from coordinator.cli.grammar import Commands
from coordinator.cli.group_lags import (
    lag_of,
    lag_table,
    summarized,
    takes_pattern,
    top,
    trend_columns,
    trend_of,
)
from coordinator.cli.output import JSON, TABLE, Output, counted, note, time_of
from coordinator.cli.reset_offsets import reset_offsets
from coordinator.names import did_you_mean, quoted
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.partition import TopicPartition
from protocol.text import some_of

F = TypeVar("F", bound=Callable[..., Any])
Rows = list[tuple[object, ...]]

STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
CLASSIC: Final = "classic"
TYPES: Final = (CLASSIC, "consumer")


@click.group(
    cls=Commands,
    examples={
        "Which groups are there?": "groups list",
        "Which are furthest behind, and is it getting better?": "groups top",
        "How far behind is this one?": "groups describe billing",
        "Why did it rebalance?": "groups rebalances billing",
    },
)
def groups() -> None:
    """Look at consumer groups, and change what operators may change.

    The status is 0 if all was done, 1 if something was refused, 2 for a wrong command line, 3 for
    a dry run and 69 if no coordinator answers.
    """


groups.add_command(reset_offsets)
groups.add_command(top)


def _names(what: str, valid: tuple[str, ...]) -> Callable[..., tuple[str, ...]]:
    """Read some of a few names, in any case; the error of a wrong one lists the right ones."""
    spelled = {name.lower(): name for name in valid}

    def callback(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, ...]:
        asked = [name.strip() for name in text.split(",")] if text else []
        for name in asked:
            if name.lower() not in spelled:
                raise click.BadParameter(f"{quoted(name)} is no {what}; valid: {', '.join(valid)}")
        return tuple(spelled[name.lower()] for name in asked)

    return callback


def _filter(what: str, valid: tuple[str, ...]) -> Callable[[F], F]:
    return click.option(
        f"--{what}",
        f"{what}s",
        default="",
        metavar="NAME,NAME",
        callback=_names(what, valid),
        help=f"Only of these: {', '.join(valid)}.",
    )


@groups.command(
    "list",
    examples={
        "Which groups are there, and how far behind?": "groups list",
        "Those that nobody uses at the moment, for a program:": "groups list --state empty "
        "--output json",
    },
)
@_filter("state", STATES)
@_filter("type", TYPES)
@takes_pattern
@asks
def list_groups(
    coordinator: Coordinator,
    output: Output,
    states: tuple[str, ...],
    types: tuple[str, ...],
    pattern: str | None,
) -> None:
    """List the groups with their members, their lag, and how that changes.

    LAG is the sum over the partitions of which it is known, #UNKNOWN the number of the others:
    then LAG is "≥ n", and n for programs.
    """
    found: list[m.GroupSummary] = []
    if types and CLASSIC not in types:
        note("All groups here are of type classic; the protocol type is another thing.")
    else:
        found = summarized(coordinator, pattern, states)
    rows = [
        (
            *(g.group_id, CLASSIC, g.state, g.protocol_type, g.members, g.unknown),
            lag_of(g, output),
            *trend_of(g, output),
        )
        for g in found
    ]
    head = ("GROUP", "TYPE", "STATE", "PROTOCOL-TYPE", "#MEMBERS", "#UNKNOWN", "LAG")
    output.show((*head, *trend_columns(output)), rows)


@groups.command(
    "describe",
    examples={
        "How far behind is a group, by partition?": "groups describe billing",
        "Who is in it, and who has which partitions?": "groups describe billing --members "
        "--verbose",
        "How are all of them, a line each?": "groups describe --all-groups",
        "Each partition of all of them:": "groups describe --all-groups --offsets",
    },
)
@several_groups
@click.option(
    "--offsets",
    is_flag=True,
    help="How far it has come, by partition (the default for named groups).",
)
@click.option("--members", is_flag=True, help="Who is in it.")
@click.option("--state", is_flag=True, help="How it is.")
@click.option("--verbose", is_flag=True, help="Also assignments (members) or times (offsets).")
@asks
def describe_groups(
    coordinator: Coordinator,
    output: Output,
    group_ids: tuple[str, ...],
    all_groups: bool,
    offsets: bool,
    members: bool,
    state: bool,
    verbose: bool,
) -> bool:
    """Show offsets and lag of groups, or their members, or their state.

    With --all-groups it is a line for each, unless one of these is asked for.
    """
    if offsets + members + state > 1:
        raise click.UsageError("At most one of --offsets, --members and --state.")
    if all_groups and not (group_ids or offsets or members or state or verbose):
        output.show(*lag_table(summarized(coordinator), output))
        return False
    wanted = groups_asked_for(coordinator, group_ids, all_groups=all_groups)
    verbose = verbose or output.form != TABLE
    if state:
        return _show_states(coordinator, output, wanted)
    if members:
        return _show_members(coordinator, output, wanted, verbose=verbose)
    return _show_offsets(coordinator, output, wanted, verbose=verbose)


@groups.command(
    "lag",
    examples={
        "How far behind is a group?": "groups lag billing",
        "All of them, for a spreadsheet:": "groups lag --all-groups --output csv",
    },
)
@several_groups
@asks
def describe_lag(
    coordinator: Coordinator, output: Output, group_ids: tuple[str, ...], all_groups: bool
) -> bool:
    """Show how far groups are behind, by partition; the same as describe --offsets."""
    wanted = groups_asked_for(coordinator, group_ids, all_groups=all_groups)
    return _show_offsets(coordinator, output, wanted, verbose=output.form != TABLE)


def _for_each_described(
    coordinator: Coordinator, group_ids: Iterable[str], work: Callable[[m.DescribedGroup], None]
) -> bool:
    """Do *work* for each group, tell what is special about their states, and whether any failed."""
    idle: list[str] = []
    rebalancing: list[str] = []

    def one(group_id: str) -> None:
        found = described(coordinator, group_id)
        if found.state == "Empty":
            idle.append(group_id)
        elif found.state in {"PreparingRebalance", "CompletingRebalance"}:
            rebalancing.append(group_id)
        work(found)

    failed = for_each(group_ids, one)
    _note_state(idle, "", "has no active members", "have no active members")
    _note_state(rebalancing, "Warning: ", "is rebalancing", "are rebalancing")
    return failed


def _note_state(group_ids: list[str], before: str, how: str, how_they_are: str) -> None:
    if len(group_ids) == 1:
        note(f"{before}Consumer group {quoted(group_ids[0])} {how}.")
    elif group_ids:
        named = some_of(map(quoted, group_ids), count=len(group_ids))
        note(f"{before}{len(group_ids)} consumer groups {how_they_are}: {named}.")


def _show_offsets(
    coordinator: Coordinator, output: Output, group_ids: Iterable[str], *, verbose: bool
) -> bool:
    rows: Rows = []
    beyond: list[str] = []

    def one(group: m.DescribedGroup) -> None:
        members = {x.member_id: x for x in group.members}
        for topic in coordinator.ask(m.DescribeLagRequest(group.group_id)).topics:
            for p in topic.partitions:
                owner = members.get(p.member_id)
                host, client_id = (owner.client_host, owner.client_id) if owner else ("", "")
                is_beyond = p.committed_offset > p.end_offset >= 0
                lag = None if is_beyond else p.lag  # Release 0.1.0 says 0.
                numbers = (p.partition, p.committed_offset, p.end_offset, lag)
                times = (time_of(p.commit_timestamp_ms), time_of(p.end_reported_ms))
                row = (group.group_id, topic.topic, *numbers, p.member_id, host, client_id)
                rows.append((*row, *times) if verbose else row)
                if is_beyond:
                    beyond.append(f"{group.group_id}: {topic.topic}-{p.partition}")

    failed = _for_each_described(coordinator, group_ids, one)
    if beyond:
        note(
            f"Warning: The lag of {counted(len(beyond), 'partition')} isn't known, as the commit "
            "is beyond the reported end; the report is old, or the commit is wrong: "
            f"{some_of(beyond)}."
        )
    head = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
    tail = ("COMMITTED", "END-REPORTED") if verbose else ()
    output.show((*head, "CONSUMER-ID", "HOST", "CLIENT-ID", *tail), rows, failed=failed)
    return failed


def _show_members(
    coordinator: Coordinator, output: Output, group_ids: Iterable[str], *, verbose: bool
) -> bool:
    found: list[tuple[str, m.DescribedMember, dict[str, list[int]] | None]] = []

    def one(group: m.DescribedGroup) -> None:
        found.extend((group.group_id, x, assignment_of(group, x)) for x in group.members)

    failed = _for_each_described(coordinator, group_ids, one)
    # Like Kafka's tool: a column for what hardly any group has only where one has it.
    is_any_static = any(member.group_instance_id is not None for _, member, _ in found)
    has_static = output.form != TABLE or is_any_static
    rows: Rows = []
    for group_id, x, assigned in found:
        instance = (x.group_instance_id,) if has_static else ()
        count = partition_count(assigned)
        row = (group_id, x.member_id, *instance, x.client_host, x.client_id, count)
        rows.append((*row, assigned) if verbose else row)
    instance_head = ("GROUP-INSTANCE-ID",) if has_static else ()
    head = ("GROUP", "CONSUMER-ID", *instance_head, "HOST", "CLIENT-ID", "#PARTITIONS")
    output.show((*head, "ASSIGNMENT") if verbose else head, rows, failed=failed)
    return failed


def _show_states(coordinator: Coordinator, output: Output, group_ids: Iterable[str]) -> bool:
    rows: Rows = []

    def one(group: m.DescribedGroup) -> None:
        retained = retention_text(group.offsets_retention_ms)
        facts = (group.state, len(group.members), group.generation_id, retained)
        where = _where(coordinator, group.group_id)
        rows.append((group.group_id, where, group.protocol_name, *facts))

    failed = _for_each_described(coordinator, group_ids, one)
    head = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
    output.show((*head, "GENERATION", "RETENTION"), rows, failed=failed)
    return failed


def _where(coordinator: Coordinator, group_id: str) -> str:
    request = m.FindCoordinatorRequest(m.KEY_TYPE_GROUP, (group_id,))
    (found,) = coordinator.ask(request).coordinators
    if found.error:
        raise AskFailed(describe_error(found.error, found.message))
    return f"{found.host}:{found.port} ({found.node_id})"


@groups.command(
    "rebalances",
    examples={
        "Why did this group rebalance lately?": "groups rebalances billing",
        "Only the last time:": "groups rebalances billing --limit 1",
    },
)
@click.argument("group", type=GROUP)
@click.option("--limit", default=20, type=click.IntRange(1, 100), help="The newest so many.")
@asks
def describe_rebalances(coordinator: Coordinator, output: Output, group: str, limit: int) -> None:
    """Tell why GROUP rebalanced, the newest first."""
    try:
        answer: m.DescribeRebalancesResponse = coordinator.ask(
            m.DescribeRebalancesRequest(group, limit)
        )
    except AskFailed as exc:
        if exc.code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise missing_group(coordinator, group) from exc
        raise
    if output.form == JSON:
        output.json(
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
    output.show((*head, "CONSUMER-ID", "HOST", "LATE", "WHY"), rows)


def _why(rebalance: m.Rebalance) -> str:
    """Return what happened and why; most reasons begin with what happened, or its last word."""
    trigger, reason = rebalance.trigger, rebalance.reason
    before, _, last = trigger.rpartition(" ")
    if before and re.match(rf"{re.escape(last)}\b", reason):
        return f"{before} {reason}"
    return reason if reason.startswith(trigger) else ": ".join(filter(None, (trigger, reason)))


@groups.command(
    "delete",
    examples={
        "See what would be deleted, and be asked:": "groups delete billing audit",
        "Do it in a script:": "groups delete billing --yes",
    },
)
@several_groups
@asks_to_change
def delete(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    group_ids: tuple[str, ...],
    all_groups: bool,
) -> bool:
    """Delete groups without members, and their offsets."""
    found: Rows = []

    def look(group_id: str) -> None:
        group = described(coordinator, group_id)
        if group.members:
            raise has_members(group)
        found.append((group_id, group.state, len(committed_offsets(coordinator, group_id))))

    failed = for_each(groups_asked_for(coordinator, group_ids, all_groups=all_groups), look)
    question = f"Delete {counted(len(found), 'group')} and what was committed there?"
    change.confirm(question, ("GROUP", "STATE", "#OFFSETS"), found, failed=failed)
    deleted: Rows = []

    def delete_one(group_id: str) -> None:
        (done,) = coordinator.ask(m.DeleteGroupsRequest((group_id,))).groups
        if done.error:
            raise AskFailed(describe_error(done.error))
        deleted.append((group_id, "deleted"))

    try:
        return for_each([str(row[0]) for row in found], delete_one, "Deleting") or failed
    finally:
        output.lines("{}: {}", ("GROUP", "STATUS"), deleted)


@groups.command(
    "delete-offsets",
    examples={
        "Forget what a group has committed of a topic that it no longer reads:": "groups "
        "delete-offsets billing --topic orders",
        "Only two of its partitions, in a script:": "groups delete-offsets billing "
        "--topic orders:0,1 --yes",
    },
)
@click.argument("group", type=GROUP)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="T[:P,P]",
    help="All committed partitions of a topic, or these; may be given several times.",
)
@asks_to_change
def delete_offsets(
    coordinator: Coordinator, output: Output, change: Change, group: str, topics: tuple[str, ...]
) -> bool:
    """Forget committed offsets of topics that nobody in GROUP subscribes to."""
    scope = topic_scope(topics)
    described(coordinator, group)
    committed = committed_offsets(coordinator, group)
    known = by_topic(committed)
    failed = False
    wanted: list[TopicPartition] = []
    for topic, named in scope.items():
        if named is None and topic not in known:
            hint = did_you_mean(topic, known)
            note(f"{group}: nothing is committed of topic {quoted(topic)}.{hint}")
            failed = True
        numbers = known.get(topic, ()) if named is None else named
        wanted += [TopicPartition(topic, number) for number in sorted(numbers)]
    there = [(*partition, committed[partition]) for partition in wanted if partition in committed]
    question = f"Forget {counted(len(there), 'offset')} of group {quoted(group)}?"
    head = ("TOPIC", "PARTITION", "CURRENT-OFFSET")
    change.confirm(question, head, there, failed=failed)
    rows: Rows = []
    try:
        for at in range(0, len(wanted), PARTITIONS_PER_REQUEST):
            chunk = wanted[at : at + PARTITIONS_PER_REQUEST]
            for topic in coordinator.ask(m.OffsetDeleteRequest(group, as_topics(chunk))).topics:
                for one in topic.partitions:
                    is_there = TopicPartition(topic.topic, one.partition) in committed
                    done = "deleted" if is_there else "nothing was committed"
                    said = describe_error(one.error) if one.error else done
                    rows.append((topic.topic, one.partition, said))
                    failed |= bool(one.error)
    finally:
        output.show(("TOPIC", "PARTITION", "STATUS"), rows, failed=failed)
    return failed


def _kept(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | str | None:
    """Return milliseconds, -1 for "never", and "default" as itself."""
    if text is None or text == "default":
        return text
    try:
        return retention_ms(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@groups.command(
    "retention",
    examples={
        "How long are the offsets of a group kept once nobody uses them?": "groups retention "
        "billing",
        "For two weeks, from now on:": "groups retention billing --set 14d",
        "As the server's settings say, in a script:": "groups retention billing --set default "
        "--yes",
    },
)
@click.argument("group", type=GROUP)
@click.option(
    "--set",
    "kept",
    callback=_kept,
    metavar="14d|never|default",
    help="Keep them so long once nobody uses them; default is what the server is set to.",
)
@asks_to_change
def retention(
    coordinator: Coordinator, output: Output, change: Change, group: str, kept: int | str | None
) -> None:
    """Tell how long GROUP's offsets are kept once nobody uses them, or change that."""
    found = described(coordinator, group)
    if kept is not None:
        kept_ms = kept if isinstance(kept, int) else None
        wanted = kept if kept_ms is None else retention_text(kept_ms)
        before = retention_text(found.offsets_retention_ms)
        question = f"Change how long offsets of group {quoted(group)} are kept?"
        change.confirm(question, ("GROUP", "RETENTION", "NEW-RETENTION"), [(group, before, wanted)])
        coordinator.ask(m.AlterGroupRetentionRequest(group, kept_ms))
        found = described(coordinator, group)
    kept_now = retention_text(found.offsets_retention_ms)
    output.lines("{}: {}", ("GROUP", "RETENTION"), [(group, kept_now)])
