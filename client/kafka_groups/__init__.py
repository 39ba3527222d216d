"""Groups of a Kafka cluster: commits to them, and imports them into the coordinator.

Needs ``pip install group-coordinator[kafka]``; importing this package does not.
``python -m client.kafka_groups import --help`` is the command line.
"""

from client.kafka_groups.cluster import (
    KafkaCluster,
    KafkaGroup,
    KafkaGroupError,
    KafkaRefused,
    KafkaUnavailable,
)
from client.kafka_groups.importing import (
    Existing,
    GroupImport,
    ImportReport,
    PartitionImport,
    import_groups,
)

__all__ = [
    "Existing",
    "GroupImport",
    "ImportReport",
    "KafkaCluster",
    "KafkaGroup",
    "KafkaGroupError",
    "KafkaRefused",
    "KafkaUnavailable",
    "PartitionImport",
    "import_groups",
]
