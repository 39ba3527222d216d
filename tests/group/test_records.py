"""Records and their place in the log."""

from typing import Any

import msgpack
import pytest
from msgspec import structs

from coordinator.group.records import (
    GroupDeleted,
    GroupGeneration,
    GroupMetadata,
    GroupOwned,
    GroupRebalanced,
    GroupRetention,
    MalformedRecord,
    MemberMetadata,
    OffsetRemoved,
    OffsetsCommitted,
    Record,
    UnknownRecord,
    from_entry,
    read_item,
)
from protocol.messages import LateMember, PartitionOffset, Rebalance
from tests.group.context import roundtrip
from tests.packed import entry_of, offsets_of

LATE = (LateMember("b", "c", "h", "join", 60_000, removed=True),)

RECORDS: list[Record] = [
    OffsetsCommitted("g", "t", offsets_of(PartitionOffset(3, 2**63 - 1, 7, "m", 0)), 1_700, -1),
    GroupMetadata("g", "", 0, None, None, -1, ()),
    GroupMetadata(
        "g",
        "consumer",
        2**31 - 1,
        "range",
        "a",
        5,
        (
            MemberMetadata("a", None, "c", "h", 60_000, 10_000, b"s", b""),
            MemberMetadata("b", "i", "c", "h", -1, 10_000, b"", b"\xff", "flights-.*"),
        ),
        7,
    ),
    GroupGeneration("g", 4, 9),
    GroupDeleted("g"),
    OffsetRemoved("g", "t", 3),
    GroupRetention("g", 5),
    GroupRetention("g", None),
    GroupRebalanced(
        "g", Rebalance(205, 9, "why", "m", None, "c", "h", "r", 1, 2, 30, 40, 5, "stable", LATE)
    ),
    GroupOwned("g", "User:alice"),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_from_the_log_as_it_was(record: Record) -> None:
    """Equal and of the same type, or replay would differ from what was live."""
    back = roundtrip(record)

    assert record == back
    assert type(record) is type(back)


@pytest.mark.parametrize("record", RECORDS)
def test_the_scope_of_an_entry_is_the_group(record: Record) -> None:
    """A tombstone of the scope takes all of it."""
    assert entry_of(record)[2] == "g"


def test_entries_carry_kafkas_type_numbers_and_ours_from_1000() -> None:
    """They are on disk for ever."""
    assert [entry_of(record)[:2] for record in RECORDS] == [
        (1, 1),
        (2, 1),
        (2, 1),
        (1000, 0),
        (1001, 0),
        (1, 1),
        (1002, 0),
        (1002, 0),
        (1003, 0),
        (1004, 0),
    ]


def test_what_is_taken_back_is_a_tombstone_of_its_key() -> None:
    """So that compaction drops both in the end."""
    tombstones = [record for record in RECORDS if entry_of(record)[4] is None]

    assert tombstones == [
        GroupDeleted("g"),
        OffsetRemoved("g", "t", 3),
        GroupRetention("g", None),
    ]


def test_each_offset_has_a_key_of_its_own_and_rebalances_share_a_hundred() -> None:
    """And a group has one record of each other type: compaction keeps the last."""
    keys = [entry_of(record)[3] for record in RECORDS]

    assert keys == [("t", 3), (), (), (), (), ("t", 3), (), (), (5,), ()]


def test_a_record_of_the_first_version_is_read() -> None:
    """It has neither a pattern nor the version of the registry."""
    member = ("a", None, "c", "h", 60_000, 10_000, b"s", b"")

    assert from_entry(2, 0, "g", (), ("consumer", 3, "range", "a", 5, (member,))) == (
        GroupMetadata("g", "consumer", 3, "range", "a", 5, (MemberMetadata(*member, None),), 0)
    )


@pytest.mark.parametrize(("type_", "version"), [(3, 0), (0, 0), (1, 2), (2, 3), (2, -1), (1005, 0)])
def test_an_unknown_type_or_version_is_refused(type_: int, version: int) -> None:
    """A newer release wrote it; skipping it would lose state silently."""
    with pytest.raises(UnknownRecord):
        from_entry(type_, version, "g", (), ())


@pytest.mark.parametrize(
    ("type_", "key", "value"),
    [
        (1, ("t",), (1, 2, "", 3, 4)),
        (1, ("t", 0), (1, 2)),
        (1, ("t",), None),
        (1, ("t", (0, 1)), ((5, 6), -1, "", 3, 4)),  # Version 0 has no wide entries.
        (1, ("t", "0"), (1, 2, "", 3, 4)),
        (1002, (), (1, 2)),
        (1003, (), None),
        (1003, (), (1, 2, ())),
        (2, (), ("consumer", 1)),
        (2, (), ("consumer", 1, None, None, 0, ((1, 2),))),
        (1000, (), ()),
        (1004, (), ()),
        (1004, (), (7,)),
    ],
)
def test_a_record_of_another_shape_is_refused(type_: int, key: object, value: object) -> None:
    """Damage that the checksum missed, or a bug: never guessed at."""
    with pytest.raises(MalformedRecord):
        from_entry(type_, 0, "g", key, value)


WIDE: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
    ((7,), ((5,), (1,), ("m",), 8, -1)),
    ((3, 1, 2**31 - 1), ((30, 10, 2**63 - 1), -1, "", 8, 9)),
    ((0, 1), ((5, 6), (7, -1), "same", 8, -1)),
    ((0, 1), ((5, 6), 4, ("a", "b"), 8, -1)),
    ((0, 1), (5, 4, "", 8, -1)),
]


@pytest.mark.parametrize(("partitions", "value"), WIDE)
def test_an_entry_for_several_partitions_says_what_one_for_each_would(
    partitions: tuple[int, ...], value: tuple[Any, ...]
) -> None:
    """Whether leader epoch and metadata are the same for all, or there is one for each."""
    narrow = [
        (at, 1, 1, "g", ("t", partition), [c[at] if type(c) is tuple else c for c in value])
        for at, partition in enumerate(partitions)
    ]

    wide = from_entry(1, 1, "g", ("t", partitions), value)
    assert wide == from_entry(1, 1, "g", ["t", [*partitions]], [*map(listed, value)])
    assert isinstance(wide, OffsetsCommitted)
    each = [structs.replace(wide, offsets={p: wide.offsets[p]}) for p in partitions]
    assert each == [*map(read_item, narrow)]


def listed(part: Any) -> Any:
    """Return a tuple as a list, and anything else as it is."""
    return list(part) if type(part) is tuple else part


@pytest.mark.parametrize(
    ("partitions", "value"),
    [
        ((), ((), -1, "", 8, -1)),
        ((0, 1), ((5,), -1, "", 8, -1)),
        ((0, 1), ((5, 6), (1, 2, 3), "", 8, -1)),
        ((0, 1), ((5, 6), -1, ("a",), 8, -1)),
        ((0, 1), ((5, 6), -1, "", (8, 9), -1)),
        ((0, 1), ((5, 6), -1, "", 8, (-1, -1))),
        ((0, 1), ((5, 6), -1, "", 8)),
        ((0, "1"), ((5, 6), -1, "", 8, -1)),
        ((0, (1,)), ((5, 6), -1, "", 8, -1)),
        ((0, 1), None),
    ],
)
def test_an_entry_for_several_partitions_of_another_shape_is_refused(
    partitions: object, value: object
) -> None:
    """With columns that don't fit, nobody knows whose offset is whose."""
    with pytest.raises(MalformedRecord):
        from_entry(1, 1, "g", ("t", partitions), value)


def test_lists_do_as_well_as_tuples() -> None:
    """Whatever the reader's msgpack settings are."""
    for record in RECORDS:
        entry = msgpack.unpackb(msgpack.packb(entry_of(record)))

        assert record == from_entry(*entry)
