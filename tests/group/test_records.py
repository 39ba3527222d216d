"""Records and their place in the log."""

import msgpack
import pytest

from coordinator.group.records import (
    CommittedOffset,
    GroupDeleted,
    GroupGeneration,
    GroupMetadata,
    MalformedRecord,
    MemberMetadata,
    OffsetCommitted,
    Record,
    UnknownRecord,
    from_entry,
    to_entry,
)
from tests.group.context import roundtrip

RECORDS: list[Record] = [
    OffsetCommitted("g", "t", 3, CommittedOffset(2**63 - 1, 7, "m", 1_700, -1)),
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
            MemberMetadata("b", "i", "c", "h", -1, 10_000, b"", b"\xff"),
        ),
    ),
    GroupGeneration("g", 4, 9),
    GroupDeleted("g"),
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
    assert to_entry(record)[2] == "g"


def test_entries_carry_kafkas_type_numbers_and_ours_from_1000() -> None:
    """They are on disk for ever."""
    assert [to_entry(record)[0] for record in RECORDS] == [1, 2, 2, 1000, 1001]
    assert [to_entry(r)[4] is None for r in RECORDS] == [False, False, False, False, True]


def test_each_offset_has_a_key_of_its_own() -> None:
    """And a group has one record of each other type: compaction keeps the last."""
    keys = [to_entry(record)[3] for record in RECORDS]

    assert keys == [("t", 3), (), (), (), ()]


@pytest.mark.parametrize(("type_", "version"), [(3, 0), (0, 0), (1, 1), (2, 9), (1002, 0)])
def test_an_unknown_type_or_version_is_refused(type_: int, version: int) -> None:
    """A newer release wrote it; skipping it would lose state silently."""
    with pytest.raises(UnknownRecord):
        from_entry(type_, version, "g", (), ())


@pytest.mark.parametrize(
    ("type_", "key", "value"),
    [
        (1, ("t",), (1, 2, "", 3, 4)),
        (1, ("t", 0), (1, 2)),
        (1, ("t", 0), None),
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
        entry = msgpack.unpackb(msgpack.packb(to_entry(record)))

        assert record == from_entry(*entry)
