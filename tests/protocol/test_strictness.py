"""Limits at their edges: the last value that is legal, the first that is not."""

from typing import Any

import msgpack
import pytest
from msgspec import structs

from protocol import messages as m
from protocol.connection import BadRequest
from protocol.errors import ErrorCode
from protocol.fields import REQUEST_PARTITIONS_MAX
from protocol.group_ids import group_id_error
from protocol.messages import (
    APIS,
    ApiKey,
    HeartbeatRequest,
    OffsetCommitRequest,
    PartitionCommit,
    Request,
    TopicCommit,
    api_of,
)
from tests.protocol.frames import frame_of, judged


def content_problem(request: Request) -> str | None:
    """Return what the request's own rule says of it."""
    problem = APIS[api_of(request)].problem
    return None if problem is None else problem(request)


def accepted(api: ApiKey, *body: Any, version: int = 0) -> bool:
    """Say whether the body fits."""
    event = judged(frame_of(api, version, msgpack.packb(body)))
    if isinstance(event, BadRequest):
        assert event.error is ErrorCode.INVALID_REQUEST
        assert not event.close
        return False
    return True


def commit(partition: Any, *, topic: Any = "t") -> bool:
    """Say whether a commit of this partition fits, in version 1."""
    body = ("g", -1, "", None, [[topic, [partition]]])
    return accepted(ApiKey.OFFSET_COMMIT, *body, version=1)


@pytest.mark.parametrize(
    ("partition", "legal"),
    [
        ([0, 0, -1, None, None], True),
        ([2**31 - 1, 2**63 - 1, 2**31 - 1, "", -1], True),
        ([2**31, 0, -1, None, None], False),
        ([0, 2**63, -1, None, None], False),
        ([0, 0, 2**31, None, None], False),
        ([0, 0, -1, None, 2**63 - 1], True),
        ([0, 0, -1, None, 2**63], False),
        ([False, 0, -1, None, None], False),
        ([0, False, -1, None, None], False),
        ([0, 0.0, -1, None, None], False),
        ([0, 0, -1, b"", None], False),
        ([0, 0, -1, "\0\n", None], True),
        ([0, 0, -1, "m" * 32_768, None], True),
        ([0, 0, -1, "m" * 32_769, None], False),
        ([0, 0, -1, "\u00e9" * 16_384, None], True),
        ([0, 0, -1, "\u00e9" * 16_385, None], False),
    ],
)
def test_a_partition_of_a_commit(partition: list[Any], legal: bool) -> None:
    """Offsets are 64 bits, all else is 32, and metadata is any text of a bounded length."""
    assert commit(partition) is legal


@pytest.mark.parametrize(
    ("topic", "legal"),
    [
        ("t" * 249, True),
        ("t" * 250, False),
        ("\u00e9" * 124, True),
        ("\u00e9" * 125, False),
        ("", False),
        ("a b", True),
        ("a\u00a0b", True),
        ("a\x7fb", False),
        ("a\x85b", False),
        ("a\x1fb", False),
        ("\U0001f600", True),
    ],
)
def test_names_are_counted_in_utf8_and_free_of_control_characters(topic: str, legal: bool) -> None:
    """Names end up in logs and terminals; lengths are those of the bytes on disk."""
    assert commit([0, 0, -1, None, None], topic=topic) is legal


@pytest.mark.parametrize(
    ("group_id", "legal"),
    [
        ("g", True),
        ("g" * 255, True),
        ("g" * 256, False),
        ("\u00e9" * 128, False),
        ("", False),
        ("a\nb", False),
        ("a\0", False),
        ("a\x9fb", False),
        ("группа", True),
    ],
)
def test_group_ids_have_an_error_of_their_own(group_id: str, legal: bool) -> None:
    """The layout lets any text through, because 24 is answered per group."""
    assert accepted(ApiKey.HEARTBEAT, group_id, 1, "m", None)
    assert (group_id_error(group_id) is None) is legal


@pytest.mark.parametrize(
    ("member_id", "instance_id", "legal"),
    [
        ("", None, True),
        ("m" * 300, "i" * 255, True),
        ("m" * 301, None, False),
        ("m", "", False),
        ("m", "i" * 256, False),
        (None, None, False),
    ],
)
def test_member_and_instance_ids(member_id: Any, instance_id: Any, legal: bool) -> None:
    """A member id holds a client id of 255 bytes and a UUID."""
    assert accepted(ApiKey.HEARTBEAT, "g", 1, member_id, instance_id) is legal


def test_arrays_hold_at_most_10000() -> None:
    """No request needs more, and a larger one costs more than its size."""
    assert accepted(ApiKey.DESCRIBE_GROUPS, ["g"] * 10_000)
    assert not accepted(ApiKey.DESCRIBE_GROUPS, ["g"] * 10_001)


def test_assignments_hold_at_most_256_kib() -> None:
    """10,000 members with 16 MiB each would not fit any answer."""
    limit = 256 * 1024

    def sync(size: int) -> bool:
        return accepted(ApiKey.SYNC_GROUP, "g", 1, "m", None, None, None, [["m", bytes(size)]])

    assert sync(limit)
    assert not sync(limit + 1)


def offsets(*topics: tuple[str, list[int]]) -> OffsetCommitRequest:
    """Return a commit of these partitions."""
    commits = tuple(
        TopicCommit(topic, tuple(PartitionCommit(p, 1, -1, "", None) for p in partitions))
        for topic, partitions in topics
    )
    return OffsetCommitRequest("g", -1, "", None, commits)


@pytest.mark.parametrize(
    "request_",
    [
        offsets(("t", [0])),
        offsets(("t", [0, 1])),
        offsets(("t", [0]), ("u", [0])),
        offsets(("t", [0]), ("t", [1])),
        offsets(("t", list(range(REQUEST_PARTITIONS_MAX)))),
        offsets(),
        offsets(("t", [])),
        HeartbeatRequest("g", 1, "m", None),
    ],
    ids=range(8),
)
def test_sound_content_has_no_error(request_: OffsetCommitRequest) -> None:
    """What is no mistake must not be refused."""
    assert content_problem(request_) is None


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (offsets(("t", [0, 0])), "twice"),
        (offsets(("t", [0, 1]), ("t", [2, 1])), "twice"),
        (offsets(("t", list(range(REQUEST_PARTITIONS_MAX))), ("u", [0])), "10001"),
    ],
    ids=range(3),
)
def test_a_commit_that_contradicts_itself_is_refused_whole(
    request_: OffsetCommitRequest, reason: str
) -> None:
    """Which of two offsets would count is nobody's guess to make."""
    problem = content_problem(request_)

    assert problem is not None
    assert reason in problem


def ends(*partitions: int) -> m.ReportEndOffsetsRequest:
    """Return a report of these partitions."""
    reported = tuple(m.PartitionEnd(partition, 1) for partition in partitions)
    return m.ReportEndOffsetsRequest((m.TopicEnds("t", reported),))


def deletion(*partitions: int) -> m.OffsetDeleteRequest:
    """Return a deletion of these partitions' offsets."""
    return m.OffsetDeleteRequest("g", (m.TopicPartitions("t", partitions),))


TOPIC = m.TopicRegistration("t", 1, None)
TOO_MANY = range(REQUEST_PARTITIONS_MAX + 1)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (ends(0, 1), None),
        (ends(0, 0), "a ReportEndOffsets that names the same partition twice"),
        (ends(*TOO_MANY), "a ReportEndOffsets of 10001 partitions; at most 10000 at a time"),
        (deletion(0, 1), None),
        (deletion(0, 0), "an OffsetDelete that names the same partition twice"),
        (deletion(*TOO_MANY), "an OffsetDelete of 10001 partitions; at most 10000 at a time"),
        (m.RegisterTopicsRequest((TOPIC, structs.replace(TOPIC, topic="u"))), None),
        (m.RegisterTopicsRequest((TOPIC, TOPIC)), "a topic is registered twice"),
        (m.DescribeTopicsRequest(None, None, False, "", 0), "max_topics is 0"),
        (m.DescribeTopicsRequest(("t",), None, False, "", 0), None),
        (m.DescribeRebalancesRequest("g", 0), "max_rebalances is 0"),
        (m.ScanOffsetsRequest(0, b"", 0), "max_offsets is 0"),
        (m.ReadOffsetChangesRequest(0, 0, 0), "max_changes is 0"),
    ],
    ids=range(13),
)
def test_what_a_request_gets_wrong_by_itself_is_said(
    request_: m.Request, problem: str | None
) -> None:
    """It is answered with 42 whatever the state is, so the answer must say what to change."""
    assert problem == content_problem(request_)


def register(partition_count: Any, hosts: Any) -> bool:
    """Say whether a topic with these partitions and hosts fits."""
    return accepted(ApiKey.REGISTER_TOPICS, [["t", partition_count, hosts]])


@pytest.mark.parametrize(
    ("partition_count", "hosts", "legal"),
    [
        (0, None, True),  # What a registry makes of it is its own affair: 42 for that topic.
        (2**31 - 1, [], True),
        (2**31, None, False),
        (True, None, False),
        (1, [[0, []]], True),
        (1, [[0, ["h"] * 16]], True),
        (1, [[0, ["h"] * 17]], False),
        (1, [[0, ["h" * 255]]], True),
        (1, [[0, ["h" * 256]]], False),
        (1, [[0, [""]]], False),
        (1, [[0, None]], False),
        (1, [[0]], False),
    ],
)
def test_a_registered_topic(partition_count: Any, hosts: Any, legal: bool) -> None:
    """Hosts go into every answer about the topic, so their number is bounded."""
    assert register(partition_count, hosts) is legal


@pytest.mark.parametrize(
    ("pattern", "legal"),
    [
        (None, True),
        ("", False),
        ("p" * 4_096, True),
        ("p" * 4_097, False),
        ("a\n", False),
        ("(", True),  # Its syntax has an error code of its own (128).
        (b"a", False),
    ],
)
def test_a_pattern_of_topics(pattern: Any, legal: bool) -> None:
    """A join and a look at the registry take the same ones."""
    join = ("g", 1, 1, "", None, "consumer", [["range", b""]], None, pattern)

    assert accepted(ApiKey.JOIN_GROUP, *join, version=1) is legal
    assert accepted(ApiKey.DESCRIBE_TOPICS, None, pattern, False, "", 1) is legal


@pytest.mark.parametrize(
    ("api", "body", "legal"),
    [
        (ApiKey.ALTER_GROUP_RETENTION, ("g", None), True),
        (ApiKey.ALTER_GROUP_RETENTION, ("g", -1), True),
        (ApiKey.ALTER_GROUP_RETENTION, ("g", 0), True),
        (ApiKey.ALTER_GROUP_RETENTION, ("g", 2**63 - 1), True),
        (ApiKey.ALTER_GROUP_RETENTION, ("g", 2**63), False),
        (ApiKey.ALTER_GROUP_RETENTION, ("g", -2), False),
        (ApiKey.SCAN_OFFSETS, (0, bytes(1_024), 1), True),
        (ApiKey.SCAN_OFFSETS, (0, bytes(1_025), 1), False),
        (ApiKey.SCAN_OFFSETS, (0, "", 1), False),
        (ApiKey.SCAN_OFFSETS, (-1, b"", 1), False),
        (ApiKey.READ_OFFSET_CHANGES, (0, 2**63 - 1, 0), True),
        (ApiKey.READ_OFFSET_CHANGES, (0, 2**63, 0), False),
        (ApiKey.READ_OFFSET_CHANGES, (0, 0, -1), False),
        (ApiKey.REPORT_END_OFFSETS, ([["t", [[0, 2**63 - 1]]]],), True),
        (ApiKey.REPORT_END_OFFSETS, ([["t", [[0, 2**63]]]],), False),
        (ApiKey.DESCRIBE_REBALANCES, ("g", 2**31 - 1), True),
        (ApiKey.DESCRIBE_REBALANCES, ("g", -1), False),
        (ApiKey.DELETE_TOPICS, (["t"] * 10_000,), True),
        (ApiKey.DELETE_TOPICS, (["t"] * 10_001,), False),
    ],
)
def test_the_requests_of_operators(api: ApiKey, body: tuple[Any, ...], legal: bool) -> None:
    """Each number has its edges, and each list its length."""
    assert accepted(api, *body) is legal
