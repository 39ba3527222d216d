"""What is read from the log by column is what is read entry by entry, or isn't read at all."""

from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st

from coordinator.group.alike import read_alike
from coordinator.group.offset_store import pack_row, unpack_row
from coordinator.group.records import OffsetsCommitted, pack, read_items

TIME_MS = 1_700_000_000_000
PARTITIONS = st.integers(0, 2**31 - 1) | st.integers(0, 300)
OFFSETS = st.integers(0, 2**63 - 1) | st.integers(0, 70_000)
ROWS = st.dictionaries(
    PARTITIONS,
    st.tuples(OFFSETS, st.integers(-1, 300), st.text(max_size=3) | st.just("")),
    min_size=1,
    max_size=40,
)


def commit(rows: dict[int, tuple[int, int, str]]) -> OffsetsCommitted:
    """Return the record of a commit."""
    packed = {p: pack_row(p, *value) for p, value in rows.items()}
    return OffsetsCommitted("etl", "orders", packed, TIME_MS)


def values(record: OffsetsCommitted) -> list[tuple[int, tuple[int, int, str]]]:
    """Return the rows unpacked: an int may be longer than it need be."""
    return [(partition, unpack_row(row)) for partition, row in record.rows.items()]


def read(packed: bytes) -> list[Any]:
    """Return what the entries are, one by one."""
    return list(read_items(msgpack.unpackb(packed, use_list=False)))


@given(ROWS)
def test_what_is_read_by_column_is_what_is_read_entry_by_entry(
    rows: dict[int, tuple[int, int, str]],
) -> None:
    """Whatever was committed."""
    record = commit(rows)
    _, packed = pack([record])

    assert read_alike(packed) in (record, None)
    assert read(packed) == [record]


@pytest.mark.parametrize("first", [0, 300, 70_000, 2**31 - 200])
@pytest.mark.parametrize("offset", [0, 200, 70_000, 2**32, 2**63 - 200])
@pytest.mark.parametrize("metadata", ["", "abc"])
@pytest.mark.parametrize("count", [8, 15, 16, 100, 128])
def test_a_large_commit_is_read_by_column(
    first: int, offset: int, metadata: str, count: int
) -> None:
    """Offsets and partitions of the same magnitude, as nearly all large commits have."""
    rows = {first + n: (offset + n % 20, -1, metadata) for n in range(count)}
    record = commit(rows)
    _, packed = pack([record])

    assert read_alike(packed) == record


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_byte_that_is_another_changes_the_record_as_it_changes_the_entries(
    at: int, byte: int
) -> None:
    """Never is something read that is not there."""
    rows = {200 + n: (70_000 + n, 5, "ab") for n in range(10)}
    _, whole = pack([commit(rows)])
    packed = bytearray(whole)
    packed[at % len(packed)] = byte
    record = read_alike(bytes(packed))

    if record is not None:
        (expected,) = read(bytes(packed))
        assert record[:2] + record[3:] == expected[:2] + expected[3:]
        assert values(record) == values(expected)


@pytest.mark.parametrize(
    "changed",
    [
        (8, 1, 0, "etl", ("orders", 8), (9, -1, "", TIME_MS, -1)),  # The distance has a gap.
        (7, 1, 0, "etl", ("orders", 7), None),
        (7, 1, 0, "alt", ("orders", 7), (9, -1, "", TIME_MS, -1)),
        (7, 1, 0, "etl", ("others", 7), (9, -1, "", TIME_MS, -1)),
        (7, 1, 0, "etl", ("orders", 7), (9, -1, "", TIME_MS + 1, -1)),
        (7, 1, 0, "etl", ("orders", 7), (9, -1, "", TIME_MS, 5)),
        (7, 2, 0, "etl", ("orders", 7), (9, -1, "", TIME_MS, -1)),
        (7, 1, 1, "etl", ("orders", 7), (9, -1, "", TIME_MS, -1)),
        (7, 1, 0, "etl", ("orders", 7), (-9, -1, "", TIME_MS, -1)),
        (7, 1, 0, "etl", ("orders", 7), (9, None, "", TIME_MS, -1)),
        (7, 1, 0, "etl", ("orders", 7), (None, -1, "", TIME_MS, -1)),
        (7, 1, 0, "etl", ("orders", 7), (9, -1, None, TIME_MS, -1)),
        (7, 1, 0, "etl", ("orders", None), (9, -1, "", TIME_MS, -1)),
    ],
)
@pytest.mark.parametrize("place", [0, 7])
def test_an_entry_that_is_another_is_never_taken_for_one_of_them(
    changed: tuple[Any, ...], place: int
) -> None:
    """Wherever it stands."""
    entries = [(n, 1, 0, "etl", ("orders", n), (9, -1, "", TIME_MS, -1)) for n in range(8)]
    entries[place] = (changed[0] - 7 + place, *changed[1:])

    assert read_alike(msgpack.packb(entries)) is None


def test_entries_that_are_written_at_greater_length_are_read_one_by_one() -> None:
    """Other software might write them so; the rows of a fetch must be ours."""
    small = msgpack.packb((0, 1, 0, "etl", ("orders", 7), (9, -1, "", TIME_MS, -1)))
    for longer in (b"\xcc\x07\x95\x09", b"\x07\x95\xcc\x09"):
        entry = small.replace(b"\x07\x95\x09", longer)
        entries = [entry[:1] + bytes((n,)) + entry[2:] for n in range(8)]

        assert read_alike(b"\x98" + b"".join(entries)) is None


def test_a_partition_that_is_written_at_greater_length_is_found_behind_the_first() -> None:
    """The first may need the length, and others not."""
    entries = [(n, 1, 0, "etl", ("orders", 200 + n), (9, -1, "", TIME_MS, -1)) for n in range(8)]
    packed: bytes = msgpack.packb(entries)
    shortened = packed.replace(b"\xcc\xcb", b"\xcc\x05")

    assert read_alike(packed) is not None
    assert len(read(shortened)) == 1
    assert read_alike(shortened) is None
