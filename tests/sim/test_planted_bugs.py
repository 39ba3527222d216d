"""Break the server on purpose: a simulation that doesn't notice proves nothing."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from coordinator.group import commits, membership
from coordinator.group.core import Core, Decision
from coordinator.group.group import Group
from coordinator.group.records import GroupGeneration, Record
from coordinator.log.compaction import Live, LiveSearch
from coordinator.log.swap import Swap
from coordinator.runtime import timekeeper
from coordinator.runtime.shard import ReplyGate, ShardRunner
from protocol.errors import ErrorCode
from protocol.messages import OffsetCommitRequest
from tests.fakes.disk import DiskFile
from tests.sim.simulation import OWN_FAULTS, run_seed
from tests.sim.stage import fenced_ones_speak, play

# Several times as many as each of the bugs below takes.
SEEDS_MAX: Final = 200

Plant = Callable[[pytest.MonkeyPatch], None]


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

    def lenient(core: Core, group: Group | None, request: OffsetCommitRequest) -> Any:
        member, error = committer(core, group, request)
        if group is not None and error == ErrorCode.ILLEGAL_GENERATION:
            return group.members[request.member_id], 0
        return member, error

    patch.setattr(commits, "committer", lenient)


def _read_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    def read(
        runner: ShardRunner[Any], _group: str | None, token: Any, look: Any, _now: Any
    ) -> None:
        refused = runner.refusal()
        if refused is None:
            token.send(token.prepare(look(), runner._leader_epoch))
        else:
            token.fail(refused, runner._leader_epoch)

    patch.setattr(ShardRunner, "read", read)


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


@pytest.mark.parametrize(
    ("plant", "invariants"),
    [
        (_acknowledge_before_fsync, {"I1", "I7"}),
        (_skip_generation_record, {"I7"}),
        (_skip_generation_check, {"I8"}),
        (_read_what_is_not_durable, {"I1", "I3", "I5", "I7"}),
        (_never_sync, {"start", "I1", "I7"}),
        (_let_the_leader_assign_anything, {"I6"}),
    ],
)
def test_the_simulation_notices(
    plant: Plant, invariants: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each planted bug breaks the promise that it should break, within a few seeds."""
    plant(monkeypatch)
    for seed in range(1, SEEDS_MAX + 1):
        broken = run_seed(seed).violations
        if any(v.invariant.startswith(tuple(invariants)) for v in broken):
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice")


@pytest.mark.parametrize("plant", [_let_the_fenced_go_on, _forget_replacements_in_a_crash])
def test_the_stage_notices(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fencing is one line in one place, and another line for the crash."""
    plant(monkeypatch)
    broken = play(1, fenced_ones_speak).violations
    assert any(v.invariant.startswith("I12") for v in broken)


@pytest.mark.parametrize(
    ("plant", "invariants"),
    [
        (_compact_away_what_came_last, {"I1", "I11"}),
        (_remove_the_sources_too_early, {"start"}),
    ],
)
def test_the_simulation_notices_a_bad_compaction(
    plant: Plant, invariants: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it loses, it may lose in the work or in a crash during the swap."""
    plant(monkeypatch)
    faults = ("_crash_in_compaction", "_compact", "_kill")
    for seed in range(1, SEEDS_MAX + 1):
        broken = run_seed(seed, only=faults).violations
        if any(v.invariant.startswith(tuple(invariants)) for v in broken):
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice")


def test_it_notices_a_stall_that_evicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule for late timers, a stall ends the sessions of members that are alive."""
    monkeypatch.setattr(timekeeper, "LATE_MS", 1_000_000_000)
    assert any(run_seed(seed, only=OWN_FAULTS).evicted for seed in range(1, 21))
