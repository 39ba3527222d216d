"""A real Kafka broker, and a client to fill and to look at it, for the tests that name it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench.peer_jars import spark_jars
from bench.peers import KAFKA, peer_serving

# Small, because it shares the machine with Spark; one partition of offsets starts sooner.
SETTINGS = {
    **KAFKA.settings,
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "200",
    "log.retention.ms": "-1",  # Rows of a test may be years old.
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "200",
}
ANSWER_S = 30.0

needs_connector = pytest.mark.skipif(
    spark_jars("spark-kafka") is None,
    reason="Spark's Kafka connector isn't in build/peers: make peers",
)


class Broker:
    """A broker that listens at *address*."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = AdminClient({"bootstrap.servers": address})
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5})

    def create(self, topic: str, num_partitions: int, **config: str) -> None:
        """Make a topic and wait until it is there."""
        made = self.admin.create_topics(
            [NewTopic(topic, num_partitions, replication_factor=1, config=config)]
        )
        made[topic].result(ANSWER_S)

    def grow(self, topic: str, num_partitions: int) -> None:
        """Give a topic more partitions."""
        self.admin.create_partitions([NewPartitions(topic, num_partitions)])[topic].result(ANSWER_S)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([topic])[topic].result(ANSWER_S)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Let the log of a partition begin at *before*."""
        asked = TopicPartition(topic, partition, before)
        self.admin.delete_records([asked])[asked].result(ANSWER_S)

    def produce(self, topic: str, values: Mapping[int, Iterable[str | bytes]]) -> None:
        """Append values per partition; on the broker when this returns."""
        for partition, some in values.items():
            for value in some:
                self._producer.produce(topic, value, partition=partition)
                self._producer.poll(0)
        left = self._producer.flush(ANSWER_S)
        assert not left, f"{left} messages were not taken"

    @contextmanager
    def consumer(self, topic: str, group: str) -> Iterator[Consumer]:
        """Have a member of a group read a topic."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.subscribe([topic])
            assert consumer.poll(ANSWER_S) is not None, "nothing was read"
            yield consumer
        finally:
            consumer.close()


@contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    """Run a broker with its data in *folder*."""
    peer = KAFKA._replace(settings=SETTINGS, start=_small)
    with peer_serving(peer, folder, core=None) as server:
        yield Broker(f"{server.host}:{server.port}")


def _small(peer: object, folder: Path, port: int) -> list[str]:
    command = KAFKA.start(KAFKA._replace(settings=SETTINGS), folder, port)
    heap = {"-Xmx1G": "-Xmx384m", "-Xms1G": "-Xms128m"}
    return [heap.get(word, word) for word in command]
