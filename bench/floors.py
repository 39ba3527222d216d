"""What no program can do faster: each floor is measured by a process of its own.

    python -m bench.floors disk append|overwrite FOLDER [SECONDS] [BYTES]
    python -m bench.floors echo stream|socket

``disk`` writes a record as large as the batch of a one-partition commit and calls fdatasync, again
and again, in a new file in the folder: no durable commit can be faster. ``append`` makes the file
longer; ``overwrite`` goes over zeros that were synced before, which spares the disk the metadata.
It prints one line of JSON.

``echo`` is the ceiling of a server: what trio does when nothing is parsed, decided or stored. It
sends back what it reads, and prints lines of JSON as the daemon does, with its port. ``stream`` is
the usual trio server over `trio.SocketStream`; ``socket`` uses trio's sockets without the stream.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import trio

from bench.measures import NS_PER_S, latency_of
from bench.processes import Server, listening_in, serving

# --- the disk ------------------------------------------------------------------------------------

RECORD_BYTES: Final = 128
_WARMUP_ROUNDS: Final = 50
_ZEROED_BYTES: Final = 4 << 20


def measure_disk(
    folder: str, *, overwrite: bool, duration_s: float, record_bytes: int
) -> dict[str, float]:
    """Write and sync for ``duration_s``, in a file that is gone afterwards.

    Raises:
        OSError: The folder can't be written to.
    """
    record = os.urandom(record_bytes)
    samples_ns: list[int] = []
    clock = time.perf_counter_ns
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        fd = file.fileno()
        if overwrite:
            os.write(fd, bytes(_ZEROED_BYTES))
            os.fsync(fd)
            os.lseek(fd, 0, os.SEEK_SET)

        def write() -> None:
            if overwrite and os.lseek(fd, 0, os.SEEK_CUR) + record_bytes > _ZEROED_BYTES:
                os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, record)
            os.fdatasync(fd)

        for _ in range(_WARMUP_ROUNDS):
            write()
        began_ns = now_ns = clock()
        until_ns = began_ns + int(duration_s * NS_PER_S)
        while now_ns < until_ns:
            write()
            before_ns, now_ns = now_ns, clock()
            samples_ns.append(now_ns - before_ns)
    return {
        "record_bytes": record_bytes,
        "requests": len(samples_ns),
        "rate_per_s": len(samples_ns) * NS_PER_S / (now_ns - began_ns),
        **latency_of(samples_ns)._asdict(),
    }


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


def echo(kind: str, output: Path, core: int | None) -> AbstractContextManager[Server]:
    """Start an echo, as `serving` does."""
    command = [sys.executable, "-m", "bench.floors", "echo", kind]
    return serving(command, listening_in(output), output=output, core=core)


def main() -> int:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["disk", ("append" | "overwrite") as how, folder, *rest] if len(rest) <= 2:
            duration_s = float(rest[0]) if rest else 3.0
            size = int(rest[1]) if len(rest) > 1 else RECORD_BYTES
            overwrite = how == "overwrite"
            measured = measure_disk(
                folder, overwrite=overwrite, duration_s=duration_s, record_bytes=size
            )
            print(json.dumps(measured))
        case ["echo", ("stream" | "socket") as kind]:
            trio.run(_serve, kind)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
