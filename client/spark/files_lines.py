"""The lines of a text, without a Python object for each."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_LINE_END = ord("\n")
_BYTES_MAX = 2**31 - 1


class Lines(NamedTuple):
    """Some lines of a text.

    Attributes:
        data: the text; every line ends in it with a line feed, but maybe the last.
        ends: where in it each line ends.

    """

    data: bytes
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return how many lines there are."""
        return len(self.ends)

    def part(self, low: int, high: int) -> "Lines":
        """Return the lines ``low <= line < high``, of which there must be one."""
        begin = int(self.ends[low - 1]) + 1 if low else 0
        return Lines(self.data[begin : int(self.ends[high - 1]) + 1], self.ends[low:high] - begin)

    def begin_with(self, character: str) -> bool:
        """Say whether each line begins with this character."""
        text = np.frombuffer(self.data, np.uint8)
        starts = self.ends[:-1] + 1
        return self.data.startswith(character.encode()) and bool(
            (text[starts] == ord(character)).all()
        )


def lines_of(data: bytes) -> Lines:
    """Find the lines of a text."""
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == _LINE_END)
    if data and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    return Lines(data, ends)


def count_lines(data: bytes, end: int) -> int:
    """Return how many line feeds there are before *end*."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, end) == _LINE_END))


def without_returns(lines: Lines) -> Lines:
    """Take the carriage returns off that stand before line ends."""
    # Looking for one character is many times faster than for two.
    if b"\r" not in lines.data or b"\r\n" not in lines.data:
        return lines
    return lines_of(lines.data.replace(b"\r\n", b"\n"))


def strings_of(lines: Lines) -> pa.Array:
    """Return the lines as strings; bytes that are no UTF-8 are replaced.

    Raises:
        pa.ArrowCapacityError: they are longer than an array can be.

    """
    # Without the line feeds they are what an array of strings is made of.
    text = lines.data.replace(b"\n", b"")
    if len(text) > _BYTES_MAX:
        raise pa.ArrowCapacityError(f"{len(lines)} line(s) are {len(text)} bytes, over 2 GiB")
    bounds = np.zeros(len(lines) + 1, np.int32)
    bounds[1:] = lines.ends - np.arange(len(lines))
    parts = [None, pa.py_buffer(bounds), pa.py_buffer(text)]
    found = pa.Array.from_buffers(pa.binary(), len(lines), parts)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:  # As Spark's own source has it.
        return pa.array([v.decode("utf-8", "replace") for v in found.to_pylist()], pa.string())
