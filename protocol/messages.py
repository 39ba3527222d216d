"""Every request and response, each declared once: its fields, limits, failure and an example.

A declaration ties an `ApiKey` to its request, its response, the answer to a request that failed,
and an example. What else knows the requests is derived from that: `APIS`, the codec, the reference
in docs/wire-protocol.md, the test vectors, and what the tests generate.

To append an element in a new version, append a field and mark it with `Since`: its API then has
that version. Timeouts are in milliseconds; times of day are wall clock of the coordinator, in ms
since the epoch.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar, dataclass_transform

from msgspec import Raw, Struct, structs

from protocol.acls import (
    ANY,
    CLUSTER,
    EVERY_HOST,
    MATCH,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.errors import ErrorCode
from protocol.fields import (
    I32,
    I64,
    REQUEST_PARTITIONS_MAX,
    AuthBytes,
    Code,
    Count,
    Cursor,
    Epoch,
    GroupId,
    Hosts,
    KeyBytes,
    MemberBytes,
    MemberId,
    Name,
    Offset,
    OffsetOrNone,
    Principal,
    ProtocolType,
    RequestArray,
    ResponseArray,
    RetentionMs,
    Since,
    Text,
    TopicName,
    TopicPattern,
    newest_version,
    nothing,
)
from protocol.partition import TopicPartition


class ApiKey(IntEnum):
    """Kafka's numbers; from 1000 on our own."""

    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    SASL_AUTHENTICATE = 36
    DELETE_GROUPS = 42
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DRAIN_MEMBER = 1000
    REGISTER_TOPICS = 1001
    DELETE_TOPICS = 1002
    DESCRIBE_TOPICS = 1003
    REPORT_END_OFFSETS = 1004
    DESCRIBE_REBALANCES = 1005
    SCAN_OFFSETS = 1006
    READ_OFFSET_CHANGES = 1007
    DESCRIBE_LAG = 1008
    ALTER_GROUP_RETENTION = 1009
    DESCRIBE_NODE = 1010
    COMPACT_LOG = 1011
    RELOAD_PARTITION = 1012
    SUMMARIZE_GROUPS = 1013
    ALTER_OFFSETS = 1014
    DESCRIBE_SETTINGS = 1015
    DESCRIBE_JOURNALS = 1016
    MOVE_JOURNAL = 1017

    # Enum's own is written in Python, and keys are looked up several times a request.
    __hash__ = int.__hash__


# --- What a declaration is made of ------------------------------------------------------


@dataclass_transform(frozen_default=True)
class Message(Struct, array_like=True, frozen=True, gc=False):
    """A msgpack array with one element per field, in the order of the fields."""


class ResponsePart(Message):
    """A record inside a response. Whoever reads it ignores elements after the known ones."""


class Response(ResponsePart):
    """What a server answers."""


class RequestPart(Message, forbid_unknown_fields=True):
    """A record inside a request. It has exactly the fields of its version."""


class Request(RequestPart):
    """What a client asks."""


RequestT = TypeVar("RequestT", bound=Request)
ResponseT = TypeVar("ResponseT", bound=Response)

# What the examples are about.
GROUP: Final = "etl"
MEMBER: Final = "driver-1-6a1f0c5e-3f0b-4a57-9a55-0f6a3c1d2b7e"
OTHER: Final = "driver-2-0b9e7d21-58c4-4f1c-8f5d-7c2a9e4b6d10"
LEADER_EPOCH: Final = 3
STARTED_MS: Final = 1_785_000_000_000
SUBSCRIPTION: Final = encode_subscription(Subscription(("flights",)))
ASSIGNMENT: Final = encode_assignment(
    Assignment((TopicPartition("flights", 0), TopicPartition("flights", 1)))
)


class Example(NamedTuple):
    """A request and its answer, as a small group would exchange them.

    Attributes:
        number: Its correlation id in the test vectors, and its place there.
        title: What happens, in a few words.
        version: The version in which both are.
        request: What is asked.
        response: What is answered.
        leader_epoch: What the answer's header says.
    """

    number: int
    title: str
    version: int
    request: Request
    response: Response
    leader_epoch: int = LEADER_EPOCH


class Api(NamedTuple):
    """One request with its response.

    Attributes:
        key: What its header says.
        request: The request in its newest version.
        response: The response in its newest version.
        min_version: The oldest version that is still answered. Older ones can be read, and get a
            bare 35 (UNSUPPORTED_VERSION).
        max_version: The newest version.
        failure: Makes the answer to a request that failed, in full shape: ints are -1, texts "",
            bools false, bytes and arrays empty, what may be nil is nil, and what echoes the
            request is echoed. A request over several groups gets the error for each of them.
        problem: Says what is wrong with a request whose body fits, or None: only what it can tell
            by itself, such as duplicates. That is answered with 42, whatever the server's state
            is. Without it nothing can be.
        example: One that succeeds, in the newest version.
    """

    key: ApiKey
    request: type[Request]
    response: type[Response]
    min_version: int
    max_version: int
    failure: Callable[[Any, int], Response]
    problem: Callable[[Any], str | None] | None
    example: Example

    @property
    def name(self) -> str:
        """How people call it, such as "OffsetCommit"."""
        return self.request.__name__.removesuffix("Request")


APIS: Final[dict[ApiKey, Api]] = {}
_API_OF_REQUEST: Final[dict[type[Request], Api]] = {}


def declare(
    key: ApiKey,
    request: type[RequestT],
    response: type[ResponseT],
    *,
    example: Example,
    failure: Callable[[RequestT, int], ResponseT] | None = None,
    min_version: int = 0,
    problem: Callable[[RequestT], str | None] | None = None,
) -> None:
    """Add an API; see `Api` for the arguments. Without *failure* nothing echoes the request."""
    newest = max(newest_version(request), newest_version(response))
    failed = failure or _failure_of(response)
    api = Api(key, request, response, min_version, newest, failed, problem, example)
    APIS[key] = _API_OF_REQUEST[request] = api


def _failure_of(response: type[ResponseT]) -> Callable[[Any, int], ResponseT]:
    first, *others = structs.fields(response)
    assert first.name == "error"
    rest = [nothing(field.type) for field in others]
    return lambda _, error: response(error, *rest)


def api_of(request: Request) -> ApiKey:
    """Return the API of *request*."""
    return _API_OF_REQUEST[type(request)].key


def error_response(request: Request, error: int) -> Response:
    """Return the answer to *request* that says *error* and nothing else."""
    return _API_OF_REQUEST[type(request)].failure(request, error)


class BareError(Response):
    """``[error]``: codes 42 (unreadable), 35, -1 and 1006 have no other shape."""

    error: Code


class PartitionResult(ResponsePart):
    """The error code of one partition."""

    partition: I32
    error: Code


class TopicResult(ResponsePart):
    """The error codes of one topic's partitions."""

    topic: Text
    partitions: ResponseArray[PartitionResult]


class TopicPartitions(RequestPart):
    """Some partitions of one topic."""

    topic: TopicName
    partitions: RequestArray[Count]


# --- The coordinator itself -------------------------------------------------------------


class ApiVersionsRequest(Request):
    """The first request of a connection: who is calling, and what can you do?"""

    client_id: Name
    software_name: Text
    software_version: Text


class ApiVersionRange(ResponsePart):
    """The versions of one API that the server answers, both ends included."""

    api_key: I32
    min_version: I32
    max_version: I32


class ApiVersionsResponse(Response):
    """Answer to `ApiVersionsRequest`."""

    error: Code
    apis: ResponseArray[ApiVersionRange]
    server_software: Text
    cluster_id: Text
    node_id: I32
    max_request_bytes: I32


declare(
    ApiKey.API_VERSIONS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    example=Example(
        0,
        "who are you",
        0,
        ApiVersionsRequest("driver-1", "my-client", "1.0"),
        ApiVersionsResponse(
            0,
            (ApiVersionRange(8, 0, 1), ApiVersionRange(18, 0, 0)),
            "group-coordinator/0.1.0",
            "c0FmZS1hbmQtc291bmQhIQ",
            1,
            1_048_576,
        ),
        -1,
    ),
)


class SaslHandshakeRequest(Request):
    """Which mechanism the messages that follow are of; the first step of a log-in."""

    mechanism: Name


class SaslHandshakeResponse(Response):
    """Answer to `SaslHandshakeRequest`: the mechanisms that the server takes, in any case."""

    error: Code
    mechanisms: ResponseArray[Text]


declare(
    ApiKey.SASL_HANDSHAKE,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    example=Example(
        51,
        "a log-in begins",
        0,
        SaslHandshakeRequest("SCRAM-SHA-256"),
        SaslHandshakeResponse(0, ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")),
        -1,
    ),
)


class SaslAuthenticateRequest(Request):
    """One message of the mechanism, from client to server."""

    auth_bytes: AuthBytes


class SaslAuthenticateResponse(Response):
    """Answer to `SaslAuthenticateRequest`, with the mechanism's message to the client.

    ``session_lifetime_ms``: after the last message, within which time to log in again on this
    connection; 0 is never.
    """

    error: Code
    message: Text | None
    auth_bytes: bytes
    session_lifetime_ms: I64


declare(
    ApiKey.SASL_AUTHENTICATE,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    example=Example(
        52,
        "a log-in by SCRAM ends",
        0,
        # RFC 7677, section 3.
        SaslAuthenticateRequest(
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        ),
        SaslAuthenticateResponse(
            0, None, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", 3_600_000
        ),
        -1,
    ),
)


# What the keys of a FindCoordinator are.
KEY_TYPE_GROUP: Final = 0
KEY_TYPE_CLUSTER: Final = 1
KEY_TYPE_PARTITION: Final = 2


class FindCoordinatorRequest(Request):
    """Which nodes coordinate these?

    What ``group_ids`` are, ``key_type`` says:

    - 0: groups.
    - 1: nothing more is said. Who coordinates what is the cluster's own: topics, rules of access,
      users and quotas.
    - 2: offsets partitions, in decimal; without any, all of them.
    """

    key_type: I32
    group_ids: RequestArray[GroupId]


class CoordinatorOfGroup(ResponsePart):
    """Where one group lives, or what else was asked for."""

    group_id: Text
    error: Code
    message: Text | None
    node_id: I32
    host: Text
    port: I32
    offsets_partition: I32
    leader_epoch: Epoch


class FindCoordinatorResponse(Response):
    """Answer to `FindCoordinatorRequest`, one entry per group id."""

    coordinators: ResponseArray[CoordinatorOfGroup]


def find_coordinator_error(group_id: str, error: int, message: str | None) -> CoordinatorOfGroup:
    """Return the entry of one group that could not be located."""
    return CoordinatorOfGroup(group_id, error, message, -1, "", -1, -1, -1)


declare(
    ApiKey.FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    failure=lambda request, error: FindCoordinatorResponse(
        tuple([find_coordinator_error(g, error, None) for g in request.group_ids])
    ),
    example=Example(
        1,
        "where does a group live",
        0,
        FindCoordinatorRequest(0, (GROUP,)),
        FindCoordinatorResponse(
            (CoordinatorOfGroup(GROUP, 0, None, 1, "127.0.0.1", 9310, 15, LEADER_EPOCH),)
        ),
    ),
)


# --- Members ----------------------------------------------------------------------------


class JoinProtocol(RequestPart):
    """One assignor that a member offers, with its subscription bytes."""

    name: Name
    metadata: MemberBytes


class JoinGroupRequest(Request):
    """Become or stay a member; parked until the join phase of the rebalance completes."""

    group_id: GroupId
    session_timeout_ms: I32
    rebalance_timeout_ms: Count
    member_id: MemberId
    group_instance_id: Name | None
    protocol_type: ProtocolType
    protocols: RequestArray[JoinProtocol]
    reason: Text | None
    # Version 1: the member wants every registered topic whose whole name matches (RE2's
    # syntax); the topics in its subscription are those that matched when it asked.
    topic_pattern: Annotated[TopicPattern | None, Since(1)] = None


class JoinGroupMember(ResponsePart):
    """A member as the leader sees it."""

    member_id: Text
    group_instance_id: Text | None
    metadata: bytes


class JoinGroupResponse(Response):
    """Answer to `JoinGroupRequest`; ``members`` is filled for the leader only."""

    error: Code
    generation_id: Epoch
    protocol_type: Text | None
    protocol_name: Text | None
    leader: Text
    skip_assignment: bool
    member_id: Text
    members: ResponseArray[JoinGroupMember]
    message: Annotated[Text | None, Since(1)] = None  # Version 1: the error in words.


# With these a JoinGroup's answer names no member: nobody could look for one.
_GROUP_NOT_SEEN: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


def join_error(error: int, member_id: str, message: str | None = None) -> JoinGroupResponse:
    """Return a JoinGroup answer with *error*; which member id it carries is the caller's table."""
    return JoinGroupResponse(error, -1, None, None, "", False, member_id, (), message)


declare(
    ApiKey.JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupResponse,
    failure=lambda request, error: join_error(
        error, "" if error in _GROUP_NOT_SEEN else request.member_id
    ),
    example=Example(
        16,
        "a member joins by pattern",
        1,
        JoinGroupRequest(
            GROUP,
            45_000,
            300_000,
            MEMBER,
            None,
            "consumer",
            (JoinProtocol("range", SUBSCRIPTION),),
            None,
            "flights(-.*)?",
        ),
        JoinGroupResponse(
            0,
            2,
            "consumer",
            "range",
            MEMBER,
            False,
            MEMBER,
            (JoinGroupMember(MEMBER, None, SUBSCRIPTION),),
        ),
    ),
)


class MemberAssignment(RequestPart):
    """What the leader gives to one member."""

    member_id: MemberId
    assignment: MemberBytes


class SyncGroupRequest(Request):
    """Ask for the own assignment; the leader's carries everybody's."""

    group_id: GroupId
    generation_id: Epoch
    member_id: MemberId
    group_instance_id: Name | None
    protocol_type: Text | None
    protocol_name: Text | None
    assignments: RequestArray[MemberAssignment]


class SyncGroupResponse(Response):
    """Answer to `SyncGroupRequest`."""

    error: Code
    protocol_type: Text | None
    protocol_name: Text | None
    assignment: bytes
    message: Annotated[Text | None, Since(1)] = None  # Version 1: the error in words.


def sync_error(error: int, message: str | None = None) -> SyncGroupResponse:
    """Return a SyncGroup answer with *error*."""
    return SyncGroupResponse(error, None, None, b"", message)


declare(
    ApiKey.SYNC_GROUP,
    SyncGroupRequest,
    SyncGroupResponse,
    example=Example(
        18,
        "the leader assigns, version 1",
        1,
        SyncGroupRequest(
            GROUP, 1, MEMBER, None, "consumer", "range", (MemberAssignment(MEMBER, ASSIGNMENT),)
        ),
        SyncGroupResponse(0, "consumer", "range", ASSIGNMENT),
    ),
)


HEARTBEAT_INTERVAL_MS_MAX: Final = 3_000


def heartbeat_interval_ms(session_timeout_ms: int) -> int:
    """Return the pause between a member's heartbeats: three fit into a session."""
    return max(1, min(HEARTBEAT_INTERVAL_MS_MAX, session_timeout_ms // 3))


class HeartbeatRequest(Request):
    """I am alive; is my generation still the current one?"""

    group_id: GroupId
    generation_id: Epoch
    member_id: MemberId
    group_instance_id: Name | None


class HeartbeatResponse(Response):
    """Answer to `HeartbeatRequest`."""

    error: Code
    message: Annotated[Text | None, Since(1)] = None  # Version 1: the error in words.


declare(
    ApiKey.HEARTBEAT,
    HeartbeatRequest,
    HeartbeatResponse,
    example=Example(
        20,
        "a member is alive, version 1",
        1,
        HeartbeatRequest(GROUP, 1, MEMBER, None),
        HeartbeatResponse(0),
    ),
)


class LeavingMember(RequestPart):
    """One member that leaves, or is removed by an operator."""

    member_id: MemberId
    group_instance_id: Name | None
    reason: Text | None


class LeaveGroupRequest(Request):
    """Remove members at once instead of waiting for their sessions to end."""

    group_id: GroupId
    members: RequestArray[LeavingMember]


class LeftMember(ResponsePart):
    """What became of one `LeavingMember`."""

    member_id: Text
    group_instance_id: Text | None
    error: Code
    message: Annotated[Text | None, Since(1)] = None  # Version 1: the error in words.


class LeaveGroupResponse(Response):
    """Answer to `LeaveGroupRequest`, in the order asked."""

    error: Code
    members: ResponseArray[LeftMember]


declare(
    ApiKey.LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    example=Example(
        22,
        "an operator removes a static member",
        1,
        LeaveGroupRequest(
            GROUP, (LeavingMember("", "etl-1", "host is gone"), LeavingMember(OTHER, None, None))
        ),
        LeaveGroupResponse(
            0,
            (
                LeftMember("", "etl-1", 0),
                LeftMember(OTHER, None, ErrorCode.UNKNOWN_MEMBER_ID, "left: shutting down"),
            ),
        ),
    ),
)


class DrainMemberRequest(Request):
    """Take every partition away from the members with this client id, before a planned stop.

    Repeat it until each is drained; the mark lasts as long as the membership.
    """

    group_id: GroupId
    client_id: Name


class DrainedMember(ResponsePart):
    """One drained member; ``drained`` is true once it owns nothing."""

    member_id: Text
    drained: bool


class DrainMemberResponse(Response):
    """Answer to `DrainMemberRequest`: 69 no such group, 25 no member with this client id."""

    error: Code
    members: ResponseArray[DrainedMember]


declare(
    ApiKey.DRAIN_MEMBER,
    DrainMemberRequest,
    DrainMemberResponse,
    example=Example(
        15,
        "take the partitions of a client away",
        0,
        DrainMemberRequest(GROUP, "driver-1"),
        DrainMemberResponse(0, (DrainedMember(MEMBER, drained=False),)),
    ),
)


# --- Offsets ----------------------------------------------------------------------------


class PartitionCommit(RequestPart):
    """The next offset to read of one partition.

    ``expected_offset`` (version 1): None = no check, -1 = only if nothing is committed,
    else only if that is the committed offset.
    """

    partition: Count
    offset: Offset
    leader_epoch: Epoch
    metadata: Text | None
    # Without a default: with one, commits would be decoded to another class and converted.
    expected_offset: Annotated[OffsetOrNone | None, Since(1)]


class TopicCommit(RequestPart):
    """The partitions of one topic in an `OffsetCommitRequest`."""

    topic: TopicName
    partitions: RequestArray[PartitionCommit]


class OffsetCommitRequest(Request):
    """Store how far a group has come. Generation -1 and member "" for a group without members."""

    group_id: GroupId
    generation_id: Epoch
    member_id: MemberId
    group_instance_id: Name | None
    topics: RequestArray[TopicCommit]


class OffsetCommitResponse(Response):
    """Answer to `OffsetCommitRequest`: an error of the whole group, or one per partition."""

    error: Code
    topics: ResponseArray[TopicResult]
    message: Annotated[Text | None, Since(2)] = (
        None  # Version 2: the error of the whole group in words, or the limit that refused parts.
    )


def _repeated(topics: Iterable[tuple[str, Sequence[int]]], what: str) -> str | None:
    total = 0
    named: dict[str, set[int]] = {}
    for topic, partitions in topics:
        total += len(partitions)
        if topic in named:
            named[topic].update(partitions)
        else:  # A `setdefault` would make a second set for each topic.
            named[topic] = set(partitions)
    if total > REQUEST_PARTITIONS_MAX:
        return f"{what} of {total} partitions; at most {REQUEST_PARTITIONS_MAX} at a time"
    if total != sum(map(len, named.values())):
        return f"{what} that names the same partition twice"
    return None


def _repeated_items(
    request: "OffsetCommitRequest | AlterOffsetsRequest | ReportEndOffsetsRequest", what: str
) -> str | None:
    topics = [(t.topic, [p.partition for p in t.partitions]) for t in request.topics]
    return _repeated(topics, what)


def _commit_problem(request: OffsetCommitRequest) -> str | None:
    topics = request.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        return None  # Nearly every commit of a small group.
    return _repeated_items(request, "a commit")


declare(
    ApiKey.OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitResponse,
    problem=_commit_problem,
    example=Example(
        23,
        "a commit, version 2",
        2,
        OffsetCommitRequest(
            GROUP,
            1,
            MEMBER,
            None,
            (TopicCommit("flights", (PartitionCommit(0, 42, -1, "", None),)),),
        ),
        OffsetCommitResponse(0, (TopicResult("flights", (PartitionResult(0, 0),)),)),
    ),
)


class GroupFetch(RequestPart):
    """What to fetch of one group; ``topics`` None means everything that is committed."""

    group_id: GroupId
    topics: RequestArray[TopicPartitions] | None


class OffsetFetchRequest(Request):
    """How far have these groups come?"""

    groups: RequestArray[GroupFetch]
    require_stable: bool


class PartitionOffset(ResponsePart):
    """A committed offset; -1 where there is none (and then epoch -1, metadata "", error 0)."""

    partition: I32
    offset: I64
    leader_epoch: Epoch
    metadata: Text
    error: Code


class TopicOffsets(ResponsePart):
    """The committed offsets of one topic."""

    topic: Text
    partitions: ResponseArray[PartitionOffset]


class GroupOffsets(ResponsePart):
    """The committed offsets of one group."""

    group_id: Text
    error: Code
    topics: ResponseArray[TopicOffsets]


class OffsetFetchResponse(Response):
    """Answer to `OffsetFetchRequest`, in the order asked."""

    groups: ResponseArray[GroupOffsets]


declare(
    ApiKey.OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchResponse,
    failure=lambda request, error: OffsetFetchResponse(
        tuple([GroupOffsets(group.group_id, error, ()) for group in request.groups])
    ),
    example=Example(
        9,
        "some offsets of a group",
        0,
        OffsetFetchRequest((GroupFetch(GROUP, (TopicPartitions("flights", (0, 1)),)),), False),
        OffsetFetchResponse(
            (
                GroupOffsets(
                    GROUP,
                    0,
                    (
                        TopicOffsets(
                            "flights",
                            (
                                PartitionOffset(0, 42, -1, "batch 7", 0),
                                PartitionOffset(1, -1, -1, "", 0),
                            ),
                        ),
                    ),
                ),
            )
        ),
    ),
)


class OffsetDeleteRequest(Request):
    """Forget committed offsets of topics that the group doesn't subscribe to."""

    group_id: GroupId
    topics: RequestArray[TopicPartitions]


class OffsetDeleteResponse(Response):
    """Answer to `OffsetDeleteRequest`: an error of the whole group, or one per partition."""

    error: Code
    topics: ResponseArray[TopicResult]


def _delete_problem(request: OffsetDeleteRequest) -> str | None:
    return _repeated([(t.topic, t.partitions) for t in request.topics], "an OffsetDelete")


declare(
    ApiKey.OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    problem=_delete_problem,
    example=Example(
        14,
        "forget offsets",
        0,
        OffsetDeleteRequest(GROUP, (TopicPartitions("flights", (0,)),)),
        OffsetDeleteResponse(
            0, (TopicResult("flights", (PartitionResult(0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),)),)
        ),
    ),
)


class AlteredOffset(RequestPart):
    """The next offset to read of one partition, as an operator wants it.

    ``expected_offset``: None = no check, -1 = only if nothing is committed, else only if that is
    the committed offset.
    """

    partition: Count
    offset: Offset
    leader_epoch: Epoch
    metadata: Text | None
    expected_offset: OffsetOrNone | None


class AlteredTopic(RequestPart):
    """The partitions of one topic in an `AlterOffsetsRequest`."""

    topic: TopicName
    partitions: RequestArray[AlteredOffset]


class AlterOffsetsRequest(Request):
    """Put a group to other offsets, also while it has members; for operators.

    A partition that a member may commit is refused with 1009, unless ``remove_owners``: then
    those members are removed in the same step, so that nothing of theirs comes after it.
    """

    group_id: GroupId
    topics: RequestArray[AlteredTopic]
    remove_owners: bool
    reason: Text | None


class AlterOffsetsResponse(Response):
    """Answer to `AlterOffsetsRequest`: an error of the whole group, or one per partition."""

    error: Code
    message: Text | None
    topics: ResponseArray[TopicResult]
    removed_members: ResponseArray[Text]  # Their member ids.


declare(
    ApiKey.ALTER_OFFSETS,
    AlterOffsetsRequest,
    AlterOffsetsResponse,
    problem=partial(_repeated_items, what="an AlterOffsets"),
    example=Example(
        42,
        "an operator puts a group with members elsewhere",
        0,
        AlterOffsetsRequest(
            GROUP,
            (
                AlteredTopic(
                    "flights",
                    (AlteredOffset(0, 40, -1, "", 42), AlteredOffset(2, 7, 5, "batch 3", None)),
                ),
            ),
            False,
            "wrong rows since 12:00",
        ),
        AlterOffsetsResponse(
            0,
            None,
            (
                TopicResult(
                    "flights",
                    (PartitionResult(0, ErrorCode.PARTITION_OWNED), PartitionResult(2, 0)),
                ),
            ),
            (),
        ),
    ),
)


# --- Groups -----------------------------------------------------------------------------


class DescribeGroupsRequest(Request):
    """Who is in these groups, and what do they own?"""

    group_ids: RequestArray[GroupId]


class DescribedMember(ResponsePart):
    """One member of a described group."""

    member_id: Text
    group_instance_id: Text | None
    client_id: Text
    client_host: Text
    metadata: bytes
    assignment: bytes


class DescribedGroup(ResponsePart):
    """One group; state is one of Kafka's five names."""

    error: Code
    message: Text | None
    group_id: Text
    state: Text
    protocol_type: Text
    protocol_name: Text
    generation_id: Epoch
    members: ResponseArray[DescribedMember]
    # Version 1: how long the offsets are kept once nobody uses them; -1 for ever.
    offsets_retention_ms: Annotated[RetentionMs, Since(1)] = -1


class DescribeGroupsResponse(Response):
    """Answer to `DescribeGroupsRequest`, in the order asked."""

    groups: ResponseArray[DescribedGroup]


def describe_error(
    group_id: str, error: int, message: str | None, state: str = "Dead"
) -> DescribedGroup:
    """Return the entry of one group that could not be described; Kafka's state for it is Dead."""
    return DescribedGroup(error, message, group_id, state, "", "", -1, ())


declare(
    ApiKey.DESCRIBE_GROUPS,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    failure=lambda request, error: DescribeGroupsResponse(
        tuple([describe_error(g, error, None, state="") for g in request.group_ids])
    ),
    example=Example(
        25,
        "who is in a group, and how long its offsets are kept",
        1,
        DescribeGroupsRequest((GROUP,)),
        DescribeGroupsResponse(
            (
                DescribedGroup(
                    0,
                    None,
                    GROUP,
                    "Stable",
                    "consumer",
                    "range",
                    1,
                    (
                        DescribedMember(
                            MEMBER, "etl-1", "driver-1", "10.0.0.7", SUBSCRIPTION, ASSIGNMENT
                        ),
                    ),
                    offsets_retention_ms=604_800_000,
                ),
            )
        ),
    ),
)


class ListGroupsRequest(Request):
    """Which groups are there? Filters are case-insensitive; empty means all."""

    states: RequestArray[Text]
    types: RequestArray[Text]
    # Version 1: only the groups of these offsets partitions; 16 if the node doesn't lead them all.
    # Without it, the node lists what it leads.
    offsets_partitions: Annotated[RequestArray[Count] | None, Since(1)] = None


class ListedGroup(ResponsePart):
    """One group of a list."""

    group_id: Text
    protocol_type: Text
    state: Text
    type: Text


class ListGroupsResponse(Response):
    """Answer to `ListGroupsRequest`."""

    error: Code
    groups: ResponseArray[ListedGroup]


declare(
    ApiKey.LIST_GROUPS,
    ListGroupsRequest,
    ListGroupsResponse,
    example=Example(
        55,
        "which groups are there in two offsets partitions",
        1,
        ListGroupsRequest(("Stable", "Empty"), (), (1, 3)),
        ListGroupsResponse(0, (ListedGroup(GROUP, "consumer", "Stable", "classic"),)),
        -1,
    ),
)


class DeleteGroupsRequest(Request):
    """Delete groups without members, and their offsets."""

    group_ids: RequestArray[GroupId]


class DeletedGroup(ResponsePart):
    """What became of one group."""

    group_id: Text
    error: Code


class DeleteGroupsResponse(Response):
    """Answer to `DeleteGroupsRequest`, in the order asked, each group once."""

    groups: ResponseArray[DeletedGroup]


declare(
    ApiKey.DELETE_GROUPS,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    failure=lambda request, error: DeleteGroupsResponse(
        tuple([DeletedGroup(g, error) for g in dict.fromkeys(request.group_ids)])
    ),
    example=Example(
        13,
        "delete a group",
        0,
        DeleteGroupsRequest((GROUP,)),
        DeleteGroupsResponse((DeletedGroup(GROUP, ErrorCode.NON_EMPTY_GROUP),)),
    ),
)


class AlterGroupRetentionRequest(Request):
    """Keep this group's offsets for another time than offsets.retention.minutes.

    ``retention_ms`` -1 is for ever, None the setting again.
    """

    group_id: GroupId
    retention_ms: RetentionMs | None


class AlterGroupRetentionResponse(Response):
    """Answer to `AlterGroupRetentionRequest`."""

    error: Code


declare(
    ApiKey.ALTER_GROUP_RETENTION,
    AlterGroupRetentionRequest,
    AlterGroupRetentionResponse,
    example=Example(
        36,
        "keep a group's offsets for ever",
        0,
        AlterGroupRetentionRequest(GROUP, -1),
        AlterGroupRetentionResponse(0),
    ),
)


# --- Topics -----------------------------------------------------------------------------
#
# A source that is not Kafka has no broker that knows its partitions, so whoever knows the source
# tells the coordinator: which topics there are, how many partitions each has, on which hosts
# their data lies, and how far they reach.


class PartitionHosts(RequestPart):
    """The hosts that have the data of one partition close by."""

    partition: Count
    hosts: Hosts


class TopicRegistration(RequestPart):
    """A topic as its source has it now. ``hosts`` None leaves them as they are."""

    topic: TopicName
    partition_count: Count
    hosts: RequestArray[PartitionHosts] | None


class RegisterTopicsRequest(Request):
    """Make topics known, or tell that they have grown; repeating it changes nothing."""

    topics: RequestArray[TopicRegistration]
    # Version 1: who tells is a consumer, which knows of so many partitions at least. Fewer than are
    # registered change nothing then, and a topic that only consumers told of bounds no commits.
    is_observed: Annotated[bool, Since(1)] = False


class RegisteredTopic(ResponsePart):
    """What became of one topic; ``partition_count`` is the registered one, -1 if there is none."""

    topic: Text
    error: Code
    message: Text | None
    partition_count: I32


class RegisterTopicsResponse(Response):
    """Answer to `RegisterTopicsRequest`, in the order asked."""

    error: Code
    topics: ResponseArray[RegisteredTopic]


def _register_problem(request: RegisterTopicsRequest) -> str | None:
    names = {registration.topic for registration in request.topics}
    return None if len(names) == len(request.topics) else "a topic is registered twice"


declare(
    ApiKey.REGISTER_TOPICS,
    RegisterTopicsRequest,
    RegisterTopicsResponse,
    problem=_register_problem,
    example=Example(
        40,
        "topics become known, version 1",
        1,
        RegisterTopicsRequest(
            (
                TopicRegistration("flights", 2, (PartitionHosts(0, ("host-a", "host-b")),)),
                TopicRegistration("weather", 1, None),
            ),
            is_observed=False,
        ),
        RegisterTopicsResponse(
            0,
            (
                RegisteredTopic("flights", 0, None, 2),
                RegisteredTopic(
                    "weather",
                    ErrorCode.INVALID_PARTITIONS,
                    "topic weather has 4 partitions and can't shrink to 1",
                    4,
                ),
            ),
        ),
        -1,
    ),
)


class DeleteTopicsRequest(Request):
    """The topics are gone: forget them, and what groups have committed for them."""

    topics: RequestArray[TopicName]


class DeletedTopic(ResponsePart):
    """What became of one topic."""

    topic: Text
    error: Code


class DeleteTopicsResponse(Response):
    """Answer to `DeleteTopicsRequest`, in the order asked, each topic once."""

    error: Code
    topics: ResponseArray[DeletedTopic]


declare(
    ApiKey.DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    example=Example(
        27,
        "topics are gone",
        0,
        DeleteTopicsRequest(("weather", "rain")),
        DeleteTopicsResponse(
            0,
            (
                DeletedTopic("weather", 0),
                DeletedTopic("rain", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ),
        ),
        -1,
    ),
)


class DescribeTopicsRequest(Request):
    """Which topics are there?

    Those in ``topics``, or (None) all that match ``pattern``, a regular expression of RE2's
    syntax for the whole name, or (None) all. Without a list they come by name, at most
    ``max_topics`` of them after ``start_after``.
    """

    topics: RequestArray[TopicName] | None
    pattern: TopicPattern | None
    with_end_offsets: bool
    start_after: Text
    max_topics: Count


class EndOffset(ResponsePart):
    """How far one partition reaches: the offset that its next record will get."""

    partition: Count
    end_offset: Offset
    reported_ms: I64  # Wall clock of the coordinator, ms since the epoch.


class DescribedTopic(ResponsePart):
    """One registered topic; error 3 (and -1 partitions) if it isn't registered."""

    topic: Text
    error: Code
    partition_count: I32
    hosts: ResponseArray[PartitionHosts]
    end_offsets: ResponseArray[EndOffset]


class DescribeTopicsResponse(Response):
    """Answer to `DescribeTopicsRequest`; ``has_more`` says that another page follows."""

    error: Code
    message: Text | None
    topics: ResponseArray[DescribedTopic]
    has_more: bool


declare(
    ApiKey.DESCRIBE_TOPICS,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    problem=lambda r: "max_topics is 0" if r.topics is None and not r.max_topics else None,
    example=Example(
        28,
        "which topics match",
        0,
        DescribeTopicsRequest(None, "flights(-.*)?", True, "", 100),
        DescribeTopicsResponse(
            0,
            None,
            (
                DescribedTopic(
                    "flights",
                    0,
                    2,
                    (PartitionHosts(0, ("host-a", "host-b")),),
                    (EndOffset(0, 50, STARTED_MS),),
                ),
            ),
            has_more=False,
        ),
        -1,
    ),
)


class PartitionEnd(RequestPart):
    """How far one partition reaches."""

    partition: Count
    end_offset: Offset


class TopicEnds(RequestPart):
    """How far a topic's partitions reach."""

    topic: TopicName
    partitions: RequestArray[PartitionEnd]


class ReportEndOffsetsRequest(Request):
    """Tell how far partitions reach, for lag."""

    topics: RequestArray[TopicEnds]


class ReportEndOffsetsResponse(Response):
    """Answer to `ReportEndOffsetsRequest`: an error of the whole request, or one per partition."""

    error: Code
    topics: ResponseArray[TopicResult]


declare(
    ApiKey.REPORT_END_OFFSETS,
    ReportEndOffsetsRequest,
    ReportEndOffsetsResponse,
    problem=partial(_repeated_items, what="a ReportEndOffsets"),
    example=Example(
        30,
        "how far partitions reach",
        0,
        ReportEndOffsetsRequest((TopicEnds("flights", (PartitionEnd(0, 50), PartitionEnd(9, 1))),)),
        ReportEndOffsetsResponse(
            0,
            (
                TopicResult(
                    "flights",
                    (
                        PartitionResult(0, 0),
                        PartitionResult(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    ),
                ),
            ),
        ),
        -1,
    ),
)


# --- History and lag --------------------------------------------------------------------


class DescribeRebalancesRequest(Request):
    """Why did this group rebalance? The newest ``max_rebalances`` are told, newest first."""

    group_id: GroupId
    max_rebalances: Count


class LateMember(ResponsePart):
    """A member that the others had to wait for."""

    member_id: Text
    client_id: Text
    client_host: Text
    phase: Text  # "join" or "sync".
    waited_ms: I64  # From the start of the phase until it came, or was a member no longer.
    removed: bool  # The member never came: its session or the phase ended first, or it left.


class Rebalance(ResponsePart):
    """One rebalance of a group, from its trigger to its end.

    ``member_id`` … ``client_host`` name the member that caused it, "" for nobody in particular.
    """

    number: I64  # 1, 2, … for the life of the group.
    started_ms: I64
    trigger: Text  # Such as "member joined", "session expired", "topics changed".
    member_id: Text
    group_instance_id: Text | None
    client_id: Text
    client_host: Text
    reason: Text  # In words, with what was measured.
    old_generation: I32
    new_generation: I32  # -1 if it was overtaken before its join phase completed.
    join_ms: I64
    sync_ms: I64
    members: I32  # Of the new generation.
    outcome: Text  # "stable", "empty", or "overtaken" by another rebalance.
    late: ResponseArray[LateMember]


class DescribeRebalancesResponse(Response):
    """Answer to `DescribeRebalancesRequest`."""

    error: Code
    message: Text | None
    group_id: Text
    rebalances: ResponseArray[Rebalance]


declare(
    ApiKey.DESCRIBE_REBALANCES,
    DescribeRebalancesRequest,
    DescribeRebalancesResponse,
    problem=lambda r: None if r.max_rebalances else "max_rebalances is 0",
    failure=lambda request, error: DescribeRebalancesResponse(error, None, request.group_id, ()),
    example=Example(
        31,
        "why did a group rebalance",
        0,
        DescribeRebalancesRequest(GROUP, 1),
        DescribeRebalancesResponse(
            0,
            None,
            GROUP,
            (
                Rebalance(
                    7,
                    STARTED_MS,
                    "session expired",
                    OTHER,
                    None,
                    "driver-2",
                    "10.0.0.8",
                    "no heartbeat for 10.2 s, session timeout 10.0 s",
                    4,
                    5,
                    1_204,
                    35,
                    1,
                    "stable",
                    (LateMember(MEMBER, "driver-1", "10.0.0.7", "join", 1_204, removed=False),),
                ),
            ),
        ),
    ),
)


class ScanOffsetsRequest(Request):
    """All committed offsets of one offsets partition, page by page.

    ``cursor`` is empty for the first page, and after that the one of the page before. It goes
    with the same ``group_ids`` and ``topics``.
    """

    offsets_partition: Count
    cursor: Cursor
    max_offsets: Count
    # Version 1: answer in columns (see `OffsetColumns`), and only these groups and topics.
    in_columns: Annotated[bool, Since(1)] = False
    group_ids: Annotated[RequestArray[Text] | None, Since(1)] = None
    topics: Annotated[RequestArray[Text] | None, Since(1)] = None


class ScannedOffset(ResponsePart):
    """One committed offset."""

    group_id: Text
    topic: Text
    partition: Count
    offset: Offset
    leader_epoch: I32
    metadata: Text
    commit_timestamp_ms: I64
    expire_timestamp_ms: I64  # -1: the group's retention decides.


class OffsetColumns(ResponsePart):
    """Committed offsets by column; as many runs of one topic of one group as there are ``counts``.

    Integers in bin are big-endian.
    """

    group_ids: ResponseArray[Text] = ()  # Of each run.
    topics: ResponseArray[Text] = ()
    counts: bytes = b""  # 4 bytes for each run: how many offsets it has.
    # Of each offset: [partition, offset, leader_epoch, metadata, 0] in msgpack, as OffsetFetch has
    # it, how many bytes that takes (2 bytes for each), and the times in ms (8 bytes for each).
    rows: bytes = b""
    sizes: bytes = b""
    committed_ms: bytes = b""
    expire_ms: bytes = b""  # Empty: for all of them the group's retention decides.


class ScanOffsetsResponse(Response):
    """Answer to `ScanOffsetsRequest`.

    ``position`` is where the stream of changes starts that belongs to this page: the whole scan,
    and then the changes from the first page's position on, give the state at any later position.
    An empty ``cursor`` says that this was the last page.
    """

    error: Code
    position: I64
    offsets: ResponseArray[ScannedOffset]
    cursor: bytes
    columns: Annotated[
        ResponseArray[OffsetColumns], Since(1)
    ] = ()  # Version 1: one, where it was asked for.


declare(
    ApiKey.SCAN_OFFSETS,
    ScanOffsetsRequest,
    ScanOffsetsResponse,
    min_version=1,  # Version 0 has no columns, and rows are answered no more.
    problem=lambda r: None if r.max_offsets else "max_offsets is 0",
    example=Example(
        33,
        "some offsets of an offsets partition, in columns, version 1",
        1,
        ScanOffsetsRequest(15, b"", 2, in_columns=True, group_ids=(GROUP,), topics=None),
        ScanOffsetsResponse(
            0,
            1_712,
            (),
            b"",
            (
                OffsetColumns(
                    (GROUP,),
                    ("flights",),
                    (2).to_bytes(4),
                    b"\x95\x00\x2a\xff\xa7batch 7\x00" + b"\x95\x01\xcd\x01\x2c\x05\xa0\x00",
                    (12).to_bytes(2) + (8).to_bytes(2),
                    2 * STARTED_MS.to_bytes(8),
                    b"",
                ),
            ),
        ),
    ),
)


class ReadOffsetChangesRequest(Request):
    """The changes of one offsets partition from ``position`` on, in their order."""

    offsets_partition: Count
    position: Offset
    max_changes: Count


class OffsetChange(ResponsePart):
    """One change of committed offsets, as it is in the log."""

    position: Offset
    kind: Text  # "committed", "removed" (one offset), or "group deleted" (all of them).
    group_id: Text
    topic: Text  # "" for a deleted group, and then the numbers are -1.
    partition: I32
    offset: I64  # -1 for a removed one.
    leader_epoch: I32
    metadata: Text
    timestamp_ms: I64  # When it was written.


class ReadOffsetChangesResponse(Response):
    """Answer to `ReadOffsetChangesRequest`.

    ``next_position`` is where to go on; it may have moved although nothing changed, as other
    entries share the log. ``end_position`` is the durable end: reached if the two are equal.
    """

    error: Code
    changes: ResponseArray[OffsetChange]
    next_position: I64
    end_position: I64


declare(
    ApiKey.READ_OFFSET_CHANGES,
    ReadOffsetChangesRequest,
    ReadOffsetChangesResponse,
    problem=lambda r: None if r.max_changes else "max_changes is 0",
    example=Example(
        34,
        "what has changed since",
        0,
        ReadOffsetChangesRequest(15, 1_712, 100),
        ReadOffsetChangesResponse(
            0,
            (
                OffsetChange(1_712, "committed", GROUP, "flights", 0, 43, -1, "", STARTED_MS + 5),
                OffsetChange(1_714, "removed", GROUP, "weather", 0, -1, -1, "", STARTED_MS + 9),
                OffsetChange(1_715, "group deleted", GROUP, "", -1, -1, -1, "", STARTED_MS + 9),
            ),
            1_716,
            1_716,
        ),
    ),
)


class DescribeLagRequest(Request):
    """How far is this group behind, in partitions that it has committed, or owns?"""

    group_id: GroupId


class PartitionLag(ResponsePart):
    """The lag of one partition. What is not known is -1, and never 0."""

    partition: Count
    committed_offset: I64
    end_offset: I64
    lag: I64  # end_offset - committed_offset; -1 unless both are known and it is at least 0.
    commit_timestamp_ms: I64
    end_reported_ms: I64
    member_id: Text  # Who owns it, "" for nobody.


class TopicLag(ResponsePart):
    """The lag of one topic's partitions."""

    topic: Text
    partitions: ResponseArray[PartitionLag]


class DescribeLagResponse(Response):
    """Answer to `DescribeLagRequest`."""

    error: Code
    message: Text | None
    group_id: Text
    topics: ResponseArray[TopicLag]


declare(
    ApiKey.DESCRIBE_LAG,
    DescribeLagRequest,
    DescribeLagResponse,
    failure=lambda request, error: DescribeLagResponse(error, None, request.group_id, ()),
    example=Example(
        35,
        "how far behind is a group",
        0,
        DescribeLagRequest(GROUP),
        DescribeLagResponse(
            0,
            None,
            GROUP,
            (
                TopicLag(
                    "flights",
                    (
                        PartitionLag(0, 42, 50, 8, STARTED_MS, STARTED_MS + 5, MEMBER),
                        PartitionLag(1, -1, -1, -1, -1, -1, MEMBER),
                    ),
                ),
            ),
        ),
    ),
)


class SummarizeGroupsRequest(Request):
    """All groups, page by page: their members, how far they are behind, and how that changes.

    Those whose whole id matches ``pattern``, a regular expression of RE2's syntax (None: all), and
    that are in one of ``states`` (in any case; empty: all). ``cursor`` is empty for the first page,
    and after that the one of the page before.
    """

    pattern: TopicPattern | None
    states: RequestArray[Text]
    cursor: Cursor
    max_groups: Count
    max_samples: Count  # How many of the last lags, a minute apart, to show of each group.
    # Version 1: as in ListGroups.
    offsets_partitions: Annotated[RequestArray[Count] | None, Since(1)] = None


class GroupSummary(ResponsePart):
    """One group of a page. What is not known is -1, and never 0."""

    group_id: Text
    protocol_type: Text
    state: Text
    members: I32
    partitions: I32  # That it has committed, or owns.
    unknown: I32  # Those of them of which no lag is known.
    lag: I64  # Of the others together; -1 if there are none.
    earlier_lag: I64  # The whole lag some minutes ago, -1 if it wasn't known of all partitions.
    earlier_ms: I64  # How long ago that was.
    samples: ResponseArray[I64]  # The last lags, a minute apart, oldest first.


class SummarizeGroupsResponse(Response):
    """Answer to `SummarizeGroupsRequest`; an empty ``cursor`` says that this was the last page."""

    error: Code
    message: Text | None
    groups: ResponseArray[GroupSummary]
    cursor: bytes


declare(
    ApiKey.SUMMARIZE_GROUPS,
    SummarizeGroupsRequest,
    SummarizeGroupsResponse,
    problem=lambda r: None if r.max_groups else "max_groups is 0",
    example=Example(
        56,
        "how far behind are the groups of two offsets partitions",
        1,
        SummarizeGroupsRequest("etl.*", (), b"", 100, 3, (1, 3)),
        SummarizeGroupsResponse(
            0,
            None,
            (GroupSummary(GROUP, "consumer", "Stable", 1, 2, 1, 8, 20, 150_000, (20, -1, 12)),),
            b"",
        ),
        -1,
    ),
)


# --- What somebody may ------------------------------------------------------------------
#
# Rules of access, credentials and quotas lie in the log, beside the topics. The numbers are those
# of `protocol.acls` and `protocol.scram`.


class Acl(RequestPart):
    """A rule: with which resources a principal may do what, or may not."""

    resource_type: Count
    resource_name: Name  # "*" with a literal pattern is every name.
    pattern_type: Count
    principal: Principal
    host: Name  # An address as `canonical_address` writes it, "*" is every one.
    operation: Count
    permission: Count


class AclFilter(RequestPart):
    """Rules that fit in everything that is given; None, and 1 of a number, fits all.

    Pattern type 2 is "match": the rules that concern a resource of this name.
    """

    resource_type: Count
    resource_name: Name | None
    pattern_type: Count
    principal: Principal | None
    host: Name | None
    operation: Count
    permission: Count


class DescribeAclsRequest(Request):
    """Which rules fit in everything that is given, as in an `AclFilter`?"""

    resource_type: Count
    resource_name: Name | None
    pattern_type: Count
    principal: Principal | None
    host: Name | None
    operation: Count
    permission: Count


class DescribedAcl(ResponsePart):
    """A rule, as `Acl`."""

    resource_type: Count
    resource_name: Text
    pattern_type: Count
    principal: Text
    host: Text
    operation: Count
    permission: Count


class DescribeAclsResponse(Response):
    """Answer to `DescribeAclsRequest`, sorted."""

    error: Code
    message: Text | None
    acls: ResponseArray[DescribedAcl]


_ETL_READS: Final = (
    ResourceType.GROUP,
    GROUP,
    PatternType.PREFIXED,
    "User:alice",
    EVERY_HOST,
    Operation.READ,
    Permission.ALLOW,
)

declare(
    ApiKey.DESCRIBE_ACLS,
    DescribeAclsRequest,
    DescribeAclsResponse,
    example=Example(
        44,
        "which rules concern a group",
        0,
        DescribeAclsRequest(ResourceType.GROUP, "etl-1", MATCH, None, None, ANY, ANY),
        DescribeAclsResponse(0, None, (DescribedAcl(*_ETL_READS),)),
        -1,
    ),
)


class CreateAclsRequest(Request):
    """Add rules; one that is there already changes nothing."""

    acls: RequestArray[Acl]


class CreatedAcl(ResponsePart):
    """What became of one rule."""

    error: Code
    message: Text | None


class CreateAclsResponse(Response):
    """Answer to `CreateAclsRequest`, in the order asked."""

    error: Code
    results: ResponseArray[CreatedAcl]


declare(
    ApiKey.CREATE_ACLS,
    CreateAclsRequest,
    CreateAclsResponse,
    example=Example(
        45,
        "rules are added",
        0,
        CreateAclsRequest(
            (
                Acl(*_ETL_READS),
                Acl(
                    ResourceType.CLUSTER,
                    CLUSTER,
                    PatternType.LITERAL,
                    "alice",
                    EVERY_HOST,
                    Operation.DESCRIBE,
                    Permission.ALLOW,
                ),
            )
        ),
        CreateAclsResponse(
            0,
            (
                CreatedAcl(0, None),
                CreatedAcl(ErrorCode.INVALID_REQUEST, "a principal is User:<name>"),
            ),
        ),
        -1,
    ),
)


class DeleteAclsRequest(Request):
    """Remove all rules that fit one of the filters."""

    filters: RequestArray[AclFilter]


class DeletedAcls(ResponsePart):
    """What one filter has removed; a rule that fits several is named by the first."""

    error: Code
    message: Text | None
    acls: ResponseArray[DescribedAcl]


class DeleteAclsResponse(Response):
    """Answer to `DeleteAclsRequest`, in the order of the filters."""

    error: Code
    results: ResponseArray[DeletedAcls]


declare(
    ApiKey.DELETE_ACLS,
    DeleteAclsRequest,
    DeleteAclsResponse,
    example=Example(
        46,
        "rules are removed",
        0,
        DeleteAclsRequest((AclFilter(ANY, None, ANY, "User:alice", None, ANY, ANY),)),
        DeleteAclsResponse(0, (DeletedAcls(0, None, (DescribedAcl(*_ETL_READS),)),)),
        -1,
    ),
)


class DescribeUserScramCredentialsRequest(Request):
    """Which users can log in with a password?

    Those in ``users``, or (None) all: by name, at most ``max_users`` of them after ``start_after``.
    """

    users: RequestArray[Name] | None
    start_after: Text
    max_users: Count


class ScramCredentialInfo(ResponsePart):
    """What is told of a credential: never its salt or keys."""

    mechanism: Count
    iterations: Count


class DescribedUser(ResponsePart):
    """One user; error 91 if there is none of this name."""

    user: Text
    error: Code
    credentials: ResponseArray[ScramCredentialInfo]


class DescribeUserScramCredentialsResponse(Response):
    """Answer to `DescribeUserScramCredentialsRequest`; ``has_more``: another page follows."""

    error: Code
    message: Text | None
    users: ResponseArray[DescribedUser]
    has_more: bool


declare(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    problem=lambda r: "max_users is 0" if r.users is None and not r.max_users else None,
    example=Example(
        47,
        "who can log in with a password",
        0,
        DescribeUserScramCredentialsRequest(("alice", "bob"), "", 0),
        DescribeUserScramCredentialsResponse(
            0,
            None,
            (
                DescribedUser("alice", 0, (ScramCredentialInfo(1, 16_384),)),
                DescribedUser("bob", ErrorCode.RESOURCE_NOT_FOUND, ()),
            ),
            has_more=False,
        ),
        -1,
    ),
)


class ScramDeletion(RequestPart):
    """A credential that is to go."""

    user: Name
    mechanism: Count


class ScramUpsertion(RequestPart):
    """A credential as it is to be: who asks has made the keys of the password (RFC 5802)."""

    user: Name
    mechanism: Count
    iterations: Count
    salt: KeyBytes
    stored_key: KeyBytes
    server_key: KeyBytes

    def __repr__(self) -> str:
        """Keep salt and keys out of every text."""
        return f"ScramUpsertion({self.user!r}, {self.mechanism}, {self.iterations}, …)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Likewise, for a traceback that shows variables."""
        return [("user", self.user), ("mechanism", self.mechanism)]


class AlterUserScramCredentialsRequest(Request):
    """Set and remove passwords: of each user everything that is named here, or nothing."""

    deletions: RequestArray[ScramDeletion]
    upsertions: RequestArray[ScramUpsertion]


class AlteredUser(ResponsePart):
    """What became of one user."""

    user: Text
    error: Code
    message: Text | None


class AlterUserScramCredentialsResponse(Response):
    """Answer to `AlterUserScramCredentialsRequest`, each user once, as they are first named."""

    error: Code
    results: ResponseArray[AlteredUser]


declare(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    example=Example(
        48,
        "a password is set, and another one removed",
        0,
        AlterUserScramCredentialsRequest(
            (ScramDeletion("bob", 1),),
            # The password is "pencil".
            (
                ScramUpsertion(
                    "alice",
                    1,
                    16_384,
                    bytes.fromhex("5b6d99689d12358eeca04b141236fa810f1e2d3c4b5a6978"),
                    bytes.fromhex(
                        "25f4672feda72591ac5d331020e2ad130a799eda67e55b4619e5913084100b50"
                    ),
                    bytes.fromhex(
                        "401feab5f5d789ef48943a06aa447a984c9d12710b148cbd1b6cab3083665cf7"
                    ),
                ),
            ),
        ),
        AlterUserScramCredentialsResponse(
            0,
            (
                AlteredUser("bob", ErrorCode.RESOURCE_NOT_FOUND, "the user has no SCRAM-SHA-256"),
                AlteredUser("alice", 0, None),
            ),
        ),
        -1,
    ),
)


class DescribeClientQuotasRequest(Request):
    """Which quotas are set: those of these principals ("" is the default), or (None) all?"""

    principals: RequestArray[Text] | None


class QuotaValue(ResponsePart):
    """One quota."""

    key: Text
    value: Offset


class DescribedQuotas(ResponsePart):
    """What is set for one principal, "" for everybody who has no quota of that key himself."""

    principal: Text
    quotas: ResponseArray[QuotaValue]


class DescribeClientQuotasResponse(Response):
    """Answer to `DescribeClientQuotasRequest`, by principal, those without any left out."""

    error: Code
    message: Text | None
    entries: ResponseArray[DescribedQuotas]


declare(
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    example=Example(
        49,
        "which quotas are set",
        0,
        DescribeClientQuotasRequest(None),
        DescribeClientQuotasResponse(
            0,
            None,
            (
                DescribedQuotas("", (QuotaValue("connections", 100),)),
                DescribedQuotas("User:alice", (QuotaValue("request_rate", 5_000),)),
            ),
        ),
        -1,
    ),
)


class QuotaChange(RequestPart):
    """One quota as it is to be; None removes it."""

    key: Name
    value: Offset | None


class AlteredPrincipal(RequestPart):
    """The changes for one principal, "" for everybody who has no quota of that key himself."""

    principal: Text
    changes: RequestArray[QuotaChange]


class AlterClientQuotasRequest(Request):
    """Set and remove quotas: of each principal everything that is named here, or nothing."""

    entries: RequestArray[AlteredPrincipal]


class AlteredQuotas(ResponsePart):
    """What became of one principal's quotas."""

    principal: Text
    error: Code
    message: Text | None


class AlterClientQuotasResponse(Response):
    """Answer to `AlterClientQuotasRequest`, in the order asked."""

    error: Code
    results: ResponseArray[AlteredQuotas]


declare(
    ApiKey.ALTER_CLIENT_QUOTAS,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    example=Example(
        50,
        "quotas change",
        0,
        AlterClientQuotasRequest(
            (
                AlteredPrincipal(
                    "User:alice",
                    (QuotaChange("request_rate", 5_000), QuotaChange("connections", None)),
                ),
            )
        ),
        AlterClientQuotasResponse(0, (AlteredQuotas("User:alice", 0, None),)),
        -1,
    ),
)


# --- The cluster, the node and its log --------------------------------------------------


class DescribeClusterRequest(Request):
    """Which nodes are there? Answered at once, as far as the asked one has seen."""


class ClusterNode(ResponsePart):
    """A node that is there, as whoever came by the same listener reaches it."""

    node_id: I32
    host: Text
    port: I32
    is_ready: bool  # Whether it may come to lead: it follows the whole log.


class DescribeClusterResponse(Response):
    """Answer to `DescribeClusterRequest`, by node id. One that has died is soon left out."""

    error: Code
    cluster_id: Text
    nodes: ResponseArray[ClusterNode]


declare(
    ApiKey.DESCRIBE_CLUSTER,
    DescribeClusterRequest,
    DescribeClusterResponse,
    example=Example(
        57,
        "which nodes are there",
        0,
        DescribeClusterRequest(),
        DescribeClusterResponse(
            0,
            "c0FmZS1hbmQtc291bmQhIQ",
            (
                ClusterNode(1, "10.0.0.1", 9310, is_ready=True),
                ClusterNode(2, "10.0.0.2", 9310, is_ready=False),
            ),
        ),
        -1,
    ),
)


class DescribeNodeRequest(Request):
    """How is this node? Answered at once, also while it loads."""


class NodeProblem(ResponsePart):
    """What is wrong with one part of the node."""

    part: Text  # Such as "storage", "loading", "compaction".
    problem: Text


class NodePartition(ResponsePart):
    """One partition of the offsets log, the node's own (65535: the topics) among them."""

    offsets_partition: Count
    # "loading", "active", or "closed": not served here. In a cluster also "following" (another node
    # leads it), and "suspended" and "cut off": led here, and its log can't be reached.
    status: Text
    loaded_offset: I64  # What was read of it; equal to `end_offset` once it is loaded.
    end_offset: I64


class NodeMetric(ResponsePart):
    """A number; its unit is the end of its name."""

    name: Text
    value: I64


class DescribeNodeResponse(Response):
    """Answer to `DescribeNodeRequest`."""

    error: Code
    node_id: I32
    leader_epoch: I32
    status: Text  # "loading", "ready", or "unhealthy": there are problems.
    problems: ResponseArray[NodeProblem]
    partitions: ResponseArray[NodePartition]
    metrics: ResponseArray[NodeMetric]


declare(
    ApiKey.DESCRIBE_NODE,
    DescribeNodeRequest,
    DescribeNodeResponse,
    example=Example(
        37,
        "a node loads, and its disk is nearly full",
        0,
        DescribeNodeRequest(),
        DescribeNodeResponse(
            0,
            1,
            7,
            "unhealthy",
            (NodeProblem("storage", "the disk's reserve is reached"),),
            (NodePartition(0, "loading", 1_200, 90_000), NodePartition(65_535, "active", 3, 3)),
            (NodeMetric("log_bytes", 43_420_000),),
        ),
    ),
)


class CompactLogRequest(Request):
    """Compact the offsets log now, everything that is on disk so far."""


class CompactLogResponse(Response):
    """Answer to `CompactLogRequest`, when that has been done or has failed."""

    error: Code
    message: Text | None
    removed_bytes: I64
    log_bytes: I64  # What is left, with what was written meanwhile.
    live_bytes: I64  # About how much of that another compaction would keep.
    duration_ms: I64


declare(
    ApiKey.COMPACT_LOG,
    CompactLogRequest,
    CompactLogResponse,
    example=Example(
        39,
        "compact the log",
        0,
        CompactLogRequest(),
        CompactLogResponse(0, None, 41_932_800, 9_200_117, 9_187_402, 2_140),
        -1,
    ),
)


class ReloadPartitionRequest(Request):
    """Take one offsets partition out of service, and load it again from the log."""

    offsets_partition: Count


class ReloadPartitionResponse(Response):
    """Answer to `ReloadPartitionRequest`, when the partition is served again."""

    error: Code
    message: Text | None
    entries: I64  # That were read.
    load_ms: I64


declare(
    ApiKey.RELOAD_PARTITION,
    ReloadPartitionRequest,
    ReloadPartitionResponse,
    example=Example(
        38,
        "load a partition again",
        0,
        ReloadPartitionRequest(7),
        ReloadPartitionResponse(0, None, 20_000, 85),
    ),
)


class DescribeSettingsRequest(Request):
    """What is this node set to, and where does it have that from? Answered at once."""


class NodeSetting(ResponsePart):
    """One setting: its value, its default, and where the value comes from, all in words."""

    name: Text
    value: Text
    default: Text
    origin: Text  # "default", "file …", "environment …", or "command line …".


class DescribeSettingsResponse(Response):
    """Answer to `DescribeSettingsRequest`; none of the settings is a secret."""

    error: Code
    settings: ResponseArray[NodeSetting]


declare(
    ApiKey.DESCRIBE_SETTINGS,
    DescribeSettingsRequest,
    DescribeSettingsResponse,
    example=Example(
        43,
        "what a node is set to",
        0,
        DescribeSettingsRequest(),
        DescribeSettingsResponse(
            0,
            (
                NodeSetting("group.max.size", "500", "10000", "file /etc/coordinator.toml"),
                NodeSetting("node.id", "1", "1", "default"),
            ),
        ),
        -1,
    ),
)


# --- The journals of a cluster ----------------------------------------------------------


class DescribeJournalsRequest(Request):
    """Who leads what, and how much of each log has this node? Answered at once."""


class DescribedJournal(ResponsePart):
    """A journal, as the node that answers has it."""

    journal: Count
    leader: I32  # -1: nobody who is there.
    leader_epoch: I32
    since_ms: I64  # Since when that is so; -1: not known.
    last_entry: I64  # The last one of the log that this node holds.
    tail_entries: I64  # Of the log, behind the snapshot.
    tail_bytes: I64
    snapshot_entry: I64  # The last one that is in the snapshot.
    snapshot_bytes: I64
    # Version 1: the cluster was exported, and no node may lead it.
    is_frozen: Annotated[bool, Since(1)] = False


class DescribeJournalsResponse(Response):
    """Answer to `DescribeJournalsRequest`."""

    error: Code
    message: Text | None
    node_id: I32
    is_connected: bool  # Whether it has a session with ZooKeeper; else this may be old.
    lowest_format: I32  # Of the log, that this node reads.
    highest_format: I32
    state_bytes: I64  # Snapshots and tails of all journals.
    state_bytes_limit: I64
    journals: ResponseArray[DescribedJournal]
    # Version 1: how many nodes the cluster should have, as this node's settings say; 0: not set.
    nodes_expected: Annotated[I32, Since(1)] = 0


declare(
    ApiKey.DESCRIBE_JOURNALS,
    DescribeJournalsRequest,
    DescribeJournalsResponse,
    example=Example(
        58,
        "the two journals of a cluster, one of them frozen",
        1,
        DescribeJournalsRequest(),
        DescribeJournalsResponse(
            0,
            None,
            1,
            True,
            1,
            1,
            43_420_000,
            314_572_800,
            (
                DescribedJournal(0, 1, 7, STARTED_MS, 90_000, 1_200, 9_417_000, 88_800, 34_000_000),
                DescribedJournal(1, -1, 3, STARTED_MS, 12, 12, 3_000, 0, 0, is_frozen=True),
            ),
            3,
        ),
        -1,
    ),
)


class MoveJournalRequest(Request):
    """Hand the lead of a journal over to another node. Only who leads it does."""

    journal: Count
    node_id: I32  # Who is to lead it.


class MoveJournalResponse(Response):
    """Answer to `MoveJournalRequest`, when the other node leads, or won't."""

    error: Code
    message: Text | None


declare(
    ApiKey.MOVE_JOURNAL,
    MoveJournalRequest,
    MoveJournalResponse,
    example=Example(
        54,
        "another node leads journal 4",
        0,
        MoveJournalRequest(4, 2),
        MoveJournalResponse(0, None),
        -1,
    ),
)


# --- The error of an answer as a whole --------------------------------------------------


def first_error(response: Any) -> int:
    """Return the error code of *response*, or where it has several the first that isn't 0.

    The offsets of an OffsetFetch are not looked through: the gate knows which are refused.
    """
    parts = _PARTS_WITH_ERRORS.get(type(response))
    if parts is None:
        error: int = response.error
        return error
    return parts(response)


def _of_partitions(response: Any) -> int:
    if response.error:
        return int(response.error)
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error:
                return int(partition.error)
    return 0


def _of_topics(response: Any) -> int:
    return response.error or _first(response.topics)


def _of_groups(response: Any) -> int:
    return _first(response.groups)


def _of_results(response: Any) -> int:
    return response.error or _first(response.results)


def _first(parts: Iterable[Any]) -> int:
    for part in parts:
        if type(part) is not Raw and part.error:  # What is packed already went well.
            return int(part.error)
    return 0


_PARTS_WITH_ERRORS: Final[dict[type[Response], Callable[[Any], int]]] = {
    OffsetCommitResponse: _of_partitions,
    OffsetDeleteResponse: _of_partitions,
    AlterOffsetsResponse: _of_partitions,
    ReportEndOffsetsResponse: _of_partitions,
    RegisterTopicsResponse: _of_topics,
    DeleteTopicsResponse: _of_topics,
    CreateAclsResponse: _of_results,
    DeleteAclsResponse: _of_results,
    AlterUserScramCredentialsResponse: _of_results,
    AlterClientQuotasResponse: _of_results,
    DescribeUserScramCredentialsResponse: lambda response: response.error or _first(response.users),
    DescribeTopicsResponse: _of_topics,
    LeaveGroupResponse: lambda response: response.error or _first(response.members),
    FindCoordinatorResponse: lambda response: _first(response.coordinators),
    OffsetFetchResponse: _of_groups,
    DescribeGroupsResponse: _of_groups,
    DeleteGroupsResponse: _of_groups,
}
