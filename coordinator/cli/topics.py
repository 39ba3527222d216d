"""``group-coordinator topics``: the registry of topics."""

import click

from coordinator.cli.common import (
    PARTITIONS_PER_REQUEST,
    TOPIC,
    AskFailed,
    Change,
    Coordinator,
    asks,
    asks_to_change,
    described_topic,
    for_each,
    groups_there,
    missing_topic,
    refused,
    registered_topics,
)
from coordinator.cli.grammar import Commands
from coordinator.cli.output import Output, counted, time_of, tracked
from coordinator.names import quoted
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.partition import INT32_MAX, INT64_MAX


@click.group(
    cls=Commands,
    examples={
        "Which topics are known, and with how many partitions?": "topics list",
        "How far does one of them reach?": "topics describe orders",
        "Make one known that has six:": "topics register orders 6",
        "Tell how far its partition 0 reaches:": "topics report-end orders 0 1200",
    },
)
def topics() -> None:
    """Look at the topic registry, and change it."""


@topics.command(
    "list",
    examples={
        "All topics:": "topics list",
        "Only those whose name begins with orders, for a program:": "topics list "
        "--pattern 'orders.*' --output json",
    },
)
@click.option("--pattern", default=None, help="Only names that match this RE2 expression.")
@asks
def list_topics(coordinator: Coordinator, output: Output, pattern: str | None) -> None:
    """List all registered topics."""
    found = registered_topics(coordinator, pattern)
    rows = [(t.topic, t.partition_count, len(t.end_offsets)) for t in found]
    output.show(("TOPIC", "#PARTITIONS", "#END-OFFSETS"), rows)


@topics.command(
    "describe",
    examples={
        "How far does each partition reach, and since when is that known?": "topics describe "
        "orders",
    },
)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", type=TOPIC)
@asks
def describe_topics(coordinator: Coordinator, output: Output, names: tuple[str, ...]) -> bool:
    """Show the partitions of topics, and how far each reaches as somebody has reported."""
    rows: list[tuple[object, ...]] = []

    def one(topic: str) -> None:
        found = _registered(coordinator, topic, with_ends=True)
        ends = {end.partition: end for end in found.end_offsets}
        for number in range(found.partition_count):
            end = ends.get(number)
            facts = (None, None) if end is None else (end.end_offset, time_of(end.reported_ms))
            rows.append((topic, number, *facts))

    failed = for_each(dict.fromkeys(names), one)
    output.show(("TOPIC", "PARTITION", "LOG-END-OFFSET", "END-REPORTED"), rows, failed=failed)
    return failed


def _registered(
    coordinator: Coordinator, topic: str, *, with_ends: bool = False
) -> m.DescribedTopic:
    """Return a topic that is registered.

    Raises:
        AskFailed: It isn't, or can't be asked for.
    """
    found = described_topic(coordinator, topic, with_ends=with_ends)
    if found.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise missing_topic(coordinator, topic)
    if found.error:
        raise refused(topic, found.error)
    return found


@topics.command(
    "register",
    examples={
        "Make a topic known that has six partitions:": "topics register orders 6",
        "It has grown to twelve; its groups rebalance:": "topics register orders 12",
    },
)
@click.argument("topic", type=TOPIC)
@click.argument("partitions", type=click.IntRange(1))
@asks
def register_topic(coordinator: Coordinator, output: Output, topic: str, partitions: int) -> None:
    """Make TOPIC known with so many PARTITIONS, or tell that it has grown."""
    wanted = (m.TopicRegistration(topic, partitions, None),)
    (done,) = coordinator.ask(m.RegisterTopicsRequest(wanted)).topics
    if done.error:
        raise refused(topic, done.error, done.message)
    output.lines("ok", ("TOPIC", "PARTITIONS"), [(topic, partitions)])


@topics.command(
    "report-end",
    examples={
        "The next record of partition 0 will get offset 1200:": "topics report-end orders 0 1200",
    },
)
@click.argument("topic", type=TOPIC)
@click.argument("partition", type=click.IntRange(0, INT32_MAX))
@click.argument("offset", type=click.IntRange(0, INT64_MAX))
@asks
def report_end(
    coordinator: Coordinator, output: Output, topic: str, partition: int, offset: int
) -> None:
    """Tell how far PARTITION of TOPIC reaches, for lag: OFFSET is that of its next record."""
    ends = (m.TopicEnds(topic, (m.PartitionEnd(partition, offset),)),)
    (answered,) = coordinator.ask(m.ReportEndOffsetsRequest(ends)).topics
    error = answered.partitions[0].error
    if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise _missing_partition(coordinator, topic, partition)
    if error:
        raise refused(topic, error)
    output.lines("ok", ("TOPIC", "PARTITION", "END-OFFSET"), [(topic, partition, offset)])


def _missing_partition(coordinator: Coordinator, topic: str, partition: int) -> AskFailed:
    found = _registered(coordinator, topic)
    there = counted(found.partition_count, "partition")
    return AskFailed(f"Topic {quoted(topic)} has {there}, and none with the number {partition}.")


@topics.command(
    "delete",
    examples={
        "See what would be forgotten, and be asked:": "topics delete orders",
        "Do it in a script:": "topics delete orders --yes",
    },
)
@click.argument("topic", type=TOPIC)
@asks_to_change
def delete_topic(coordinator: Coordinator, output: Output, change: Change, topic: str) -> None:
    """Forget TOPIC, and what groups have committed for it."""
    count = _registered(coordinator, topic).partition_count
    concerned = _committed(coordinator, topic, count)
    rows: list[tuple[object, ...]] = [(topic, count, *one) for one in concerned.items()]
    groups = f", and its offsets in {counted(len(concerned), 'group')}" if concerned else ""
    change.confirm(
        f"Delete topic {quoted(topic)}{groups}?",
        ("TOPIC", "#PARTITIONS", "GROUP", "#OFFSETS"),
        rows or [(topic, count, None, None)],
    )
    (done,) = coordinator.ask(m.DeleteTopicsRequest((topic,))).topics
    if done.error:
        raise refused(topic, done.error)
    output.lines("ok", ("TOPIC", "STATUS"), [(topic, "deleted")])


def _committed(coordinator: Coordinator, topic: str, partition_count: int) -> dict[str, int]:
    """Return the groups that have committed offsets of *topic*, with how many."""
    found: dict[str, int] = {}
    wanted = m.TopicPartitions(topic, tuple(range(partition_count)))
    # A larger topic is asked for with all others: a request has room for so many partitions.
    is_small = partition_count <= PARTITIONS_PER_REQUEST
    topics_wanted = (wanted,) if is_small else None
    at_once = max(1, PARTITIONS_PER_REQUEST // partition_count)
    groups = groups_there(coordinator)
    chunks = [groups[at : at + at_once] for at in range(0, len(groups), at_once)]
    for chunk in tracked(chunks, "Looking for offsets"):
        # Each by itself: they may lie with several nodes.
        asked = [
            m.OffsetFetchRequest((m.GroupFetch(group_id, topics_wanted),), False)
            for group_id in chunk
        ]
        for answer in coordinator.ask_all(asked):
            if isinstance(answer, AskFailed):
                raise answer
            (group,) = answer.groups
            if group.error:
                raise refused(group.group_id, group.error)
            for one in group.topics:
                count = sum(p.offset >= 0 for p in one.partitions)
                if one.topic == topic and count:
                    found[group.group_id] = count
    return found
