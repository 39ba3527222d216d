"""What the load generator says on a connection, and how it knows the answers.

A dialect is the only part that knows a protocol. Ours and the echo's are here, and what all of
them need; the peers' have files of their own. The loops, the clock and the counting are the same
for each.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from struct import Struct
from typing import Any, Final

from bench.processes import LoadError
from bench.talk import (
    BODY_AT,
    CORRELATION_AT,
    REQUEST_CORRELATION_AT,
    AnswerReader,
    Talk,
    accepted,
    ask,
    frame_of,
    response_in,
)
from protocol.errors import ErrorCode
from protocol.messages import (
    KEY_TYPE_GROUP,
    ApiVersionsRequest,
    FindCoordinatorRequest,
    GroupFetch,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
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

TOPIC: Final = "flights"
ALL_TOPICS: Final = (TOPIC, "flights.cancelled", "weather", "airports-of-departure")
# Of the kind "metadata": what a program notes of itself.
_NOTE: Final = '{"by":"worker-17","run":"2026-11-22T10:12"}'
# Of the kind "mixed": each takes another number of bytes in msgpack, from one to nine.
_WIDTHS: Final = (7, 200, 60_000, 10_000_000, 2**33)
_HIGHEST_PARTITION: Final = 999
_SESSION_MS: Final = 300_000
_READY_S: Final = 60
_POLL_S: Final = 0.05

# Of each topic its partitions, and their offsets.
Topics = Sequence[tuple[str, Sequence[tuple[int, int]]]]


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
        self, request: bytes, *, answer: bytes = b"", offset: int = 0, offset_at: int | None = None
    ) -> None:
        self.request = bytearray(request)
        self.answer: bytes | bytearray = answer
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

    def __init__(self, request: bytes, *, offset: int) -> None:
        super().__init__(request, offset=offset)
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
        size_bytes: Of what is stored, where the dialect has no opinion.
    """

    workload: str
    window: int
    partitions: int
    run: str
    kind: str = UNIFORM
    size_bytes: int = 0


def group_of(load: Load, connection: int, slot: int) -> str:
    """Return the name of the group that this slot commits for or fetches."""
    # A group a slot: groups spread over the offsets partitions as real ones do, and no two
    # commits of one group are in flight at once, which the protocol asks of clients.
    return f"bench-{load.run}-{connection:03d}-{slot:03d}"


def first_offset(partition: int) -> int:
    """Return a partition's first offset. Only partition 0's moves; no other looks like it."""
    return FIRST_OFFSET + (partition << 32)


def topics_of(load: Load) -> Topics:
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


class Dialect(ABC):
    """One protocol and one kind of request.

    Attributes:
        slot_at: Where in an answer's frame the i32 stands that says which request is answered.
        answer_from: Where in it the bytes begin that are the same each time.
        answer_until: Where they end, if not with the frame.
        not_yet: Errors of a server that isn't ready; it is asked again.
    """

    slot_at = CORRELATION_AT
    answer_from: int
    answer_until: int | None = None
    not_yet: frozenset[int] = frozenset()

    def __init__(self, load: Load) -> None:
        self.load = load

    @abstractmethod
    def commit(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return a commit."""

    @abstractmethod
    def fetch(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return a fetch of the partitions of these topics."""

    def heartbeat(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return a heartbeat."""
        raise NotImplementedError

    @abstractmethod
    def errors(self, workload: str, answer: bytes) -> Sequence[int]:
        """Return all error codes in the answer to such a request; 0 is none."""

    @abstractmethod
    def offsets(self, answer: bytes) -> list[int]:
        """Return the first topic's offsets in a fetch's answer, nothing if there is an error."""

    @abstractmethod
    def greet(self, talk: Talk, groups: Sequence[str]) -> None:
        """Do what has to be done before the load's requests."""

    def home(self, talk: Talk, group: str) -> tuple[str, int]:
        """Return where in a cluster the node is that answers for a group. Raises LoadError."""
        raise NotImplementedError

    def prepare(self, talk: Talk, connection: int) -> list[Exchange]:
        """Ask every slot's request once, and keep what the judged answers' bytes are. May block.

        Raises:
            LoadError: The server refuses something, or answers a fetch wrongly.
        """
        load = self.load
        groups = [group_of(load, connection, slot) for slot in range(load.window)]
        self.greet(talk, groups)
        if load.workload == FETCH:
            self._ask(talk, COMMIT, self._requests(COMMIT, groups))
        exchanges = self._requests(load.workload, groups)
        answers = self._ask(talk, load.workload, exchanges)
        if load.workload == FETCH:
            wanted = [offset for _, offset in topics_of(load)[0][1]]
            if any(self.offsets(answer) != wanted for answer in answers):
                raise LoadError("a fetch was answered with other offsets than were committed")
        for exchange, answer in zip(exchanges, answers, strict=True):
            exchange.answer = answer[self.answer_from : self.answer_until]
        return exchanges

    def _requests(self, workload: str, groups: Sequence[str]) -> list[Exchange]:
        make = {COMMIT: self.commit, FETCH: self.fetch, HEARTBEAT: self.heartbeat}[workload]
        topics = topics_of(self.load)
        return [make(group, topics, slot) for slot, group in enumerate(groups)]

    def _ask(self, talk: Talk, workload: str, exchanges: Sequence[Exchange]) -> list[bytes]:
        frames = [exchange.request for exchange in exchanges]
        return until_ready(talk, frames, lambda answer: self.errors(workload, answer), self.not_yet)

    def reader(self, exchanges: Sequence[Exchange]) -> AnswerReader:
        """Return a reader for the answers to these exchanges."""
        return AnswerReader(
            slot_at=self.slot_at,
            answer_from=self.answer_from,
            answer_until=self.answer_until,
            answers=[exchange.answer for exchange in exchanges],
        )

    def differences(self, talk: Talk, connection: int, exchanges: Sequence[Exchange]) -> int:
        """Return how many groups do not hold the offset that was acknowledged last."""
        if self.load.workload != COMMIT:
            return 0
        # Only the partition whose offset moved.
        fetches = [
            self.fetch(group_of(self.load, connection, slot), [(TOPIC, [(0, 0)])], slot).request
            for slot in range(len(exchanges))
        ]
        answers = talk.ask(fetches)
        return sum(
            self.offsets(answer) != [exchange.offset]
            for exchange, answer in zip(exchanges, answers, strict=True)
        )


def until_ready(
    talk: Talk,
    frames: Sequence[bytes | bytearray],
    errors: Callable[[bytes], Sequence[int]],
    not_yet: frozenset[int],
) -> list[bytes]:
    """Ask, and ask again while the server isn't ready; return the answers.

    Raises:
        LoadError: There are other errors, or it isn't ready in time.
    """
    deadline = time.monotonic() + _READY_S
    while True:
        answers = talk.ask(frames)
        found = {error for answer in answers for error in errors(answer)} - {0}
        if not found:
            return answers
        if found - not_yet or time.monotonic() > deadline:
            raise LoadError(f"the server refused what the load asks for: errors {sorted(found)}")
        time.sleep(_POLL_S)


def errors_in(response: Any) -> list[int]:
    """Return the error codes of a decoded answer, in all of its parts."""
    found = [getattr(response, "error", 0)]
    for field in ("groups", "topics", "partitions"):
        for part in getattr(response, field, ()):
            found += errors_in(part)
    return found


def stored_offsets(response: Any) -> list[int]:
    """Return the offsets of the first topic in a fetch of one group; none if there is an error."""
    (group,) = response.groups
    return [] if any(errors_in(group)) else [p.offset for p in group.topics[0].partitions]


_NO_LEADER: Final = frozenset({int(ErrorCode.COORDINATOR_NOT_AVAILABLE)})


def _finding_errors(find: FindCoordinatorRequest, answer: bytes) -> list[int]:
    return [one.error for one in response_in(answer, to=find).coordinators]


class CoordinatorDialect(Dialect):
    """Our own protocol."""

    answer_from = BODY_AT
    # Any request of the kind: an answer says nothing of the group.
    _like: Final = {
        COMMIT: OffsetCommitRequest("any", -1, "", None, ()),
        FETCH: OffsetFetchRequest((), False),
        HEARTBEAT: HeartbeatRequest("any", 1, "any", None),
    }

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._members: dict[str, HeartbeatRequest] = {}

    def greet(self, talk: Talk, groups: Sequence[str]) -> None:
        """Say hello; join the groups, or store what the first commits expect, where needed."""
        accepted(ask([talk], [ApiVersionsRequest("bench", "bench", "1")]))
        if self.load.workload == HEARTBEAT or self.load.kind == MEMBERS:
            for name in groups:
                self._members[name] = _become_member(talk, name)
        if self.load.kind == EXPECTED:
            ((topic, partitions),) = topics_of(self.load)
            before = [(topic, [(p, offset - (p == 0)) for p, offset in partitions])]
            plain = CoordinatorDialect(replace(self.load, kind=UNIFORM))
            commits = [plain.commit(group, before, slot) for slot, group in enumerate(groups)]
            plain._ask(talk, COMMIT, commits)

    def home(self, talk: Talk, group: str) -> tuple[str, int]:
        """Return where the node is that leads a group's partition, once one does."""
        find = FindCoordinatorRequest(KEY_TYPE_GROUP, (group,))
        (found,) = until_ready(
            talk, [frame_of(find, 0)], partial(_finding_errors, find), _NO_LEADER
        )
        (one,) = response_in(found, to=find).coordinators
        return one.host, one.port

    def commit(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return a commit, of the group's member if it has one."""
        expects, note = self.load.kind == EXPECTED, metadata_of(self.load)
        commits = tuple(
            TopicCommit(
                topic,
                tuple(
                    # Only the first one's offset moves.
                    PartitionCommit(p, offset, -1, note, offset - (n == 0) if expects else None)
                    for n, (p, offset) in enumerate(partitions)
                ),
            )
            for topic, partitions in topics
        )
        member = self._members.get(group)
        by = (-1, "") if member is None else (member.generation_id, member.member_id)
        made = ExpectingExchange if expects else Exchange
        frame = frame_of(OffsetCommitRequest(group, *by, None, commits), slot)
        return made(frame, offset=topics[0][1][0][1])

    def fetch(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return a fetch of the partitions of these topics."""
        wanted = tuple(TopicPartitions(topic, tuple(p for p, _ in some)) for topic, some in topics)
        request = OffsetFetchRequest((GroupFetch(group, wanted),), False)
        return Exchange(frame_of(request, slot))

    def heartbeat(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return the heartbeat of the group's member."""
        del topics
        return Exchange(frame_of(self._members[group], slot))

    def errors(self, workload: str, answer: bytes) -> Sequence[int]:
        """Return all error codes in the answer to such a request; 0 is none."""
        return errors_in(response_in(answer, to=self._like[workload]))

    def offsets(self, answer: bytes) -> list[int]:
        """Return the first topic's offsets in a fetch's answer, nothing if there is an error."""
        return stored_offsets(response_in(answer, to=self._like[FETCH]))


def _become_member(talk: Talk, group_id: str) -> HeartbeatRequest:
    """Join a group alone, take its assignment, and return the heartbeat to send from then on."""

    def join(member_id: str) -> JoinGroupRequest:
        protocols = (JoinProtocol("alone", b""),)
        times = (_SESSION_MS, _SESSION_MS)
        return JoinGroupRequest(group_id, *times, member_id, None, "bench", protocols, None)

    (named,) = ask([talk], [join("")])
    accepted([named], ErrorCode.MEMBER_ID_REQUIRED)
    (joined,) = ask([talk], [join(named.member_id)])
    accepted([joined])
    member = (joined.generation_id, joined.member_id, None)
    assignments = (MemberAssignment(joined.member_id, b"everything"),)
    accepted(ask([talk], [SyncGroupRequest(group_id, *member, "bench", "alone", assignments)]))
    return HeartbeatRequest(group_id, *member)


class EchoDialect(CoordinatorDialect):
    """The same request frames to a server that sends back what it reads, and stores nothing."""

    slot_at = REQUEST_CORRELATION_AT
    answer_from = 0

    def prepare(self, talk: Talk, connection: int) -> list[Exchange]:
        """Encode one frame a slot; nothing is sent."""
        del talk
        groups = [group_of(self.load, connection, slot) for slot in range(self.load.window)]
        if self.load.workload == HEARTBEAT:
            # As long as a member id is: client id and a UUID.
            member_id = f"bench-{connection}-{'0' * 36}"
            self._members = {name: HeartbeatRequest(name, 1, member_id, None) for name in groups}
        exchanges = self._requests(self.load.workload, groups)
        for exchange in exchanges:
            exchange.answer = exchange.request
        return exchanges

    def differences(self, talk: Talk, connection: int, exchanges: Sequence[Exchange]) -> int:
        """Return 0: an echo stores nothing."""
        del talk, connection, exchanges
        return 0
