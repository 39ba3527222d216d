"""Which topics and partitions there are, and how a reader hears of new ones.

Nobody else watches the log. Each reader of a pattern looks for topics, and the group's leader
for partitions as well, every discovery interval; who finds something asks for a rebalance.
"""

import logging
from collections.abc import Callable

from client.exceptions import RetriableError
from client.spark.errors import CoordinatedSourceError
from client.spark.logs.partition_log import PartitionLog
from client.spark.source.reader_options import ReaderOptions
from protocol.partition import TopicPartition

logger = logging.getLogger(__name__)


def matching_topics(options: ReaderOptions, log: PartitionLog) -> tuple[str, ...]:
    """Return the topics to read: those that are named, or those of the log that match, sorted.

    Raises:
        LogError: a pattern is given, and the log can't list its topics.

    """
    pattern = options.topics_pattern
    if pattern is None:
        return options.topics
    return tuple(sorted(topic for topic in set(log.topics()) if pattern.fullmatch(topic)))


class Discovery:
    """The topics and partitions as of the last look.

    Args:
        options: the checked options of the stream.
        log: where the rows are.
        clock: a monotonic clock in seconds.

    Attributes:
        topics: what this reader reads.
        partitions: the partitions of each of these topics.

    """

    def __init__(
        self, options: ReaderOptions, log: PartitionLog, clock: Callable[[], float]
    ) -> None:
        self.topics: tuple[str, ...] = ()
        self.partitions: dict[str, list[int]] = {}
        self._options = options
        self._log = log
        self._clock = clock
        self._next_s = clock()
        self._looked = False
        self._seen: set[str] = set()

    @property
    def is_due(self) -> bool:
        """Whether the last look was longer ago than the discovery interval, or none succeeded."""
        return not self._looked or self._clock() >= self._next_s

    def look(self) -> None:
        """Look at the log now.

        Raises:
            CoordinatedSourceError: a topic that matches has other columns than those before.
            LogError: the log can't tell.
            RetriableError: it can't tell now.

        """
        self._next_s = self._clock() + self._options.discovery_interval_ms / 1000
        topics = matching_topics(self._options, self._log)
        if self._options.topics_pattern is not None:
            self._check_columns(topics)
        self.partitions = {topic: sorted(self._log.partitions(topic)) for topic in topics}
        self.topics = topics
        self._looked = True

    def look_again(self) -> None:
        """Look at the log now; while it can't tell, what was seen last stands.

        Raises what `look` does, but a `RetriableError` only if there was no look before.
        """
        try:
            self.look()
        except RetriableError as error:
            if not self._looked:
                raise
            logger.warning("can't look for topics and partitions now: %s", error)

    def all_partitions(self) -> list[TopicPartition]:
        """Return the partitions of all topics."""
        return [TopicPartition(topic, p) for topic, ps in self.partitions.items() for p in ps]

    def lost_topics(self) -> bool:
        """Look, after the log failed, whether that is because topics of a pattern are gone.

        Raises:
            CoordinatedSourceError: the log can't tell.

        """
        if self._options.topics_pattern is None:
            return False
        before = set(self.topics)
        self.look()
        return not before <= set(self.topics)

    def _check_columns(self, topics: tuple[str, ...]) -> None:
        """Refuse a topic whose rows the query could not hold, before any of them is read."""
        known = next((topic for topic in self.topics if topic in topics), None)
        for topic in topics:
            if topic in self._seen:
                continue
            known = topic if known is None else known
            if not self._log.schema(topic).equals(self._log.schema(known)):
                raise CoordinatedSourceError(
                    f"option 'topicsPattern': topic {topic!r} matches, but its columns are not "
                    f"those of {known!r}; make the pattern narrower, or read it with a stream of "
                    "its own"
                )
        self._seen = set(topics)
