"""What a repair does with each kind of damage, and what a crash in the middle of it leaves."""

import contextlib
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.log.errors import LogFailed, LogIncompatible, LogRefused
from coordinator.log.journal import SEGMENT_BYTES_MAX, Journal
from coordinator.log.offline.compact import compact_stopped
from coordinator.log.offline.repair import Wanted, known_cluster_id, repaired_meta
from coordinator.log.offline.survey import survey
from tests.fakes.disk import CrashNow, Disk
from tests.log.helpers import (
    CLUSTER_ID,
    NOW_MS,
    append,
    entry,
    flip,
    flush,
    newest_segment,
    open_journal,
    replayed,
    segments_of,
    write,
)
from tests.log.repairs import planned, repaired, verdict

SEGMENT_BYTES = 220
COUNT = 12
FENCE = 10**6
FENCES = [(0, [entry(FENCE)]), (3, [entry(FENCE + 1)])]
OTHER_ID = "BBBBBBBBBBBBBBBBBBBBBB"


def opened(disk: Disk, *, cluster_id: str = "") -> Journal:
    """Start the log."""
    return open_journal(disk, segment_bytes=SEGMENT_BYTES, cluster_id=cluster_id)


def made(*, clean: bool = True, cluster_id: str = "") -> Disk:
    """Return a disk with several segments, and the numbers below COUNT."""
    disk = Disk()
    journal = opened(disk, cluster_id=cluster_id)
    for number in range(COUNT):
        write(journal, number % 4, number)
    journal.close(clean=clean)
    disk.kill()
    assert len(segments_of(disk)) > 3
    return disk


def loaded(disk: Disk) -> list[int]:
    """See that nothing is wrong any more, and return what the daemon loads."""
    assert verdict(disk) is None
    assert planned(disk).is_needed is False
    return replayed(opened(disk.copy()))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("tail", [b"", b"torn"])
def test_a_sound_folder_needs_no_repair(tail: bytes, *, clean: bool) -> None:
    """A torn tail is not damage: the start cuts it."""
    disk = made(clean=clean)
    if not clean:
        name = newest_segment(disk)
        disk.put(name, disk.files()[name] + tail)

    assert verdict(disk) is None
    assert planned(disk).is_needed is False


def test_a_damaged_index_is_made_anew_and_nothing_is_lost() -> None:
    """The batches say themselves where they are."""
    disk = made()
    name = segments_of(disk)[1]
    flip(disk, name, len(disk.files()[name]) - 30)
    original = disk.files()[name]
    assert planned(disk).lost_bytes == 0
    asides = repaired(disk)

    assert asides == [f"aside/{name}"]
    assert disk.files()[asides[0]] == original
    assert loaded(disk) == list(range(COUNT))
    assert opened(disk).compacted_below == {}


def renamed(disk: Disk) -> None:
    """Give a segment another name."""
    name = segments_of(disk)[1]
    disk.put("old.segment", disk.files()[name])
    disk.delete(name)


def swapped(disk: Disk) -> None:
    """Give two segments each other's names."""
    first, second, *_ = segments_of(disk)
    files = disk.files()
    disk.put(first, files[second])
    disk.put(second, files[first])


def newest_renamed(disk: Disk) -> None:
    """Give the newest segment another name."""
    name = newest_segment(disk)
    disk.put("newest", disk.files()[name])
    disk.delete(name)


@pytest.mark.parametrize("harm", [renamed, swapped, newest_renamed])
def test_segments_under_other_names_are_found(harm: Callable[[Disk], None]) -> None:
    """They say themselves which they are."""
    disk = made()
    harm(disk)
    assert verdict(disk) is not None
    assert planned(disk).lost_bytes == 0
    repaired(disk)

    assert loaded(disk) == list(range(COUNT))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_lost_manifest_is_made_anew(*, is_missing: bool, clean: bool) -> None:
    """From the segments; only what was compacted isn't known, so streams of changes begin anew."""
    disk = made(clean=clean)
    if is_missing:
        disk.delete("manifest")
    else:
        flip(disk, "manifest", 9)
    assert planned(disk).lost_bytes == 0
    asides = repaired(disk)

    assert asides == ([] if is_missing else ["aside/manifest.damaged"])
    assert loaded(disk) == list(range(COUNT))
    assert opened(disk).compacted_below == dict.fromkeys(range(4), COUNT // 4)


def test_a_damaged_marker_of_a_clean_stop_is_removed() -> None:
    """What it said can't be known; everything is there."""
    disk = made()
    flip(disk, "clean", 9)
    repaired(disk)

    assert "clean" not in disk.files()
    assert loaded(disk) == list(range(COUNT))


@pytest.mark.parametrize("index", [0, 1, -1])
def test_of_a_missing_segment_the_others_are_kept(index: int) -> None:
    """And everything goes on beyond what can have been in it."""
    disk = made()
    before = opened(disk.copy())
    ends = [before.end_offset(partition) for partition in range(4)]
    disk.delete(segments_of(disk)[index])
    plan = planned(disk)
    assert plan.lost_bytes > 0
    repaired(disk, fences=FENCES)

    numbers = loaded(disk)
    assert set(numbers[:-2]) < set(range(COUNT))
    assert numbers[-2:] == [FENCE, FENCE + 1]
    journal = opened(disk)
    for partition in range(4):
        assert journal.compacted_below[partition] > ends[partition]
        assert journal.end_offset(partition) > ends[partition]
    assert journal.end_offset(0) == journal.compacted_below[0] + 1


def test_what_lies_behind_damage_is_kept() -> None:
    """One bit of one batch costs that batch."""
    disk = made()
    flip(disk, segments_of(disk)[1], 60)
    plan = planned(disk)
    damage, lost = plan.damages
    assert damage.what == "these bytes can't be read"
    assert (damage.start, damage.end) == (0, damage.source.data_bytes // 3)
    assert lost.what.startswith("offset ")
    repaired(disk, fences=FENCES)

    numbers = loaded(disk)
    assert numbers[-2:] == [FENCE, FENCE + 1]
    assert len(numbers) == COUNT - 1 + 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_newest_segment_that_lost_its_end_is_fenced(*, clean: bool) -> None:
    """The marker, or the mark, says how much is missing."""
    disk = made(clean=clean)
    name = newest_segment(disk)
    content = disk.files()[name]
    disk.put(name, b"")
    plan = planned(disk)

    assert plan.lost_bytes == len(content)
    repaired(disk, fences=FENCES)
    assert loaded(disk)[-2:] == [FENCE, FENCE + 1]


def test_without_a_meta_file_what_it_said_must_be_told() -> None:
    """The cluster id stands in other files; the rest doesn't."""
    disk = made()
    disk.delete("meta")
    with pytest.raises(LogRefused, match="--node-id, --partitions"):
        repaired(disk)
    repaired(disk, Wanted(node_id=1, num_partitions=4))

    assert loaded(disk) == list(range(COUNT))
    journal = opened(disk, cluster_id=CLUSTER_ID)
    assert journal.leader_epoch == 3


def test_the_leader_epoch_of_a_lost_meta_file_can_be_told() -> None:
    """Above every one that clients have seen."""
    disk = made()
    flip(disk, "meta", 5)
    wanted = Wanted(CLUSTER_ID, 1, 4, leader_epoch_at_least=5_000_000)
    assert repaired(disk, wanted) == ["aside/meta.damaged"]

    assert opened(disk).leader_epoch == 5_000_001


def test_a_meta_file_older_than_the_log_gets_an_epoch_above_all() -> None:
    """Its own would be given out a second time; of runs that wrote nothing the clock is above."""
    disk = made()
    old = disk.files()["meta"]
    journal = opened(disk)
    write(journal, 0, COUNT)
    journal.close(clean=True)
    disk.put("meta", old)
    assert [p.file for p in planned(disk).problems] == ["meta"]
    repaired(disk)

    assert loaded(disk) == [*range(COUNT), COUNT]
    assert opened(disk).leader_epoch == 4


def test_files_of_two_clusters_are_kept_apart_once_it_is_told_whose_it_is() -> None:
    """Which is the right one, nobody but the operator knows."""
    disk, other = made(), made(cluster_id=OTHER_ID)
    name = segments_of(disk)[1]
    foreign = other.files()[segments_of(other)[1]]
    disk.put(name, foreign)
    plan = planned(disk)
    with pytest.raises(LogRefused, match="--cluster-id"):
        known_cluster_id(plan.survey)
    repaired(disk, Wanted(CLUSTER_ID), fences=FENCES)

    numbers = loaded(disk)
    assert len(numbers) == COUNT - 3 + 2
    assert disk.files()[f"aside/{name}"] == foreign


@pytest.mark.parametrize("cluster_id", [CLUSTER_ID, OTHER_ID])
def test_a_manifest_of_another_cluster_is_left_out_or_the_meta_file_is(cluster_id: str) -> None:
    """As the operator says."""
    disk, other = made(), made(cluster_id=OTHER_ID)
    if cluster_id == CLUSTER_ID:
        disk.put("manifest", other.files()["manifest"])
    else:
        disk = other.copy()
        disk.put("meta", made().files()["meta"])
    repaired(disk, Wanted(cluster_id, 1, 4))

    assert loaded(disk) == list(range(COUNT))
    assert opened(disk, cluster_id=cluster_id).meta.cluster_id == cluster_id


def test_a_newer_format_is_not_repaired() -> None:
    """It isn't damage."""
    disk = made()
    body: dict[str, Any] = json.loads(disk.files()["manifest"].split(b"\n")[0])
    line = json.dumps(body | {"format": 3}).encode() + b"\n"
    disk.put("manifest", line + f"{zlib.crc32(line):08x}\n".encode())
    with pytest.raises(LogIncompatible):
        planned(disk)


def test_a_folder_without_anything_of_a_log_is_none() -> None:
    """Nothing is to be made up."""
    disk = Disk()
    disk.put("thesis.tex", b"")
    with pytest.raises(LogIncompatible, match="no data folder"):
        survey(disk.directory())


def damaged(kind: str) -> Disk:
    """Return a disk that needs a repair."""
    disk = made()
    names = segments_of(disk)
    flip(disk, names[1], 60)
    if kind == "with more":
        disk.delete(names[2])
        flip(disk, names[-1], 10)
        flip(disk, "manifest", 4)
    if kind == "no manifest":
        disk.delete("manifest")
    if kind == "no mark":
        disk = made(clean=False)
        disk.put("durable", b"?" * 12)
    return disk


@pytest.mark.parametrize("kind", ["one batch", "with more", "no manifest", "no mark"])
def test_a_power_cut_at_any_moment_of_a_repair_leaves_a_folder_that_is_refused_or_fenced(
    kind: str,
) -> None:
    """It must never be served as if nothing had been lost."""
    origin = damaged(kind)
    done = origin.copy()
    done.plan()
    repaired(done, fences=FENCES)
    good = replayed(opened(done))
    outcomes = {"refused": 0, "repaired": 0}
    for number in range(len(done.operations)):
        crashed = origin.copy()
        crashed.plan(crash_at=number)
        with contextlib.suppress(CrashNow):
            repaired(crashed, fences=FENCES)
        for disk in crashed.crash_states():
            if verdict(disk) is None:
                outcomes["repaired"] += 1
            else:
                outcomes["refused"] += 1
                repaired(disk, fences=FENCES)
            numbers = loaded(disk)
            assert [n for n in numbers if n < FENCE] == good[:-2]
            assert numbers[-2:] == [FENCE, FENCE + 1]
    assert min(outcomes.values()) > 5


@pytest.mark.parametrize("tail", [b"", b"torn"])
@pytest.mark.parametrize("content", [None, b"", b"?" * 12])
def test_what_may_be_lost_without_a_mark_is_fenced(content: bytes | None, tail: bytes) -> None:
    """How far the log was on disk isn't known: no more than a segment can have been behind it."""
    disk = made(clean=False)
    disk.put(newest_segment(disk), disk.files()[newest_segment(disk)] + tail)
    disk.delete("durable")
    if content is not None:
        disk.put("durable", content)
    assert "durable" in str(verdict(disk))
    assert planned(disk).lost_bytes > SEGMENT_BYTES_MAX // 2
    asides = repaired(disk, fences=FENCES)

    assert ("aside/durable.damaged" in asides) == (content is not None)
    assert loaded(disk) == [*range(COUNT), FENCE, FENCE + 1]
    assert opened(disk).compacted_below[0] > SEGMENT_BYTES_MAX // 2


def test_a_damaged_mark_beside_the_marker_of_a_clean_stop_costs_nothing() -> None:
    """The marker says more than the mark."""
    disk = made()
    disk.put("durable", b"?" * 12)
    assert verdict(disk) is not None
    assert planned(disk).lost_bytes == 0
    repaired(disk)

    assert loaded(disk) == list(range(COUNT))


def test_a_damaged_mark_and_a_damaged_marker_of_a_clean_stop_are_a_loss() -> None:
    """Then neither of them says where the log ended."""
    disk = made()
    disk.put("durable", b"?" * 12)
    flip(disk, "clean", 9)
    assert planned(disk).lost_bytes > 0
    repaired(disk, fences=FENCES)

    assert loaded(disk) == [*range(COUNT), FENCE, FENCE + 1]


def test_the_mark_is_as_good_after_a_start_that_wrote_nothing() -> None:
    """It begins with what the start has read."""
    disk = made()
    opened(disk)
    disk.kill()
    disk.put(newest_segment(disk), b"")

    assert planned(disk).lost_bytes > 0


def test_damage_in_front_of_a_later_flush_is_no_torn_tail() -> None:
    """Even if the mark doesn't know of it: the flush was complete once."""
    disk = made(clean=False)
    disk.delete("durable")
    flip(disk, newest_segment(disk), 10)

    assert verdict(disk) is not None
    assert planned(disk).lost_bytes > 0


def test_a_torn_tail_of_a_damaged_folder_counts_as_lost() -> None:
    """Nobody knows what it was."""
    disk = made(clean=False)
    flip(disk, segments_of(disk)[0], 10)
    before = planned(disk).lost_bytes
    name = newest_segment(disk)
    disk.put(name, disk.files()[name] + bytes(999) + b"\x01" + bytes(99))

    assert planned(disk).lost_bytes == before + 1000


def test_a_batch_of_a_compacted_segment_stands_for_all_that_was_compacted() -> None:
    """What it replaced was longer."""
    disk = damaged("one batch")
    repaired(disk, fences=FENCES)
    name = segments_of(disk)[1]
    flip(disk, name, 10)
    (source,) = [s for s in planned(disk).survey.sources if s.segment.name == name]
    assert source.segment.compacted
    assert source.segment.end is not None

    assert planned(disk).lost_bytes >= source.segment.end - source.segment.base


def test_of_two_files_for_one_place_one_is_taken_without_a_manifest() -> None:
    """A copy that an interrupted recovery has left."""
    disk = made()
    disk.delete("manifest")
    for name in (segments_of(disk)[0], newest_segment(disk)):
        disk.put(name.replace("-", "-9"), disk.files()[name])
    assert planned(disk).lost_bytes == 0
    repaired(disk)

    assert loaded(disk) == list(range(COUNT))


def test_a_missing_beginning_is_noticed_without_a_manifest() -> None:
    """The journal begins at position 0."""
    disk = made()
    first, second, *_ = segments_of(disk)
    disk.delete("manifest")
    disk.delete(first)

    assert planned(disk).lost_bytes >= int(second.split("-")[0])


def test_batches_are_found_across_the_windows_of_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind damage of any length, wherever a window ends."""
    monkeypatch.setattr("coordinator.log.offline.survey.WINDOW_BYTES", 50)
    origin = made()
    name = segments_of(origin)[0]
    content = origin.files()[name]
    for damage in range(1, 120):
        disk = origin.copy()
        disk.put(name, b"\xff" * damage + content[damage:])
        found = [d for d in planned(disk).damages if d.start < d.end]
        assert [(d.start, d.end) for d in found] == [(0, 69 * (1 + (damage - 1) // 69))]


def test_a_failing_disk_leaves_a_folder_that_can_be_repaired() -> None:
    """The same, without the power cut: a full disk."""
    origin = damaged("with more")
    disk = origin.copy()
    disk.plan()
    repaired(disk, fences=FENCES)
    for number in range(len(disk.operations)):
        failing = origin.copy()
        failing.plan(fail_at=number)
        with contextlib.suppress(OSError):
            repaired(failing, fences=FENCES)
        failing.kill()
        if verdict(failing) is not None:
            repaired(failing, fences=FENCES)
        assert loaded(failing)[-2:] == [FENCE, FENCE + 1]


def test_a_repaired_log_goes_on() -> None:
    """Through rolls, restarts and another repair."""
    disk = damaged("with more")
    repaired(disk, fences=FENCES)
    before = loaded(disk)
    journal = opened(disk)
    for number in range(100, 120):
        append(journal, number % 4, number)
        flush(journal)
    journal.close(clean=True)
    flip(disk, segments_of(disk)[-2], 20)
    assert verdict(disk) is not None
    repaired(disk, fences=FENCES)

    after = loaded(disk)
    assert after[: len(before)] == before
    assert set(after) - set(before) < set(range(100, 120))
    assert isinstance(repaired_meta(planned(disk), Wanted(), bytes).leader_epoch, int)


def test_a_running_daemon_is_not_repaired_under_its_feet() -> None:
    """Each of the tools takes the lock."""
    disk = made()
    opened(disk)
    with pytest.raises(LogRefused, match="in use"):
        planned(disk)
    assert issubclass(LogFailed, Exception)


def test_offsets_that_only_a_lost_index_knew_are_not_given_again() -> None:
    """A compaction drops old tombstones, and behind them the index alone tells the end."""
    disk = Disk()
    journal = opened(disk)
    write(journal, 0, 1)
    for number in (2, 3):
        journal.append(1, [entry(number)._replace(value=None)], NOW_MS)
        flush(journal)
    compact_stopped(journal, segment_bytes=SEGMENT_BYTES, drop_before_ms=NOW_MS + 1)
    name = journal.manifest.segments[-2].name
    journal.close(clean=True)
    assert journal.compacted_below == {1: 2}
    flip(disk, name, len(disk.files()[name]) - 1)

    plan = planned(disk)
    assert plan.lost_bytes > 0
    assert any("index alone said where partition 1 ends, at 2" in d.what for d in plan.damages)
    repaired(disk, fences=FENCES)

    journal = opened(disk)
    assert replayed(journal) == [1, FENCE, FENCE + 1]
    for partition in range(4):
        assert journal.end_offset(partition) >= journal.compacted_below[partition]
    assert journal.end_offset(1) > 2


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_compacted_segment_that_has_grown_is_read_to_its_end(*, is_cut: bool) -> None:
    """Wide entries that were cut take more bytes than the journal had; nothing else says so."""
    disk = Disk()
    journal = open_journal(disk)
    append(journal, 0, *range(60), wide=True)
    append(journal, 0, *range(0, 60, 2), wide=True)
    flush(journal)
    assert compact_stopped(journal, segment_bytes=1 << 20, drop_before_ms=0)
    first = journal.manifest.segments[0]
    assert first.data_bytes is not None
    assert first.end is not None
    assert first.data_bytes > 2 * first.end
    write(journal, 0, 60)
    journal.close(clean=False)
    disk.kill()
    disk.delete("manifest")
    content = disk.files()[first.name]
    disk.put(first.name, content[: first.data_bytes] if is_cut else content[:-1])
    repaired(disk, fences=FENCES)

    assert sorted(loaded(disk)) == [*range(61), FENCE, FENCE + 1]
