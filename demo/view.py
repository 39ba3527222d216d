"""What the demo shows while it runs: a live table on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PLAIN_EVERY_S: Final = 5.0
_BAR_WIDTH: Final = 30
_STYLES: Final = {"working": "green", "starting": "yellow", "killed": "red", "drained": "cyan"}


class Driver(NamedTuple):
    """One Spark driver, as the demo knows it."""

    name: str
    status: str
    batches: int = 0
    rows: int = 0


class Partition(NamedTuple):
    """One partition: its owner ("" for none), and how far it is committed and appended."""

    partition: int
    owner: str
    committed: int
    end: int

    @property
    def lag(self) -> int:
        """Rows that are in the log and not committed."""
        return max(self.end - self.committed, 0)


class Snapshot(NamedTuple):
    """Everything that is shown at one moment."""

    state: str
    generation: int
    drivers: tuple[Driver, ...]
    partitions: tuple[Partition, ...]
    total: int

    @property
    def committed(self) -> int:
        """Rows committed, over all partitions."""
        return sum(one.committed for one in self.partitions)

    @property
    def lag(self) -> int:
        """Rows appended and not committed, over all partitions."""
        return sum(one.lag for one in self.partitions)

    def owned_by(self, driver: str) -> tuple[int, ...]:
        """Return the partitions of *driver*."""
        return tuple(one.partition for one in self.partitions if one.owner == driver)


NOTHING: Final = Snapshot("", -1, (), (), 0)


def plain(snapshot: Snapshot) -> str:
    """Return one line of text for where there is no terminal."""
    drivers = ", ".join(
        f"{driver.name} {driver.status} {_numbers(snapshot.owned_by(driver.name))}"
        for driver in snapshot.drivers
    )
    return (
        f"{_headline(snapshot)} | {drivers} | "
        f"committed {snapshot.committed:,} of {snapshot.total:,}, lag {snapshot.lag:,}"
    )


def render(snapshot: Snapshot) -> RenderableType:
    """Return the live tables."""
    partitions = Table(title=_headline(snapshot), expand=False)
    partitions.add_column("partition", justify="right")
    partitions.add_column("owner", min_width=8)
    partitions.add_column("committed", justify="right", min_width=9)
    partitions.add_column("log end", justify="right", min_width=9)
    partitions.add_column("lag", justify="right", min_width=7)
    partitions.add_column("")
    for one in snapshot.partitions:
        partitions.add_row(
            str(one.partition),
            one.owner or "-",
            f"{one.committed:,}",
            f"{one.end:,}",
            f"{one.lag:,}",
            ProgressBar(total=max(one.end, 1), completed=one.committed, width=_BAR_WIDTH),
        )
    drivers = Table(expand=False)
    drivers.add_column("driver")
    drivers.add_column("status", min_width=8)
    drivers.add_column("partitions", min_width=12)
    drivers.add_column("batches", justify="right")
    drivers.add_column("rows written", justify="right", min_width=9)
    for driver in snapshot.drivers:
        drivers.add_row(
            driver.name,
            Text(driver.status, style=_STYLES.get(driver.status, "")),
            _numbers(snapshot.owned_by(driver.name)),
            str(driver.batches),
            f"{driver.rows:,}",
        )
    total = Table.grid(padding=(0, 1))
    total.add_row(
        "all flights",
        ProgressBar(total=max(snapshot.total, 1), completed=snapshot.committed, width=_BAR_WIDTH),
        f"{snapshot.committed:,} of {snapshot.total:,}",
    )
    return Group(partitions, drivers, total)


class View:
    """Shows snapshots and tells the story above them. Use as ``with``."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._started_s = time.monotonic()
        self._shown_s = float("-inf")
        self._snapshot = NOTHING
        self._live = (
            Live(console=self._console, get_renderable=self._render, refresh_per_second=4)
            if self._console.is_terminal
            else None
        )

    def tell(self, text: str) -> None:
        """Print a line of the story, with the seconds since the beginning."""
        self._console.print(f"{time.monotonic() - self._started_s:6.1f} s  {text}", markup=False)

    def show(self, snapshot: Snapshot) -> None:
        """Show the group as it is now."""
        if not snapshot.partitions:
            return
        self._snapshot = snapshot
        if self._live is None and time.monotonic() - self._shown_s >= PLAIN_EVERY_S:
            self._shown_s = time.monotonic()
            self.tell(plain(snapshot))

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _render(self) -> RenderableType:
        return render(self._snapshot) if self._snapshot.partitions else Text("")


def _numbers(partitions: Sequence[int]) -> str:
    return "[" + " ".join(map(str, partitions)) + "]"


def _headline(snapshot: Snapshot) -> str:
    if snapshot.generation < 0:
        return "no group yet"
    return f"generation {snapshot.generation}, {snapshot.state}"
