"""Up to where the journal was on disk at least: a lower bound, noted after each flush.

The end of the newest segment can be cut off, and what is left is a valid log. After a clean stop
its marker tells; after any other stop this does. It is overwritten in place and not synced, so
a process that is killed leaves the last one, and a power cut perhaps an older one: what it says was
true, whichever of them is found. One that can't be read says nothing.

    u64 position | u32 crc32 of that
"""

import struct
import zlib
from typing import Final

from coordinator.log.directory import Directory, Overwritten
from coordinator.log.state_files import write_whole

MARK_NAME: Final = "durable"
_POSITION: Final = struct.Struct(">Q")
_CRC: Final = struct.Struct(">I")


def encode_mark(position: int) -> bytes:
    """Return the file's bytes."""
    data = _POSITION.pack(position)
    return data + _CRC.pack(zlib.crc32(data))


def decode_mark(data: bytes) -> int:
    """Return the position that *data* vouches for; 0 if it doesn't for any."""
    position, crc = data[: _POSITION.size], data[_POSITION.size :]
    if len(crc) != _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(position):
        return 0
    value: int = _POSITION.unpack(position)[0]
    return value


def read_mark(directory: Directory, names: list[str]) -> int:
    """Return the folder's mark, 0 if there is none. Raises OSError."""
    return decode_mark(directory.read(MARK_NAME)) if MARK_NAME in names else 0


class Mark:
    """The mark of a folder that is being written to."""

    def __init__(self, directory: Directory, position: int) -> None:
        """Begin at *position*, which is on disk. Raises OSError."""
        write_whole(directory, MARK_NAME, encode_mark(position))
        self._file: Overwritten = directory.open_overwrite(MARK_NAME)

    def put(self, position: int) -> None:
        """Note that the journal is on disk up to *position*."""
        self._file.overwrite(encode_mark(position))

    def close(self) -> None:
        """Give the file back."""
        self._file.close()
