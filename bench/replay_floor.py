"""The floor of a load: how long the crc and msgpack's unpackb of a log's batches take.

    python -m bench.replay_floor FOLDER

reads the segments of a stopped daemon's folder, and then checks and unpacks every batch, which is
timed: no program in Python can learn what is in the log in less. The layout is that of
docs/log-format.md.
"""

import gc
import json
import sys
import time
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from struct import Struct
from typing import Final

import msgpack

_PREFIX: Final = Struct(">II")  # length, crc
_REST_BYTES: Final = 31  # Of the header, behind the crc.


@dataclass(frozen=True, slots=True)
class ReplayFloor:
    """What it took."""

    batches: int
    entries: int
    seconds: float
    cpu_s: float


def batches_of(segment: bytes) -> Iterable[tuple[int, int]]:
    """Return where each batch begins, behind its prefix, and where it ends.

    What is no batch (a sealed segment's index) ends them.
    """
    at = 0
    while at + _PREFIX.size <= len(segment):
        length, crc = _PREFIX.unpack_from(segment, at)
        begin, end = at + _PREFIX.size, at + _PREFIX.size + length
        if length < _REST_BYTES or end > len(segment):
            return
        if zlib.crc32(memoryview(segment)[begin:end]) != crc:
            return
        yield begin, end
        at = end


def measure(folder: Path) -> ReplayFloor:
    """Check and unpack everything once.

    Raises:
        OSError: The folder can't be read.
        ValueError: There is no batch in it.
    """
    segments = [path.read_bytes() for path in sorted(folder.glob("*.segment"))]
    # Where the batches are is found beforehand: only what any program must do is timed.
    found = [
        (memoryview(segment)[begin:end], zlib.crc32(segment[begin:end]))
        for segment in segments
        for begin, end in batches_of(segment)
    ]
    if not found:
        raise ValueError("there is no batch in the folder")
    entries = 0
    crc32, unpackb = zlib.crc32, msgpack.unpackb
    gc.collect()
    gc.disable()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for batch, crc in found:
        if crc32(batch) != crc:
            raise ValueError("a batch is damaged")
        entries += len(unpackb(batch[_REST_BYTES:], use_list=False))
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return ReplayFloor(len(found), entries, seconds, cpu_s)


def main() -> int:
    """Measure the folder of the command line."""
    if len(sys.argv) != 2:
        print("usage: python -m bench.replay_floor FOLDER", file=sys.stderr)
        return 2
    try:
        found = measure(Path(sys.argv[1]))
    except (OSError, ValueError) as exc:
        print(f"bench.replay_floor: {exc}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
