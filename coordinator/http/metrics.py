"""/metrics: what Prometheus scrapes, made in turns, one scrape at a time.

The families of the process are made of plain numbers, which others count, and written by
prometheus-client, a family in a turn. Those of groups and topics are walked over and written by
`series`. The text is the same for all, so many who scrape cost what one does: a scrape is kept for
a second. Nothing else is kept between two of them but a few forms of lines.
"""

import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, TypeVar

import trio
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from coordinator.config import Settings
from coordinator.group.states import GroupState
from coordinator.group.totals import Totals
from coordinator.http.routes import Answer, HttpRequest, Pause, Route
from coordinator.http.series import PROCESS_FAMILIES, Family, Walk
from coordinator.runtime.environment import Environment
from coordinator.runtime.health import loaded_share
from coordinator.runtime.node import Node
from coordinator.runtime.shard import Status
from coordinator.server.descriptors import open_descriptors
from protocol.errors import error_name
from protocol.histogram import Histogram
from protocol.messages import APIS, ApiKey
from protocol.version import VERSION

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# Samples that prometheus-client writes in one go; it takes ten times as long as `series`.
TURN_SAMPLES: Final = 20
# Of what a scrape shows, whoever sees it.
KEPT_S: Final = 1.0
# What one family has: a number, a histogram, or either by the values of its labels.
Value = float | Histogram
Values = Value | Mapping[tuple[str, ...], Value]
T = TypeVar("T")

# What has a limit that is declared, too.
_QUOTAS: Final = (
    *Totals.RESOURCES,
    "log_bytes",
    "connections",
    "requests_parked",
    "requests_parked_bytes",
    "requests_waiting_bytes",
    "answers_unsent_bytes",
)
# What others declare in `Environment.metrics` -> the family and its unit in theirs.
_DECLARED: Final = {
    "uptime_ms": ("group_coordinator_uptime_seconds", 1000),
    "topics": ("group_coordinator_topics", 1),
    "acls": ("group_coordinator_acls", 1),
    "users": ("group_coordinator_users", 1),
    "requests_parked": ("group_coordinator_requests_parked", 1),
    "requests_waiting_bytes": ("group_coordinator_requests_waiting_bytes", 1),
    "answers_waiting_for_disk": ("group_coordinator_answers_waiting_for_disk", 1),
    "connections": ("group_coordinator_connections", 1),
    "log_bytes": ("group_coordinator_log_bytes", 1),
    "log_live_bytes": ("group_coordinator_log_live_bytes", 1),
    "log_unflushed_bytes": ("group_coordinator_log_unflushed_bytes", 1),
    "log_dirty_percent": ("group_coordinator_log_dirty_ratio", 100),
    "log_segments": ("group_coordinator_log_segments", 1),
    "compaction_running": ("group_coordinator_compaction_running", 1),
    "compaction_last_duration_ms": ("group_coordinator_compaction_last_seconds", 1000),
    "compaction_removed_bytes_total": ("group_coordinator_compaction_removed_bytes_total", 1),
    "disk_free_bytes": ("group_coordinator_disk_free_bytes", 1),
    "disk_size_bytes": ("group_coordinator_disk_size_bytes", 1),
    "disk_reserve_bytes": ("group_coordinator_disk_reserve_bytes", 1),
    "journals": ("group_coordinator_journals", 1),
    "journals_led": ("group_coordinator_journals_led", 1),
    "journals_without_leader": ("group_coordinator_journals_without_leader", 1),
    "journals_frozen": ("group_coordinator_journals_frozen", 1),
    "cluster_nodes": ("group_coordinator_cluster_nodes", 1),
    "cluster_nodes_expected": ("group_coordinator_cluster_nodes_expected", 1),
    "log_lines_dropped_total": ("group_coordinator_log_lines_dropped_total", 1),
    "tls_handshakes": ("group_coordinator_tls_handshakes", 1),
    "certificate_left_ms": ("group_coordinator_certificate_left_seconds", 1000),
    "http_connections": ("group_coordinator_http_connections", 1),
    "http_event_streams": ("group_coordinator_http_event_streams", 1),
}


class Scrapes:
    """One scrape at a time: who comes while it is made, or soon after, gets the same."""

    def __init__(
        self, make: Callable[[], Awaitable[Sequence[bytes]]], *, is_open: bool = False
    ) -> None:
        """Make it; where it is *open*, nobody is asked who he is."""
        self._make = make
        self._is_open = is_open
        self._latest: _Scrape | None = None
        self._is_made = trio.Event()

    def routes(self) -> Sequence[Route]:
        """Return the route of /metrics."""
        return (Route("/metrics", self._answer, is_open=self._is_open),)

    async def _answer(self, request: HttpRequest) -> Answer:
        request.need_cluster()
        return Answer(content_type=CONTENT_TYPE, body=await self.latest())

    async def latest(self) -> Sequence[bytes]:
        """Return the text in parts."""
        while (scrape := self._latest) is not None:
            await scrape.is_over.wait()
            if scrape.parts:
                return scrape.parts
            # Whoever made it gave up; one of those who waited makes another.
        scrape = self._latest = _Scrape()
        try:
            scrape.parts = await self._make()
        except BaseException:
            self._latest = None
            raise
        finally:
            scrape.is_over.set()
            self._is_made.set()
        return scrape.parts

    async def forget_each(self) -> None:
        """Forget each scrape when it is a second old, until cancelled."""
        while True:
            await self._is_made.wait()
            self._is_made = trio.Event()
            if (scrape := self._latest) is not None and scrape.parts:
                await trio.sleep_until(scrape.began_s + KEPT_S)
                self._latest = None


class _Scrape:
    def __init__(self) -> None:
        self.began_s = trio.current_time()
        self.parts: Sequence[bytes] = ()
        self.is_over = trio.Event()


class Exporter:
    """Makes the text of one scrape after the other.

    Attributes:
        left_out: How many series the last one left out.
    """

    def __init__(
        self, node: Node, environment: Environment, settings: Settings, pause: Pause
    ) -> None:
        self._node = node
        self._environment = environment
        self._settings = settings
        self._pause = pause
        self._last_s: float | None = None
        self.left_out = 0
        self._constants = {
            # Of the process's start and limits only: what changes is cheaper to ask for here.
            metric.name: metric.samples[0].value
            for metric in ProcessCollector(registry=None).collect()
        }

    async def scrape(self) -> Sequence[bytes]:
        """Return the text in parts."""
        began_s = self._environment.clock_s()
        node = self._node
        walk = Walk(
            node.registry.core.registry,
            max_series=self._settings.metrics_max_series,
            node_id=self._settings.node_id,
            now=node.now(),
            throttled=self._environment.telemetry.throttled_by,
            pause=self._pause,
        )
        active = [shard.core.groups for shard in node.shards if shard.status is Status.ACTIVE]
        groups = await walk.go(active)
        self.left_out = sum(walk.left_out.values())
        values: dict[str, Values] = {
            "group_coordinator_groups": {(state,): walk.states[state] for state in GroupState},
            "group_coordinator_members": walk.members,
            "group_coordinator_offsets": walk.offsets,
            "group_coordinator_series_left_out": {
                (level,): count for level, count in walk.left_out.items()
            },
            **self._of_the_node(),
            **self._counted(),
            **self._of_the_process(),
        }
        if self._last_s is not None:
            values["group_coordinator_scrape_seconds"] = self._last_s
        parts: list[bytes] = []
        for family in PROCESS_FAMILIES:
            metric = metric_of(family, values.get(family.name, {}))
            for part in texts_of(metric):
                parts.append(part)
                await self._pause()
        self._last_s = self._environment.clock_s() - began_s
        return parts + groups

    def _of_the_node(self) -> dict[str, Values]:
        node, settings = self._node, self._settings
        declared = self._environment.metrics
        checks = node.checks.look()
        statuses = Counter(shard.status for shard in node.shards)
        values: dict[str, Values] = {
            family: declared[name]() / unit
            for name, (family, unit) in _DECLARED.items()
            if name in declared
        }
        values |= {
            "group_coordinator_build_info": {
                (VERSION, node.cluster_id, str(settings.node_id)): 1,
            },
            "group_coordinator_leader_epoch": node.leader_epoch,
            "group_coordinator_quota_used": {(name,): declared[name]() for name in _QUOTAS},
            "group_coordinator_quota_limit": {
                (name,): declared[f"{name}_limit"]() for name in _QUOTAS
            },
            "group_coordinator_problem": {(check.part,): int(not check.ok) for check in checks},
            "group_coordinator_compactions_total": {
                ("done",): declared["compactions_total"](),
                ("failed",): declared["compaction_failures_total"](),
            },
            "group_coordinator_partitions": {
                (status.value,): statuses[status] for status in Status
            },
            "group_coordinator_load_ratio": loaded_share(checks),
        }
        if (load_ms := declared["last_load_ms"]()) >= 0:
            values["group_coordinator_load_seconds"] = load_ms / 1000
        return values

    def _counted(self) -> dict[str, Values]:
        t = self._environment.telemetry
        began_s = t.flush_began_s()
        return {
            "group_coordinator_loop_stall_seconds": t.stall_s,
            "group_coordinator_rebalances_total": {
                (trigger, outcome): count for (trigger, outcome), count in t.rebalances.items()
            },
            "group_coordinator_rebalance_seconds": _by_one(t.rebalance_s),
            "group_coordinator_rebalance_phase_seconds": _by_one(t.phase_s),
            "group_coordinator_members_removed_total": _by_one(t.members_removed),
            "group_coordinator_offsets_expired_total": t.offsets_expired,
            "group_coordinator_offsets_removed_total": t.offsets_removed,
            "group_coordinator_requests_total": _answers(t.requests, t.errors),
            "group_coordinator_request_seconds": {
                (api_name(key),): histogram for key, histogram in t.requests.items()
            },
            "group_coordinator_requests_refused_total": _by_one(t.refused),
            "group_coordinator_connections_accepted_total": t.connections_accepted,
            "group_coordinator_connections_closed_total": _by_one(t.connections_closed),
            "group_coordinator_connections_refused_total": _by_one(t.connections_refused),
            "group_coordinator_connections_failed_total": _by_one(t.connections_failed),
            "group_coordinator_tls_handshakes_total": _by_one(t.handshakes),
            "group_coordinator_log_ins_total": {
                (mechanism or "none", result): count
                for (mechanism, result), count in t.log_ins.items()
            },
            "group_coordinator_throttled_answers_total": t.throttled[0],
            "group_coordinator_throttled_seconds_total": t.throttled[1] / 1000,
            "group_coordinator_received_bytes_total": t.received_bytes,
            "group_coordinator_sent_bytes_total": t.sent_bytes,
            "group_coordinator_flush_seconds": t.flush_s,
            "group_coordinator_flush_wait_seconds": t.flush_wait_s,
            "group_coordinator_fsync_seconds": t.fsync_s,
            "group_coordinator_flush_bytes": t.flush_bytes,
            "group_coordinator_flush_age_seconds": (
                0 if began_s is None else self._environment.clock_s() - began_s
            ),
            "group_coordinator_http_requests_total": {
                (route, str(status)): count for (route, status), count in t.http.items()
            },
            "group_coordinator_http_connections_closed_total": _by_one(t.http_connections_closed),
            "group_coordinator_http_connections_refused_total": _by_one(t.http_connections_refused),
        }

    def _of_the_process(self) -> dict[str, Values]:
        return {
            "process_cpu_seconds_total": time.process_time(),
            "process_resident_memory_bytes": _resident_bytes(),
            "process_open_fds": open_descriptors(),
            **{name: self._constants[name] for name in _CONSTANTS if name in self._constants},
        }


# Set once the process is there.
_CONSTANTS: Final = ("process_max_fds", "process_start_time_seconds")


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def api_name(key: int) -> str:
    """Return how the reference calls an API."""
    return APIS[ApiKey(key)].name


def _by_one(values: Mapping[str, T]) -> dict[tuple[str, ...], T]:
    return {(label,): value for label, value in values.items()}


def _answers(
    requests: Mapping[int, Histogram], errors: Mapping[tuple[int, int], int]
) -> dict[tuple[str, ...], Value]:
    """Return how many answers each API gave with each error, and without."""
    well = {key: sum(histogram.counts) for key, histogram in requests.items()}
    found: dict[tuple[str, ...], Value] = {}
    for (key, code), count in errors.items():
        well[key] -= count
        found[api_name(key), error_name(code)] = count
    return {**{(api_name(key), "NONE"): count for key, count in well.items()}, **found}


def metric_of(family: Family, values: Values) -> Metric:
    """Return a family with its samples, as prometheus-client has them."""
    metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
    by_labels = values if isinstance(values, Mapping) else {(): values}
    for label_values, value in by_labels.items():
        labels = dict(zip(family.labels, label_values, strict=True))
        if isinstance(value, Histogram):
            bounds = (*map(float, value.bounds), "+Inf")
            for bound, count in zip(bounds, accumulate(value.counts), strict=True):
                metric.add_sample(f"{family.name}_bucket", {**labels, "le": str(bound)}, count)
            metric.add_sample(f"{family.name}_count", labels, sum(value.counts))
            metric.add_sample(f"{family.name}_sum", labels, value.total)
        else:
            metric.add_sample(family.name, labels, value)
    return metric


class _One(Collector):
    """A registry of one family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


def texts_of(metric: Metric) -> Iterator[bytes]:
    """Yield the text of a family in parts, each of which is one turn."""
    samples = metric.samples
    for at in range(0, max(len(samples), 1), TURN_SAMPLES):
        metric.samples = samples[at : at + TURN_SAMPLES]
        text = generate_latest(_One(metric))
        yield text if not at else text.split(b"\n", 2)[2]  # Its head stands in the first one.
