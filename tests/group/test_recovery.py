"""What a crash leaves, in every state."""

from coordinator.group.records import CommittedOffset, GroupRetention, OffsetRemoved, from_entry
from tests.group.context import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Context,
    assignment,
    roundtrip,
    subscription,
)
from tests.packed import committed


def test_a_stable_group_goes_on_as_if_nothing_had_happened() -> None:
    """Its members need not even notice."""
    context = Context()
    members = context.stable_group(2)
    context.commit(members[0], 1, "flights-0", 5)
    before = context.describe()
    context.crash()

    assert before == context.describe()
    assert [context.beat(member, 1) for member in members] == [0, 0]
    assert context.offset().offset == 5
    assert (context.commit(members[0], 1), context.commit(members[1], 1)) == (0, 1002)
    assert assignment("flights-1") == context.synced(context.sync(members[1], 1)).assignment


def test_loaded_members_have_a_full_session() -> None:
    """However long the crash took."""
    context = Context()
    context.stable_group(2)
    context.advance(SESSION_MS - 1)
    context.crash()
    context.advance(SESSION_MS - 1)

    assert context.state == "Stable"

    context.advance(1)

    assert context.state == "Empty"


def test_a_generation_that_was_told_is_never_told_again() -> None:
    """Kafka hands out the same number twice here, and accepts commits of both."""
    context = Context()
    members = context.completing_group(2)
    context.crash()

    assert (context.state, context.generation) == ("Empty", 1)
    assert [context.beat(member, 1) for member in members] == [25, 25]

    again = context.completing_group(2)

    assert context.generation == 2
    assert again != members


def test_a_crash_in_the_sync_phase_keeps_the_old_members() -> None:
    """Those who heard of g+1 and those who didn't both only need to join again."""
    context = Context()
    members = context.stable_group(2)
    context.join(members[1], protocols={"range": subscription("trains")})
    context.join(members[0])

    assert (context.state, context.generation) == ("CompletingRebalance", 2)

    context.crash()

    assert (context.state, context.generation) == ("PreparingRebalance", 2)

    first, second = members

    assert [context.beat(first, g) for g in (1, 2, 0, 3)] == [27, 27, 22, 22]
    assert [context.commit(first, g) for g in (1, 2)] == [22, 27]
    assert [context.synced(context.sync(first, g)).error for g in (1, 2)] == [22, 27]

    tokens = [context.join(member) for member in (second, first)]

    assert [context.joined(token).generation_id for token in tokens] == [3, 3]
    assert context.beat(first, 1) == 22


def test_after_such_a_crash_the_join_timer_runs() -> None:
    """A member that died with us must not block the others."""
    context = Context()
    members = context.stable_group(2, session_ms=1_000_000)
    context.join(members[1], protocols={"range": subscription("trains")})
    context.join(members[0])
    context.crash()
    token = context.join(members[0], session_ms=1_000_000)
    context.advance(REBALANCE_MS - 1)

    assert context.is_parked(token)

    context.advance(1)

    assert context.joined(token).generation_id == 3
    assert [(members[1], "rebalance timeout")] == context.removals()


def test_a_crash_in_the_join_phase_goes_back_to_the_stable_generation() -> None:
    """Nobody was told of another one."""
    context = Context()
    members = context.stable_group(2)
    context.join(members[1], protocols={"range": subscription("trains")})
    context.crash()

    assert (context.state, context.generation) == ("Stable", 1)
    assert [context.beat(member, 1) for member in members] == [0, 0]


def test_a_group_that_was_emptied_stays_empty() -> None:
    """With the generation that its last members could not commit with."""
    context = Context()
    members = context.stable_group(2)
    context.leave(*members)
    context.crash()

    assert (
        context.state,
        context.generation,
        context.describe().protocol_type,
    ) == ("Empty", 2, "consumer")
    assert context.commit(members[0], 1) == 25


def test_loaded_members_offer_the_protocol_they_agreed_on() -> None:
    """That is all that the record knows."""
    context = Context()
    members = context.stable_group(2, protocols={"range": b"r", "sticky": b"s"})
    context.crash()

    assert context.joined(context.join(protocols={"sticky": b""})).error == 23
    assert context.joined(context.join(protocols={"range": b""})).error == 79
    assert [
        context.describe().protocol_name,
        context.describe().members[0].metadata,
    ] == ["range", b"r"]
    assert members == [member.member_id for member in context.describe().members]


def test_a_drain_is_forgotten_by_a_crash() -> None:
    """It is asked again until it is done."""
    context = Context()
    members = context.stable_group(2)
    context.drain("spark0")
    context.crash()

    assert context.state == "Stable"
    assert not context.drain("spark0").members[0].drained
    assert context.beat(members[1], 1) == 27


def test_unloading_answers_what_is_parked() -> None:
    """The clients must look for the new coordinator."""
    context = Context()
    members = context.completing_group(2)
    sync = context.sync(members[1], 1)
    for outcome in context.shard.unload(context.now):
        context.take(outcome)

    assert context.synced(sync).error == 16
    assert context.shard.next_deadline_ms() is None


def test_unloading_answers_parked_joins_too() -> None:
    """With the member's id, which it keeps."""
    context = Context()
    member = context.new_id()
    token = context.join(member)
    for outcome in context.shard.unload(context.now):
        context.take(outcome)

    assert (16, member) == (context.joined(token).error, context.joined(token).member_id)


def test_a_shard_that_rests_keeps_what_a_crash_would_leave() -> None:
    """Another node leads, and this one follows on with what it has; then it leads again."""
    context = Context()
    members = context.stable_group(2)
    assert context.commit(members[0], 1, "flights-0", 5) == 0
    parked = context.join(members[0])
    context.hand_over_and_back()

    assert parked not in context.answers
    assert (context.state, context.generation) == ("Stable", 1)
    assert context.offset().offset == 5
    assert [context.beat(member, 1) for member in members] == [0, 0]


def test_a_shard_that_rests_takes_what_another_node_decides() -> None:
    """It follows: the generation of the other node is the one that it leads on with."""
    context, other = Context(), Context()
    members = context.stable_group(1)
    other._start(context.records)
    for outcomes in context.shard.rest(lambda: context.now):
        for outcome in outcomes:
            context.take(outcome)
    before = len(other.records)
    token = other.join(members[0])
    other.advance(60_000)
    assert other.joined(token).generation_id == 2
    other.sync_all(members)
    for record in other.records[before:]:
        context.shard.replay(roundtrip(record))

    assert context.shard.hard_state() == other.shard.hard_state()


def test_a_clock_that_goes_back_does_not_take_records_with_it() -> None:
    """What is written later is not older: expiry goes by it."""
    context = Context()
    members = context.stable_group(1)
    context.commit(members[0], 1)
    newest_ms = context.wall_ms
    context.wall_ms -= 3_600_000
    context.crash()
    context.commit(members[0], 1)
    context.leave(members[0])
    stable = context.shard.hard_state()[GROUP].stable

    assert stable is not None
    assert stable.state_timestamp_ms == newest_ms
    assert [newest_ms] == [
        value.commit_timestamp_ms for _, _, value in context.shard.hard_state()[GROUP].offsets
    ]


def test_what_operators_set_and_what_was_removed_is_as_hard_as_the_rest() -> None:
    """Each kind of record has its place in the state."""
    value = CommittedOffset(5, -1, "", 1_000, -1)
    context = Context(
        records=[
            committed(GROUP, "t", 0, value),
            committed(GROUP, "t", 1, value),
            committed(GROUP, "u", 0, value),
            GroupRetention(GROUP, 60_000),
            OffsetRemoved(GROUP, "t", 0),
            OffsetRemoved(GROUP, "u", 0),
            OffsetRemoved(GROUP, "u", 0),
            OffsetRemoved(GROUP, "nothing", 0),
        ]
    )
    hard = context.shard.hard_state()[GROUP]

    assert (hard.offsets, hard.retention_ms) == ((("t", 1, value),), 60_000)
    assert context.shard.offset_count() == 1
    assert list(context.shard.groups[GROUP].offsets) == ["t"]

    again = Context(records=[*context.records, GroupRetention(GROUP, None)])

    assert again.shard.hard_state()[GROUP].retention_ms is None


def test_a_log_without_patterns_and_topic_versions_is_read() -> None:
    """Written by the code before them."""
    context = Context()
    members = context.stable_group(2)
    stable = context.shard.hard_state()[GROUP].stable
    assert stable is not None
    *fields, topics_version = stable[1:]
    assert topics_version == 0
    old_members = [list(member[:-1]) for member in stable.members]
    record = from_entry(2, 0, GROUP, (), [*fields[:-1], old_members])

    assert record == stable

    again = Context(records=[record])

    assert [again.beat(member, 1) for member in members] == [0, 0]


def test_what_is_known_of_a_group_waits_for_its_own_last_entry() -> None:
    """Another group's slow write is not its own, and a refusal changes nothing."""
    context = Context()
    context.commit("", -1, group="a")
    context.commit("", -1, group="b")

    assert [context.shard.end_offset(group) for group in "ab"] == [1, 2]

    assert context.beat("nobody", 1, "a") == 25
    assert context.commit("nobody", 1, group="a") == 25
    assert [context.shard.end_offset(group) for group in "ab"] == [1, 2]

    context.commit_raw("", -1, [("flights-0", 8, None, None), ("trains-0", 8, None, None)], "a")

    assert [context.shard.end_offset(group) for group in "ab"] == [4, 2]


def test_that_a_group_is_gone_waits_for_its_tombstone() -> None:
    """Told earlier, a crash could bring back what somebody saw missing."""
    context = Context()
    context.commit("", -1, group="a")
    context.commit("", -1, group="b")
    context.take(context.shard.delete_group("a", context.now)[0])

    assert context.shard.groups.keys() == {"b"}
    assert [context.shard.end_offset(group) for group in "ab"] == [3, 2]

    context.take(context.shard.delete_group("b", context.now)[0])

    assert min(context.shard.end_offset(group) for group in "ab") >= 3
    assert context.shard.end_offset("b") == 4


def test_a_group_that_begins_anew_waits_for_what_began_it() -> None:
    """That comes behind the tombstone, and other groups' tombstones no longer matter to it."""
    context = Context()
    context.commit("", -1, group="a")
    context.commit("", -1, group="b")
    context.take(context.shard.delete_group("a", context.now)[0])
    context.commit("", -1, group="a")
    context.take(context.shard.delete_group("b", context.now)[0])

    assert [context.shard.end_offset(group) for group in "ab"] == [4, 5]


def test_what_was_loaded_is_known_at_once() -> None:
    """All of the log is committed then."""
    context = Context()
    context.commit("", -1, group="a")
    context.commit("", -1, group="b")
    context.take(context.shard.delete_group("b", context.now)[0])
    context.crash()

    assert [context.shard.end_offset(group) for group in "ab"] == [0, 0]
