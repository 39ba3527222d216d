"""The quotas that a principal can have; each is a whole number from 1, and limits from then on."""

from collections.abc import Mapping
from typing import Final

# Of everybody who has none of his own.
DEFAULT: Final = ""

REQUEST_RATE: Final = "request_rate"
BYTE_RATE: Final = "byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONNECTIONS: Final = "connections"

QUOTAS: Final[Mapping[str, str]] = {
    REQUEST_RATE: "requests a second",
    BYTE_RATE: "bytes of requests and answers a second",
    REQUEST_PERCENTAGE: "percent of the time of the thread that decides requests",
    CONNECTIONS: "connections at a time",
    # These count what there is, not what is done; names and meaning are those of the totals.
    "groups": "groups that belong to it",
    "members": "members that joined with it, in all groups",
    "offsets": "committed offsets in its groups",
    "topics": "topics that belong to it",
    "topic_partitions": "partitions of its topics",
    "topic_host_bytes": "bytes of host names of its topics",
    "log_bytes": "bytes that its groups and topics take in the log once that is compacted",
}
