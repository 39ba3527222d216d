"""Opening a data folder: what each kind of damage does, which is cut, put aside, or refused.

Each row of the table "What happens at the start" of docs/log-format.md has its test here, marked
with `row`. The tests at the end go through every bit and every byte.
"""

import errno
import json
import random
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import given, strategies as st

from coordinator.cli.log_dump import verdict_of
from coordinator.log.directory import OsDirectory
from coordinator.log.errors import LogCorrupt, LogError, LogFailed, LogLocked, LogRefused
from coordinator.log.format import Entry, encode_batch
from coordinator.log.journal import Journal
from coordinator.log.state_files import (
    MOVED_NAME,
    DurablePosition,
    decode_durable,
    encode_durable,
    encode_manifest,
    encode_meta,
    write_whole,
)
from tests.fakes.disk import Disk
from tests.log.helpers import (
    NOW_MS,
    append,
    entry,
    events_of,
    flip,
    flipped,
    flush,
    newest_segment,
    open_journal,
    replayed,
    segments_of,
    write,
)
from tests.log.old_format import old_folder

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
    refused(disk, 78, "thesis.tex.*not a data folder")


@row("no `meta`, but data, a later manifest, `clean` or `durable`")
@pytest.mark.parametrize(
    "left", ["all", "all but clean", "segments", "manifest", "clean", "durable"]
)
def test_a_lost_meta_file_is_refused(left: str) -> None:
    """To begin anew would lose everything, silently."""
    disk = made(clean=left != "all but clean")
    keep = disk.files().keys() - {"meta"} if left.startswith("all") else {left}
    if left == "segments":
        keep = set(segments_of(disk))
    for name in disk.files().keys() - keep:
        disk.delete(name)
    refused(disk, 65, "meta")


@row("another process has the lock")
def test_a_second_process_is_refused() -> None:
    """Two writers would destroy the log."""
    disk = made(clean=False)
    first = opened(disk)
    with pytest.raises(LogLocked, match="in use") as refusal:
        opened(disk)

    assert refusal.value.exit_status == 78
    write(first, 0, COUNT)


@row("a file `moved`")
def test_a_folder_that_was_moved_into_a_cluster_is_refused() -> None:
    """Its groups would go on in two places."""
    disk = made(clean=True)
    write_whole(disk.directory(), MOVED_NAME, b"{}")

    refused(disk, 78, "moved")


@row("the folder is read-only, or not this user's")
def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says so for a real one; tests/integration/test_full_disk.py has that."""
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(LogRefused, match="not readable and writable") as refusal:
        OsDirectory(tmp_path)

    assert refusal.value.exit_status == 78


@row("`meta` of another node or another number of partitions")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"node_id": 2}, "node 2, the settings say 1"),
        ({"num_partitions": 5}, "5 offsets partitions.*say 4"),
    ],
)
def test_another_nodes_folder_is_refused(change: dict[str, int], words: str) -> None:
    """The wrong volume is mounted, or a setting was changed that can't be."""
    disk = made(clean=True)
    edit(disk, "meta", lambda body: body.update(change))
    refused(disk, 78, words)


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


@row("`meta` older than the log: it is of format 1, and a segment isn't")
def test_a_meta_file_of_the_old_format_in_a_new_folder_is_refused() -> None:
    """It is from a backup of before, and has no secret."""
    disk = old_folder(b"", clean=True)
    old = disk.files()["meta"]
    open_journal(disk).close(clean=True)
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
        _, rest, packed = encode_batch((0, 1, 1, len(content), 0, 0), b"\x90")
        body = b"\x03" + rest[1:] + packed
        prefix = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big")
        disk.put(segment, content + prefix + body)
    else:
        edit(disk, name, lambda body: body.update(format=3))
    refused(disk, 78, "newer release|of format 3")


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
@pytest.mark.parametrize(("type_", "version"), [(7777, 0), (1, 9), (1, 2)])
@pytest.mark.parametrize("partition", [1, (1, 2)])
def test_an_unknown_entry_is_refused(type_: int, version: int, partition: object) -> None:
    """A newer release wrote it; tests/server has the daemon's exit."""
    verdict = loads(Disk(), Entry(type_, version, "g", ("t", partition), (1, -1, "", 0, -1)))

    assert verdict.exit_status == 78


@row("an entry with a good checksum that can't be understood")
@pytest.mark.parametrize(
    ("version", "key", "value"),
    [
        (0, ("t", 1, 2), (1, -1, "", 0, -1)),
        (0, ("t", (1, 2)), (1, -1, "", 0, -1)),
        (1, ("t", (1, 2)), ((1, 2), -1, "")),
        (1, ("t", (1, 2)), ((1, 2), -1, "", (0, 0), -1)),
        (1, ("t", (1, "2")), ((1, 2), -1, "", 0, -1)),
        (1, ("t", ()), ((), -1, "", 0, -1)),
        (1, ("t", (1, 2)), ((1,), -1, "", 0, -1)),
        (1, ("t", (1, 2)), ((1, 2), (-1, -1, -1), "", 0, -1)),
        (1, ("t", (1, 2)), None),
        (1, ("t", (1, (2,))), (5, -1, "", 0, -1)),
    ],
)
def test_an_entry_of_another_shape_is_refused(version: int, key: object, value: object) -> None:
    """No guess at what it may mean, nor whose offset is whose."""
    good, bad = Entry(1, 0, "g", ("t", 1), (1, -1, "", 0, -1)), Entry(1, version, "g", key, value)

    assert loads(Disk(), good, bad).exit_status == 65


@row("`meta`, `manifest` or `clean` damaged; `manifest` missing")
@pytest.mark.parametrize("name", ["meta", "manifest", "clean"])
def test_every_flipped_bit_of_a_state_file_is_refused(name: str) -> None:
    """They are replaced whole, so a crash can't do it."""
    origin = made(clean=True)
    content = origin.files()[name]
    for bit in range(0, 8 * len(content), 3):
        disk = origin.copy()
        disk.put(name, flipped(content, bit))
        refused(disk, 65, f"'{name}'")


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_manifest_is_refused(*, clean: bool) -> None:
    """To start empty would be the loss of everything, silently."""
    disk = made(clean=clean)
    disk.delete("manifest")
    refused(disk, 65, "'manifest'")


@row(
    "**clean stop**, the journal ends where `clean` says, everything readable, nothing but zeros "
    "behind it"
)
def test_a_clean_stop_is_served_at_once() -> None:
    """Nothing is copied, nothing cut."""
    disk = made(clean=True)
    segments = segments_of(disk)

    assert served(disk) == []
    assert segments == segments_of(disk)[: len(segments)]
    assert "clean" not in disk.files()


@row("clean stop, and any damage, a cut, or more bytes in the newest segment")
@pytest.mark.parametrize("harm", ["damage", "cut", "cut more", "more"])
def test_any_change_after_a_clean_stop_is_refused(harm: str) -> None:
    """The marker says that nothing was torn."""
    disk = made(clean=True)
    name = newest_segment(disk)
    content = disk.files()[name]
    changed = {"damage": content[:-1] + b"?", "cut": content[:-1], "more": content + b"?"}
    changed["cut more"] = content[:-50]
    disk.put(name, changed[harm])
    refused(disk, 65, "closed in good order")


@row("**unclean stop**, the newest segment readable to its end")
def test_after_an_unclean_stop_the_newest_segment_is_copied() -> None:
    """What could be read may have been in memory only."""
    disk = made(clean=False)
    name = newest_segment(disk)

    assert served(disk) == ["log.recovered_after_unclean_stop"]
    assert name not in disk.files()


@row("unclean stop, nothing but zeros behind the last batch")
def test_zeros_behind_the_last_batch_are_no_torn_tail() -> None:
    """They are there after every kill, and nothing needs to be said of them."""
    disk = Disk()
    journal = open_journal(disk, zeros_bytes=500)
    write(journal, 0, 0)
    end = journal.size_bytes
    disk.kill()
    assert newest_segment(disk) in disk.files()
    assert disk.files()[newest_segment(disk)][end:] == bytes(500)
    journal = open_journal(disk)

    assert replayed(journal) == [0]
    assert events_of(journal) == ["log.recovered_after_unclean_stop"]
    assert len(disk.files()[newest_segment(disk)]) == end


@row(
    "unclean stop, damage at X in the newest segment, and no header with `flush_start` > X and a "
    "right check behind it"
)
@row("the same, the tail noise")
@pytest.mark.parametrize(
    "tail", [b"\x01", b"\0\0\0\x52torn", bytes(9_000) + b"\x01", random.Random(1).randbytes(9_000)]
)
def test_a_torn_tail_is_saved_aside_and_cut(tail: bytes) -> None:
    """Bytes of a write that nobody was told of."""
    disk = made(clean=False)
    name = newest_segment(disk)
    whole = disk.files()[name]
    disk.put(name, whole + tail)
    journal = opened(disk)

    assert list(range(COUNT)) == replayed(journal)
    assert events_of(journal) == ["log.torn_tail_cut", "log.recovered_after_unclean_stop"]
    fields = journal.recovery_events[0][1]
    assert len(tail) == fields["cut_bytes"]
    assert tail == disk.files()[str(fields["saved_as"])]
    assert str(fields["saved_as"]).endswith(".torn")
    assert whole == disk.files()[newest_segment(disk)]
    write(journal, 0, 99)
    disk.kill()
    assert [*range(COUNT), 99] == replayed(opened(disk))


@row(
    "unclean stop, damage at X, and a header with `flush_start` > X and a right check at any byte "
    "behind it"
)
def test_every_flipped_bit_before_the_last_flush_refuses_to_start() -> None:
    """It was acknowledged: to go on without it would be a silent loss."""
    origin = Disk()
    journal = open_journal(origin)
    for number in range(3):
        append(journal, 0, number)
        append(journal, 1, number)
        taken = flush(journal)
    origin.kill()
    name = newest_segment(origin)
    content = origin.files()[name]
    for bit in range(8 * taken.start):
        disk = origin.copy()
        disk.put(name, flipped(content, bit))
        refused(disk, 65, "damaged at byte .* a later write at byte")


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


@row("unclean stop, `durable` missing in a folder of format 2")
def test_a_missing_mark_is_refused() -> None:
    """An end of the log that was cut off as well could not be noticed."""
    disk = made(clean=False)
    disk.delete("durable")
    refused(disk, 65, "no file 'durable'.* 'group-coordinator log repair'")
    disk = Disk()
    opened(disk)
    disk.kill()
    disk.delete("durable")
    refused(disk, 65, "no file 'durable'")


@row("`durable` without a valid record")
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_mark_is_refused(*, clean: bool) -> None:
    """One of its records is whole after a kill and after a power cut."""
    origin = made(clean=clean)
    good = origin.files()["durable"]
    one, other = good[:12], good[12:]
    harmed = [b"", bytes(12), bytes(24), b"\xff" * 24, good[:7], good[:-1], good + b"\0", good * 2]
    flips = [flipped(one, bit) for bit in range(8 * len(one))]
    for content in [*harmed, *flips, *(f + flipped(other, n) for n, f in enumerate(flips))]:
        disk = origin.copy()
        disk.put("durable", content)
        refused(disk, 65, "'durable' .* is damaged.* 'group-coordinator log repair'")


@row("`durable` with one valid record")
def test_a_store_of_the_mark_that_is_torn_is_the_mark_before_it() -> None:
    """A kill between two stores of the processor, or a write of the page between them."""
    disk = Disk()
    journal = opened(disk)
    marks = [disk.files()["durable"]]
    for number in range(3):
        write(journal, 0, number)
        marks.append(disk.files()["durable"])
    disk.kill()
    assert len({decode_durable(mark) for mark in marks}) == len(marks)
    for before, after in pairwise(marks):
        known = decode_durable(before), decode_durable(after)
        for torn in torn_stores(before, after):
            assert decode_durable(torn) in known
            harmed = disk.copy()
            harmed.put("durable", torn)
            served(harmed, 3)


def torn_stores(before: bytes, after: bytes) -> Iterator[bytes]:
    """Yield each prefix and suffix of a store, and each choice of its words of 4 bytes."""
    size = len(after)
    for end in range(size + 1):
        yield after[:end] + before[end:]
        yield before[:end] + after[end:]
    for choice in product((before, after), repeat=size // 4):
        yield b"".join(taken[4 * n : 4 * n + 4] for n, taken in enumerate(choice))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=5), st.data())
def test_any_split_of_a_store_leaves_a_mark_that_was_true(
    positions: list[int], data: st.DataObject
) -> None:
    """A torn store reads as its own position, or as the one of the store before it."""
    disk = Disk()
    mark = DurablePosition(disk.directory(), 0)
    for position in sorted(positions):
        old = disk.files()["durable"]
        mark.put(position)
        new = disk.files()["durable"]
        taken = data.draw(st.lists(st.booleans(), min_size=len(new), max_size=len(new)))
        torn = bytes(n if is_new else o for is_new, o, n in zip(taken, old, new, strict=True))

        assert decode_durable(torn) in {decode_durable(old), decode_durable(new)}
        assert decode_durable(new) == position


def test_the_mark_of_an_older_build_is_read() -> None:
    """A mark of one record refuses a log that is cut off below it, as before."""
    origin = made(clean=False, count=3)
    end = decode_durable(origin.files()["durable"])
    older = origin.copy()
    older.put("durable", encode_durable(end))
    cut = older.copy()
    name = newest_segment(cut)
    cut.put(name, cut.files()[name].rstrip(b"\0")[:-1])

    assert len(encode_durable(end)) == 12
    refused(cut, 65, "on disk up to")
    served(older, 3)


@row("`durable` missing after a clean stop, or in a folder of format 1")
def test_a_mark_that_may_be_missing_is_made() -> None:
    """A clean stop says more; and before format 2 there were folders without."""
    closed = made(clean=True)
    closed.delete("durable")
    for disk, count in ((closed, COUNT), (old_folder(b""), 0)):
        served(disk, count)
        assert decode_durable(disk.files()["durable"]) > 0


def test_no_end_that_is_cut_off_together_with_the_mark_goes_unnoticed() -> None:
    """Acknowledged offsets were missing, and the log only said that a torn tail was cut."""
    origin = made(clean=False, count=3)
    name = newest_segment(origin)
    content = origin.files()[name]
    for mark in (None, b"", bytes(24), origin.files()["durable"][:7]):
        for size in range(len(content) + 1):
            disk = origin.copy()
            disk.put(name, content[:size])
            disk.delete("durable")
            if mark is not None:
                disk.put("durable", mark)
            refused(disk, 65, "durable")


@row(
    "a batch with a good checksum in a place where it wasn't written (bytes removed or repeated, "
    "another segment's content)"
)
@pytest.mark.parametrize("harm", ["removed", "bytes removed", "repeated", "another's"])
def test_batches_in_a_wrong_place_are_refused(harm: str) -> None:
    """All checksums are right."""
    disk = made(clean=False, count=3)
    name = newest_segment(disk)
    content = disk.files()[name]
    size = len(content) // 3
    other = made(clean=False)
    changed = {
        "removed": content[:size] + content[2 * size :],
        "bytes removed": content[:size] + content[size + 5 :],
        "repeated": content + content[-size:],
        "another's": other.files()[segments_of(other)[1]],
    }
    disk.put(name, changed[harm])
    words = {"bytes removed": "damaged at byte", "repeated": "goes back"}
    refused(disk, 65, words.get(harm, "written elsewhere"))


@row("a segment of the manifest is missing")
@pytest.mark.parametrize("index", [0, 1, -1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_segment_is_refused(index: int, *, clean: bool) -> None:
    """The manifest knows what must be there."""
    disk = made(clean=clean)
    name = segments_of(disk)[index]
    disk.delete(name)
    refused(disk, 65, f"segment {name} is missing")


@row("a sealed segment is empty or cut")
@pytest.mark.parametrize("left", [0, 100])
@pytest.mark.parametrize("clean", [True, False])
def test_a_cut_sealed_segment_is_refused(left: int, *, clean: bool) -> None:
    """Its size is in the manifest."""
    disk = made(clean=clean)
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
@pytest.mark.parametrize("is_second", [True, False])
def test_other_files_are_moved_aside(kind: str, *, is_second: bool) -> None:
    """Never replayed, and never removed, nor written over what is there already."""
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
    disk.put(".hidden", b"")
    if is_second:
        disk.put(f"aside/{file}", b"of an earlier time")

    assert served(disk) == ["log.file_moved_aside"]
    assert disk.files()[f"aside/{file}.2" if is_second else f"aside/{file}"] == content
    assert {".hidden"} == disk.files().keys() & {file, ".hidden"}


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

    assert opened(disk).directory.free_bytes() == 4711


@row("the disk is full when a flush is written, a segment rolls, or the manifest is replaced")
def test_a_flush_that_finds_no_room_is_written_in_that_of_the_ballast() -> None:
    """Every step of it: tests/log/test_crash_points.py."""
    disk = made(clean=True, count=1)
    journal = opened(disk)
    disk.plan(fail_at=0, error=errno.ENOSPC)
    write(journal, 0, 1)
    disk.kill()

    assert "ballast" not in disk.files()
    served(disk, 2)


@row("a write or fsync fails while it serves")
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


@pytest.mark.parametrize("change", ["gap", "sealed", "none", "garbage"])
def test_a_manifest_that_makes_no_sense_is_refused(change: str) -> None:
    """A right checksum is not enough."""
    disk = made(clean=True)

    def confuse(body: dict[str, Any]) -> None:
        segments = body["segments"]
        if change == "gap":
            del segments[1]
        elif change == "sealed":
            del segments[-1]
        elif change == "none":
            segments.clear()
        else:
            body["segments"] = 7

    edit(disk, "manifest", confuse)
    refused(disk, 65, "manifest")


def test_the_leader_epoch_has_an_end() -> None:
    """It is an i32 on the wire."""
    disk = made(clean=True)
    with pytest.raises(LogRefused, match="leader epoch"):
        open_journal(disk, leader_epoch_at_least=2**31)


def test_without_a_marker_the_torn_index_of_an_interrupted_roll_is_cut() -> None:
    """The old segment is still the newest then, with part of its index behind the data."""
    disk = Disk()
    journal = open_journal(disk, segment_bytes=100)
    write(journal, 0, 1)
    append(journal, 0, 2)
    taken = journal.take_flush()
    assert taken is not None
    assert taken.rolls
    disk.plan(crash_at=1)
    with pytest.raises(Exception, match="write"):
        journal.write_flush(taken)
    disk.kill()
    journal = open_journal(disk, segment_bytes=100)

    assert replayed(journal) == [1]
    assert "log.torn_tail_cut" in events_of(journal)


def test_the_last_flush_cut_at_every_byte_keeps_a_prefix() -> None:
    """A crash may keep any part of what was being written; of each batch all or nothing."""
    origin = Disk()
    journal = open_journal(origin)
    write(journal, 0, 1)
    write(journal, 1, 2)
    acknowledged = len(origin.files()[newest_segment(origin)])
    append(journal, 0, 3, 4)
    append(journal, 1, 5)
    append(journal, 0, 6)
    taken = flush(journal)
    origin.kill()
    origin.put("durable", encode_durable(acknowledged))  # As a power cut may leave it.
    name = newest_segment(origin)
    content = origin.files()[name]
    ends = [acknowledged + at for _, at in taken.batches[1:]] + [len(content)]
    for size in range(acknowledged, len(content) + 1):
        disk = origin.copy()
        disk.put(name, content[:size])
        journal = open_journal(disk)
        kept = sum(size >= end for end in ends)

        assert [1, 2, *[[], [3, 4], [3, 4, 5], [3, 4, 5, 6]][kept]] == replayed(journal)
        # The length of a batch begins with zeros, which may have been written ahead.
        torn = bool(content[[acknowledged, *ends][kept] : size].strip(b"\0"))
        assert torn == ("log.torn_tail_cut" in events_of(journal))
        append(journal, 1, 7)
        assert {1: 2 if kept < 2 else 3} == flush(journal).ends


def test_every_flipped_bit_of_the_last_flush_is_cut_without_a_marker() -> None:
    """Nothing tells it from a torn write: the promise's one exception."""
    origin = Disk()
    journal = open_journal(origin)
    write(journal, 0, 1)
    start = len(origin.files()[newest_segment(origin)])
    append(journal, 0, 2)
    append(journal, 0, 3)
    taken = flush(journal)
    origin.kill()
    origin.put("durable", encode_durable(start))  # As a power cut may leave it.
    name = newest_segment(origin)
    content = origin.files()[name]
    second = start + taken.batches[1][1]
    for bit in range(8 * start, 8 * len(content), 3):
        disk = origin.copy()
        disk.put(name, flipped(content, bit))

        assert [1, 2][: 1 + (bit // 8 >= second)] == replayed(open_journal(disk))


def test_a_killed_process_leaves_no_exception() -> None:
    """What was acknowledged is known then: cut at any byte of three entries, any bit flipped."""
    origin = Disk()
    journal = open_journal(origin)
    write(journal, 0, 1)
    start = len(origin.files()[newest_segment(origin)])
    for number in range(3):
        write(journal, number, number)
    origin.kill()
    name = newest_segment(origin)
    content = origin.files()[name]
    harmed = [content[:size] for size in range(start, len(content))]
    harmed += [content[:start] + bytes(len(content) - start)]
    harmed += [flipped(content, bit) for bit in range(8 * start, 8 * len(content))]
    for changed in harmed:
        disk = origin.copy()
        disk.put(name, changed)
        with pytest.raises(LogCorrupt, match=r"damaged at byte|was on disk up to"):
            open_journal(disk)
        assert changed == disk.files()[name]


def test_every_flipped_bit_after_a_clean_stop_refuses_to_start() -> None:
    """The marker says that nothing was torn."""
    origin = Disk()
    journal = open_journal(origin)
    write(journal, 0, 1)
    write(journal, 0, 2)
    journal.close(clean=True)
    name = newest_segment(origin)
    content = origin.files()[name]
    for bit in range(8 * len(content)):
        disk = origin.copy()
        disk.put(name, flipped(content, bit))
        with pytest.raises(LogCorrupt, match="closed in good order"):
            open_journal(disk)


@pytest.mark.parametrize("clean", [True, False])
def test_every_flipped_bit_of_a_sealed_segment_refuses(*, clean: bool) -> None:
    """A sealed segment is never torn. The index is checked at the open, the data by the replay."""
    origin = made(clean=clean)
    name = segments_of(origin)[0]
    content = origin.files()[name]
    for bit in range(0, 8 * len(content), 5):
        disk = origin.copy()
        disk.put(name, flipped(content, bit))
        with pytest.raises(LogRefused):
            replayed(opened(disk))
