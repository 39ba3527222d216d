"""What is wrong with a request before anybody's state is looked at, in words."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from coordinator.config import Settings
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.failures import REQUEST_PARTITIONS_MAX, content_error, error_response
from protocol.groups import group_id_error

Problem = tuple[ErrorCode, str]


def group_id_problem(group_id: str) -> Problem | None:
    """Return what is wrong with a group id. It comes before all else, as in Kafka."""
    reason = group_id_error(group_id)
    if reason is None:
        return None
    return ErrorCode.INVALID_GROUP_ID, f"the group id is not legal: {reason}"


def group_problem(request: Any, settings: Settings) -> Problem | None:
    """Return what is wrong with a request of one group besides its id: 26, then the rest."""
    kind = type(request)
    if kind is m.OffsetCommitRequest:
        return content_error(request)
    if kind is m.JoinGroupRequest:
        low = settings.group_min_session_timeout_ms
        high = settings.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            message = (
                f"a session timeout of {request.session_timeout_ms} ms is not between "
                f"{low} (group.min.session.timeout.ms) and {high} (group.max.session.timeout.ms)"
            )
            return ErrorCode.INVALID_SESSION_TIMEOUT, message
    return content_problem(request)


def content_problem(request: Any) -> Problem | None:
    """Return what the content of *request* is refused with, whatever the state."""
    check = _CHECKS.get(type(request))
    reason = None if check is None else check(request)
    return None if reason is None else (ErrorCode.INVALID_REQUEST, reason)


def partition_problem(request: Any, num_partitions: int) -> Problem | None:
    """Return what is wrong with a request about one offsets partition."""
    if request.offsets_partition >= num_partitions:
        message = f"there is no offsets partition {request.offsets_partition} of {num_partitions}"
        return ErrorCode.INVALID_REQUEST, message
    return content_problem(request)


def refusal(request: m.Request, problem: Problem) -> m.Response:
    """Return the answer that says *problem*, in words where its shape has room for them."""
    error, message = problem
    response: Any = error_response(request, error)
    said: m.Response = response
    if "message" in response._fields:
        said = response._replace(message=message)
    return said


def _repeats(topics: Iterable[tuple[str, list[int]]], what: str) -> str | None:
    seen: set[tuple[str, int]] = set()
    total = 0
    for topic, partitions in topics:
        total += len(partitions)
        seen.update([(topic, partition) for partition in partitions])
    if total > REQUEST_PARTITIONS_MAX:
        return f"{what} of {total} partitions; at most {REQUEST_PARTITIONS_MAX} at a time"
    if len(seen) != total:
        return f"{what} that names the same partition twice"
    return None


def _offset_delete(request: m.OffsetDeleteRequest) -> str | None:
    return _repeats([(t.topic, list(t.partitions)) for t in request.topics], "an OffsetDelete")


def _report_ends(request: m.ReportEndOffsetsRequest) -> str | None:
    topics = [(t.topic, [p.partition for p in t.partitions]) for t in request.topics]
    return _repeats(topics, "a ReportEndOffsets")


def _register(request: m.RegisterTopicsRequest) -> str | None:
    names = {registration.topic for registration in request.topics}
    return None if len(names) == len(request.topics) else "a topic is registered twice"


def _describe_topics(request: m.DescribeTopicsRequest) -> str | None:
    return "max_topics is 0" if request.topics is None and not request.max_topics else None


_CHECKS: Final[Mapping[type, Callable[[Any], str | None]]] = {
    m.OffsetDeleteRequest: _offset_delete,
    m.ReportEndOffsetsRequest: _report_ends,
    m.RegisterTopicsRequest: _register,
    m.DescribeTopicsRequest: _describe_topics,
    m.DescribeRebalancesRequest: lambda r: None if r.max_rebalances else "max_rebalances is 0",
    m.ScanOffsetsRequest: lambda r: None if r.max_offsets else "max_offsets is 0",
    m.ReadOffsetChangesRequest: lambda r: None if r.max_changes else "max_changes is 0",
}
