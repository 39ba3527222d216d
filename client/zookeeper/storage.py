"""Settings: where a client's offsets are stored during a migration from ZooKeeper.

The properties are those of Kafka 0.8.2's consumer. ``offsets.storage`` is ``coordinator`` or
``zookeeper``; Kafka's value ``kafka`` is accepted for ``coordinator``. With
``dual.commit.enabled`` a commit goes to the coordinator first, then into the znode of each
partition that the coordinator accepted; a fetch returns the larger offset of both.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from client.zookeeper.settings import (
    NAMES as ZOOKEEPER_NAMES,
    PREFIX,
    ZooKeeper,
    logger,
    properties_of_kafka,
    read_flag,
)

COORDINATOR: Final = "coordinator"
ZOOKEEPER: Final = "zookeeper"
KAFKA: Final = "kafka"  # Kafka's value for the coordinator.
STORAGE_NAME: Final = "offsets.storage"
DUAL_NAME: Final = "dual.commit.enabled"
NAMES: Final = (STORAGE_NAME, DUAL_NAME, *ZOOKEEPER_NAMES)
PREFIXES: Final = (STORAGE_NAME, DUAL_NAME, PREFIX)


@dataclass(frozen=True, slots=True)
class OffsetStorage:
    """Place where committed offsets are stored.

    Attributes:
        storage: `COORDINATOR` or `ZOOKEEPER`.
        is_dual: Whether offsets of the coordinator are written to ZooKeeper as well.
        zookeeper: The ensemble; None if ZooKeeper isn't used.
        groups: The groups that these settings apply to; None for all. Offsets of all other groups
            are stored in the coordinator.

    """

    storage: str = COORDINATOR
    is_dual: bool = False
    zookeeper: ZooKeeper | None = None
    groups: frozenset[str] | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: They contradict each other, or one is invalid; the message names the
                property.
        """
        if self.storage not in {COORDINATOR, ZOOKEEPER}:
            raise ValueError(f"{STORAGE_NAME} is {self.storage!r}: coordinator or zookeeper")
        if self.is_dual and self.storage == ZOOKEEPER:
            raise ValueError(
                f"{DUAL_NAME} is for {STORAGE_NAME}=coordinator, which is committed to first"
            )
        if self.uses_zookeeper and self.zookeeper is None:
            name = f"{DUAL_NAME}=true" if self.is_dual else f"{STORAGE_NAME}=zookeeper"
            raise ValueError(f"zookeeper.connect is missing, which {name} needs")

    @classmethod
    def of(cls, given: "Given") -> "OffsetStorage":
        """Make the settings from properties, or from a file of properties.

        None stands for the coordinator.

        Raises:
            ValueError: A property is unknown or invalid, or the file can't be read.
        """
        if isinstance(given, OffsetStorage):
            return given
        if given is None:
            return cls()
        given = properties_of_kafka(given, NAMES)
        ensemble = {name: value for name, value in given.items() if name in ZOOKEEPER_NAMES}
        named = str(given.get(STORAGE_NAME, COORDINATOR)).strip().lower()
        is_dual = named == KAFKA and bool(
            ensemble
        )  # The default of dual.commit.enabled, as in 0.8.2.
        if ensemble and not given.keys() & {STORAGE_NAME, DUAL_NAME}:
            logger.warning(
                "without %s and %s the coordinator alone has the offsets, and nothing is read from "
                "zookeeper.connect; Kafka 0.8 kept them in ZooKeeper",
                STORAGE_NAME,
                DUAL_NAME,
            )
        return cls(
            storage=COORDINATOR if named == KAFKA else named,
            is_dual=read_flag(DUAL_NAME, given.get(DUAL_NAME, is_dual)),
            zookeeper=ZooKeeper.of(ensemble) if ensemble else None,
        )

    @property
    def uses_zookeeper(self) -> bool:
        """Whether any offsets are stored in ZooKeeper."""
        return self.is_dual or self.storage == ZOOKEEPER

    def keeps(self, group: str) -> bool:
        """Return whether these settings apply to *group*."""
        return self.groups is None or group in self.groups


# Type of the argument of `connect` for these settings.
Given = OffsetStorage | Mapping[str, Any] | str | os.PathLike[str] | None
