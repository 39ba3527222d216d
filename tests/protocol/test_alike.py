"""Commits whose rows are alike: read another way, with the same result for every body."""

from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings, strategies as st

from protocol.alike import PackedPartitions, read_commit
from protocol.apis import REQUEST_CHECKS, ApiKey
from protocol.body import Unreadable, unpack_request
from protocol.connection import BadRequest, RequestEvent, ServerConnection
from protocol.frames import REQUEST_HEADER, REQUEST_HEADER_BYTES
from protocol.messages import OffsetCommitRequest, PartitionCommit, TopicCommit
from protocol.schema import Invalid
from protocol.types import INT32_MAX, INT64_MAX

_, CHECK = REQUEST_CHECKS[ApiKey.OFFSET_COMMIT, 2]

Row = tuple[Any, ...]


def body_of(rows: list[Row], group_id: str = "g" * 100, topic: str = "t" * 150) -> bytes:
    """Return the body of a commit, long enough to be looked at."""
    return msgpack.packb((group_id, 7, "m", None, ((topic, rows),)))  # type: ignore[no-any-return]


def outcome(body: bytes, *, quick: bool) -> Any:
    """Return what is read, or what is wrong."""
    try:
        return read_commit(body, CHECK) if quick else unpack_request(body, CHECK)
    except (Invalid, Unreadable) as exc:
        return type(exc), str(exc)


def is_packed(body: bytes) -> bool:
    """Say whether the rows in *body* were alike."""
    return type(read_commit(body, CHECK).topics[0].partitions) is PackedPartitions


def rows_from(
    first: int, count: int = 100, *, offset: int = 70_000, metadata: Any = ""
) -> list[Row]:
    """Return rows of consecutive partitions and offsets."""
    return [(first + n, offset + n, -1, metadata, None) for n in range(count)]


NUMBER = st.sampled_from(
    [0, 1, 127, 128, 255, 256, 65_535, 65_536, INT32_MAX, 2**32, INT64_MAX, 2**64 - 1, -1, -33]
)
ODD = st.one_of(NUMBER, st.none(), st.booleans(), st.floats(), st.text(max_size=40), st.binary())
BASE = st.tuples(
    st.sampled_from([0, 100, 128, 200, 300, 65_500, 70_000]),
    st.integers(16, 40),
    st.sampled_from([0, 100, 300, 70_000, 2**31, 2**32, 2**40, INT64_MAX - 50]),
    st.sampled_from([None, "", "abc", "x" * 31, "x" * 32, "é"]),
)


@settings(max_examples=400)
@given(BASE, st.lists(st.tuples(st.integers(0, 39), st.integers(0, 4), ODD), max_size=2))
@example((0, 16, 70_000, ""), [])
def test_any_commit_is_read_as_one_after_the_other_would(
    base: tuple[int, int, int, str | None], changes: list[tuple[int, int, object]]
) -> None:
    """Whatever is put in the place of a few values: the same request, or the same refusal."""
    first, count, offset, metadata = base
    rows = [list(row) for row in rows_from(first, count, offset=offset, metadata=metadata)]
    for at, column, value in changes:
        rows[at % count][column] = value
    body = body_of([tuple(row) for row in rows])

    assert outcome(body, quick=True) == outcome(body, quick=False)


@settings(max_examples=300)
@given(st.data())
def test_damaged_bytes_are_read_as_one_after_the_other_would(data: st.DataObject) -> None:
    """One byte anywhere has another value, or bytes are missing or too many at the end."""
    whole = body_of(rows_from(100, 30, metadata="ab"), "g" * 20, "t" * 20)
    at = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.sampled_from([0x00, 0x7F, 0x80, 0x90, 0x95, 0xC0, 0xC2, 0xCC, 0xCF, 0xDC,
                                       0xDD, 0xFF]) | st.integers(0, 255))  # fmt: skip
    body = whole[:at] + bytes([value]) + whole[at + 1 :]
    cut = data.draw(st.sampled_from([body, body, body, body[:-1], body[:-11], body + b"\xc0"]))

    assert outcome(cut, quick=True) == outcome(cut, quick=False)


@pytest.mark.parametrize(
    ("first", "offset", "metadata"),
    [
        (0, 70_000, ""),
        (0, 70_000, None),
        (28, 0, "batch 7"),
        (128, 128, "x" * 31),
        (256, 2**32, ""),
        (65_536, 2**62, ""),
    ],
)
def test_rows_of_the_same_layout_stay_packed(first: int, offset: int, metadata: str | None) -> None:
    """And their bytes are those that a fetch answers with."""
    rows = rows_from(first, offset=offset, metadata=metadata)
    body = body_of(rows)
    partitions = read_commit(body, CHECK).topics[0].partitions

    assert type(partitions) is PackedPartitions
    assert partitions.numbers == tuple(row[0] for row in rows)
    assert partitions.metadata_bytes == len(metadata or "")
    assert partitions.rows() == [msgpack.packb((*row[:3], metadata or "", 0)) for row in rows]


def test_more_rows_than_are_split_at_once_are_split_too() -> None:
    """By slices."""
    rows = rows_from(300, 2_000)
    partitions = read_commit(body_of(rows), CHECK).topics[0].partitions

    assert type(partitions) is PackedPartitions
    assert partitions.rows() == [msgpack.packb((*row[:4], 0)) for row in rows]


@pytest.mark.parametrize(
    "rows",
    [
        rows_from(100),
        rows_from(0, metadata="é"),
        rows_from(0, metadata="x" * 32),
        rows_from(0, 15),
        [(*row[:4], 5) for row in rows_from(0)],
        [(n, 5, 2**31 - 1 - n % 2, "", None) for n in range(50)] + [(99, 5, 7, "", None)],
    ],
    ids=["partitions", "not ASCII", "long metadata", "few", "expected offsets", "epochs"],
)
def test_other_rows_are_unpacked(rows: list[Row]) -> None:
    """They are no worse off than before."""
    assert not is_packed(body_of(rows))
    assert read_commit(body_of(rows), CHECK).topics[0].partitions == tuple(rows)


def test_numbers_that_are_longer_than_need_be_are_legal_but_not_for_a_partition() -> None:
    """The log finds what is behind a partition by its size."""
    offset = b"\xce\0\0\0\5"
    usual = [b"\x95" + bytes([n]) + offset + b"\xff\xa0\xc0" for n in range(50)]
    padded = [b"\x95\xcc" + row[1:] for row in usual]
    start = body_of([], "g" * 100)[:-1]

    for rows, expected in ((usual, True), (padded, False)):
        body = start + b"\xdc\0\x32" + b"".join(rows)
        assert is_packed(body) is expected
        assert outcome(body, quick=True) == outcome(body, quick=False)


def test_packed_partitions_are_a_sequence() -> None:
    """So whoever looks at them one by one need not know."""
    rows = rows_from(0)
    partitions = read_commit(body_of(rows), CHECK).topics[0].partitions

    assert (len(partitions), partitions[3], partitions[-1]) == (100, rows[3], rows[-1])
    assert type(partitions[3]) is PartitionCommit
    assert (tuple(partitions), partitions[5:9]) == (tuple(rows), tuple(rows[5:9]))
    assert all(one.partition + 1 == two.partition for one, two in pairwise(partitions))
    assert (hash(partitions), partitions == 5) == (hash(tuple(rows)), False)
    assert repr(partitions).startswith("PackedPartitions([PartitionCommit(partition=0, offset=70")


def test_a_message_with_packed_partitions_equals_the_one_that_was_sent() -> None:
    """On both sides of the comparison."""
    rows = rows_from(0)
    read = read_commit(body_of(rows, "g" * 100), CHECK)
    named = tuple(PartitionCommit(*row) for row in rows)
    sent = OffsetCommitRequest("g" * 100, 7, "m", None, (TopicCommit("t" * 150, named),))

    assert read == sent
    assert sent == read


@pytest.mark.parametrize(
    ("column", "usual", "wrong"),
    [
        (0, 2**31 - 100, INT32_MAX + 1),
        (1, 2**62, INT64_MAX + 1),
        (2, INT32_MAX, INT32_MAX + 1),
    ],
    ids=["partition", "offset", "epoch"],
)
def test_a_number_that_is_too_large_is_found_in_any_row(
    column: int, usual: int, wrong: int
) -> None:
    """It has the length of the legal ones around it."""
    rows = [[n, 70_000, -1, "", None] for n in range(50)]
    for n, row in enumerate(rows):
        row[column] = usual + n if column == 0 else usual

    assert is_packed(body_of([tuple(row) for row in rows]))

    rows[30][column] = wrong
    body = body_of([tuple(row) for row in rows])

    assert outcome(body, quick=True) == outcome(body, quick=False)
    assert outcome(body, quick=True)[0] is Invalid


@pytest.mark.parametrize("cut", [b"\xdc\x00\x10", b"\xdc\x10", b"\xdc"])
def test_rows_that_are_announced_and_do_not_come_are_unreadable(cut: bytes) -> None:
    """A count, or half of one, and then the end."""
    body = msgpack.packb(("g" * 300, -1, "", None))
    body = b"\x95" + body[1:] + b"\x91\x92\xa1t" + cut
    assert outcome(body, quick=True) == outcome(body, quick=False)
    assert outcome(body, quick=True)[0] is Unreadable


def test_a_version_without_expected_offsets_knows_no_row_with_one() -> None:
    """Many rows are refused as one is."""
    body = body_of(rows_from(128))
    events = [
        ServerConnection().receive(
            REQUEST_HEADER.pack(REQUEST_HEADER_BYTES + len(body), ApiKey.OFFSET_COMMIT, version, 1)
            + body
        )
        for version in range(3)
    ]
    assert [type(event) for (event,) in events] == [BadRequest, RequestEvent, RequestEvent]
