"""Spark's own Kafka source, shared by several drivers: `GroupedKafkaQuery`."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from client.assignors import Assignor, CooperativeStickyAssignor
from client.spark.grouped_core import GroupedCore
from client.spark.grouped_session import MemberSession, MemberSettings
from client.spark.grouped_spark import Build, SparkRuns
from client.spark.grouped_types import GroupedSettings
from client.spark.kafka_topics import EARLIEST, KafkaTopics, client_settings
from client.spark.run_store import FileRunStore
from client.spark.starting_offsets import Default, check_default, check_topics
from protocol.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# How often finished batches are committed, and the group looked at.
POLL_S: Final = 0.5

# What of the rebalance timeout a hand-over may spend on the batch that is running, and then on
# committing it; the rest is for stopping.
BATCH_SHARE: Final = 0.7
COMMIT_SHARE: Final = 0.2

# Options of the source that say what and from where to read: the group says that.
_OURS: Final = frozenset(
    {
        "assign",
        "subscribe",
        "subscribepattern",
        "startingoffsets",
        "startingoffsetsbytimestamp",
        "startingtimestamp",
        "endingoffsets",
        "endingoffsetsbytimestamp",
        "endingtimestamp",
    }
)
_SERVERS: Final = "kafka.bootstrap.servers"


class GroupedStatus(NamedTuple):
    """What a grouped query does at the moment.

    Attributes:
        generation: of the group; -1 before the first assignment.
        partitions: what this driver owns.
        run: the name of the run that is active, or None.
        committed: how far the active run has committed, as far as is known.

    """

    generation: int
    partitions: tuple[TopicPartition, ...]
    run: str | None
    committed: Mapping[TopicPartition, int]


class GroupedKafkaQuery:
    """A streaming query over Kafka topics that shares their partitions with other drivers.

    ::

        GroupedKafkaQuery(
            spark, coordinator="host:9310", group="etl-orders", topics=["orders"],
            kafka_options={"kafka.bootstrap.servers": "host:9092"},
            build=lambda df: df.writeStream.foreachBatch(write), checkpoint_root="/ck",
        ).run()

    At-least-once: no message is lost. A message comes twice only if its batch was in flight when
    its driver died, was removed from the group, or was stopped in the middle of a batch.

    Args:
        spark: a session, classic or of Spark Connect.
        coordinator: "host:port", or several separated by commas.
        group: the group; all drivers of a group read the same topics.
        topics: what to read.
        kafka_options: of Spark's Kafka source, such as ``kafka.bootstrap.servers`` and
            ``maxOffsetsPerTrigger``; not which partitions and from where.
        build: takes the rows, returns the writer that is to be started; called for each run. A
            second argument, if it takes one, is the `GroupedRun`.
        checkpoint_root: an absolute path or URI; each run gets a folder below it. Where all
            drivers see the same folder, a crash repeats a little less.
        starting_offsets: where a partition begins for which the group has no offset; as
            ``default`` of `starting_offsets`.
        session_timeout_s: without a heartbeat for so long this driver is removed.
        rebalance_timeout_s: how long the group waits for this driver to hand over; longer than
            a batch.
        batch_wait_s: how long a hand-over, or a stop, waits for the batch that is running; by
            default 70 % of the rebalance timeout. Then the batch is interrupted, and repeated.
        request_timeout_s: how long one call to the coordinator goes on trying.
        outage_limit_s: how long finished batches may stay uncommitted, in an outage, before
            the query pauses; by default the session timeout.
        coordinator_timeout_s: how long to wait for the coordinator, Kafka or an assignment
            while nothing runs.
        max_failures: how often in a row the query may fail without finishing a batch.
        assignors: how partitions are shared, the preferred one first.
        group_instance_id: the name of a static member: a restart within the session timeout
            gets the same partitions back without a rebalance.
        host: where this driver runs, for assignors.
        kafka_client: settings of confluent-kafka, where they can't be told from the options.
        filesystem: a `pyarrow.fs.FileSystem` for *checkpoint_root*.
        allow_stateful: don't refuse a query with state (which each run begins anew).

    Raises:
        ValueError: an argument makes no sense; the message names it.
        KafkaTopicError: confluent-kafka is missing, or refuses its settings.

    """

    def __init__(
        self,
        spark: "SparkSession",
        *,
        coordinator: str,
        group: str,
        topics: Collection[str],
        kafka_options: Mapping[str, str],
        build: Build,
        checkpoint_root: str,
        starting_offsets: Default = EARLIEST,
        session_timeout_s: float = 45.0,
        rebalance_timeout_s: float = 300.0,
        batch_wait_s: float | None = None,
        request_timeout_s: float = 10.0,
        outage_limit_s: float | None = None,
        coordinator_timeout_s: float = 600.0,
        max_failures: int = 3,
        assignors: Sequence[Assignor] | None = None,
        group_instance_id: str | None = None,
        host: str | None = None,
        kafka_client: Mapping[str, str] | None = None,
        filesystem: Any = None,
        allow_stateful: bool = False,
    ) -> None:
        check_topics(topics)
        check_default(starting_offsets, "starting_offsets")
        _check_options(kafka_options)
        _check_times(session_timeout_s, rebalance_timeout_s, batch_wait_s, coordinator_timeout_s)
        if not callable(build):
            raise ValueError(f"build is {build!r}: it must be a function")  # noqa: TRY004
        self.client_id = f"grouped-{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._group = group
        self._over = threading.Event()
        self._over.set()
        self._ran = False
        settings = GroupedSettings(
            coordinator=coordinator,
            topics=tuple(topics),
            client_id=self.client_id,
            starting_offsets=starting_offsets,
            rebalance_timeout_s=rebalance_timeout_s,
            batch_wait_s=rebalance_timeout_s * BATCH_SHARE
            if batch_wait_s is None
            else batch_wait_s,
            commit_wait_s=rebalance_timeout_s * COMMIT_SHARE,
            outage_limit_s=session_timeout_s if outage_limit_s is None else outage_limit_s,
            coordinator_timeout_s=coordinator_timeout_s,
            max_failures=max_failures,
            allow_stateful=allow_stateful,
        )
        member = MemberSettings(
            coordinator=coordinator,
            group=group,
            topics=tuple(topics),
            client_id=self.client_id,
            session_timeout_ms=round(session_timeout_s * 1000),
            rebalance_timeout_ms=round(rebalance_timeout_s * 1000),
            request_timeout_ms=round(request_timeout_s * 1000),
            assignors=(CooperativeStickyAssignor(),) if assignors is None else tuple(assignors),
            group_instance_id=group_instance_id,
            host=host,
        )
        self._core = GroupedCore(
            settings,
            open_session=partial(MemberSession, member),
            runs=SparkRuns(spark, kafka_options, build),
            store=FileRunStore(checkpoint_root, group, filesystem),
            topics=KafkaTopics(client_settings(kafka_options, kafka_client)),
            clock=time.monotonic,
            sleep=time.sleep,
        )

    @property
    def status(self) -> GroupedStatus:
        """What it does at the moment; from any thread."""
        assignment, active = self._core.assignment, self._core.active
        return GroupedStatus(
            assignment.generation if assignment is not None else -1,
            assignment.partitions if assignment is not None else (),
            active.run.name if active is not None else None,
            dict(active.committed) if active is not None else {},
        )

    def run(self, *, handle_signals: bool = True) -> None:
        """Read and hand over until `stop`, a signal, or the end of the query itself.

        A query that ends by itself, as with ``availableNow``, ends this, too. When this returns
        or raises, nothing of the query runs any more and the group is left.

        Args:
            handle_signals: stop on SIGTERM and SIGINT, at once when it comes twice. Only in the
                main thread; elsewhere, signals are not touched.

        Raises:
            GroupedQueryFailed: the query failed too often in a row; the cause is Spark's error.
            GroupedQueryError: it can't be run in a group; the message says why.
            CoordinatorTimeout: nothing runs, and the coordinator or Kafka is away for too long.
            FatalError: the coordinator refuses this driver for good.
            KafkaTopicError: a topic is not there.
            RuntimeError: it ran before; make another.
            Exception: what *build* raised.

        """
        if self._ran:
            raise RuntimeError("a GroupedKafkaQuery runs once; make another")
        self._ran = True
        self._over.clear()
        try:
            with _signals(self._core, is_wanted=handle_signals):
                while self._core.step():
                    time.sleep(POLL_S)
        finally:
            self._core.close()
            self._over.set()

    def stop(self, timeout_s: float | None = 0.0) -> bool:
        """Have `run` end after the batch that is running; return whether it has.

        From any thread, and before `run` as well. Called twice, it doesn't wait for the batch.

        Args:
            timeout_s: how long to wait for that; None for as long as it takes. Don't wait inside
                the query's own ``foreachBatch`` function: it waits for you.

        """
        self._core.request_stop()
        return self._over.wait(timeout_s)


@contextmanager
def _signals(core: GroupedCore, *, is_wanted: bool) -> Iterator[None]:
    """Have SIGTERM and SIGINT stop *core*, where that is possible."""
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        core.request_stop()  # Takes no lock: it may interrupt anything, itself included.

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_options(kafka_options: Mapping[str, str]) -> None:
    for name in kafka_options:
        if name.lower() in _OURS:
            raise ValueError(
                f"kafka_options has {name!r}: the group says which partitions are read and from "
                "where; for partitions without an offset use starting_offsets=…"
            )
    if not kafka_options.get(_SERVERS):
        raise ValueError(f"kafka_options lacks {_SERVERS!r}")


def _check_times(
    session_timeout_s: float,
    rebalance_timeout_s: float,
    batch_wait_s: float | None,
    coordinator_timeout_s: float,
) -> None:
    given = {
        "session_timeout_s": session_timeout_s,
        "rebalance_timeout_s": rebalance_timeout_s,
        "coordinator_timeout_s": coordinator_timeout_s,
    }
    for name, value in given.items():
        if not value > 0:
            raise ValueError(f"{name} is {value!r}: it must be a number of seconds above 0")
    if batch_wait_s is not None and not 0 <= batch_wait_s < rebalance_timeout_s:
        raise ValueError(
            f"batch_wait_s is {batch_wait_s!r}: it must be less than rebalance_timeout_s "
            f"({rebalance_timeout_s!r}), or the group goes on without this driver"
        )
