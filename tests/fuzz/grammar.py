"""Requests that any client might send, made from their declarations and from what was answered.

Each field of a request is filled by its name, from what is about: groups, topics, members that the
daemon has made, cursors that it has given out. A name that nobody thought of is filled by its
annotation, so a new request is part of this as soon as it is declared.

What was answered is remembered, a little of it. So a history gets deep: a JoinGroup takes the id
that was given out, the leader assigns, somebody else commits in its name, a scan goes on.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

import msgspec

from protocol import messages as m
from protocol.acls import CLUSTER, Operation, PatternType, Permission, ResourceType
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.errors import ErrorCode
from protocol.messages import APIS, ApiKey
from protocol.partition import INT32_MAX, INT64_MAX, TopicPartition
from protocol.quotas import QUOTAS
from protocol.scram import ITERATIONS

Make = Callable[["Grammar"], Any]

REMEMBERED_MAX: Final = 40
TOPICS: Final = ("t-0", "t-1", "t-2", "flights", "events.eu")
GROUPS: Final = tuple(f"group-{n}" for n in range(8))
ODD_GROUPS: Final = ("", "x" * 255, "x" * 256, "\u00e9" * 100, "a b", "a\n", "never asked for")
PATTERNS: Final = ("t-.*", "events\\..*", ".*", "(", "[a-z]+", "t-[0-2]|flights", "\u00e9?")
SUBSCRIPTIONS: Final = (
    *(encode_subscription(Subscription(topics)) for topics in (TOPICS, ("t-0",), ("t-1", "gone"))),
    encode_subscription(Subscription(("t-0",), None, (TopicPartition("t-0", 1),), 3, "rack")),
    b"",
    b"\x00\x03\xff",
)
INSTANCES: Final = (None, None, None, None, "i-1", "i-2")
# Whose passwords, rights and quotas are changed all the while.
USERS: Final = ("alice", "bob")
PRINCIPALS: Final = tuple(f"User:{name}" for name in USERS)
PROTOCOLS: Final = ("range", "range", "range", "cooperative-sticky", "own")
# How often each is asked; others once.
WEIGHTS: Final = {
    ApiKey.JOIN_GROUP: 8,
    ApiKey.SYNC_GROUP: 8,
    ApiKey.HEARTBEAT: 4,
    ApiKey.OFFSET_COMMIT: 10,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.DRAIN_MEMBER: 2,
    ApiKey.REGISTER_TOPICS: 2,
    ApiKey.SCAN_OFFSETS: 2,
    ApiKey.READ_OFFSET_CHANGES: 2,
    # What everybody may take is soon next to nothing.
    ApiKey.ALTER_CLIENT_QUOTAS: 0.4,
    # Out of turn they end a log-in that is done; in turn `people.LogIn` says them.
    ApiKey.SASL_HANDSHAKE: 0.3,
    ApiKey.SASL_AUTHENTICATE: 0.3,
}


class Seat(NamedTuple):
    """A place in a group that the daemon has given out."""

    group_id: str
    member_id: str
    generation_id: int
    instance_id: str | None
    led: tuple[str, ...]  # The members that it assigns to, if it leads.


class Grammar:
    """Makes requests.

    Attributes:
        rng: What decides.
        seats: The places that are remembered.
        seat: The place that the request of the moment is about.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.seats: deque[Seat] = deque(maxlen=REMEMBERED_MAX)
        self.seat = Seat(GROUPS[0], "", -1, None, ())
        self._cursors: deque[bytes] = deque([b""], maxlen=REMEMBERED_MAX)
        self._positions: deque[int] = deque([0], maxlen=REMEMBERED_MAX)
        self._apis = tuple(APIS.values())
        self._weights = [WEIGHTS.get(api.key, 1) for api in self._apis]

    def request(self) -> tuple[m.Request, int]:
        """Return a request, and the version to send it in."""
        rng = self.rng
        (api,) = rng.choices(self._apis, self._weights)
        self._take_seat()
        request = _MAKERS[api.key](self)
        version = rng.randint(api.min_version, api.max_version)
        return request, version

    def learn(self, request: m.Request, answer: m.Response) -> None:
        """Remember what *answer* tells."""
        match request, answer:
            case m.JoinGroupRequest(), m.JoinGroupResponse(error=0 | ErrorCode.MEMBER_ID_REQUIRED):
                led = tuple(member.member_id for member in answer.members)
                self.seats.append(
                    Seat(
                        request.group_id,
                        answer.member_id,
                        answer.generation_id,
                        request.group_instance_id,
                        led,
                    )
                )
            case _, m.ScanOffsetsResponse():
                self._cursors.append(answer.cursor)
                self._positions.append(max(0, answer.position))
            case _, m.ReadOffsetChangesResponse():
                self._positions.append(max(0, answer.next_position))

    def _take_seat(self) -> None:
        rng = self.rng
        if self.seats and rng.random() < 0.8:
            self.seat = rng.choice(self.seats)
        else:
            self.seat = Seat(rng.choice(GROUPS), "", -1, rng.choice(INSTANCES), ())

    def cursor(self) -> bytes:
        """Return where a scan may go on."""
        return self.rng.choice(self._cursors)

    def position(self) -> int:
        """Return where a stream of changes may go on."""
        near: int = self.rng.choice(self._positions) + self.rng.choice((0, 0, 0, 1, -1))
        return max(0, near)


# --- Fields by their names ------------------------------------------------------------------


def _group(g: Grammar) -> str:
    draw = g.rng.random()
    if draw < 0.9:
        return g.seat.group_id
    return g.rng.choice(GROUPS if draw < 0.97 else ODD_GROUPS)


def _member(g: Grammar) -> str:
    if g.rng.random() < 0.95 or not g.seats:
        return g.seat.member_id
    return g.rng.choice((g.rng.choice(g.seats).member_id, "", "nobody"))


def _generation(g: Grammar) -> int:
    return max(-1, g.seat.generation_id + g.rng.choice((0,) * 12 + (1, -1)))


def _instance(g: Grammar) -> str | None:
    return g.seat.instance_id if g.rng.random() < 0.9 else g.rng.choice(INSTANCES)


def _partition(g: Grammar) -> int:
    return g.rng.randrange(8) if g.rng.random() < 0.97 else g.rng.choice((1_000, INT32_MAX))


def _timeout_ms(g: Grammar) -> int:
    if g.rng.random() < 0.97:
        return g.rng.choice((6_000, 7_000, 10_000))
    return g.rng.choice((0, -1, 1, INT32_MAX))


def _assignments(g: Grammar) -> tuple[m.MemberAssignment, ...]:
    """Return what a leader sends: mostly each partition once."""
    if not g.seat.led:
        return ()
    share: dict[str, list[TopicPartition]] = {member_id: [] for member_id in g.seat.led}
    for topic in TOPICS:
        for partition in range(4):
            share[g.rng.choice(g.seat.led)].append(TopicPartition(topic, partition))
    if g.rng.random() < 0.05:
        share[g.rng.choice((*g.seat.led, "nobody"))] = [TopicPartition("t-0", 0)] * 2
    return tuple(
        m.MemberAssignment(who, encode_assignment(Assignment(tuple(parts))))
        for who, parts in share.items()
    )


def _text(g: Grammar) -> str:
    return g.rng.choice(("", "x", "a text", "\u00e9\u00df", "\0\n", "\U0001f600", "y" * 300))


def _one_of(*choices: Any) -> Make:
    return lambda g: g.rng.choice(choices)


def _few(make: Make, most: int = 3) -> Make:
    return lambda g: tuple([make(g) for _ in range(g.rng.randint(0, most))])


_count: Final = _one_of(0, 1, 1, 2, 5, 100, 1_000, INT32_MAX)

BY_NAME: Final[dict[str, Make]] = {
    "group_id": _group,
    "member_id": _member,
    "generation_id": _generation,
    "group_instance_id": _instance,
    "client_id": _one_of("client", "fuzz", "driver-1"),
    "session_timeout_ms": _timeout_ms,
    "rebalance_timeout_ms": _timeout_ms,
    "protocol_type": _one_of(*("consumer",) * 9, "other", ""),
    "protocol_name": _one_of(None, "range", "range", "own"),
    "name": _one_of(*PROTOCOLS),
    "topic": _one_of(*TOPICS, *TOPICS, "t" * 249),
    "partition": _partition,
    "partition_count": _one_of(1, 4, 8, 8, 9, 0, 100_000, INT32_MAX),
    "offsets_partition": _one_of(0, 1, 2, 3, 3, 4, 65_535),
    "offset": lambda g: g.rng.randrange(100) if g.rng.random() < 0.9 else INT64_MAX,
    "pattern": _one_of(None, None, *PATTERNS),
    "topic_pattern": _one_of(None, None, None, *PATTERNS),
    "state": _one_of("Stable", "empty", "PreparingRebalance", "nonsense"),
    "assignments": _assignments,
    "cursor": Grammar.cursor,
    "position": Grammar.position,
    "max_offsets": _count,
    "max_changes": _count,
    "max_groups": _count,
    "max_topics": _count,
    "max_rebalances": _count,
    "max_samples": _count,
    "retention_ms": _one_of(None, -1, 0, 1_000, 86_400_000),
    "expected_offset": _one_of(None, None, None, -1, 3),
    "is_removal": _one_of(False, False, True),
    "resource_type": _one_of(*ResourceType, *ResourceType, 0, 1),
    "resource_name": _one_of(*GROUPS, *TOPICS, "group-", "t-", "*", CLUSTER),
    "pattern_type": _one_of(*PatternType, *PatternType, 1, 2),
    "principal": _one_of(*PRINCIPALS, *PRINCIPALS, "", "nobody"),
    "host": _one_of("*", "*", "192.0.2.1", ""),
    "operation": _one_of(*Operation, 0, 1),
    "permission": _one_of(*Permission, Permission.ALLOW, 1),
    "user": _one_of(*USERS, "carol", ""),
    "iterations": _one_of(ITERATIONS, ITERATIONS, 0, INT32_MAX),
    "key": _one_of(*QUOTAS, *QUOTAS, "nonsense"),
    "value": _one_of(None, None, 1, 50, 1_000, 1_000, INT64_MAX, 0),
}


def _of(message: type[msgspec.Struct]) -> Make:
    makers = [_field(field.name, field.type) for field in msgspec.structs.fields(message)]
    return lambda g: message(*[make(g) for make in makers])


def _field(name: str, annotation: Any) -> Make:
    """Return what fills a field, or each element of one that is an array."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _of(annotation)
    if annotation is bytes and name == "metadata":  # In a commit it is a text.
        return _one_of(*SUBSCRIPTIONS)
    if name in BY_NAME:
        return BY_NAME[name]
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        limits = next((mark for mark in marks if isinstance(mark, msgspec.Meta)), None)
        if inner is int and limits is not None:
            edges = (limits.ge, -1, 0, 1, 2, 7, limits.le)
            return _one_of(*(n for n in edges if limits.ge <= n <= limits.le))  # type: ignore[operator]  # All ints have both.
        return _field(name, inner)
    if NoneType in get_args(annotation):
        make = _field(name, get_args(annotation)[0])
        return lambda g: make(g) if g.rng.random() < 0.6 else None
    if get_origin(annotation) is tuple:
        return _few(_field(name.removesuffix("s"), get_args(annotation)[0]))
    plain: dict[Any, Make] = {
        bool: _one_of(False, True),
        bytes: lambda g: g.rng.randbytes(g.rng.randrange(12)),
        str: _text,
    }
    return plain[annotation]


_MAKERS: Final = {key: _of(api.request) for key, api in APIS.items()}
