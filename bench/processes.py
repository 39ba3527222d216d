"""The processes of a run: started on their core, and stopped whatever happens."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

_SERVER_CORE: Final = 0
_LOAD_CORE: Final = 1
# A member that is alone in its group need not wait for others; a machine's disk may be nearly full,
# which is not what this is about. All else is as by default.
_DAEMON_SETTINGS: Final = ("group.initial.rebalance.delay.ms=0", "storage.reserve.bytes=0")
# What a page of results says of it.
DAEMON_NOTES: Final = {
    "daemon": "defaults, " + ", ".join(_DAEMON_SETTINGS),
    "durability": "fdatasync before every acknowledgement",
}
_START_S: Final = 120
_STOP_S: Final = 60
_RUN_S: Final = 900
_POLL_S: Final = 0.02
_CPU_TIME_OF_PROCESS: Final = 2

P = TypeVar("P")


class ProcessError(Exception):
    """A process did not start, stop or answer as it should; the message shows its output."""


class Server(NamedTuple):
    """A process that listens."""

    pid: int
    host: str
    port: int

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"


class Cores(NamedTuple):
    """Which core is whose; None is any, where there is one only."""

    server: int | None
    load: int | None
    note: str


def cores_of_this_machine() -> Cores:
    """Return a core for servers and one for the load, if there are two."""
    usable = os.sched_getaffinity(0)
    if not {_SERVER_CORE, _LOAD_CORE} <= usable:
        return Cores(None, None, f"not pinned: only {len(usable)} core(s) usable, or not 0 and 1")
    note = f"server on core {_SERVER_CORE}, load on core {_LOAD_CORE}"
    return Cores(_SERVER_CORE, _LOAD_CORE, note)


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Processes that are started inside run on this core; None leaves them alone."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def moved(pid: int, core: int | None) -> None:
    """Move a running process, all its threads, to this core; None leaves it where it is."""
    if core is None:
        return
    for _ in range(2):  # Again, for threads that were started meanwhile.
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # It has ended.
                os.sched_setaffinity(int(thread.name), {core})


@contextmanager
def serving(
    command: Sequence[str],
    address: Callable[[], tuple[str, int] | None],
    *,
    output: Path,
    core: int | None,
    graceful: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start a server, wait until it is ready, and stop it at the end with SIGTERM.

    Args:
        command: The program and its arguments.
        address: Returns where it listens, None as long as it isn't ready.
        output: Where its output goes.
        core: Where it runs.
        graceful: It must end with status 0.
        cwd: Its folder; None: this process's.
        env: Its environment; None: this process's.

    Raises:
        ProcessError: It doesn't start, or doesn't stop as it should.
    """
    with output.open("wb") as file, on_core(core):
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=cwd, env=env)
    try:
        deadline = time.monotonic() + _START_S
        while (found := address()) is None:
            if process.poll() is not None:
                raise ProcessError(
                    f"{output.stem} ended with status {process.returncode}:\n{_tail(output)}"
                )
            if time.monotonic() > deadline:
                raise ProcessError(f"{output.stem} not ready after {_START_S} s:\n{_tail(output)}")
            time.sleep(_POLL_S)
        yield Server(process.pid, *found)
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{output.stem} did not stop within {_STOP_S} s") from None
        if graceful and status != 0:
            raise ProcessError(f"{output.stem} ended with status {status}:\n{_tail(output)}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def python_path(checkout: Path) -> str:
    """Return a PYTHONPATH with the code of *checkout* first; packages are found as before."""
    return os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])


def daemon(
    folder: Path,
    core: int | None,
    *settings: str,
    listen: str = "127.0.0.1:0",
    checkout: Path | None = None,
    module: Sequence[str] = ("coordinator",),
) -> AbstractContextManager[Server]:
    """Start the daemon on this data folder, as `serving` does; its output is beside the folder.

    Args:
        folder: Made if it isn't there.
        core: Where it runs.
        settings: What differs from the defaults, besides `_DAEMON_SETTINGS`.
        listen: Where it listens.
        checkout: Whose code it runs, with this interpreter and its packages; None: as this process.
        module: What runs the daemon, and what that is told first.
    """
    arguments = ["serve", "--listen", listen, "--data-dir", str(folder.absolute())]
    for setting in (*_DAEMON_SETTINGS, *settings):
        arguments += ["--set", setting]
    return serving(
        [sys.executable, "-m", *module, *arguments],
        listening_in(output_of(folder)),
        output=output_of(folder),
        core=core,
        graceful=True,
        cwd=checkout,
        env=None if checkout is None else {**os.environ, "PYTHONPATH": python_path(checkout)},
    )


def output_of(folder: Path) -> Path:
    """Return where the output of the daemon on this folder is."""
    return folder.with_name(f"{folder.name}.log")


def listening_in(output: Path) -> Callable[[], tuple[str, int] | None]:
    """Return what finds the address in the events "listening" and "ready" of a server's output."""

    def address() -> tuple[str, int] | None:
        events = events_of(output)
        if "ready" not in events:
            return None
        return str(events["listening"]["host"]), int(events["listening"]["port"])

    return address


def events_of(output: Path) -> dict[str, dict[str, Any]]:
    """Return the events that a process has written so far, by name; of each name the last."""
    events = {}
    for line in output.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError):  # Something else was printed.
            event = json.loads(line)
            events[event["event"]] = event
    return events


def _tail(output: Path) -> str:
    return output.read_text(encoding="utf-8", errors="replace")[-2000:]


def _module(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a module; a plan among its arguments becomes JSON."""
    words = (
        json.dumps(asdict(word)) if is_dataclass(word) and not isinstance(word, type) else str(word)
        for word in arguments
    )
    return [sys.executable, "-m", name, *words]


def run_json(module: str, *arguments: object, core: int | None) -> dict[str, Any]:
    """Run ``python -m module arguments…`` to its end and return the JSON object that it printed.

    Raises:
        ProcessError: It failed, or took far too long.
    """
    with on_core(core):
        process = subprocess.Popen(
            _module(module, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    try:
        out, err = process.communicate(timeout=_RUN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ProcessError(f"{module} took longer than {_RUN_S} s") from None
    return _result(module, process.returncode, out, err)


@contextmanager
def beside(
    module: str, *arguments: object, core: int | None, gives_way: bool = True
) -> Iterator[dict[str, Any]]:
    """Run such a process as long as the block lasts; the end of its input tells it to end.

    It prints a line when it has begun, and a JSON object at the end; then what is yielded holds it.
    One that *gives way* has what others leave of its core: whoever is measured there waits for
    the server, and not for the time slices of who stands beside him.

    Raises:
        ProcessError: It failed.
    """
    with on_core(core):
        process = subprocess.Popen(
            _module(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    if gives_way:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    found: dict[str, Any] = {}
    try:
        assert process.stdout is not None
        if begun := process.stdout.readline():
            yield found
        out, err = process.communicate(timeout=_STOP_S)
        found.update(_result(module, process.returncode or not begun, out, err))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _result(module: str, failed: int | bool, out: bytes, err: bytes) -> dict[str, Any]:
    if failed:
        raise ProcessError(f"{module} failed: {err.decode(errors='replace')[-2000:]}")
    result: dict[str, Any] = json.loads(out)
    return result


class LoadError(ProcessError):
    """A process that makes load can't do it as it should; the message says why."""


def run_plan(module: str, kind: type[P], run: Callable[[P], Mapping[str, Any]]) -> None:
    """Run the plan of the command line, print its result as JSON, and end this process."""
    try:
        found = run(kind(**json.loads(sys.argv[1])))
    except (LoadError, OSError, ValueError) as exc:
        sys.exit(f"{module}: {exc}; the plan was {sys.argv[1]}")
    print(json.dumps(found))


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process, all its threads, in nanoseconds.

    /proc counts it in ticks of 10 ms; a rebalance of ten members takes less.

    Raises:
        OSError: There is no such process.
    """
    return time.clock_gettime_ns((~pid << 3) | _CPU_TIME_OF_PROCESS)  # As clock_getcpuclockid(3).


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB (10^6 bytes).

    Raises:
        OSError: There is no such process.
    """
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6
