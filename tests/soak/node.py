"""The daemon's lives: it is started whenever there is none, and every end needs a reason."""

import json
import random
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import trio

from tests.integration.daemon import Daemon
from tests.logged import BUGS
from tests.sim.registers import Violation
from tests.soak.accounts import HOST, LISTENERS, Accounts
from tests.soak.clock import Shift
from tests.soak.wires import Wires

KILLED: Final = -signal.SIGKILL
STOPPED: Final = 0
WRITE_FAILED: Final = 74
SETTINGS: Final[Mapping[str, int | str | bool]] = {
    "offsets.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 300,
    "group.min.session.timeout.ms": 1_000,
    "offsets.commit.timeout.ms": 1_000,
    # Small, so that segments are sealed and compacted all the time.
    "offsets.topic.segment.bytes": 65_536,
    "log.cleaner.delete.retention.ms": 10_000,
}
_POLL_S: Final = 0.02
_START_S: Final = 60
# A process may begin this far from where its machine's clock for durations is.
_BOOT_AHEAD_MAX_S: Final = 10 * 86_400


class Sample(NamedTuple):
    """What a process holds at a moment."""

    minute: float
    life: int
    memory_mb: float
    descriptors: int
    threads: int


class Node:
    """The daemon over one folder."""

    def __init__(
        self, folder: Path, disk: Path, accounts: Accounts, wires: Wires, rng: random.Random
    ) -> None:
        """*folder* is for what belongs to the test, the data is on *disk*."""
        self.lives = 0
        self.events: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.data = disk / "data"
        self.clock = Shift(folder / "clock")
        self._config = folder / "settings.toml"
        self._settings = {**SETTINGS, **accounts.settings()}
        self._wires = wires
        self._rng = rng
        self._daemon: Daemon | None = None
        self._serves = trio.Event()
        self._may_end: frozenset[int] = frozenset()
        self._stopping = False
        self._can_shift_boot = (
            subprocess.run(["unshare", "-T", "true"], capture_output=True, check=False).returncode
            == 0
        )
        self.configure()

    # --- what faults ask for --------------------------------------------------------------------

    def configure(self, **settings: int | str) -> None:
        """Write the file of settings; double underscores are dots."""
        given = self._settings | {name.replace("_", "."): value for name, value in settings.items()}
        lines = (f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in given.items())
        self._config.write_text("".join(lines), encoding="utf-8")

    async def serving(self) -> Daemon:
        """Return the daemon when it serves."""
        while True:
            await self._serves.wait()
            if self._daemon is not None and self._daemon.process.poll() is None:
                return self._daemon
            await trio.sleep(_POLL_S)

    @contextmanager
    def may_end(self, *statuses: int) -> Iterator[None]:
        """Within the block it may end like that."""
        self._may_end = frozenset(statuses)
        try:
            yield
        finally:
            self._may_end = frozenset()

    async def ended(self, life: int) -> None:
        """Wait until that life is over."""
        while self.lives == life and self._daemon is not None:  # noqa: ASYNC110 - A process's end is looked for.
            await trio.sleep(_POLL_S)

    async def event(self, name: str, before: int) -> None:
        """Wait until *name* was logged more often than *before*, within this life."""
        with trio.fail_after(_START_S):
            while self.count(name) <= before:  # noqa: ASYNC110 - So is what it logs.
                await trio.sleep(_POLL_S)

    def count(self, name: str) -> int:
        """Return how often the process of the moment has logged an event."""
        return len(self._daemon.events(name)) if self._daemon is not None else 0

    def ports(self) -> dict[str, int]:
        """Return where the process of the moment listens, by protocol."""
        assert self._daemon is not None
        told = self._daemon.events("listening")
        return {name: line["port"] for name, line in zip(LISTENERS, told, strict=True)}

    # --- its lives ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep it running until `stop`."""
        while not self._stopping:
            daemon = self._start()
            try:
                if await self._becomes_ready(daemon):
                    self._wires.begin_life(self.ports())
                    self._serves.set()
                while daemon.process.poll() is None:  # noqa: ASYNC110 - A process's end is looked for.
                    await trio.sleep(_POLL_S)
                self._judge_end(daemon)
                assert self.lives > 1 or daemon.events("ready"), self.violations
            finally:
                self._serves = trio.Event()
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(_put_away, daemon)
                self._wires.end_life()
                self._note(daemon)
                self._daemon = None
            await trio.sleep(self._rng.uniform(0, 0.5))

    async def stop(self, *, for_good: bool) -> None:
        """Have it stop in peace; it starts again if not *for_good*."""
        daemon = await self.serving()
        self._stopping = for_good
        with self.may_end(STOPPED):
            daemon.process.send_signal(signal.SIGTERM)
            await self.ended(self.lives)

    def sample(self, minute: float) -> Sample | None:
        """Return what the process holds; None if there is none that serves."""
        if self._daemon is None or not self._serves.is_set():
            return None
        folder = Path("/proc") / str(self._daemon.process.pid)
        with suppress(OSError, KeyError):  # It is gone, or a zombie without memory.
            status = (folder / "status").read_text(encoding="ascii")
            sizes = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE))
            return Sample(
                round(minute, 2),
                self.lives,
                int(sizes["VmRSS"]) * 1024 / 1e6,
                len(list((folder / "fd").iterdir())),
                int(sizes["Threads"]),
            )
        return None

    def _start(self) -> Daemon:
        self.lives += 1
        shifted = [*self.clock.prefix]
        if self._can_shift_boot:
            ahead_s = self._rng.randrange(_BOOT_AHEAD_MAX_S)
            shifted = ["unshare", "-T", "--monotonic", str(ahead_s), *shifted]
        options = ["--config", str(self._config)]
        for protocol in LISTENERS[1:]:
            options += ["--listen", f"{protocol}://{HOST}:0"]
        self._daemon = Daemon(self.data, prefix=shifted, options=options)
        return self._daemon

    async def _becomes_ready(self, daemon: Daemon) -> bool:
        with trio.move_on_after(_START_S):
            while daemon.process.poll() is None:
                if daemon.events("ready"):
                    return True
                await trio.sleep(_POLL_S)
            return False
        self._violate("start", f"life {self.lives} was not ready in {_START_S} s")
        daemon.process.kill()
        return False

    def _judge_end(self, daemon: Daemon) -> None:
        status = daemon.process.returncode
        if status not in self._may_end:
            last = daemon.lines[-3:]
            self._violate("end", f"life {self.lives} ended with {status}: {daemon.stray} {last}")

    def _note(self, daemon: Daemon) -> None:
        for line in (line for name in BUGS for line in daemon.events(name)):
            self._violate("bug", str(line))
        self.events.update(line["event"] for line in daemon.lines)
        if daemon.stray:
            self._violate("stray output", "".join(daemon.stray)[-2_000:])

    def _violate(self, invariant: str, text: str) -> None:
        self.violations.append(Violation(invariant, text))


def _put_away(daemon: Daemon) -> None:
    if daemon.process.poll() is None:
        daemon.kill()
    else:
        daemon.wait()
