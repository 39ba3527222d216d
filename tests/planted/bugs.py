"""The bugs, how each is planted, and the tests that notice it.

A bug is planted in the running process, over the names of the product, which knows nothing of it:
by `plugin` in a run of pytest of its own, or by a test's monkeypatch. docs/reliability.md shows the
table.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest

from client.zookeeper import registrations
from client.zookeeper.membership import Membership as OldGroupMembership
from coordinator.group import commits, membership
from coordinator.group.core import Caller, Core, Decision, Now
from coordinator.group.group import Group
from coordinator.group.maintenance import Sweeper
from coordinator.group.records import GroupGeneration, Record
from coordinator.group.shard import GroupShard
from coordinator.log import compaction, recovery
from coordinator.log.compaction import Live, LiveSearch
from coordinator.log.errors import LogFailed
from coordinator.log.journal import Journal
from coordinator.log.state_files import META_NAME, write_meta
from coordinator.log.swap import Swap
from coordinator.runtime import timekeeper
from coordinator.runtime.calls import Call
from coordinator.runtime.shard import ReplyGate, ShardRunner
from coordinator.server import gatekeeper
from coordinator.server.authorization import Verdict
from coordinator.server.gatekeeper import Gate
from protocol.errors import ErrorCode
from protocol.messages import OffsetCommitRequest
from tests.fakes.disk import DiskFile
from tests.sim.nemesis import Unheard

Plant = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    """One bug.

    Attributes:
        what: What is wrong, in words.
        plant: Puts it into the product.
        file: Where the test is that must notice it.
        test: The name of that test.
    """

    what: str
    plant: Plant
    file: str
    test: str


# --- Acknowledging, and reading -------------------------------------------------------------


def _acknowledge_before_fsync(patch: pytest.MonkeyPatch) -> None:
    begin = ReplyGate.__init__

    def hasty(gate: ReplyGate, released: Callable[[Any], None]) -> None:
        begin(gate, released)
        gate.park_last = gate._release

    patch.setattr(ReplyGate, "__init__", hasty)


def _skip_generation_record(patch: pytest.MonkeyPatch) -> None:
    emit = Decision.emit

    def forgetful(decision: Decision, record: Record) -> None:
        if isinstance(record, GroupGeneration):
            decision.core.replay(record)
        else:
            emit(decision, record)

    patch.setattr(Decision, "emit", forgetful)


def _skip_generation_check(patch: pytest.MonkeyPatch) -> None:
    committer = commits.committer

    def lenient(core: Core, group: Group | None, share: Any, request: OffsetCommitRequest) -> Any:
        member, error = committer(core, group, share, request)
        if group is not None and error == ErrorCode.ILLEGAL_GENERATION:
            return group.members[request.member_id], 0
        return member, error

    patch.setattr(commits, "committer", lenient)


def _read_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    def tell(
        runner: ShardRunner[Any],
        _group: str | None,
        token: Any,
        seen: Any,
        _now: Any,
        error: int | None = None,
    ) -> None:
        token.send(token.prepare(seen, runner._leader_epoch, error))

    patch.setattr(ShardRunner, "tell", tell)


def _never_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DiskFile, "sync", lambda file: file._directory.step("sync"))


def _let_the_leader_assign_anything(patch: pytest.MonkeyPatch) -> None:
    take_over = membership.hand_out_assignment

    def lenient(group: Group, request: Any) -> str:
        problem = take_over(group, request)
        if " given to " not in problem:
            return problem
        given = {one.member_id: one.assignment for one in request.assignments}
        for member in group.members.values():
            member.assignment = given.get(member.member_id, b"")
        return ""

    patch.setattr(membership, "hand_out_assignment", lenient)


def _compact_away_what_came_last(patch: pytest.MonkeyPatch) -> None:
    result = LiveSearch.result

    def forgetful(search: LiveSearch) -> Live:
        live = result(search)
        return live._replace(offsets={p: found[:-1] for p, found in live.offsets.items()})

    patch.setattr(LiveSearch, "result", forgetful)


def _remove_the_sources_too_early(patch: pytest.MonkeyPatch) -> None:
    install = Swap.install

    def hasty(swap: Swap) -> None:
        swap.remove()
        install(swap)

    patch.setattr(Swap, "install", hasty)


def _let_the_fenced_go_on(patch: pytest.MonkeyPatch) -> None:
    find = Group.find

    def lenient(group: Group, member_id: str, instance_id: str | None) -> Any:
        member, error = find(group, member_id, instance_id)
        if error == ErrorCode.FENCED_INSTANCE_ID:
            return group.members[group.static[str(instance_id)]], 0
        return member, error

    patch.setattr(Group, "find", lenient)


def _forget_replacements_in_a_crash(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "rewrite_record", lambda *_args, **_options: None)


# --- Members --------------------------------------------------------------------------------


def _forget_the_join_of_who_leaves(patch: pytest.MonkeyPatch) -> None:
    remove = Decision.remove

    def forgetful(decision: Decision, group: Group, member: Any, *args: Any) -> None:
        if member.join is not None:
            decision.core.parked.pop(member.join.token, None)
            member.join = None
            group.parked_joins -= 1
        remove(decision, group, member, *args)

    patch.setattr(Decision, "remove", forgetful)


def _do_not_wait_for_ids_given_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "all_joined", lambda group: group.parked_joins == len(group.members))


def _let_any_member_commit_any_partition(patch: pytest.MonkeyPatch) -> None:
    examine = commits.examine

    def lenient(core: Core, group: Group | None, share: Any, _member: Any, named: Any) -> Any:
        return examine(core, group, share, None, named)

    patch.setattr(commits, "examine", lenient)


def _evict_for_the_own_stall(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timekeeper, "LATE_MS", 1_000_000_000)


# --- Reads and the gate ---------------------------------------------------------------------


def _show_what_is_cached(patch: pytest.MonkeyPatch) -> None:
    init = ShardRunner.__init__

    def hasty(runner: ShardRunner[Any], *args: Any, **options: Any) -> None:
        init(runner, *args, **options)
        runner.core.end_offset = lambda _group_id: 0

    patch.setattr(ShardRunner, "__init__", hasty)


def _let_reads_go_with_the_first_flush(patch: pytest.MonkeyPatch) -> None:
    advance = ReplyGate.advance

    def hasty(gate: ReplyGate, committed_offset: int) -> None:
        advance(gate, committed_offset)
        early, gate._early = sorted(gate._early), []
        for _, _, parked in early:
            gate._release(parked)

    patch.setattr(ReplyGate, "advance", hasty)


# --- The log --------------------------------------------------------------------------------


def _try_a_failed_sync_again(patch: pytest.MonkeyPatch) -> None:
    write = Journal.write_flush

    def stubborn(journal: Journal, flush: Any) -> None:
        try:
            write(journal, flush)
        except LogFailed:
            journal._failure = None
            write(journal, flush)

    patch.setattr(Journal, "write_flush", stubborn)


def _do_not_write_the_epoch(patch: pytest.MonkeyPatch) -> None:
    write = write_meta

    def lazy(directory: Any, meta: Any) -> None:
        if not directory.exists(META_NAME):
            write(directory, meta)

    patch.setattr(recovery, "write_meta", lazy)


def _keep_a_torn_tail(patch: pytest.MonkeyPatch) -> None:
    copy = recovery._copy_newest

    def careless(directory: Any, manifest: Any, newest: Any, events: Any) -> Any:
        whole = newest._replace(valid_bytes=len(newest.data)) if newest.torn else newest
        return copy(directory, manifest, whole, events)

    patch.setattr(recovery, "_copy_newest", careless)


def _drop_tombstones_at_once(patch: pytest.MonkeyPatch) -> None:
    init = LiveSearch.__init__

    def hasty(search: LiveSearch, _drop_before_ms: int, **options: Any) -> None:
        init(search, 2**62, **options)

    patch.setattr(LiveSearch, "__init__", hasty)


def _let_compaction_overlook_removals(patch: pytest.MonkeyPatch) -> None:
    checked_items = compaction.checked_items

    def blind(packed: bytes) -> Any:
        items, end_delta = checked_items(packed)
        return [item for item in items if item[5] is not None], end_delta

    patch.setattr(compaction, "checked_items", blind)


# --- Expiry and topics ----------------------------------------------------------------------


def _expire_in_the_load(patch: pytest.MonkeyPatch) -> None:
    finish_load = GroupShard.finish_load

    def by_the_local_clock(shard: GroupShard, now: Callable[[], Now]) -> Iterator[Any]:
        retention_ms = shard._core.config.offsets_retention_ms
        for group in shard._core.groups.values():
            for topic, stored in list(group.offsets.items()):
                for partition in list(stored):
                    value = group.offset_of(topic, partition)
                    assert value is not None
                    if now().wall_ms - value.commit_timestamp_ms >= retention_ms >= 0:
                        stored.remove(partition)
                        group.offset_count -= 1
                if not stored:
                    del group.offsets[topic]
        yield from finish_load(shard, now)

    patch.setattr(GroupShard, "finish_load", by_the_local_clock)


def _keep_what_was_committed_of_a_deleted_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sweeper, "_purge_keys", lambda *_args: None)


# --- Rights ---------------------------------------------------------------------------------


def _look_at_rights_after_the_effect(patch: pytest.MonkeyPatch) -> None:
    narrow = Gate._narrow

    def late(gate: Gate, call: Call, verdict: Verdict, caller: Caller, now: Now) -> None:
        gate._dispatcher.dispatch(Unheard(call.request), caller, now)
        narrow(gate, call, verdict, caller, now)

    patch.setattr(Gate, "_narrow", late)


def _let_everybody_speak_for_a_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gatekeeper, "_is_anothers", lambda *_args: False)


# --- Beside consumers of old -----------------------------------------------------------------


def _go_on_without_a_connection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OldGroupMembership, "suspended", lambda _machine, _now_ms: None)


def _forget_claims_without_an_answer(patch: pytest.MonkeyPatch) -> None:
    claim = OldGroupMembership._claim

    def forgetful(machine: OldGroupMembership, share: Any) -> Any:
        held = dict(machine._held)
        requests = claim(machine, share)
        machine._held = held
        return requests

    patch.setattr(OldGroupMembership, "_claim", forgetful)


def _release_what_the_user_still_reads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OldGroupMembership, "_may_release", lambda _machine, _now_ms: True)


def _sort_threads_by_number(patch: pytest.MonkeyPatch) -> None:
    def sorted_so(thread: str) -> tuple[str, int]:
        name, _, number = thread.rpartition("-")
        return name, int(number)

    patch.setattr(registrations, "_as_java_sorts", sorted_so)


BUGS: Final[dict[str, Bug]] = {
    "acknowledge_before_fsync": Bug(
        "an answer leaves before the log is synced",
        _acknowledge_before_fsync,
        "tests/server/test_storage.py",
        "test_nothing_is_acknowledged_before_it_is_on_disk",
    ),
    "read_before_durable": Bug(
        "a read shows what is in memory, without asking whether it is on disk",
        _read_what_is_not_durable,
        "tests/server/test_storage.py",
        "test_nothing_is_acknowledged_before_it_is_on_disk",
    ),
    "cache_before_durable": Bug(
        "a group forgets where its last entry ends, so its cache is shown too early",
        _show_what_is_cached,
        "tests/server/test_storage.py",
        "test_that_a_group_is_gone_is_told_when_that_is_on_disk",
    ),
    "gate_early_for_reads": Bug(
        "any flush releases every read that waits",
        _let_reads_go_with_the_first_flush,
        "tests/runtime/test_gate.py",
        "test_answers_wait_for_their_offset",
    ),
    "never_sync": Bug(
        "nothing is ever synced",
        _never_sync,
        "tests/log/test_crash_points.py",
        "test_a_crash_at_every_operation_keeps_what_was_acknowledged",
    ),
    "fsync_again": Bug(
        "a failed fsync is tried again",
        _try_a_failed_sync_again,
        "tests/log/test_crash_points.py",
        "test_a_failure_at_every_operation_ends_the_log_and_loses_nothing",
    ),
    "epoch_not_durable": Bug(
        "the leader epoch of this run counts before it is on disk",
        _do_not_write_the_epoch,
        "tests/log/test_crash_points.py",
        "test_the_leader_epoch_is_never_used_twice",
    ),
    "torn_tail": Bug(
        "a torn tail is not cut off",
        _keep_a_torn_tail,
        "tests/log/test_recovery.py",
        "test_a_torn_tail_is_saved_aside_and_cut",
    ),
    "tombstone_early": Bug(
        "a compaction drops tombstones at once",
        _drop_tombstones_at_once,
        "tests/log/test_compaction.py",
        "test_tombstones_are_kept_while_young",
    ),
    "compaction_resurrects": Bug(
        "a compaction overlooks removals, and what was removed is back",
        _let_compaction_overlook_removals,
        "tests/log/test_compaction.py",
        "test_a_compacted_log_is_the_same_log",
    ),
    "compaction_loses": Bug(
        "a compaction leaves out the last entry of each partition",
        _compact_away_what_came_last,
        "tests/log/test_compaction.py",
        "test_a_compacted_log_is_the_same_log",
    ),
    "sources_early": Bug(
        "a compaction removes its sources before the new segments are in place",
        _remove_the_sources_too_early,
        "tests/log/test_swap.py",
        "test_power_lost_anywhere_leaves_the_old_log_or_the_new_one",
    ),
    "generation_not_persisted": Bug(
        "the generation is told and not written",
        _skip_generation_record,
        "tests/group/test_recovery.py",
        "test_a_generation_that_was_told_is_never_told_again",
    ),
    "generation_not_checked": Bug(
        "a commit of an old generation is accepted",
        _skip_generation_check,
        "tests/group/test_requests_by_state.py",
        "test_each_request_in_each_state_is_answered_by_the_table",
    ),
    "owner_not_checked": Bug(
        "a commit is fenced by its generation only, not by who owns the partition",
        _let_any_member_commit_any_partition,
        "tests/group/test_offsets.py",
        "test_ownership_is_that_of_this_generation",
    ),
    "bad_assignment": Bug(
        "the leader may give one partition to two members",
        _let_the_leader_assign_anything,
        "tests/group/test_sync.py",
        "test_a_leader_that_assigns_nonsense_is_removed_and_nothing_is_stored",
    ),
    "static_not_fenced": Bug(
        "who lost its instance id to another goes on with it",
        _let_the_fenced_go_on,
        "tests/group/test_static.py",
        "test_every_request_with_the_instance_id_must_come_from_its_holder",
    ),
    "replacement_forgotten": Bug(
        "a crash brings the replaced static member back",
        _forget_replacements_in_a_crash,
        "tests/group/test_static.py",
        "test_a_fenced_member_stays_fenced_over_a_crash",
    ),
    "leaver_join_forgotten": Bug(
        "the parked JoinGroup of a member that leaves is never answered",
        _forget_the_join_of_who_leaves,
        "tests/group/test_membership.py",
        "test_a_leaver_whose_join_is_parked_is_told_so",
    ),
    "pending_member_lost": Bug(
        "a rebalance doesn't wait for ids that were given out",
        _do_not_wait_for_ids_given_out,
        "tests/group/test_join.py",
        "test_an_id_that_was_given_out_holds_the_join_open",
    ),
    "stall_evicts": Bug(
        "the daemon's own stall ends the sessions of living members",
        _evict_for_the_own_stall,
        "tests/runtime/test_timers.py",
        "test_a_process_that_slept_evicts_nobody",
    ),
    "expiry_in_the_load": Bug(
        "a load drops what is too old by the local clock, whatever its group does",
        _expire_in_the_load,
        "tests/group/test_expiry.py",
        "test_a_group_that_had_members_keeps_all_for_some_time_after_the_last_one",
    ),
    "deleted_topic_kept": Bug(
        "what was committed of a deleted topic stays",
        _keep_what_was_committed_of_a_deleted_topic,
        "tests/group/test_topics.py",
        "test_a_deleted_topics_offsets_become_tombstones_in_every_group",
    ),
    "rights_after_the_effect": Bug(
        "what somebody may not is refused after it was done",
        _look_at_rights_after_the_effect,
        "tests/server/test_rights.py",
        "test_without_a_right_nothing_happens",
    ),
    "member_is_everybodys": Bug(
        "whoever names a member id, or an instance id, speaks for that member",
        _let_everybody_speak_for_a_member,
        "tests/server/test_rights.py",
        "test_an_instance_id_alone_does_not_take_over_a_member",
    ),
    "reads_cut_off": Bug(
        "a consumer beside old ones reads on when its session may have ended",
        _go_on_without_a_connection,
        "tests/zookeeper/test_simulation.py",
        "test_a_partition_has_one_owner_through_all_faults_and_each_has_one_in_the_end",
    ),
    "claims_forgotten": Bug(
        "what a consumer beside old ones has claimed without an answer stays with nobody",
        _forget_claims_without_an_answer,
        "tests/zookeeper/test_simulation.py",
        "test_a_partition_has_one_owner_through_all_faults_and_each_has_one_in_the_end",
    ),
    "released_in_use": Bug(
        "a consumer beside old ones gives away what its user still reads",
        _release_what_the_user_still_reads,
        "tests/zookeeper/test_simulation.py",
        "test_a_partition_has_one_owner_through_all_faults_and_each_has_one_in_the_end",
    ),
    "threads_by_number": Bug(
        "a consumer beside old ones sorts threads as nobody else does",
        _sort_threads_by_number,
        "tests/zookeeper/test_registrations.py",
        "test_the_formula_deals_out_ranges_by_the_names_of_threads",
    ),
}
