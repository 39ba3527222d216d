"""The daemon as a process of its own, and a plain blocking connection to it."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import trio

from protocol.connection import ClientConnection
from protocol.errors import RemoteProtocolError
from protocol.messages import Request, Response
from tests import logged

ROOT: Final = Path(__file__).parents[2]
# A machine may be slow, and share its cores with a Spark and an ensemble.
WAIT_S: Final = 180.0
# A test machine's disk may be nearly full, which is not what these tests are about.
ALWAYS: Final = ("storage.reserve.bytes=0",)


class Daemon:
    """One process. `lines` are the events that it has logged so far.

    A node of a cluster has no *data_dir*. *limit* is an option of prlimit(1), such as
    ``--nofile=64``; *prefix* is another command that becomes the daemon; *options* are more of its
    own, which decide about ALWAYS, too.
    """

    def __init__(
        self,
        data_dir: Path | None,
        settings: Sequence[str] = (),
        *,
        limit: str = "",
        prefix: Sequence[str] = (),
        port: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        self.lines: list[dict[str, Any]] = []
        self.stray: list[str] = []
        folder = [] if data_dir is None else ["--data-dir", str(data_dir)]
        always = ALWAYS if folder and not options else ()
        sets = [word for s in (*always, *settings) for word in ("--set", s)]
        serve = ["serve", "--listen", f"127.0.0.1:{port}", *folder]
        limited = ["prlimit", limit] if limit else prefix
        self.process = subprocess.Popen(
            [*limited, sys.executable, "-m", "coordinator", *serve, *sets, *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                try:
                    self.lines.append(json.loads(line))
                    logged.note(self.lines[-1])
                except ValueError:
                    self.stray.append(line)
                self._changed.notify_all()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what was logged under *name*."""
        with self._changed:
            return [line for line in self.lines if line["event"] == name]

    def wait_for(self, name: str) -> dict[str, Any]:
        """Return the first event with this name, when it is there."""
        until(lambda: self.events(name) or self.process.poll() is not None, f"event {name}")
        found = self.events(name)
        if not found:
            self._reader.join(WAIT_S)
            found = self.events(name)
        assert found, f"no {name} in {self.lines} {self.stray}"
        return found[0]

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self.wait_for("listening")["port"]
        return port

    def ready(self) -> "Daemon":
        """Return it once it serves."""
        self.wait_for("ready")
        return self

    def connect(self) -> "Connection":
        """Connect to it."""
        return Connection(self.port)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        self._close()

    def stop(self) -> int:
        """Ask it to stop; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Return its exit status."""
        status = self.process.wait(WAIT_S)
        self._close()
        return status

    def _close(self) -> None:
        self._reader.join(WAIT_S)
        # Closing a file that is being read would wait for its end, which may never come.
        assert not self._reader.is_alive(), "another process has the daemon's standard output"
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def daemon(
    data_dir: Path | None,
    *settings: str,
    limit: str = "",
    prefix: Sequence[str] = (),
    port: int = 0,
    options: Sequence[str] = (),
) -> Iterator[Daemon]:
    """Run a daemon; it is killed at the end if it is still there."""
    one = Daemon(data_dir, settings, limit=limit, prefix=prefix, port=port, options=options)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.kill()
        else:
            one.wait()


class ServiceManager:
    """systemd, as far as a daemon tells it something. *prefix* is for the `Daemon`."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        self._socket.settimeout(WAIT_S)
        self.prefix = ("env", f"NOTIFY_SOCKET={folder / 'notify'}")

    def hear(self, word: str) -> list[str]:
        """Wait until it is told *word*; return all that it is told from the last one on."""
        words: list[str] = []
        while word not in words:
            words += self._socket.recv(4096).decode().splitlines()
        return words

    def hear_reload_and_stop(self, one: Daemon) -> None:
        """Have *one* reload, and then end, and hear of both."""
        one.process.send_signal(signal.SIGHUP)
        self.hear("RELOADING=1")
        self.hear("READY=1")
        one.process.send_signal(signal.SIGTERM)
        self.hear("STOPPING=1")
        assert one.wait() == 0

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hear nothing any more."""
        self._socket.close()


class Connection:
    """One request at a time."""

    def __init__(self, port: int, *, timeout_s: float = 30, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s, (source, 0))
        self._protocol = ClientConnection()

    def send(self, request: Request) -> int:
        """Send without waiting for the answer."""
        correlation_id, frame = self._protocol.send(request)
        self.socket.sendall(frame)
        return correlation_id

    def ask(self, request: Request) -> Response:
        """Return the answer. Raises OSError when there is none."""
        sent = self.send(request)
        while True:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionResetError("closed by the server")
            try:
                events = self._protocol.receive(data)
            except RemoteProtocolError as exc:
                raise AssertionError(str(exc)) from exc
            for event in events:
                if event.correlation_id == sent:
                    return event.response

    def closed_by_server(self) -> bool:
        """Wait for the end of the connection."""
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def until(holds: Callable[[], object], what: str, *, pause_s: float = 0.01) -> None:
    """Wait for something that another process does; ask again after each pause."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"no {what} within {WAIT_S} s"
        time.sleep(pause_s)


def reset_at_close(stream: trio.SocketStream) -> None:
    """Have *stream* end with a reset, as that of a process that crashed may."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def run_cli(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "coordinator", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
