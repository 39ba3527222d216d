"""The properties of Kafka 0.8's consumer, as teams have them in a file."""

import logging
import re
import zipfile
from pathlib import Path

import pytest

from bench.peer_jars import class_path
from client.zookeeper.settings import NAMES, OF_KAFKA, ZooKeeper
from client.zookeeper.storage import COORDINATOR, DUAL_NAME, STORAGE_NAME, ZOOKEEPER, OffsetStorage

# A file of production: the sample of Kafka 0.8.2 and what teams add to it.
CONSUMER_PROPERTIES = """\
# comma separated host:port pairs, each corresponding to a zk server
zookeeper.connect=zk1:2181,zk2:2181/kafka
zookeeper.session.timeout.ms=8000
zookeeper.connection.timeout.ms=1000000
zookeeper.sync.time.ms=2000
group.id=billing
consumer.timeout.ms=5000
auto.commit.enable=true
auto.commit.interval.ms=1000
auto.offset.reset=smallest
rebalance.max.retries=10
offsets.storage=kafka
dual.commit.enabled=true
"""
WITHOUT_MEANING = (
    "auto.commit.enable, auto.commit.interval.ms, auto.offset.reset, consumer.timeout.ms, "
    "group.id, rebalance.max.retries, zookeeper.sync.time.ms"
)
NOT_IN_ZOOKEEPER = "Kafka 0.8 kept them in ZooKeeper"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with such properties."""
    path = tmp_path / "consumer.properties"
    path.write_text(CONSUMER_PROPERTIES)
    return path


def test_the_properties_of_a_consumer_of_old_are_taken_as_they_are(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A team moves with the file that it has, and reads which lines count no more."""
    storage = OffsetStorage.of(file)

    ensemble = ZooKeeper("zk1:2181,zk2:2181/kafka", 8_000, 1_000_000)
    assert storage == OffsetStorage(COORDINATOR, is_dual=True, zookeeper=ensemble)
    ((name, level, said),) = caplog.record_tuples
    assert (name, level) == ("client.zookeeper", logging.WARNING)
    assert said.endswith(f": {WITHOUT_MEANING}")


def test_where_the_ensemble_is_can_be_read_from_the_same_file(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that registers in ZooKeeper takes it, too: its offsets are there in any case."""
    given = dict(line.split("=", 1) for line in file.read_text().splitlines()[1:])

    assert ZooKeeper.of(given) == ZooKeeper("zk1:2181,zk2:2181/kafka", 8_000, 1_000_000)
    assert "dual.commit.enabled, group.id, offsets.storage, rebalance.max" in caplog.text


@pytest.mark.parametrize("name", ["offset.storage", "auto.comit.enable", "zookeeper.conect"])
def test_a_misspelt_property_is_refused_beside_those_without_a_meaning(
    name: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that no consumer knows was meant to be another one, which is missing then."""
    file.write_text(f"{CONSUMER_PROPERTIES}{name}=x\n")

    with pytest.raises(ValueError, match=f"there is no property '{name}'; there are offsets"):
        OffsetStorage.of(file)
    assert caplog.records == []


def test_properties_that_all_have_a_meaning_are_taken_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning that always comes is read by nobody."""
    OffsetStorage.of(None)
    OffsetStorage.of({})
    OffsetStorage.of({STORAGE_NAME: "coordinator", "zookeeper.connect": "zk"})
    OffsetStorage.of({STORAGE_NAME: "zookeeper", "zookeeper.connect": "zk"})
    OffsetStorage.of({DUAL_NAME: "false", "zookeeper.connect": "zk"})

    assert caplog.records == []


@pytest.mark.parametrize("word", ["kafka", " Kafka"])
def test_kafka_is_the_name_that_the_coordinator_had(word: str) -> None:
    """Without an ensemble there is nothing to keep beside it."""
    assert OffsetStorage.of({STORAGE_NAME: word}) == OffsetStorage(COORDINATOR)


@pytest.mark.parametrize(
    ("given", "storage", "is_dual", "is_told"),
    [
        ({STORAGE_NAME: "kafka"}, COORDINATOR, True, False),  # The default of 0.8.2.
        ({STORAGE_NAME: "kafka", DUAL_NAME: "false"}, COORDINATOR, False, False),
        ({STORAGE_NAME: "coordinator"}, COORDINATOR, False, False),
        ({STORAGE_NAME: "zookeeper"}, ZOOKEEPER, False, False),
        ({DUAL_NAME: "true"}, COORDINATOR, True, False),
        ({}, COORDINATOR, False, True),
    ],
)
def test_an_ensemble_that_would_not_be_used_is_told(
    given: dict[str, str],
    storage: str,
    is_dual: bool,
    is_told: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An old file may name no storage: its offsets would be left behind without a word."""
    found = OffsetStorage.of({**given, "zookeeper.connect": "zk"})

    assert (found.storage, found.is_dual) == (storage, is_dual)
    assert (NOT_IN_ZOOKEEPER in caplog.text) == is_told


@pytest.mark.skipif(not class_path("kafka-0.8"), reason="no jars of Kafka 0.8: make peers")
def test_the_properties_that_are_known_are_those_of_kafka() -> None:
    """Pages about the consumer leave some out; the class that reads them has all."""
    found = set()
    for jar in class_path("kafka-0.8").split(":"):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if re.fullmatch(r"kafka/(consumer/ConsumerConfig|utils/ZKConfig)\$?\.class", name):
                    # Each text of a class has its length before it.
                    texts = re.findall(rb"(?s)\x01\0.([a-z]+(?:\.[a-z]+)+)", archive.read(name))
                    found |= {text.decode() for text in texts}

    assert len(found) > 25
    assert found == OF_KAFKA | (set(NAMES) & found)
    assert {STORAGE_NAME, DUAL_NAME} <= found
