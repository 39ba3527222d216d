"""What grows with what peers send, or with time: each has a bound, and says so."""

from pathlib import Path

import msgpack
import pytest

from coordinator.group.core import PARTITIONS_NAMED_MAX, GroupConfig
from coordinator.group.membership import PATTERNS_MAX
from coordinator.group.records import OffsetRemoved, Record
from coordinator.group.registry import EndReported, EndsRepeated
from coordinator.group.topics import PARTITIONS_MAX
from protocol.fields import REQUEST_PARTITIONS_MAX, TEXT_BYTES_MAX
from protocol.messages import LeavingMember, SyncGroupRequest
from protocol.partition import INT32_MAX, INT64_MAX
from tests.group.context import GROUP, Context, assignment
from tests.group.topics_context import TopicsContext
from tests.packed import entry_of, node_entry

BATCH_BYTES_MAX = GroupConfig().max_batch_bytes
NO_DELAY = GroupConfig(group_initial_rebalance_delay_ms=0)


def packed(record: Record) -> int:
    """Return the bytes of *record* in a batch."""
    return len(msgpack.packb((INT32_MAX, *entry_of(record))))


def test_the_largest_deletion_of_offsets_is_one_batch() -> None:
    """A larger one would be in memory, and never in the log."""
    largest = OffsetRemoved("g" * 255, "t" * 249, INT32_MAX)

    assert packed(largest) * REQUEST_PARTITIONS_MAX < BATCH_BYTES_MAX


def test_the_largest_report_of_end_offsets_is_one_batch() -> None:
    """As above."""
    largest = node_entry(EndReported("t" * 249, INT32_MAX, INT64_MAX, INT64_MAX))

    assert len(msgpack.packb((INT32_MAX, *largest))) * REQUEST_PARTITIONS_MAX < BATCH_BYTES_MAX


def test_the_largest_note_of_ends_that_stay_is_one_batch() -> None:
    """Of all partitions of the largest topic, each reported at another time."""
    partitions = tuple(range(PARTITIONS_MAX))
    largest = EndsRepeated("t" * 249, partitions, tuple(INT64_MAX - p for p in partitions))

    assert len(msgpack.packb((INT32_MAX, *node_entry(largest)))) < BATCH_BYTES_MAX // 4


def test_a_long_reason_is_cut() -> None:
    """It goes into answers, events and the memory of who left."""
    context = Context()
    _, leaver = context.stable_group(2)
    context.left(LeavingMember(leaver, None, "r" * 30_000))
    message = context.beaten(leaver, 1).message

    assert message is not None
    assert "left: rrr" in message
    assert message.endswith("...")
    assert len(message) < 1_200
    assert max(len(str(event.fields)) for event in context.events) < 2_000


def test_an_answer_with_many_protocols_can_be_read() -> None:
    """A text of an answer has a limit; here there are 600 kB of names."""
    context = Context()
    context.stable_group(1)
    protocols = {f"protocol-{n:050}": b"" for n in range(9_000)}
    response = context.joined(context.join(protocols=protocols))

    assert response.error == 23
    assert response.message is not None
    assert len(response.message) < TEXT_BYTES_MAX // 4


def test_an_answer_to_a_leader_with_long_topics_can_be_read() -> None:
    """The names in an assignment are the leader's own."""
    context = Context()
    leader, follower = context.completing_group(2)
    share = assignment("t" * 30_000 + "-0")
    response = context.synced(context.sync(leader, 1, {leader: share, follower: share}))

    assert response.error == 42
    assert response.message is not None
    assert len(response.message) < 2_000


def test_the_event_of_a_member_that_is_gone_names_some_partitions_and_counts_the_rest() -> None:
    """It may have owned 100,000."""
    context = Context()
    (member,) = context.completing_group(1)
    names = [f"t-{n}" for n in range(PARTITIONS_NAMED_MAX + 5)]
    context.sync(member, 1, {member: assignment(*names)})
    context.leave(member)

    (event,) = context.events_named("group.member_removed")
    assert event["partitions"] == [*names[:PARTITIONS_NAMED_MAX], "and 5 more"]


def test_the_purge_of_many_topics_is_one_event_for_each_group() -> None:
    """A request may delete thousands."""
    context = TopicsContext()
    names = [f"t{n:02}" for n in range(50)]
    context.register(dict.fromkeys(names, 1))
    for name in names:
        context.commit("", -1, f"{name}-0")
    context.delete_topics(*names)
    context.advance(0)

    (event,) = context.events_named("offsets.removed")
    assert (event["count"], event["topics"]) == (50, names[:10])
    assert context.names() == []


def test_members_of_a_group_have_a_limited_number_of_patterns() -> None:
    """Each is matched with every topic when a generation begins."""
    context = Context(NO_DELAY)
    ids = [context.new_id() for _ in range(PATTERNS_MAX + 1)]
    for n, member in enumerate(ids[:-1]):
        context.join(member, pattern=f"t{n}.*")
    refused = context.joined(context.join(ids[-1], pattern="other.*"))

    assert (refused.error, refused.message) == (
        1005,
        f"the members have {PATTERNS_MAX} different patterns already",
    )

    joins = context.join(ids[-1], pattern="t0.*")

    assert context.is_parked(joins)

    context.leave(ids[1])

    assert context.is_parked(context.join(ids[0], pattern="other.*"))


def test_a_load_leaves_the_changes_of_topics_to_the_slices_after_it() -> None:
    """A thousand groups with patterns of their own would hold up the start for minutes."""
    context = TopicsContext(NO_DELAY)
    member = context.new_id()
    context.join(member, pattern="t.*")
    context.advance(0)
    context.sync(member, context.generation)
    context.register({"t1": 1})
    context.crash()

    assert context.state == "Stable"

    context.advance(0)

    assert context.state == "PreparingRebalance"


@pytest.mark.parametrize("count", [1, 100, 101, 5_000])
def test_a_slice_ends_after_a_pattern_that_many_topics_are_matched_with(count: int) -> None:
    """Groups with different patterns take a slice each, if there is much to match."""
    context = TopicsContext(NO_DELAY)
    groups = [f"g{n}" for n in range(10)]
    for group in groups:
        member = context.new_id(group=group)
        context.join(member, pattern=f"{group}.*", group=group)
        context.advance(0)
        context.send(SyncGroupRequest(group, 1, member, None, None, None, ()))
    context.register({f"t{n}": 1 for n in range(count)})
    slices = 0
    while context.shard.next_deadline_ms() == context.mono_ms:
        context.shard.expire(context.now)
        slices += 1

    assert slices == {1: 2, 100: 9, 101: 9, 5_000: 311}[count]


def test_an_id_that_was_given_out_leaves_no_timer_in_an_unloaded_shard() -> None:
    """Its answer may leave the gate afterwards."""
    context = Context()
    context.close_gate()
    context.join()
    context.advance(60_000)
    context.shard.unload(context.now)
    context.open_gate()

    assert context.shard.next_deadline_ms() is None


def test_patterns_are_counted_also_after_a_restart() -> None:
    """As what the members offer is."""
    context = Context(NO_DELAY)
    member = context.new_id()
    context.join(member, pattern="t.*")
    context.advance(0)
    context.sync(member, context.generation)
    context.crash()

    assert context.shard.groups[GROUP].patterns == {"t.*": 1}

    context.leave(member)

    assert context.shard.groups[GROUP].patterns == {}


def test_the_protocol_says_how_many_partitions_a_request_may_name() -> None:
    """One number for commits, deletions, reports and what operators alter."""
    text = (Path(__file__).parents[2] / "docs" / "wire-protocol.md").read_text(encoding="utf-8")

    assert text.count(f"ore than {REQUEST_PARTITIONS_MAX:,} partitions") == 4
