"""What the machines of this package have done: requests to the engine, and news for the node."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from coordinator.cluster.engine import Request
from coordinator.log.errors import LogError
from coordinator.log.format import Batch


@dataclass(frozen=True, slots=True)
class Send:
    """Submit *request*, and hand the answer to `replied`."""

    request: Request


@dataclass(frozen=True, slots=True)
class LoadAnew:
    """What the node holds of the journal is not what the log says: forget all of it.

    `Followed` brings the rest, from the beginning. A node that has just started gets it, too.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class Followed:
    """There is more of the log. Replay *batches* to their end, then call the node's `took`.

    They are unpacked as they are taken, so others may run between two of them. They may raise
    LogCorrupt.
    """

    journal: int
    batches: Iterator[Batch]


@dataclass(frozen=True, slots=True)
class Leads:
    """This node leads, and holds all that older leaders wrote: serve, in this epoch.

    Nobody loads and nobody rebalances: members get full sessions.
    """

    journal: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """This node has gone on leading in a new session: answers carry this epoch from here on."""

    journal: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Written:
    """A part of the flush is in the log for ever.

    Attributes:
        ends: By partition, up to where.
        is_last: The flush is over: the next one may be written.
    """

    journal: int
    ends: dict[int, int]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Confirmed:
    """This node led when it was asked for this number, and for all smaller ones."""

    journal: int
    number: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another leader may have written. Whatever waits is answered, then `LoadAnew` follows.

    What waits for an offset up to the one in *unknown* is answered 1000 (it may be in the log or
    not), and everything else 16 (it surely isn't). What is in the log was told as `Written`. It may
    come without `Leads`.
    """

    journal: int
    unknown: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HandsOver:
    """The journal is about to be handed over: decide nothing more, answer 16, and call `stopped`.

    What was appended is flushed. Parked requests are answered 16, too, in time; what the node holds
    stays.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Another node leads, as was asked for. What the node holds is what the log says; keep it."""

    journal: int


@dataclass(frozen=True, slots=True)
class KeptLead:
    """The journal could not be handed over; `Leads` follows, as for one that was taken over."""

    journal: int


@dataclass(frozen=True, slots=True)
class Paused:
    """There has been no connection for a while.

    Answer new requests 15, let waiting ones wait, and let deadlines stand still, until `Resumed`
    or `Deposed`.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class CutOff:
    """No answer has come for longer than the session lives: another node may lead.

    As `Paused`, which came before it, but with 16.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The end of `Paused` and `CutOff`: serve on."""

    journal: int


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """The snapshot that was begun is installed and the log trimmed, or it never will be.

    `ReplicatedJournal.snapshot` tells which.
    """

    journal: int


@dataclass(frozen=True, slots=True)
class Purged:
    """All shards of a journal have removed what was deleted up to a version of the registry."""

    journal: int
    registry_version: int


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody is registered who is no node. It counts for nothing."""

    node: int


@dataclass(frozen=True, slots=True)
class Stray:
    """Somebody has put a znode among the cluster's own. It counts for nothing."""

    path: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The process must end with *error*.

    It is LogCorrupt if the log ends before what was applied, or is damaged.
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
