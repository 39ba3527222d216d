"""What a user of the client sees of a coordinator that is away: real processes, their stderr."""

import re
import signal
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from client import CoordinatorUnavailable, TopicPartition
from client.blocking import BlockingClient, connect_blocking
from tests.integration.daemon import ROOT, WAIT_S, daemon

pytestmark = pytest.mark.integration

# Commits every 50 ms until Ctrl-C, and says how far it is.
PROGRAM = """
import asyncio, logging, sys
from client import TopicPartition
from client.aio import connect
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")

async def main():
    async with connect({address!r}) as client, client.join("g", ["t"], {{"t": 1}}) as member:
        assignment = await member.assignment()
        for offset in range(1_000_000):
            await member.commit(dict.fromkeys(assignment.partitions, offset))
            print(offset, flush=True)
            await asyncio.sleep(0.05)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
"""

# In front of an example: what each call of its client has, once that is connected.
BUDGET_MS = 300
SHORT_BUDGET = f"""
import client.router
async def start(router, real=client.router.Router.start):
    await real(router)
    router.request_timeout_ms = {BUDGET_MS}
client.router.Router.start = start
"""
READ = re.compile(r"generation (\d+): (flights-\d) from (\d+) to \d+")

NOBODY_THERE = {
    "trio": """
import trio
from client import connect
async def main():
    async with connect({address!r}, request_timeout_ms=50):
        pass
trio.run(main)
""",
    "asyncio": """
import asyncio
from client.aio import connect
async def main():
    async with connect({address!r}, request_timeout_ms=50):
        pass
asyncio.run(main())
""",
    "blocking": """
from client.blocking import connect_blocking
with connect_blocking({address!r}, request_timeout_ms=50):
    pass
""",
}


class Program:
    """A running program, and the lines that it has printed."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.errors.append(line.rstrip())
                self._said.notify_all()

    def wait_for_commit(self) -> str:
        """Wait for the next one; return the line that tells of it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors
        return line.rstrip()

    def wait_for_error(self, words: str) -> None:
        """Wait until a line of standard error has *words* in it."""
        with self._said:
            assert self._said.wait_for(
                lambda: any(words in line for line in self.errors), WAIT_S
            ), self.errors

    def interrupt(self, signum: int = signal.SIGINT) -> int:
        """Press Ctrl-C, or send another signal; return the exit status."""
        self.process.send_signal(signum)
        return self.end()

    def end(self) -> int:
        """Wait for its end; return the exit status."""
        assert self.process.stdout is not None
        self.process.stdout.read()
        status = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status


@contextmanager
def running(code: str) -> Iterator[Program]:
    """Run *code*; it is killed at the end if it still runs."""
    program = Program(code)
    try:
        yield program
    finally:
        program.process.kill()
        program.end()
        for file in (program.process.stdout, program.process.stderr):
            assert file is not None
            file.close()


def test_a_killed_daemon_makes_two_lines_and_ctrl_c_leaves_the_group(tmp_path: Path) -> None:
    """One WARNING and one INFO for all the retries between; then nothing is left of the member."""
    data, at_once = tmp_path / "data", "group.initial.rebalance.delay.ms=0"
    with daemon(data, at_once) as one:
        port = one.ready().port
        listen = f"127.0.0.1:{port}"
        with running(PROGRAM.format(address=listen)) as program:
            program.wait_for_commit()
            one.kill()
            program.wait_for_error("WARNING")
            with daemon(data, at_once, port=port) as other:
                other.ready()
                program.wait_for_error("INFO")
                program.wait_for_commit()

                assert program.interrupt() == 0

                with connect_blocking(listen) as client:
                    assert [group.state for group in client.describe_groups(["g"])] == ["Empty"]
                    assert TopicPartition("t", 0) in client.fetch_offsets("g")

    warning, info = program.errors
    assert warning.startswith(f"WARNING {listen}")
    assert warning.endswith("; trying again")
    assert info.startswith(f"INFO {listen} answers again, after ")


def give_up_on(address: str, other: BlockingClient, times: int) -> None:
    """Ask at *address*, where nobody is, until so many budgets of a call are over."""
    other.inner._router.request_timeout_ms = BUDGET_MS
    for _ in range(times):
        with pytest.raises(CoordinatorUnavailable, match=address):
            other.fetch_offsets("g")


@pytest.mark.parametrize(
    ("example", "group"),
    [("consumer.py", "readers"), ("asyncio_program.py", "readers"), ("blocking.py", "blocking")],
)
def test_an_example_outlives_a_killed_daemon_and_leaves_at_sigterm(
    tmp_path: Path, example: str, group: str
) -> None:
    """Word for word: after an outage of many budgets of a call it goes on where it was."""
    data, at_once = tmp_path / "data", "group.initial.rebalance.delay.ms=0"
    code = SHORT_BUDGET + (ROOT / "examples" / example).read_text()
    code = code.replace('client_id="example"', 'client_id="example", leave_timeout_ms=60_000')
    with daemon(data, at_once) as one, ExitStack() as stack:
        port = one.ready().port
        listen = f"127.0.0.1:{port}"
        other = stack.enter_context(connect_blocking(listen))
        program = stack.enter_context(running(code.replace("127.0.0.1:9310", listen)))
        printed = [program.wait_for_commit() for _ in range(12)]
        one.kill()
        program.wait_for_error("trying again")
        give_up_on(listen, other, times=10)
        assert program.process.poll() is None, program.errors
        with daemon(data, at_once, port=port) as again:
            again.ready()
            printed += [program.wait_for_commit() for _ in range(12)]
            while not printed[-1].startswith("generation 1: flights-5"):
                printed.append(program.wait_for_commit())

            assert program.interrupt(signal.SIGTERM) == 0

            with connect_blocking(listen) as client:
                assert [one.state for one in client.describe_groups([group])] == ["Empty"]
    starts: dict[str, list[int]] = defaultdict(list)
    for line in printed:
        match = READ.fullmatch(line)
        assert match, printed
        assert match[1] == "1"  # The outage was no rebalance.
        starts[match[2]].append(int(match[3]))
    for read in starts.values():
        assert read == [10 * number for number in range(len(read))]  # Nothing twice, no gap.
    (warning,) = program.errors
    assert warning.startswith(listen)


def test_nobody_there_is_one_traceback_that_ends_with_one_line() -> None:
    """In each form of the client: the address, and the system's words."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # So the port is nobody else's, and nobody listens.
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        programs = {
            form: Program(code.format(address=address)) for form, code in NOBODY_THERE.items()
        }
        for form, program in programs.items():
            with program.process:
                assert program.end() == 1, form
    for program in programs.values():
        tracebacks = [line for line in program.errors if line.startswith(("Traceback", "  + Exc"))]
        assert len(tracebacks) == 1, program.errors
        assert program.errors[-1] == (
            "client.exceptions.CoordinatorUnavailable: no coordinator answers: "
            f"{address} could not be connected: Connection refused"
        )
        warnings = [line for line in program.errors if line.endswith("; trying again")]
        assert warnings == [f"{address} could not be connected: Connection refused; trying again"]
