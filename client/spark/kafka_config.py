"""The options of a Kafka log, as configuration of librdkafka. Pure.

Everything that begins with ``kafka.`` goes to librdkafka, which checks names and values itself.
Refused is what the log must set itself, and what only Kafka's Java client knows: there a name
that is ignored, or an obscure error, would cost most time.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from client.spark.options import OptionError

PREFIX: Final = "kafka."
ISOLATION: Final = "isolation.level"
_OWN: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.instance.id",
        "group.protocol",
        "partition.assignment.strategy",
    }
)
_OF_JAVA: Final = {
    "default.api.timeout.ms": "option 'log.timeout'",
    "key.deserializer": "the columns as they are: keys are always bytes",
    "max.poll.records": "option 'maxRowsPerPartition'",
    "request.timeout.ms": "option 'log.timeout'",
    "sasl.jaas.config": "options 'kafka.sasl.username' and 'kafka.sasl.password'",
    "ssl.truststore.location": "option 'kafka.ssl.ca.location', a file in PEM format",
    "ssl.truststore.password": "option 'kafka.ssl.ca.location', a file in PEM format",
    "ssl.truststore.type": "option 'kafka.ssl.ca.location', a file in PEM format",
    "value.deserializer": "the columns as they are: values are always bytes",
}
# A range is known to be there, so nothing is gained by waiting for more of it; and what is
# fetched beyond its end is thrown away.
_DEFAULTS: Final = {
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "5",
    "fetch.error.backoff.ms": "100",
    "queued.max.messages.kbytes": "32768",
    "reconnect.backoff.max.ms": "2000",
}
# What an admin client would complain about.
_CONSUMERS: Final = re.compile(
    r"fetch\..*|queued\..*|max\.partition\.fetch\.bytes|isolation\.level|check\.crcs|group\..*|"
    r"session\.timeout\.ms|heartbeat\.interval\.ms|max\.poll\.interval\.ms|"
    r"enable\..*offset.*|enable\.auto\.commit|enable\.partition\.eof|auto\..*|"
    r"allow\.auto\.create\.topics"
)
_TIMEOUT: Final = re.compile(r"([0-9]{1,6})\s*(ms|s|m)?", re.ASCII)
_LOG_OPTIONS: Final = ("log.includeHeaders", "log.timeout")


class KafkaConfig(NamedTuple):
    """What a Kafka log needs to know."""

    consumer: dict[str, str]
    include_headers: bool
    timeout_s: float

    @property
    def admin(self) -> dict[str, str]:
        """The configuration of an admin client."""
        return {k: v for k, v in self.consumer.items() if not _CONSUMERS.fullmatch(k)}

    @property
    def committed_only(self) -> bool:
        """Whether rows of transactions that are open or aborted stay hidden."""
        return self.consumer[ISOLATION] == "read_committed"

    @property
    def servers(self) -> str:
        """Where the cluster is, for messages."""
        return self.consumer["bootstrap.servers"]


def parse_kafka_options(options: Mapping[str, str]) -> KafkaConfig:
    """Check the options of a Kafka log; names in any case.

    Raises:
        OptionError: one is missing, unknown or impossible.

    """
    given = {name.lower(): value for name, value in options.items()}
    own = {name.lower() for name in _LOG_OPTIONS}
    for name in given:
        if name.startswith("log.") and name not in own:
            raise OptionError(
                f"option {name!r} is unknown to a Kafka log; there are "
                f"{', '.join(_LOG_OPTIONS)}, and 'kafka.<name>' for librdkafka's configuration"
            )
    passed: dict[str, str] = {}
    for name, value in given.items():
        if not name.startswith(PREFIX):
            continue
        setting = name.removeprefix(PREFIX)
        if setting in _OWN:
            raise OptionError(f"option {name!r} can't be set: a Kafka log decides it itself")
        if setting in _OF_JAVA:
            raise OptionError(
                f"option {name!r} is for Kafka's Java client; use {_OF_JAVA[setting]}"
            )
        passed[setting] = value
    if not passed.get("bootstrap.servers", "").strip():
        raise OptionError(
            "option 'kafka.bootstrap.servers' is missing: the brokers of the Kafka log, host:port"
        )
    isolation = passed.setdefault(ISOLATION, "read_committed")
    if isolation not in {"read_committed", "read_uncommitted"}:
        raise OptionError(
            f"option 'kafka.{ISOLATION}' is {isolation!r}: it must be 'read_committed' or "
            "'read_uncommitted'"
        )
    group = given.get("group", "reader")
    return KafkaConfig(
        {
            # Never joined and never committed to; brokers that check rights on groups may want
            # another name.
            "group.id": f"group-coordinator-{group}",
            "client.id": f"group-coordinator-{group}",
            **_DEFAULTS,
            **passed,
            "allow.auto.create.topics": "false",
            "auto.offset.reset": "error",
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "enable.partition.eof": "true",
        },
        _flag(given, "log.includeHeaders"),
        _timeout_s(given),
    )


def _flag(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name.lower(), "false").strip().lower()
    if value not in {"true", "false"}:
        raise OptionError(f"option {name!r} is {value!r}: it must be 'true' or 'false'")
    return value == "true"


def _timeout_s(given: Mapping[str, str]) -> float:
    value = given.get("log.timeout", "30s").strip()
    match = _TIMEOUT.fullmatch(value)
    if not match or not int(match[1]):
        raise OptionError(
            f"option 'log.timeout' is {value!r}: it must be a duration such as '500ms', '30s', "
            "'2m' (a bare number is milliseconds)"
        )
    return int(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, None: 0.001}[match[2]]
