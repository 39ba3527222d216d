"""Frames arrive in any pieces."""

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from protocol.apis import ApiKey
from protocol.connection import BadRequest, RequestEvent, ServerConnection
from protocol.frames import REQUEST_HEADER, FrameTooLarge
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import request_frame
from tests.protocol.invalid import CLOSE, INVALID_REQUESTS

FRAMES = [request_frame(e.request, e.version, n) for n, e in enumerate(EXAMPLES)]
ANSWERED = [bad for bad in INVALID_REQUESTS if bad.verdict != CLOSE and len(bad.frame) < 2_000]


@pytest.mark.parametrize("number", range(len(FRAMES)), ids=lambda n: EXAMPLES[n].title)
def test_a_frame_may_come_byte_by_byte(number: int) -> None:
    """TCP promises nothing about pieces."""
    frame = FRAMES[number]
    whole = ServerConnection().receive(frame)
    connection = ServerConnection()
    for at in range(len(frame) - 1):
        assert connection.receive(frame[at : at + 1]) == []
        assert connection.unfinished_bytes == at + 1
    assert connection.announced_bytes == len(frame) - 4

    assert connection.receive(frame[-1:]) == whole
    assert connection.unfinished_bytes == 0
    assert connection.announced_bytes == 0


@pytest.mark.parametrize("bad", ANSWERED, ids=lambda bad: bad.name)
def test_an_invalid_frame_may_come_byte_by_byte(bad: object) -> None:
    """The verdict must not depend on how the network cut it."""
    frame = bad.frame  # type: ignore[attr-defined]  # pytest hands over an object
    connection = ServerConnection()
    events = [event for byte in frame for event in connection.receive(bytes([byte]))]

    assert events == ServerConnection().receive(frame)


def test_all_frames_may_come_in_one_read() -> None:
    """A pipelining client sends many at once; they keep their order."""
    events = ServerConnection().receive(b"".join(FRAMES))

    assert [event.correlation_id for event in events] == list(range(len(FRAMES)))
    assert [e.request for e in events if isinstance(e, RequestEvent)] == [
        example.request for example in EXAMPLES
    ]


def test_what_follows_a_frame_is_kept_for_the_next_read() -> None:
    """The end of one read is the middle of a frame as a rule."""
    connection = ServerConnection()
    first = connection.receive(FRAMES[0] + FRAMES[1][:5])

    assert [e.correlation_id for e in first] == [0]
    assert connection.unfinished_bytes == 5
    assert [e.correlation_id for e in connection.receive(FRAMES[1][5:])] == [1]


@settings(max_examples=100)
@given(cuts=st.lists(st.integers(0, sum(map(len, FRAMES))), max_size=20))
def test_any_cutting_gives_the_same_requests(cuts: list[int]) -> None:
    """Wherever the reads end."""
    stream = b"".join(FRAMES)
    edges = [0, *sorted(cuts), len(stream)]
    connection = ServerConnection()
    events = [
        event
        for start, end in itertools.pairwise(edges)
        for event in connection.receive(stream[start:end])
    ]

    assert events == ServerConnection().receive(stream)


def header(size: int, api_key: int = ApiKey.HEARTBEAT) -> bytes:
    """Return the header of a request that announces *size*."""
    return REQUEST_HEADER.pack(size, api_key, 0, 1)


@pytest.mark.parametrize("size", [0, 7, 1024 * 1024 + 1, 8 * 1024 * 1024 + 1, 2**32 - 1])
def test_a_size_that_is_not_allowed_ends_it_at_once(size: int) -> None:
    """Nothing is allocated or waited for on the word of four bytes (rows 1 and 2)."""
    data = header(size)
    connection = ServerConnection()

    with pytest.raises(FrameTooLarge):
        connection.receive(data[:6])
    assert connection.unfinished_bytes <= 6


def test_only_sync_group_may_be_large() -> None:
    """The leader of a large group sends everybody's assignment; nobody else needs the room."""
    size = 8 * 1024 * 1024
    connection = ServerConnection()

    assert connection.receive(header(size, ApiKey.SYNC_GROUP)[:5]) == []
    assert connection.receive(header(size, ApiKey.SYNC_GROUP)[5:]) == []
    with pytest.raises(FrameTooLarge):
        ServerConnection().receive(header(1024 * 1024 + 1, ApiKey.JOIN_GROUP))


def test_the_limit_itself_is_allowed() -> None:
    """`size` is what the limits limit."""
    connection = ServerConnection(max_request_bytes=100, max_sync_request_bytes=200)
    (event,) = connection.receive(header(100) + bytes(92))

    assert isinstance(event, BadRequest)
    with pytest.raises(FrameTooLarge):
        connection.receive(header(101))


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"\x15\x03\x01\x02\x00", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /x HTTP/1.1\r\n", "HTTP"),
    ],
)
def test_the_log_line_guesses_what_a_stranger_speaks(start: bytes, hint: str) -> None:
    """It is a mistyped port nearly every time (row 4)."""
    with pytest.raises(FrameTooLarge, match=hint):
        ServerConnection().receive(start)
