"""What a node needs of the logs that keep what it decides, and of what keeps these.

One node has one log, in its data folder (`folder`). A cluster has several, and a node leads some
of them. Offsets partition p lies in the log p modulo their number; what is the node's own lies in
the first one.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from coordinator.group.core import Now
from coordinator.log.format import NODE_PARTITION, Batch, Flush
from coordinator.log.replay import Replay
from coordinator.runtime.calls import Call
from coordinator.runtime.environment import Done
from coordinator.runtime.health import Health


class ShardLog(Protocol):
    """Where the decisions of a shard go.

    Attributes:
        is_fenced: Whether another node may lead it unnoticed.
    """

    is_fenced: bool

    @property
    def leader_epoch(self) -> int:
        """The epoch that what is appended now carries."""

    def append_packed(self, partition: int, count: int, packed: bytes, timestamp_ms: int) -> int:
        """Put entries for *count* keys into the open flush; return the partition's end offset.

        Raises:
            LogFailed: The log failed, or is closed.
        """

    def end_offset(self, partition: int) -> int:
        """Return the offset that the partition's next entry will get."""

    def next_write(self) -> int:
        """Have another flush taken, though nothing may be appended; return its number.

        For a log that is fenced. What a node without the lead asks for is never written.
        """


class FlushLog(Protocol):
    """The appended entries, a flush at a time.

    Attributes:
        last_wait_s: How long the latest flush waited for its thread; None: it has none.
    """

    last_wait_s: float | None

    @property
    def open_bytes(self) -> int:
        """Bytes that were appended and not yet taken by a flush."""

    @property
    def last_sync_s(self) -> float:
        """How long the latest write alone took."""

    def take_flush(self) -> Flush | None:
        """Seal what was appended since the last call; None if that is nothing."""

    def write(self, flush: Flush, done: Done) -> None:
        """Have *flush* kept, and then *done* called, in the event loop; one at a time, in order.

        It is told LogFailed if nothing in or behind the flush may be acknowledged any more, and
        OutOfReach if the flush is nobody's concern any more: another node leads.
        """


class ChangesLog(Protocol):
    """What was flushed, to be read back partition by partition."""

    @property
    def compacted_below(self) -> dict[int, int]:
        """Per partition, the offset below which a stream of changes can't start."""

    async def fetch(
        self, partition: int, from_offset: int, max_bytes: int
    ) -> Generator[Batch, None, None]:
        """Return the batches of a partition from the one that holds *from_offset*.

        It ends after the batch for which so much was read, and has one at least, if there is one.
        To iterate over it may block, and raise LogError. Close it: until then what it reads is not
        removed.

        Raises:
            OutOfReach: Not now; a later try may succeed.
        """


class ReplayLog(Protocol):
    """What was flushed, to be read back at the start. Each method may raise LogError."""

    def load(self) -> Replay:
        """Return one pass over everything."""

    def load_partition(self, partition: int) -> Replay:
        """Return one pass over one partition."""

    def reading(self) -> AbstractContextManager[None]:
        """Have nothing removed meanwhile that a load may read."""


class Log(ShardLog, FlushLog, ChangesLog, Protocol):
    """One log, as a node has it that leads it."""


class OutOfReach(Exception):
    """What keeps the log can't be reached, or another node leads: nothing more is known."""


class LogUser(Protocol):
    """What a store needs of the node over it."""

    def want_flushes(self) -> None:
        """Have a flush of each log taken, though nothing may have been appended."""

    def runners_in(self, log: int) -> Sequence[Any]:
        """Return the `ShardRunner`s of that log's partitions; what is the node's own is first."""

    def advance(self, ends: dict[int, int]) -> None:
        """Let go what waited for these offsets to be durable."""

    def activated(self, runner: Any) -> None:
        """A shard serves."""

    def tell_changes(self, now: Now) -> None:
        """Have told what has changed of what is the node's own, which may be followed."""

    def purged_changed(self) -> None:
        """Take note that another node has changed what `Store.purged` returns."""

    def loaded(self, entries: int, load_ms: int) -> None:
        """Take note that everything is in memory that the logs say."""


class Store(Protocol):
    """What keeps the logs of a node, and knows how much room they have.

    Attributes:
        logs: All of them.
        replays: The same, to be loaded at the start; none if they are followed instead.
        health: What is wrong with them, and with the node over them.
        cluster_id: Of those that write them; "" while that is not known yet.
        num_partitions: Offsets partitions, in all logs together.
    """

    logs: Sequence[Log]
    replays: Sequence[ReplayLog]
    health: Health
    cluster_id: str
    num_partitions: int

    @property
    def end_round(self) -> Callable[[], None] | None:
        """To be called at the end of each round, behind the flushes; None for nothing."""

    @property
    def refuses(self) -> bool:
        """Whether new data is to be refused, as of the last look."""

    @property
    def is_exhausted(self) -> bool:
        """Whether generations and assignments are to be refused, too."""

    @property
    def logs_repeats(self) -> bool:
        """Whether all nodes read what entries of format 2 have, see `cluster.entries`."""

    @property
    def alarm_bytes(self) -> int:
        """With so much to be written, look again at once."""

    def begin(self) -> None:
        """Everything is loaded: keep the logs small from here on."""

    def flushed(self) -> None:
        """A flush has ended."""

    def look(self) -> None:
        """See how much room there is."""

    def tend(self) -> None:
        """Do what is to be done now and then. Raises LogFailed if the logs were taken away."""

    def purged(self, log: int) -> int:
        """Return up to which version of the registry a log has no offsets of deleted topics."""

    def set_purged(self, log: int, version: int) -> None:
        """Keep that, as it is so in what is durable; nothing unless this node leads the log."""

    def compact(self, call: Call) -> None:
        """Compact, and then answer *call*, a CompactLog."""

    async def run(self, node: "LogUser") -> None:
        """Keep the logs small, and tell *node* what becomes of them, until `stop`.

        Raises:
            LogFailed: A log failed.
        """

    async def hand_over(self) -> None:
        """Have other nodes lead what this one leads, as far as there are any."""

    async def stop(self) -> None:
        """Stop for good; what has begun is brought to its end."""


L = TypeVar("L")


def log_number(partition: int, logs: int) -> int:
    """Return in which of so many logs *partition* lies."""
    return 0 if partition == NODE_PARTITION else partition % logs


def log_of(logs: Sequence[L], partition: int) -> L:
    """Return the one of *logs* in which *partition* lies."""
    return logs[log_number(partition, len(logs))]
