"""Start HTTP beside the native listener."""

import time
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final

import structlog
import trio

from coordinator.config import Address, Settings
from coordinator.http import health, metrics
from coordinator.http.connection import Warn
from coordinator.http.pace import Pace
from coordinator.http.routes import Route
from coordinator.http.server import HttpSessions
from coordinator.runtime.environment import Environment
from coordinator.runtime.node import Node
from coordinator.server.dispatch import Dispatcher
from coordinator.server.transport import SocketListener

log: Final = structlog.get_logger()


def start_http(
    nursery: trio.Nursery,
    *,
    settings: Settings,
    listeners: Sequence[SocketListener],
    node: Node,
    dispatcher: Dispatcher,
    environment: Environment,
    warn: Warn,
) -> None:
    """Serve HTTP on *listeners*, which are those of ``http.listeners``, in *nursery*."""
    telemetry = environment.telemetry
    pace = Pace(lambda: telemetry.received_bytes, time.thread_time)
    sessions = HttpSessions(
        environment=environment,
        settings=settings,
        routes=_routes(settings, node, dispatcher, environment, pace),
        pace=pace,
        warn=warn,
        allowed_hosts=lambda: _allowed_hosts(settings),
    )
    nursery.start_soon(sessions.run, listeners)
    for address, listener in zip(settings.http_addresses(), listeners, strict=True):
        log.info("http.listening", host=address.host, port=listener.port)


def _routes(
    settings: Settings,
    node: Node,
    dispatcher: Dispatcher,  # noqa: ARG001 - for the rooms to come
    environment: Environment,
    pace: Pace,
) -> list[Route]:
    """Return everything that is answered."""
    return [
        # Here come the routes of api, events and page, each with a star.
        *health.routes(node),
        *metrics.routes(node, environment, settings, pace.pause),
    ]


def _allowed_hosts(settings: Settings) -> Collection[str]:
    """Return the names that a request may ask for, in lower case."""
    addresses = f"{settings.http_listeners},{settings.advertised_listeners}"
    return _names(settings.http_allowed_hosts, addresses)


@lru_cache(maxsize=4)
def _names(listed: str, addresses: str) -> frozenset[str]:
    hosts = [Address.parse("http.listeners", text).host for text in addresses.split(",") if text]
    names = [name.strip() for name in [*listed.split(","), *hosts]]
    return frozenset(name.lower().removesuffix(".") for name in names if name)
