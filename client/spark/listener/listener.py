# ruff: noqa: N802 - Spark chose the names of the callbacks.
"""Makes the lag of any streaming query visible: commits what the query has finished.

For monitoring only. The offsets may be behind the query; the query itself resumes from its
checkpoint. They are ahead in one case: after a restart Spark reports the whole batch that it
replays, also the ranges of it that a coordinated source left to another driver.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from client.security import Given
from client.spark.errors import CheckpointError
from client.spark.listener.background import Background
from client.spark.listener.checkpoint import (
    BEFORE_ALL,
    CheckpointOf,
    Finished,
    read_one,
    running_session,
)
from client.spark.listener.commits import (
    BackgroundCommitter,
    CoordinatorTarget,
    KafkaTarget,
    OffsetBoard,
    Target,
)
from client.spark.listener.metrics import ListenerMetrics
from client.spark.listener.queries import (
    Decode,
    DecodeFailed,
    Event,
    Offsets,
    QueryState,
    Reached,
    Rules,
    batch_offsets,
    merged,
    source_reached,
)
from client.spark.source.stream_offsets import reader_of
from protocol.partition import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger(__name__)
metrics_logger = logging.getLogger("client.spark.listener.metrics")  # The name in the guide.

# How often reading the checkpoint of one query may fail before it is left alone.
READS_FAILED_MAX = 3

# Of so many queries that have ended the metrics still tell.
ENDED_MAX = 20


class GroupOffsetListener(StreamingQueryListener):
    """Commits the finished end offsets of queries to a group, after each batch.

    ::

        spark.streams.addListener(GroupOffsetListener("host:9310", "etl-lag", query_name="orders"))

    Understands the offsets of Spark's Kafka source, of the ``coordinated`` source, and of Python
    sources that have the form of one of the two; others with *file_topics* and *decode*. The
    query never waits for it and never fails because of it.

    Args:
        coordinator: "host:port", or several separated by commas; None with *kafka*, for a
            listener that only commits to a Kafka cluster.
        group: a group of the listener's own, in which nobody is a member.
        query_name: only the query of this name; by default all of the session. Two queries
            that read the same topics need a listener and a group each.
        kafka: commit to a group of this Kafka cluster as well: "host:9092", or the settings of
            confluent-kafka.
        kafka_group: the name of that group, by default *group*.
        topics: only these topics; by default all.
        checkpoint: the query's checkpoint, for what no event told; by default it is found by
            itself, but with Spark Connect only if ``spark.sql.streaming.checkpointLocation``
            is set.
        file_topics: a topic's name for each folder that a file source of the query reads.
            Committed, as partition 0, is how many groups of new files are finished.
        decode: turns the offset of a Python source into ``{(topic, partition): offset}``; None
            where it isn't one of yours. It must be quick.
        security: how to connect to the coordinator, as of `client.connect`.
        report_ends: tell the coordinator where the sources end, so that it knows the lag too.
            Only of topics that are registered there.
        metrics_every_s: log `metrics` as a line of JSON so often (logger
            ``client.spark.listener.metrics``, level INFO), and write *metrics_file*.
        metrics_file: a file for `metrics` in Prometheus' text format, as its node exporter
            collects them. Replaced as a whole.

    Raises:
        ValueError: the arguments don't fit together.
        KafkaGroupError: confluent-kafka isn't installed, or refuses the settings.

    """

    def __init__(
        self,
        coordinator: str | None,
        group: str,
        query_name: str | None = None,
        *,
        kafka: str | Mapping[str, Any] | None = None,
        kafka_group: str | None = None,
        topics: Collection[str] | None = None,
        checkpoint: str | None = None,
        file_topics: Mapping[str, str] | None = None,
        decode: Decode | None = None,
        report_ends: bool = False,
        metrics_every_s: float | None = None,
        metrics_file: str | None = None,
        security: Given = None,
    ) -> None:
        super().__init__()
        _check(coordinator, group, kafka, kafka_group, topics, metrics_every_s, metrics_file)
        self._group = group if coordinator is not None else None
        self._query_name = query_name
        only = None if topics is None else frozenset(topics)
        self._rules = Rules(only, dict(file_topics or {}), decode)
        self._metrics_file = None if metrics_file is None else Path(metrics_file)
        self._checkpoints = CheckpointOf(checkpoint)
        self._lock = threading.Lock()
        self._queries: dict[str, QueryState] = {}
        self._own_topics: set[str] = set()
        self._reads_failed: dict[str, int] = {}
        self._said: set[str] = set()
        self._targets: list[tuple[Target, BackgroundCommitter]] = []
        if coordinator is not None:
            ends = self._ends if report_ends else None
            self._add(CoordinatorTarget(coordinator, group, ends, security))
        if kafka is not None:
            self._add(KafkaTarget(kafka, kafka_group or group))
        self._background = Background(self._emit, metrics_every_s)

    def _add(self, target: Target) -> None:
        committer = BackgroundCommitter(target.commit, OffsetBoard(), target.name)
        self._targets.append((target, committer))

    # --- What Spark calls ---

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """Have what is finished already committed."""
        if self._is_mine(event.name):
            with self._lock:
                state = self._state(str(event.id), event.name)
                state.started(str(event.runId), time.monotonic())
                self._reads_failed.pop(state.query_id, None)
            self._read_checkpoint(state, BEFORE_ALL)

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """Have the end offsets of this batch committed."""
        progress = event.progress
        if not self._is_mine(progress.name):
            return
        reached = merged(map(self._reached, progress.sources))
        query_id, run_id = str(progress.id), str(progress.runId)
        with self._lock:
            state = self._state(query_id, progress.name)
            is_new = state.run_id != run_id
            happened = Event(query_id, run_id, progress.name, progress.batchId, reached)
            step = state.progress(happened, time.monotonic())
        self._want(step.news)
        if is_new or query_id in self._reads_failed:
            self._read_checkpoint(state, BEFORE_ALL)
        elif step.missed_after is not None:
            self._read_checkpoint(state, step.missed_after)

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        """Note that the query lives."""
        with self._lock:
            if (state := self._queries.get(str(event.id))) is not None:
                state.idle(time.monotonic())

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        """Look for batches of which no event came: Spark often drops that of the last one."""
        with self._lock:
            state = self._queries.get(str(event.id))
            if state is None or state.run_id != str(event.runId):
                return
            state.ended(time.monotonic())
        self._read_checkpoint(state, state.batch_id)

    # --- What users call ---

    def catch_up(self, checkpoint: str) -> dict[TopicPartition, int]:
        """Have committed what a checkpoint says is finished; return it. No query need run.

        Args:
            checkpoint: its path or URI. Without a running Spark session a local one.

        Raises:
            CheckpointError: it can't be read, or there is none.

        """
        finished = read_one(checkpoint, self._session())
        assert finished.query_id is not None
        with self._lock:
            state = self._state(finished.query_id, self._query_name)
            if state.run == 0:
                state.ended(time.monotonic())  # As far as is known: no event told of it.
        return self._take(state, state.run, finished)

    def metrics(self) -> ListenerMetrics:
        """Return how far the queries are, and how well the commits go."""
        now_s = time.monotonic()
        with self._lock:
            queries = tuple(state.metrics(now_s) for state in self._queries.values())
        targets = tuple(committer.metrics() for _, committer in self._targets)
        return ListenerMetrics(queries, targets)

    def close(self, timeout: float = 10.0) -> None:
        """Commit what is finished (once, for at most *timeout* seconds) and disconnect."""
        end_s = time.monotonic() + timeout
        with self._lock:
            running = [state for state in self._queries.values() if state.active]
        # Events of a query that has just ended may still be on their way.
        for state in running:
            self._read_checkpoint(state, state.batch_id)
        self._background.close(timeout / 2)
        for _, committer in self._targets:
            committer.begin_close()
        for target, committer in self._targets:
            committer.close(max(end_s - time.monotonic(), 0.0))
            target.close()

    # --- Events ---

    def _is_mine(self, name: str | None) -> bool:
        return self._query_name is None or name == self._query_name

    def _state(self, query_id: str, name: str | None) -> QueryState:
        self._background.start()
        if query_id not in self._queries:
            self._queries[query_id] = QueryState(query_id, name, time.monotonic())
            ended = [one.query_id for one in self._queries.values() if not one.active]
            for forgotten in ended[:-ENDED_MAX]:
                del self._queries[forgotten]
        return self._queries[query_id]

    def _reached(self, source: Any) -> Reached:
        self._note_own(source.endOffset)
        try:
            return source_reached(
                source.endOffset, source.latestOffset, source.description, self._rules
            )
        except DecodeFailed as error:
            self._say_once("decode", str(error))
            return Reached({}, {})

    def _want(self, offsets: Offsets) -> None:
        for target, committer in self._targets:
            own = self._own_topics if isinstance(target, CoordinatorTarget) else ()
            shown = {tp: offset for tp, offset in offsets.items() if tp.topic not in own}
            if shown:
                committer.want(shown)

    def _note_own(self, end_json: str | None) -> None:
        reader = reader_of(end_json)
        if reader is not None and reader.group == self._group:
            self._own_topics |= {
                tp.topic for tp in source_reached(end_json, None, None, Rules())[0]
            }
            self._say_once(
                "group",
                f"the listener's group {self._group!r} is that of a coordinated source, which "
                "commits there itself; give the listener a group of its own",
            )

    def _say_once(self, subject: str, text: str) -> None:
        if subject not in self._said:
            self._said.add(subject)
            logger.error("%s", text)

    def _ends(self) -> Offsets:
        with self._lock:
            return {tp: end for one in self._queries.values() for tp, end in one.ends().items()}

    # --- The checkpoint ---

    def _read_checkpoint(self, state: QueryState, after: int) -> None:
        self._background.do(partial(self._read, state, state.run, after))

    def _read(self, state: QueryState, run: int, after: int) -> None:
        if self._reads_failed.get(state.query_id, 0) >= READS_FAILED_MAX:
            return
        try:
            finished = self._checkpoints.read(state.query_id, state.name, self._session(), after)
        except CheckpointError as error:
            failed = self._reads_failed[state.query_id] = (
                self._reads_failed.get(state.query_id, 0) + 1
            )
            logger.warning(
                "what query %s finished unheard isn't shown%s: %s",
                state.name or state.query_id,
                "" if failed < READS_FAILED_MAX else ", and not looked for any more",
                error,
            )
            return
        self._reads_failed.pop(state.query_id, None)
        if finished is not None:
            self._take(state, run, finished)

    def _take(self, state: QueryState, run: int, finished: Finished) -> dict[TopicPartition, int]:
        for batch in finished.batches[-1:]:
            for offset in batch.sources.values():
                self._note_own(offset)
        try:
            found = batch_offsets(finished.batches, self._rules)
        except DecodeFailed as error:
            self._say_once("decode", str(error))
            return {}
        with self._lock:
            news = state.read(found, run, time.monotonic())
        self._want(news)
        return news

    def _session(self) -> "SparkSession | None":
        # Spark Connect tells its listeners which session they belong to.
        own: SparkSession | None = getattr(self, "spark", None)
        return own if own is not None else running_session()

    # --- Metrics ---

    def _emit(self) -> None:
        metrics = self.metrics()
        metrics_logger.info("%s", metrics.to_json())
        if self._metrics_file is not None:
            new = self._metrics_file.with_name(self._metrics_file.name + ".tmp")
            new.write_text(metrics.to_prometheus(), encoding="utf-8")
            new.replace(self._metrics_file)


def _check(
    coordinator: str | None,
    group: str,
    kafka: object,
    kafka_group: str | None,
    topics: Collection[str] | None,
    metrics_every_s: float | None,
    metrics_file: str | None,
) -> None:
    if coordinator is None and kafka is None:
        raise ValueError("a listener commits to a 'coordinator', to 'kafka', or to both")
    if not group:
        raise ValueError("'group' is empty; it is the name under which the offsets are shown")
    if kafka is None and kafka_group is not None:
        raise ValueError("'kafka_group' needs 'kafka', the cluster")
    if isinstance(topics, str):
        raise TypeError(f"'topics' must be several names, not {topics!r}")
    if metrics_every_s is not None and metrics_every_s <= 0:
        raise ValueError(f"'metrics_every_s' is {metrics_every_s:g}; it must be more than 0")
    if metrics_file is not None and metrics_every_s is None:
        raise ValueError("'metrics_file' needs 'metrics_every_s', how often it is written")
