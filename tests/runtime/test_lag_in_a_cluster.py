"""Lag in seconds and the age of ends, as each node of a cluster computes them from the log."""

from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from coordinator.cluster import entries
from coordinator.cluster.node import FORMAT_AFTER_MS
from coordinator.group.ends_history import REPEAT_LOG_MS
from coordinator.group.facts import GroupFacts, TopicEndFacts
from coordinator.group.lag import Turn
from protocol.messages import (
    CompactLogRequest,
    OffsetCommitRequest,
    PartitionCommit,
    PartitionEnd,
    RegisterTopicsRequest,
    ReportEndOffsetsRequest,
    TopicCommit,
    TopicEnds,
    TopicRegistration,
)
from tests.sim.cluster import Cluster, Host, ask, cluster, until

RATE: Final = 10  # Records a second, of the topic that is written to.
BEHIND_S: Final = 21
PROMISED_S: Final = 2


def report(ends: dict[str, int]) -> ReportEndOffsetsRequest:
    """Report how far partition 0 of some topics reaches."""
    topics = tuple(TopicEnds(name, (PartitionEnd(0, end),)) for name, end in ends.items())
    return ReportEndOffsetsRequest(topics)


class Story:
    """A topic that is written to, one that is idle, and a group that is behind in the first.

    Attributes:
        second: Since the beginning.
    """

    def __init__(self, here: Cluster) -> None:
        self.here = here
        self.second = 0
        self._client: dict[Host, Any] = {}

    async def begin(self) -> None:
        """Register both topics."""
        await until(lambda: bool(self.registrars()))
        (registrar,) = self.registrars()
        for name in ("busy", "idle"):
            request = RegisterTopicsRequest((TopicRegistration(name, 1, None),), False)
            answer: Any = await ask(registrar.connect(), request)
            assert answer.error == 0

    def registrars(self) -> list[Host]:
        """Return the node that decides about topics, if there is one."""
        hosts = self.here.hosts.values()
        return [host for host in hosts if host.node.registry.refusal() is None]

    async def live(self, seconds: int, look: Callable[[Host], None]) -> None:
        """Report ends and commit each second, and *look* at each node in between."""
        for _ in range(seconds):
            self.second += 1
            await self._tell(self.registrars(), report({"busy": RATE * self.second, "idle": 7}))
            committed = max(RATE * (self.second - BEHIND_S), 0)
            topics = (TopicCommit("busy", (PartitionCommit(0, committed, -1, "", None),)),)
            leaders = [host for host in self.here.hosts.values() if host.serves("g")]
            await self._tell(leaders, OffsetCommitRequest("g", -1, "", None, topics))
            await trio.sleep_until(self.second + 0.9)
            for host in self.here.hosts.values():
                look(host)
            await trio.sleep_until(self.second + 1)

    async def _tell(self, hosts: list[Host], request: Any) -> None:
        """Send *request*; while journals move, there may be nobody to answer it."""
        for host in hosts:
            client = self._client.setdefault(host, host.connect())
            with trio.move_on_after(0.3):
                await ask(client, request)


def lag_seconds(host: Host) -> float:
    """Return how far the group is behind, as a node computes it, leading it or not."""
    now_ms = host.node.now().mono_ms
    found = [one for one in host.node.shard_of("g").core.facts_of("g", now_ms, Turn()) if one]
    assert all(isinstance(one, GroupFacts) for one in found)
    return found[0].lag_seconds


def age_s(host: Host, topic: str) -> float:
    """Return for how long nobody has told of the end of a topic, as a node says."""
    found = host.node.registry.core.topic_facts(host.node.now(), Turn())
    ages = {one.topic: one.age_ms for one in found if isinstance(one, TopicEndFacts)}
    return ages[topic] / 1000


async def move_topics(here: Cluster) -> None:
    """Have another node lead the journal of the topics."""
    await until(lambda: any(h.node.registry.refusal() is None for h in here.hosts.values()))
    old = here.registrar
    numbers = sorted(here.hosts)
    to = numbers[(numbers.index(old.number) + 1) % len(numbers)]
    old.store.move(0, to, lambda _is_done: None)


@pytest.mark.parametrize("wall_shift_ms", [0, 800, -800])
async def test_each_node_says_the_same_lag_in_seconds_through_moves(
    wall_shift_ms: int, autojump_clock: MockClock
) -> None:
    """Followers guessed, once a minute, at what only the leader of the topics had noted."""
    async with cluster() as here:
        here.hosts[1].wall_shift_ms = wall_shift_ms
        story = Story(here)
        await story.begin()
        await trio.sleep_until(5)
        story.second = 5
        wrong: list[tuple[int, int, float]] = []

        def look(host: Host) -> None:
            if story.second > 5 + BEHIND_S + 10:
                # The newest record is as old as its report.
                seconds = lag_seconds(host)
                if abs(seconds - BEHIND_S - 0.9) > PROMISED_S:
                    wrong.append((story.second, host.number, seconds))

        await story.live(100, look)
        await move_topics(here)
        await story.live(100, look)
        await move_topics(here)
        await story.live(100, look)

        assert wrong == []


async def test_each_node_knows_when_an_end_that_stays_was_last_reported(
    autojump_clock: MockClock,
) -> None:
    """An idle topic is looked at, and no alert says otherwise; its log stays small."""
    async with cluster() as here:
        story = Story(here)
        await story.begin()
        await trio.sleep(FORMAT_AFTER_MS / 1000)
        story.second = int(trio.current_time()) + 1
        await trio.sleep_until(story.second)
        ages: list[float] = []

        def look(host: Host) -> None:
            ages.append(age_s(host, "idle"))

        await story.live(2, look)
        before = here.registrar.node.registry.log.end_offset(65535)
        await story.live(60, look)
        await move_topics(here)
        await story.live(60, look)

        assert max(ages) <= REPEAT_LOG_MS / 1000 + 2
        # One for each end of the busy topic, and of the idle one one in ten seconds.
        written = here.registrar.node.registry.log.end_offset(65535) - before
        assert written <= 120 + 120 * 1000 // REPEAT_LOG_MS + 1
        # A node that loads it knows as much.
        answer: Any = await ask(here.registrar.connect(), CompactLogRequest())
        assert answer.error == 0
        new = here.start(77)
        await until(lambda: new.node.ready)
        assert age_s(new, "idle") <= REPEAT_LOG_MS / 1000 + 2


async def test_a_repeated_end_is_logged_once_no_node_is_of_an_older_release(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one would end at it; its ages are wrong, as they were, and its lag is right."""
    async with cluster(nodes=2) as here:
        here.formats = (1, 1)
        old = here.start(3)
        await until(lambda: here.is_settled)
        story = Story(here)
        await story.begin()
        story.second = int(trio.current_time()) + 1
        await trio.sleep_until(story.second)
        await story.live(2 * FORMAT_AFTER_MS // 1000, lambda _host: None)
        newer = [host for host in here.hosts.values() if host is not old]
        logged = here.registrar.node.registry.core.registry.ends["idle"][0].reported_ms
        assert old.node.registry.core.registry.ends["idle"][0].reported_ms == logged
        assert max(age_s(host, "idle") for host in newer) > FORMAT_AFTER_MS / 1000
        await old.stop()
        here.end_session(old)
        here.kill(old)
        await story.live(FORMAT_AFTER_MS // 1000 + 15, lambda _host: None)

        assert max(age_s(host, "idle") for host in newer) <= REPEAT_LOG_MS / 1000 + 2
        assert entries.FORMATS == (1, 2)
