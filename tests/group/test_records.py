"""Records and their place in the log."""

from typing import Any

import msgpack
import pytest

from coordinator.group.records import (
    GroupDeleted,
    GroupGeneration,
    GroupMetadata,
    GroupRebalanced,
    GroupRetention,
    MalformedRecord,
    MemberMetadata,
    OffsetRemoved,
    OffsetsCommitted,
    Record,
    UnknownRecord,
    from_entry,
    pack_row,
)
from protocol.messages import LateMember, Rebalance
from tests.group.context import roundtrip
from tests.packed import entries_of

LATE = (LateMember("b", "c", "h", "join", 60_000, removed=True),)

RECORDS: list[Record] = [
    OffsetsCommitted("g", "t", {3: pack_row(3, 2**63 - 1, 7, "m")}, 1_700, -1),
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
]


def entry_of(record: Record) -> tuple[Any, ...]:
    """Return the one entry of *record*."""
    (entry,) = entries_of(record)
    return entry


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
        (1, 0),
        (2, 1),
        (2, 1),
        (1000, 0),
        (1001, 0),
        (1, 0),
        (1002, 0),
        (1002, 0),
        (1003, 0),
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

    assert keys == [("t", 3), (), (), (), (), ("t", 3), (), (), (5,)]


def test_a_record_of_the_first_version_is_read() -> None:
    """It has neither a pattern nor the version of the registry."""
    member = ("a", None, "c", "h", 60_000, 10_000, b"s", b"")

    assert from_entry(2, 0, "g", (), ("consumer", 3, "range", "a", 5, (member,))) == (
        GroupMetadata("g", "consumer", 3, "range", "a", 5, (MemberMetadata(*member, None),), 0)
    )


@pytest.mark.parametrize(("type_", "version"), [(3, 0), (0, 0), (1, 1), (2, 2), (2, -1), (1004, 0)])
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
        (1002, (), (1, 2)),
        (1003, (), None),
        (1003, (), (1, 2, ())),
        (2, (), ("consumer", 1)),
        (2, (), ("consumer", 1, None, None, 0, ((1, 2),))),
        (1000, (), ()),
    ],
)
def test_a_record_of_another_shape_is_refused(type_: int, key: object, value: object) -> None:
    """Damage that the checksum missed, or a bug: never guessed at."""
    with pytest.raises(MalformedRecord):
        from_entry(type_, 0, "g", key, value)


def test_lists_do_as_well_as_tuples() -> None:
    """Whatever the reader's msgpack settings are."""
    for record in RECORDS:
        entry = msgpack.unpackb(msgpack.packb(entry_of(record)))

        assert record == from_entry(*entry)
