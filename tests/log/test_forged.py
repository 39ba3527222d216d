"""What clients send is never taken for the log's own batches, whatever it is made of."""

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis.strategies import binary, booleans, integers, sampled_from

from coordinator.log.errors import LogCorrupt
from coordinator.log.format import Entry, FlushKey, Index, batch_at, encode_footer
from coordinator.log.journal import Journal
from coordinator.log.offline.compact import compact_stopped
from coordinator.log.state_files import decode_meta, encode_durable
from tests.fakes.disk import Disk
from tests.log.helpers import (
    NOW_MS,
    OpenBatch,
    encode_flush,
    flipped,
    newest_segment,
    numbers_of,
    segments_of,
)
from tests.log.old_format import OldBatch, old_flush
from tests.log.repairs import repaired, verdict

SECRET = b"the folder's own"
GUESS = FlushKey(b"one that's wrong")
FORGED = 10**9
PACKED = msgpack.packb([(0, 1, 0, "group", ("topic", FORGED), (FORGED, ""))])


def opened(disk: Disk, *, secret: bytes = SECRET) -> Journal:
    """Start a process; a first start gets this secret."""
    return Journal(
        disk.directory(),
        num_partitions=4,
        segment_bytes=1 << 20,
        node_id=1,
        new_cluster_id=lambda: "A" * 22,
        new_secret=lambda: secret,
        zeros_bytes=0,
    )


def forged(start: int, partition: int = 0) -> bytes:
    """Return whole batches that a client made: of both formats, and of a whole folder's segment."""
    batches: list[OpenBatch] = [(partition, 50, NOW_MS, PACKED)]
    old: list[OldBatch] = [(partition, 50, start, NOW_MS, PACKED)]
    return encode_flush(batches, 1, start, GUESS) + old_flush(old)


def whole_segment(start: int) -> bytes:
    """Return the segment of a folder of somebody's own, which has the same id and other numbers."""
    disk = Disk()
    other = opened(disk, secret=GUESS.secret)
    for number in range(3):
        value = (FORGED, b"\0" * start if not number else b"")
        other.append(0, [Entry(1, 0, "group", ("topic", FORGED + number), value)], NOW_MS)
        flush_of(other)
    return disk.files()[newest_segment(disk)]


def flush_of(journal: Journal) -> None:
    """Write what was appended."""
    taken = journal.take_flush()
    assert taken is not None
    journal.write_flush(taken)


def commit(journal: Journal, number: int, opaque: bytes) -> None:
    """Put one committed offset into the log, with bytes that a client chose."""
    journal.append(
        number % 2, [Entry(1, 0, "group", ("topic", number), (number, opaque, True))], NOW_MS
    )
    flush_of(journal)


def opaque_bytes(kind: str, start: int) -> bytes:
    """Return the bytes that a client chose."""
    if kind == "whole log":
        return whole_segment(start)
    return forged(start) + forged(start + 1, 1)


def loaded(disk: Disk) -> list[int]:
    """Return the numbers that a daemon would serve."""
    journal = opened(disk)
    numbers = [n for p in (0, 1) for b in journal.read(p) for n in numbers_of(b)]
    journal.close(clean=True)
    return sorted(numbers)


def killed_behind_a_commit(kind: str) -> tuple[Disk, str, bytes, range]:
    """Return a log that ends with opaque bytes: its newest segment, and where they were written."""
    disk = Disk()
    journal = opened(disk)
    commit(journal, 0, b"")
    before = journal.size_bytes
    commit(journal, 1, opaque_bytes(kind, 2 * before))
    written = range(before, journal.size_bytes)
    disk.kill()
    name = newest_segment(disk)
    return disk, name, disk.files()[name], written


KINDS = ["batches", "whole log"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_that_a_crash_cut_anywhere_is_a_torn_tail(kind: str) -> None:
    """Whatever was in it: the daemon starts, and nothing of it is served."""
    disk, name, content, written = killed_behind_a_commit(kind)
    for size in written:
        for tail in (b"", bytes(3)):
            cut = disk.copy()
            cut.put(name, content[:size] + tail)
            cut.put("durable", encode_durable(written.start))
            assert verdict(cut) is None
            assert loaded(cut) == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_write_with_any_damage_is_a_torn_tail(kind: str) -> None:
    """Pages of it may be on disk and others not, also those in front of what a client sent."""
    disk, name, content, written = killed_behind_a_commit(kind)
    for byte in range(written.start, len(content)):
        harmed = disk.copy()
        harmed.put(name, flipped(content, 8 * byte + byte % 8))
        harmed.put("durable", encode_durable(written.start))
        assert verdict(harmed) is None
        assert loaded(harmed) == [0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_a_repair_serves_no_offset_that_nobody_committed(
    kind: str, *, clean: bool, is_sealed: bool
) -> None:
    """Damage at every byte, in the newest segment and in one that was sealed."""
    disk = Disk()
    journal = opened(disk)
    for number in range(4):
        opaque = opaque_bytes(kind, 2 * journal.size_bytes) if number == 1 else b""
        commit(journal, number, opaque)
    if is_sealed:
        journal.want_roll()
        flush_of(journal)
    journal.close(clean=clean)
    disk.kill()
    name = segments_of(disk)[0]
    content = disk.files()[name]
    raw = batch_at(content, 0)
    assert raw is not None
    for byte in range(journal.size_bytes):
        harmed = disk.copy()
        harmed.put(name, flipped(content, 8 * byte + byte % 8))
        assert isinstance(verdict(harmed), LogCorrupt)
        repaired(harmed, fences=[(0, [Entry(1, 0, "group", ("topic", 99), (99, b""))])])

        assert verdict(harmed) is None
        found = set(loaded(harmed))
        assert len(found) == 4
        assert found < {0, 1, 2, 3, 99}


@pytest.mark.parametrize("clean", [True, False])
def test_what_removed_bytes_put_in_the_place_of_a_batch_is_not_taken(*, clean: bool) -> None:
    """The batch of a client at the very byte where one of the log should begin."""
    old: list[OldBatch] = [(0, 0, 7, NOW_MS, PACKED)]
    new: list[OpenBatch] = [(0, 0, NOW_MS, PACKED)]
    for piece in (old_flush(old), encode_flush(new, 1, 7, GUESS)):
        disk = Disk()
        journal = opened(disk)
        commit(journal, 0, piece)
        commit(journal, 1, b"")
        journal.close(clean=clean)
        disk.kill()
        name = newest_segment(disk)
        content = disk.files()[name]
        disk.put(name, content[content.index(piece) :])
        assert isinstance(verdict(disk), LogCorrupt)
        repaired(disk)

        assert loaded(disk) == [1]


@pytest.mark.parametrize("how", ["compacted", "repaired"])
def test_what_was_written_anew_is_found_behind_damage_too(how: str) -> None:
    """Its batches have the checks of a flush at 0, each of its own leader epoch."""
    disk = Disk()
    for run in range(2):
        journal = opened(disk)
        for number in range(3):
            commit(journal, 3 * run + number, b"")
        journal.close(clean=True)
    fences = [(0, [Entry(1, 0, "group", ("topic", 99), (99, b"", True))])]
    if how == "compacted":
        journal = opened(disk)
        compact_stopped(journal, segment_bytes=1 << 20, drop_before_ms=0)
        journal.close(clean=True)
    else:
        harm(disk)
        repaired(disk, fences=fences)
    before = set(loaded(disk))
    harm(disk)
    repaired(disk, fences=fences)

    assert len(before - set(loaded(disk))) == 1


@pytest.mark.parametrize("cluster_id", ["A" * 22, "B" * 22])
def test_an_index_that_a_client_sent_says_nothing_of_its_file(cluster_id: str) -> None:
    """A full disk cuts a write anywhere: then it may seem another segment's, or another cluster's.

    The index that was sent stands where the one of the first segment did, which is lost.
    """
    disk = Disk()
    journal = opened(disk)
    commit(journal, 0, b"")
    commit(journal, 1, bytes(100))
    journal.want_roll()
    flush_of(journal)
    first = journal.manifest.segments[0]
    assert first.end is not None
    assert first.data_bytes is not None
    sent = encode_footer(Index(first.base, first.end, {0: 1 << 63}, {}, cluster_id))
    commit(journal, 2, b"")
    commit(journal, 3, bytes(101) + sent)
    disk.kill()
    name = newest_segment(disk)
    content = disk.files()[name]
    assert content.index(sent) == first.data_bytes
    disk.put(name, content[: content.index(sent) + len(sent)])
    disk.put("durable", encode_durable(0))
    assert verdict(disk) is None
    disk.put(first.name, disk.files()[first.name][: first.data_bytes])
    assert isinstance(verdict(disk), LogCorrupt)
    repaired(disk)

    assert loaded(disk) == [0, 1, 2]


@pytest.mark.parametrize("end_offsets", [{0: (1 << 64) - 1}, {9: 1}])
def test_without_a_manifest_an_index_within_a_batch_seals_nothing(
    end_offsets: dict[int, int],
) -> None:
    """What a client says of the ends of partitions could not even be repaired."""
    disk = Disk()
    journal = opened(disk)
    for number in range(3):
        commit(journal, number, b"")
    sent = encode_footer(Index(0, 10**6, end_offsets, {}, "A" * 22))
    commit(journal, 3, sent)
    disk.kill()
    name = newest_segment(disk)
    content = disk.files()[name]
    disk.put(name, content[: content.index(sent) + len(sent)])
    disk.delete("manifest")
    disk.put("durable", encode_durable(0))
    assert isinstance(verdict(disk), LogCorrupt)
    repaired(disk)

    assert loaded(disk) == [0, 1, 2]


def harm(disk: Disk) -> None:
    """Damage the first batch of the log."""
    name = segments_of(disk)[0]
    disk.put(name, flipped(disk.files()[name], 400))


def test_the_secret_of_a_folder_stays() -> None:
    """A copy of the meta file of any age has it."""
    disk = Disk()
    for secret in (SECRET, GUESS.secret):
        opened(disk, secret=secret).close(clean=True)
        key = decode_meta(disk.files()["meta"]).key
        assert key == FlushKey(SECRET)
    journal = opened(disk)
    commit(journal, 0, b"")
    commit(journal, 1, b"")
    journal.close(clean=True)
    disk.put(newest_segment(disk), b"")
    repaired(disk)
    assert decode_meta(disk.files()["meta"]).key == key


@settings(max_examples=300)
@given(
    seed=integers(0, 2**32),
    noise=binary(max_size=40),
    kind=sampled_from(KINDS),
    removed=integers(0, 60),
    is_closed=booleans(),
    place=integers(0, 10**6),
)
def test_removed_bytes_leave_nothing_of_a_client_in_the_place_of_a_batch(
    seed: int, noise: bytes, kind: str, removed: int, place: int, *, is_closed: bool
) -> None:
    """Behind a cut out piece a batch that a client sent may begin where one is expected."""
    disk = Disk()
    journal = opened(disk)
    for number in range(3):
        start = seed % (4 * journal.size_bytes + 1)
        commit(journal, number, noise + opaque_bytes(kind, start))
    journal.close(clean=is_closed)
    disk.kill()
    name = newest_segment(disk)
    content = disk.files()[name]
    at = place % len(content)
    disk.put(name, content[:at] + content[at + removed :])
    if isinstance(verdict(disk), LogCorrupt):
        repaired(disk)

    assert set(loaded(disk)) <= {0, 1, 2}
