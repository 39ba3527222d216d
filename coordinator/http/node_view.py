"""The node in numbers: of the moment, of the last minute, and its flushes of the last hour."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import trio

from coordinator.config import Settings
from coordinator.group.core import Now
from coordinator.group.lag_samples import MINUTE_MS, SAMPLES_KEPT
from coordinator.http import health, views
from coordinator.http.metrics import api_name
from coordinator.runtime.coordination import Coordination, address_of
from coordinator.runtime.environment import Environment
from coordinator.runtime.health import loaded_share, status_of
from coordinator.runtime.node import Node
from coordinator.runtime.telemetry import Telemetry
from protocol.histogram import Histogram
from protocol.version import VERSION

PERIOD_S: Final = 5.0
# Pictures in a minute, and the one before them.
_PICTURES: Final = 13


class Picture(NamedTuple):
    """What was counted up to a moment."""

    at_ms: int  # Monotonic.
    requests: Mapping[int, Sequence[int]]  # By API: the counts of its histogram.
    errors: Mapping[int, int]
    flushes: Sequence[int]
    fsyncs: Sequence[int]
    stalls: Sequence[int]


class LastMinute(NamedTuple):
    """What lies between two pictures."""

    now: Picture
    before: Picture

    @property
    def seconds(self) -> float:
        """How long it was."""
        return max(self.now.at_ms - self.before.at_ms, 1) / 1000


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return below what the given share of values lies, read off the buckets of a histogram.

    Within a bucket they are taken to lie evenly; what is above all bounds is told as the last.
    """
    left = share * sum(counts)
    if not left:
        return None
    for (low, high), count in zip(pairwise((0.0, *bounds)), counts, strict=False):
        if left <= count:
            return low + (high - low) * left / count
        left -= count
    return bounds[-1]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _since(now: Sequence[int], before: Sequence[int]) -> list[int]:
    return [n - b for n, b in zip(now, before or [0] * len(now), strict=True)]


class NodeHistory:
    """What was counted in the last minute, and the flushes of each of the last sixty."""

    def __init__(self, telemetry: Telemetry, now: Callable[[], Now]) -> None:
        self._telemetry = telemetry
        self._now = now
        self._pictures = deque([self._picture()], maxlen=_PICTURES)
        self._minute_began = self._pictures[0]
        self._samples: deque[views.FlushSample] = deque(maxlen=SAMPLES_KEPT)

    async def run(self) -> None:
        """Take pictures until cancelled."""
        while True:
            await trio.sleep(PERIOD_S)
            self.look()

    def look(self) -> None:
        """Take a picture; and note the flushes of the minute that is over."""
        picture = self._picture()
        self._pictures.append(picture)
        began = self._minute_began
        if picture.at_ms - began.at_ms >= MINUTE_MS:
            counts = _since(picture.flushes, began.flushes)
            p99 = quantile(self._telemetry.flush_s.bounds, counts, 0.99)
            at = views.moment(self._now().wall_ms)
            self._samples.append(views.FlushSample(at, sum(counts), _ms(p99)))
            self._minute_began = picture

    def _picture(self) -> Picture:
        telemetry = self._telemetry
        errors: dict[int, int] = {}
        for (api, _), count in telemetry.errors.items():
            errors[api] = errors.get(api, 0) + count
        return Picture(
            self._now().mono_ms,
            {api: tuple(histogram.counts) for api, histogram in telemetry.requests.items()},
            errors,
            tuple(telemetry.flush_s.counts),
            tuple(telemetry.fsync_s.counts),
            tuple(telemetry.stall_s.counts),
        )

    def last_minute(self) -> LastMinute:
        """Return what was counted up to now, and about a minute ago."""
        return LastMinute(self._picture(), self._pictures[0])

    def flushes(self, minute: LastMinute, *, with_samples: bool) -> views.Flushes:
        """Return the flushes of the last minute."""
        now, before = minute
        counts = _since(now.flushes, before.flushes)
        bounds = self._telemetry.flush_s.bounds
        return views.Flushes(
            round(sum(counts) / minute.seconds, 3),
            _ms(quantile(bounds, counts, 0.5)),
            _ms(quantile(bounds, counts, 0.99)),
            _p99_ms(self._telemetry.fsync_s, now.fsyncs, before.fsyncs),
            list(self._samples) if with_samples else [],
        )

    def requests(self, minute: LastMinute) -> list[views.RequestsOfApi]:
        """Return the requests of the last minute, the busiest first."""
        now, before = minute
        seconds = minute.seconds
        found = []
        for api, counts in now.requests.items():
            new = _since(counts, before.requests.get(api, ()))
            if not sum(new):
                continue
            bounds = self._telemetry.requests[api].bounds
            found.append(
                views.RequestsOfApi(
                    api_name(api),
                    round(sum(new) / seconds, 3),
                    _ms(quantile(bounds, new, 0.5)),
                    _ms(quantile(bounds, new, 0.99)),
                    round((now.errors.get(api, 0) - before.errors.get(api, 0)) / seconds, 3),
                )
            )
        return sorted(found, key=lambda one: (-one.per_second, one.api))

    def stall_p99_ms(self, minute: LastMinute) -> float | None:
        """Return how late the event loop was in the last minute."""
        return _p99_ms(self._telemetry.stall_s, minute.now.stalls, minute.before.stalls)


def _p99_ms(histogram: Histogram, now: Sequence[int], before: Sequence[int]) -> float | None:
    return _ms(quantile(histogram.bounds, _since(now, before), 0.99))


class NodeView:
    """Shows one node.

    Attributes:
        history: Whose `run` somebody has to run.
    """

    def __init__(
        self,
        node: Node,
        environment: Environment,
        settings: Settings,
        coordination: Coordination,
        left_out: Callable[[], int],
    ) -> None:
        """Make it; *left_out* returns how many series the last scrape left out."""
        self.history = NodeHistory(environment.telemetry, environment.now)
        self._node = node
        self._metrics = environment.metrics
        self._settings = settings
        self._coordination = coordination
        self._left_out = left_out
        self._started_at = views.moment(environment.now().wall_ms)
        self._loaded_entries = 0

    def heard(self, name: str, fields: Mapping[str, int]) -> None:
        """Take note of an event: how much was loaded is told once."""
        if name == "ready":
            self._loaded_entries = fields["entries"]

    def show(self, states: Mapping[str, int], *, with_samples: bool) -> views.Node:
        """Return the node, with how many groups are in each of *states*."""
        checks = self._node.checks.look()
        minute = self.history.last_minute()
        has_disk = "disk_free_bytes" in self._metrics  # No node of a cluster has one.
        compactions = self._number("compactions_total")
        return views.Node(
            node_id=self._settings.node_id,
            cluster_id=self._node.cluster_id,
            leader_epoch=self._node.leader_epoch,
            version=VERSION,
            started_at=self._started_at,
            status=status_of(checks),
            checks=health.shown(checks),
            log=views.Log(
                self._number("log_bytes"),
                self._number("log_live_bytes"),
                self._number("log_segments") if has_disk else None,
                self._number("log_dirty_percent") / 100 if has_disk else None,
                self._number("log_unflushed_bytes"),
            ),
            flushes=self.history.flushes(minute, with_samples=with_samples),
            compaction=views.Compaction(
                bool(self._number("compaction_running")),
                compactions,
                self._number("compaction_failures_total"),
                self._number("compaction_last_duration_ms") if compactions else None,
                self._number("compaction_removed_bytes_total"),
            ),
            load=views.Load(
                round(loaded_share(checks), 4),
                self._number("loading_entries") or self._loaded_entries,
                views.known(self._number("last_load_ms")),
            ),
            disk=views.Disk(
                self._number("disk_free_bytes"),
                self._number("disk_size_bytes"),
                self._number("disk_reserve_bytes"),
            )
            if has_disk
            else None,
            requests=self.history.requests(minute),
            connections=self._number("connections"),
            groups=dict(sorted(states.items())),
            loop_stall_p99_ms=self.history.stall_p99_ms(minute),
            metrics=views.Series(self._settings.metrics_max_series, self._left_out()),
            others=self._others(),
        )

    def _others(self) -> list[views.OtherNode]:
        others = [n for n in self._coordination.nodes() if n.node_id != self._settings.node_id]
        if not others:  # As with every node that has a folder.
            return []
        leaders = map(self._coordination.leader_of, range(self._node.num_partitions))
        led = Counter(leader.node_id for leader in leaders if leader is not None)
        return [
            views.OtherNode(
                other.node_id, address_of(other.endpoints), other.is_ready, led[other.node_id]
            )
            for other in others
        ]

    def _number(self, name: str) -> int:
        return int(self._metrics[name]())
