"""What the leader of a group makes of what the log knows, and how long a reader waits."""

from collections.abc import Sequence
from typing import Any

import pytest

from client import (
    CoordinatorUnavailable,
    OffsetAndMetadata,
    OutcomeUnknown,
    RetriableError,
    RetrySettings,
)
from client.assignors import MemberSubscription, run_assignor
from client.spark.logs.folder import FolderLog
from client.spark.logs.partition_log import LogError
from client.spark.source import session as source_session
from client.spark.source.session import BlockingSession, LeadersLog, assignors_of
from protocol import messages as m
from tests.client.threads import connect_to
from tests.fakes.scripted_server import ScriptedServer
from tests.spark.helpers import TOPIC, MemoryLog, options, tp


class RackLog(MemoryLog):
    """Even partitions lie in one place, odd ones in another."""

    def hosts(self, topic: str, partition: int) -> Sequence[str]:
        """Return the one host of a partition."""
        return ["even", "odd"][partition % 2 : partition % 2 + 1]


@pytest.mark.parametrize("foreign", ["flihgts", "not a topic of a folder"])
def test_a_topic_that_only_others_read_has_no_partitions_where_it_is_unknown(
    tmp_path_factory: pytest.TempPathFactory, foreign: str
) -> None:
    """One driver with a typing error would end the query of each leader in turn."""
    log = LeadersLog(options(), FolderLog({"path": str(tmp_path_factory.mktemp("log"))}))

    assert log.partitions(foreign) == []
    with pytest.raises(LogError, match="no topic 'flights'"):
        log.partitions("flights")


def test_a_topic_that_matches_the_pattern_is_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that fails for a moment would take the topic away from everybody."""
    log = MemoryLog({0: 0})

    def fail(topic: str) -> list[int]:
        raise LogError(f"no answer about {topic}")

    monkeypatch.setattr(log, "partitions", fail)
    leaders_log = LeadersLog(options(topicsPattern="fl.*"), log)

    with pytest.raises(LogError, match="no answer about flights"):
        leaders_log.partitions(TOPIC)
    assert leaders_log.partitions("gone") == []


@pytest.mark.parametrize("name", ["cooperative", "range", "sticky"])
def test_readers_get_what_lies_on_their_host(name: str) -> None:
    """The log's hint has to reach every assignor."""
    log = LeadersLog(options(), RackLog(dict.fromkeys(range(4), 0)))
    (assignor,) = assignors_of(options(assignor=name), log, eager=False)
    members = [
        MemberSubscription("a", None, (TOPIC,), host="odd"),
        MemberSubscription("b", None, (TOPIC,), host="even"),
    ]

    given = run_assignor(assignor, members, {TOPIC: log.partitions(TOPIC)}, {})

    assert {name: sorted(tps) for name, tps in given.items()} == {
        "a": [tp(1), tp(3)],
        "b": [tp(0), tp(2)],
    }


def test_the_assignors_have_the_names_of_kafkas() -> None:
    """All members of a group vote on them, those of the release before as well."""
    log = LeadersLog(options(), MemoryLog({}))
    both = assignors_of(options(assignor="cooperative, range"), log, eager=False)
    eager = assignors_of(options(assignor="cooperative"), log, eager=True)

    assert [(one.name, one.cooperative) for one in (*both, *eager)] == [
        ("cooperative-sticky", True),
        ("range", False),
        ("cooperative-sticky", False),
    ]


def test_a_reader_waits_for_the_coordinator_no_longer_than_its_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member would wait without an end; Spark's trigger, and its user, want to hear why."""
    server = ScriptedServer()

    def connect(_addresses: list[str], **_: Any) -> Any:
        return connect_to(server, retry=RetrySettings(1, 2))

    monkeypatch.setattr(source_session, "connect_blocking", connect)
    brief = options(requestTimeout="50ms", reportEnds="false")
    session = BlockingSession(brief, "reader", MemoryLog({0: 0}), [TOPIC], eager=False)
    try:
        while True:
            try:
                session.assignment(60)
            except RetriableError:
                continue  # It takes longer on a machine that is busy.
            break
        server.script(m.OffsetFetchRequest, *[15] * 1_000)
        with pytest.raises(CoordinatorUnavailable, match="gave up after"):
            session.fetch([tp(0)])
        server.script(m.OffsetCommitRequest, *[15] * 1_000)
        # In doubt where time is up in the middle of an attempt.
        with pytest.raises((CoordinatorUnavailable, OutcomeUnknown), match="gave up after"):
            session.commit({tp(0): OffsetAndMetadata(1)}, {})
        server.script(m.JoinGroupRequest, *[15] * 1_000)
        session.request_rejoin("test")
        with pytest.raises(CoordinatorUnavailable, match=r"JoinGroup .* gave up after"):
            session.assignment(60)
    finally:
        server.forget_script()
        session.leave()
