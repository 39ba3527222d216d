"""One journal of a node, step by step: orders of answers that random histories seldom meet."""

from collections.abc import Sequence
from itertools import count
from typing import Final

from coordinator.cluster.effects import Effect, Followed, Leads, Send
from coordinator.cluster.engine import (
    Code,
    Leader,
    ReadEntries,
    ReadLeader,
    ReadNode,
    ReadSnapshot,
    Reply,
    Request,
    SetLeader,
    Snapshot,
    WatchEntry,
)
from coordinator.cluster.journal import Member, ReplicatedJournal, Role
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
    entries = sent(journal.replied(snapshot, NO_SNAPSHOT, 100))
    assert isinstance(entries, ReadEntries)
    assert journal.role is Role.TAKING_OVER
    assert journal.caught_up == 1
    snapshot = sent(journal.replied(entries, NOTHING, 100))
    led = journal.replied(snapshot, NO_SNAPSHOT, 100)

    assert [effect for effect in led if isinstance(effect, Leads)] == [Leads(0, GIVEN.epoch)]


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
