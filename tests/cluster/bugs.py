"""Mistakes that a protocol like this one invites, planted into the machines by tests."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from coordinator.cluster import entries, snapshots, znodes
from coordinator.cluster.effects import Confirmed, Deposed, Written
from coordinator.cluster.engine import (
    Append,
    Code,
    Install,
    Leader,
    ListLog,
    ReadLeader,
    Reply,
    Snapshot,
    Trim,
)
from coordinator.cluster.follower import Tail
from coordinator.cluster.journal import ReplicatedJournal, Role, Until
from coordinator.log import compaction

Plant = Callable[[pytest.MonkeyPatch], None]


def _no_check_of_the_entry_before(patch: pytest.MonkeyPatch) -> None:
    """What was queued before what is repeated leaves holes, or comes back when it was trimmed."""
    _leave_out(patch, at=1)


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    """A leader that was paused writes on."""
    _leave_out(patch, at=0)


def _leave_out(patch: pytest.MonkeyPatch, at: int, kind: type = Append) -> None:
    make = znodes._OPERATIONS[kind]

    def less(request: Any) -> Any:
        whole = make(request)
        assert isinstance(whole, znodes.Multi)
        return znodes.Multi(whole.changes[:at] + whole.changes[at + 1 :])

    patch.setitem(znodes._OPERATIONS, kind, less)


def _claim_a_living_session(patch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, as the fence holds; but nodes take journals from each other for ever."""
    claim = ReplicatedJournal._claim

    def hasty(machine: ReplicatedJournal, me: Any) -> Any:
        asking = claim(machine, me)
        request = next(asking)
        while True:
            reply = yield request
            if not isinstance(request, ReadLeader):
                reply = reply._replace(owner=-1) if reply.code is Code.OK else reply
            try:
                request = asking.send(reply)
            except StopIteration:
                return

    patch.setattr(ReplicatedJournal, "_claim", hasty)


def _take_any_own_record_for_a_renewal(patch: pytest.MonkeyPatch) -> None:
    """It names this process again: but another leader may have written in between."""
    adopt = ReplicatedJournal._adopt

    def lenient(machine: ReplicatedJournal, leader: Leader, version: int) -> bool:
        if machine._me is not None and leader.run == machine._me.run:
            machine._tries.add(leader.claim)
        return adopt(machine, leader, version)

    patch.setattr(ReplicatedJournal, "_adopt", lenient)


def _read_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    """A paused leader answers with what it knew before its pause."""
    end_round = ReplicatedJournal.end_round

    def hasty(machine: ReplicatedJournal) -> list[Any]:
        return [*end_round(machine), Confirmed(machine.number, machine._asked)]

    patch.setattr(ReplicatedJournal, "end_round", hasty)


def _confirm_by_what_was_sent_before(patch: pytest.MonkeyPatch) -> None:
    """What was sent before the read came may have been done before it, too."""
    is_confirmed = ReplicatedJournal._is_confirmed

    def hasty(machine: ReplicatedJournal, _number: int) -> None:
        is_confirmed(machine, machine._asked)

    patch.setattr(ReplicatedJournal, "_is_confirmed", hasty)


def _deposed_answers_0_without_looking(patch: pytest.MonkeyPatch) -> None:
    """The try that was fenced was not applied; an earlier one may have been, or not."""

    def find(machine: ReplicatedJournal) -> Any:
        if machine._units:
            unit = machine._units[0]
            machine._out.append(Written(machine.number, unit.ends, is_last=unit.is_last))
        yield from _forget(machine, {})

    patch.setattr(ReplicatedJournal, "_find_fate", find)


def _deposed_answers_16_without_looking(patch: pytest.MonkeyPatch) -> None:
    """An earlier try may have been applied."""

    def find(machine: ReplicatedJournal) -> Any:
        yield from _forget(machine, {})

    patch.setattr(ReplicatedJournal, "_find_fate", find)


def _forget(machine: ReplicatedJournal, unknown: dict[int, int]) -> Any:
    machine._out.append(Deposed(machine.number, unknown))
    machine._forget_term()
    machine._is_loaded = machine.is_following = False
    machine._look_again = True
    yield from ()


def _trimmed_is_taken_for_absent(patch: pytest.MonkeyPatch) -> None:
    """Deposed, it doesn't find its entry: a successor may have trimmed it."""
    find = ReplicatedJournal._find_fate

    def hasty(machine: ReplicatedJournal) -> Any:
        asking = find(machine)
        reply = None
        while True:
            try:
                request = next(asking) if reply is None else asking.send(reply)
            except StopIteration:
                return
            reply = yield request
            if isinstance(reply.value, Snapshot):
                reply = reply._replace(value=replace(reply.value, index=0))

    patch.setattr(ReplicatedJournal, "_find_fate", hasty)


def _lost_is_taken_for_not_applied(patch: pytest.MonkeyPatch) -> None:
    """After a lost answer it writes other bytes: what it was is then there twice."""
    send = ReplicatedJournal._send_unit

    def hasty(machine: ReplicatedJournal, unit: Any) -> None:
        if machine._append_request is None and not unit.sent:
            unit.entries = ()
        send(machine, unit)

    patch.setattr(ReplicatedJournal, "_send_unit", hasty)


def _exists_is_taken_for_anothers(patch: pytest.MonkeyPatch) -> None:
    """It appends behind what is there: an earlier try of its own."""
    appended = ReplicatedJournal._appended

    def hasty(machine: ReplicatedJournal, unit: Any, entries_: int, reply: Reply) -> None:
        if reply.code is Code.EXISTS:
            machine._append_request = None
            machine._tail.applied += 1
            unit.entries, unit.sent = (), 0
            machine._go_on()
        else:
            appended(machine, unit, entries_, reply)

    patch.setattr(ReplicatedJournal, "_appended", hasty)


def _trim_the_newest(patch: pytest.MonkeyPatch) -> None:
    """Then nothing is left to append behind."""

    def forget(tail: Tail, snapshot_index: int, _keep_bytes: int) -> int:
        return min(snapshot_index, tail.applied) + 1

    patch.setattr(Tail, "forget", forget)
    patch.setattr(ReplicatedJournal, "_trim", _trim_up_to_snapshot)


def _trim_up_to_snapshot(machine: ReplicatedJournal) -> Any:
    indexes = (yield ListLog(machine.number, 0)).value
    for index in indexes or ():
        if index <= machine.snapshot.index:
            yield Trim(machine.number, machine._fence, index, index)


def _lead_without_reading_to_the_end(patch: pytest.MonkeyPatch) -> None:
    """What the former leader wrote last is missing."""
    take_over = ReplicatedJournal._take_over

    def hasty(machine: ReplicatedJournal, term: Leader, version: int) -> None:
        take_over(machine, term, version)
        if machine._role is Role.TAKING_OVER and not machine._untaken:
            machine._reader = None
            machine._begin_to_lead()

    patch.setattr(ReplicatedJournal, "_take_over", hasty)


def _hand_over_with_a_flush_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """The successor doesn't know of it, and it is answered 0 or never."""
    patch.setattr(ReplicatedJournal, "_is_all_written", True)


def _replay_units_that_are_not_whole(patch: pytest.MonkeyPatch) -> None:
    """A leader that died in the middle of a flush has acknowledged none of it."""
    take = entries.Joiner.take

    def hasty(joiner: entries.Joiner, index: int, part: entries.Part) -> bytes | None:
        if joiner.begun and joiner.begun[-1].claim != part.claim:
            part = part._replace(claim=joiner.begun[-1].claim)
        return take(joiner, index, part)

    patch.setattr(entries.Joiner, "take", hasty)
    patch.setattr(Tail, "begin_to_write", lambda _: None)


def _snapshot_forgets_the_last_entry(patch: pytest.MonkeyPatch) -> None:
    """What follows by it misses what was acknowledged."""

    def forgetful(*args: Any) -> Any:
        live = compaction.find_live(*args)
        return live._replace(offsets={p: found[:-1] for p, found in live.offsets.items()})

    patch.setattr(snapshots, "find_live", forgetful)


def _answers_keep_their_old_fence(patch: pytest.MonkeyPatch) -> None:
    """A renewal raises the epoch: who goes on in the old one shares it with nobody, but may."""

    def have(machine: ReplicatedJournal, term: Leader, version: int) -> None:
        assert machine._term is not None
        machine._fence = machine._version = version
        machine._term = machine.leader = replace(term, epoch=machine._term.epoch - 1)

    patch.setattr(ReplicatedJournal, "_have_fence", have)


def _chunks_of_a_former_term_are_installed(patch: pytest.MonkeyPatch) -> None:
    """A later leader has removed them since, and the transaction doesn't look for them."""
    _leave_out(patch, at=1, kind=Install)
    install = ReplicatedJournal.install

    def lenient(machine: ReplicatedJournal, snapshot: Snapshot) -> list[Any]:
        machine._making = snapshot.name
        return install(machine, snapshot)

    patch.setattr(ReplicatedJournal, "install", lenient)


def _wake_for_a_reader_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    """Without a connection nobody reads, but the clock says that it is time to: for ever."""

    def waits(machine: ReplicatedJournal, until: Until) -> bool:
        return machine._reader_until is until

    step = ReplicatedJournal._step_reader

    def careful(machine: ReplicatedJournal, reply: Reply | None) -> None:
        if machine._reader is not None:
            step(machine, reply)

    patch.setattr(ReplicatedJournal, "_reader_waits_for", waits)
    patch.setattr(ReplicatedJournal, "_step_reader", careful)


def _verify_in_a_new_session_alone(patch: pytest.MonkeyPatch) -> None:
    """An ensemble that is set back to a copy has the sessions of the copy."""
    registered = ReplicatedJournal.registered

    def trusting(machine: ReplicatedJournal, me: Any, now_ms: int) -> list[Any]:
        newest = machine._tail.newest
        if me.session == machine._session:
            machine._tail.newest = (0, None)
        effects = registered(machine, me, now_ms)
        machine._tail.newest = newest
        return effects

    patch.setattr(ReplicatedJournal, "registered", trusting)


# Bugs that show only if the ensemble is set back.
SET_BACK_BUGS: Final[dict[str, Plant]] = {
    plant.__name__.strip("_"): plant for plant in (_verify_in_a_new_session_alone,)
}
BUGS: Final[dict[str, Plant]] = {
    plant.__name__.strip("_"): plant
    for plant in (
        _no_check_of_the_entry_before,
        _no_fence,
        _claim_a_living_session,
        _take_any_own_record_for_a_renewal,
        _read_without_confirmation,
        _confirm_by_what_was_sent_before,
        _deposed_answers_0_without_looking,
        _deposed_answers_16_without_looking,
        _trimmed_is_taken_for_absent,
        _lost_is_taken_for_not_applied,
        _exists_is_taken_for_anothers,
        _trim_the_newest,
        _lead_without_reading_to_the_end,
        _hand_over_with_a_flush_on_its_way,
        _replay_units_that_are_not_whole,
        _snapshot_forgets_the_last_entry,
        _answers_keep_their_old_fence,
        _chunks_of_a_former_term_are_installed,
        _wake_for_a_reader_that_is_gone,
    )
}
