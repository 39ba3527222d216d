"""The parts of a grouped query: what its core needs of a group, of Spark, and of its user."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from client.spark.errors import CoordinatedSourceError
from client.spark.source.session import GroupSession
from client.spark.starting_offsets import Default
from protocol.types import TopicPartition

Partitions = tuple[TopicPartition, ...]

# Metadata of a committed offset: which run put it there, and whether what that run finished may
# be trusted. "new" is the mark of a run whose sink was not seen yet.
_MARK: Final = re.compile(r"gk1:(?P<run>[^:]+):(?P<state>new|ok)")

# How a query's progress names a sink that remembers batch ids for the whole folder.
_FILE_SINK: Final = "FileSink["


class GroupedQueryError(CoordinatedSourceError):
    """A grouped query that can't go on; the message says why and what to do."""


class GroupedQueryFailed(GroupedQueryError):
    """The query failed again and again without finishing a batch; the cause is Spark's error."""


class GroupedRun(NamedTuple):
    """One run: one query with one checkpoint, over the partitions of one assignment.

    Attributes:
        name: no other run of any driver has it; fit for a folder's name.
        generation: the group's, when the run began.
        starting_offsets: the partitions of the run, and where each begins.

    """

    name: str
    generation: int
    starting_offsets: Mapping[TopicPartition, int]


class Progress(NamedTuple):
    """What Spark says of a query after its first batch."""

    sink: str
    state_operators: tuple[str, ...]


class RunningQuery(Protocol):
    """A started query. No method raises: what can't be asked any more has ended."""

    def is_active(self) -> bool:
        """Whether it runs, or may still write."""

    def failure(self) -> Exception | None:
        """Return what ended it; None if nothing failed."""

    def between_batches(self) -> bool:
        """Whether no sink is writing at the moment."""

    def progress(self) -> Progress | None:
        """Return what is known since the first batch; None before."""

    def stop(self) -> None:
        """End it; when this returns, nothing of it writes any more."""


class Runs(Protocol):
    """Spark, as far as the core needs it."""

    def start(self, run: GroupedRun, checkpoint: str) -> RunningQuery:
        """Start the user's query over these partitions, with this checkpoint.

        Raises:
            GroupedQueryError: what the user's function returned is not right.
            Exception: what the user's function, or Spark, raised.

        """


class GroupedSession(GroupSession, Protocol):
    """A member whose `assignment` tells what goes, before it goes."""

    def alive_clients(self) -> set[str]:
        """Return the client ids of all members of the group."""


class Hooks(NamedTuple):
    """What a session calls, only within its `assignment`."""

    on_revoked: Callable[[Partitions], None]
    on_lost: Callable[[Partitions], None]
    partitions_of: Callable[[str], Iterable[int]]


OpenSession = Callable[[Hooks], GroupedSession]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedSettings:
    """How a grouped query behaves; all times in seconds.

    Attributes:
        coordinator: for messages.
        topics: what the group reads.
        client_id: names this driver process, and no other.
        starting_offsets: where a partition begins for which the group has no offset.
        rebalance_timeout_s: how long the group waits for this driver to hand over.
        batch_wait_s: how long a hand-over, or a stop, waits for the batch that is running.
        commit_wait_s: how long it then goes on trying to commit what is finished.
        outage_limit_s: how long finished batches may stay uncommitted before the query pauses.
        coordinator_timeout_s: how long to wait for the coordinator while nothing runs.
        max_failures: so many times in a row the query may fail without finishing a batch.
        allow_stateful: don't refuse queries with state.

    """

    coordinator: str
    topics: tuple[str, ...]
    client_id: str
    starting_offsets: Default
    rebalance_timeout_s: float
    batch_wait_s: float
    commit_wait_s: float
    outage_limit_s: float
    coordinator_timeout_s: float
    max_failures: int
    allow_stateful: bool


def mark(run: str, *, is_trusted: bool) -> str:
    """Return the metadata with which a run commits."""
    return f"gk1:{run}:{'ok' if is_trusted else 'new'}"


def trusted_run(metadata: str) -> str | None:
    """Return the run that committed an offset, if what it finished counts; else None."""
    match = _MARK.fullmatch(metadata)
    return match["run"] if match is not None and match["state"] == "ok" else None


def objection(progress: Progress, run: GroupedRun, *, allow_stateful: bool) -> str | None:
    """Say why what this query finishes must not be committed, if so."""
    if progress.state_operators and not allow_stateful:
        return (
            f"the query is stateful ({', '.join(progress.state_operators)}), but each run begins "
            "with empty state and partitions move between drivers, so its results would be wrong. "
            "Write to a table, and run one stateful query over that table (or give "
            "allow_stateful=True if that is what you want)"
        )
    if progress.sink.startswith(_FILE_SINK) and run.name not in progress.sink:
        return (
            f"{progress.sink} skips batch ids that it has seen, and each run counts from 0, so "
            "rows would be lost. Write to a folder per run: build=lambda df, run: "
            'df.writeStream.format(…).option("path", f"/data/out/{run.name}"), or use foreachBatch'
        )
    return None
