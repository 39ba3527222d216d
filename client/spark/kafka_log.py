"""Kafka topics as a partitioned log, read with confluent-kafka (librdkafka) into Arrow batches."""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Final

import pyarrow as pa

from client.spark.kafka_client import EARLIEST, LATEST, Admin, at_time
from client.spark.kafka_config import parse_kafka_options
from client.spark.kafka_read import read_range
from client.spark.kafka_rows import columns
from client.spark.log import PartitionLog
from protocol.types import TopicPartition

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


class KafkaLog(PartitionLog):
    """Reads the topics of the cluster that the option ``kafka.bootstrap.servers`` names.

    Raises:
        OptionError: an option is missing, unknown or impossible.

    """

    dense_offsets: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._config = parse_kafka_options(options)
        self._lock = threading.Lock()
        self._connected: Admin | None = None

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of *topic*, ascending."""
        return sorted(p.id for p in self._admin.describe(topic).partitions)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the log start offset and the end: of committed rows, unless told otherwise."""
        tp = TopicPartition(topic, partition)
        return self.all_bounds([tp])[tp]

    def all_bounds(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the bounds of several partitions with two requests per broker."""
        earliest = self._admin.list_offsets(partitions, EARLIEST)
        latest = self._admin.list_offsets(
            partitions, LATEST, committed_only=self._config.committed_only
        )
        starts, ends = earliest(), latest()
        return {tp: (starts[tp], max(starts[tp], ends[tp])) for tp in partitions}

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset whose row has this timestamp or a later one, else the end."""
        found = self._admin.list_offsets(partitions, at_time(timestamp_ms))()
        behind = self.all_bounds([tp for tp in partitions if found[tp] < 0])
        return {tp: behind[tp][1] if tp in behind else found[tp] for tp in partitions}

    def topics(self) -> list[str]:
        """Return the names of all topics but Kafka's internal ones."""
        return sorted(set(self._admin.names()) - _INTERNAL)

    def hosts(self, topic: str, partition: int) -> Sequence[str]:
        """Return the host of the partition's leader."""
        for found in self._admin.describe(topic).partitions:
            if found.id == partition and found.leader is not None:
                return (found.leader.host,)
        return ()

    def topic_id(self, topic: str) -> str | None:
        """Return the id that Kafka gave the topic when it was made."""
        return str(self._admin.describe(topic).topic_id)

    def schema(self, topic: str) -> pa.Schema:
        """Return the columns that every topic has."""
        del topic
        return columns(include_headers=self._config.include_headers)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows ``start <= offset < end``, with their offsets.

        Raises:
            LogUnavailable: nothing came for as long as option ``log.timeout`` says.
            LogError: some of the rows are not there (any more).

        """
        return read_range(self._config, TopicPartition(topic, partition), start, end)

    @property
    def _admin(self) -> Admin:
        with self._lock:  # The reader and the group's leader ask in threads of their own.
            if self._connected is None:
                self._connected = Admin(self._config)
            return self._connected
