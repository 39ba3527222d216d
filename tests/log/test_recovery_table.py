"""The table "What happens at the start" of docs/log-format.md: one test for each row, and no more.

What each kind of damage does in every variant is tested in test_recovery.py.
"""

import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from coordinator.cli.log_dump import verdict_of
from coordinator.log.directory import OsDirectory
from coordinator.log.errors import LogCorrupt, LogError, LogFailed, LogLocked, LogRefused
from coordinator.log.format import Entry, encode_batch
from coordinator.log.journal import Journal
from coordinator.log.state_files import decode_durable, encode_manifest, encode_meta
from tests.fakes.disk import Disk
from tests.log.helpers import (
    NOW_MS,
    append,
    entry,
    events_of,
    flush,
    newest_segment,
    open_journal,
    replayed,
    segments_of,
    write,
)

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "log-format.md"
ROWS: list[str] = []
COUNT: Final = 12
SEGMENT_BYTES: Final = 300
OTHER_ID: Final = "BBBBBBBBBBBBBBBBBBBBBB"

F = TypeVar("F", bound=Callable[..., Any])


def row(found: str) -> Callable[[F], F]:
    """Name the row that a test is of."""
    ROWS.append(found)
    return lambda test: test


def made(*, clean: bool, cluster_id: str = "", count: int = COUNT) -> Disk:
    """Return a disk with several segments, and the numbers below *count*."""
    disk = Disk()
    journal = opened(disk, cluster_id=cluster_id)
    for number in range(count):
        write(journal, number % 4, number)
    assert len(segments_of(disk)) > 2 or count < COUNT
    journal.close(clean=clean)
    disk.kill()
    return disk


def opened(disk: Disk, *, cluster_id: str = "") -> Journal:
    """Start the log."""
    return open_journal(disk, segment_bytes=SEGMENT_BYTES, cluster_id=cluster_id)


def served(disk: Disk, count: int = COUNT) -> list[str]:
    """Start the log and see that all of it is there; return what it said."""
    journal = opened(disk)
    assert replayed(journal) == list(range(count))
    write(journal, 0, count)
    return events_of(journal)


def refused(disk: Disk, status: int, words: str) -> None:
    """Start the log, be refused, and see that it was left as it was."""
    before = disk.files()
    with pytest.raises(LogError, match=words) as refusal:
        replayed(opened(disk))
    disk.kill()

    assert refusal.value.exit_status == status
    assert before == disk.files()


def edit(disk: Disk, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a state file, with a good checksum."""
    body = json.loads(disk.files()[name].split(b"\n")[0])
    change(body)
    line = json.dumps(body).encode() + b"\n"
    disk.put(name, line + f"{zlib.crc32(line):08x}\n".encode())


def flip(disk: Disk, name: str, byte: int) -> None:
    """Turn a bit."""
    content = bytearray(disk.files()[name])
    content[byte] ^= 4
    disk.put(name, bytes(content))


@row("empty folder")
def test_an_empty_folder_is_begun() -> None:
    """The first start."""
    disk = Disk()

    assert served(disk, 0) == ["log.created"]
    assert {"meta", "manifest"} < disk.files().keys()


@row("no `meta`, an empty segment and perhaps a first manifest")
@pytest.mark.parametrize("has_manifest", [True, False])
def test_an_interrupted_first_start_is_begun_again(*, has_manifest: bool) -> None:
    """Nothing was ever acknowledged."""
    disk = Disk()
    opened(disk)
    disk.kill()
    for name in ["meta", "durable", *([] if has_manifest else ["manifest"])]:
        disk.delete(name)

    assert served(disk, 0) == ["log.created"]


@row("no `meta`, other files")
def test_somebody_elses_folder_is_refused() -> None:
    """A wrong --data-dir must not move files about."""
    disk = Disk()
    disk.put("thesis.tex", b"...")
    refused(disk, 78, "not a data folder")


@row("no `meta`, but data, a later manifest, `clean` or `durable`")
@pytest.mark.parametrize("left", ["segments", "manifest", "clean", "durable"])
def test_a_lost_meta_file_is_refused(left: str) -> None:
    """To begin anew would lose everything, silently."""
    disk = made(clean=True)
    keep = set(segments_of(disk)) if left == "segments" else {left}
    for name in disk.files().keys() - keep:
        disk.delete(name)
    refused(disk, 65, "meta")


@row("another process has the lock")
def test_a_second_process_is_refused() -> None:
    """Two writers would destroy the log."""
    disk = made(clean=False)
    first = opened(disk)
    with pytest.raises(LogLocked) as refusal:
        opened(disk)

    assert refusal.value.exit_status == 78
    write(first, 0, COUNT)


@row("the folder is read-only, or not this user's")
def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says so for a real one; tests/integration/test_full_disk.py has that."""
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(LogRefused, match="not readable and writable") as refusal:
        OsDirectory(tmp_path)

    assert refusal.value.exit_status == 78


@row("`meta` of another node or another number of partitions")
@pytest.mark.parametrize("change", [{"node_id": 2}, {"num_partitions": 5}])
def test_another_nodes_folder_is_refused(change: dict[str, int]) -> None:
    """The wrong volume is mounted, or a setting was changed that can't be."""
    disk = made(clean=True)
    edit(disk, "meta", lambda body: body.update(change))
    refused(disk, 78, "data folder")


@row("`meta` of another cluster than the setting `cluster.id`")
def test_another_clusters_folder_is_refused() -> None:
    """The wrong backup was restored."""
    disk = made(clean=True)
    before = disk.files()
    with pytest.raises(LogRefused, match=f"cluster.id says {OTHER_ID}") as refusal:
        opened(disk, cluster_id=OTHER_ID)

    assert refusal.value.exit_status == 78
    assert before == disk.files()


@row("a manifest, or a sealed segment, of another cluster than `meta`")
@pytest.mark.parametrize("part", ["manifest", "segment"])
def test_files_of_another_cluster_are_refused(part: str) -> None:
    """They are whole, and fit: the other folder was written in the same way."""
    disk = made(clean=True)
    other = made(clean=True, cluster_id=OTHER_ID)
    if part == "manifest":
        disk.put("manifest", other.files()["manifest"])
    else:
        disk.put(segments_of(disk)[0], other.files()[segments_of(other)[0]])
    refused(disk, 65, f"{OTHER_ID}.* mixed")


@row("`meta` older than the log: a batch has a higher leader epoch")
def test_an_old_meta_file_is_refused() -> None:
    """Its epoch would be given out a second time."""
    disk = made(clean=True)
    old = disk.files()["meta"]
    opened(disk).close(clean=True)
    journal = opened(disk)
    write(journal, 0, COUNT)
    journal.close(clean=True)
    disk.put("meta", old)
    refused(disk, 65, "older than the log")


@row("a state file or a batch of a newer format")
@pytest.mark.parametrize("name", ["meta", "manifest", "clean", "batch"])
def test_a_newer_format_is_refused(name: str) -> None:
    """A downgrade would misread what it doesn't know."""
    disk = made(clean=name != "batch")
    if name == "batch":
        segment = newest_segment(disk)
        content = disk.files()[segment]
        _, rest, packed = encode_batch((0, 1, 1, len(content), 0), b"\x90")
        body = b"\x02" + rest[1:] + packed
        prefix = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big")
        disk.put(segment, content + prefix + body)
    else:
        edit(disk, name, lambda body: body.update(format=2))
    refused(disk, 78, "newer release|of format 2")


def loads(disk: Disk, *entries: Entry) -> LogRefused:
    """Return how the load of a log with these entries is refused."""
    journal = opened(disk)
    journal.append(0, entries, NOW_MS)
    flush(journal)
    journal.close(clean=True)
    directory = disk.directory()
    directory.lock()
    verdict = verdict_of(directory)
    directory.unlock()
    assert isinstance(verdict, LogRefused)
    return verdict


@row("an entry of a type or version that isn't known")
@pytest.mark.parametrize(("type_", "version"), [(7777, 0), (1, 9)])
def test_an_unknown_entry_is_refused(type_: int, version: int) -> None:
    """A newer release wrote it; tests/server has the daemon's exit."""
    verdict = loads(Disk(), Entry(type_, version, "g", ("t", 1), (1, -1, "", 0, -1)))

    assert verdict.exit_status == 78


@row("an entry with a good checksum that can't be understood")
def test_an_entry_of_another_shape_is_refused() -> None:
    """No guess at what it may mean."""
    assert loads(Disk(), Entry(1, 0, "g", ("t", 1, 2), (1, -1, "", 0, -1))).exit_status == 65


@row("`meta`, `manifest` or `clean` damaged; `manifest` missing")
@pytest.mark.parametrize("name", ["meta", "manifest", "clean", ""])
def test_a_damaged_state_file_is_refused(name: str) -> None:
    """They are replaced whole, so a crash can't do it."""
    disk = made(clean=True)
    if name:
        flip(disk, name, 5)
    else:
        disk.delete("manifest")
    refused(disk, 65, f"'{name or 'manifest'}'")


@row("**clean stop**, the journal ends where `clean` says, everything readable")
def test_a_clean_stop_is_served_at_once() -> None:
    """Nothing is copied, nothing cut."""
    disk = made(clean=True)
    segments = segments_of(disk)

    assert served(disk) == []
    assert segments == segments_of(disk)[: len(segments)]
    assert "clean" not in disk.files()


@row("clean stop, and any damage, a cut, or more bytes in the newest segment")
@pytest.mark.parametrize("harm", ["damage", "cut", "more"])
def test_any_change_after_a_clean_stop_is_refused(harm: str) -> None:
    """The marker says that nothing was torn."""
    disk = made(clean=True)
    name = newest_segment(disk)
    content = disk.files()[name]
    changed = {"damage": content[:-1] + b"?", "cut": content[:-1], "more": content + b"?"}
    disk.put(name, changed[harm])
    refused(disk, 65, "closed in good order")


@row("**unclean stop**, the newest segment readable to its end")
def test_after_an_unclean_stop_the_newest_segment_is_copied() -> None:
    """What could be read may have been in memory only."""
    disk = made(clean=False)
    name = newest_segment(disk)

    assert served(disk) == ["log.recovered_after_unclean_stop"]
    assert name not in disk.files()


@row(
    "unclean stop, damage at X in the newest segment, and no valid batch with `flush_start` > X "
    "behind it"
)
def test_a_torn_tail_is_cut() -> None:
    """The end of a write that nobody was told of."""
    disk = made(clean=False)
    name = newest_segment(disk)
    disk.put(name, disk.files()[name] + b"\0\0\0\x52torn")

    assert served(disk) == ["log.torn_tail_cut", "log.recovered_after_unclean_stop"]
    assert any(name.endswith(".torn") for name in disk.files())


@row("the same, the tail all zeros, or noise")
@pytest.mark.parametrize("tail", [bytes(9_000), random.Random(1).randbytes(9_000)])
def test_a_tail_of_zeros_or_noise_is_cut(tail: bytes) -> None:
    """A file that was grown and not written."""
    disk = made(clean=False)
    name = newest_segment(disk)
    disk.put(name, disk.files()[name] + tail)

    assert served(disk) == ["log.torn_tail_cut", "log.recovered_after_unclean_stop"]


@row("unclean stop, damage at X, and a valid batch with `flush_start` > X at any byte behind it")
def test_damage_in_front_of_a_whole_flush_is_refused() -> None:
    """It was acknowledged."""
    disk = made(clean=False, count=3)
    flip(disk, newest_segment(disk), 50)
    refused(disk, 65, "a later write at byte")


@row("unclean stop, the newest segment empty, cut or damaged below what `durable` says")
@pytest.mark.parametrize("harm", ["empty", "cut", "damaged"])
def test_a_newest_segment_that_lost_its_end_is_refused(harm: str) -> None:
    """What is left is a valid log, and not all of it."""
    disk = made(clean=False, count=3)
    name = newest_segment(disk)
    content = disk.files()[name]
    changed = {"empty": b"", "cut": content[:-90], "damaged": content[:-1] + b"?"}
    disk.put(name, changed[harm])
    refused(disk, 65, "was on disk up to")


@row("`durable` missing or damaged")
@pytest.mark.parametrize("content", [None, b"", b"\0" * 12, b"\xff" * 12])
def test_a_lost_mark_says_nothing(content: bytes | None) -> None:
    """It only helps: a folder without it is as good as before there was one."""
    disk = made(clean=False)
    end = disk.files()["durable"]
    if content is None:
        disk.delete("durable")
    else:
        disk.put("durable", content)

    assert served(disk) == ["log.recovered_after_unclean_stop"]
    assert decode_durable(disk.files()["durable"]) > decode_durable(end) > 0


@row(
    "a batch with a good checksum in a place where it wasn't written (bytes removed or repeated, "
    "another segment's content)"
)
@pytest.mark.parametrize("harm", ["removed", "repeated", "another's"])
def test_batches_in_a_wrong_place_are_refused(harm: str) -> None:
    """All checksums are right."""
    disk = made(clean=False, count=3)
    name = newest_segment(disk)
    content = disk.files()[name]
    size = len(content) // 3
    other = made(clean=False)
    changed = {
        "removed": content[:size] + content[2 * size :],
        "repeated": content + content[-size:],
        "another's": other.files()[segments_of(other)[1]],
    }
    disk.put(name, changed[harm])
    refused(disk, 65, "goes back" if harm == "repeated" else "written elsewhere")


@row("a segment of the manifest is missing")
@pytest.mark.parametrize("index", [0, 1, -1])
def test_a_missing_segment_is_refused(index: int) -> None:
    """The manifest knows what must be there."""
    disk = made(clean=True)
    name = segments_of(disk)[index]
    disk.delete(name)
    refused(disk, 65, f"segment {name} is missing")


@row("a sealed segment is empty or cut")
@pytest.mark.parametrize("left", [0, 100])
def test_a_cut_sealed_segment_is_refused(left: int) -> None:
    """Its size is in the manifest."""
    disk = made(clean=True)
    name = segments_of(disk)[1]
    disk.put(name, disk.files()[name][:left])
    refused(disk, 65, f"{name} has {left} bytes")


@row("a segment was renamed")
def test_a_renamed_segment_is_refused() -> None:
    """What it is called now doesn't matter: it isn't replayed."""
    disk = made(clean=True)
    name = segments_of(disk)[1]
    disk.put("old.segment", disk.files()[name])
    disk.delete(name)
    refused(disk, 65, f"{name} is missing")


@row("two segments have each other's names")
def test_swapped_segments_are_refused() -> None:
    """The index says which one it is."""
    disk = made(clean=True)
    first, second, *_ = segments_of(disk)
    files = disk.files()
    disk.put(first, files[second])
    disk.put(second, files[first])
    refused(disk, 65, f"segment {first}.* replaced")


@row("a sealed segment's index is damaged")
def test_a_damaged_index_is_refused() -> None:
    """It decides which batches a single partition has."""
    disk = made(clean=True)
    name = segments_of(disk)[1]
    flip(disk, name, len(disk.files()[name]) - 30)
    refused(disk, 65, "no valid index")


@row("damage in the data of a sealed segment")
def test_damaged_sealed_data_is_refused_by_the_load() -> None:
    """The open doesn't read it."""
    disk = made(clean=True)
    name = segments_of(disk)[1]
    flip(disk, name, 60)
    journal = opened(disk)
    with pytest.raises(LogCorrupt, match=f"{name}.* is damaged") as refusal:
        replayed(journal)

    assert refusal.value.exit_status == 65


@row("a file that the manifest names as `dispensable`, and a `*.tmp`")
def test_what_nobody_needs_is_removed() -> None:
    """The leftovers of a compaction, or of a state file that was being written."""
    disk = made(clean=True)
    edit(disk, "manifest", lambda body: body.update(dispensable=["old.segment"]))
    disk.put("old.segment", b"of a compaction")
    disk.put("manifest.tmp", b"half a mani")

    assert served(disk) == []
    assert not {"old.segment", "manifest.tmp", "aside/old.segment"} & disk.files().keys()


@row(
    "another file that the manifest doesn't list (a duplicated segment, one of another cluster, "
    "anything)"
)
@pytest.mark.parametrize("kind", ["duplicate", "another cluster's", "anything"])
def test_other_files_are_moved_aside(kind: str) -> None:
    """Never replayed, and never removed."""
    disk = made(clean=True)
    other = made(clean=True, cluster_id=OTHER_ID)
    name = segments_of(disk)[0]
    found = {
        "duplicate": ("copy-of-" + name, disk.files()[name]),
        "another cluster's": (segments_of(other)[0], other.files()[segments_of(other)[0]]),
        "anything": ("notes.txt", b"hello"),
    }
    file, content = found[kind]
    assert file not in disk.files()
    disk.put(file, content)

    assert served(disk) == ["log.file_moved_aside"]
    assert disk.files()[f"aside/{file}"] == content


@row("the disk is full, or fails, during the start")
def test_a_failing_disk_ends_the_start_with_74() -> None:
    """And the next start finds what this one found."""
    disk = made(clean=False)
    disk.plan()
    opened(disk.copy())
    disk.plan(fail_at=12)
    with pytest.raises(LogFailed) as failure:
        opened(disk)
    disk.kill()

    assert failure.value.exit_status == 74
    assert served(disk) == ["log.recovered_after_unclean_stop"]


@row("the disk runs full while it serves")
def test_the_journal_tells_how_much_room_there_is() -> None:
    """What is done with that: tests/server/test_storage.py, tests/integration/test_full_disk.py."""
    disk = made(clean=True)
    disk.free_bytes = 4711

    assert opened(disk).free_bytes() == 4711


@row("a write or fsync fails while it serves, ENOSPC too")
@pytest.mark.parametrize("operation", [0, 1])
def test_after_a_failed_write_only_the_disk_is_trusted(operation: int) -> None:
    """Reading still shows what a failed fsync lost."""
    disk = made(clean=True)
    journal = opened(disk)
    append(journal, 0, COUNT)
    taken = journal.take_flush()
    assert taken is not None
    disk.plan(fail_at=operation)
    with pytest.raises(LogFailed) as failure:
        journal.write_flush(taken)
    with pytest.raises(LogFailed):
        journal.append(0, [entry(99)], NOW_MS)
    disk.kill()

    assert failure.value.exit_status == 74
    seen = replayed(opened(disk))
    assert seen[:COUNT] == list(range(COUNT))
    disk.crash(random.Random(1))
    assert replayed(opened(disk)) == seen


def test_each_row_of_the_table_has_its_test_and_each_test_its_row() -> None:
    """A row without a test is a wish; a test without a row is a secret."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = lines.index("| found | done |") + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("| "):
            break
        rows.append(line.split(" | ")[0].removeprefix("| "))

    assert len(rows) > 20
    assert sorted(ROWS) == sorted(rows)


def test_the_encoders_are_those_of_the_state_files() -> None:
    """The edits of this file are of the files that are really written."""
    disk = made(clean=True)
    journal = opened(disk)

    assert disk.files()["meta"] == encode_meta(journal.meta)
    assert disk.files()["manifest"] == encode_manifest(journal.manifest)
