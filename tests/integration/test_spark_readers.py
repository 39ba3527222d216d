"""What a driver's reader tells its group: where the log ends, why it leaves, and goodbye.

One story with one driver, as starting one is what takes the time.
"""

import json
import re
import signal
from pathlib import Path

import pytest

from client.exceptions import MemberLost
from client.offsets import OffsetAndMetadata
from client.spark.logs.folder import FolderLog
from client.spark.source.reader_options import parse_options
from client.spark.source.session import BlockingSession
from protocol.partition import TopicPartition
from tests.integration.spark_support import (
    GROUP,
    NUM_PARTITIONS,
    TOPIC,
    Daemon,
    Driver,
    Feeder,
    Written,
    group_of,
    wait_until,
)

pytestmark = [pytest.mark.integration, pytest.mark.spark]

# A first batch on a busy machine takes some seconds.
OPTIONS = {"maxPollInterval": "8s"}


def test_a_reader_shows_lag_leaves_a_frozen_jvm_and_stops_at_control_c(
    tmp_path: Path, coordinator: Daemon, feeder: Feeder
) -> None:
    """As an operator sees it, who did nothing but start the driver."""
    feeder.append(10)
    driver = Driver(
        *("a", tmp_path / "drivers", feeder.root, coordinator.address),
        options=json.dumps(OPTIONS),
    )
    try:
        with group_of(coordinator) as group:
            driver.go()
            driver.lines.wait("started")
            driver.tell("run")
            driver.wait_rows()

            ends = {TopicPartition(TOPIC, p): 10 for p in range(NUM_PARTITIONS)}
            wait_until(
                "the log's ends",
                lambda: {tp: one.end for tp, one in group.client.lag(GROUP).items()} == ends,
            )
            wait_until(
                "no lag", lambda: {0} == {one.lag for one in group.client.lag(GROUP).values()}
            )
            group.wait_members(1)
            assert re.match("spark-tests-[0-9a-f]{8}-", group.member_ids()[0])

            driver.signal_jvm(signal.SIGSTOP)
            wait_until("an empty group", lambda: group.state() == "empty")
            assert coordinator.evictions() == 0
            assert "Spark has not asked its reader for 8 s" in str(
                group.client.rebalances(GROUP)[0]
            )
            feeder.append(10)
            driver.signal_jvm(signal.SIGCONT)
            driver.wait_rows()
            group.wait_members(1)

            driver.signal(signal.SIGINT)  # As a terminal does: to all processes of the driver.
            assert driver.lines.wait("stopped")["failure"] is None
            wait_until("an empty group", lambda: group.state() == "empty")
            assert group.offsets() == feeder.ends()
            assert coordinator.evictions() == 0
    finally:
        driver.kill()
    written = Written(driver.sink)
    written.expect_all(feeder.ends())
    assert written.repeated == []
    errors = driver.errors()
    assert "Traceback" not in errors, errors
    assert "stopped; nothing will run twice" in errors
    assert errors.count("Spark has not asked its reader for 8 s") >= 1


def test_a_member_that_left_commits_nothing_before_it_has_joined_anew(
    coordinator: Daemon, feeder: Feeder
) -> None:
    """Without Spark: what a reader does in the moment in which it is asked again."""
    feeder.append(10)
    log = FolderLog({"path": str(feeder.root)})
    given = {"coordinator": coordinator.address, "group": GROUP, "topics": TOPIC}
    session = BlockingSession(parse_options(given), "reader", log, [TOPIC], eager=False)
    one = TopicPartition(TOPIC, 0)
    try:
        before = session.assignment(30)
        session.commit({one: OffsetAndMetadata(5)}, {one: -1})

        session.depart("nobody asks")

        with group_of(coordinator) as group:
            assert group.state() == "empty"
        assert session.lost
        assert session.rebalance_needed
        with pytest.raises(MemberLost, match="this reader has left: nobody asks"):
            session.commit({one: OffsetAndMetadata(7)}, {one: 5})
        after = session.assignment(30)
        assert after.generation > before.generation
        assert after.member_id != before.member_id
        assert not session.lost
        assert session.fetch([one])[one].offset == 5
        session.commit({one: OffsetAndMetadata(7)}, {one: 5})
    finally:
        session.leave()
    assert coordinator.evictions() == 0


@pytest.mark.parametrize("reports", ["true", "false"])
def test_ends_are_reported_without_another_rebalance_and_bound_no_commit(
    coordinator: Daemon, feeder: Feeder, reports: str
) -> None:
    """Without Spark: what the reader notes, and what the coordinator knows of it."""
    log = FolderLog({"path": str(feeder.root)})
    given = {"coordinator": coordinator.address, "group": GROUP, "topics": TOPIC}
    options = parse_options({**given, "reportEnds": reports})
    session = BlockingSession(options, "reader", log, [TOPIC], eager=False)
    beyond = TopicPartition(TOPIC, NUM_PARTITIONS)
    try:
        session.note_topics({TOPIC: list(range(NUM_PARTITIONS))})
        assigned = session.assignment(30).partitions
        session.note_ends(dict.fromkeys(assigned, 10))
    finally:
        session.leave()  # Tells what is left to tell.

    with group_of(coordinator) as group:
        group.client.commit(GROUP, {**dict.fromkeys(assigned, 4), beyond: 1})
        lags = {tp: one.lag for tp, one in group.client.lag(GROUP).items()}
        triggers = [one.trigger for one in reversed(group.client.rebalances(GROUP))]
        registered = [one.topic for one in group.client.describe_topics()]
    if reports == "true":
        assert lags == {**dict.fromkeys(assigned, 6), beyond: None}
        assert registered == [TOPIC]
    else:
        assert set(lags.values()) == {None}
        assert registered == []
    assert triggers == ["member joined", "member left"]
