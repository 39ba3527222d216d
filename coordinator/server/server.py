"""The door: accepts connections, and closes those that overstay."""

import errno
from typing import Final

import structlog
import trio

from coordinator.config import Settings
from coordinator.runtime.coordination import Coordination
from coordinator.runtime.environment import Environment
from coordinator.runtime.node import Node
from coordinator.runtime.timekeeper import LATE_MS
from coordinator.server.dispatch import Dispatcher
from coordinator.server.session import Sessions
from coordinator.server.transport import Listener

log: Final = structlog.get_logger()

SWEEP_PERIOD_S: Final = 1.0
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
    ) -> None:
        """Make it over the *environment* of *node*."""
        self.dispatcher = Dispatcher(node=node, settings=settings, coordination=coordination)
        self.sessions = Sessions(
            environment=environment,
            settings=settings,
            dispatcher=self.dispatcher,
            flusher=node.flusher,
            max_connections=max_connections,
        )
        self._node = node
        self._poller = environment.poller

    async def run(self, listeners: list[Listener]) -> None:
        """Serve the *listeners* until cancelled; then every session ends."""
        try:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(self._accept_for_ever, listener)
                nursery.start_soon(self._sweep_for_ever)
                nursery.start_soon(self._poller.run, self.sessions.end_round)
        finally:
            for session in self.sessions:
                session.close()
            self._poller.close()

    async def wait_sent(self) -> None:
        """Return when every answer has left, or its connection has ended."""
        while any(session.has_unsent for session in self.sessions):  # noqa: ASYNC110 - an event per answer, to be looked at once in a daemon's life, costs more
            await trio.sleep(SENT_POLL_S)

    async def _accept_for_ever(self, listener: Listener) -> None:
        while True:
            try:
                transport = await listener.accept()
            except trio.ClosedResourceError:
                return
            except OSError as exc:
                if exc.errno not in _NO_ROOM | _BROKEN_PEER:
                    raise
                log.warning("accept.paused", reason=exc.strerror)
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            self.sessions.begin(transport)

    async def _sweep_for_ever(self) -> None:
        """Close who overstays, once a second."""
        now = self._node.now
        while True:
            planned_ms = now().mono_ms + int(SWEEP_PERIOD_S * 1000)
            await trio.sleep(SWEEP_PERIOD_S)
            late_ms = now().mono_ms - planned_ms
            if late_ms > LATE_MS:
                # The process was stopped or starved: no peer is to blame for that time.
                for session in self.sessions:
                    session.deadlines.shift(late_ms)
                continue
            # What is readable is read before anyone is called silent (see `Timekeeper`).
            await self._poller.caught_up()
            now_ms = now().mono_ms
            for session in self.sessions:
                reason = session.overdue(now_ms)
                if reason is not None:
                    session.close_because(reason)
