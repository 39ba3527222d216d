"""The checker must catch what it is there for, and nothing else."""

from collections.abc import Callable
from typing import Final

import pytest

from protocol import consumer
from protocol.messages import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupFetch,
    GroupOffsets,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionOffset,
    PartitionResult,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicCommit,
    TopicOffsets,
    TopicPartitions,
    TopicResult,
)
from protocol.partition import TopicPartition
from tests.sim.checker import check
from tests.sim.history import Attempt, History, Outcome

GROUP: Final = "g"
TOPIC: Final = "t"


class Story:
    """A history told by hand."""

    def __init__(self) -> None:
        self.history = History()

    def begin_commit(self, number: int, generation: int = -1, member: str = "") -> Attempt:
        """Send a commit of the offset *number*."""
        item = PartitionCommit(0, number, -1, f"id-{number}", None)
        request = OffsetCommitRequest(
            GROUP, generation, member, None, (TopicCommit(TOPIC, (item,)),)
        )
        return self.history.invoke("client", 1, request)

    def end_commit(self, attempt: Attempt, code: int = 0) -> None:
        """Answer it."""
        results = (TopicResult(TOPIC, (PartitionResult(0, code),)),)
        self.history.answer(attempt, OffsetCommitResponse(0, results))

    def commit(self, number: int, code: int = 0, generation: int = -1) -> None:
        """Commit and be answered."""
        self.end_commit(self.begin_commit(number, generation), code)

    def begin_fetch(self) -> Attempt:
        """Ask for the offset."""
        wanted = GroupFetch(GROUP, (TopicPartitions(TOPIC, (0,)),))
        return self.history.invoke("client", 1, OffsetFetchRequest((wanted,), False))

    def end_fetch(self, attempt: Attempt, number: int, metadata: str | None = None) -> None:
        """Answer with *number*; -1 is none."""
        text = f"id-{number}" if metadata is None else metadata
        found = PartitionOffset(0, number, -1, "" if number < 0 else text, 0)
        group = GroupOffsets(GROUP, 0, (TopicOffsets(TOPIC, (found,)),))
        self.history.answer(attempt, OffsetFetchResponse((group,)))

    def fetch(self, number: int, metadata: str | None = None) -> None:
        """Ask and be answered."""
        self.end_fetch(self.begin_fetch(), number, metadata)

    def join(self, generation: int, member: str, shown: tuple[str, ...] = ()) -> None:
        """Join, and lead where *shown* is given."""
        protocols = (JoinProtocol("range", b""),)
        request = JoinGroupRequest(GROUP, 1, 1, member, None, "consumer", protocols, None)
        members = tuple(JoinGroupMember(m, None, b"") for m in shown)
        attempt = self.history.invoke(member, 1, request)
        response = JoinGroupResponse(
            0, generation, "consumer", "range", "leader", False, member, members
        )
        self.history.answer(attempt, response)

    def sync(self, generation: int, member: str, *partitions: int) -> None:
        """Get an assignment."""
        request = SyncGroupRequest(GROUP, generation, member, None, None, None, ())
        attempt = self.history.invoke(member, 1, request)
        response = SyncGroupResponse(0, "consumer", "range", assignment(*partitions))
        self.history.answer(attempt, response)

    def heartbeat(self, generation: int, member: str, code: int = 0) -> None:
        """Be heard."""
        request = HeartbeatRequest(GROUP, generation, member, None)
        attempt = self.history.invoke(member, 1, request)
        self.history.answer(attempt, HeartbeatResponse(code))

    def describe(self, generation: int, owners: dict[str, bytes]) -> None:
        """See the stable group from outside."""
        attempt = self.history.invoke("operator", 1, DescribeGroupsRequest((GROUP,)))
        members = tuple(DescribedMember(m, None, "", "", b"", a) for m, a in owners.items())
        group = DescribedGroup(0, None, GROUP, "Stable", "consumer", "range", generation, members)
        self.history.answer(attempt, DescribeGroupsResponse((group,)))


def assignment(*partitions: int) -> bytes:
    """Return the bytes of an assignment."""
    listed = tuple(TopicPartition(TOPIC, n) for n in partitions)
    return consumer.encode_assignment(consumer.Assignment(listed, b""))


def _lost_acknowledged(story: Story) -> None:
    story.commit(1)
    story.commit(2)
    story.fetch(1)


def _lost_the_only_one(story: Story) -> None:
    story.commit(1)
    story.fetch(-1)


def _regress(story: Story) -> None:
    first, second = story.begin_commit(1), story.begin_commit(2)
    story.end_commit(first)
    story.end_commit(second)
    story.fetch(2)
    story.fetch(1)
    story.fetch(2)


def _regress_to_nothing(story: Story) -> None:
    story.begin_commit(1)
    story.fetch(1)
    story.fetch(-1)


def _aborted_read(story: Story) -> None:
    story.commit(1, code=1002)
    story.fetch(1)


def _invention(story: Story) -> None:
    story.fetch(0)


def _mixed_up(story: Story) -> None:
    story.commit(1)
    story.fetch(1, metadata="id-2")


def _from_the_future(story: Story) -> None:
    story.fetch(1)
    story.commit(1)


def _repeated_and_overwritten(story: Story) -> None:
    story.history.lose(story.begin_commit(1))
    story.commit(1)
    story.commit(2)
    story.fetch(1)


def _two_owners(story: Story) -> None:
    story.sync(1, "a", 0, 1)
    story.sync(1, "b", 1)


def _assignment_changed(story: Story) -> None:
    story.sync(1, "a", 0, 1)
    story.describe(1, {"a": assignment(0)})


def _generation_back(story: Story) -> None:
    story.join(3, "a")
    story.join(2, "b")


def _generation_reused(story: Story) -> None:
    story.join(1, "a", shown=("a", "b"))
    story.join(1, "c", shown=("a", "c"))


def _generation_with_a_stranger(story: Story) -> None:
    story.join(1, "a", shown=("a", "b"))
    story.join(1, "c")


def _late_commit(story: Story) -> None:
    story.join(2, "a")
    story.commit(1, generation=1)


def _late_heartbeat(story: Story) -> None:
    story.join(2, "a")
    story.heartbeat(1, "a")


def _late_sync(story: Story) -> None:
    story.describe(2, {})
    story.sync(1, "a", 0)


def _anothers_member(story: Story) -> None:
    story.history.tells_principals = True
    story.join(1, "mine")
    story.end_commit(story.begin_commit(1, 1, "mine"))


def _client_said_done(story: Story) -> None:
    story.begin_commit(1)
    story.history.claim((GROUP, TOPIC, 0), "id-1", Outcome.OK)


def _client_said_not_stored(story: Story) -> None:
    story.begin_commit(1)
    story.history.claim((GROUP, TOPIC, 0), "id-1", Outcome.FAIL)
    story.fetch(1)


@pytest.mark.parametrize(
    ("tell", "invariant"),
    [
        (_lost_acknowledged, "I1"),
        (_lost_the_only_one, "I1"),
        (_regress, "I1/I2/I3"),
        (_regress_to_nothing, "I1/I2"),
        (_aborted_read, "I4"),
        (_invention, "I5"),
        (_mixed_up, "I5"),
        (_from_the_future, "I5"),
        (_repeated_and_overwritten, "I1/I3"),
        (_two_owners, "I6"),
        (_assignment_changed, "I6"),
        (_generation_back, "I7"),
        (_generation_reused, "I7"),
        (_generation_with_a_stranger, "I7"),
        (_late_commit, "I8"),
        (_late_heartbeat, "I8"),
        (_late_sync, "I8"),
        (_anothers_member, "I13"),
        (_client_said_done, "client"),
        (_client_said_not_stored, "client"),
    ],
)
def test_a_bad_history_is_caught(tell: Callable[[Story], None], invariant: str) -> None:
    """Each story breaks one promise; a checker that misses it is no checker."""
    story = Story()
    tell(story)
    found = check(story.history)
    assert [v for v in found if v.invariant.startswith(invariant)], found


def _concurrent_commits_in_any_order(story: Story) -> None:
    first, second = story.begin_commit(1), story.begin_commit(2)
    story.end_commit(first)
    story.end_commit(second)
    story.fetch(1)
    story.fetch(1)


def _in_doubt_and_seen(story: Story) -> None:
    story.commit(1)
    story.history.lose(story.begin_commit(2))
    story.fetch(2)


def _in_doubt_and_gone(story: Story) -> None:
    story.commit(1)
    story.history.lose(story.begin_commit(2))
    story.fetch(1)


def _in_doubt_and_late(story: Story) -> None:
    story.begin_commit(1)
    story.commit(2)
    story.fetch(2)
    story.fetch(1)


def _fetch_during_commit(story: Story) -> None:
    story.commit(1)
    fetch, commit = story.begin_fetch(), story.begin_commit(2)
    story.end_commit(commit)
    story.end_fetch(fetch, 1)
    story.fetch(2)


def _repeated_and_back(story: Story) -> None:
    """The first attempt, given up by the client, reaches the server after a newer commit."""
    story.begin_commit(1)
    story.commit(1)
    story.commit(2)
    story.fetch(2)
    story.fetch(1)


def _commit_before_the_news(story: Story) -> None:
    commit = story.begin_commit(1, generation=1)
    story.join(2, "a")
    story.end_commit(commit)
    story.fetch(1)


def _refused_fences(story: Story) -> None:
    story.join(2, "a", shown=("a",))
    story.heartbeat(1, "a", code=22)
    story.commit(1, code=1002, generation=1)
    story.sync(2, "a", 0, 1)
    story.describe(2, {"a": assignment(0, 1)})


@pytest.mark.parametrize(
    "tell",
    [
        _concurrent_commits_in_any_order,
        _in_doubt_and_seen,
        _in_doubt_and_gone,
        _in_doubt_and_late,
        _fetch_during_commit,
        _repeated_and_back,
        _commit_before_the_news,
        _refused_fences,
    ],
)
def test_a_good_history_passes(tell: Callable[[Story], None]) -> None:
    """Whatever is allowed must not be reported, or reports mean nothing."""
    story = Story()
    tell(story)
    assert check(story.history) == []
