"""Decodes a page of offsets in its wire format into columns of Arrow. Pure.

Theory of operation
===================

A page has one msgpack row for each offset: ``[partition, offset, leader_epoch, metadata, 0]``, and
the sizes of the rows. All rows are decoded at once, field by field. The first byte of a field gives
its length, and so the start of the next field. Its value is the eight bytes after the first byte,
shifted right by the unused ones. This is several times faster than unpacking the rows one by one.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.messages import OffsetColumns
from protocol.partition import INT32_MAX, INT64_MAX, NO_LEADER_EPOCH

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

# Number of bytes that follow an int's first byte. The first byte of a small int is its value.
_INT_BYTES: Final = np.zeros(256, np.int64)
_INT_BYTES[0xCC:0xD4] = [1, 2, 4, 8, 1, 2, 4, 8]
_SMALL_INT: Final = np.arange(256).astype(np.int8).astype(np.int64)
_IS_INT: Final = np.zeros(256, bool)
_IS_INT[:0x80] = _IS_INT[0xE0:] = _IS_INT[0xCC:0xD4] = True
_FIRST_SIGNED: Final = 0xD0
# Number of bytes of a text's length, by its first byte; a short text has its length in that byte.
_TEXT_LENGTH_BYTES: Final = np.zeros(256, np.int64)
_TEXT_LENGTH_BYTES[0xD9:0xDB] = [1, 2]
_IS_TEXT: Final = np.zeros(256, bool)
_IS_TEXT[0xA0:0xC0] = _IS_TEXT[0xD9:0xDB] = True
_SHORT_TEXT: Final = 0x1F

_ROW: Final = 0x95  # First byte of a row: an array of five.
_PADDING: Final = bytes(9)  # Allows a read of eight bytes from any byte of the page.


class Unreadable(ValueError):
    """The page doesn't follow the protocol."""


class Rows:
    """The rows of a page, decoded field by field; each call reads the next field of all rows."""

    def __init__(self, data: bytes, sizes: bytes) -> None:
        self.lengths = _numbers(sizes, ">u2")
        self.ends = np.cumsum(self.lengths)
        if len(self.ends) == 0 or self.ends[-1] != len(data):
            raise Unreadable("the sizes of the rows aren't those of the page")
        padded = data + _PADDING
        self.bytes: Bytes = np.frombuffer(padded, np.uint8)
        # The eight bytes from each byte on, as a number; a view, without memory of its own.
        self._words: npt.NDArray[np.uint64] = np.ndarray(
            (len(data) + 1,), ">u8", padded, strides=(1,)
        )
        self._at = self.ends - self.lengths
        self._expect(self.bytes[self._at] == _ROW)
        self._at = self._at + 1

    def _expect(self, holds: npt.NDArray[np.bool_]) -> None:
        if not holds.all():
            raise Unreadable("a row of the page isn't one of a committed offset")

    def _first(self) -> Bytes:
        """Return the first byte of the next field of each row."""
        self._expect(self._at < self.ends)
        first: Bytes = self.bytes[self._at]
        return first

    def _value(self, at: Numbers, widths: Numbers) -> Numbers:
        """Return the unsigned numbers of *widths* bytes at *at*; undefined where a width is 0."""
        words: npt.NDArray[np.uint64] = self._words[at].astype(np.uint64)
        return (words >> np.minimum(64 - 8 * widths, 63).astype(np.uint64)).view(np.int64)

    def ints(self, low: int, high: int) -> Numbers:
        """Return the next field of each row, an int from *low* to *high*."""
        first = self._first()
        self._expect(_IS_INT[first])
        widths = _INT_BYTES[first]
        values: Numbers = _SMALL_INT[first]
        is_wide = widths > 0
        if is_wide.any():
            values = np.where(is_wide, self._value(self._at + 1, widths), values)
        is_signed = is_wide & (first >= _FIRST_SIGNED)
        if is_signed.any():
            unused = np.where(is_signed, 64 - 8 * widths, 0)
            values = (values << unused) >> unused
        self._expect((low <= values) & (values <= high))
        self._at = self._at + 1 + widths
        return values

    def texts(self) -> pa.Array:
        """Return the next field of each row, a text."""
        first = self._first()
        self._expect(_IS_TEXT[first])
        widths = _TEXT_LENGTH_BYTES[first]
        lengths = (first & _SHORT_TEXT).astype(np.int64)
        is_long = widths > 0
        if is_long.any():
            lengths = np.where(is_long, self._value(self._at + 1, widths), lengths)
        starts = self._at + 1 + widths
        self._at = starts + lengths
        self._expect(self._at <= self.ends)
        ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        if not ends[-1]:
            return _text_array(ends, b"")
        # +1 where a text begins, -1 where it ends: the sums are 1 inside of texts.
        steps = np.zeros(len(self.bytes) + 1, np.int8)
        has_text = lengths > 0
        steps[starts[has_text]] += 1
        steps[self._at[has_text]] -= 1
        inside = np.cumsum(steps[:-1], dtype=np.int8).view(bool)
        return _text_array(ends, self.bytes[inside].tobytes())

    def done(self) -> None:
        """Check that each row has only the error code 0 left."""
        self._expect((self._at == self.ends - 1) & (self.bytes[self._at] == 0))


def _text_array(ends: npt.NDArray[np.int32], data: bytes) -> pa.Array:
    array = pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(data))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Unreadable(f"a text of the page is no UTF-8: {error}") from error
    return array


def _numbers(data: bytes, form: str) -> Numbers:
    try:
        return np.frombuffer(data, form).astype(np.int64)
    except ValueError as error:
        raise Unreadable(f"a column of the page breaks off: {error}") from error


def _times(data: bytes) -> pa.Array:
    """Return ms since the epoch as timestamps; a negative one is null."""
    ms = np.frombuffer(data, ">i8").astype(np.int64)
    is_none = ms < 0
    return pa.array(ms * 1000, pa.int64(), mask=is_none if is_none.any() else None)


def _repeated(names: tuple[str, ...], counts: Numbers) -> pa.Array:
    """Return a column with each of *names*, repeated by its number in *counts*."""
    return pa.array(names, pa.string()).take(pa.array(np.repeat(np.arange(len(names)), counts)))


def page_columns(page: OffsetColumns, offsets_partition: int) -> dict[str, pa.Array]:
    """Return the columns of the table by name, all of the same length.

    Raises:
        Unreadable: the page doesn't follow the protocol.

    """
    counts = _numbers(page.counts, ">u4")
    rows = Rows(page.rows, page.sizes)
    count = len(rows.lengths)
    if not (
        len(counts) == len(page.group_ids) == len(page.topics)
        and counts.sum() == count
        and len(page.committed_ms) == 8 * count
        and len(page.expire_ms) in {0, 8 * count}
    ):
        raise Unreadable("the columns of the page differ in length")
    partitions = rows.ints(0, INT32_MAX)
    offsets = rows.ints(0, INT64_MAX)
    epochs = rows.ints(NO_LEADER_EPOCH, INT32_MAX)
    metadata = rows.texts()
    rows.done()
    no_epoch = epochs < 0
    return {
        "group": _repeated(page.group_ids, counts),
        "topic": _repeated(page.topics, counts),
        "partition": pa.array(partitions.astype(np.int32)),
        "offset": pa.array(offsets),
        "leader_epoch": (
            pa.nulls(count, pa.int32())
            if no_epoch.all()
            else pa.array(epochs.astype(np.int32), mask=no_epoch)
        ),
        "metadata": metadata,
        "committed_at": _times(page.committed_ms),
        "expires_at": _times(page.expire_ms) if page.expire_ms else pa.nulls(count, pa.int64()),
        "offsets_partition": pa.repeat(pa.scalar(offsets_partition, pa.int32()), count),
    }


def as_batch(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of *schema*, cast to its types."""
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in schema], schema=schema
    )
