"""The list of all groups: one snapshot for everybody, and what changes in it.

Theory of operation
===================

All groups are looked at in turns, at most once a second while somebody follows them, and never for
more than a thirtieth of a core. What the core tells of a group meanwhile makes that group one to be
looked at again soon (`heard`); a look at few groups is done at once.

A row is news if somebody would see a difference. A group that is behind and stands still is behind
by a second more each second, which alone is none until it adds up. A snapshot without news
has the version of the one before, so whoever has that needs no other.

What is shown may be ahead of the disk by a flush.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

import trio

from coordinator.group.core import Now
from coordinator.group.facts import GroupFacts, longest_behind
from coordinator.group.lag import Turn
from coordinator.http.routes import Pause, Refused
from coordinator.http.turns import in_turns, sorted_in_turns
from coordinator.runtime.node import Node
from coordinator.runtime.shard import Status

MAX_AGE_S: Final = 2.0
# How much longer the rest is than a look.
REST: Final = 30
# More groups that were heard of since the last look are no few.
HEARD_MAX: Final = 2_000
KEPT_S: Final = 60.0
KEPT_MAX: Final = 4
PAGES_MAX: Final = 8

_SECONDS_AT = GroupFacts._fields.index("lag_seconds")

Key = tuple[Any, ...]


def _by_lag(row: GroupFacts) -> Key:
    return -row.lag, row.group_id


def _by_lag_seconds(row: GroupFacts) -> Key:
    return longest_behind(row.lag_seconds, row.lag, row.group_id)


def _by_members(row: GroupFacts) -> Key:
    return -row.members, row.group_id


def _by_id(row: GroupFacts) -> Key:
    return (row.group_id,)


# What isn't known (-1) comes behind what is.
ORDERS: Final[Mapping[str, Callable[[GroupFacts], Key]]] = {
    "lag": _by_lag,
    "lag_seconds": _by_lag_seconds,
    "id": _by_id,
    "members": _by_members,
}


class Snapshot:
    """All groups at one moment. Nothing in it changes.

    Attributes:
        number: Of this snapshot alone.
        version: Another one if there was news in between.
        at: When it was taken.
        rows: By group id.
        pages: Encoded, for whoever asks for the same; kept by those who encode them.
        states: How many groups are in each state.
    """

    def __init__(self, number: int, version: int, at: Now, rows: Mapping[str, GroupFacts]) -> None:
        self.number = number
        self.version = version
        self.at = at
        self.rows = rows
        self.pages: dict[Key, Any] = {}
        self.encoding = trio.Lock()
        self.states: Mapping[str, int] = Counter(map(attrgetter("state"), rows.values()))
        self._orders: dict[str, list[GroupFacts]] = {}

    async def in_order(self, order: str, pause: Pause) -> list[GroupFacts]:
        """Return the rows in one of `ORDERS`."""
        known = self._orders.get(order)
        if known is None:
            rows = list(self.rows.values())
            known = self._orders[order] = await sorted_in_turns(rows, ORDERS[order], pause)
        return known


class Changes(NamedTuple):
    """What is news, and which groups are gone."""

    changed: list[GroupFacts]
    removed: list[str]


class Overview:
    """Looks at all groups of a node.

    Attributes:
        boot: Another one for each start of the daemon.
        tell: Is called with each `Changes` that has any.
        is_heard: Set when some group was heard of.
    """

    def __init__(
        self,
        node: Node,
        clock_s: Callable[[], float],
        pause: Pause,
        tell: Callable[[Changes], None] = lambda _changes: None,
    ) -> None:
        """Make it; *clock_s* measures what a look takes."""
        self.boot = f"{node.now().wall_ms:x}"
        self.tell = tell
        self.is_heard = trio.Event()
        self._node = node
        self._clock_s = clock_s
        self._pause = pause
        self._rows: dict[str, GroupFacts] = {}
        self._told_seconds: dict[str, float] = {}
        self._fresh: dict[str, GroupFacts] | None = None  # While all are looked at.
        self._heard: dict[str, None] = {}
        self._version = self._number = 0
        self._snapshot: Snapshot | None = None
        self._looked_ms = 0
        self._cost_s = 0.0
        self._one_at_a_time = trio.Lock()
        self._kept: dict[int, tuple[Snapshot, int]] = {}  # Each with until when.

    # --- snapshots ----------------------------------------------------------------------

    @property
    def rest_s(self) -> float:
        """How long to rest between two looks at all."""
        return max(1.0, REST * self._cost_s)

    @property
    def looked_ms(self) -> int | None:
        """The wall clock's time of the newest snapshot, None if there is none."""
        return None if self._snapshot is None else self._snapshot.at.wall_ms

    def add_cost(self, seconds: float) -> None:
        """Count what was done for the last look elsewhere."""
        self._cost_s += seconds

    async def current(self, max_age_s: float = MAX_AGE_S) -> Snapshot:
        """Return a snapshot that is at most so old, older only where a look takes long.

        Raises:
            Refused: Not all partitions are served.
        """
        self._check_loaded()
        async with self._one_at_a_time:
            age_s = (self._node.now().mono_ms - self._looked_ms) / 1000
            if self._snapshot is None or age_s > max(max_age_s, REST * self._cost_s):
                await self._look_at_all()
        if self._heard:
            await self.look_again()
        snapshot = self._snapshot
        assert snapshot is not None
        return snapshot

    def _is_loaded(self) -> bool:
        # Else groups would seem to be gone that are only not there at the moment.
        return all(shard.is_whole for shard in self._node.shards)

    def _check_loaded(self) -> None:
        if not self._is_loaded():
            raise Refused(503, "not all of the offsets log is loaded", retry_after_s=1)

    def keep(self, snapshot: Snapshot) -> None:
        """Keep *snapshot* for a minute: a page of it was shown that isn't the last."""
        self._kept.pop(snapshot.number, None)
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        until_ms = self._node.now().mono_ms + int(KEPT_S * 1000)
        self._kept[snapshot.number] = snapshot, until_ms

    def kept(self, number: int) -> Snapshot | None:
        """Return the snapshot of a page that was shown, None if it is kept no more."""
        now_ms = self._node.now().mono_ms
        self._kept = {n: kept for n, kept in self._kept.items() if kept[1] > now_ms}
        found = self._kept.get(number)
        return None if found is None else found[0]

    # --- looks --------------------------------------------------------------------------

    def heard(self, name: str, fields: Mapping[str, Any]) -> None:
        """Take note of an event of the core: its group is one to be looked at again."""
        group_id = fields.get("group")
        if group_id is not None and name.startswith(("group.", "offsets.")):
            self._heard[group_id] = None
            self.is_heard.set()
            if len(self._heard) > HEARD_MAX:
                del self._heard[next(iter(self._heard))]  # The next look at all finds it.

    def _take_heard(self) -> dict[str, None]:
        heard, self._heard = self._heard, {}
        if self.is_heard.is_set():  # Else somebody may wait for it.
            self.is_heard = trio.Event()
        return heard

    async def look_again(self) -> None:
        """Look at the groups that were heard of."""
        heard = self._take_heard()
        if self._snapshot is None:
            return
        turn = Turn()
        seen: dict[str, list[GroupFacts]] = {}
        for group_id in heard:
            core = self._node.shard_of(group_id).core
            looks = core.facts_of(group_id, self._node.now().mono_ms, turn)
            seen[group_id] = await in_turns(looks, self._pause)
        if not self._is_loaded():
            return
        rows = dict(self._rows)
        changes = Changes([], [])
        for group_id, found in seen.items():
            if rows.pop(group_id, None) is not None and not found:
                changes.removed.append(group_id)
            for row in found:
                self._note(row, changes)
                rows[group_id] = row
            if self._fresh is not None:
                self._fresh.pop(group_id, None)
                self._fresh.update((row.group_id, row) for row in found)
        self._publish(rows, changes)

    async def _look_at_all(self) -> None:
        now = self._node.now()
        began_s = self._clock_s()
        cost_s = 0.0
        self._take_heard()
        fresh = self._fresh = {}
        changes = Changes([], [])
        turn = Turn()
        try:
            for shard in self._node.shards:
                if shard.status is Status.FOLLOWING:
                    continue
                for row in shard.core.facts(now.mono_ms, turn):
                    if row is not None:
                        fresh[row.group_id] = row
                        self._note(row, changes)
                        continue
                    cost_s += self._clock_s() - began_s
                    await self._pause()
                    began_s = self._clock_s()
            self._check_loaded()
        finally:
            self._fresh = None
        changes.removed.extend(self._rows.keys() - fresh.keys())
        self._looked_ms = now.mono_ms
        self._publish(fresh, changes)
        self._cost_s = cost_s + self._clock_s() - began_s

    def _note(self, row: GroupFacts, changes: Changes) -> None:
        """Add *row* to *changes* if it is news."""
        group_id = row.group_id
        before = self._rows.get(group_id)
        told = self._told_seconds.get(group_id, 0.0)
        if (
            before is None
            or before[:_SECONDS_AT] != row[:_SECONDS_AT]
            or before.earlier_lag != row.earlier_lag
            or abs(row.lag_seconds - told) > max(1.0, 0.1 * told)
        ):
            self._told_seconds[group_id] = row.lag_seconds
            changes.changed.append(row)

    def _publish(self, rows: dict[str, GroupFacts], changes: Changes) -> None:
        for group_id in changes.removed:
            self._told_seconds.pop(group_id, None)
        self._rows = rows
        is_first = self._snapshot is None
        is_news = bool(changes.changed or changes.removed)
        self._version += is_news
        self._number += 1
        self._snapshot = Snapshot(self._number, self._version, self._node.now(), rows)
        if is_news and not is_first:  # Before the first look nobody had a list.
            self.tell(changes)
