"""I6-I8, I12, I13: one owner, generations that only grow, fencing; and all checks together."""

import bisect
from collections import defaultdict
from typing import Any, Final

from protocol.consumer import decode_assignment
from protocol.errors import ErrorCode
from protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsResponse,
    DrainMemberRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.partition import TopicPartition
from tests.sim.history import Attempt, History
from tests.sim.registers import Violation, check_registers

_OK: Final = ErrorCode.NONE

Owners = dict[tuple[str, int], dict[str, bytes]]  # (group, generation) -> member -> bytes.


def check(history: History) -> list[Violation]:
    """Return every promise that *history* shows broken."""
    told = _Told(history)
    return [
        *(Violation("protocol", text) for text in history.garbage),
        *check_registers(history),
        *_check_generations(history, told),
        *_check_members(history, told),
        *_check_owners(history, told),
        *_check_fencing(history, told),
        *_check_instances(history),
        *_check_principals(history),
    ]


class _Told:
    """The highest generation that anybody had been told of, at any moment."""

    def __init__(self, history: History) -> None:
        self.deleted = {
            group_id
            for attempt in history.attempts
            if isinstance(attempt.request, DeleteGroupsRequest)
            for group_id in _maybe_deleted(attempt)
        }
        told: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for attempt in history.attempts:
            for group_id, generation in _generations_in(attempt):
                assert attempt.ended is not None
                told[group_id].append((attempt.ended, generation))
        self._told: dict[str, tuple[list[int], list[int]]] = {}
        for group_id, events in told.items():
            events.sort()
            highest: list[int] = []
            for _, generation in events:
                highest.append(max(generation, highest[-1] if highest else -1))
            self._told[group_id] = ([at for at, _ in events], highest)

    def before(self, group_id: str, moment: int) -> int:
        """Return the highest generation told before *moment*; -1 if none.

        A group that may have been deleted starts anew, so nothing is said of it.
        """
        if group_id not in self._told or group_id in self.deleted:
            return -1
        moments, highest = self._told[group_id]
        at = bisect.bisect_left(moments, moment) - 1
        return highest[at] if at >= 0 else -1


def _maybe_deleted(attempt: Attempt) -> list[str]:
    assert isinstance(attempt.request, DeleteGroupsRequest)
    if not isinstance(attempt.response, DeleteGroupsResponse):
        return list(attempt.request.group_ids)
    return [g.group_id for g in attempt.response.groups if g.error == _OK]


def _generations_in(attempt: Attempt) -> list[tuple[str, int]]:
    request, response = attempt.request, attempt.response
    if isinstance(request, JoinGroupRequest) and isinstance(response, JoinGroupResponse):
        return [(request.group_id, response.generation_id)] if response.error == _OK else []
    return [(group.group_id, group.generation_id) for group in _described(attempt)]


def _described(attempt: Attempt) -> list[DescribedGroup]:
    if not isinstance(attempt.response, DescribeGroupsResponse):
        return []
    return [group for group in attempt.response.groups if group.error == _OK]


class _Who:
    """Who is behind a member id: a static member is the same whatever its id."""

    def __init__(self, history: History) -> None:
        self._instances: dict[str, str] = {}
        for _, request, response in _joins(history):
            ids = [(response.member_id, request.group_instance_id)]
            for member_id, instance_id in ids + [
                (m.member_id, m.group_instance_id) for m in response.members
            ]:
                self._note(member_id, instance_id)
        for attempt in history.attempts:  # The answer that told the member itself may be lost.
            for group in _described(attempt):
                for member in group.members:
                    self._note(member.member_id, member.group_instance_id)

    def _note(self, member_id: str, instance_id: str | None) -> None:
        if instance_id is not None:
            self._instances[member_id] = f"instance {instance_id}"

    def is_it(self, member_id: str) -> str:
        """Return the instance of *member_id* if it has one, else the id itself."""
        return self._instances.get(member_id, member_id)


def _joins(history: History) -> list[tuple[Attempt, JoinGroupRequest, JoinGroupResponse]]:
    return [
        (attempt, attempt.request, attempt.response)
        for attempt in history.attempts
        if isinstance(attempt.request, JoinGroupRequest)
        and isinstance(attempt.response, JoinGroupResponse)
        and attempt.response.error == _OK
    ]


def _check_generations(history: History, told: _Told) -> list[Violation]:
    found = []
    for attempt in history.attempts:
        for group_id, generation in _generations_in(attempt):
            before = told.before(group_id, attempt.invoked)
            if generation < before:
                text = (
                    f"{group_id}: told {generation} at {attempt.ended}, and {before} before the "
                    f"request at {attempt.invoked}"
                )
                found.append(Violation("I7 generation went back", text))
    return found


def _check_members(history: History, told: _Told) -> list[Violation]:
    """A generation has one leader, one protocol, one set of members."""
    found = []
    drained = {
        (a.request.group_id, a.request.client_id)
        for a in history.attempts
        if isinstance(a.request, DrainMemberRequest)
    }
    who = _Who(history)
    # They are not shown, unless a crash has made the server forget that they were drained.
    hidden = {
        who.is_it(response.member_id)
        for attempt, request, response in _joins(history)
        if (request.group_id, attempt.client) in drained
    }
    facts: dict[tuple[str, int], tuple[str, str | None]] = {}
    shown: dict[tuple[str, int], frozenset[str]] = {}
    joined: dict[tuple[str, int], set[str]] = defaultdict(set)
    for attempt, request, response in _joins(history):
        if request.group_id in told.deleted:
            continue
        which = (request.group_id, response.generation_id)
        fact = (who.is_it(response.leader), response.protocol_name)
        if facts.setdefault(which, fact) != fact:
            text = f"{which}: {facts[which]} and, at {attempt.ended}, {fact}"
            found.append(Violation("I7 generation reused", text))
        joined[which] |= {who.is_it(response.member_id)} - hidden
        if response.members:
            members = frozenset(who.is_it(member.member_id) for member in response.members) - hidden
            if shown.setdefault(which, members) != members:
                text = f"{which}: {sorted(shown[which])} and then {sorted(members)}"
                found.append(Violation("I7 generation reused", text))
    for which, members in shown.items():
        strangers = joined[which] - members
        if strangers:
            text = f"{which}: {sorted(strangers)} are in it, but the leader was not shown them"
            found.append(Violation("I7 generation reused", text))
    return found


def _check_owners(history: History, told: _Told) -> list[Violation]:
    found = []
    who = _Who(history)
    assigned: Owners = defaultdict(dict)
    for attempt in history.attempts:
        for which, member_id, assignment in _assignments_in(attempt):
            if which[0] in told.deleted:
                continue
            known = assigned[which].setdefault(who.is_it(member_id), assignment)
            if known != assignment:
                text = f"{which}: {member_id} was given {known!r} and then {assignment!r}"
                found.append(Violation("I6 assignment changed", text))
    for which, members in assigned.items():
        owner: dict[TopicPartition, str] = {}
        for member_id, assignment in members.items():
            decoded = decode_assignment(assignment)
            for partition in decoded.partitions if decoded else ():
                if owner.setdefault(partition, member_id) != member_id:
                    text = f"{which}: {owner[partition]} and {member_id} own {partition}"
                    found.append(Violation("I6 two owners", text))
    return found


def _assignments_in(attempt: Attempt) -> list[tuple[tuple[str, int], str, bytes]]:
    request, response = attempt.request, attempt.response
    if isinstance(request, SyncGroupRequest) and isinstance(response, SyncGroupResponse):
        if response.error != _OK:
            return []
        which = (request.group_id, request.generation_id)
        return [(which, request.member_id, response.assignment)]
    return [
        ((group.group_id, group.generation_id), member.member_id, member.assignment)
        for group in _described(attempt)
        if group.state == "Stable"
        for member in group.members
    ]


def _check_fencing(history: History, told: _Told) -> list[Violation]:
    found = []
    for attempt in history.attempts:
        accepted = _accepted_generation(attempt)
        if accepted is None:
            continue
        group_id, generation = accepted
        before = told.before(group_id, attempt.invoked)
        if generation < before:
            name = type(attempt.request).__name__
            text = f"{group_id}: {name} of {generation} at {attempt.invoked}, after {before}"
            found.append(Violation("I8 late accept", text))
    return found


def _accepted_generation(attempt: Attempt) -> tuple[str, int] | None:
    """Return group and generation of a request that was accepted as one of that generation."""
    request, response = attempt.request, attempt.response
    match request, response:
        case OffsetCommitRequest(), OffsetCommitResponse(error=_OK.value):
            codes = [p.error for topic in response.topics for p in topic.partitions]
            if request.generation_id < 0 or _OK not in codes:
                return None
        case HeartbeatRequest(), HeartbeatResponse(error=_OK.value):
            pass
        case SyncGroupRequest(), SyncGroupResponse(error=_OK.value):
            pass
        case _:
            return None
    return request.group_id, request.generation_id


def _check_instances(history: History) -> list[Violation]:
    """I12: once a static member is back under a new id, nothing of the old one is accepted."""
    lives: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    instances: dict[str, tuple[str, str]] = {}
    for attempt, request, response in _joins(history):
        if request.group_instance_id is not None and response.member_id not in instances:
            assert attempt.ended is not None
            instance = request.group_id, request.group_instance_id
            instances[response.member_id] = instance
            lives[instance].append((attempt.invoked, attempt.ended, response.member_id))
    found = []
    for attempt in history.attempts:
        if _accepted_generation(attempt) is None:
            continue
        member_id = attempt.request.member_id  # type: ignore[attr-defined]  # those that are accepted have one
        known = lives.get(instances.get(member_id, ("", "")), [])
        told = next((ended for _, ended, other in known if other == member_id), 0)
        for asked, ended, other in known:
            # Asked for after the older id was told, so certainly the newer of the two.
            if other != member_id and asked > told and ended < attempt.invoked:
                name = type(attempt.request).__name__
                text = f"{name} of {member_id} at {attempt.invoked}, replaced by {other} at {ended}"
                found.append(Violation("I12 fenced id accepted", text))
    return found


def _check_principals(history: History) -> list[Violation]:
    """I13: where clients say who they are, a member is nobody's but who joined."""
    if not history.tells_principals:
        return []
    joined = {
        (request.group_id, response.member_id): attempt.client
        for attempt, request, response in _joins(history)
    }
    found = []
    for attempt in history.attempts:
        if _accepted_generation(attempt) is None:
            continue
        request: Any = attempt.request
        whose = joined.get((request.group_id, request.member_id), attempt.client)
        if whose != attempt.client:
            name = type(request).__name__
            text = f"{name} of {request.member_id}, a member of {whose}'s, by {attempt.client}"
            found.append(Violation("I13 another's member", text))
    return found
