"""Many groups' offsets, stored once: what a coordinator holds after years.

    python -m bench.fill '{"host": "127.0.0.1", "port": 9310, "dialect": "coordinator",
      "groups": 10000, "partitions": 100}'

commits for every group through many connections, and prints one line of JSON. Every answer has to
be that of the first commit of the same partitions, which is decoded and judged.
"""

import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Final, Protocol

from bench import dialect_kafka
from bench.dialects import (
    TOPIC,
    DialectError,
    Talk,
    first_offset,
    judge_response,
    response_in,
    stored_offsets,
)
from protocol.connection import ClientConnection
from protocol.group_ids import offsets_partition
from protocol.messages import (
    GroupFetch,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    Request,
    TopicCommit,
    TopicPartitions,
)

_CONNECT_S: Final = 120
_OFFSETS_PARTITIONS: Final = 50


@dataclass(frozen=True, slots=True)
class FillPlan:
    """What to store.

    Attributes:
        dialect: ``coordinator`` or ``kafka``.
        passes: How many times each group commits; each time other offsets.
        per_commit: Partitions of a commit; None: all.
        window: Commits in flight on a connection, each of another group.
    """

    host: str
    port: int
    dialect: str
    groups: int
    partitions: int
    passes: int = 1
    per_commit: int | None = None
    connections: int = 128
    window: int = 1


def group_name(number: int) -> str:
    """Return the name of a group."""
    return f"filled-{number:06d}"


def offsets_of(partitions: int, turn: int) -> list[int]:
    """Return the offsets that each group commits in the given turn, from 1."""
    return [first_offset(partition) + turn for partition in range(partitions)]


def _ours(request: Request) -> bytes:
    _, frame = ClientConnection().send(request)
    return frame


def _our_commit(number: int, offsets: Sequence[tuple[int, int]]) -> OffsetCommitRequest:
    commits = tuple(PartitionCommit(p, offset, -1, "", None) for p, offset in offsets)
    return OffsetCommitRequest(group_name(number), -1, "", None, (TopicCommit(TOPIC, commits),))


class _Store(Protocol):
    """How to commit and fetch for group number n, and to know the answer."""

    body_at: int

    def commit(self, number: int, offsets: Sequence[tuple[int, int]]) -> bytes:
        """Return the commit of these partitions and offsets."""

    def judge(self, answer: bytes) -> None:
        """Raise DialectError if a commit was refused."""

    def fetch(self, number: int) -> bytes:
        """Return the fetch of partition 0."""

    def fetched(self, answer: bytes) -> list[int]:
        """Return the offsets in a fetch's answer, nothing if it is an error."""


class _Coordinator:
    body_at = 16

    def commit(self, number: int, offsets: Sequence[tuple[int, int]]) -> bytes:
        return _ours(_our_commit(number, offsets))

    def judge(self, answer: bytes) -> None:
        # Which commit it answers doesn't matter: all look the same.
        judge_response(response_in(answer, to=_our_commit(0, [(0, 0)])))

    def fetch(self, number: int) -> bytes:
        return _ours(_our_fetch(number))

    def fetched(self, answer: bytes) -> list[int]:
        return stored_offsets(response_in(answer, to=_our_fetch(0)))


def _our_fetch(number: int) -> OffsetFetchRequest:
    wanted = TopicPartitions(TOPIC, (0,))
    return OffsetFetchRequest((GroupFetch(group_name(number), (wanted,)),), False)


class _Kafka:
    body_at = 8

    def commit(self, number: int, offsets: Sequence[tuple[int, int]]) -> bytes:
        return dialect_kafka.commit_request(group_name(number), [(TOPIC, offsets)], 0)[0]

    def judge(self, answer: bytes) -> None:
        errors = dialect_kafka.commit_errors(answer)
        if any(errors):
            raise DialectError(f"Kafka refused a commit: errors {sorted(set(errors))}")

    def fetch(self, number: int) -> bytes:
        return dialect_kafka.fetch_request(group_name(number), 1, 0)

    def fetched(self, answer: bytes) -> list[int]:
        errors, offsets = dialect_kafka.fetched(answer)
        return [] if any(errors) else offsets


_STORES: Final[Mapping[str, Callable[[], _Store]]] = {
    "coordinator": _Coordinator,
    "kafka": _Kafka,
}


@dataclass(frozen=True, slots=True)
class Filled:
    """What was stored."""

    commits: int
    seconds: float


def fill(plan: FillPlan) -> Filled:
    """Store all of it.

    Raises:
        DialectError: The server refused a commit.
        OSError: No connection.
    """
    with ExitStack() as stack:
        talks = [
            Talk(
                stack.enter_context(
                    socket.create_connection((plan.host, plan.port), timeout=_CONNECT_S)
                )
            )
            for _ in range(min(plan.connections, plan.groups))
        ]
        began = perf_counter()
        commits = sum(
            _commit_all(plan, talks, part)
            for turn in range(1, plan.passes + 1)
            for part in _parts(offsets_of(plan.partitions, turn), plan.per_commit)
        )
        return Filled(commits, perf_counter() - began)


def _parts(offsets: Sequence[int], size: int | None) -> Iterator[list[tuple[int, int]]]:
    """Return partitions and offsets, as many together as go into a commit."""
    each = list(enumerate(offsets))
    step = size or len(each)
    return (each[first : first + step] for first in range(0, len(each), step))


def _commit_all(plan: FillPlan, talks: Sequence[Talk], part: Sequence[tuple[int, int]]) -> int:
    """Let every group commit this, and return how many there are."""
    store, step = _STORES[plan.dialect](), len(talks) * plan.window
    expected = b""
    for first in range(0, plan.groups, step):
        numbers = range(first, min(first + step, plan.groups))
        asked = [(talk, numbers[n :: len(talks)]) for n, talk in enumerate(talks)]
        for talk, mine in asked:
            talk.send([store.commit(number, part) for number in mine])
        for talk, mine in asked:
            for answer in talk.read(len(mine)):
                if not expected:
                    store.judge(answer)
                    expected = answer[store.body_at :]
                elif answer[store.body_at :] != expected:
                    store.judge(answer)
                    raise DialectError("a commit was answered otherwise than the first one")
    return plan.groups


def last_groups(groups: int) -> list[int]:
    """Return the last group of each partition of the offsets; Kafka's are chosen as ours."""
    found = {offsets_partition(group_name(n), _OFFSETS_PARTITIONS): n for n in range(groups)}
    return sorted(found.values())


def is_there(plan: FillPlan) -> bool:
    """Return whether every partition is loaded: a group of each has what was stored last.

    Raises:
        OSError: No connection.
    """
    store = _STORES[plan.dialect]()
    requests = [store.fetch(number) for number in last_groups(plan.groups)]
    with socket.create_connection((plan.host, plan.port), timeout=_CONNECT_S) as sock:
        answers = Talk(sock).ask(requests)
    wanted = offsets_of(1, plan.passes)
    return all(store.fetched(answer) == wanted for answer in answers)


def main() -> int:
    """Store what the command line says."""
    try:
        filled = fill(FillPlan(**json.loads(sys.argv[1])))
    except (DialectError, OSError, ValueError) as exc:
        print(f"bench.fill: {exc}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(filled)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
