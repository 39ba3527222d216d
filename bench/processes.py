"""The processes of a run: started on their core, and stopped whatever happens."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

SERVER_CORE: Final = 0
LOAD_CORE: Final = 1
# A member that is alone in its group need not wait for others; a machine's disk may be nearly full,
# which is not what this is about. All else is as by default.
DAEMON_SETTINGS: Final = ("group.initial.rebalance.delay.ms=0", "storage.reserve.bytes=0")
_START_S: Final = 60
_STOP_S: Final = 60
_POLL_S: Final = 0.02
_CPU_TIME_OF_PROCESS: Final = 2


class ProcessError(Exception):
    """A process did not start, stop or answer as it should; the message shows its output."""


class Server(NamedTuple):
    """A process that listens."""

    pid: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core is whose.

    Attributes:
        pinned: False where the system cannot do it or has one core only; then all share.
        note: What to tell the reader.
    """

    pinned: bool
    note: str


def cores_of_this_machine() -> Cores:
    """Return whether server and load can have a core each."""
    if not hasattr(os, "sched_setaffinity"):
        return Cores(False, "not pinned: this system cannot bind a process to a core")
    usable = os.sched_getaffinity(0)
    if not {SERVER_CORE, LOAD_CORE} <= usable:
        return Cores(False, f"not pinned: only {len(usable)} core(s) usable, or not 0 and 1")
    return Cores(True, f"server on core {SERVER_CORE}, load on core {LOAD_CORE}")


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
    module: Sequence[str],
    *,
    output: Path,
    core: int | None,
    graceful: bool,
    checkout: Path | None = None,
) -> Iterator[Server]:
    """Start ``python -m module…``, wait until it is ready, and stop it at the end.

    Args:
        module: The module and its arguments.
        output: Where its output goes; JSON lines with the events "listening" and "ready".
        core: Where it runs.
        graceful: It must end with status 0 on SIGTERM; else SIGTERM just ends it.
        checkout: Whose code it runs, with this interpreter and its packages; None: as this process.

    Raises:
        ProcessError: It doesn't start, or doesn't stop as it should.
    """
    env = None if checkout is None else {**os.environ, "PYTHONPATH": python_path(checkout)}
    with output.open("wb") as file, on_core(core):
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=checkout,
            env=env,
        )
    try:
        yield _wait_until_ready(process, output)
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{module[0]} did not stop within {_STOP_S} s") from None
        if graceful and status != 0:
            raise ProcessError(f"{module[0]} ended with status {status}:\n{tail(output)}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def python_path(checkout: Path) -> str:
    """Return a PYTHONPATH with the code of *checkout* first; packages are found as before."""
    return os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])


def daemon(
    folder: Path, core: int | None, *settings: str, checkout: Path | None = None
) -> AbstractContextManager[Server]:
    """Start the daemon on this data folder, as `serving` does; its output is beside the folder.

    Args:
        folder: Made if it isn't there.
        core: Where it runs.
        settings: What differs from the defaults, besides `DAEMON_SETTINGS`.
        checkout: Whose code it runs.
    """
    arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", str(folder.absolute())]
    for setting in (*DAEMON_SETTINGS, *settings):
        arguments += ["--set", setting]
    return serving(
        ["coordinator", *arguments],
        output=output_of(folder),
        core=core,
        graceful=True,
        checkout=checkout,
    )


def output_of(folder: Path) -> Path:
    """Return where the output of the daemon on this folder is."""
    return folder.with_name(f"{folder.name}.log")


def _wait_until_ready(process: "subprocess.Popen[bytes]", output: Path) -> Server:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        events = events_of(output)
        if "ready" in events and "listening" in events:
            listening = events["listening"]
            return Server(process.pid, str(listening["host"]), int(listening["port"]))
        if process.poll() is not None:
            raise ProcessError(f"ended with status {process.returncode}:\n{tail(output)}")
        time.sleep(_POLL_S)
    raise ProcessError(f"not ready after {_START_S} s:\n{tail(output)}")


def events_of(output: Path) -> dict[str, dict[str, Any]]:
    """Return the events that a process has written so far, by name; of each name the last."""
    events = {}
    for line in output.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            events[event["event"]] = event
    return events


def tail(output: Path) -> str:
    """Return the end of a process's output."""
    return output.read_text(encoding="utf-8", errors="replace")[-2000:]


def run_json(module: Sequence[str], *, core: int | None, timeout_s: float) -> dict[str, Any]:
    """Run ``python -m module…`` to its end and return the JSON object that it printed.

    Raises:
        ProcessError: It failed, or took longer than ``timeout_s``.
    """
    with on_core(core):
        process = subprocess.Popen(
            [sys.executable, "-m", *module], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ProcessError(f"{module[0]} took longer than {timeout_s:.0f} s") from None
    if process.returncode:
        raise ProcessError(f"{module[0]} failed: {err.decode(errors='replace')[-2000:]}")
    result = json.loads(out)
    if not isinstance(result, dict):
        raise ProcessError(f"{module[0]} printed no JSON object")
    return result


@contextmanager
def beside(module: Sequence[str], *, core: int | None) -> Iterator[dict[str, Any]]:
    """Run ``python -m module…`` as long as the block lasts; the end of its input tells it to end.

    It prints a line when it has begun, and a JSON object at the end; then what is yielded holds it.

    Raises:
        ProcessError: It failed.
    """
    with on_core(core):
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    found: dict[str, Any] = {}
    try:
        assert process.stdout is not None
        if begun := process.stdout.readline():
            yield found
        out, err = process.communicate(timeout=_STOP_S)
        if process.returncode or not begun:
            raise ProcessError(f"{module[0]} failed: {err.decode(errors='replace')[-2000:]}")
        found.update(json.loads(out))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process, all its threads, in nanoseconds.

    /proc counts it in ticks of 10 ms; a rebalance of ten members takes less.

    Raises:
        OSError: There is no such process.
    """
    return time.clock_gettime_ns((~pid << 3) | _CPU_TIME_OF_PROCESS)  # As clock_getcpuclockid(3).


def resident_mb(pid: int) -> float | None:
    """Return the resident memory of a process in MB (10^6 bytes), where the system tells it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return None
