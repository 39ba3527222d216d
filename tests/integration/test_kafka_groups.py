"""A real Kafka cluster's groups, imported into a real coordinator."""

import json
import subprocess
import sys
from uuid import uuid4

import pytest

from client.kafka_groups import KafkaCluster, KafkaGroup, KafkaRefused, import_groups
from client.offsets import OffsetAndMetadata
from protocol.partition import TopicPartition
from tests.integration.kafka_support import Broker
from tests.integration.spark_support import ROOT, Daemon, group_of

pytestmark = pytest.mark.integration


def test_groups_of_a_real_cluster_are_imported(kafka: Broker, coordinator: Daemon) -> None:
    """With one that is at work, one that has stopped, and one that isn't there."""
    topic, name = f"t{uuid4().hex[:8]}", f"g{uuid4().hex[:8]}"
    kafka.create(topic, 2)
    kafka.produce(topic, {0: ["a", "b"], 1: ["c"]})
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    cluster = KafkaCluster(kafka.address)
    cluster.commit(name, {first: OffsetAndMetadata(2, "mine", 0), second: 1})
    busy = f"{name}-busy"

    with kafka.consumer(topic, busy) as consumer:
        consumer.commit(asynchronous=False)
        assert cluster.group(busy) == KafkaGroup(busy, "STABLE")
        with pytest.raises(KafkaRefused, match="the group has members") as caught:
            cluster.commit(busy, {first: 1})
        assert set(caught.value.errors) == {first}
        report = import_groups(kafka.address, coordinator.address, pattern=f"{name}.*")

    assert {one.group: one.status for one in report.groups} == {name: "imported", busy: "skipped"}
    with group_of(coordinator, name) as ours:
        assert ours.client.fetch_offsets(name) == {
            first: OffsetAndMetadata(2, "mine", 0),
            second: OffsetAndMetadata(1),
        }
    assert cluster.group(f"{name}-none").state == "DEAD"
    assert cluster.offsets(f"{name}-none") == {}
    with pytest.raises(KafkaRefused, match="UNKNOWN_TOPIC_OR_PART"):
        cluster.commit(name, {TopicPartition("no-such-topic", 0): 1, first: 2})

    command = [sys.executable, "-m", "client.kafka_groups", "import", "--kafka", kafka.address]
    command += ["--coordinator", coordinator.address, "--group", name, "--json"]
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    (one,) = json.loads(again.stdout)["groups"]
    assert one["status"] == "unchanged"
