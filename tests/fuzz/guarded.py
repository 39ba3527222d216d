"""A daemon that asks who clients are, in memory: listeners with TLS, log-ins, and HTTP with both.

Who comes chooses a listener, and what to show there. The sizes of a handshake vary a little from
run to run, and so do the nonces of a log-in; all else follows from the seed.
"""

import ssl
from collections.abc import Callable
from functools import cache
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

import trio

from coordinator.http.entry import Entry
from coordinator.runtime.shard import Status
from coordinator.security.accounts import Account
from coordinator.security.tls import Certificates
from coordinator.server.handshakes import Handshakes, TlsListener
from coordinator.server.transport import Listener
from protocol.acls import ANONYMOUS
from tests.fakes.tls import NOW_MS, certificate, client_context
from tests.fakes.transport import MemoryTransport
from tests.fuzz.frames import Broken
from tests.fuzz.people import MALLORY, NAMES, ROOT, LogIn, enrolling, password_of
from tests.fuzz.secure import TlsWire
from tests.server.test_log_ins import log_in
from tests.server.world import Client, FakeListener, World

# By their place among the listeners.
_BY_PASSWORD, _BY_CERTIFICATE, _BY_BOTH = range(3)
SETTINGS: Final = (
    "listeners=SASL_PLAINTEXT://127.0.0.1:9310,SSL://127.0.0.1:9311,SASL_SSL://127.0.0.1:9312",
    "ssl.client.auth=requested",
    "http.listeners=https://127.0.0.1:0",
)
_HANDSHAKES_MAX: Final = 100
_STRANGER: Final = "stranger"
_HONEST_PEER: Final = "192.0.2.200"
Wire = MemoryTransport | TlsWire


class Visit(NamedTuple):
    """A connection that somebody has opened.

    Attributes:
        wire: His end.
        log_in: How he logs in, where that is asked for.
        principal: Who the connection alone says he is.
    """

    wire: Wire
    log_in: LogIn | None = None
    principal: str | None = None


class GuardedWorld(World):
    """With TLS before two of its listeners, and before that of HTTP."""

    def __init__(self, *args: Any, clock_s: Callable[[], float], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.web_door = FakeListener()
        self._handshakes = Handshakes(
            environment=self.environment,
            identities=Certificates(self.settings, self.tee, lambda: NOW_MS),
            warn=self.server.sessions.warn,
            at_most=_HANDSHAKES_MAX,
            clock_s=clock_s,
        )
        self.secure_web_door = self._over_tls(self.web_door)

    def doors(self) -> list[Listener]:
        """Return what sessions come from."""
        plain, *others = self.listeners
        secure = [self._over_tls(one) for one in others]
        self.nursery.start_soon(self._handshakes.run, [*secure, self.secure_web_door])
        return [plain, *secure]

    def _over_tls(self, door: FakeListener) -> TlsListener:
        return TlsListener(door, self._handshakes, self.server.sessions.has_no_room)

    def entry(self) -> Entry:
        """Return the way into HTTP; passwords are compared at once."""
        assert self.log_ins is not None
        secrets = count(1)
        gatekeeper = self.server.gatekeeper

        def audit(event: str, peer: str, **fields: Any) -> None:
            gatekeeper.audit.tell(event, now_ms=self.node.now().mono_ms, peer=peer, **fields)

        return Entry(
            self.log_ins.accounts(lambda: next(secrets).to_bytes(16)),
            gatekeeper.authorizer,
            now=self.node.now,
            audit=audit,
            throttles=gatekeeper.throttles,
            attempts=gatekeeper.attempts,
            is_ready=lambda: self.node.registry.status is Status.ACTIVE,
            run_in_thread=_at_once,
        )

    async def honest(self) -> Client:
        """Return a connection of the administrator's."""
        client = self.connect(_HONEST_PEER, _BY_PASSWORD)
        answer = await log_in(client, ROOT, password_of(ROOT))
        if answer is None or answer.error:
            raise Broken(f"the honest client's log-in was answered {answer}")
        return client

    async def enroll(self) -> None:
        """Have users with rights."""
        client = await self.honest()
        for request in enrolling():
            answer: Any = await client.ask(request)
            assert not any(one.error for one in answer.results), answer
        client.transport.end()

    def visit(self, rng: Random) -> Visit:
        """Be somebody, by one of the listeners."""
        number = rng.choice((_BY_PASSWORD, _BY_PASSWORD, _BY_CERTIFICATE, _BY_BOTH))
        inner = self.connect(_peer(rng), number).transport
        if number == _BY_PASSWORD:
            return Visit(inner, LogIn(rng))
        if number == _BY_BOTH:
            return Visit(TlsWire(inner, _context(None), rng), LogIn(rng))
        name = rng.choice((*NAMES, *NAMES, None, _STRANGER))
        # Whom nobody has certified isn't even told anything.
        principal = ANONYMOUS if name is None else f"User:{MALLORY if name == _STRANGER else name}"
        return Visit(TlsWire(inner, _context(name), rng), None, principal)

    def visit_web(self, rng: Random) -> Visit:
        """Be somebody at the listener of HTTP."""
        inner = MemoryTransport(_peer(rng))
        self.web_door.arrive(inner)
        return Visit(TlsWire(inner, _context(rng.choice((*NAMES, None, None, None))), rng))


async def _at_once(work: Callable[[], Account]) -> Account:
    await trio.lowlevel.checkpoint()
    return work()


def _peer(rng: Random) -> str:
    return f"192.0.2.{rng.randint(1, 9)}"


@cache
def _context(name: str | None) -> ssl.SSLContext:
    if name is None:
        return client_context()
    return client_context(certificate(name, by="theirs" if name == _STRANGER else "ours"))
