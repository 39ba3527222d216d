"""How long the sticky assignor takes, in a process of its own.

    python -m bench.assigning 1000 10000

prints one line of JSON: the seconds of a first assignment, and of those after one member left and
after one came. What comes out is checked: everything is given once, nobody has two more than
anybody else, and only what had to move has moved.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from client.assignors import MemberSubscription, StickyAssignor
from protocol.partition import TopicPartition

_TOPICS: Final = 10

Assigned = Mapping[str, Sequence[TopicPartition]]


class _Group:
    """The members, and what they were given last."""

    def __init__(self, members: int, partitions: int) -> None:
        self._assignor = StickyAssignor()
        per_topic = partitions // _TOPICS
        self._partitions = {f"topic-{t:02d}": tuple(range(per_topic)) for t in range(_TOPICS)}
        self.total = per_topic * _TOPICS
        self.names = [f"member-{n:05d}" for n in range(members)]
        self.given: dict[str, tuple[TopicPartition, ...]] = {}
        self.generation = 0
        self.wrong = 0

    def assign(self) -> float:
        """Assign anew; return the seconds that it took."""
        topics = tuple(self._partitions)
        members = [self._member(name, topics) for name in self.names]
        began = time.perf_counter()
        found = self._assignor.assign(members, self._partitions, {})
        seconds = time.perf_counter() - began
        self._check(found)
        self.given = {name: tuple(found[name]) for name in self.names}
        self.generation += 1
        return seconds

    def _member(self, name: str, topics: tuple[str, ...]) -> MemberSubscription:
        owned = self.given.get(name, ())
        generation = self.generation if owned else -1
        data = self._assignor.user_data(topics, owned, generation)
        return MemberSubscription(name, None, topics, owned, generation, None, data)

    def _check(self, found: Assigned) -> None:
        everything = [partition for partitions in found.values() for partition in partitions]
        sizes = [len(found[name]) for name in self.names]
        before = {p: name for name, partitions in self.given.items() for p in partitions}
        after = {p: name for name, partitions in found.items() for p in partitions}
        moved = sum(1 for p, name in before.items() if name in found and after.get(p) != name)
        # A member that came needs its share, and that is all that may move between the others.
        least = self.total // len(self.names) if self.given.keys() < set(self.names) else 0
        right = (
            len(everything) == len(set(everything)) == self.total
            and max(sizes) - min(sizes) <= 1
            and moved <= least
        )
        self.wrong += not right


def main() -> int:
    """Measure members and partitions of the command line."""
    members, partitions = int(sys.argv[1]), int(sys.argv[2])
    group = _Group(members, partitions)
    first_s = group.assign()
    group.names.remove(group.names[members // 2])
    left_s = group.assign()
    group.names.append("member-that-came")
    came_s = group.assign()
    sample = {
        "members": members,
        "partitions": group.total,
        "first_s": first_s,
        "left_s": left_s,
        "came_s": came_s,
        "slowest_s": max(first_s, left_s, came_s),
        "wrong": group.wrong,
    }
    print(json.dumps(sample))
    return 0


if __name__ == "__main__":
    sys.exit(main())
