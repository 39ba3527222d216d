"""The door: accepts connections, and closes those that overstay."""

import errno
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, Protocol

import structlog
import trio

from coordinator.config import Settings
from coordinator.group.core import Now
from coordinator.runtime.bulkhead import Owner, attempt, report
from coordinator.runtime.coordination import Coordination
from coordinator.runtime.environment import Environment
from coordinator.runtime.node import Node
from coordinator.runtime.poller import Poller
from coordinator.runtime.telemetry import Telemetry
from coordinator.runtime.timekeeper import LATE_MS
from coordinator.server.audit import Audit
from coordinator.server.authorization import Authorizer
from coordinator.server.dispatch import Dispatcher
from coordinator.server.gatekeeper import Gatekeeper, LogIn
from coordinator.server.session import SHUTDOWN, Deadlines, Sessions
from coordinator.server.transport import Listener, Transport

log: Final = structlog.get_logger()

SWEEP_PERIOD_S: Final = 0.5
SENT_POLL_S: Final = 0.02  # Only while the daemon stops.
ACCEPT_PAUSE_S: Final = 0.1
# trio's own list: the process or the machine has no room for another socket just now.
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
# accept(2) on Linux also reports what went wrong with the new connection; the next one is fine.
_BROKEN_PEER: Final = frozenset(
    {errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET}
    | {errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ECONNRESET, errno.ETIMEDOUT}
)


class Server:
    """Serves a node to whoever connects."""

    def __init__(
        self,
        *,
        node: Node,
        environment: Environment,
        settings: Settings,
        coordination: Coordination,
        max_connections: int,
        authorizer: Authorizer,
        begin_log_in: Callable[[], LogIn] | None = None,
    ) -> None:
        """Make it over the *environment* of *node*; see `Gatekeeper` for the last two."""
        self.coordination = coordination
        self.dispatcher = Dispatcher(
            node=node,
            settings=settings,
            coordination=coordination,
            audit=Audit(environment.emit_event),
        )
        self.gatekeeper = Gatekeeper(
            dispatcher=self.dispatcher,
            authorizer=authorizer,
            begin_log_in=begin_log_in,
            telemetry=environment.telemetry,
            emit=environment.emit_event,
            knows_users=lambda: node.registry.is_whole,
            quotas=node.registry.core.quotas,
            now_ms=lambda: environment.now().mono_ms,
        )
        if authorizer.is_on:
            for shard in node.shards:
                shard.core.hide_topics(authorizer.sees_topic)
        self.sessions = Sessions(
            environment=environment,
            settings=settings,
            gatekeeper=self.gatekeeper,
            start_flushes=node.start_flushes,
            max_connections=max_connections,
        )
        node.users_changed = self.sessions.users_changed
        node.quotas_changed = self.gatekeeper.throttles.changed
        self._now = environment.now
        self._poller = environment.poller

    async def run(self, listeners: list[Listener], with_log_in: Collection[Listener] = ()) -> None:
        """Serve the *listeners* until cancelled; then every session ends.

        Who comes in through one of those *with_log_in* has to log in first.
        """
        try:
            async with trio.open_nursery() as nursery:
                others = self.sessions.telemetry, self.sessions.has_no_room
                for number, listener in enumerate(listeners):
                    must_log_in = listener in with_log_in
                    begin = partial(self.sessions.begin, listener=number, must_log_in=must_log_in)
                    nursery.start_soon(accept_for_ever, listener, begin, *others)
                nursery.start_soon(self.gatekeeper.later.run)
                nursery.start_soon(sweep_for_ever, self.sessions, self._poller, self._now)
                nursery.start_soon(self._poller.run, self.sessions.end_round)
        finally:
            for session in self.sessions:
                session.close(SHUTDOWN)
            self._poller.close()

    async def wait_sent(self) -> None:
        """Return when every answer has left, or its connection has ended."""
        while any(session.has_unsent for session in self.sessions):  # noqa: ASYNC110 - an event per answer, to be looked at once in a daemon's life, costs more
            await trio.sleep(SENT_POLL_S)


async def accept_for_ever(
    listener: Listener,
    begin: Callable[[Transport], None],
    telemetry: Telemetry,
    no_room: Callable[[], None] = lambda: None,
) -> None:
    """Hand every connection to *begin*, until the listener is closed.

    While the process or the machine can't take another one, *no_room* is called each time.
    """
    while True:
        try:
            transport = await listener.accept()
        except trio.ClosedResourceError:
            return
        except OSError as exc:
            if exc.errno not in _NO_ROOM | _BROKEN_PEER:
                raise
            if exc.errno in _NO_ROOM:
                no_room()
            log.warning("accept.paused", reason=exc.strerror)
            await trio.sleep(ACCEPT_PAUSE_S)
            continue
        attempt(_Arrival(transport, telemetry), begin, transport)


class _Arrival:
    """A connection that was accepted, and belongs to no session yet."""

    def __init__(self, transport: Transport, telemetry: Telemetry) -> None:
        self._transport = transport
        self._telemetry = telemetry

    def fail(self, exception: str) -> None:
        report(self._telemetry, "accept", self._transport.peer, exception)
        self._transport.close()


class Sweepable(Owner, Protocol):
    """A connection that may overstay."""

    deadlines: Deadlines

    def close_if_overdue(self, now_ms: int) -> None:
        """End it if its peer should have done something by now, and say why."""


async def sweep_for_ever(
    sessions: Iterable[Sweepable], poller: Poller, now: Callable[[], Now]
) -> None:
    """Close those that overstay, twice a second."""
    while True:
        planned_ms = now().mono_ms + int(SWEEP_PERIOD_S * 1000)
        await trio.sleep(SWEEP_PERIOD_S)
        late_ms = now().mono_ms - planned_ms
        if late_ms > LATE_MS:
            # The process was stopped or starved: no peer is to blame for that time.
            for session in sessions:
                session.deadlines.shift(late_ms)
            continue
        # What is readable is read before anyone is called silent (see `Timekeeper`).
        await poller.caught_up()
        now_ms = now().mono_ms
        for session in sessions:
            attempt(session, session.close_if_overdue, now_ms)
