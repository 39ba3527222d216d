"""A request about many things, each decided for itself, cut into several about few.

To decide 10,000 topics, ends or rules takes a tenth of a second, in which nobody else is heard. So
such a request is decided a portion at a time, and its answer put together of theirs. A portion is a
decision of its own: a crash may leave the first ones. That is no news to who asks, because of a
request without an answer nobody knows whether it was done.

An OffsetCommit isn't cut: its offsets are in force together or not at all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.messages import error_response


class _Shape(NamedTuple):
    """How a request is cut.

    Attributes:
        asked: The field that has the things asked about.
        answered: The field of the response that has an answer to each of them.
        most: So many take about a millisecond.
    """

    asked: str
    answered: str
    most: int


_TOPICS: Final = _Shape("topics", "topics", 100)
_SHAPES: Final[Mapping[type, _Shape]] = {
    m.OffsetDeleteRequest: _Shape("topics", "topics", 500),
    m.LeaveGroupRequest: _Shape("members", "members", 50),
    m.RegisterTopicsRequest: _TOPICS,
    m.DeleteTopicsRequest: _TOPICS,
    m.ReportEndOffsetsRequest: _TOPICS,
    m.CreateAclsRequest: _Shape("acls", "results", 50),
    m.AlterClientQuotasRequest: _Shape("entries", "results", 30),
    # Cut by `_of_users`.
    m.AlterUserScramCredentialsRequest: _Shape("", "results", 20),
    # Each looks at all rules.
    m.DeleteAclsRequest: _Shape("filters", "results", 1),
}


class Portion(NamedTuple):
    """A part of a request.

    Attributes:
        goes_on: It begins with more partitions of the topic that the one before ends with.
    """

    request: Any
    goes_on: bool


def are_many(request: Any) -> bool:
    """Say whether *request* is cut, if each thing is small that it asks about."""
    shape = _SHAPES[type(request)]
    return len(getattr(request, shape.asked)) > shape.most


def portions(request: Any) -> Iterator[Portion]:
    """Yield *request* in portions, at least one; most requests are one by themselves."""
    shape = _SHAPES.get(type(request))
    if shape is None:
        yield Portion(request, goes_on=False)
        return
    if type(request) is m.AlterUserScramCredentialsRequest:
        yield from _of_users(request, shape.most)
        return
    things = getattr(request, shape.asked)
    if type(request) is m.DeleteTopicsRequest:
        things = tuple(dict.fromkeys(things))  # Who is named twice is answered once.
    some: list[Any] = []
    room = shape.most
    goes_on = False
    for thing in things:
        for piece, is_rest in _pieces(thing, shape.most):
            size = _size(piece)
            if some and size > room:
                yield Portion(structs.replace(request, **{shape.asked: tuple(some)}), goes_on)
                some, room, goes_on = [], shape.most, is_rest
            some.append(piece)
            room -= size
    yield Portion(structs.replace(request, **{shape.asked: tuple(some)}), goes_on)


def _of_users(request: m.AlterUserScramCredentialsRequest, most: int) -> Iterator[Portion]:
    """Yield it in portions; all changes of a user, which are made or not, are in one."""
    number_of: dict[str, int] = {}
    by_portion: list[tuple[list[Any], list[Any]]] = []
    named: tuple[Sequence[Any], Sequence[Any]] = request.deletions, request.upsertions
    for at, changes in enumerate(named):
        for change in changes:
            number = number_of.setdefault(change.user, len(number_of) // most)
            if number == len(by_portion):
                by_portion.append(([], []))
            by_portion[number][at].append(change)
    for deletions, upsertions in by_portion or [([], [])]:
        some = m.AlterUserScramCredentialsRequest(tuple(deletions), tuple(upsertions))
        yield Portion(some, goes_on=False)


def _size(thing: Any) -> int:
    return 1 + len(getattr(thing, "partitions", ())) + len(getattr(thing, "changes", ()))


def _pieces(thing: Any, most: int) -> Iterator[tuple[Any, bool]]:
    """Yield a thing, in pieces if it has many partitions, each with whether one came before."""
    partitions = getattr(thing, "partitions", ())
    if len(partitions) < most:
        yield thing, False
        return
    for at in range(0, len(partitions), most - 1):
        yield structs.replace(thing, partitions=partitions[at : at + most - 1]), at > 0


def whole(request: m.Request, answers: Iterable[tuple[Portion, Any]]) -> m.Response:
    """Return the answer to *request*, of those to its portions in their order.

    An answer that is a number is an error, and the first one is the answer to all.
    """
    shape = _SHAPES[type(request)]
    merged: list[Any] = []
    answer: Any = None
    for portion, answer in answers:
        if isinstance(answer, int):
            return error_response(request, answer)
        if answer.error != ErrorCode.NONE:
            break
        parts: Sequence[Any] = getattr(answer, shape.answered)
        if portion.goes_on:
            last = merged.pop()
            partitions = (*last.partitions, *parts[0].partitions)
            merged.append(structs.replace(last, partitions=partitions))
            parts = parts[1:]
        merged += parts
    else:
        answer = structs.replace(answer, **{shape.answered: tuple(merged)})
    found: m.Response = answer
    return found
