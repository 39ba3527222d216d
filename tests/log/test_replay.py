"""Reading the log back piece by piece: what a load does."""

from array import array

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.log.format import (
    HEADER_BYTES,
    PART_BYTES,
    PART_KEYS,
    Batch,
    Entry,
    Item,
    encode_batch,
    split_item,
)
from coordinator.log.replay import PORTION_KEYS, IndexedSegment, PartitionReplay, Replay
from coordinator.log.segments import WINDOW_BYTES
from tests.fakes.disk import Disk, DiskDirectory
from tests.log.helpers import (
    NOW_MS,
    append,
    entry,
    flush,
    loaded,
    newest_segment,
    numbers_of,
    open_journal,
    replayed,
    wide_entry,
    write,
)


def taken(replay: Replay) -> list[Batch]:
    """Return everything that *replay* yields, fetch by fetch."""
    batches: list[Batch] = []
    replay.fetch()
    while not replay.at_end:
        batches += replay.batches()
        assert replay.done_bytes <= replay.total_bytes
        replay.fetch()
    assert replay.done_bytes == replay.total_bytes
    return batches


def taken_in_portions(replay: Replay) -> dict[int, list[Item]]:
    """Return all entries that *replay* yields, by partition."""
    found: dict[int, list[Item]] = {}
    num_keys = 0
    replay.fetch()
    while not replay.at_end:
        for gathered, portion_keys in replay.portions():
            assert 0 < portion_keys < PORTION_KEYS + PART_KEYS
            num_keys += portion_keys
            for partition, items in gathered.items():
                found.setdefault(partition, []).extend(items)
        replay.fetch()
    assert num_keys == sum(len(split_item(item)) for items in found.values() for item in items)
    return found


def big_entries(count: int, value_bytes: int = 0) -> list[Entry]:
    """Return entries that are told apart by their key."""
    return [Entry(1, 0, "g", ("t", n), (bytes(value_bytes),)) for n in range(count)]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans(), st.booleans()), max_size=30
    ),
    st.sampled_from([64, 300, 10_000]),
)
def test_a_load_of_all_is_the_loads_of_each(
    steps: list[tuple[int, int, bool, bool]], segment_bytes: int
) -> None:
    """Whatever was appended to which partition, and however it was flushed."""
    journal = open_journal(Disk(), segment_bytes=segment_bytes)
    number = 0
    for partition, count, flushes, wide in steps:
        append(journal, partition, *range(number, number + count), wide=wide)
        number += count
        if flushes:
            flush(journal)
    append(journal, 3, number)
    flush(journal)
    number += 1

    everything = taken(journal.load())

    assert everything == list(loaded(journal))
    in_portions = taken_in_portions(journal.load())
    for partition in range(4):
        alone = journal.load_partition(partition)
        batches: list[Batch] = []
        alone.fetch()
        while not alone.at_end:
            batches += alone.batches()
            alone.fetch()
        alike = [b for b in everything if b.partition == partition]
        assert batches == alike
        items = [item for batch in alike for item in batch.items]
        assert items == in_portions.get(partition, [])
        assert items == taken_in_portions(journal.load_partition(partition)).get(partition, [])
        assert alone.ends == {partition: journal.end_offset(partition)}
    assert sorted(n for b in everything for n in numbers_of(b)) == list(range(number))


def test_a_large_batch_comes_in_parts_that_are_the_whole() -> None:
    """Nobody has to wait until 100,000 entries are unpacked."""
    journal = open_journal(Disk())
    write(journal, 0, 1)
    journal.append(0, big_entries(100_000), NOW_MS)
    flush(journal)
    write(journal, 0, 2)

    for replay in (journal.load(), journal.load_partition(0)):
        replay.fetch()
        batches: list[Batch] = []
        while not replay.at_end:
            batches += replay.batches()
            replay.fetch()
        assert max(len(batch.items) for batch in batches) <= PART_KEYS
        offsets = [offset for batch in batches for offset, _ in batch.entries]
        assert offsets == list(range(100_002))
        keys = [entry.key for batch in batches[1:-1] for _, entry in batch.entries]
        assert keys == [("t", n) for n in range(100_000)]


@pytest.mark.parametrize("padding", [0, PART_BYTES])
def test_a_wide_entry_comes_in_parts(padding: int) -> None:
    """It stands for as many keys as a request may name, in few bytes or in many."""
    journal = open_journal(Disk())
    append(journal, 0, *range(10_000), padding=padding, wide=True)
    flush(journal)
    write(journal, 0, 10_000)

    for replay in (journal.load(), journal.load_partition(0)):
        replay.fetch()
        batches = list(replay.batches())
        assert max(len(batch.entries) for batch in batches) <= PART_KEYS
        assert [n for batch in batches for n in numbers_of(batch)] == list(range(10_001))
        assert [o for batch in batches for o, _ in batch.entries] == list(range(10_001))
        assert sum(batch.num_keys for batch in batches) == replay.ends[0] == 10_001
    (items,) = taken_in_portions(journal.load()).values()
    assert items == [item for batch in batches for item in batch.items]


def test_many_small_batches_come_in_portions() -> None:
    """So that others have their turn between them, and each costs little."""
    journal = open_journal(Disk())
    for number in range(2 * PORTION_KEYS + 1):
        append(journal, number % 3, number)
    flush(journal)

    whole, alone = journal.load(), journal.load_partition(1)
    whole.fetch()
    alone.fetch()
    assert [num_keys for _, num_keys in whole.portions()] == [PORTION_KEYS, PORTION_KEYS, 1]
    assert [num_keys for _, num_keys in alone.portions()] == [2 * PORTION_KEYS // 3 + 1]


@pytest.mark.parametrize("has_more", [False, True])
def test_wide_entries_that_leave_offsets_out_are_corruption(*, has_more: bool) -> None:
    """In what was not compacted, each one begins where the one before ends."""
    journal = open_journal(Disk())
    items = [(0, *wide_entry(1, 2)), (3, *wide_entry(3, 4))]
    items += [(5 + n, *entry(n, padding=90)) for n in range(1_000)] if has_more else []
    journal.append_packed(0, 1, msgpack.packb(items), NOW_MS)
    flush(journal)
    replay = journal.load()
    replay.fetch()

    with pytest.raises(LogCorrupt, match="gaps"):
        list(replay.batches())


def test_a_batch_larger_than_the_window_is_read_whole() -> None:
    """The window grows for it, and is small again behind it."""
    journal = open_journal(Disk())
    write(journal, 1, 1)
    journal.append(0, big_entries(3, WINDOW_BYTES), NOW_MS)
    flush(journal)
    write(journal, 1, 2)

    assert [len(b.items) for b in taken(journal.load())] == [1, 3, 1]
    whole = [batch.entries for batch in loaded(journal)]
    assert whole == [batch.entries for batch in taken(journal.load())]


@pytest.mark.parametrize("position", [5, 20, HEADER_BYTES, HEADER_BYTES + 2_000_000])
def test_a_flipped_bit_in_a_large_batch_is_found_before_anything_of_it_is_yielded(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum is looked at where the file is read, in a thread."""
    disk = Disk()
    journal = open_journal(disk)
    journal.append(0, big_entries(3, WINDOW_BYTES), NOW_MS)
    flush(journal)
    replay = journal.load()
    read = DiskDirectory.read

    def damaged(self: DiskDirectory, name: str, start: int = 0, size: int | None = None) -> bytes:
        data = bytearray(read(self, name, start, size))
        if position < len(data):
            data[position] ^= 1
        return bytes(data)

    monkeypatch.setattr(DiskDirectory, "read", damaged)
    with pytest.raises(LogCorrupt, match="is damaged"):
        taken(replay)


@pytest.mark.parametrize("count", [1, 3_000])
def test_entries_that_are_none_are_corruption_in_parts_as_in_the_whole(count: int) -> None:
    """The checksum may be right all the same."""
    good = [(n, 1, 0, "g", ("t", n), (bytes(30),)) for n in range(count)]
    for bad in ([*good, 5], [*good, (0, 1)], [("x", *good[0][1:])]):
        disk = Disk()
        journal = open_journal(disk)
        journal.append_packed(0, 1, msgpack.packb(bad), NOW_MS)
        flush(journal)
        for replay in (journal.load(), journal.load_partition(0)):
            replay.fetch()
            with pytest.raises(LogCorrupt, match="can't be read"):
                assert [batch.items for batch in replay.batches()]
        replay = journal.load()
        replay.fetch()
        with pytest.raises(LogCorrupt, match="can't be read"):
            assert list(replay.portions())


def test_something_behind_the_last_entry_of_a_large_batch_is_corruption() -> None:
    """Whoever wrote it did not write it like this."""
    journal = open_journal(Disk())
    packed = msgpack.packb([(n, 1, 0, "g", ("t", n), (bytes(30),)) for n in range(3_000)])
    journal.append_packed(0, 3_000, packed + b"\x00", NOW_MS)
    flush(journal)

    replay = journal.load()
    replay.fetch()
    with pytest.raises(LogCorrupt, match="behind the last one"):
        list(replay.batches())


def test_a_file_that_cannot_be_read_is_a_failing_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not damage: a repair would be the wrong advice."""
    journal = open_journal(Disk())
    write(journal, 0, 1)

    def failing(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(DiskDirectory, "read", failing)
    for replay in (journal.load(), journal.load_partition(0)):
        with pytest.raises(LogFailed):
            replay.fetch()


def test_an_index_that_leads_to_another_partition_is_corruption() -> None:
    """What is read through it is checked like everything else."""
    disk = Disk()
    journal = open_journal(disk)
    write(journal, 0, 1)
    segment = IndexedSegment(newest_segment(disk), journal.size_bytes, array("I", [0]))

    replay = PartitionReplay(journal.directory, 1, [segment], journal.size_bytes)
    replay.fetch()
    with pytest.raises(LogCorrupt, match="leads to"):
        list(replay.batches())


def test_offsets_that_jump_are_corruption_where_nothing_was_compacted() -> None:
    """A segment in between is gone, though everything fits otherwise."""
    disk = Disk()
    journal = open_journal(disk)
    append(journal, 0, 1)
    taken = flush(journal)
    disk.kill()
    packed = msgpack.packb([(0, *entry(2))])
    stranger = b"".join(encode_batch((0, 1, 5, len(taken.data), 0, 0), packed))
    disk.put(newest_segment(disk), taken.data + stranger)

    with pytest.raises(LogCorrupt, match="begins at offset 5 of partition 0, not at 1"):
        replayed(open_journal(disk))
