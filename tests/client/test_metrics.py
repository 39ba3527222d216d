"""What a client counts, as prometheus-client shows it."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry
from trio.testing import MockClock

from client import OutcomeUnknown, TopicPartition
from client.metrics import watch_client, watch_listener
from client.spark.listener.metrics import ListenerMetrics
from protocol import messages as m
from tests.client.conftest import World
from tests.client.served import served
from tests.fakes.scripted_server import Drop
from tests.guide import ROOT
from tests.spark.test_listener_metrics import TARGET, query

T0 = TopicPartition("t", 0)


@pytest.fixture
def registry() -> CollectorRegistry:
    """Return an empty registry."""
    return CollectorRegistry()


def documented() -> set[tuple[str, str]]:
    """Return name and kind of each series that docs/metrics.md has of a client."""
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(group_client_\w+)` \| (\w+) \|", page, flags=re.MULTILINE)
    return {(name, kind) for name, kind in rows}


async def test_a_members_life_stands_in_the_numbers(
    autojump_clock: MockClock, registry: CollectorRegistry
) -> None:
    """Whoever looks at a graph at night asks these."""
    async with served() as daemon, daemon.connect("loader") as client:
        forget = watch_client(client, registry)
        labels = {"client_id": "loader", "group": "g"}
        async with client.join("g", ["t"], {"t": 2}) as member:
            await member.assignment()
            await member.commit({T0: 5})
            await trio.sleep(10)

            value = registry.get_sample_value
            assert value("group_client_member_state", {**labels, "state": "stable"}) == 1
            assert value("group_client_member_state", {**labels, "state": "joining"}) == 0
            assert value("group_client_assigned_partitions", labels) == 2
            assert value("group_client_generation", labels) == 1
            assert value("group_client_rebalances_total", labels) == 1
            assert value("group_client_rebalance_seconds_count", labels) == 1
            assert value("group_client_commits_total", {**labels, "outcome": "done"}) == 1
            age_s = value("group_client_heartbeat_age_seconds", labels)
            assert age_s is not None
            assert 0 <= age_s < 15
            one = {"client_id": "loader", "api": "OffsetCommit"}
            assert value("group_client_requests_total", {**one, "error": "NONE"}) == 1
            assert value("group_client_request_seconds_count", one) == 1
            assert value("group_client_connections", {"client_id": "loader"}) == 1
            assert value("group_client_outage_seconds", {"client_id": "loader"}) == 0
            assert documented() == {
                (f"{one.name}_total" if one.type == "counter" else one.name, one.type)
                for one in registry.collect()
            }

        assert value("group_client_assigned_partitions", labels) is None
        assert value("group_client_commits_total", {**labels, "outcome": "done"}) == 1
        forget()
        assert generate_latest(registry) == b""


async def test_an_outage_and_doubt_can_be_seen(
    autojump_clock: MockClock, world: World, registry: CollectorRegistry
) -> None:
    """They are what an alert is made of."""
    async with world.connect(request_timeout_ms=30_000) as client:
        watch_client(client, registry)
        world.server.script(m.OffsetCommitRequest, Drop(applied=True))
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                with pytest.raises(OutcomeUnknown):
                    await client.commit("g", {T0: 1})

            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            world.server.unreachable = True
            await trio.sleep(20)
            away_s = registry.get_sample_value(
                "group_client_outage_seconds", {"client_id": "client"}
            )
            assert away_s is not None
            assert 15 < away_s <= 20

        value = registry.get_sample_value
        labels = {"client_id": "client", "group": "g", "outcome": "unknown"}
        assert value("group_client_commits_total", labels) == 1
        lost = {"client_id": "client", "api": "OffsetCommit", "error": "no answer"}
        assert (value("group_client_requests_total", lost) or 0) >= 1


async def test_what_was_counted_together_does_not_fall_when_one_is_forgotten(
    autojump_clock: MockClock, world: World, registry: CollectorRegistry
) -> None:
    """Prometheus would take that for a restart, and count all that is left once more."""
    labels = {"client_id": "client", "group": "g", "outcome": "done"}
    apis = {"client_id": "client", "api": "OffsetCommit"}

    def told() -> list[float | None]:
        return [
            registry.get_sample_value("group_client_commits_total", labels),
            registry.get_sample_value("group_client_request_seconds_count", apis),
        ]

    async with world.connect() as first, world.connect() as second:
        forget_first, forget_second = (watch_client(one, registry) for one in (first, second))
        for client in (first, second, second):
            await client.commit("g", {T0: 1})

        assert told() == [3, 3]
        forget_second()
        assert told() == [3, 3]
        await first.commit("g", {T0: 1})
        assert told() == [4, 4]
        forget_first()
        forget_first()
        assert told() == [None, None]
        forget_first = watch_client(first, registry)
        assert told() == [2, 2]


async def test_a_member_that_never_joined_has_no_generation(
    autojump_clock: MockClock, world: World, registry: CollectorRegistry
) -> None:
    """What is not known has no sample."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 1}):
        watch_client(client, registry)
        labels = {"client_id": "client", "group": "g"}

        assert registry.get_sample_value("group_client_assigned_partitions", labels) == 0
        assert registry.get_sample_value("group_client_generation", labels) is None


async def test_a_client_can_be_asked_in_another_trio_program(
    autojump_clock: MockClock, world: World
) -> None:
    """Whoever scrapes may have a run, and so a clock, of its own."""
    async with world.connect(request_timeout_ms=30_000) as client:
        world.server.unreachable = True
        world.server.script(m.OffsetCommitRequest, Drop(applied=False))
        with trio.move_on_after(20):
            await client.commit("g", {T0: 1})

        async def ask() -> float:
            await trio.lowlevel.checkpoint()
            return client.now().outage_s

        assert await trio.to_thread.run_sync(trio.run, ask) == client.now().outage_s
        assert 15 < client.now().outage_s <= 20


async def test_clients_of_one_name_are_told_together(
    autojump_clock: MockClock, world: World, registry: CollectorRegistry
) -> None:
    """Two samples with the same labels would make Prometheus refuse the whole scrape."""
    async with world.connect() as one, world.connect() as other:
        watch_client(one, registry)
        watch_client(other, registry)
        for client in (one, other):
            await client.commit("g", {T0: 1})

        text = generate_latest(registry).decode()

    seen = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(set(seen)) == len(seen)
    labels = {"client_id": "client", "group": "g", "outcome": "done"}
    assert registry.get_sample_value("group_client_commits_total", labels) == 2


def test_a_listeners_families_are_those_of_its_text(registry: CollectorRegistry) -> None:
    """Two ways to the same numbers must not drift apart."""
    metrics = ListenerMetrics((query(3, None),), (TARGET,))
    forget = watch_listener(SimpleNamespace(metrics=lambda: metrics), registry)

    def samples(text: str) -> Iterator[Any]:
        for family in text_string_to_metric_families(text):
            yield from family.samples

    assert list(samples(generate_latest(registry).decode())) == list(
        samples(metrics.to_prometheus())
    )
    forget()
    assert generate_latest(registry) == b""
