"""/metrics of a real daemon, read by Prometheus' own programs while clients commit."""

import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from coordinator.http.series import CATALOGUE
from protocol import messages as m
from protocol.errors import ErrorCode
from tests.deploy.support import needs
from tests.integration.daemon import Daemon, daemon, until
from tests.integration.prometheus import prometheus

pytestmark = pytest.mark.integration

ON: Final = "http.listeners=127.0.0.1:0"
# What a client may call a group and a topic: anything without control characters.
HOSTILE: Final = ['a"b', "a\\b", "\\n", 'x"} 1 evil{a="', "<b>é\u202e\u2028", "#", " ", "g" * 255]
# What promtool holds against names that are not ours to choose.
_NO_SUM: Final = 'non-histogram and non-summary metrics should not have "_sum" suffix'
LINT: Final = {
    f"kminion_kafka_consumer_group_topic_offset_sum {_NO_SUM}",
    f"kminion_kafka_topic_high_water_mark_sum {_NO_SUM}",
}


def filled(running: Daemon) -> None:
    """Have groups and topics of all names, each 10 behind."""
    with running.connect() as client:
        topics = tuple(m.TopicRegistration(name[:249], 2, None) for name in HOSTILE)
        client.ask(m.RegisterTopicsRequest(topics))
        for end in (50, 100):
            ends = tuple(m.TopicEnds(t.topic, (m.PartitionEnd(0, end),)) for t in topics)
            client.ask(m.ReportEndOffsetsRequest(ends))
        for name in HOSTILE:
            answer = client.ask(commit_of(name, 90))
            assert isinstance(answer, m.OffsetCommitResponse)
            assert answer.error == ErrorCode.NONE


def commit_of(name: str, offset: int) -> m.OffsetCommitRequest:
    """Return a commit of a group for the topic of the same name."""
    partitions = (m.PartitionCommit(0, offset, -1, "", None),)
    return m.OffsetCommitRequest(name, -1, "", None, (m.TopicCommit(name[:249], partitions),))


@contextmanager
def busy(running: Daemon) -> Iterator[None]:
    """Commit all the while."""
    is_over = threading.Event()

    def work() -> None:
        with running.connect() as client:
            while not is_over.is_set():
                client.ask(commit_of("busy", 1))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)


def scraped(running: Daemon) -> str:
    """Return the text."""
    port = running.wait_for("http.listening")["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        text: str = answer.read().decode()
    return text


def families_of(text: str) -> dict[str, Metric]:
    """Return what prometheus-client reads."""
    return {
        f"{one.name}_total" if one.type == "counter" else one.name: one
        for one in text_string_to_metric_families(text)
    }


def test_prometheus_own_programs_accept_a_scrape_under_load(tmp_path: Path) -> None:
    """They are stricter than any parser of ours."""
    promtool = needs("promtool")
    with daemon(tmp_path / "data", ON) as running:
        filled(running.ready())
        with busy(running):
            texts = [scraped(running) for _ in range(3)]
        for text in texts:
            done = subprocess.run(
                [promtool, "check", "metrics"],
                input=text,
                capture_output=True,
                text=True,
                check=False,
            )

            assert set(filter(None, (done.stdout + done.stderr).splitlines())) <= LINT
            assert set(families_of(text)) == {family.name for family in CATALOGUE}
        assert running.stop() == 0


def test_what_clients_do_is_counted(tmp_path: Path) -> None:
    """From the socket to the disk: none of the numbers is made up by a test's world."""
    with daemon(tmp_path / "data", ON) as running:
        filled(running.ready())
        first = scraped(running)
        until(lambda: scraped(running) != first, "another scrape", pause_s=0.2)
        families = families_of(scraped(running))
        assert running.stop() == 0

    def samples(name: str, **labels: str) -> list[float]:
        family = families[name.removesuffix("_count").removesuffix("_sum")]
        return [
            sample.value
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    count = len(HOSTILE)
    assert samples("group_coordinator_requests_total", api="OffsetCommit", error="NONE") == [count]
    assert samples("group_coordinator_request_seconds_count", api="OffsetCommit") == [count]
    assert samples("group_coordinator_groups", state="Empty") == [count]
    assert samples("group_coordinator_offsets") == [count]
    assert samples("group_coordinator_topics") == [count]
    assert samples("group_coordinator_group_lag") == [10] * count
    assert samples("group_coordinator_connections_accepted_total") == [1]
    (scrapes,) = samples("group_coordinator_http_requests_total", route="/metrics", status="200")
    assert scrapes >= 1
    assert samples("group_coordinator_load_ratio") == [1]
    for positive in (
        "group_coordinator_received_bytes_total",
        "group_coordinator_sent_bytes_total",
        "group_coordinator_flush_seconds_count",
        "group_coordinator_flush_wait_seconds_count",
        "group_coordinator_fsync_seconds_count",
        "group_coordinator_flush_bytes_sum",
        "group_coordinator_log_bytes",
        "group_coordinator_disk_free_bytes",
        "group_coordinator_uptime_seconds",
        "group_coordinator_scrape_seconds",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
    ):
        (value,) = samples(positive)
        assert value > 0, positive
    (started_s,) = samples("process_start_time_seconds")
    assert 0 < time.time() - started_s < 600


def test_a_real_prometheus_has_every_name_as_it_is(tmp_path: Path) -> None:
    """A group's name is a label, and its lag must be found under it."""
    needs("prometheus")
    with daemon(tmp_path / "data", ON) as running:
        filled(running.ready())
        port = running.wait_for("http.listening")["port"]
        with prometheus(tmp_path / "prometheus", f"127.0.0.1:{port}") as watcher:
            found = watcher.value("kminion_kafka_consumer_group_topic_lag")
            errors = [one["lastError"] for one in watcher.get("targets")["activeTargets"]]

    assert {one["metric"]["group_id"]: one["value"][1] for one in found} == dict.fromkeys(
        HOSTILE, "10"
    )
    assert errors == [""]


def test_the_bound_of_the_settings_holds(tmp_path: Path) -> None:
    """Whoever sets it counts on that memory and that traffic."""
    with daemon(tmp_path / "data", ON, "metrics.max.series=20") as running:
        filled(running.ready())
        families = families_of(scraped(running))

        assert len(families["kminion_kafka_consumer_group_members"].samples) == 2
        left_out = families["group_coordinator_series_left_out"].samples
        assert {one.labels["level"]: one.value for one in left_out if one.value}["group"] == 7 * (
            len(HOSTILE) - 2
        )
        assert running.stop() == 0
