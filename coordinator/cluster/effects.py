"""Effects that the state machines return: requests to the engine, and events for the node."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinator.cluster.engine import Request
from coordinator.log.errors import LogError
from coordinator.log.format import Batch


@dataclass(frozen=True, slots=True)
class Send:
    """Submit *request*, and pass its reply to `replied`."""

    request: Request


@dataclass(frozen=True, slots=True)
class LoadAnew:
    """Discard the node's whole state of the journal, which may differ from the log.

    `Followed` then delivers the log from its beginning. A node that has just started gets this
    effect, too.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class Followed:
    """Replay *batches*, the next ones of the log, to their end; then call the node's `took`.

    Batches are unpacked one at a time, so other tasks may run between two of them. The iterator
    may raise LogCorrupt.
    """

    journal: int
    batches: Iterator[Batch]


@dataclass(frozen=True, slots=True)
class Leads:
    """This node leads, and holds everything that former leaders wrote: serve, in this epoch.

    No load and no rebalance follows: members get full sessions.
    """

    journal: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """This node leads on in a new session: answers carry this epoch from now on."""

    journal: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Written:
    """A part of the flush is durable in the log.

    Attributes:
        ends: By partition, the end offset of the part.
        is_last: The flush is complete: the next one may be written.
    """

    journal: int
    ends: dict[int, int]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Confirmed:
    """This node led when `confirm` returned this number, and all smaller ones."""

    journal: int
    number: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """This node leads no more, a new leader may write: answer waiting requests; `LoadAnew` follows.

    Answer 1000 to requests that wait for an offset up to the one in *unknown*: their writes may or
    may not be in the log. Answer 16 to all others: their writes aren't in the log. Writes that are
    in the log were announced by `Written`. This effect may come without an earlier `Leads`.
    """

    journal: int
    unknown: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HandsOver:
    """The journal is about to be handed over: decide nothing more, answer 16, and call `stopped`.

    Appended batches are still flushed. Parked requests are answered 16, too, in time. The node
    keeps its state.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The hand-over is done, another node leads. Keep the state: it equals the log."""

    journal: int


@dataclass(frozen=True, slots=True)
class KeptLead:
    """The hand-over failed; `Leads` follows, as after a take-over."""

    journal: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The connection has been away for `PAUSE_MS`, or less if the session may end sooner.

    Until `Resumed` or `Deposed`: answer 15 to new requests, let waiting ones wait, and suspend
    deadlines.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class CutOff:
    """The session timeout has passed without an answer: another node may lead.

    `Paused` came before. Act as for `Paused`, but answer 16.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """`Paused` and `CutOff` are over: serve again."""

    journal: int


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """The begun snapshot is installed and the log trimmed, or the snapshot was given up.

    `ReplicatedJournal.snapshot` tells which.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class Purged:
    """All shards of a journal have removed offsets of topics deleted up to *registry_version*."""

    journal: int
    registry_version: int


@dataclass(frozen=True, slots=True)
class Stranger:
    """A registration under a node id is not one of ours. It is ignored."""

    node: int


@dataclass(frozen=True, slots=True)
class Stray:
    """A foreign znode lies among the cluster's own. It is ignored."""

    path: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The process must end with *error*.

    The error is LogCorrupt if the log is damaged, or ends before the last applied entry.
    """

    error: LogError


Effect = (
    Send
    | LoadAnew
    | Followed
    | Leads
    | Renewed
    | Written
    | Confirmed
    | Deposed
    | HandsOver
    | HandedOver
    | KeptLead
    | Paused
    | CutOff
    | Resumed
    | SnapshotEnded
    | Purged
    | Stranger
    | Stray
    | Failed
)
