"""The options of a Kafka log, without Kafka."""

import builtins
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from client.spark.logs.kafka_log import KafkaLog, parse_kafka_options
from client.spark.logs.partition_log import load_log
from client.spark.options import OptionError

SERVERS = {"kafka.bootstrap.servers": "b:9092"}


def test_what_begins_with_kafka_goes_to_librdkafka() -> None:
    """Security, tuning: whatever it knows."""
    config = parse_kafka_options(
        {**SERVERS, "Kafka.security.protocol": "SASL_SSL", "path": "/x", "topics": "t"}
    )

    assert config.consumer["security.protocol"] == "SASL_SSL"
    assert config.admin["security.protocol"] == "SASL_SSL"
    assert "path" not in config.consumer
    assert config.consumer["auto.offset.reset"] == "error"
    assert config.consumer["group.id"] == "group-coordinator-reader"
    assert config.committed_only
    assert (config.include_headers, config.timeout_s) == (False, 30.0)


def test_a_users_value_goes_before_a_default() -> None:
    """The defaults are for speed only."""
    config = parse_kafka_options(
        {
            **SERVERS,
            "group": "etl",
            "kafka.fetch.wait.max.ms": "77",
            "kafka.group.id": "mine",
            "kafka.isolation.level": "read_uncommitted",
            "log.timeout": "1500ms",
            "log.includeHeaders": "TRUE",
        }
    )

    assert config.consumer["fetch.wait.max.ms"] == "77"
    assert config.consumer["group.id"] == "mine"
    assert config.consumer["client.id"] == "group-coordinator-etl"
    assert not config.committed_only
    assert (config.include_headers, config.timeout_s) == (True, 1.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option 'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": " "}, "option 'kafka.bootstrap.servers' is missing"),
        ({**SERVERS, "kafka.auto.offset.reset": "latest"}, "'kafka.auto.offset.reset' can't be"),
        ({**SERVERS, "kafka.enable.auto.commit": "true"}, "'kafka.enable.auto.commit' can't be"),
        ({**SERVERS, "kafka.sasl.jaas.config": "x"}, "for Kafka's Java client.*sasl.username"),
        ({**SERVERS, "kafka.ssl.truststore.location": "x"}, "Java client.*ssl.ca.location"),
        ({**SERVERS, "kafka.isolation.level": "dirty"}, "'kafka.isolation.level' is 'dirty'"),
        ({**SERVERS, "log.includeheaders": "yes"}, "'log.includeHeaders' is 'yes'"),
        ({**SERVERS, "log.timeout": "soon"}, "'log.timeout' is 'soon'"),
        ({**SERVERS, "log.timeout": "0s"}, "'log.timeout' is '0s'"),
        ({**SERVERS, "log.timeuot": "1s"}, "'log.timeuot' is unknown to a Kafka log"),
    ],
)
def test_a_wrong_option_is_named(given: Mapping[str, str], message: str) -> None:
    """Before anything is connected."""
    with pytest.raises(OptionError, match=message):
        KafkaLog(given)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ImportError alone doesn't say what to install."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("confluent_kafka"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for module in [m for m in sys.modules if m.startswith("client.spark.logs.kafka_")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(OptionError, match=r"pip install group-coordinator\[kafka\]"):
        load_log({"log": "kafka", **SERVERS})
