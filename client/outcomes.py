"""What an answer means for the retry loop. Pure."""

from enum import Enum

from protocol.errors import ERRORS, ErrorCode, Remedy
from protocol.messages import (
    DeleteGroupsResponse,
    DeleteTopicsResponse,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    OffsetFetchResponse,
    RegisterTopicsResponse,
    Response,
)


class Verdict(Enum):
    """What the retry loop does next."""

    DONE = "hand the answer to the caller, error code and all"
    RETRY = "pause, then ask the same coordinator again"
    LOADING = "the same, but not for ever"
    FIND = "pause, find the coordinator, ask it"
    IN_DOUBT = "pause and repeat the same request: it may or may not have been applied"
    MALFORMED = "the answer doesn't fit its request; close the connection"


_VERDICTS = {
    Remedy.RETRY: Verdict.RETRY,
    Remedy.FIND_COORDINATOR: Verdict.FIND,
    Remedy.REPEAT_AND_CHECK: Verdict.IN_DOUBT,
}


def error_of(response: Response, group_id: str | None) -> int | None:
    """Return the code that speaks about *group_id* as a whole; None if the answer has none.

    Where an answer has a code per topic, it is one that a retry cures, if there is any. This
    client asks for one group at a time, so an answer about several, or about another
    group, is malformed.
    """
    match response:
        case (
            OffsetFetchResponse(groups=groups)
            | DescribeGroupsResponse(groups=groups)
            | DeleteGroupsResponse(groups=groups)
            | FindCoordinatorResponse(coordinators=groups)
        ):
            if len(groups) != 1 or groups[0].group_id != group_id:
                return None
            return groups[0].error
        case (
            RegisterTopicsResponse(error=0, topics=topics)
            | DeleteTopicsResponse(error=0, topics=topics)
        ):
            # Both may be repeated as a whole: what is done already stays as it is.
            waiting = (one.error for one in topics if verdict(one.error) is not Verdict.DONE)
            return next(waiting, 0)
        case _:
            return response.error


def verdict(code: int | None) -> Verdict:
    """Return what to do about the error code of an answer.

    A code that this client doesn't know is handed on: the caller takes it for fatal.
    """
    if code is None:
        return Verdict.MALFORMED
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return Verdict.LOADING
    try:
        remedy = ERRORS[ErrorCode(code)].remedy
    except ValueError:
        return Verdict.DONE
    return _VERDICTS.get(remedy, Verdict.DONE)
