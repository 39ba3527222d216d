"""A page of offsets becomes columns, whatever is in it."""

import struct

import msgpack
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

from client.spark.tables.columns import Unreadable, as_batch, page_columns
from client.spark.tables.offset_table import ARROW
from protocol.messages import OffsetColumns, ScannedOffset
from tests.fakes.scan_pages import page_of

_near = st.sampled_from([0, 31, 32, 127, 128, 255, 256, 65_535, 65_536])
_count = st.integers(0, 2**31 - 1) | _near
_offset = st.integers(0, 2**63 - 1) | _near | st.sampled_from([2**32 - 1, 2**32, 2**63 - 1])
_text = st.text(max_size=40) | st.sampled_from(["", "x" * 31, "x" * 32, "x" * 256, "ä" * 4_000])
_ms = st.integers(0, 2**53) | st.just(1_785_000_000_000)

OFFSETS = st.lists(
    st.builds(
        ScannedOffset,
        st.sampled_from(["a", "b", "ä"]),
        st.sampled_from(["t", "u"]),
        _count,
        _offset,
        st.just(-1) | _count,
        _text,
        _ms,
        st.just(-1) | _ms,
    ),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)  # The first one loads pandas.
@given(OFFSETS)
def test_columns_say_what_the_rows_say(offsets: list[ScannedOffset]) -> None:
    """They are read field by field for all rows at once, by length and not one by one."""
    columns = page_columns(page_of(offsets), 7)

    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "group": [one.group_id for one in offsets],
        "topic": [one.topic for one in offsets],
        "partition": [one.partition for one in offsets],
        "offset": [one.offset for one in offsets],
        "leader_epoch": [None if one.leader_epoch < 0 else one.leader_epoch for one in offsets],
        "metadata": [one.metadata for one in offsets],
        "committed_at": [one.commit_timestamp_ms * 1000 for one in offsets],
        "expires_at": [
            None if one.expire_timestamp_ms < 0 else one.expire_timestamp_ms * 1000
            for one in offsets
        ],
        "offsets_partition": [7] * len(offsets),
    }


def packed_int(form: str, number: int) -> bytes:
    """Return an int in another form of msgpack than the shortest one."""
    opcodes = {">b": 0xD0, ">h": 0xD1, ">i": 0xD2, ">q": 0xD3, ">H": 0xCD, ">I": 0xCE, ">Q": 0xCF}
    return bytes((opcodes[form],)) + struct.pack(form, number)


@pytest.mark.parametrize(
    ("form", "number"),
    [(">b", 5), (">h", 300), (">i", 70_000), (">q", 2**40), (">H", 5), (">I", 5), (">Q", 5)],
)
def test_an_int_may_have_any_form(form: str, number: int) -> None:
    """The protocol says int; another coordinator may not choose the shortest one."""
    rows = b"\x95\x01" + packed_int(form, number) + packed_int(">i", -1) + b"\xa1m\x00"
    page = OffsetColumns(
        ("g",), ("t",), struct.pack(">I", 1), rows, struct.pack(">H", len(rows)), bytes(8)
    )
    columns = page_columns(page, 0)

    assert columns["offset"].to_pylist() == [number]
    assert columns["leader_epoch"].to_pylist() == [None]
    assert columns["metadata"].to_pylist() == ["m"]


def test_a_batch_has_the_types_of_the_table() -> None:
    """Spark compares the schema exactly."""
    offset = ScannedOffset("g", "t", 0, 5, -1, "", 1_785_000_000_000, -1)
    batch = as_batch(page_columns(page_of([offset]), 3), ARROW)

    assert batch.schema == ARROW
    batch.validate(full=True)
    (row,) = batch.to_pylist()
    assert row["committed_at"].timestamp() == 1_785_000_000
    assert row["expires_at"] is None


def row(*values: object) -> bytes:
    """Return a row."""
    packed: bytes = msgpack.packb(values)
    return packed


GOOD = page_of([ScannedOffset("g", "t", 0, 5, -1, "m", 1, 2)])


@pytest.mark.parametrize(
    "page",
    [
        structs.replace(GOOD, sizes=b"\x00\x01"),
        structs.replace(GOOD, sizes=b""),
        structs.replace(GOOD, sizes=GOOD.sizes + b"\x00"),
        structs.replace(GOOD, counts=GOOD.counts + b"\x00"),
        structs.replace(GOOD, counts=struct.pack(">I", 2)),
        structs.replace(GOOD, topics=("t", "u")),
        structs.replace(GOOD, group_ids=()),
        structs.replace(GOOD, committed_ms=bytes(16)),
        structs.replace(GOOD, expire_ms=bytes(16)),
        *(
            structs.replace(GOOD, rows=bad, sizes=struct.pack(">H", len(bad)))
            for bad in (
                row(0, 5, -1, "m"),
                row(0, 5, -1, "m", 1),
                row(0, 5, -1, b"m", 0),
                row(0, 5, "x", "m", 0),
                row(None, 5, -1, "m", 0),
                row(-1, 5, -1, "m", 0),
                row(2**31, 5, -1, "m", 0),
                row(0, -1, -1, "m", 0),
                row(0, 2**63, -1, "m", 0),
                row(0, 5, 2**31, "m", 0),
                b"\x95\xcf",
                b"\x95\x00\xcf",
                row(0, 5, -1, "m", 0) + b"\x00",
                b"\x95\x00\x05\xff\xda\xff\xff" + b"m\x00",
            )
        ),
    ],
)
def test_a_page_that_is_not_of_the_protocol_is_refused(page: OffsetColumns) -> None:
    """Rather an error than a number that nobody committed."""
    with pytest.raises(Unreadable):
        page_columns(page, 0)


def test_a_text_that_is_no_utf_8_is_refused() -> None:
    """Spark would fail later, and say nothing of where it came from."""
    bad = row(0, 5, -1, "m", 0).replace(b"m", b"\xff")

    with pytest.raises(Unreadable):
        page_columns(structs.replace(GOOD, rows=bad), 0)
