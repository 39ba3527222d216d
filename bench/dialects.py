"""What the load generator says on a connection, and how it knows the answers.

A dialect is the only part that knows a protocol. Ours and the echo's are here, and what all of
them need; the peers' have files of their own. The loops, the clock and the counting are the same
for each.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

from protocol.connection import ClientConnection
from protocol.errors import ErrorCode
from protocol.messages import (
    ApiVersionsRequest,
    GroupFetch,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    Request,
    Response,
    SyncGroupRequest,
    TopicCommit,
    TopicPartitions,
)

COMMIT, FETCH, HEARTBEAT = "commit", "fetch", "heartbeat"
# What commits and fetches are like; `Load` says more.
UNIFORM, MIXED, TOPICS, METADATA, EXPECTED, MEMBERS = KINDS = (
    *("uniform", "mixed", "topics", "metadata", "expected", "members"),
)

# An offset above 2^32 is nine bytes in msgpack whatever it counts up to, so that a frame that
# was encoded once gets its next offset by overwriting eight bytes.
FIRST_OFFSET: Final = 2**40
OFFSET_DIGITS: Final = len(str(FIRST_OFFSET))
_OFFSET = Struct(">Q")
_CORRELATION = Struct(">i")
_REQUEST_CORRELATION_AT: Final = 8
RESPONSE_CORRELATION_AT: Final = 4
RESPONSE_BODY_AT: Final = 16

TOPIC: Final = "flights"
ALL_TOPICS: Final = (TOPIC, "flights.cancelled", "weather", "airports-of-departure")
# Of the kind "metadata": what a program notes of itself.
_NOTE: Final = '{"by":"worker-17","run":"2026-11-22T10:12"}'
# Of the kind "mixed": each takes another number of bytes in msgpack, from one to nine.
_WIDTHS: Final = (7, 200, 60_000, 10_000_000, 2**33)
_HIGHEST_PARTITION: Final = 999
SESSION_TIMEOUT_MS: Final = 300_000


class DialectError(Exception):
    """The server did not answer as the benchmark needs it; the message says how."""


class Exchange:
    """One slot of a connection's window: a request that is sent again and again.

    Attributes:
        request: The whole frame, encoded once.
        answer: The expected tail of the answer's frame.
        offset: The offset that the request carries now, 0 if it carries none.
        offset_at: Where it stands in the frame; looked for if not given.
    """

    __slots__ = ("_offset_at", "answer", "offset", "request")

    def __init__(
        self,
        request: bytes,
        *,
        answer: bytes = b"",
        offset: int = 0,
        offset_at: int | None = None,
    ) -> None:
        self.request = bytearray(request)
        self.answer = answer
        self.offset = offset
        if offset_at is None:
            offset_at = request.index(_OFFSET.pack(offset)) if offset else -1
        self._offset_at = offset_at

    def next_request(self) -> bytearray:
        """Return the frame to send now; the offset of a commit's first partition is one higher."""
        if self._offset_at >= 0:
            self.offset += 1
            _OFFSET.pack_into(self.request, self._offset_at, self.offset)
        return self.request


class ExpectingExchange(Exchange):
    """A commit that expects the offset that the commit before it stored."""

    __slots__ = ("_expected_at",)

    def __init__(self, request: bytes, *, answer: bytes, offset: int) -> None:
        super().__init__(request, answer=answer, offset=offset)
        self._expected_at = request.index(_OFFSET.pack(offset - 1))

    def next_request(self) -> bytearray:
        """Return the frame to send now, both offsets one higher than the last."""
        _OFFSET.pack_into(self.request, self._expected_at, self.offset)
        return super().next_request()


class TextExchange(Exchange):
    """The same with the offset as digits: the first has 13 of them, and so have all later ones."""

    __slots__ = ()

    def next_request(self) -> bytearray:
        """Return the frame to send now, its offset one higher than the last."""
        if (at := self._offset_at) >= 0:
            self.offset += 1
            self.request[at : at + OFFSET_DIGITS] = b"%d" % self.offset
        return self.request


class Reader(Protocol):
    """Finds answers in one connection's byte stream."""

    wrong: int
    wrong_example: bytes

    def feed(self, data: bytes) -> list[int]:
        """Take what was read; return the slots that were answered."""


class Dialect(Protocol):
    """One protocol and one kind of request."""

    def prepare(self, sock: socket.socket, connection: int) -> list[Exchange]:
        """Greet, create what the load needs, and return one exchange a slot. May block."""

    def reader(self, exchanges: Sequence[Exchange]) -> Reader:
        """Return a reader for the answers to these exchanges."""

    def differences(
        self, sock: socket.socket, connection: int, exchanges: Sequence[Exchange]
    ) -> int:
        """Read back what the load stored, when all is answered: how much of it isn't there?"""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked, independent of how fast.

    Attributes:
        partitions: Of a commit or fetch, over all topics.
        run: Makes the group names of this run its own.
        kind: ``uniform``: partitions from 0 of one topic, all offsets of one width, no metadata.
            ``mixed``: partitions up to 999, offsets of all widths. ``topics``: over four topics.
            ``metadata``: some with each offset. ``expected``: each commit expects the offset
            before it. ``members``: each group has a member, who commits.
    """

    workload: str
    window: int
    partitions: int
    run: str
    kind: str = UNIFORM


def group_of(load: Load, connection: int, slot: int) -> str:
    """Return the name of the group that this slot commits for or fetches."""
    # A group a slot: groups spread over the offsets partitions as real ones do, and no two
    # commits of one group are in flight at once, which the protocol asks of clients.
    return f"bench-{load.run}-{connection:03d}-{slot:03d}"


def first_offset(partition: int) -> int:
    """Return a partition's first offset. Only partition 0's moves; no other looks like it."""
    return FIRST_OFFSET + (partition << 32)


def topics_of(load: Load) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return topics, and of each the partitions and first offsets; partition 0 of `TOPIC` first."""
    numbers = range(load.partitions)
    match load.kind:
        case "mixed":
            step = _HIGHEST_PARTITION / max(load.partitions - 1, 1)
            widths = [_WIDTHS[p % len(_WIDTHS)] + p for p in numbers]
            mixed = [(round(p * step), offset) for p, offset in zip(numbers, widths, strict=True)]
            return [(TOPIC, [(0, FIRST_OFFSET), *mixed[1:]])]
        case "topics":
            each = load.partitions // len(ALL_TOPICS)
            some = [(p, first_offset(p)) for p in range(each)]
            return [(topic, some) for topic in ALL_TOPICS]
        case _:
            return [(TOPIC, [(p, first_offset(p)) for p in numbers])]


def metadata_of(load: Load) -> str:
    """Return what each offset of a commit carries along."""
    return _NOTE if load.kind == METADATA else ""


def _commit(
    load: Load, connection: int, slot: int, member: HeartbeatRequest | None = None
) -> OffsetCommitRequest:
    expects, note = load.kind == EXPECTED, metadata_of(load)
    topics = tuple(
        TopicCommit(
            topic,
            tuple(
                # Only the first one's offset moves.
                PartitionCommit(p, offset, -1, note, offset - (n == 0) if expects else None)
                for n, (p, offset) in enumerate(partitions)
            ),
        )
        for topic, partitions in topics_of(load)
    )
    group_id = group_of(load, connection, slot)
    if member is None:
        return OffsetCommitRequest(group_id, -1, "", None, topics)
    return OffsetCommitRequest(group_id, member.generation_id, member.member_id, None, topics)


def _before(commit: OffsetCommitRequest) -> OffsetCommitRequest:
    """Return the commit that stores what *commit* expects."""
    topics = tuple(
        TopicCommit(
            topic.topic,
            tuple(
                PartitionCommit(p.partition, p.expected_offset or 0, -1, "", None)
                for p in topic.partitions
            ),
        )
        for topic in commit.topics
    )
    return OffsetCommitRequest(commit.group_id, -1, "", None, topics)


def _fetch(load: Load, connection: int, slot: int) -> OffsetFetchRequest:
    wanted = tuple(
        TopicPartitions(topic, tuple(p for p, _ in partitions))
        for topic, partitions in topics_of(load)
    )
    return OffsetFetchRequest((GroupFetch(group_of(load, connection, slot), wanted),), False)


class _Talk:
    """Blocking questions and answers on a socket, before and after the load."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._protocol = ClientConnection()

    def ask(self, requests: Sequence[Request]) -> list[tuple[bytes, bytes, Response]]:
        """Send all, then read all answers: request frame, answer frame and answer of each."""
        sent = [self._protocol.send(request) for request in requests]
        self._sock.sendall(b"".join(frame for _, frame in sent))
        answers: dict[int, tuple[bytes, Response]] = {}
        rest = b""
        while len(answers) < len(sent):
            data = self._sock.recv(1 << 16)
            if not data:
                raise DialectError("the server closed the connection while the load was prepared")
            frames, rest = split_frames(rest + data)
            for frame in frames:
                for event in self._protocol.receive(frame):
                    answers[event.correlation_id] = (frame, event.response)
        return [(frame, *answers[correlation_id]) for correlation_id, frame in sent]

    def ask_one(self, request: Request) -> Response:
        """Ask one thing."""
        return self.ask([request])[0][2]


def judge_response(response: Response) -> None:
    """Decide once, on a decoded answer, what all later answers are compared with.

    Raises:
        DialectError: It is not a success in every part.
    """
    match response:
        case OffsetCommitResponse(error, topics):
            errors = [error, *(p.error for topic in topics for p in topic.partitions)]
        case OffsetFetchResponse(groups):
            errors = [group.error for group in groups]
            errors += [p.error for g in groups for topic in g.topics for p in topic.partitions]
        case _:
            errors = [getattr(response, "error", 0)]
    if any(errors):
        raise DialectError(f"the server refused what the load asks for: {response!r}")


def _all_judged(
    answers: Sequence[tuple[bytes, bytes, Response]],
) -> Sequence[tuple[bytes, bytes, Response]]:
    for _, _, response in answers:
        judge_response(response)
    return answers


def with_correlation(frame: bytes, correlation_id: int) -> bytes:
    """Return the frame of a request under another correlation id."""
    patched = bytearray(frame)
    _CORRELATION.pack_into(patched, _REQUEST_CORRELATION_AT, correlation_id)
    return bytes(patched)


def response_in(answer: bytes, *, to: Request) -> Response:
    """Return the answer in a frame to a request, whatever its correlation id.

    Raises:
        RemoteProtocolError: It is none.
    """
    connection = ClientConnection()
    correlation_id, _ = connection.send(to)
    patched = bytearray(answer)
    _CORRELATION.pack_into(patched, RESPONSE_CORRELATION_AT, correlation_id)
    (event,) = connection.receive(bytes(patched))
    return event.response


class CoordinatorDialect:
    """Our own protocol."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def prepare(self, sock: socket.socket, connection: int) -> list[Exchange]:
        """Say hello, ask every slot's request once, and keep the judged answers' bytes.

        Raises:
            DialectError: The server refuses something.
        """
        load, talk, slots = self._load, _Talk(sock), range(self._load.window)
        judge_response(talk.ask_one(ApiVersionsRequest(f"bench-{connection}", "bench", "1")))
        members: list[HeartbeatRequest | None] = [None] * load.window
        if load.workload == HEARTBEAT or load.kind == MEMBERS:
            members = [_become_member(talk, group_of(load, connection, s)) for s in slots]
        commits = [_commit(load, connection, s, members[s]) for s in slots]
        if load.kind == EXPECTED:
            _all_judged(talk.ask([_before(commit) for commit in commits]))
        requests: list[Request]
        match load.workload:
            case "heartbeat":
                requests = [member for member in members if member is not None]
            case "fetch":
                _all_judged(talk.ask(commits))
                requests = [_fetch(load, connection, s) for s in slots]
            case _:
                requests = [*commits]
        offset = FIRST_OFFSET if load.workload == COMMIT else 0
        made = ExpectingExchange if offset and load.kind == EXPECTED else Exchange
        return [
            made(with_correlation(sent, slot), answer=answer[RESPONSE_BODY_AT:], offset=offset)
            for slot, (sent, answer, _) in enumerate(_all_judged(talk.ask(requests)))
        ]

    def reader(self, exchanges: Sequence[Exchange]) -> Reader:
        """Return a reader that knows answers by their correlation id."""
        return AnswerReader(
            slot_at=RESPONSE_CORRELATION_AT,
            answer_from=RESPONSE_BODY_AT,
            answers=[exchange.answer for exchange in exchanges],
        )

    def differences(
        self, sock: socket.socket, connection: int, exchanges: Sequence[Exchange]
    ) -> int:
        """Return how many groups do not hold the offset that was acknowledged last."""
        if self._load.workload != COMMIT:
            return 0
        # All window's groups at once, but only the partition whose offset moved.
        moved = Load(COMMIT, self._load.window, 1, self._load.run)
        requests = [_fetch(moved, connection, slot) for slot in range(len(exchanges))]
        answers = _Talk(sock).ask(requests)
        return sum(
            stored_offsets(response) != [exchange.offset]
            for exchange, (_, _, response) in zip(exchanges, answers, strict=True)
        )


class EchoDialect:
    """The same request frames to a server that sends back what it reads."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def prepare(self, sock: socket.socket, connection: int) -> list[Exchange]:
        """Encode one frame a slot; nothing is sent."""
        del sock
        exchanges = []
        for slot in range(self._load.window):
            request: Request
            match self._load.workload:
                case "commit":
                    request, offset = _commit(self._load, connection, slot), FIRST_OFFSET
                case "fetch":
                    request, offset = _fetch(self._load, connection, slot), 0
                case _:
                    # As long as a member id is: client id and a UUID.
                    member_id = f"bench-{connection}-{'0' * 36}"
                    request = HeartbeatRequest(
                        group_of(self._load, connection, slot), 1, member_id, None
                    )
                    offset = 0
            _, frame = ClientConnection().send(request)
            exchanges.append(Exchange(with_correlation(frame, slot), offset=offset))
        return exchanges

    def reader(self, exchanges: Sequence[Exchange]) -> Reader:
        """Return a reader that expects each request's own bytes."""
        return AnswerReader(
            slot_at=_REQUEST_CORRELATION_AT,
            answer_from=0,
            answers=[exchange.request for exchange in exchanges],
        )

    def differences(
        self, sock: socket.socket, connection: int, exchanges: Sequence[Exchange]
    ) -> int:
        """Return 0: an echo stores nothing."""
        del sock, connection, exchanges
        return 0


def _become_member(talk: _Talk, group_id: str) -> HeartbeatRequest:
    """Join a group alone, take its assignment, and return the heartbeat to send from then on."""
    joined = _join(talk, group_id, "")
    if joined.error == ErrorCode.MEMBER_ID_REQUIRED:
        joined = _join(talk, group_id, joined.member_id)
    judge_response(joined)
    member_id, generation_id = joined.member_id, joined.generation_id
    assignments = (MemberAssignment(member_id, b"everything"),)
    sync = SyncGroupRequest(group_id, generation_id, member_id, None, "bench", "alone", assignments)
    judge_response(talk.ask_one(sync))
    return HeartbeatRequest(group_id, generation_id, member_id, None)


def _join(talk: _Talk, group_id: str, member_id: str) -> JoinGroupResponse:
    protocols = (JoinProtocol("alone", b""),)
    timeout_ms = SESSION_TIMEOUT_MS
    response = talk.ask_one(
        JoinGroupRequest(
            group_id, timeout_ms, timeout_ms, member_id, None, "bench", protocols, None
        )
    )
    if not isinstance(response, JoinGroupResponse):
        raise DialectError(f"JoinGroup was answered with {response!r}")
    return response


def stored_offsets(response: Response) -> list[int]:
    """Return the offsets of the only topic in a fetch of one group; none if there is an error."""
    assert isinstance(response, OffsetFetchResponse)
    (group,) = response.groups
    if group.error or not group.topics:
        return []
    return [p.offset for p in group.topics[0].partitions if not p.error]


# --- answers in what arrives, over any split of the reads -------------------------------------

_SIZE = Struct(">I")
_SLOT = Struct(">i")


class AnswerReader:
    """Splits a byte stream into frames ``u32 size | …`` and checks each against what is expected.

    A benchmark must not get faster by being answered wrongly, and decoding every answer would
    make the load generator the bottleneck. So the tail of each frame (what follows the header)
    is compared byte for byte with an answer that was decoded and judged before the load began.

    Args:
        slot_at: Where in the frame the i32 stands that says which request is answered.
        answer_from: Where in the frame the compared bytes begin.
        answer_until: Where they end, if not with the frame.
        answers: What is expected, by slot. A live sequence: its items may change under way.

    Attributes:
        wrong: How many answers were not the expected ones.
        wrong_example: The first of them.
    """

    __slots__ = (
        "_answer_from",
        "_answer_until",
        "_answers",
        "_minimum",
        "_rest",
        "_slot_at",
        "wrong",
        "wrong_example",
    )

    def __init__(
        self,
        *,
        slot_at: int,
        answer_from: int,
        answers: Sequence[bytes | bytearray],
        answer_until: int | None = None,
    ) -> None:
        self._slot_at = slot_at
        self._answer_from = answer_from
        self._answer_until = answer_until
        self._answers = answers
        self._minimum = slot_at + _SLOT.size
        self._rest = b""
        self.wrong = 0
        self.wrong_example = b""

    def feed(self, data: bytes) -> list[int]:
        """Take what was read; return the slots that were answered, in the order of arrival.

        Raises:
            ValueError: A frame is too short to say what it answers, or answers nothing we asked.
        """
        if self._rest:
            data = self._rest + data
        slots: list[int] = []
        at, end = 0, len(data)
        while end - at >= 4:
            frame_end = at + 4 + _SIZE.unpack_from(data, at)[0]
            if frame_end - at < self._minimum:
                raise ValueError(f"an answer of only {frame_end - at} bytes")
            if frame_end > end:
                break
            slot = _SLOT.unpack_from(data, at + self._slot_at)[0]
            if not 0 <= slot < len(self._answers):
                raise ValueError(f"an answer to request {slot}, which was not sent")
            until = frame_end if self._answer_until is None else at + self._answer_until
            if data[at + self._answer_from : until] != self._answers[slot]:
                self.wrong += 1
                self.wrong_example = self.wrong_example or data[at:frame_end]
            slots.append(slot)
            at = frame_end
        self._rest = data[at:]
        return slots


def split_frames(data: bytes) -> tuple[list[bytes], bytes]:
    """Cut complete frames off the front; return them and the incomplete rest."""
    frames: list[bytes] = []
    at = 0
    while len(data) - at >= 4:
        frame_end = at + 4 + _SIZE.unpack_from(data, at)[0]
        if frame_end > len(data):
            break
        frames.append(data[at:frame_end])
        at = frame_end
    return frames, data[at:]


class Talk:
    """Blocking questions and answers on a socket, before and after the load: frames in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""

    def send(self, requests: Sequence[bytes]) -> None:
        """Send all of them."""
        self._sock.sendall(b"".join(requests))

    def read(self, count: int) -> list[bytes]:
        """Return the next answers.

        Raises:
            ConnectionError: The server closed the connection.
        """
        frames, self._rest = split_frames(self._rest)
        while len(frames) < count:
            data = self._sock.recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed the connection before it had answered")
            more, self._rest = split_frames(self._rest + data)
            frames += more
        self._rest = b"".join(frames[count:]) + self._rest
        return frames[:count]

    def ask(self, requests: Sequence[bytes]) -> list[bytes]:
        """Send all, then read an answer for each.

        Raises:
            ConnectionError: The server closed the connection.
        """
        self.send(requests)
        return self.read(len(requests))
