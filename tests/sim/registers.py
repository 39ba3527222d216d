"""I1-I5: each (group, topic, partition) is a register, and commits are durable.

Theory of operation
===================

A value is a whole commit: offset, leader epoch and metadata, which carries an id of its own. So
it is known which commit a fetch returned, and the check is that of Gibbons and Korach for
histories with unique values, without a search: a value's *zone* reaches from the first end to
the last begin among its write and its reads. If the first end comes before the last begin, the
register surely held the value in between ("forward"), and

- no two forward zones may overlap: two values at once, or a value that came back;
- no backward zone may lie within a forward one: the value had no moment of its own.

A commit that was lost by a crash before it was acknowledged and a commit in doubt that was never
seen have no zone. The client repeats a commit in doubt byte for byte, so a value may have been
written several times; it may then rightly come back, and only the plain rule holds: not
after an acknowledged commit that began when the last of its writes had ended.
"""

import bisect
import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocol.messages import (
    BareError,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tests.sim.history import Attempt, History, Key, Outcome, outcome_of


class Violation(NamedTuple):
    """A promise that was broken."""

    invariant: str
    text: str


class Value(NamedTuple):
    """What a register holds."""

    offset: int
    leader_epoch: int
    metadata: str


NOTHING: Final = Value(-1, -1, "")


class Write(NamedTuple):
    """One attempt to write one register."""

    value: Value
    invoked: int
    ended: float  # Infinity: it may still happen.
    outcome: Outcome


class Read(NamedTuple):
    """A register as an answer showed it."""

    value: Value
    invoked: int
    ended: int


@dataclass(slots=True)
class Register:
    """All that is known of one key."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)


class Registers:
    """The history, sorted by key."""

    def __init__(self, history: History) -> None:
        self.by_key: dict[Key, Register] = defaultdict(Register)
        for attempt in history.attempts:
            if isinstance(attempt.request, OffsetCommitRequest):
                self._take_commit(attempt, attempt.request)
        # A fetch of everything and a deletion speak of every key of the group.
        for attempt in history.attempts:
            if isinstance(attempt.request, OffsetFetchRequest):
                self._take_fetch(attempt)
            elif isinstance(attempt.request, DeleteGroupsRequest):
                self._take_deletion(attempt, attempt.request)

    def _take_commit(self, attempt: Attempt, request: OffsetCommitRequest) -> None:
        response = attempt.response
        codes: dict[tuple[str, int], int] = {}
        overall: int | None = None
        if isinstance(response, OffsetCommitResponse):
            overall = response.error
            codes = {
                (topic.topic, p.partition): p.error
                for topic in response.topics
                for p in topic.partitions
            }
        elif isinstance(response, BareError):
            overall = response.error
        ended = math.inf if attempt.ended is None else attempt.ended
        for named in request.topics:
            topic = named.topic
            for item in named.partitions:
                code = codes.get((topic, item.partition), overall)
                outcome = Outcome.INFO if code is None else outcome_of(code)
                value = Value(item.offset, item.leader_epoch, item.metadata or "")
                register = self.by_key[request.group_id, topic, item.partition]
                register.writes.append(Write(value, attempt.invoked, ended, outcome))
                if outcome is Outcome.OK and item.expected_offset is not None:
                    self._take_expectation(register, item.expected_offset, attempt)

    @staticmethod
    def _take_expectation(register: Register, expected: int, attempt: Attempt) -> None:
        """An accepted expectation is a read, if only one value has that offset."""
        assert attempt.ended is not None
        if expected == NOTHING.offset:
            register.reads.append(Read(NOTHING, attempt.invoked, attempt.ended))
            return
        known = {write.value for write in register.writes if write.value.offset == expected}
        if len(known) == 1:
            register.reads.append(Read(known.pop(), attempt.invoked, attempt.ended))

    def _take_fetch(self, attempt: Attempt) -> None:
        if not isinstance(attempt.response, OffsetFetchResponse):
            return
        assert isinstance(attempt.request, OffsetFetchRequest)
        assert attempt.ended is not None
        for asked, group in zip(attempt.request.groups, attempt.response.groups, strict=True):
            if group.error:
                continue
            shown = {
                (group.group_id, topic.topic, p.partition): Value(
                    p.offset, p.leader_epoch, p.metadata
                )
                for topic in group.topics
                for p in topic.partitions
                if not p.error
            }
            if asked.topics is None:
                for key in list(self.by_key):
                    if key[0] == group.group_id:
                        shown.setdefault(key, NOTHING)
            for key, value in shown.items():
                read = Read(value, attempt.invoked, attempt.ended)
                self.by_key[key].reads.append(read)

    def _take_deletion(self, attempt: Attempt, request: DeleteGroupsRequest) -> None:
        codes: dict[str, int] = {}
        if isinstance(attempt.response, DeleteGroupsResponse):
            codes = {deleted.group_id: deleted.error for deleted in attempt.response.groups}
        ended = math.inf if attempt.ended is None else attempt.ended
        for group_id in request.group_ids:
            code = codes.get(group_id)
            outcome = Outcome.INFO if code is None else outcome_of(code)
            for key, register in list(self.by_key.items()):
                if key[0] == group_id:
                    register.writes.append(Write(NOTHING, attempt.invoked, ended, outcome))


def check_registers(history: History) -> list[Violation]:
    """Return where a fetch returned what it could not, or a commit was lost."""
    found: list[Violation] = []
    registers = Registers(history)
    for key, register in registers.by_key.items():
        found += _check_register(key, register)
    return found + _check_claims(history, registers)


def _check_register(key: Key, register: Register) -> list[Violation]:
    found = []
    writes: dict[Value, list[Write]] = defaultdict(list)
    writes[NOTHING].append(Write(NOTHING, -1, -1, Outcome.OK))
    for write in register.writes:
        writes[write.value].append(write)
    reads: dict[Value, list[Read]] = defaultdict(list)
    for read in register.reads:
        reads[read.value].append(read)
    for value, seen in reads.items():
        found += _check_origin(key, writes.get(value, []), seen)
    forward: list[tuple[float, float, Value]] = []
    backward: list[tuple[float, float, Value]] = []
    for value, attempts in writes.items():
        possible = [write for write in attempts if write.outcome is not Outcome.FAIL]
        seen = reads.get(value, [])
        if len(possible) > 1:
            found += _check_overwritten(key, possible, seen, register)
        elif possible and (seen or possible[0].outcome is Outcome.OK):
            ends = [possible[0].ended, *(read.ended for read in seen)]
            begins = [possible[0].invoked, *(read.invoked for read in seen)]
            first_end, last_begin = min(ends), max(begins)
            if first_end < last_begin:
                forward.append((first_end, last_begin, value))
            else:
                backward.append((last_begin, first_end, value))
    return found + _check_zones(key, sorted(forward), backward)


def _check_origin(key: Key, attempts: list[Write], reads: list[Read]) -> list[Violation]:
    first = reads[0]
    if not attempts:
        return [Violation("I5 invention", f"{key}: {first} was never committed")]
    possible = [write for write in attempts if write.outcome is not Outcome.FAIL]
    if not possible:
        return [Violation("I4 aborted read", f"{key}: {first} was refused")]
    earliest = min(write.invoked for write in possible)
    return [
        Violation("I5 invention", f"{key}: {read} is older than its commit at {earliest}")
        for read in reads
        if read.ended < earliest
    ]


def _check_overwritten(
    key: Key, attempts: list[Write], reads: list[Read], register: Register
) -> list[Violation]:
    found = []
    for read in reads:
        before = [write.ended for write in attempts if write.invoked < read.ended]
        if not before:
            continue
        for other in register.writes:
            if (
                other.outcome is Outcome.OK
                and other.value != read.value
                and max(before) < other.invoked
                and other.ended < read.invoked
            ):
                text = f"{key}: {read} although {other} was acknowledged in between"
                found.append(Violation("I1/I3 lost or regressed", text))
                break
    return found


def _check_zones(
    key: Key,
    forward: list[tuple[float, float, Value]],
    backward: list[tuple[float, float, Value]],
) -> list[Violation]:
    found = []
    for one, other in itertools.pairwise(forward):
        if other[0] < one[1]:
            text = f"{key}: {one[2]} held over {one[:2]} and {other[2]} over {other[:2]}"
            found.append(Violation("I1/I2/I3 two values at once", text))
    starts = [zone[0] for zone in forward]
    for begin, end, value in backward:
        at = bisect.bisect_right(starts, begin) - 1
        if at >= 0 and forward[at][0] < begin and end < forward[at][1]:
            text = f"{key}: {value} was committed within {(begin, end)}, while {forward[at]} held"
            found.append(Violation("I1/I2 lost", text))
    return found


def _check_claims(history: History, registers: Registers) -> list[Violation]:
    """What the client library says must fit what was on the wire."""
    found = []
    outcomes_of: dict[tuple[Key, str], set[Outcome]] = defaultdict(set)
    were_seen: set[tuple[Key, str]] = set()
    for key, register in registers.by_key.items():
        for write in register.writes:
            outcomes_of[key, write.value.metadata].add(write.outcome)
        were_seen.update((key, read.value.metadata) for read in register.reads)
    for claim in history.claims:
        if claim.outcome is Outcome.INFO:
            continue
        which = (claim.key, claim.metadata)
        outcomes = outcomes_of[which]
        if claim.outcome is Outcome.OK and Outcome.OK not in outcomes:
            text = f"{claim} was never acknowledged on the wire"
            found.append(Violation("client: said done", text))
        if claim.outcome is Outcome.FAIL and (Outcome.OK in outcomes or which in were_seen):
            text = f"{claim} was stored"
            found.append(Violation("client: said not stored", text))
    return found
