"""What no program can do faster: each floor is measured by a process of its own.

    python -m bench.floors disk FOLDER [SECONDS] [BYTES]
    python -m bench.floors replay FOLDER
    python -m bench.floors echo [stream|socket]

``disk`` appends a record as large as the batch of a one-partition commit to a new file in the
folder and calls fdatasync, again and again: no durable commit can be faster. ``replay`` reads the
segments of a stopped daemon's folder, and times the crc and msgpack's unpackb of every batch: no
program in Python can learn what is in the log in less; the layout is that of docs/log-format.md.
Both print one line of JSON.

``echo`` is the ceiling of a server: what trio does when nothing is parsed, decided or stored. It
sends back what it reads, and prints lines of JSON as the daemon does, with its port. ``stream`` is
the usual trio server over `trio.SocketStream`; ``socket`` uses trio's sockets without the stream.
"""

import gc
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from struct import Struct
from typing import Final

import msgpack
import trio

from bench.measures import NS_PER_S, latency_of

# --- the disk ------------------------------------------------------------------------------------

RECORD_BYTES: Final = 128
_WARMUP_ROUNDS: Final = 50


@dataclass(frozen=True, slots=True)
class DiskFloor:
    """What a write and fdatasync of ``record_bytes`` took."""

    record_bytes: int
    requests: int
    rate_per_s: float
    p50_us: float
    p99_us: float
    max_us: float


def measure_disk(folder: str, duration_s: float, record_bytes: int = RECORD_BYTES) -> DiskFloor:
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
    return DiskFloor(
        record_bytes=record_bytes,
        requests=len(samples_ns),
        rate_per_s=len(samples_ns) * NS_PER_S / (now_ns - began_ns),
        p50_us=latency.p50_us,
        p99_us=latency.p99_us,
        max_us=latency.max_us,
    )


# --- a load --------------------------------------------------------------------------------------

_PREFIX: Final = Struct(">II")  # length, crc
_REST_BYTES: Final = 31  # Of the header, behind the crc.


@dataclass(frozen=True, slots=True)
class ReplayFloor:
    """What it took."""

    batches: int
    entries: int
    seconds: float
    cpu_s: float


def _batches_of(segment: bytes) -> Iterable[tuple[int, int]]:
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


def measure_replay(folder: Path) -> ReplayFloor:
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
        for begin, end in _batches_of(segment)
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


# --- a server ------------------------------------------------------------------------------------

_READ_BYTES: Final = 1 << 16


async def _echo_stream(stream: trio.SocketStream) -> None:
    try:
        async for data in stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        return


async def _echo_socket(stream: trio.SocketStream) -> None:
    sock = stream.socket
    try:
        while data := await sock.recv(_READ_BYTES):
            while data := data[await sock.send(data) :]:
                pass
    except OSError:
        return


_ECHOES: Final[dict[str, Callable[[trio.SocketStream], Awaitable[None]]]] = {
    "stream": _echo_stream,
    "socket": _echo_socket,
}


async def _serve(kind: str) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listeners[0].socket.getsockname()[:2]
    # The same line as the daemon's, so that both are started by the same code.
    print(json.dumps({"event": "listening", "host": host, "port": port}), flush=True)
    print(json.dumps({"event": "ready"}), flush=True)
    await trio.serve_listeners(_ECHOES[kind], listeners)


def main() -> int:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["disk", folder, *rest] if len(rest) <= 2:
            duration_s = float(rest[0]) if rest else 3.0
            record_bytes = int(rest[1]) if len(rest) > 1 else RECORD_BYTES
            print(json.dumps(asdict(measure_disk(folder, duration_s, record_bytes))))
        case ["replay", folder]:
            print(json.dumps(asdict(measure_replay(Path(folder)))))
        case ["echo", *kind] if len(kind) <= 1 and (not kind or kind[0] in _ECHOES):
            trio.run(_serve, kind[0] if kind else "stream")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
