"""What tests with real processes share: a Spark session, a Kafka broker, an ensemble."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.ensemble import Ensemble, ensemble
from bench.peers import missing
from client.spark import register
from tests.integration.kafka_support import Broker, broker
from tests.integration.spark_support import Daemon, Feeder, daemon, local_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests, with the connectors' jars if they are there."""
    session = local_spark(tmp_path_factory.mktemp("spark"))
    register(session)
    yield session
    session.stop()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon of its own for each test."""
    with daemon(tmp_path / "data") as running:
        yield running


@pytest.fixture
def feeder(tmp_path: Path) -> Iterator[Feeder]:
    """A topic with four empty partitions."""
    made = Feeder(tmp_path / "log")
    yield made
    made.close()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests; each makes topics and groups with names of its own."""
    if why := missing("kafka"):
        pytest.skip(f"no Kafka: {why}")
    with broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def three_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three servers of ZooKeeper for all tests; each has a chroot of its own."""
    if why := missing("zookeeper"):
        pytest.skip(f"no ZooKeeper: {why}")
    with ensemble(tmp_path_factory.mktemp("ensemble")) as made:
        yield made


@pytest.fixture
def zookeeper(three_servers: Ensemble) -> Ensemble:
    """The same, all running, whatever the test before did to them."""
    three_servers.start()
    return three_servers
