"""The floor: how long a write that reaches the disk takes on this machine.

    python -m bench.fsync_floor FOLDER [SECONDS] [BYTES]

appends a record as large as the batch of a one-partition commit to a new file in the folder and
calls fdatasync, again and again, and prints one line of JSON. No durable commit can be faster.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Final

from bench.measures import NS_PER_S, latency_of

RECORD_BYTES: Final = 128
_WARMUP_ROUNDS: Final = 50


@dataclass(frozen=True, slots=True)
class Floor:
    """What a write and fdatasync of ``record_bytes`` took, in microseconds."""

    record_bytes: int
    requests: int
    rate_per_s: float
    p50_us: float
    p99_us: float
    max_us: float


def measure(folder: str, duration_s: float, record_bytes: int = RECORD_BYTES) -> Floor:
    """Write and sync for ``duration_s``, in a file that is gone afterwards.

    Raises:
        OSError: The folder can't be written to.
    """
    record = os.urandom(record_bytes)
    samples_ns: list[int] = []
    clock = time.perf_counter_ns
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        fd = file.fileno()
        for _ in range(_WARMUP_ROUNDS):
            os.write(fd, record)
            os.fdatasync(fd)
        began_ns = now_ns = clock()
        until_ns = began_ns + int(duration_s * NS_PER_S)
        while now_ns < until_ns:
            os.write(fd, record)
            os.fdatasync(fd)
            before_ns, now_ns = now_ns, clock()
            samples_ns.append(now_ns - before_ns)
    latency = latency_of(samples_ns)
    return Floor(
        record_bytes=record_bytes,
        requests=len(samples_ns),
        rate_per_s=len(samples_ns) * NS_PER_S / (now_ns - began_ns),
        p50_us=latency.p50_us,
        p99_us=latency.p99_us,
        max_us=latency.max_us,
    )


def main() -> int:
    """Measure as the command line says."""
    if len(sys.argv) not in {2, 3, 4}:
        print("usage: python -m bench.fsync_floor FOLDER [SECONDS] [BYTES]", file=sys.stderr)
        return 2
    duration_s = float(sys.argv[2]) if len(sys.argv) > 2 else 3.0
    record_bytes = int(sys.argv[3]) if len(sys.argv) > 3 else RECORD_BYTES
    print(json.dumps(asdict(measure(sys.argv[1], duration_s, record_bytes))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
