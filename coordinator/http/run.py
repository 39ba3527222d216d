"""Start HTTP beside the native listener."""

import time
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import trio

from coordinator.config import Settings
from coordinator.http import health, login, metrics, page
from coordinator.http.api import Api, openapi_operation
from coordinator.http.ask import Asker
from coordinator.http.connection import Warn
from coordinator.http.events import Hub
from coordinator.http.node_view import NodeView
from coordinator.http.overview import Overview
from coordinator.http.pace import Pace
from coordinator.http.routes import Route
from coordinator.http.server import HttpSessions
from coordinator.runtime.bulkhead import Task, keep_up
from coordinator.runtime.coordination import Coordination
from coordinator.runtime.environment import Environment
from coordinator.runtime.node import Node
from coordinator.runtime.telemetry import Tee
from coordinator.server.transport import Listener

if TYPE_CHECKING:
    from coordinator.http.entry import Entry


def start_http(
    nursery: trio.Nursery,
    *,
    settings: Settings,
    listeners: Sequence[Listener],
    node: Node,
    coordination: Coordination,
    environment: Environment,
    tee: Tee,
    warn: Warn,
    max_connections: int,
    clock_s: Callable[[], float] = time.thread_time,
    entry: "Entry | None" = None,
) -> None:
    """Serve HTTP on *listeners*, which are those of ``http.listeners``, in *nursery*.

    By *clock_s* it is measured how much it works. Without an *entry*, nobody is asked who he is,
    and everybody sees everything.
    """
    telemetry = environment.telemetry
    addresses = (*settings.http_addresses(), *settings.advertised_addresses())
    hosts = tuple(address.host for address in addresses)
    pace = Pace(lambda: telemetry.received_bytes, clock_s)
    sessions = HttpSessions(
        environment=environment,
        settings=settings,
        routes=_routes(
            nursery, settings, node, coordination, environment, tee, pace, clock_s, entry
        ),
        pace=pace,
        warn=warn,
        max_connections=max_connections,
        allowed_hosts=lambda: _names(settings.http_allowed_hosts, hosts),
        entry=entry,
    )
    nursery.start_soon(sessions.run, listeners)


def _routes(
    nursery: trio.Nursery,
    settings: Settings,
    node: Node,
    coordination: Coordination,
    environment: Environment,
    tee: Tee,
    pace: Pace,
    clock_s: Callable[[], float],
    entry: "Entry | None",
) -> list[Route]:
    """Return everything that is answered; what has to be watched for that is, in *nursery*."""
    exporter = metrics.Exporter(node, environment, settings, pace.pause)
    overview = Overview(node, clock_s, pace.pause)
    node_view = NodeView(node, environment, settings, coordination, lambda: exporter.left_out)
    asker = Asker(node, coordination, pace.pause)
    api = Api(node, overview, node_view, asker, pace.pause)
    telemetry = environment.telemetry
    hub = Hub(api, overview, telemetry, now=node.now, clock_s=clock_s, pause=pace.pause)
    tee.add(overview.heard)
    tee.add(node_view.heard)
    nursery.start_soon(hub.run)
    scrapes = metrics.Scrapes(exporter.scrape, is_open=settings.http_metrics_anonymous)
    for task in (node_view.history.run, scrapes.forget_each):
        nursery.start_soon(keep_up, Task(telemetry, "http"), task)
    operations = [
        *health.operations(node),
        *api.operations(),
        *hub.operations(),
        *login.operations(entry),
    ]
    operations.append(openapi_operation(operations))
    return [
        *page.routes(),
        *(route for operation in operations for route in operation.routes()),
        *scrapes.routes(),
    ]


@lru_cache(maxsize=4)
def _names(listed: str, hosts: tuple[str, ...]) -> Collection[str]:
    """Return the names that a request may ask for, in lower case."""
    names = [name.strip() for name in [*listed.split(","), *hosts]]
    return frozenset(name.lower().removesuffix(".") for name in names if name)
