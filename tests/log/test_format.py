"""The bytes of a batch, of a footer, and the search for a later flush."""

import random
import struct
import subprocess
import sys
import zlib
from array import array
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgpack
import pytest
from hypothesis import given, strategies as st

from coordinator.log import format as log_format
from coordinator.log.errors import LogCorrupt
from coordinator.log.format import (
    HEADER,
    HEADER_BYTES,
    Batch,
    Entry,
    FlushKey,
    Index,
    batch_at,
    check_msgpack,
    decode_batch,
    decode_footer,
    encode_batch,
    encode_footer,
    find_later_flush,
    numbered,
    slice_item,
    split_item,
    unpack_in_parts,
    unpack_items,
)
from coordinator.log.state_files import Meta
from tests.log.helpers import OpenBatch, encode_flush, singles

# The example of docs/log-format.md.
EXAMPLE = Batch(
    partition=7,
    leader_epoch=3,
    base_offset=41,
    timestamp_ms=1_700_000_000_000,
    items=(
        (0, 1, 1, "etl", ("orders", (3, 4)), ((1200, 700), -1, "", 1_700_000_000_000, -1)),
        (2, 1, 1, "etl", ("orders", 5), None),
    ),
    end_offset=44,
    num_keys=3,
)
EXAMPLE_HEX = """
00 00 00 61
4a 48 b0 f1
02
00 07
00 00 00 03
00 00 00 00 00 00 00 29
00 00 00 00 00 00 10 00
00 00 01 8b cf e5 68 00
c5 7e f9 f3 7e 25 1a 42
92
96 00 01 01 a3 65 74 6c 92 a6 6f 72 64 65 72 73 92 03 04
95 92 cd 04 b0 cd 02 bc ff a0 cf 00 00 01 8b cf e5 68 00 ff
96 02 01 01 a3 65 74 6c 92 a6 6f 72 64 65 72 73 05 c0
"""

# The secret of the example.
KEY = FlushKey(bytes(range(16)))

KEYS = st.tuples(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=5))
ENTRIES = st.builds(
    Entry,
    st.integers(0, 2000),
    st.integers(0, 9),
    st.text(max_size=9),
    KEYS,
    st.none() | st.tuples(st.integers(0, 2**63 - 1), st.text(max_size=9), st.booleans()),
)


# Keys and values of entries that stand for several keys, and don't say what of which.
WIDE_NONSENSE: list[tuple[object, object]] = [
    (["t", []], []),
    (["t", []], [[]]),
    (["t", []], [5]),
    (["t", [1]], None),
    (["t", [1]], 5),
    (["t", [1]], "x"),
    (["t", [1]], {0: 1}),
    (["t", [1]], [[]]),
    (["t", [1]], [[5, 6]]),
    (["t", [1]], [5, [6], [7, 8]]),
    (["t", [[1]]], [5]),
    ([[[]]], [5]),
    ([[1, []]], [5]),
]


def encoded(entries: list[Entry], *, partition: int = 1, flush_start: int = 0) -> bytes:
    """Return one batch at offset 10."""
    packed = msgpack.packb([(delta, *entry) for delta, entry in enumerate(entries)])
    return b"".join(encode_batch((partition, 2, 10, flush_start, -5, 0), packed))


def flush_at(start: int, count: int = 1) -> bytes:
    """Return a flush that begins at *start*."""
    packed = msgpack.packb([(0, 1, 0, "g", ("k",), 1)])
    batches: list[OpenBatch] = [(0, n, 0, packed) for n in range(count)]
    return encode_flush(batches, 1, start, KEY)


def test_the_bytes_of_the_documented_example_never_change() -> None:
    """A data folder of this release opens in the next one."""
    packed = msgpack.packb(EXAMPLE.items)
    data = b"".join(
        encode_batch((7, 3, 41, 4096, EXAMPLE.timestamp_ms, KEY.check(3, 4096)), packed)
    )

    assert bytes.fromhex(EXAMPLE_HEX) == data
    raw = batch_at(data, 0)
    assert raw is not None
    assert (len(data), 4096) == (raw.end, raw.flush_start)
    assert decode_batch(data, raw) == EXAMPLE


def test_the_document_shows_the_same_bytes() -> None:
    """Each line of the example stands in the document."""
    document = Path(__file__).parents[2] / "docs" / "log-format.md"
    text = document.read_text(encoding="utf-8")

    for line in EXAMPLE_HEX.split("\n"):
        assert line in text


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_a_batch_is_read_as_it_was_written(entries: list[Entry]) -> None:
    """Whatever msgpack can carry."""
    data = b"before" + encoded(entries) + b"after"
    raw = batch_at(data, 6)

    assert raw is not None
    assert raw.end == len(data) - 5
    batch = decode_batch(data, raw)
    header = batch.partition, batch.leader_epoch, batch.base_offset, batch.timestamp_ms
    assert header == (1, 2, 10, -5)
    assert batch.entries == tuple((10 + delta, entry) for delta, entry in enumerate(entries))


ELEMENTS = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.booleans() | st.none()


@st.composite
def wide_entries(draw: st.DrawFn) -> Entry:
    """Return an entry that stands for several keys."""
    elements = draw(st.lists(ELEMENTS, min_size=1, max_size=9))
    column = st.lists(ELEMENTS, min_size=len(elements), max_size=len(elements)).map(tuple)
    value = tuple(draw(st.lists(ELEMENTS | column, max_size=4)))
    common = draw(st.lists(ELEMENTS, max_size=2))
    return Entry(1, 1, draw(st.text(max_size=9)), (*common, tuple(elements)), value)


@given(st.lists(ENTRIES | wide_entries(), min_size=1, max_size=5))
def test_a_wide_entry_stands_for_an_entry_with_an_offset_for_each_of_its_keys(
    entries: list[Entry],
) -> None:
    """Whoever reads changes, or looks for what is live, sees no difference."""
    items, count = numbered(entries)
    data = b"".join(encode_batch((1, 2, 10, 0, -5, 0), msgpack.packb(items)))
    raw = batch_at(data, 0)
    assert raw is not None
    batch = decode_batch(data, raw)

    assert batch.entries == tuple((10 + at, one) for at, one in enumerate(singles(entries)))
    assert (batch.num_keys, batch.end_offset) == (count, 10 + count)


@given(wide_entries(), st.data())
def test_a_slice_of_a_wide_entry_stands_for_those_keys(entry: Entry, data: st.DataObject) -> None:
    """With the distance of the first of them."""
    alone = singles([entry])
    start = data.draw(st.integers(0, len(alone) - 1))
    stop = data.draw(st.integers(start + 1, len(alone)))
    delta, *fields = slice_item((7, *entry), start, stop)

    assert delta == 7 + start
    assert singles([Entry(*fields)]) == alone[start:stop]


@given(
    entries=st.lists(ENTRIES | wide_entries(), min_size=1, max_size=6),
    part_keys=st.integers(1, 6),
    has_gaps=st.booleans(),
)
def test_the_parts_of_a_batch_are_the_batch(
    entries: list[Entry], part_keys: int, *, has_gaps: bool
) -> None:
    """Wide entries are cut where they have more keys than a part may."""
    items, count = numbered(entries)
    if has_gaps:
        items = [(3 * delta, *fields) for delta, *fields in items]
    parts = list(unpack_in_parts(msgpack.packb(items), part_keys, has_gaps=has_gaps))

    found = [one for part, _, _ in parts for item in part for one in split_item(item)]
    assert found == [one for item in items for one in split_item(item)]
    assert sum(keys for _, _, keys in parts) == count
    for part, end, keys in parts:
        last = [one for item in part for one in split_item(item)]
        assert (len(last), last[-1][0] + 1) == (keys, end)
        assert keys <= part_keys


PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=3)
)
ODD = PLAIN | st.binary(max_size=3) | st.lists(PLAIN, max_size=2)
NEARLY_ENTRIES = st.tuples(
    st.sampled_from((0, 0, 1, -1, True, 0.0)),
    *((st.integers(0, 2) | PLAIN),) * 2,
    st.text(max_size=3) | ODD,
    *((st.lists(PLAIN, max_size=3) | st.lists(ODD, max_size=3) | ODD),) * 2,
)


def read_items(packed: bytes) -> str:
    """Return what the entries are, types and all, or that they can't be read."""
    try:
        return repr(unpack_items(packed))
    except ValueError:
        return "unreadable"


@given(st.lists(NEARLY_ENTRIES, min_size=1, max_size=2), st.data())
def test_an_entry_that_is_read_in_one_call_is_what_the_general_way_makes_of_it(
    entries: list[Any], data: st.DataObject
) -> None:
    """It is told by its types alone: whatever the bytes, nothing else passes for one."""
    packed = bytearray(msgpack.packb(entries))
    if data.draw(st.booleans(), "is damaged"):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    quick = read_items(bytes(packed))
    with patch.object(log_format, "SHORT_BYTES", -1):
        assert quick == read_items(bytes(packed))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_a_batch_or_are_not(data: bytes, start: int) -> None:
    """Reading noise raises nothing."""
    assert batch_at(data, start) is None


def test_zeros_are_never_a_batch() -> None:
    """The crc of nothing is zero, so an empty batch would be valid."""
    assert batch_at(bytes(1000), 0) is None
    assert batch_at(bytes(8) + b"\x01", 0) is None


def test_a_length_shorter_than_the_header_is_never_a_batch() -> None:
    """Its crc may be right all the same."""
    for length in range(HEADER.size - 8):
        body = bytes(length)
        data = length.to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + bytes(64)

        assert batch_at(data, 0) is None


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        msgpack.packb([]),
        msgpack.packb(5),
        msgpack.packb([5]),
        msgpack.packb([[]]),
        msgpack.packb([[0, 1, 2]]),
        msgpack.packb([["x", 1, 0, "", [], 1]]),
        msgpack.packb([[0.0, 1, 0, "", [], 1]]),
        msgpack.packb([[False, 1, 0, "", [], 1]]),
        msgpack.packb([[0, 1, 0, "", [], 1], [1.0, 1, 0, "", [], 1]]),
        msgpack.packb([bytes(6)]),
        msgpack.packb([[0, 1, 0, "", [], 1], "6 char"]),
        msgpack.packb([[1, 1, 0, "", [], 1], [0, 1, 0, "", [], 1]]),
        msgpack.packb([[0, 1, 0, "", [], 1], [0, 1, 0, "", [], 1]]),
        msgpack.packb([[-1, 1, 0, "", [], 1]]),
        msgpack.packb([[0, 1, 1, "", ["t", [1, 2]], [5]], [1, 1, 0, "", [], 1]]),
        *[msgpack.packb([[0, 1, 1, "", key, value]]) for key, value in WIDE_NONSENSE],
        *[
            msgpack.packb([[0, 1, 0, "", [], 1], [1, 1, 1, "", key, value], [2, 1, 0, "", [], 1]])
            for key, value in WIDE_NONSENSE
        ],
        msgpack.packb([[0, 1, 0, "", [], 1]]) + b"\x00",
    ],
)
def test_a_valid_checksum_over_nonsense_is_corruption(packed: bytes) -> None:
    """No crash makes it, and guessing would be worse."""
    data = b"".join(encode_batch((0, 0, 0, 0, 0, 0), packed))
    raw = batch_at(data, 0)

    assert raw is not None
    with pytest.raises(LogCorrupt):
        decode_batch(data, raw)


def later(data: bytes, base_position: int, *, key: FlushKey | None = KEY) -> int | None:
    """Search behind damage at byte 0."""
    return find_later_flush(data, 0, base_position, 2, key)


def test_a_later_flush_is_found_at_every_distance() -> None:
    """Behind damage, nobody knows where a batch begins."""
    for gap in range(1, 100):
        assert later(bytes(range(100))[:gap] + flush_at(500 + gap), 500) == gap


def test_whole_batches_of_the_damaged_flush_itself_are_no_later_flush() -> None:
    """Pages of one write may reach the disk in any order."""
    data = bytearray(flush_at(500, count=10))
    data[20] ^= 1

    assert later(bytes(data), 500) is None
    assert later(bytes(data) + flush_at(500 + len(data)), 500) == len(data)


def test_a_later_flush_that_is_torn_proves_that_the_one_before_was_whole() -> None:
    """It began only when that was on disk; its header is enough."""
    first = flush_at(0)
    data = bytes((1,)) + first[1:] + flush_at(len(first))

    for size in range(len(data)):
        found = later(data[:size], 0)
        assert found == (len(first) if size >= len(first) + HEADER_BYTES else None)


def test_a_header_with_any_flipped_bit_in_its_check_or_flush_is_none() -> None:
    """What isn't hashed, or isn't the hash, doesn't matter."""
    header = flush_at(500)
    for bit in range(8 * len(header)):
        changed = bytearray(header)
        changed[bit // 8] ^= 1 << bit % 8
        byte = bit // 8
        is_sealed = byte == 8 or 11 <= byte < 15 or 23 <= byte < 31 or 39 <= byte < 47

        assert later(b"x" + bytes(changed), 499) == (None if is_sealed else 1)


def test_what_another_folder_wrote_is_no_later_flush() -> None:
    """Nobody who doesn't know the secret can make a header, however he came by others."""
    other = FlushKey(b"another folder's")
    data = b"x" + encode_flush([(0, 0, 0, b"\x90")], 1, 500, other)

    assert later(data, 499) is None
    assert later(data, 499, key=None) is None
    assert later(data, 499, key=other) == 1


def test_a_folders_secret_is_not_shown_by_accident() -> None:
    """Whatever holds the key is printed into logs and tracebacks sooner or later."""
    secret = b"0123456789abcdef"
    key = FlushKey(secret)
    shown = f"{key} {key!r} {[key]} {Meta(2, 'c', 1, 4, 1, key)}"

    assert "0123" not in shown
    assert secret.hex()[:6] not in shown


class CountingKey(FlushKey):
    """Counts how often it is asked."""

    asked = 0

    def check(self, leader_epoch: int, flush_start: int) -> int:
        """Count, and say what is right."""
        CountingKey.asked += 1
        return super().check(leader_epoch, flush_start)


def crafted_headers(size_bytes: int) -> bytes:
    """Return what a client sends who knows everything but the secret: whole batches of format 2.

    The length of each reaches to the end, so that to compute all of their crcs takes
    the square of the size.
    """
    pieces = []
    for at in range(0, size_bytes, HEADER_BYTES):
        length = min(size_bytes - at, 32 * 1024 * 1024) - 8
        fields = (length, 0, 2, 0, 1, at, 2000 + at, 0, at)
        pieces.append(struct.pack(">IIBHIQQqQ", *fields))
    return b"".join(pieces)


@pytest.mark.parametrize("kind", ["zeros", "noise", "own headers", "crafted headers", "format 1"])
def test_the_search_is_linear(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client sends must not keep the daemon from starting: no crc, few hashes."""
    size_bytes = 2 * 1024 * 1024
    data = bytes(size_bytes)
    if kind == "noise":
        data = random.Random(1).randbytes(size_bytes)
    elif kind == "own headers":
        # Batches of the flush itself: plausible everywhere, and valid.
        batch = flush_at(1000)
        data = batch * (size_bytes // len(batch))
    elif kind == "crafted headers":
        data = crafted_headers(size_bytes)
    elif kind == "format 1":
        data = crafted_headers(size_bytes).replace(b"\x02\0\0\0\0\0\1", b"\x01\0\0\0\0\0\1")
    crcs: list[int] = []
    monkeypatch.setattr(zlib, "crc32", lambda body, *_: crcs.append(len(body)))
    CountingKey.asked = 0

    assert later(data, 1000, key=CountingKey(KEY.secret)) is None
    assert crcs == []
    assert CountingKey.asked < size_bytes // 40
    assert (CountingKey.asked > size_bytes // 100) is (kind == "crafted headers")


@given(
    st.dictionaries(
        st.integers(0, 0xFFFF),
        st.tuples(st.integers(0, 2**60), st.lists(st.integers(0, 2**32 - 1), max_size=4)),
        max_size=4,
    )
)
def test_a_footer_is_read_as_it_was_written(rows: dict[int, tuple[int, list[int]]]) -> None:
    """Also where a partition has no batch in the segment."""
    ends = {partition: end for partition, (end, _) in rows.items()}
    places = {partition: array("I", positions) for partition, (_, positions) in rows.items()}
    index = Index(5, 2**50, ends, places)

    assert index == decode_footer(encode_footer(index))


def test_a_footer_with_any_flipped_bit_or_cut_is_none() -> None:
    """It is either whole or not there."""
    data = encode_footer(Index(5, 99, {1: 2, 3: 4}, {}))
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8

        assert decode_footer(bytes(changed)) is None
    for size in range(len(data)):
        assert decode_footer(data[:size]) is None
        assert decode_footer(data[len(data) - size :]) is None


@pytest.mark.parametrize("version", [(1, 1, 0), (1, 2, 0), (0, 6, 2)])
def test_an_old_msgpack_is_refused(version: tuple[int, ...]) -> None:
    """It crashes on bad input (GHSA-6v7p-g79w-8964)."""
    with pytest.raises(ImportError, match=r"1\.2\.1"):
        check_msgpack(version, "msgpack._cmsgpack")


def test_msgpack_without_its_extension_is_refused() -> None:
    """The fallback judges bad input differently."""
    with pytest.raises(ImportError, match="C extension"):
        check_msgpack((1, 2, 1), "msgpack.fallback")
    check_msgpack((1, 2, 1), "msgpack._cmsgpack")
    check_msgpack((2, 0, 0), "msgpack._cmsgpack")


def test_the_daemon_does_not_start_with_the_fallback() -> None:
    """A check that nobody calls protects nobody."""
    done = subprocess.run(
        [sys.executable, "-m", "coordinator", "serve"],
        env={"MSGPACK_PUREPYTHON": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 1
    assert "C extension" in done.stderr
