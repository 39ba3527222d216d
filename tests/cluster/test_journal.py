"""One journal of a node, step by step: orders of answers that random histories seldom meet."""

from collections.abc import Sequence
from itertools import count
from typing import Final

import pytest

from coordinator.cluster.effects import (
    CutOff,
    Effect,
    Failed,
    Followed,
    Leads,
    LoadAnew,
    Paused,
    Send,
)
from coordinator.cluster.engine import (
    Append,
    Code,
    Leader,
    ListLog,
    ReadChunks,
    ReadEntries,
    ReadLeader,
    ReadNode,
    ReadSnapshot,
    Reply,
    Request,
    SetLeader,
    Snapshot,
    Suspended,
    WatchEntry,
)
from coordinator.cluster.journal import DATA_WAS_LOST, Member, ReplicatedJournal, Role
from coordinator.cluster.snapshots import Source, read_all
from coordinator.log.errors import LogCorrupt, LogFailed
from tests.cluster.test_follower import unit

ME: Final = Member(1, "a", 11)
OTHER: Final = Leader(5, 2, "b", 22, "00" * 16)
GIVEN: Final = Leader(6, 1, "a", 11, "11" * 16)
ABOVE: Final = Leader(30_000_006, 2, "b", 22, "22" * 16)
NOTHING: Final = Reply(Code.OK, ())
NO_SNAPSHOT: Final = Reply(Code.OK, Snapshot())


def sent(effects: Sequence[Effect]) -> Request:
    """Return the one request that is asked for."""
    (request,) = [effect.request for effect in effects if isinstance(effect, Send)]
    return request


def new_journal(wall_ms: int = 0) -> ReplicatedJournal:
    """Return a journal of which nothing is known yet, at this time of day."""
    ids = count()
    return ReplicatedJournal(
        0,
        partitions=(0,),
        new_id=lambda: f"{next(ids):032x}",
        session_timeout_ms=6_000,
        follow_interval_ms=50,
        wall_offset_ms=wall_ms,
    )


@pytest.mark.parametrize("silent_ms", [0, 1, 999, 4_400, 5_000, 5_001, 6_000, 20_000])
def test_a_leader_is_cut_off_a_session_after_the_last_answer(silent_ms: int) -> None:
    """However late the connection breaks; and nothing is decided from a second after that."""
    journal = new_journal()
    journal._role = Role.LEADING
    journal._me = ME
    journal.told(Suspended(silent_ms), 100_000)
    told = []
    while (due_ms := journal.next_deadline_ms()) is not None:
        told += [(type(effect), due_ms - 100_000) for effect in journal.tick(due_ms)]

    assert told == [(Paused, min(1_000, 6_000 - silent_ms)), (CutOff, 6_000 - silent_ms)]


@pytest.mark.parametrize(
    "found", [Reply(Code.OK, GIVEN, 7), Reply(Code.OK, OTHER, 6), Reply(Code.OK, None, 0)]
)
def test_another_leader_in_a_version_that_is_known_is_a_loss(found: Reply) -> None:
    """An ensemble that was set back counts on from there, and the fence of another one fits."""
    journal = new_journal()
    journal.replied(sent(journal.registered(ME, 0)), Reply(Code.OK, OTHER, 7), 0)
    journal.told(Suspended(), 0)
    effects = journal.replied(sent(journal.registered(ME, 0)), found, 0)

    (failed,) = effects
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, LogCorrupt)
    assert DATA_WAS_LOST in str(failed.error)


def taking_over(journal: ReplicatedJournal) -> Request:
    """Let *journal* find that it was given to this node; return what it asks for with the fence."""
    request = sent(journal.registered(ME, 0))
    for reply in (Reply(Code.OK, GIVEN, 7), NO_SNAPSHOT):
        request = sent(journal.replied(request, reply, 0))
    assert journal.role is Role.TAKING_OVER
    return request


def leading() -> ReplicatedJournal:
    """Return a journal that is led here, and has one entry."""
    journal = new_journal()
    request = taking_over(journal)
    assert isinstance(request, ListLog)
    for reply in (NOTHING, NOTHING):
        request = sent(journal.replied(request, reply, 0))
    journal.replied(request, NO_SNAPSHOT, 0)
    assert journal.role is Role.LEADING
    journal.append_packed(0, 1, b"\x90", 0)
    flush = journal.take_flush()
    assert flush is not None
    append = sent(journal.write(flush))
    assert isinstance(append, Append)
    journal.replied(append, Reply(Code.OK), 0)
    return journal


def test_a_leader_does_nothing_in_a_connection_before_it_has_verified_the_log() -> None:
    """The fence of an ensemble that was set back fits, and so does the session."""
    journal = leading()
    (written,) = journal._tail.newest[1:]
    journal.told(Suspended(), 0)
    look = sent(journal.registered(ME, 0))
    journal.append_packed(0, 1, b"\x90", 0)
    flush = journal.take_flush()
    assert flush is not None
    journal.confirm()
    waits = [*journal.write(flush), *journal.end_round(), *journal.claim(0)]
    assert look == ReadEntries(0, 1, 1)
    snapshot = sent(journal.replied(look, Reply(Code.OK, (written,)), 0))
    waits += journal.end_round()
    leader = sent(journal.replied(snapshot, NO_SNAPSHOT, 0))
    waits += journal.end_round()
    effects = journal.replied(leader, Reply(Code.OK, GIVEN, 7), 0)

    assert waits == []
    assert any(
        isinstance(effect, Send) and isinstance(effect.request, Append) for effect in effects
    )


def test_what_was_read_and_waits_to_be_replayed_is_verified_too() -> None:
    """The entry is replayed in the next connection, on top of what may be another history."""
    journal = new_journal()
    look = sent(journal.registered(ME, 0))
    snapshot = sent(journal.replied(look, Reply(Code.OK, OTHER, 7), 0))
    entries = sent(journal.replied(snapshot, NO_SNAPSHOT, 0))
    journal.replied(entries, Reply(Code.OK, unit(1, 0)), 0)
    journal.told(Suspended(), 0)
    look = sent(journal.registered(ME, 0))
    snapshot = sent(journal.replied(look, NOTHING, 0))
    (failed,) = journal.replied(snapshot, NO_SNAPSHOT, 0)

    assert look == ReadEntries(0, 1, 1)
    assert isinstance(failed, Failed)


def test_a_node_whose_newest_entry_was_trimmed_loads_what_is_there() -> None:
    """The log may go on right behind that entry, and come from another history."""
    journal = new_journal()
    look = sent(journal.registered(ME, 0))
    snapshot = sent(journal.replied(look, Reply(Code.OK, OTHER, 7), 0))
    entries = sent(journal.replied(snapshot, NO_SNAPSHOT, 0))
    (followed,) = journal.replied(entries, Reply(Code.OK, unit(1, 0)), 0)
    assert isinstance(followed, Followed)
    assert len(list(followed.batches)) == 1
    journal.took(0)
    journal.told(Suspended(), 0)
    newer = Reply(Code.OK, Snapshot(1, "s", 1, 10, 0, {0: 1}), 1)
    look = sent(journal.registered(ME, 0))
    snapshot = sent(journal.replied(look, NOTHING, 0))
    leader = sent(journal.replied(snapshot, newer, 0))
    snapshot = sent(journal.replied(leader, Reply(Code.OK, ABOVE, 9), 0))
    effects = journal.replied(snapshot, newer, 0)

    assert effects == [LoadAnew(0), Send(ReadChunks(0, "s", 0, 1))]


def test_an_end_that_was_seen_before_the_fence_is_not_the_end() -> None:
    """The former leader may have written after that look, and have handed over behind it."""
    journal = new_journal()
    look = sent(journal.registered(ME, 0))
    snapshot = sent(journal.replied(look, Reply(Code.OK, OTHER, 7), 0))
    entries = sent(journal.replied(snapshot, NO_SNAPSHOT, 0))
    watch = sent(journal.replied(entries, NOTHING, 0))
    assert watch == WatchEntry(0, 1)
    journal.replied(watch, Reply(Code.MISSING), 0)
    # Two looks are on their way: at the end, for another journal's sake, and at the leader.
    entries = sent(journal.catch_up(1, 100))
    look = sent(journal.fired(ReadLeader(0), 100))
    snapshot = sent(journal.replied(entries, NOTHING, 100))
    assert snapshot == ReadSnapshot(0)
    journal.replied(look, Reply(Code.OK, GIVEN, 8), 100)
    assert journal.role is Role.TAKING_OVER
    listing = sent(journal.replied(snapshot, NO_SNAPSHOT, 100))
    assert listing == ListLog(0, 1)
    entries = sent(journal.replied(listing, NOTHING, 100))
    assert isinstance(entries, ReadEntries)
    assert journal.role is Role.TAKING_OVER
    assert journal.caught_up == 1
    snapshot = sent(journal.replied(entries, NOTHING, 100))
    led = journal.replied(snapshot, NO_SNAPSHOT, 100)

    assert [effect for effect in led if isinstance(effect, Leads)] == [Leads(0, GIVEN.epoch)]


@pytest.mark.parametrize("read", [0, 1])
def test_an_entry_that_is_gone_from_the_middle_of_the_log_is_a_loss(read: int) -> None:
    """The log seemed to end there: offsets behind it were served as if they had never been."""
    journal = new_journal()
    request = sent(journal.replied(taking_over(journal), Reply(Code.OK, (1, 3)[1 - read :]), 0))
    assert isinstance(request, ReadEntries)
    if read:
        (followed,) = journal.replied(request, Reply(Code.OK, unit(1, 0)), 0)
        assert isinstance(followed, Followed)
        assert len(list(followed.batches)) == 1
        request = sent(journal.took(0))
    else:
        request = sent(journal.replied(request, NOTHING, 0))
        request = sent(journal.replied(request, NO_SNAPSHOT, 0))
    assert isinstance(request, ReadSnapshot)
    (failed,) = journal.replied(request, NO_SNAPSHOT, 0)

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, LogCorrupt)
    assert f"entry {read + 1} is missing, and entry 3 is there" in str(failed.error)
    assert DATA_WAS_LOST in str(failed.error)


def test_entries_that_were_trimmed_since_they_were_listed_are_no_loss() -> None:
    """A snapshot has them: whoever leads since then has made it, and this node loads it."""
    journal = new_journal()
    request = sent(journal.replied(taking_over(journal), Reply(Code.OK, (1, 2, 3)), 0))
    request = sent(journal.replied(request, NOTHING, 0))
    request = sent(journal.replied(request, NO_SNAPSHOT, 0))
    newer = Reply(Code.OK, Snapshot(3, "s", 1, 10, 0, {0: 3}), 1)
    request = sent(journal.replied(request, newer, 0))
    effects = journal.replied(request, NOTHING, 0)

    assert effects == [LoadAnew(0), Send(ReadChunks(0, "s", 0, 1))]


@pytest.mark.parametrize(
    ("snapshot", "error"),
    [
        (NO_SNAPSHOT, pytest.raises(LogCorrupt, match="entry 2 is missing, and entry 3 is there")),
        (Reply(Code.OK, Snapshot(3, "s")), pytest.raises(LogFailed, match="newer snapshot")),
    ],
    ids=["gone", "trimmed"],
)
def test_no_snapshot_and_no_export_leaves_out_what_is_behind_a_gap(
    snapshot: Reply, error: pytest.RaisesExc[BaseException]
) -> None:
    """An export of less than all seemed to be whole, and compactions to succeed."""
    reader = read_all(0, Source())
    assert isinstance(next(reader), ReadSnapshot)
    request = reader.send(NO_SNAPSHOT)
    for reply in (Reply(Code.OK, (0, 1, 3)), Reply(Code.OK, unit(1, 0)), NOTHING):
        request = reader.send(reply)
    assert isinstance(request, ReadSnapshot)
    with error:
        reader.send(snapshot)


def test_a_look_that_finds_less_than_it_asked_for_has_seen_the_end() -> None:
    """Who leads among commits has written more by each look; nobody would be done with it."""
    journal = new_journal()
    look = sent(journal.registered(ME, 0))
    snapshot = sent(journal.replied(look, Reply(Code.OK, OTHER, 7), 0))
    entries = sent(journal.replied(snapshot, NO_SNAPSHOT, 0))
    journal.catch_up(1, 0)  # The look that is on its way may be one before that.
    for offset, caught_up in enumerate((0, 1)):
        (followed,) = journal.replied(entries, Reply(Code.OK, unit(offset + 1, offset)), 0)
        assert isinstance(followed, Followed)
        assert len(list(followed.batches)) == 1
        effects = journal.took(0)

        assert journal.caught_up == caught_up
        if not caught_up:
            entries = sent(effects)


def test_a_claim_has_an_epoch_above_all_that_was_told_before_it() -> None:
    """The ensemble may have been set back, or wiped: what stands in it is no measure then."""
    minutes = 30_000_000
    for stored, claimed in ((None, minutes), (OTHER, minutes), (ABOVE, minutes + 7)):
        journal = new_journal(wall_ms=minutes * 60_000)
        look = sent(journal.registered(ME, 0))
        snapshot = sent(journal.replied(look, Reply(Code.OK, stored, 7), 0))
        entries = sent(journal.replied(snapshot, NO_SNAPSHOT, 0))
        journal.replied(sent(journal.replied(entries, NOTHING, 0)), Reply(Code.MISSING), 0)
        request = sent(journal.claim(59_999))
        request = sent(journal.replied(request, Reply(Code.OK, stored, 7), 59_999))
        if isinstance(request, ReadNode):
            request = sent(journal.replied(request, Reply(Code.MISSING), 59_999))

        assert isinstance(request, SetLeader)
        assert request.leader.epoch == claimed
