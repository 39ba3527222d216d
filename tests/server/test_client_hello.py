"""The first message of a handshake: gathered until it is whole, and never more than 16 KiB."""

import ssl
import subprocess
import sys
from functools import cache
from itertools import cycle

import pytest
from hypothesis import given, strategies as st

from coordinator.server.client_hello import HELLO_BYTES_MAX, BadHello, ClientHello
from coordinator.server.transport import TlsTransport
from tests.fakes.tls import HOST, TlsPeer, certificate
from tests.fakes.transport import MemoryTransport


@cache
def hello() -> bytes:
    """Return the message that a client begins with, without the header of its record."""
    peer = TlsPeer(MemoryTransport())
    peer.take()
    return bytes(peer.to_send[5:])


def record(carried: bytes, kind: int = 0x16) -> bytes:
    """Return a record of TLS."""
    return bytes([kind, 3, 1]) + len(carried).to_bytes(2) + carried


def records(message: bytes, sizes: list[int]) -> bytes:
    """Return *message* in records that carry *sizes* bytes, these over and over."""
    cut, at = b"", 0
    while at < len(message):
        for size in sizes:
            cut += record(message[at : at + size]) if at < len(message) else b""
            at += size
    return cut


def announced(size: int) -> bytes:
    """Return the header of a hello that has *size* bytes."""
    return b"\x01" + size.to_bytes(3)


@cache
def server_context() -> ssl.SSLContext:
    """Return that of a server without files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate(HOST).configure_cert(context)
    return context


SIZES = st.lists(st.integers(1, 600), min_size=1, max_size=5)


@given(sizes=SIZES, cuts=SIZES)
def test_a_hello_is_whole_with_its_last_byte_however_it_is_cut(
    sizes: list[int], cuts: list[int]
) -> None:
    """Neither records nor packets end where a message does."""
    data = records(hello(), sizes)
    gathered, at, turn = ClientHello(), 0, 0
    while at < len(data):
        piece = data[at : at + cuts[turn % len(cuts)]]
        at, turn = at + len(piece), turn + 1
        assert gathered.add(piece) == (at == len(data))

    assert bytes(gathered.data) == data


@given(sizes=SIZES)
def test_a_handshake_begins_with_a_hello_in_any_records(sizes: list[int]) -> None:
    """OpenSSL gets every byte, and in its order."""
    wire = MemoryTransport()
    server = TlsTransport(wire, server_context())
    for byte in records(hello(), sizes):
        assert not wire.received
        wire.put(bytes([byte]))
        assert not server.shake_hands()

    assert wire.received


def test_what_comes_behind_the_hello_is_not_lost() -> None:
    """The rest is OpenSSL's to judge, as all that isn't a hello."""
    gathered = ClientHello()

    assert gathered.add(record(hello()) + b"more")
    assert bytes(gathered.data).endswith(b"more")


def test_another_message_is_for_openssl_at_once() -> None:
    """OpenSSL knows the right alert, and nothing is waited for."""
    wire = MemoryTransport()
    server = TlsTransport(wire, server_context())
    wire.put(record(b"\x02\x00\x00\x05"))

    with pytest.raises(ssl.SSLError):
        server.shake_hands()


@pytest.mark.parametrize(
    "data", [record(b""), record(b"\x01") + record(b""), record(b"\x01") + record(b"\x02x", 0x15)]
)
def test_nothing_else_comes_within_a_hello(data: bytes) -> None:
    """OpenSSL would take it, and all that is announced behind it."""
    with pytest.raises(BadHello, match="damaged"):
        ClientHello().add(data)


@given(
    length=st.integers(HELLO_BYTES_MAX + 1, 2**24 - 1),
    sizes=st.lists(st.integers(1, 2**14), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 2**16), min_size=1, max_size=5),
)
def test_no_more_than_16_kib_are_kept_of_a_hello_that_is_not_whole(
    length: int, sizes: list[int], cuts: list[int]
) -> None:
    """A thousand strangers may hold 16 KiB each for five seconds."""
    data = records(announced(length) + b"\0" * 2 * HELLO_BYTES_MAX, sizes)
    gathered = ClientHello()

    def add_all() -> None:
        at = 0
        for size in cycle(cuts):
            assert at < len(data)
            assert not gathered.add(data[at : at + size])
            assert len(gathered.data) < HELLO_BYTES_MAX + 5  # Less than a record's header.
            at += size

    with pytest.raises(BadHello, match="longer than 16 KiB"):
        add_all()


# In a process of its own, which has nothing yet that it could use again.
_HOLD = """
import sys
from tests.server.test_client_hello import *
def resident_kb():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
def begun():
    wire = MemoryTransport()
    transport = TlsTransport(wire, server_context())
    wire.put(record(announced(int(sys.argv[1])) + b"x" * 200))
    assert not transport.shake_hands()
    return transport
warm = begun()
before_kb = resident_kb()
held = [begun() for _ in range(750)]
print((resident_kb() - before_kb) / len(held))
"""


@pytest.mark.parametrize("length", [300, 16_000, 131_000])
def test_a_half_hello_takes_some_kilobytes(length: int) -> None:
    """A hello that announced 131,000 bytes took 154 KB as soon as it began."""
    command = [sys.executable, "-c", _HOLD, str(length)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180)

    assert float(done.stdout) < 12
