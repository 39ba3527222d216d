"""All dialects by name: ours, the echo's and the peers'."""

from collections.abc import Callable, Mapping
from typing import Final

from bench.dialect_kafka import KafkaDialect
from bench.dialect_zookeeper import ZooKeeperDialect
from bench.dialects import DIALECTS, Dialect, Load

ALL_DIALECTS: Final[Mapping[str, Callable[[Load], Dialect]]] = {
    **DIALECTS,
    "kafka": KafkaDialect,
    "zookeeper": ZooKeeperDialect,
}
