"""The ceiling: what trio does when nothing is parsed, decided or stored.

    python -m bench.echo_server [stream|socket]

sends back what it reads, and prints one JSON line with its port. ``stream`` is the usual trio
server over `trio.SocketStream`; ``socket`` uses trio's sockets without the stream around them.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import trio

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
    """Serve until killed."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "stream"
    if kind not in _ECHOES:
        print(f"bench.echo_server: {kind} is not one of {', '.join(_ECHOES)}", file=sys.stderr)
        return 2
    trio.run(_serve, kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
