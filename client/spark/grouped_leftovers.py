"""What earlier runs of a grouped query left behind: how far they came, and their checkpoints."""

import logging
from collections.abc import Callable
from typing import Final

from client.exceptions import CoordinatorError
from client.offsets import OffsetAndMetadata
from client.spark.errors import CheckpointError
from client.spark.grouped_types import GroupedSession, GroupedSettings, trusted_run
from client.spark.kafka_topics import KafkaTopicError, Topics
from client.spark.run_store import RunStore
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)

# How often to look for checkpoints that nobody will come back for, and how old they must be.
SWEEP_S: Final = 3600.0


class Leftovers:
    """The checkpoints of runs that have ended, of this driver and of others.

    Args:
        settings: of the grouped query.
        store: the group's checkpoints.
        topics: the Kafka cluster.
        clock: a monotonic clock in seconds.

    """

    def __init__(
        self,
        settings: GroupedSettings,
        store: RunStore,
        topics: Topics,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = topics
        self._clock = clock
        self._sweep_at_s = clock()

    def reached(self, tp: TopicPartition, stored: OffsetAndMetadata) -> int:
        """Return how far a partition's last run came, which may be further than it could commit.

        Raises:
            StoreUnavailable: the checkpoints can't be read now.

        """
        run = trusted_run(stored.metadata)
        if run is None:
            return stored.offset
        try:
            finished = self._store.finished(run).get(tp, stored.offset)
        except CheckpointError as error:
            # Such as an empty file after a power cut. What is committed is never too far.
            logger.warning("%s begins at %d, as committed: %s", tp, stored.offset, error)
            return stored.offset
        if finished > stored.offset:
            logger.info(
                "%s: run %s had finished up to %d, though it committed only %d",
                tp,
                run,
                finished,
                stored.offset,
            )
        return max(finished, stored.offset)

    def sweep(self, session: GroupedSession, active: str) -> None:
        """Delete, once an hour, the checkpoints that nobody will come back for.

        Args:
            session: the member.
            active: the name of the run of this driver.

        """
        if self._clock() < self._sweep_at_s:
            return
        self._sweep_at_s = self._clock() + SWEEP_S
        try:
            others = session.alive_clients() - {self._settings.client_id}
            # Whoever is given a partition looks first how far its last run came.
            partitions = [
                TopicPartition(topic, partition)
                for topic in self._settings.topics
                for partition in self._topics.partitions(topic)
            ]
            last_runs = {
                run
                for value in session.fetch(partitions).values()
                if (run := trusted_run(value.metadata)) is not None
            }
        except (CoordinatorError, KafkaTopicError) as error:
            logger.warning("old checkpoints are left for later: %s", error)
            return
        for run in self._store.sweep(others, last_runs | {active}, SWEEP_S):
            logger.info("the checkpoint of run %s, which is over, was deleted", run)
