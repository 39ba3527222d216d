"""Metrics of clients and listeners for prometheus-client (the extra ``metrics``).

docs/metrics.md lists the names. Members of one group in one client are told together, so that no
two samples have the same labels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from client.counts import ClientCounts, ClientNow, MemberNow
from client.membership import State
from protocol.histogram import Histogram

T = TypeVar("T")
# Name, type and meaning; labels and value of each sample.
Family = tuple[str, str, str, list[tuple[Mapping[str, str], float]]]


class WatchedClient(Protocol):
    """The trio, asyncio or blocking client."""

    def now(self) -> ClientNow:
        """Return how it is."""


def watch_client(client: WatchedClient, registry: CollectorRegistry) -> Callable[[], None]:
    """Have *registry* tell of *client* until what this returns is called.

    Several clients of one process should have different client ids: those that share one are told
    together.
    """
    collector = _collectors.get(registry)
    if collector is None:
        collector = _collectors[registry] = _Clients()
        registry.register(collector)
    return collector.add(client)


class ListenerFamilies(Protocol):
    """Snapshot of a listener's metrics."""

    def families(self) -> Iterable[Family]:
        """Return name, type, meaning, and labels with values of each family."""


class WatchedListener(Protocol):
    """A `client.spark.GroupOffsetListener`."""

    def metrics(self) -> ListenerFamilies:
        """Return what it knows."""


def watch_listener(listener: WatchedListener, registry: CollectorRegistry) -> Callable[[], None]:
    """Have *registry* tell of *listener* until what this returns is called; one for each registry.

    Raises:
        ValueError: Another listener is told of already.
    """
    collector = _Listener(listener)
    registry.register(collector)
    return lambda: registry.unregister(collector)


class _Listener(Collector):
    def __init__(self, listener: WatchedListener) -> None:
        self._listener = listener

    def describe(self) -> Iterator[Metric]:
        """Name one family, so that a second listener is refused at once."""
        yield GaugeMetricFamily("spark_listener_query_active", "")

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the moment."""
        for name, kind, meaning, samples in self._listener.metrics().families():
            metric = Metric(name.removesuffix("_total"), meaning, kind)
            for labels, value in samples:
                metric.add_sample(name, dict(labels), value)
            yield metric


class _Clients(Collector):
    """All clients of a registry: a family may stand in one exposition only once."""

    def __init__(self) -> None:
        self._clients: list[WatchedClient] = []
        # By client id, of those that are told of no more while others with their id are.
        self._gone: dict[str, ClientCounts] = {}

    def add(self, client: WatchedClient) -> Callable[[], None]:
        """Tell of *client*, too, until what this returns is called."""
        self._clients.append(client)

        def remove() -> None:
            if client in self._clients:
                self._clients.remove(client)
                self._keep(client.now())

        return remove

    def _keep(self, gone: ClientNow) -> None:
        """Keep what was counted as long as it is told together with others: it must not fall."""
        name = gone.client_id
        if any(client.now().client_id == name for client in self._clients):
            self._gone.setdefault(name, ClientCounts()).add(gone.counts)
        else:
            self._gone.pop(name, None)

    def describe(self) -> Iterator[Metric]:
        """Return nothing: what there is is known when it is asked for."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the moment."""
        clients = [client.now() for client in list(self._clients)]
        counted: dict[str, ClientCounts] = {}
        for one in sorted(clients, key=lambda one: one.client_id):
            if one.client_id not in counted:
                counted[one.client_id] = ClientCounts()
                counted[one.client_id].add(self._gone.get(one.client_id, ClientCounts()))
            counted[one.client_id].add(one.counts)
        for family in chain(_of_clients(clients), _of_counts(counted), _of_members(clients)):
            if family.samples:
                yield family


_collectors: Final[WeakKeyDictionary[CollectorRegistry, _Clients]] = WeakKeyDictionary()


def _of_clients(clients: list[ClientNow]) -> Iterator[Metric]:
    connections = GaugeMetricFamily(
        "group_client_connections", "Connections that are of use.", labels=("client_id",)
    )
    outage = GaugeMetricFamily(
        "group_client_outage_seconds", "For how long an address is away.", labels=("client_id",)
    )
    for name, ones in _together(clients, lambda one: (one.client_id,)):
        connections.add_metric(name, sum(one.connections for one in ones))
        outage.add_metric(name, max(one.outage_s for one in ones))
    return iter((connections, outage))


def _of_counts(counted: Mapping[str, ClientCounts]) -> Iterator[Metric]:
    of_api, of_group = ("client_id", "api"), ("client_id", "group")
    answers = CounterMetricFamily(
        "group_client_requests", "Answers, retries one by one.", labels=(*of_api, "error")
    )
    durations = HistogramMetricFamily(
        "group_client_request_seconds", "How long they took.", labels=of_api
    )
    rebalances = CounterMetricFamily(
        "group_client_rebalances", "Assignments that members were given.", labels=of_group
    )
    rebalance_s = HistogramMetricFamily(
        "group_client_rebalance_seconds", "From the first word to the assignment.", labels=of_group
    )
    commits = CounterMetricFamily(
        "group_client_commits", "Commits by how they ended.", labels=(*of_group, "outcome")
    )
    for name, counts in counted.items():
        for labels, count in counts.answers.items():
            answers.add_metric([name, *labels], count)
        for api, took in sorted(counts.durations.items()):
            _add(durations, [name, api], took)
        for group, ones in sorted(counts.groups.items()):
            rebalances.add_metric([name, group], sum(ones.rebalances.counts))
            _add(rebalance_s, [name, group], ones.rebalances)
            for outcome, count in ones.commits.items():
                commits.add_metric([name, group, outcome], count)
    return iter((answers, durations, rebalances, rebalance_s, commits))


def _of_members(clients: list[ClientNow]) -> Iterator[Metric]:
    labels = ("client_id", "group")
    states = GaugeMetricFamily(
        "group_client_member_state",
        "How many members are in this state.",
        labels=(*labels, "state"),
    )
    assigned = GaugeMetricFamily(
        "group_client_assigned_partitions", "Partitions that may be read.", labels=labels
    )
    generation = GaugeMetricFamily(
        "group_client_generation", "The latest that a member joined.", labels=labels
    )
    heartbeat = GaugeMetricFamily(
        "group_client_heartbeat_age_seconds", "Since one was answered.", labels=labels
    )
    members = [(one.client_id, member) for one in clients for member in one.members]
    for name, pairs in _together(members, lambda one: (one[0], one[1].group_id)):
        ones: list[MemberNow] = [member for _, member in pairs]
        for state in State:
            states.add_metric([*name, state.value], sum(one.state == state for one in ones))
        assigned.add_metric(name, sum(one.assigned for one in ones))
        if (latest := max(one.generation for one in ones)) >= 0:
            generation.add_metric(name, latest)
        ages = [one.heartbeat_age_s for one in ones if one.heartbeat_age_s is not None]
        if ages:
            heartbeat.add_metric(name, max(ages))
    return iter((states, assigned, generation, heartbeat))


def _together(
    ones: list[T], key: Callable[[T], tuple[str, ...]]
) -> list[tuple[list[str], list[T]]]:
    groups: dict[tuple[str, ...], list[T]] = {}
    for one in ones:
        groups.setdefault(key(one), []).append(one)
    return [(list(name), some) for name, some in sorted(groups.items())]


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    family.add_metric(labels, buckets, histogram.total)
