"""What a body may ask of memory, and how sound bytes are told from unsound ones."""

import subprocess
import sys
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings, strategies as st

from protocol.apis import REQUEST_CHECKS, ApiKey, request_body
from protocol.body import DEPTH_MAX, Unreadable, check_msgpack, pack, scan, unpack_request
from protocol.connection import BadRequest, ServerConnection
from protocol.errors import LocalProtocolError
from protocol.schema import Invalid
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import request_frame
from tests.protocol.invalid import frame_of

MIB = 1024 * 1024
EXTRA_BYTES_MAX = 16 * MIB
FRAMES = [request_frame(e.request, e.version, n) for n, e in enumerate(EXAMPLES)]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=300)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20))
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=30,
)


def depth(value: Any) -> int:
    """Return how many containers with something in them lie in one another."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if not isinstance(value, list) or not value:
        return 0
    return 1 + max(depth(item) for item in value)


def nested(levels: int) -> Any:
    """Return an array in an array in an array."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@settings(max_examples=300)
@given(values)
@example(nested(DEPTH_MAX))
@example(nested(DEPTH_MAX + 1))
@example(["x" * 70_000, b"y" * 70_000, list(range(300))])
def test_scan_agrees_with_msgpack_on_what_msgpack_writes(value: Any) -> None:
    """A sound body that `scan` refuses would close the connection of an honest client."""
    packed = msgpack.packb(value)
    if depth(value) > DEPTH_MAX:
        with pytest.raises(Unreadable, match="deeper"):
            scan(packed)
    else:
        scan(packed)


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_scan_agrees_with_msgpack_on_noise(noise: bytes) -> None:
    """Bytes that pass as sound must be one value to msgpack too."""
    try:
        scan(noise)
    except Unreadable:
        return
    try:
        msgpack.unpackb(noise, strict_map_key=False)
    except UnicodeDecodeError:
        return
    except (ValueError, TypeError) as exc:
        # Sound bytes, but content that msgpack can't make: a timestamp of a wrong size, or a
        # map whose key is an array.
        reason = str(exc).lower()
    else:
        reason = ""
    assert not reason or any(
        word in reason for word in ("ext", "timestamp", "code must", "unhashable")
    )


@settings(max_examples=300)
@given(data=st.data())
def test_mutated_requests_are_read_or_refused(data: st.DataObject) -> None:
    """No byte a stranger sends may raise what nobody catches."""
    frame = bytearray(data.draw(st.sampled_from(FRAMES))[12:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(frame) - 1)))
        change = data.draw(st.integers(0, 2))
        if change == 0 and frame:
            frame[at] = data.draw(st.integers(0, 255))
        elif change == 1:
            frame[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        else:
            del frame[at : at + data.draw(st.integers(1, 4))]
    key, version = data.draw(st.sampled_from(sorted(REQUEST_CHECKS)))
    (event,) = ServerConnection().receive(frame_of(key, version, bytes(frame)))

    if not isinstance(event, BadRequest):
        _, check = REQUEST_CHECKS[key, version]
        body = pack(request_body(event.request, event.api_version))
        assert unpack_request(body, check) == event.request


def array32(claimed: int) -> bytes:
    """Return the header of an array that claims so many elements."""
    return b"\xdd" + claimed.to_bytes(4, "big")


def array16(claimed: int) -> bytes:
    """Return the header of an array that claims so many elements."""
    return b"\xdc" + claimed.to_bytes(2, "big")


BOMBS = {
    "4 KiB, 700 nested claims of 2048": array32(2048) * 700,
    "16 KiB, 1000 nested claims of 8192": array32(8192) * 1_000,
    "64 KiB, nested claims of 32768": array32(32_768) * 13_000,
    "1 MiB, nested claims of 512 Ki": array32(512 * 1024) * 200_000,
    "1 MiB, nested claims of 1 Mi": array32(1024 * 1024) * 200_000,
    "1 MiB of claims of 9999, padded": array32(9_999) * 10_000 + bytes(900_000),
    "16 nested claims of 10000": array32(10_000) * 16 + bytes(60_000),
    "nested 16-bit claims of 10000": array16(10_000) * 16 + bytes(60_000),
    "1 MiB of empty maps": b"\x80" * 1_000_000,
    "an array of 60000 empty maps": array16(60_000) + b"\x80" * 60_000,
    "arrays of 9999 empty maps": b"\x96" + (array16(9_999) + b"\x80" * 9_999) * 6,
    "arrays of 9999 empty arrays": b"\x99" + (array16(9_999) + b"\x90" * 9_999) * 9,
    "a nest of 1025": b"\x91" * 1_025 + b"\xc0",
    "a nest of a million": b"\x91" * 1_000_000,
    "a nest of 15s": b"\x9f" * 60_000,
    "a str of a claimed 4 GiB": b"\xdb\xff\xff\xff\xff",
    "a bin of a claimed 4 GiB": b"\xc6\xff\xff\xff\xff",
    "an ext of a claimed 4 GiB": b"\xc9\xff\xff\xff\xff\x01",
    "a map of a claimed 4 Gi": b"\xdf\xff\xff\xff\xff",
    "an honest body of 90000 values": b"\x99"
    + (array16(9_999) + b"\xce\xff\xff\xff\xff" * 9_999) * 9,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("key", [ApiKey.HEARTBEAT, ApiKey.OFFSET_FETCH, ApiKey.SYNC_GROUP])
def test_bombs_stay_small(name: str, key: ApiKey) -> None:
    """A frame must not cost many times its size (row 8): it would take down all groups."""
    frame = frame_of(key, 0, BOMBS[name])
    connection = ServerConnection()
    tracemalloc.start()
    try:
        (event,) = connection.receive(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert isinstance(event, BadRequest)
    assert peak < EXTRA_BYTES_MAX


def test_a_body_holds_at_most_100000_values() -> None:
    """The largest legal commit has 60,004; what is far beyond is no request."""
    scan(b"\xdd" + (99_999).to_bytes(4, "big") + b"\xc0" * 99_999)
    with pytest.raises(Invalid, match="100000"):
        scan(b"\xdd" + (100_000).to_bytes(4, "big") + b"\xc0" * 100_000)


@pytest.mark.parametrize("value", [("\ud800",), (object(),), (2**64,), ({1, 2},)])
def test_what_msgpack_cannot_write_is_our_mistake(value: tuple[Any, ...]) -> None:
    """It must not reach the peer as half a frame, and the packer works afterwards."""
    with pytest.raises(LocalProtocolError):
        pack(value)
    assert pack((1,)) == b"\x91\x01"


@pytest.mark.parametrize("version", [(1, 1, 0), (1, 2, 0), (0, 6, 2)])
def test_an_old_msgpack_is_refused(version: tuple[int, ...]) -> None:
    """It crashes on bad input (GHSA-6v7p-g79w-8964)."""
    with pytest.raises(ImportError, match=r"1\.2\.1"):
        check_msgpack(version, "msgpack._cmsgpack")


def test_msgpack_without_its_extension_is_refused() -> None:
    """The fallback judges bad input differently."""
    with pytest.raises(ImportError, match="C extension"):
        check_msgpack((1, 2, 1), "msgpack.fallback")
    check_msgpack((1, 2, 1), "msgpack._cmsgpack")
    check_msgpack((2, 0, 0), "msgpack._cmsgpack")


def test_the_import_itself_refuses_the_fallback() -> None:
    """A check that nobody calls protects nobody (row 51)."""
    done = subprocess.run(
        [sys.executable, "-c", "import protocol.connection"],
        env={"MSGPACK_PUREPYTHON": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 1
    assert "ImportError: msgpack runs without its C extension" in done.stderr
