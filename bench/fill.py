"""Many groups' offsets, stored once: what a coordinator holds after years.

    python -m bench.fill '{"host": "127.0.0.1", "port": 9310, "dialect": "coordinator",
      "groups": 10000, "partitions": 100}'

commits for every group through many connections, and prints one line of JSON. Every answer has to
be that of the first commit of the same partitions, which is decoded and judged.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final
from zlib import crc32

from bench.dialects import COMMIT, TOPIC, Dialect, Exchange, Load, first_offset
from bench.load import DIALECTS
from bench.processes import LoadError, run_plan
from bench.talk import Talk, connect, exchange
from protocol.group_ids import offsets_partition

_OFFSETS_PARTITIONS: Final = 50


@dataclass(frozen=True, slots=True)
class FillPlan:
    """What to store.

    Attributes:
        dialect: ``coordinator`` or ``kafka``.
        passes: How many times each group commits; each time other offsets.
        per_commit: Partitions of a commit; None: all.
        window: Commits in flight on a connection, each of another group.
        is_varied: Each group has other offsets than all others, so nothing compresses them well.
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
    is_varied: bool = False


def group_name(number: int) -> str:
    """Return the name of a group."""
    return f"filled-{number:06d}"


def offsets_of(partitions: int, turn: int) -> list[int]:
    """Return the offsets that each group commits in the given turn, from 1."""
    return [first_offset(partition) + turn for partition in range(partitions)]


def _varied(group: int, partition: int) -> int:
    """Return what a group's offset is more than another's; below the 2^32 between partitions."""
    return crc32(b"%d %d" % (group, partition)) >> 1


def _dialect(plan: FillPlan) -> Dialect:
    return DIALECTS[plan.dialect](Load(COMMIT, 1, plan.partitions, "fill"))


def fill(plan: FillPlan) -> dict[str, Any]:
    """Store all of it; return how many commits that took, and seconds.

    Raises:
        LoadError: The server refused a commit.
        OSError: No connection.
    """
    with ExitStack() as stack:
        talks = [
            stack.enter_context(closing(connect(plan.host, plan.port)))
            for _ in range(min(plan.connections, plan.groups))
        ]
        began = perf_counter()
        commits = 0
        for turn in range(1, plan.passes + 1):
            for part in _parts(offsets_of(plan.partitions, turn), plan.per_commit):
                _commit_all(plan, talks, part)
                commits += plan.groups
        return {"commits": commits, "seconds": perf_counter() - began}


def _parts(offsets: Sequence[int], size: int | None) -> Iterator[list[tuple[int, int]]]:
    """Return partitions and offsets, as many together as go into a commit."""
    each = list(enumerate(offsets))
    step = size or len(each)
    return (each[first : first + step] for first in range(0, len(each), step))


def _commit_all(plan: FillPlan, talks: Sequence[Talk], part: Sequence[tuple[int, int]]) -> None:
    """Let every group commit this."""
    dialect, step = _dialect(plan), len(talks) * plan.window
    expected = b""
    for first in range(0, plan.groups, step):
        numbers = range(first, min(first + step, plan.groups))
        frames = [_commit_of(plan, dialect, n, part).request for n in numbers]
        for answer in exchange(talks, frames):
            body = answer[dialect.answer_from :]
            if body != expected:
                errors = dialect.errors(COMMIT, answer)
                if expected or any(errors):
                    raise LoadError(f"a commit was refused, or not answered as others: {errors}")
                expected = body


def _commit_of(
    plan: FillPlan, dialect: Dialect, group: int, part: Sequence[tuple[int, int]]
) -> Exchange:
    if plan.is_varied:
        part = [(p, offset + _varied(group, p)) for p, offset in part]
    return dialect.commit(group_name(group), [(TOPIC, part)], 0)


def last_groups(groups: int) -> list[int]:
    """Return the last group of each partition of the offsets; Kafka's are chosen as ours."""
    found = {offsets_partition(group_name(n), _OFFSETS_PARTITIONS): n for n in range(groups)}
    return sorted(found.values())


def is_there(plan: FillPlan) -> bool:
    """Return whether every partition is loaded: a group of each has what was stored last.

    Raises:
        OSError: No connection.
    """
    dialect = _dialect(plan)
    groups = last_groups(plan.groups)
    # A slot each: several nodes, or journals, answer in any order.
    frames = [
        dialect.fetch(group_name(number), [(TOPIC, [(0, 0)])], slot).request
        for slot, number in enumerate(groups)
    ]
    with closing(connect(plan.host, plan.port)) as talk:
        answers = talk.ask(frames)
    (wanted,) = offsets_of(1, plan.passes)
    return all(
        dialect.offsets(answer) == [wanted + plan.is_varied * _varied(number, 0)]
        for number, answer in zip(groups, answers, strict=True)
    )


if __name__ == "__main__":
    run_plan("bench.fill", FillPlan, fill)
