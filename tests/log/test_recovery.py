"""What each kind of damage does: cut, move aside, or refuse to start."""

import json
import random
import zlib
from collections.abc import Callable

import pytest

from coordinator.log.errors import LogCorrupt, LogIncompatible, LogLocked, LogRefused
from coordinator.log.format import Flush, encode_batch
from coordinator.log.journal import Journal
from coordinator.log.state_files import encode_durable
from tests.fakes.disk import Disk
from tests.log.helpers import (
    append,
    events_of,
    flush,
    newest_segment,
    open_journal,
    replayed,
    segments_of,
    write,
)

SEGMENT_BYTES = 300


def written_disk(*, clean: bool, count: int = 12) -> Disk:
    """Return a disk with several segments, and the numbers below *count* in partition order."""
    disk = Disk()
    journal = open_journal(disk, segment_bytes=SEGMENT_BYTES)
    for number in range(count):
        append(journal, number % 4, number)
        if number % 2:
            flush(journal)
    assert len(segments_of(disk)) > 2
    journal.close(clean=clean)
    disk.kill()
    return disk


def reopen(disk: Disk) -> Journal:
    """Open as the next run would."""
    return open_journal(disk, segment_bytes=SEGMENT_BYTES)


def refusal(disk: Disk, kind: type[LogRefused], match: str) -> None:
    """Open, be refused, and see that nothing was touched."""
    before = disk.files()
    with pytest.raises(kind, match=match):
        replayed(reopen(disk))
    disk.kill()

    assert before == disk.files() or "aside" in str(disk.files().keys() - before.keys())


def sealed_up(content: bytes, change: Callable[[dict[str, object]], object]) -> bytes:
    """Change a state file and give it the right checksum again."""
    body = json.loads(content.split(b"\n")[0])
    change(body)
    line = json.dumps(body).encode() + b"\n"
    return line + f"{zlib.crc32(line):08x}\n".encode()


@pytest.mark.parametrize("tail", [b"\x01", b"torn", bytes(10_000), random.Random(1).randbytes(999)])
def test_a_torn_tail_is_saved_aside_and_cut(tail: bytes) -> None:
    """Bytes of a write that nobody was told of."""
    disk = written_disk(clean=False)
    name = newest_segment(disk)
    whole = disk.files()[name]
    disk.put(name, whole + tail)
    journal = reopen(disk)

    assert list(range(12)) == replayed(journal)
    assert events_of(journal) == ["log.torn_tail_cut", "log.recovered_after_unclean_stop"]
    fields = journal.recovery_events[0][1]
    assert len(tail) == fields["cut_bytes"]
    assert tail == disk.files()[str(fields["saved_as"])]
    assert str(fields["saved_as"]).endswith(".torn")
    assert whole == disk.files()[newest_segment(disk)]
    write(journal, 0, 99)
    disk.kill()
    assert [*range(12), 99] == replayed(reopen(disk))


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
        torn = size not in {acknowledged, *ends}
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


def flipped(content: bytes, bit: int) -> bytes:
    """Return *content* with one bit turned."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


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
        with pytest.raises(LogCorrupt, match="damaged at byte") as refused:
            open_journal(disk)

        assert refused.value.exit_status == 65
        assert {name, "manifest", "meta", "durable"} == disk.files().keys()


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
    origin = written_disk(clean=clean)
    name = segments_of(origin)[0]
    content = origin.files()[name]
    for bit in range(0, 8 * len(content), 5):
        disk = origin.copy()
        disk.put(name, flipped(content, bit))
        with pytest.raises(LogRefused):
            replayed(reopen(disk))


@pytest.mark.parametrize("cut", [1, 50])
def test_a_log_cut_after_a_clean_stop_is_refused(cut: int) -> None:
    """An incomplete restore of a backup."""
    disk = written_disk(clean=True)
    name = newest_segment(disk)
    disk.put(name, disk.files()[name][:-cut])
    refusal(disk, LogCorrupt, "closed in good order")


def test_bytes_added_after_a_clean_stop_are_refused() -> None:
    """Someone else wrote there."""
    disk = written_disk(clean=True)
    name = newest_segment(disk)
    disk.put(name, disk.files()[name] + b"x")
    refusal(disk, LogCorrupt, "closed in good order")


@pytest.mark.parametrize("index", [0, 1, -1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_segment_is_refused_by_name(index: int, *, clean: bool) -> None:
    """The manifest knows what must be there."""
    disk = written_disk(clean=clean)
    name = segments_of(disk)[index]
    disk.delete(name)
    refusal(disk, LogCorrupt, f"segment {name} is missing")


@pytest.mark.parametrize("clean", [True, False])
def test_an_emptied_sealed_segment_is_refused(*, clean: bool) -> None:
    """Its size is in the manifest."""
    disk = written_disk(clean=clean)
    disk.put(segments_of(disk)[0], b"")
    refusal(disk, LogCorrupt, "has 0 bytes")


def test_a_renamed_segment_is_missing_under_its_name() -> None:
    """What it is called now doesn't matter: it isn't replayed."""
    disk = written_disk(clean=False)
    name = segments_of(disk)[0]
    disk.put("renamed.segment", disk.files()[name])
    disk.delete(name)
    refusal(disk, LogCorrupt, "missing")


def test_two_segments_that_changed_names_are_refused() -> None:
    """The index says which segment it is."""
    disk = written_disk(clean=False)
    first, second, *_ = segments_of(disk)
    content = disk.files()
    disk.put(first, content[second])
    disk.put(second, content[first])
    refusal(disk, LogCorrupt, "replaced")


def test_the_newest_segment_with_the_bytes_of_another_is_refused() -> None:
    """Its batches are valid, and say that they were written elsewhere."""
    disk = written_disk(clean=False)
    content = disk.files()
    disk.put(newest_segment(disk), content[segments_of(disk)[0]])
    refusal(disk, LogCorrupt, "written elsewhere")


def test_bytes_removed_from_the_middle_are_refused() -> None:
    """All checksums are right."""
    disk = Disk()
    journal = open_journal(disk)
    sizes = [len(flushed.data) for flushed in (write_one(journal, n) for n in range(4))]
    disk.kill()
    name = newest_segment(disk)
    content = disk.files()[name]
    disk.put(name, content[: sizes[0]] + content[sizes[0] + sizes[1] :])
    refusal(disk, LogCorrupt, "written elsewhere")
    disk.put(name, content[: sizes[0]] + content[sizes[0] + 5 :])
    refusal(disk, LogCorrupt, "damaged at byte")
    disk.put(name, content + content[-sizes[3] :])
    refusal(disk, LogCorrupt, "goes back")


def write_one(journal: Journal, number: int) -> Flush:
    """Write one entry and return its flush."""
    append(journal, 0, number)
    return flush(journal)


def test_a_duplicated_segment_is_moved_aside() -> None:
    """Replayed twice, its offsets would go back."""
    disk = written_disk(clean=True)
    name = segments_of(disk)[0]
    content = disk.files()[name]
    disk.put("copy-of-" + name, content)
    disk.put("aside/copy-of-" + name, b"of an earlier time")
    journal = reopen(disk)

    assert list(range(12)) == replayed(journal)
    assert events_of(journal) == ["log.file_moved_aside"]
    assert content == disk.files()[f"aside/copy-of-{name}.2"]
    assert "copy-of-" + name not in disk.files()


def test_foreign_files_are_moved_aside_and_hidden_ones_left() -> None:
    """Never replayed, never removed."""
    disk = written_disk(clean=True)
    disk.put("notes.txt", b"hello")
    disk.put(".keep", b"")
    disk.put("manifest.tmp", b"half a mani")
    journal = reopen(disk)

    assert list(range(12)) == replayed(journal)
    assert disk.files()["aside/notes.txt"] == b"hello"
    assert ".keep" in disk.files()
    assert "manifest.tmp" not in disk.files()


def test_a_folder_with_other_peoples_files_is_no_data_folder() -> None:
    """A wrong --data-dir must not move somebody's files about."""
    disk = Disk()
    disk.put("thesis.tex", b"...")
    refusal(disk, LogIncompatible, "thesis.tex")


def test_a_second_process_is_refused() -> None:
    """Two writers would destroy the log."""
    disk = written_disk(clean=False)
    journal = reopen(disk)
    write(journal, 0, 12)
    with pytest.raises(LogLocked, match="in use") as refused:
        reopen(disk)

    assert refused.value.exit_status == 78
    write(journal, 0, 13)
    assert list(range(14)) == replayed(journal)
    journal.close(clean=True)
    assert list(range(14)) == replayed(reopen(disk))


def test_another_number_of_partitions_is_refused() -> None:
    """Groups would be looked for where they are not."""
    disk = written_disk(clean=False)
    before = disk.files()
    with pytest.raises(LogIncompatible, match=r"4 offsets partitions.*say 50") as refused:
        open_journal(disk, num_partitions=50)

    assert refused.value.exit_status == 78
    assert before == disk.files()


def test_another_node_id_is_refused() -> None:
    """The wrong volume is mounted."""
    disk = written_disk(clean=False)
    with pytest.raises(LogIncompatible, match="node 1"):
        open_journal(disk, node_id=2)


@pytest.mark.parametrize("name", ["meta", "manifest", "clean"])
def test_a_state_file_of_a_newer_release_is_refused(name: str) -> None:
    """A downgrade would misread what it doesn't know."""
    disk = written_disk(clean=True)
    disk.put(name, sealed_up(disk.files()[name], lambda body: body.update(format=2)))
    refusal(disk, LogIncompatible, "newer release")


def test_a_batch_of_a_newer_release_is_refused() -> None:
    """It is neither damage nor readable."""
    disk = Disk()
    journal = open_journal(disk)
    write(journal, 0, 1)
    disk.kill()
    name = newest_segment(disk)
    content = disk.files()[name]
    _, rest, packed = encode_batch((0, 1, 1, len(content), 0), b"\x90")
    rest = b"\x02" + rest[1:]
    prefix = (len(rest) + 1).to_bytes(4, "big") + zlib.crc32(rest + packed).to_bytes(4, "big")
    disk.put(name, content + prefix + rest + packed)
    refusal(disk, LogIncompatible, "of format 2")


@pytest.mark.parametrize("name", ["meta", "manifest", "clean"])
def test_every_flipped_bit_of_a_state_file_is_refused(name: str) -> None:
    """They are replaced whole, so a crash can't do it."""
    origin = written_disk(clean=True)
    content = origin.files()[name]
    for bit in range(0, 8 * len(content), 3):
        disk = origin.copy()
        disk.put(name, flipped(content, bit))
        with pytest.raises(LogCorrupt, match=f"'{name}'"):
            reopen(disk)


@pytest.mark.parametrize("name", ["meta", "manifest"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_state_file_is_refused_where_there_was_data(name: str, *, clean: bool) -> None:
    """To start empty would be the loss of everything, silently."""
    disk = written_disk(clean=clean)
    disk.delete(name)
    refusal(disk, LogCorrupt, name)


def test_a_missing_meta_file_is_refused_though_the_segments_are_gone_too() -> None:
    """A manifest that was rewritten says that the folder was served."""
    disk = written_disk(clean=False)
    for name in ["meta", *segments_of(disk)]:
        disk.delete(name)
    refusal(disk, LogCorrupt, "meta")


@pytest.mark.parametrize("change", ["gap", "sealed", "none", "garbage"])
def test_a_manifest_that_makes_no_sense_is_refused(change: str) -> None:
    """A right checksum is not enough."""
    disk = written_disk(clean=True)

    def edit(body: dict[str, object]) -> None:
        segments = body["segments"]
        assert isinstance(segments, list)
        if change == "gap":
            del segments[1]
        elif change == "sealed":
            del segments[-1]
        elif change == "none":
            segments.clear()
        else:
            body["segments"] = 7

    disk.put("manifest", sealed_up(disk.files()["manifest"], edit))
    refusal(disk, LogCorrupt, "manifest")


def test_the_leader_epoch_has_an_end() -> None:
    """It is an i32 on the wire."""
    disk = written_disk(clean=True)
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
    disk.plan(crash_at=0)
    with pytest.raises(Exception, match="append"):
        journal.write_flush(taken)
    disk.kill()
    journal = open_journal(disk, segment_bytes=100)

    assert replayed(journal) == [1]
    assert "log.torn_tail_cut" in events_of(journal)
