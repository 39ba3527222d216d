"""Child processes that speak JSON lines, and that never outlive the demo.

Each child leads a session and process group of its own, as a driver on a machine of its own
would; so one SIGKILL takes a Spark driver, its JVM and its Python workers at once, and Ctrl-C on
the terminal reaches only the demo, which then ends its children.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from demo.names import ROOT

EXIT_WAIT_S: Final = 10.0
TAIL_LINES: Final = 15


class Line(NamedTuple):
    """One event that a child printed."""

    child: str
    event: str
    fields: Mapping[str, Any]


def parse_line(child: str, text: str) -> Line | None:
    """Return the event in a line of output, or None where the line is something else."""
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("event"), str):
        return None
    return Line(child, fields["event"], fields)


class Child:
    """One running process.

    Args:
        name: what it is called in events and log files.
        arguments: for this Python interpreter.
        logs: the folder for its output; `<name>.err` and `<name>.out` are made there.
        lines: where its events go.
        on_line: called first with each event, in the thread that reads it.

    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        logs: Path,
        lines: "queue.SimpleQueue[Line]",
        on_line: Callable[[Line], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.err_path = logs / f"{name}.err"
        self._out_path = logs / f"{name}.out"
        self._lines = lines
        self._on_line = on_line
        self._closed = False
        with self.err_path.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                start_new_session=True,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id, which is the id of its process group too."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """Return how it ended (-9 for SIGKILL), or None while it runs.

        It is not reaped here, so that no other process can get its id before `close`.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def tell(self, command: str) -> None:
        """Send one line to its standard input; a child that is gone hears nothing."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()

    def kill_group(self) -> None:
        """SIGKILL the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the process, and only it, to end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def close(self) -> None:
        """Make sure that nothing of it is left. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.kill_group()
        self._process.wait(EXIT_WAIT_S)
        self._reader.join(EXIT_WAIT_S)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        if not self._reader.is_alive():  # Else closing would wait for whoever still writes.
            self._process.stdout.close()

    def error_tail(self) -> str:
        """Return the last lines of its standard error, for a report of what went wrong."""
        text = self.err_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._out_path.open("w", encoding="utf-8") as out:
            for text in self._process.stdout:
                out.write(text)
                line = parse_line(self.name, text)
                if line is None:
                    continue
                if self._on_line is not None:
                    self._on_line(line)
                self._lines.put(line)


class Children:
    """All children; leaving the ``with`` block ends every one of them, whatever happened."""

    def __init__(self, logs: Path) -> None:
        self.lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._logs = logs
        self._children: list[Child] = []

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        on_line: Callable[[Line], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start one more; see `Child`."""
        child = Child(
            name,
            arguments,
            logs=self._logs,
            lines=self.lines,
            on_line=on_line,
            environment=environment,
        )
        self._children.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in reversed(self._children):
            child.close()
