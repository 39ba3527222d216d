"""What a body may ask of memory and time, and how sound bytes are told from unsound ones."""

import time
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings, strategies as st

from protocol import codec
from protocol.codec import (
    DEPTH_MAX,
    ITEMS_MAX,
    REQUEST_CODECS,
    Invalid,
    Unreadable,
    encode,
)
from protocol.connection import BadRequest, RequestEvent, ServerConnection
from protocol.errors import LocalProtocolError
from protocol.messages import (
    APIS,
    ApiKey,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
)
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import frame_of, judged, request_frame
from tests.protocol.invalid import INVALID_REQUESTS
from tests.protocol.strategies import messages

FRAMES = [request_frame(e.request, e.version, e.number) for e in EXAMPLES]
# What decodes nothing that is drawn here, so that all depends on the bytes being sound.
CODEC = REQUEST_CODECS[ApiKey.HEARTBEAT, 1]

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
@example([msgpack.ExtType(1, bytes(n)) for n in (0, 1, 2, 4, 8, 16, 17, 300, 70_000)])
@example([{str(n): n for n in range(20_000)}, {}, []])
def test_what_msgpack_writes_is_sound(value: Any) -> None:
    """A sound body taken for an unsound one would close the connection of an honest client."""
    with pytest.raises(Unreadable if depth(value) > DEPTH_MAX else Invalid):
        CODEC.decode(msgpack.packb([value]) if depth(value) < DEPTH_MAX else msgpack.packb(value))


def is_one_value(body: bytes) -> bool:
    """Say whether msgpack reads *body* as one value, of content that it may not be able to make."""
    try:
        msgpack.unpackb(body, strict_map_key=False)
    except UnicodeDecodeError:
        return True
    except (ValueError, TypeError) as exc:
        # A timestamp of a wrong size, or a map whose key is an array.
        reason = str(exc).lower()
        return any(word in reason for word in ("ext", "timestamp", "code must", "unhashable"))
    return True


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_noise_is_sound_only_if_it_is_one_value_to_msgpack(noise: bytes) -> None:
    """The two implementations must agree on where a value ends."""
    try:
        CODEC.decode(noise)
    except Unreadable:
        return
    except Invalid:
        pass
    assert is_one_value(noise)


@settings(max_examples=300)
@given(data=st.data())
def test_mutated_requests_are_read_or_refused(data: st.DataObject) -> None:
    """No byte a stranger sends may raise what nobody catches."""
    body = bytearray(data.draw(st.sampled_from(FRAMES))[12:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        change = data.draw(st.integers(0, 2))
        if change == 0 and body:
            body[at] = data.draw(st.integers(0, 255))
        elif change == 1:
            body[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        else:
            del body[at : at + data.draw(st.integers(1, 4))]
    places = [(api.key, version) for api in APIS.values() for version in range(api.max_version + 1)]
    place = data.draw(st.sampled_from(places))
    event = judged(frame_of(*place, bytes(body)))

    if not isinstance(event, BadRequest):
        reader = REQUEST_CODECS[place]
        assert reader.decode(reader.encode(event.request)) == event.request


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
# Inside what a fetch or a commit may hold, so that decoding goes on until the claim.
CLAIMS = {
    "a fetch that claims groups": (ApiKey.OFFSET_FETCH, b"\x92" + array32(2**32 - 1)),
    "a fetch that claims partitions": (
        ApiKey.OFFSET_FETCH,
        b"\x92\x91\x92\xa1g\x91\x92\xa1t" + array32(9_999),
    ),
    "a fetch of nested claims": (
        ApiKey.OFFSET_FETCH,
        b"\x92" + (array16(9_999) + b"\x92\xa1g" + array16(9_999) + b"\x92\xa1t") + array16(9_999),
    ),
    "a commit that claims partitions": (
        ApiKey.OFFSET_COMMIT,
        b"\x95\xa1g\x00\xa1m\xc0\x91\x92\xa1t" + array32(9_999),
    ),
}


def refused_within(frame: bytes) -> tuple[int, float]:
    """Return how many bytes of memory, and how many seconds, it took to refuse *frame*."""
    started = time.thread_time()
    judged(frame)  # What is made at the first refusal stays.
    seconds = time.thread_time() - started
    connection = ServerConnection(RequestEvent)
    tracemalloc.start()
    try:
        (event,) = connection.receive(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(event, BadRequest)
    return peak - len(frame), seconds


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize(
    "key", [ApiKey.HEARTBEAT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT, ApiKey.SYNC_GROUP]
)
def test_bombs_stay_small(name: str, key: ApiKey) -> None:
    """A frame must not cost more than its own size: it would take down all groups."""
    extra_bytes, seconds = refused_within(frame_of(key, 0, BOMBS[name]))

    assert extra_bytes < 4_096
    assert seconds < 0.5


@pytest.mark.parametrize("name", CLAIMS)
def test_false_claims_stay_small(name: str) -> None:
    """Nothing is made ready for elements that a body only announces."""
    key, body = CLAIMS[name]
    extra_bytes, _ = refused_within(frame_of(key, 0, body))

    assert extra_bytes < 4_096


@pytest.mark.parametrize(
    "bad", [bad for bad in INVALID_REQUESTS if "closed w" not in bad.verdict], ids=lambda b: b.name
)
def test_refusing_costs_next_to_nothing(bad: Any) -> None:
    """Every way to break the protocol that the vectors know."""
    extra_bytes, _ = refused_within(bad.frame)

    # What was read before the mistake counts, too.
    assert extra_bytes < 4_096 + 4 * len(bad.frame)


def test_a_body_holds_at_most_100000_values() -> None:
    """The largest legal commit has 60,004; what is far beyond is no request."""

    def fetch(rows: int) -> bytes:
        topics = ((("t", (0,) * 9_999),) * 9) + (("t", (0,) * rows),)
        body: bytes = msgpack.packb(((("g" * 10_000, topics),), False))
        return body

    reader = REQUEST_CODECS[ApiKey.OFFSET_FETCH, 0]
    fixed = 6 + 3 * 10 + 9 * 9_999
    assert isinstance(reader.decode(fetch(ITEMS_MAX - fixed)), OffsetFetchRequest)
    with pytest.raises(Invalid, match="100000"):
        reader.decode(fetch(ITEMS_MAX - fixed + 1))


def test_a_commit_beyond_100000_values_is_refused_before_it_is_made() -> None:
    """It has 6 for each partition, of all topics together."""

    def commit(partitions: int) -> bytes:
        items = [(n, 0, -1, None, None) for n in range(partitions)]
        topics = (("t", items[:9_999]), ("u", items[9_999:]))
        body: bytes = msgpack.packb(("g" * 10_000, -1, "", None, topics))
        return body

    reader = REQUEST_CODECS[ApiKey.OFFSET_COMMIT, 2]
    most = (ITEMS_MAX - 12) // 6
    assert isinstance(reader.decode(commit(most)), OffsetCommitRequest)
    with pytest.raises(Invalid, match="100000"):
        reader.decode(commit(most + 1))


def number_of_values(value: Any) -> int:
    """Return how many values msgpack writes for *value*, an array and what is in it."""
    return 1 + sum(map(number_of_values, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
@settings(max_examples=20)
@given(data=st.data())
def test_exactly_the_values_of_a_body_count(api: Any, data: st.DataObject) -> None:
    """They are counted by the lengths of arrays, which must not find more, or fewer."""
    request = data.draw(messages(api.request))
    version = data.draw(st.integers(0, api.max_version))
    reader = REQUEST_CODECS[api.key, version]
    body = reader.encode(request)
    values = number_of_values(msgpack.unpackb(body))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "ITEMS_MAX", values)
        reader.decode(body)
        patch.setattr(codec, "ITEMS_MAX", values - 1)
        with pytest.raises(Invalid, match="more than"):
            reader.decode(body)


def test_a_long_commit_is_not_walked_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes four times as long as to read it, and nobody else is heard meanwhile."""
    offsets = tuple(PartitionCommit(n, 2**40, -1, None, None) for n in range(10_000))
    commit = OffsetCommitRequest("g", -1, "", None, (TopicCommit("t", offsets),))
    reader = REQUEST_CODECS[ApiKey.OFFSET_COMMIT, 2]
    body = reader.encode(commit)
    assert len(body) > ITEMS_MAX
    monkeypatch.delattr(codec, "_check_sound")

    assert reader.decode(body) == commit


@pytest.mark.parametrize("value", [("\ud800",), (object(),), (2**64,)])
def test_what_msgpack_cannot_write_is_our_mistake(value: tuple[Any, ...]) -> None:
    """It must not reach the peer as half a frame, and encoding works afterwards."""
    with pytest.raises(LocalProtocolError):
        encode(value)
    assert encode((1,)) == b"\x91\x01"
