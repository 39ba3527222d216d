"""Folders of format 1, which had no check in their headers: they are read, and go over."""

import json
import random
from pathlib import Path

import msgpack
import pytest

from coordinator.log.errors import LogCorrupt
from coordinator.log.format import FORMAT, batch_at
from coordinator.log.journal import Journal
from coordinator.log.offline.compact import compact_stopped
from coordinator.log.offline.repair import Wanted
from coordinator.log.state_files import decode_manifest, decode_meta
from tests.fakes.disk import CrashNow, Disk
from tests.log.helpers import (
    NOW_MS,
    SECRET,
    entry,
    flip,
    open_journal,
    replayed,
    segments_of,
    write,
)
from tests.log.old_format import OldBatch, old_flush, old_folder
from tests.log.repairs import planned, repaired, verdict

COUNT = 6
FIXTURES = Path(__file__).parents[1] / "fixtures"
FENCES = [(0, [entry(10**6)])]


def old_content(count: int = COUNT) -> bytes:
    """Return flushes of one batch each, with the numbers below *count*."""
    content = b""
    for number in range(count):
        packed = msgpack.packb([(0, *entry(number))])
        batch: OldBatch = (number % 2, number // 2, len(content), NOW_MS, packed)
        content += old_flush([batch])
    return content


def formats_of(disk: Disk) -> list[int]:
    """Return the format of each segment's first batch, as far as there is one."""
    files = disk.files()
    first = [batch_at(files[name], 0) for name in segments_of(disk)]
    return [raw.format for raw in first if raw is not None]


def meta_of(disk: Disk) -> dict[str, object]:
    """Return what the meta file says."""
    body: dict[str, object] = json.loads(disk.files()["meta"].split(b"\n")[0])
    return body


@pytest.mark.parametrize("clean", [True, False])
def test_an_old_folder_goes_over_when_it_is_opened(*, clean: bool) -> None:
    """An older release reads `meta` first, and says that a newer one was here."""
    disk = old_folder(old_content(), clean=clean)
    assert verdict(disk) is None
    assert planned(disk).is_needed is False
    journal = open_journal(disk)

    assert replayed(journal) == list(range(COUNT))
    assert (meta_of(disk)["format"], meta_of(disk)["secret"]) == (2, SECRET.hex())
    write(journal, 0, COUNT)
    assert formats_of(disk) == [1, FORMAT]
    journal.close(clean=clean)
    disk.kill()
    journal = open_journal(disk)
    assert replayed(journal) == list(range(COUNT + 1))
    assert [s.format for s in journal.manifest.segments][:2] == [1, FORMAT]
    assert verdict(disk.copy()) is None


def test_a_compaction_writes_the_new_format() -> None:
    """So old segments go by themselves."""
    disk = old_folder(old_content())
    journal = open_journal(disk)
    compact_stopped(journal, segment_bytes=1 << 20, drop_before_ms=0)
    journal.close(clean=True)

    assert formats_of(disk) == [FORMAT]
    assert verdict(disk) is None
    assert sorted(replayed(open_journal(disk))) == list(range(COUNT))


@pytest.mark.parametrize("clean", [True, False])
def test_a_crash_while_an_old_folder_goes_over_loses_nothing(*, clean: bool) -> None:
    """Every prefix of the calls, and every order in which they can reach the disk."""
    number = 0
    is_over = False
    while not is_over:
        disk = old_folder(old_content(), clean=clean)
        disk.plan(crash_at=number)
        try:
            open_journal(disk).close(clean=True)
            is_over = True
        except CrashNow:
            pass
        states = disk.crash_states()
        for state in states:
            journal = open_journal(state)
            assert replayed(journal) == list(range(COUNT))
            write(journal, 0, COUNT)
            state.crash(random.Random(number))
            assert replayed(open_journal(state)) == list(range(COUNT + 1))
        number += 1
    assert number > 15


@pytest.mark.parametrize("damage", ["cut", "zeros", "noise"])
def test_a_torn_tail_of_an_old_folder_is_cut(damage: str) -> None:
    """As the old release did."""
    content = old_content()
    whole = len(old_content(COUNT - 1))
    for size in range(whole, len(content)):
        tail = {"cut": b"", "zeros": bytes(len(content) - size), "noise": b"\xff" * 9}[damage]
        disk = old_folder(content[:size] + tail)
        assert verdict(disk) is None
        assert replayed(open_journal(disk)) == list(range(COUNT - 1))


def test_damage_in_front_of_a_later_flush_of_an_old_folder_is_refused_and_repaired() -> None:
    """The search of the old release is kept for its segments."""
    content = old_content()
    batch_bytes = len(old_content(1))
    for byte in range(0, len(content) - batch_bytes, 5):
        disk = old_folder(content)
        flip(disk, segments_of(disk)[0], byte)
        refused = verdict(disk)
        assert isinstance(refused, LogCorrupt)
        assert "no crash does that" in str(refused) or "goes back" in str(refused)
        repaired(disk, fences=FENCES)

        assert verdict(disk) is None
        lost = byte // batch_bytes
        kept = set(replayed(open_journal(disk)))
        assert kept == {*range(COUNT), 10**6} - {lost}
        assert set(formats_of(disk)) == {FORMAT}


def test_segments_of_an_old_folder_that_are_whole_stay_as_they_are() -> None:
    """A repair rewrites what is damaged."""
    disk = old_folder(old_content())
    journal = open_journal(disk)
    for number in range(COUNT, COUNT + 3):
        write(journal, 0, number)
    journal.want_roll()
    taken = journal.take_flush()
    assert taken is not None
    journal.write_flush(taken)
    journal.close(clean=True)
    old, new = segments_of(disk)[:2]
    before = disk.files()
    flip(disk, new, 3)
    repaired(disk, fences=FENCES)

    assert disk.files()[old] == before[old]
    disk.delete("manifest")
    repaired(disk)
    assert [s.format for s in decode_manifest(disk.files()["manifest"]).segments] == [1, 2, 2, 2]
    numbers = {*range(COUNT + 3), 10**6} - {COUNT}
    assert set(replayed(open_journal(disk))) == numbers


@pytest.mark.parametrize("is_over", [True, False])
def test_without_a_manifest_an_old_segment_says_its_format_itself(*, is_over: bool) -> None:
    """By its first batch, or because the whole folder is old."""
    disk = old_folder(old_content(), clean=True)
    batch_bytes = len(old_content(1))
    name = segments_of(disk)[0]
    damage = 0
    if is_over:
        open_journal(disk).close(clean=True)
        damage = batch_bytes
        disk.put(name, disk.files()[name][:-1])
    disk.delete("manifest")
    flip(disk, name, damage + 9)
    repaired(disk, fences=FENCES)

    kept = set(replayed(open_journal(disk)))
    assert kept == {*range(COUNT), 10**6} - {damage // batch_bytes}


def test_a_batch_of_the_old_format_is_not_read_in_a_new_segment() -> None:
    """A client could make one."""
    disk = Disk()
    journal = open_journal(disk)
    write(journal, 0, 0)
    end = journal.size_bytes
    disk.kill()
    packed = msgpack.packb([(0, *entry(1))])
    (name,) = segments_of(disk)
    disk.put(name, disk.files()[name] + old_flush([(0, 1, end, NOW_MS, packed)]))

    refused = verdict(disk)
    assert isinstance(refused, LogCorrupt)
    assert "of format 1, in a segment of 2" in str(refused)


def test_without_the_meta_file_the_folder_gets_a_new_secret() -> None:
    """What was written with the lost one is served, and its loss is noticed as before."""
    disk = Disk()
    journal = open_journal(disk)
    for number in range(COUNT):
        write(journal, 0, number)
    journal.close(clean=True)
    disk.delete("meta")
    repaired(disk, Wanted(node_id=1, num_partitions=4))
    assert meta_of(disk)["secret"] == bytes(16).hex()
    journal = open_journal(disk)
    write(journal, 0, COUNT)
    disk.kill()
    for byte in range(0, journal.size_bytes, 7):
        harmed = disk.copy()
        flip(harmed, segments_of(harmed)[-1], byte)
        assert isinstance(verdict(harmed), LogCorrupt)

    assert replayed(open_journal(disk)) == list(range(COUNT + 1))


def test_without_the_secret_nobody_knows_whether_a_tail_is_torn() -> None:
    """A later flush may be behind it, so something may be lost."""
    disk = Disk()
    journal = open_journal(disk)
    for number in range(COUNT):
        write(journal, 0, number)
    disk.kill()
    disk.delete("meta")
    disk.delete("durable")
    flip(disk, segments_of(disk)[0], journal.size_bytes // 2)
    plan = planned(disk)

    assert plan.lost_bytes > 0
    repaired(disk, Wanted(node_id=1, num_partitions=4), fences=FENCES)
    assert set(replayed(open_journal(disk))) == {0, 1, 2, 10**6}


def fixture(name: str) -> Disk:
    """Return a folder that an earlier release has left."""
    disk = Disk()
    for path in (FIXTURES / name).iterdir():
        disk.put(path.name, path.read_bytes())
    return disk


@pytest.mark.parametrize("kind", ["clean", "unclean"])
@pytest.mark.parametrize("release", ["previous_release", "release_0_1"])
def test_what_a_release_left_is_verified_repaired_and_compacted(release: str, kind: str) -> None:
    """The real bytes, not those that these tests make."""
    disk = fixture(f"{release}/{kind}")
    assert verdict(disk) is None
    num_partitions = decode_meta(disk.files()["meta"]).num_partitions
    assert planned(disk, num_partitions=num_partitions).is_needed is False
    harmed = disk.copy()
    flip(harmed, segments_of(harmed)[1], 60)
    assert isinstance(verdict(harmed), LogCorrupt)
    repaired(harmed, fences=[])
    assert verdict(harmed) is None
    journal = Journal(
        disk.directory(),
        num_partitions=num_partitions,
        segment_bytes=4096,
        node_id=1,
        new_cluster_id=lambda: "",
        new_secret=lambda: SECRET,
    )
    saved = compact_stopped(journal, segment_bytes=4096, drop_before_ms=0)
    journal.close(clean=True)
    assert 0 < saved.after_bytes
    assert set(formats_of(disk)) == {FORMAT}
    assert verdict(disk) is None
