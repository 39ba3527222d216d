"""``group-coordinator topics``: the registry of topics."""

import click

from coordinator.cli.common import AskFailed, Coordinator, asks, describe_error
from coordinator.cli.output import table
from protocol import messages as m

TOPICS_PER_PAGE = 1_000


@click.group()
def topics() -> None:
    """Look at the topic registry, and change it."""


@topics.command("list")
@click.option("--pattern", default=None, help="Only names that match this RE2 expression.")
@asks
def list_topics(coordinator: Coordinator, pattern: str | None) -> None:
    """List all registered topics."""
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
@asks
def register_topic(coordinator: Coordinator, topic: str, partitions: int) -> None:
    """Make TOPIC known with so many PARTITIONS, or tell that it has grown."""
    wanted = (m.TopicRegistration(topic, partitions, None),)
    (done,) = coordinator.ask(m.RegisterTopicsRequest(wanted)).topics
    _finish(topic, done.error, done.message)


@topics.command("delete")
@click.argument("topic")
@asks
def delete_topic(coordinator: Coordinator, topic: str) -> None:
    """Forget TOPIC, and what groups have committed for it."""
    (done,) = coordinator.ask(m.DeleteTopicsRequest((topic,))).topics
    _finish(topic, done.error, None)


def _finish(topic: str, error: int, message: str | None) -> None:
    if error:
        raise AskFailed(f"{topic}: {describe_error(error, message)}")
    click.echo("ok")
