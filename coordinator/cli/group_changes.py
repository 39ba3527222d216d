"""The commands that change groups: delete them or offsets, remove static members, keep offsets."""

from collections.abc import Iterable
from typing import Final

import click

from coordinator.cli import retention_time
from coordinator.cli.asking import AskFailed, Coordinator, describe_error
from coordinator.cli.options import (
    asks,
    described,
    for_each,
    groups_asked_for,
    several_groups,
    topic_scope,
)
from coordinator.cli.output import clean, note, table
from protocol import messages as m
from protocol.types import TopicPartition

# Of one request; with the longest names they stay below the largest request.
PARTITIONS_PER_REQUEST: Final = 2_000


def committed_offsets(coordinator: Coordinator, group_id: str) -> dict[TopicPartition, int]:
    """Return what the group has committed; nothing for one that isn't there.

    Raises:
        AskFailed: They can't be read.
    """
    request = m.OffsetFetchRequest((m.GroupFetch(group_id, None),), False)
    (found,) = coordinator.ask(request).groups
    if found.error:
        raise AskFailed(describe_error(found.error))
    return {
        TopicPartition(topic.topic, p.partition): p.offset
        for topic in found.topics
        for p in topic.partitions
    }


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return partitions by topic, in the order given."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


@click.command("delete")
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


@click.command("delete-offsets")
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
            for topic, results in coordinator.ask(m.OffsetDeleteRequest(group, asked)).topics:
                for partition, error in results:
                    there = TopicPartition(topic, partition) in committed
                    done = "deleted" if there else "nothing was committed"
                    rows.append((topic, partition, describe_error(error) if error else done))
                    failed |= bool(error)
    finally:
        table(("TOPIC", "PARTITION", "STATUS"), rows)
    for topic, named in scope.items():
        if named is None and topic not in known:
            note(f"{group}: nothing is committed of topic {topic}")
            failed = True
    return failed


@click.command("remove-static")
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
        return retention_time.parse(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command("retention")
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
    click.echo(f"{clean(group)}: {retention_time.in_words(found.offsets_retention_ms)}")
