"""/metrics: the numbers of a whole daemon in memory, as Prometheus reads them."""

from collections.abc import Sequence

import trio
import trio.testing
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from coordinator.http.metrics import (
    KEPT_S,
    TURN_SAMPLES,
    Exporter,
    Scrapes,
    metric_of,
    texts_of,
)
from coordinator.http.routes import Answer
from coordinator.http.series import CATALOGUE, Family
from protocol.histogram import Histogram
from protocol.messages import (
    PartitionEnd,
    RegisterTopicsRequest,
    ReportEndOffsetsRequest,
    TopicEnds,
    TopicRegistration,
)
from tests.fakes.environment import answered_alike
from tests.http.asking import request
from tests.server.world import World, commit, world


async def scraped(here: World) -> dict[str, Metric]:
    """Return each family of a scrape by its name in the catalogue."""
    exporter = Exporter(here.node, here.environment, here.settings, trio.lowlevel.checkpoint)
    (route,) = Scrapes(exporter.scrape).routes()
    answer = await route.handler(request("/metrics"))
    assert isinstance(answer, Answer)
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    text = b"".join(answer.body).decode()
    found = {}
    for metric in text_string_to_metric_families(text):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        assert name not in found
        found[name] = metric
    return found


def value(families: dict[str, Metric], name: str, /, **labels: str) -> float:
    """Return the one sample of *name* that has these *labels*."""
    family = families[name.removesuffix("_bucket").removesuffix("_count")]
    (found,) = (
        sample.value
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return found


async def test_a_scrape_has_every_family_of_the_catalogue_and_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One without a series is there, too: so a misspelt query is told from an idle daemon."""
    async with world() as here:
        families = await scraped(here)

    assert {name: metric.type for name, metric in families.items()} == {
        family.name: family.kind for family in CATALOGUE
    }


async def test_what_an_idle_daemon_knows_of_itself_is_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What another part declares under another name than it is looked for would be missing."""
    async with world() as here:
        families = await scraped(here)
    without = {
        family.name
        for family in CATALOGUE
        if not family.labels and not families[family.name].samples
    }

    # There is no cluster here, no HTTP listener, nor one with TLS, no lines are printed, and this
    # is the first scrape.
    assert without <= {
        "group_coordinator_cluster_nodes",
        "group_coordinator_cluster_nodes_expected",
        "group_coordinator_journals",
        "group_coordinator_journals_frozen",
        "group_coordinator_journals_without_leader",
        "group_coordinator_journals_led",
        "group_coordinator_certificate_left_seconds",
        "group_coordinator_tls_handshakes",
        "group_coordinator_http_connections",
        "group_coordinator_http_event_streams",
        "group_coordinator_log_lines_dropped_total",
        "group_coordinator_scrape_seconds",
    }


async def test_a_commit_is_seen_everywhere(autojump_clock: trio.testing.MockClock) -> None:
    """From the request over the group to its partition."""
    async with world() as here:
        client = here.connect()
        await client.ask(RegisterTopicsRequest((TopicRegistration("t", 2, ()),)))
        await client.ask(ReportEndOffsetsRequest((TopicEnds("t", (PartitionEnd(0, 10),)),)))
        await client.ask(commit(4))
        families = await scraped(here)

    assert value(families, "group_coordinator_groups", state="Empty") == 1
    assert value(families, "group_coordinator_offsets") == 1
    assert value(families, "group_coordinator_topics") == 1
    assert value(families, "group_coordinator_group_lag", group_id="g") == 6
    assert (
        value(families, "kminion_kafka_consumer_group_topic_partition_lag", partition_id="0") == 6
    )
    assert value(families, "kminion_kafka_topic_info", partition_count="2") == 1
    assert value(families, "group_coordinator_partitions", status="active") == 4
    assert value(families, "group_coordinator_load_ratio") == 1


async def test_answers_are_counted_by_their_error(autojump_clock: trio.testing.MockClock) -> None:
    """What succeeded is counted once, and not among the errors."""
    async with world() as here:
        counts = here.environment.telemetry
        answered_alike(counts, 8, 0, 0.002)
        answered_alike(counts, 8, 22, 0.2)
        answered_alike(counts, 8, -7, 20.0)
        families = await scraped(here)
    requests = "group_coordinator_requests_total"
    seconds = "group_coordinator_request_seconds"

    assert value(families, requests, api="OffsetCommit", error="NONE") == 1
    assert value(families, requests, api="OffsetCommit", error="ILLEGAL_GENERATION") == 1
    assert value(families, requests, api="OffsetCommit", error="-7") == 1
    assert value(families, f"{seconds}_bucket", api="OffsetCommit", le="0.0025") == 1
    assert value(families, f"{seconds}_bucket", api="OffsetCommit", le="10.0") == 2
    assert value(families, f"{seconds}_bucket", api="OffsetCommit", le="+Inf") == 3
    assert value(families, f"{seconds}_count", api="OffsetCommit") == 3


async def test_a_problem_is_shown_by_its_part(autojump_clock: trio.testing.MockClock) -> None:
    """Alerts are written against the parts, which are always there."""
    async with world() as here:
        here.node.health.report("compaction", "the child died")
        families = await scraped(here)

    assert value(families, "group_coordinator_problem", part="compaction") == 1
    assert value(families, "group_coordinator_problem", part="storage") == 0


async def test_a_daemon_that_has_yet_to_load_can_be_scraped(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A load takes minutes at worst, which is when somebody looks."""
    async with world(load=False) as here:
        families = await scraped(here)

    assert value(families, "group_coordinator_load_ratio") == 0
    assert value(families, "group_coordinator_partitions", status="active") == 0
    assert families["group_coordinator_load_seconds"].samples == []


async def test_who_comes_while_a_scrape_is_made_or_soon_after_gets_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Sixteen that scrape without a pause cost no more than one."""
    made = 0

    async def make() -> Sequence[bytes]:
        nonlocal made
        made += 1
        await trio.sleep(0.1)
        return (b"%d" % made,)

    scrapes = Scrapes(make)
    taken: list[Sequence[bytes]] = []

    async def take(after_s: float) -> None:
        await trio.sleep(after_s)
        taken.append(await scrapes.latest())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(scrapes.forget_each)
        async with trio.open_nursery() as takers:
            for after_s in (0, 0.05, 0.9 * KEPT_S, 1.1 * KEPT_S, 2.2 * KEPT_S):
                takers.start_soon(take, after_s)
        nursery.cancel_scope.cancel()

    assert taken == [(b"1",), (b"1",), (b"1",), (b"2",), (b"3",)]


async def test_a_scrape_that_takes_long_is_made_anew_for_who_comes_after_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is old already, and nobody shall see one that is older than it must be."""
    made = 0

    async def make() -> Sequence[bytes]:
        nonlocal made
        made += 1
        await trio.sleep(2 * KEPT_S)
        return (b"%d" % made,)

    scrapes = Scrapes(make)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scrapes.forget_each)
        first = await scrapes.latest()
        await trio.testing.wait_all_tasks_blocked()
        second = await scrapes.latest()
        nursery.cancel_scope.cancel()

    assert (first, second) == ((b"1",), (b"2",))


async def test_another_makes_the_scrape_whose_maker_is_gone() -> None:
    """One that gives up must not take the others with it."""
    may_end = trio.Event()

    async def make() -> Sequence[bytes]:
        await may_end.wait()
        return (b"made",)

    scrapes = Scrapes(make)
    taken: list[Sequence[bytes]] = []

    async def take() -> None:
        taken.append(await scrapes.latest())

    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def give_up() -> None:
            with first:
                await take()

        nursery.start_soon(give_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take)
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()

    assert taken == [(b"made",), (b"made",)]


def test_a_long_family_is_written_in_turns_and_has_one_head() -> None:
    """All APIs with all buckets are 500 lines, which take prometheus-client 5 ms."""
    family = Family("f_seconds", "histogram", ("api",), "F.")
    histogram = Histogram()
    histogram.note(0.3)
    metric = metric_of(family, {(f"a{at}",): histogram for at in range(40)})
    texts = list(texts_of(metric))
    (parsed,) = text_string_to_metric_families(b"".join(texts).decode())

    assert max(text.count(b"\n") for text in texts) <= TURN_SAMPLES + 2
    assert len(parsed.samples) == 40 * (15 + 2)
    assert b"".join(texts).count(b"# ") == 2
