"""A coordinator's answers to the tables, in memory."""

from collections.abc import Collection, Iterable, Mapping

from client.exceptions import CommitRefused, FatalError
from client.offsets import OffsetAndMetadata
from client.operators import OffsetChanges, PositionTooOld
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribedGroup,
    DescribedMember,
    DescribedTopic,
    ListedGroup,
    OffsetChange,
    OffsetColumns,
    ScannedOffset,
)
from protocol.partition import TopicPartition
from tests.fakes.scan_pages import page_of

CLUSTER = "c1"


class FakeScan:
    """All offsets on one page."""

    def __init__(self, position: int, offsets: list[ScannedOffset]) -> None:
        self.position = -1
        self._found = position, offsets

    def page(self) -> OffsetColumns | None:
        """Return the page, once."""
        position, offsets = self._found
        self._found = position, []
        self.position = position if self.position < 0 else self.position
        return page_of(offsets) if offsets else None


class FakeLog:
    """The changes of some offsets partitions, and what they lead to."""

    cluster_id = CLUSTER

    def __init__(self, partitions: int = 2) -> None:
        self.logs: dict[int, list[OffsetChange]] = {n: [] for n in range(partitions)}
        self.compacted_below = dict.fromkeys(self.logs, 0)
        self.per_answer = 2
        self.asked: list[int] = []

    def add(
        self, number: int, kind: str, group: str, topic: str = "", partition: int = -1
    ) -> OffsetChange:
        """Add a change; the offset is its position."""
        position = len(self.logs[number])
        offset = position if kind == "committed" else -1
        change = OffsetChange(
            position, kind, group, topic, partition, offset, -1, "", 1_000 * position
        )
        self.logs[number].append(change)
        return change

    def state(self, number: int) -> dict[tuple[str, str, int], int]:
        """Return what is committed."""
        found: dict[tuple[str, str, int], int] = {}
        for change in self.logs[number]:
            if change.kind == "committed":
                found[change.group_id, change.topic, change.partition] = change.offset
            elif change.kind == "removed":
                found.pop((change.group_id, change.topic, change.partition), None)
            else:
                found = {key: at for key, at in found.items() if key[0] != change.group_id}
        return found

    def offsets_log_ends(self) -> dict[int, int]:
        """Return the ends."""
        return {number: len(changes) for number, changes in self.logs.items()}

    def offsets_partitions(self) -> list[int]:
        """Return the partitions."""
        return list(self.logs)

    def scan_offset_columns(
        self,
        number: int,
        group_ids: Collection[str] | None = None,
        topics: Collection[str] | None = None,
    ) -> FakeScan:
        """Return what is committed now."""
        self.asked.append(number)
        offsets = [
            ScannedOffset(*key, offset, -1, "", 1_000 * offset, -1)
            for key, offset in sorted(self.state(number).items())
            if (group_ids is None or key[0] in group_ids) and (topics is None or key[1] in topics)
        ]
        return FakeScan(len(self.logs[number]), offsets)

    def offset_changes(self, number: int, position: int) -> OffsetChanges:
        """Return some changes."""
        log = self.logs[number]
        if not self.compacted_below[number] <= position <= len(log):
            raise PositionTooOld("scan anew")
        found = tuple(log[position : position + self.per_answer])
        return OffsetChanges(found, position + len(found), len(log))


class FakeGroups:
    """Groups with offsets and members, for bulk writes."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.members: dict[str, list[str]] = {}
        self.topics: dict[str, int] = {}
        self.commits: list[str] = []
        self.refuses: dict[TopicPartition, int] = {}
        self.fails: dict[str, Exception] = {}
        self.coming_back = 0

    def list_groups(self) -> list[ListedGroup]:
        """Return all groups."""
        return [
            ListedGroup(group, "consumer", self.state(group), "classic") for group in self.offsets
        ]

    def state(self, group: str) -> str:
        """Return the state of a group."""
        return "Stable" if self.members.get(group) else "Empty"

    def describe_topics(self, topics: Iterable[str]) -> list[DescribedTopic]:
        """Return those that are registered, and error 3 for others."""
        return [
            DescribedTopic(
                topic, 0 if topic in self.topics else 3, self.topics.get(topic, -1), (), ()
            )
            for topic in topics
        ]

    def describe_groups(self, groups: Iterable[str]) -> list[DescribedGroup]:
        """Return the members."""
        return [
            DescribedGroup(
                0,
                None,
                group,
                self.state(group),
                "consumer",
                "range",
                1,
                tuple(
                    DescribedMember(member, None, "c", "h", b"", b"")
                    for member in self.members.get(group, ())
                ),
            )
            for group in groups
        ]

    def remove_members(self, group: str, member_ids: Iterable[str], reason: str) -> dict[str, int]:
        """Remove them; some come back at once."""
        assert reason
        left = [one for one in self.members[group] if one not in set(member_ids)]
        self.members[group] = left
        if self.coming_back:
            self.coming_back -= 1
            self.members[group] = ["again"]
        return {}

    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is committed."""
        stored = self.offsets.get(group, {})
        return {
            tp: stored[tp] for tp in (stored if partitions is None else partitions) if tp in stored
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store what isn't refused."""
        if group in self.fails:
            raise self.fails[group]
        if self.members.get(group):
            raise FatalError("has members", code=ErrorCode.UNKNOWN_MEMBER_ID)
        self.commits.append(group)
        kept = {tp: value for tp, value in offsets.items() if tp not in self.refuses}
        self.offsets.setdefault(group, {}).update(kept)
        if len(kept) < len(offsets):
            raise CommitRefused({tp: self.refuses[tp] for tp in offsets if tp in self.refuses})

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[object, int]:
        """Forget some."""
        for tp in partitions:
            del self.offsets[group][tp]
        return {}
