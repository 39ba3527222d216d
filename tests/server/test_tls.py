"""TLS before sessions: the same bytes, the same limits, and who doesn't get in."""

import errno
import ssl
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing
from hypothesis import given, settings as hypothesis_settings, strategies as st

from coordinator.config import Address, load_settings
from coordinator.runtime.calls import REST
from coordinator.security.tls import Certificates
from coordinator.server.handshakes import HELLO_S, TIMEOUT_S, Handshakes, TlsListener
from coordinator.server.run import start_tls
from coordinator.server.transport import RECORD_BYTES, Listener, TlsTransport
from protocol.connection import ClientConnection
from protocol.messages import HeartbeatResponse, ListGroupsRequest, OffsetCommitResponse
from tests.fakes.disk import Disk
from tests.fakes.tls import (
    HOST,
    NOW_MS,
    TlsPeer,
    certificate,
    client_context,
    write_key_store,
    write_stores,
)
from tests.fakes.transport import MemoryTransport
from tests.server.world import FakeListener, World, beat, commit

ALICE: Final = "alice@example.org"


# --- the transport alone --------------------------------------------------------------------------


@cache
def contexts(only: ssl.TLSVersion | None) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the context of a server without files, and that of a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate(HOST).configure_cert(context)
    context.num_tickets = 0
    return context, client_context(only=only)


def connected(only: ssl.TLSVersion | None = None) -> tuple[TlsTransport, TlsPeer]:
    """Return both ends of a connection that has shaken hands."""
    wire = MemoryTransport()
    ours, theirs = contexts(only)
    server, peer = TlsTransport(wire, ours), TlsPeer(wire, theirs)
    is_over = False
    while not (is_over and peer.is_encrypted):
        peer.turn()
        is_over = server.shake_hands()
    return server, peer


VERSIONS: Final = pytest.mark.parametrize(
    "version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
)
SIZES: Final = st.lists(st.sampled_from([1, 2, 100, 16_384, 16_385, 40_000, 70_000]), max_size=6)


@VERSIONS
@given(sizes=SIZES, cuts=st.lists(st.integers(1, 40_000), min_size=1, max_size=30))
@hypothesis_settings(deadline=None, max_examples=50)
def test_what_a_client_says_arrives_however_the_network_cuts_it(
    version: ssl.TLSVersion, sizes: list[int], cuts: list[int]
) -> None:
    """Nothing stays behind in buffers that nobody looks into again, and nothing comes twice."""
    server, peer = connected(version)
    said = b"".join(bytes([n % 251]) * size for n, size in enumerate(sizes))
    heard = bytearray()
    for n, size in enumerate(sizes):
        peer.say(bytes([n % 251]) * size)
    peer.take()
    cipher, at, number = bytes(peer.to_send), 0, 0
    while at < len(cipher):
        piece = cipher[at : at + cuts[number % len(cuts)]]
        at, number = at + len(piece), number + 1
        peer.wire.put(piece)
        while peer.wire.unread_bytes:  # As the poller calls: only while the socket has something.
            heard += server.receive_now() or b""

    assert heard == said
    assert server.receive_now() is None


@VERSIONS
@given(
    sizes=SIZES,
    rooms=st.lists(st.integers(0, 30_000), min_size=1, max_size=30),
    appended=st.booleans(),
)
@hypothesis_settings(deadline=None, max_examples=50)
def test_what_counts_as_sent_has_left_however_little_room_there_is(
    version: ssl.TLSVersion, sizes: list[int], rooms: list[int], appended: bool
) -> None:
    """A session's own limits and deadlines are about what it has not been told to be taken."""
    server, peer = connected(version)
    said = b"".join(bytes([n % 251]) * size for n, size in enumerate(sizes))
    unsent = bytearray(b"" if appended else said)
    to_come = bytearray(said if appended else b"")
    taken, turns = 0, 0
    while unsent or to_come:
        peer.wire.room = rooms[turns % len(rooms)] or (1 if turns > len(rooms) else 0)
        unsent += to_come[:9_999]  # Answers come while others wait.
        del to_come[:9_999]
        sent = server.send_now(unsent)
        del unsent[:sent]
        taken, turns = taken + sent, turns + 1
        peer.take()
        assert len(peer.heard) >= taken
        assert len(server._unsent) <= RECORD_BYTES + 256

    assert peer.heard == said


@VERSIONS
@given(sent=st.integers(0, 8))
def test_a_send_that_raises_keeps_no_view_of_what_it_was_given(
    version: ssl.TLSVersion, sent: int
) -> None:
    """The session clears its answers next, while the traceback may still be somewhere."""
    server, peer = connected(version)
    sends = iter(range(sent))
    send_now = peer.wire.send_now

    def send(data: bytes | bytearray) -> int:
        if next(sends, None) is None:
            raise ConnectionResetError
        return send_now(data)

    peer.wire.send_now = send  # type: ignore[method-assign]
    unsent = bytearray(10 * RECORD_BYTES)
    with pytest.raises(ConnectionResetError) as raised:
        server.send_now(unsent)
    unsent.clear()

    assert raised.value.__traceback__ is not None


@VERSIONS
def test_what_openssl_has_of_a_connection_ends_when_it_closes(version: ssl.TLSVersion) -> None:
    """It is large, and the collector, which counts objects, would let it lie for long."""
    server, _ = connected(version)
    theirs = weakref.ref(server._tls)
    server.close()

    assert theirs() is None
    with pytest.raises(trio.ClosedResourceError):
        server.send_now(b"too late")
    server.close()


@VERSIONS
def test_both_ends_say_that_they_are_done(version: ssl.TLSVersion) -> None:
    """Then nobody takes a cut for the end."""
    server, peer = connected(version)
    peer.say(b"the last")
    peer.say_no_more()
    assert server.receive_now() == b"the last"
    assert server.receive_now() == b""
    assert server.send_now(b"answer") == 6
    server.close()
    peer.take()

    assert peer.heard == b"answer"
    assert peer.has_ended
    assert peer.wire.closed


def test_nothing_to_send_is_nothing_on_the_wire() -> None:
    """A session asks when it ends, too; an empty record would be for whoever counts them."""
    server, peer = connected()
    assert server.send_now(b"") == 0

    assert peer.wire.received == b""


@VERSIONS
def test_an_end_without_a_word_is_an_end(version: ssl.TLSVersion) -> None:
    """Most clients only close."""
    server, peer = connected(version)
    peer.say(b"half a fr")
    peer.take()
    peer.put()
    peer.wire.end()

    assert server.receive_now() == b"half a fr"
    assert server.receive_now() == b""
    assert server.receive_now() == b""


def test_a_record_that_was_changed_on_the_way_ends_the_connection() -> None:
    """Nothing of it is believed."""
    server, peer = connected()
    peer.say(b"commit 7")
    peer.take()
    peer.to_send[-1] ^= 1
    peer.put()

    with pytest.raises(ssl.SSLError):
        server.receive_now()


# --- a daemon behind it ---------------------------------------------------------------------------


class Guarded(World):
    """A daemon in memory whose listener speaks TLS.

    Attributes:
        warned: Reasons that were logged.
        worked_s: What the processor's clock says.
    """

    def __init__(self, nursery: trio.Nursery, folder: Path, settings: Sequence[str]) -> None:
        overrides = [
            "offsets.topic.num.partitions=4",
            "storage.reserve.bytes=0",
            "listeners=SSL://127.0.0.1:0",
            *write_stores(folder),
            *settings,
        ]
        super().__init__(nursery, settings=load_settings(overrides=overrides), disk=Disk())
        self.folder = folder
        self.warned: list[str] = []
        self.worked_s = 0.0
        self.certificates = Certificates(self.settings, self._told, lambda: NOW_MS)
        self.handshakes = Handshakes(
            environment=self.environment,
            identities=self.certificates,
            warn=self._warn,
            at_most=4,
            clock_s=lambda: self.worked_s,
        )
        no_room = self.server.sessions.has_no_room
        self.door = TlsListener(self.listener, self.handshakes, no_room)

    def _told(self, name: str, fields: dict[str, Any]) -> None:
        self.events.append((name, fields))

    def _warn(self, event: str, peer: str, **fields: Any) -> None:
        assert event == "handshake.refused"
        assert peer.startswith(("192.0.2.", "2001:db8::"))
        self.warned.append(fields["reason"])

    def arrive(self, address: str = "192.0.2.1") -> MemoryTransport:
        """Return the test's end of a new connection."""
        wire = MemoryTransport(address)
        self.listener.arrive(wire)
        return wire

    def ended(self) -> dict[str, int]:
        """Return how handshakes have ended so far."""
        counts = self.environment.telemetry.handshakes
        return {result: times for result, times in counts.items() if times}

    async def shake(self, context: ssl.SSLContext | None = None, name: str = HOST) -> TlsPeer:
        """Connect, and go on until there is nothing more to do."""
        peer = TlsPeer(self.arrive(), context, name)
        for _ in range(3):
            peer.turn()
            await settle()
        peer.turn()
        await settle()
        return peer

    async def serves(self, peer: TlsPeer) -> bool:
        """Say whether a request of *peer* is answered."""
        connection = ClientConnection()
        _, frame = connection.send(beat())
        peer.say(frame)
        peer.turn()
        await settle()
        peer.turn()
        answers = connection.receive(bytes(peer.heard))
        peer.heard.clear()
        return [type(answer.response) for answer in answers] == [HeartbeatResponse]


async def settle() -> None:
    """Let everybody who can do something do it."""
    await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def guarded(folder: Path, *settings: str) -> AsyncIterator[Guarded]:
    """Run a daemon as long as the block lasts."""
    async with trio.open_nursery() as nursery:
        here = Guarded(nursery, folder, settings)
        nursery.start_soon(here.node.run)
        nursery.start_soon(here.handshakes.run, [here.door])
        nursery.start_soon(here.server.run, list[Listener]([here.door]))
        await here.node.load()
        await settle()
        yield here
        nursery.cancel_scope.cancel()


async def test_a_client_is_served(tmp_path: Path, autojump_clock: object) -> None:
    """As without TLS; and nobody in particular without a certificate."""
    async with guarded(tmp_path) as here:
        peer = await here.shake()

        assert await here.serves(peer)
        assert await here.serves(peer)
        assert [s.transport.principal for s in here.server.sessions] == ["User:ANONYMOUS"]
        assert here.ended() == {"done": 1}


async def test_a_request_right_behind_the_handshake_is_answered(
    tmp_path: Path, autojump_clock: object
) -> None:
    """It comes in the same packet as the handshake's end, and the socket has nothing more."""
    async with guarded(tmp_path) as here:
        peer = TlsPeer(here.arrive())
        peer.turn()
        await settle()
        peer.take()
        connection = ClientConnection()
        peer.say(connection.send(beat())[1] + connection.send(beat())[1])
        peer.put()
        await settle()
        peer.turn()

        assert len(connection.receive(bytes(peer.heard))) == 2


@pytest.mark.parametrize("says_so", [True, False])
async def test_who_closes_his_end_behind_a_request_is_answered(
    tmp_path: Path, autojump_clock: object, says_so: bool
) -> None:
    """Else the answer to the last commit is lost; with TLS's word for the end or without."""
    async with guarded(tmp_path) as here:
        peer = await here.shake()
        connection = ClientConnection()
        peer.say(connection.send(commit())[1])
        if says_so:
            peer.say_no_more()
        peer.take()
        peer.put()
        peer.wire.end()
        await settle()
        peer.take()

        (answer,) = connection.receive(bytes(peer.heard))
        assert type(answer.response) is OffsetCommitResponse
        assert peer.wire.closed


async def test_a_client_is_who_its_certificate_says(tmp_path: Path, autojump_clock: object) -> None:
    """What it may do is decided by that, later."""
    async with guarded(
        tmp_path, "ssl.client.auth=required", "super.users=User:alice@example.org"
    ) as here:
        peer = await here.shake(client_context(certificate(ALICE)))

        assert await here.serves(peer)
        assert [s.transport.principal for s in here.server.sessions] == [f"User:{ALICE}"]


OLD: Final = ssl.TLSVersion.TLSv1_1
FRAME: Final = ClientConnection().send(beat())[1]


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (client_context, "it shows no certificate, and ssl.client.auth is required"),
        (
            lambda: client_context(certificate(ALICE, days=-1)),
            "its certificate is not accepted: certificate has expired",
        ),
        (
            lambda: client_context(certificate(ALICE, by="theirs")),
            "its certificate is not accepted: unable to get local issuer certificate",
        ),
        (
            lambda: client_context(certificate(ALICE), trusts="theirs"),
            "it does not accept our certificate (unknown ca)",
        ),
        (
            lambda: client_context(certificate(ALICE), only=OLD),
            "it speaks no version of TLS that ssl.enabled.protocols has",
        ),
    ],
    ids=["none", "expired", "of somebody else", "does not trust us", "old"],
)
async def test_who_may_not_come_in_is_told_apart(
    tmp_path: Path, autojump_clock: object, context: Any, reason: str
) -> None:
    """Each at once, with a line that says what to mend; and the next one is served."""
    async with guarded(
        tmp_path, "ssl.client.auth=required", "super.users=User:alice@example.org"
    ) as here:
        peer = TlsPeer(here.arrive(), context())
        for _ in range(4):
            try:
                peer.turn()
            except ssl.SSLError:
                peer.put()
            await settle()

        assert peer.wire.closed
        assert here.warned == [reason]
        assert trio.current_time() < TIMEOUT_S
        assert list(here.server.sessions) == []
        assert await here.serves(await here.shake(client_context(certificate(ALICE))))


async def test_a_client_that_looks_for_another_name_is_told_of(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The certificate lacks a name that clients use."""
    async with guarded(tmp_path) as here:
        peer = TlsPeer(here.arrive(), name="another.example")
        peer.turn()
        await settle()
        with pytest.raises(ssl.SSLCertVerificationError, match=r"another\.example"):
            peer.turn()
        await settle()

        assert peer.wire.closed
        assert here.warned == ["it does not accept our certificate (bad certificate)"]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (FRAME, "it speaks without TLS here"),
        (FRAME[:1], "it speaks without TLS here"),
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP without TLS here; its address should begin"),
        (b"\x16\x03\x01\xff\xff" + b"x" * 70_000, "longer than 16 KiB"),
        (b"\x16what is this?", "wrong version number"),
    ],
)
async def test_what_is_no_tls_is_closed_at_once(
    tmp_path: Path, autojump_clock: object, sent: bytes, reason: str
) -> None:
    """Its client waits for an answer that would never come."""
    async with guarded(tmp_path) as here:
        wire = here.arrive()
        wire.put(sent)
        await settle()

        assert wire.closed
        assert len(here.warned) == 1
        assert reason in here.warned[0]
        assert await here.serves(await here.shake())


@pytest.mark.parametrize("how_far", ["silent", "begun", "answered"])
async def test_a_handshake_that_stalls_is_ended_after_five_seconds(
    tmp_path: Path, autojump_clock: object, how_far: str
) -> None:
    """However slowly it drips: it holds a place that others need."""
    async with guarded(tmp_path) as here:
        peer = TlsPeer(here.arrive())
        await settle()
        if how_far == "begun":
            peer.take()
            peer.wire.put(bytes(peer.to_send[:50]))
        elif how_far == "answered":
            peer.turn()
        await settle()
        await trio.sleep(TIMEOUT_S - 0.1)
        assert not peer.wire.closed
        if how_far == "begun":
            peer.wire.put(bytes(peer.to_send[50:60]))
        await trio.sleep(0.2)

        assert peer.wire.closed
        assert here.warned == ["no handshake within 5 s"]
        assert here.ended() == {"stalled": 1}


@pytest.mark.parametrize("address", ["192.0.2.9", "2001:db8::{}"])
async def test_silent_connections_of_one_address_shut_nobody_else_out(
    address: str, tmp_path: Path, autojump_clock: object
) -> None:
    """They would hold all places, and those behind them the system's queue, again and again."""
    async with guarded(tmp_path) as here:
        silent = [here.arrive(address.format(n)) for n in range(100)]
        await settle()
        assert [wire.closed for wire in silent] == [False] * 3 + [True] * 97
        assert await here.serves(await here.shake())
        assert trio.current_time() < TIMEOUT_S

        await trio.sleep(TIMEOUT_S + 0.1)
        later = here.arrive(address.format(100))
        await settle()
        assert not later.closed
        assert here.ended() == {"done": 1, "refused": 97, "stalled": 3}


async def test_who_answers_in_time_may_take_longer_in_all(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A crowd that comes back after an outage waits for us; that is not its fault."""
    async with guarded(tmp_path) as here:
        peer = TlsPeer(here.arrive())
        await trio.sleep(TIMEOUT_S - 1)
        peer.turn()
        await trio.sleep(TIMEOUT_S - 1)
        peer.turn()
        await settle()

        assert await here.serves(peer)


async def test_a_connection_without_a_descriptor_is_counted_where_it_came(
    tmp_path: Path, autojump_clock: object
) -> None:
    """Clients and Prometheus are refused by different limits; who is called wants to know whose."""
    async with guarded(tmp_path) as here:
        inner = [FakeListener(), FakeListener()]
        address = Address("127.0.0.1", 0, "SSL")
        start_tls(
            here.nursery,
            [address, address],
            inner,
            1,
            here.certificates,
            here.server.sessions,
            here.environment,
            at_most=4,
        )
        for full in (inner[0], inner[1], inner[1]):
            full.arrive(OSError(errno.EMFILE, "too many open files"))
        await trio.sleep(1)

        telemetry = here.environment.telemetry
        assert 1 == telemetry.connections_refused["descriptors"]
        assert 2 == telemetry.http_connections_refused["descriptors"]


async def test_who_only_looks_whether_the_port_is_open_is_no_news(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A probe does so every few seconds."""
    async with guarded(tmp_path) as here:
        wire = here.arrive()
        wire.end()
        reset = here.arrive()
        reset.reset()
        await settle()

        assert wire.closed
        assert reset.closed
        assert here.warned == []
        assert here.ended() == {"left": 2}


async def test_a_hello_without_an_end_is_refused_and_the_log_says_why(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The daemon keeps a bounded part of it; the author of such a client wants to know."""
    async with guarded(tmp_path) as here:
        wire = here.arrive()
        record = b"\x16\x03\x01\x20\x00" + b"\x01\x02\x00\x00".ljust(0x2000, b"x")
        for _ in range(3):
            wire.put(record)
            await settle()

        assert wire.closed
        assert ["its client hello is longer than 16 KiB"] == here.warned
        assert {"refused": 1} == here.ended()


async def test_only_so_many_shake_hands_at_a_time(tmp_path: Path, autojump_clock: object) -> None:
    """Each has a descriptor and some memory; the next ones wait outside, and lose nothing."""
    async with guarded(tmp_path) as here:
        silent = [here.arrive(f"192.0.2.{n}") for n in range(4)]
        late = TlsPeer(here.arrive())
        late.turn()
        await settle()
        assert late.wire.unread_bytes
        silent[0].end()
        await settle()

        assert not late.wire.unread_bytes
        late.turn()
        await settle()
        assert await here.serves(late)


async def test_silent_connections_make_room_for_those_that_come(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A crowd of them from many addresses would shut everybody out for minutes."""
    async with guarded(tmp_path) as here:
        silent = [here.arrive(f"192.0.2.{n}") for n in range(100)]
        late = TlsPeer(here.arrive())
        late.turn()
        await trio.sleep(100 / 4 * HELLO_S + 0.1)
        late.turn()
        await settle()
        assert await here.serves(late)

        await trio.sleep(1)
        assert [wire.closed for wire in silent] == [True] * 97 + [False] * 3
        assert set(here.warned) == {"no client hello within 0.02 s, and others wait"}


async def test_those_that_have_said_hello_make_no_room(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A crowd of clients that come back at once would end each other's handshakes."""
    async with guarded(tmp_path) as here:
        crowd = [TlsPeer(here.arrive(f"192.0.2.{n}")) for n in range(10)]
        for peer in crowd:
            peer.turn()
        await trio.sleep(TIMEOUT_S - 1)
        assert [peer.wire.closed for peer in crowd] == [False] * 10
        while not all(peer.is_encrypted for peer in crowd):
            for peer in crowd:
                peer.turn()
            await settle()

        assert [await here.serves(peer) for peer in crowd] == [True] * 10


async def test_a_hello_that_is_there_is_read_before_its_connection_is_called_silent(
    tmp_path: Path, autojump_clock: object
) -> None:
    """The daemon may have been busy, or stopped; that is not the client's fault."""
    async with guarded(tmp_path) as here:
        crowd = [TlsPeer(here.arrive(f"192.0.2.{n}")) for n in range(4)]
        await trio.sleep(HELLO_S * 0.9)
        here.arrive()
        await settle()
        with pytest.MonkeyPatch.context() as patch:
            shake_hands = TlsTransport.shake_hands

            def slow(transport: TlsTransport) -> bool:
                here.worked_s += HELLO_S
                here.environment.telemetry.received_bytes += 1
                return shake_hands(transport)

            patch.setattr(TlsTransport, "shake_hands", slow)
            for peer in crowd:
                peer.turn()
            await trio.sleep(1)

        assert [peer.wire.closed for peer in crowd] == [False] * 4


async def test_handshakes_rest_while_clients_ask(tmp_path: Path, autojump_clock: object) -> None:
    """A crowd of them gets a fifth of the time, one by one, and none waits for nothing."""
    async with guarded(tmp_path) as here:
        crowd = [TlsPeer(here.arrive(f"192.0.2.{n}")) for n in range(4)]
        await settle()
        shake_hands = TlsTransport.shake_hands
        at_s: list[float] = []

        def slow(transport: TlsTransport) -> bool:
            at_s.append(trio.current_time())
            here.worked_s += 0.25
            here.environment.telemetry.received_bytes += len(at_s) < 4
            return shake_hands(transport)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TlsTransport, "shake_hands", slow)
            for peer in crowd:
                peer.turn()
            await trio.sleep(REST)

        assert at_s == pytest.approx([at_s[0] + n * REST * 0.25 for n in range(4)])


async def test_a_new_certificate_is_for_new_connections(
    tmp_path: Path, autojump_clock: object
) -> None:
    """Who is connected notices nothing."""
    async with guarded(tmp_path) as here:
        old = await here.shake()
        write_key_store(tmp_path / "server.pem", certificate("new.example"))
        here.certificates.reload()
        new = await here.shake(name="new.example")

        assert await here.serves(old)
        assert await here.serves(new)


async def test_a_slow_reader_gets_everything_and_one_that_takes_nothing_is_closed(
    tmp_path: Path, autojump_clock: object
) -> None:
    """What it has not taken is the session's, with its limits, and not hidden in a buffer."""
    async with guarded(tmp_path, "send.buffer.max.bytes=100000") as here:
        friend = await here.shake()
        connection = ClientConnection()
        for number in range(40):
            friend.say(connection.send(commit(group_id=f"group-{number}" + "x" * 200))[1])
        friend.turn()
        await settle()
        slow, asking = await here.shake(), ClientConnection()
        slow.wire.room = 0
        for _ in range(40):
            slow.say(asking.send(ListGroupsRequest((), ()))[1])
        slow.put()
        await settle()
        (session,) = [s for s in here.server.sessions if s.is_blocked]
        assert len(session.unsent) > 100_000
        answers = 0
        while answers < 40:
            slow.wire.give_room(5_000)
            await settle()
            slow.turn()
            answers += len(asking.receive(bytes(slow.heard)))
            slow.heard.clear()
        assert not session.has_unsent

        slow.wire.give_room(0)
        for _ in range(40):
            slow.say(asking.send(ListGroupsRequest((), ()))[1])
        slow.put()
        await trio.sleep(9)
        assert not slow.wire.closed
        await trio.sleep(3)
        assert slow.wire.closed


async def test_an_end_of_the_peer_ends_its_session(tmp_path: Path, autojump_clock: object) -> None:
    """Also where it only says so, and leaves the connection open; what it asked is answered."""
    async with guarded(tmp_path) as here:
        peer, connection = await here.shake(), ClientConnection()
        peer.say(connection.send(beat())[1])
        peer.say_no_more()
        await settle()
        peer.take()

        assert len(connection.receive(bytes(peer.heard))) == 1
        assert peer.has_ended
        assert peer.wire.closed


async def test_a_stop_ends_handshakes_too(tmp_path: Path, autojump_clock: object) -> None:
    """Nobody is left hanging."""
    async with guarded(tmp_path) as here:
        wire = here.arrive()
        await settle()

    assert wire.closed
