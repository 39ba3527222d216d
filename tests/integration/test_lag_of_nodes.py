"""Lag in seconds, asked of each of three real nodes each second, while journals move."""

import json
import logging
import math
import os
import re
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

from bench.ensemble import Ensemble
from client.blocking import connect_blocking
from coordinator.cluster.node import FORMAT_AFTER_MS
from coordinator.group.ends_history import REPEAT_LOG_MS
from protocol.messages import DescribeJournalsRequest, MoveJournalRequest
from protocol.partition import TopicPartition
from tests.integration.cluster_support import Nodes, cluster
from tests.integration.test_cluster import get

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.integration

# Ten minutes show that nothing comes and goes by the minute.
SECONDS: Final = int(os.environ.get("LAG_SECONDS", "60"))
RATE: Final = 100  # Records a second.
BEHIND_S: Final = 21
PROMISED_S: Final = 2.0
# Seconds by which an answer may be late on a busy machine.
SLACK_S: Final = 1.0
GROUPS: Final = [f"group-{number}" for number in range(8)]
BUSY: Final = TopicPartition("busy", 0)
IDLE_AGE: Final = re.compile(
    r'^group_coordinator_topic_end_age_seconds{topic_name="idle"} (\S+)$', re.MULTILINE
)
IDLE: Final = TopicPartition("idle", 0)


class Answer(NamedTuple):
    """A lag that a node said, and how long ago the end really passed the committed offset."""

    second: float
    node: int
    group: str
    lag_seconds: float | None
    truth_s: float


@contextmanager
def every_second(do: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Have *do* called each second, in a thread; yield what it raised."""
    raised: list[BaseException] = []
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(1.0):
            try:
                do()
            except BaseException as exc:
                raised.append(exc)
                raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        is_over.set()
        thread.join()


def move(nodes: Nodes, journal: int) -> None:
    """Have another node lead a journal; whoever leads it is asked."""
    for daemon in nodes.running.values():
        with daemon.connect() as connection:
            seen: Any = connection.ask(DescribeJournalsRequest())
            if seen.journals[journal].leader == seen.node_id:
                to = seen.node_id % len(nodes.running) + 1
                done: Any = connection.ask(MoveJournalRequest(journal, to))
                assert done.error == 0, done.message
                return
    pytest.fail(f"nobody leads journal {journal}")


def test_lag_in_seconds_is_true_on_every_node_through_two_moves(zookeeper: Ensemble) -> None:
    """Only the leader of the topics had it right; elsewhere it came and went by the minute."""
    where = f"{zookeeper.hosts}/lag/{time.monotonic_ns()}"
    settings = "cluster.session.timeout.ms=6000", "http.listeners=127.0.0.1:0"
    with cluster(where, *settings) as nodes, connect_blocking(nodes.addresses) as driver:
        driver.register_topics({"busy": 1, "idle": 1})
        start_s = time.monotonic()

        def report() -> None:
            end = int((time.monotonic() - start_s) * RATE)
            driver.report_end_offsets({BUSY: end, IDLE: 7})

        def commit() -> None:
            done = max(int((time.monotonic() - start_s - BEHIND_S) * RATE), 0)
            for group in GROUPS:
                driver.commit(group, {BUSY: done})

        with every_second(report) as reports, every_second(commit) as commits:
            answers, ages = watched(nodes, start_s)
        assert (reports, commits) == ([], [])

    steady = [one for one in answers if one.second > BEHIND_S + 5]
    logger.info("%d answers, off by %.2f s at most", len(steady), max(map(off_s, steady)))
    assert [one for one in steady if off_s(one) > PROMISED_S + SLACK_S] == []
    by_node = Counter(one.node for one in steady)
    assert min(by_node[number] for number in (1, 2, 3)) > (SECONDS - BEHIND_S) / 4
    if ages:
        logger.info("the idle end was %.1f s old at most, in %d answers", max(ages), len(ages))
        assert max(ages) < REPEAT_LOG_MS / 1000 + PROMISED_S + SLACK_S


def off_s(one: Answer) -> float:
    """Return by how much an answer is wrong."""
    return math.inf if one.lag_seconds is None else abs(one.lag_seconds - one.truth_s)


def watched(nodes: Nodes, start_s: float) -> tuple[list[Answer], list[float]]:
    """Ask each node each second; move the topics, and then a group, in between."""
    answers: list[Answer] = []
    ages: list[float] = []
    moves = [(SECONDS * 2 // 3, 1), (SECONDS // 2, 0)]
    while (second := time.monotonic() - start_s) < SECONDS:
        if moves and second > moves[-1][0]:
            move(nodes, moves.pop()[1])
        for number, daemon in nodes.running.items():
            for group in GROUPS:
                query = urllib.parse.urlencode({"group": group})
                status, body = get(daemon, f"/api/v1/group/partitions?{query}")
                now_s = time.monotonic() - start_s
                if status != 200:
                    continue  # The group is led by another node.
                (one,) = json.loads(body)["items"]
                truth_s = now_s - one["committed"] / RATE
                answers.append(Answer(now_s, number, group, one["lag_seconds"], truth_s))
            # The format of the log that has such reports comes into use after a while.
            if second > FORMAT_AFTER_MS / 1000 + 2 * REPEAT_LOG_MS / 1000:
                found = IDLE_AGE.search(get(daemon, "/metrics")[1])
                assert found, "a node doesn't show how old the idle end is"
                ages.append(float(found[1]))
        time.sleep(max(0.0, second + 1 - (time.monotonic() - start_s)))
    assert not moves
    return answers, ages
