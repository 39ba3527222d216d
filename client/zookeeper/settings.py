"""Settings for the connection to an ensemble of ZooKeeper: properties with Kafka's names."""

import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from client.security import properties_of, read_properties

PREFIX: Final = "zookeeper."
_PORT: Final = 2181
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,\[\]]+)(?::([0-9]{1,5}))?")
_FIELDS: Final[Mapping[str, str]] = {
    "zookeeper.connect": "connect",
    "zookeeper.session.timeout.ms": "session_timeout_ms",
    "zookeeper.connection.timeout.ms": "connection_timeout_ms",
    "zookeeper.ssl.client.enable": "uses_tls",
    "zookeeper.ssl.truststore.location": "truststore",
    "zookeeper.ssl.keystore.location": "keystore",
    "zookeeper.sasl.username": "username",
    "zookeeper.sasl.password": "password",
}
NAMES: Final = tuple(_FIELDS)
# All other properties of a consumer of Kafka 0.8.2.
OF_KAFKA: Final = frozenset(
    {
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "client.id",
        "consumer.id",
        "consumer.timeout.ms",
        "dual.commit.enabled",
        "exclude.internal.topics",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.wait.max.ms",
        "group.id",
        "mirror.consumer.numthreads",
        "mirror.topics.blacklist",
        "mirror.topics.whitelist",
        "num.consumer.fetchers",
        "offsets.channel.backoff.ms",
        "offsets.channel.socket.timeout.ms",
        "offsets.commit.max.retries",
        "offsets.storage",
        "partition.assignment.strategy",
        "queued.max.message.chunks",
        "rebalance.backoff.ms",
        "rebalance.max.retries",
        "refresh.leader.backoff.ms",
        "socket.receive.buffer.bytes",
        "socket.timeout.ms",
        "zookeeper.sync.time.ms",
    }
)

logger = logging.getLogger("client.zookeeper")


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """Settings of an ensemble. Secrets aren't part of the repr.

    Attributes:
        connect: ``host:port``, several separated by commas, followed by the chroot, if any.
        session_timeout_ms: Requested session timeout. After two thirds of it without an answer
            the client connects to another server.
        connection_timeout_ms: How long to try to reach a server.
        uses_tls: Whether the connection is encrypted, and the server's name compared with its
            certificate.
        truststore: A PEM file of the trusted authorities; "": the system's.
        keystore: A PEM file with this client's key and certificates; "": none.
        username: User name for DIGEST-MD5; "": no log-in.
        password: The password, or where it is: ``{file:/path}`` or ``{env:NAME}``.

    """

    connect: str
    session_timeout_ms: int = 6_000  # Kafka's default.
    connection_timeout_ms: int = 6_000
    uses_tls: bool = False
    truststore: str = ""
    keystore: str = ""
    username: str = ""
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: A property is invalid; the message names it, and shows no secret.
        """
        _split(self.connect)
        if bool(self.username) != bool(self.password):
            raise ValueError("zookeeper.sasl.username and zookeeper.sasl.password belong together")

    @classmethod
    def of(cls, given: Mapping[str, object]) -> "ZooKeeper":
        """Make the settings from properties.

        Raises:
            ValueError: A property is unknown, invalid or missing.
        """
        given = properties_of_kafka(given, NAMES)
        if "zookeeper.connect" not in given:
            raise ValueError("zookeeper.connect is missing: HOST:PORT,…, and the chroot behind it")
        values: dict[str, object] = {}
        for name, value in given.items():
            kind = cls.__dataclass_fields__[_FIELDS[name]].type
            values[_FIELDS[name]] = _READERS[kind](name, value)
        return cls(**values)  # type: ignore[arg-type]  # They are of the fields' types by now.

    @property
    def hosts(self) -> str:
        """The servers, each with its port."""
        return _split(self.connect)[0]

    @property
    def chroot(self) -> str:
        """The path of the znode above all of Kafka's; "" for none."""
        return _split(self.connect)[1]


def properties_of_kafka(
    given: Mapping[str, Any] | str | os.PathLike[str], names: Collection[str]
) -> Mapping[str, Any]:
    """Return the properties among *names*; log a warning for other properties of Kafka 0.8.

    Raises:
        ValueError: A property is unknown to both, or the file can't be read.
    """
    found = read_properties(given) if isinstance(given, str | os.PathLike) else given
    unused = (found.keys() & OF_KAFKA).difference(names)
    used = properties_of({name: found[name] for name in found if name not in unused}, names)
    if unused:
        logger.warning(
            "properties of Kafka 0.8's consumer without a meaning here: %s",
            ", ".join(sorted(unused)),
        )
    return used


def _split(connect: str) -> tuple[str, str]:
    """Return the servers, and the chroot.

    Raises:
        ValueError: *connect* isn't ``HOST:PORT,…[/CHROOT]``.
    """
    listed, slash, chroot = connect.strip().partition("/")
    hosts = []
    for one in listed.split(","):
        found = _HOST.fullmatch(one.strip())
        if found is None or not 0 < int(found[2] or _PORT) < 65536:
            raise ValueError(f"zookeeper.connect is {connect!r}: it must be HOST:PORT,…[/CHROOT]")
        hosts.append(f"{found[1]}:{found[2] or _PORT}")
    chroot = chroot.rstrip("/")
    return ",".join(hosts), slash + chroot if chroot else ""


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text")  # noqa: TRY004 - As all that is wrong here.
    return value.strip()


def read_flag(name: str, value: object) -> bool:
    """Return the value of a property that is true or false.

    Raises:
        ValueError: The value is neither.
    """
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in {"true", "false"}:
        raise ValueError(f"{name} is {value!r}: it must be true or false")
    return text == "true"


def _ms(name: str, value: object) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch("[0-9]{1,9}", text) or not int(text):
        raise ValueError(f"{name} is {value!r}: it must be a number of milliseconds")
    return int(text)


_READERS: Final[Mapping[object, Callable[[str, object], object]]] = {
    str: _text,
    bool: read_flag,
    int: _ms,
}
