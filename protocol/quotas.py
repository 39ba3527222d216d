"""The quotas that a principal can have; each is a whole number, and what it counts is its name."""

from collections.abc import Mapping
from typing import Final

# Of everybody who has none of his own.
DEFAULT: Final = ""

QUOTAS: Final[Mapping[str, str]] = {
    "request_rate": "requests a second",
    "byte_rate": "bytes of requests and answers a second",
    "cpu_percent": "the share of one core that the work on requests takes, in percent",
    "connections": "connections at a time",
    "groups": "groups",
    "members": "members of groups",
    "topics": "topics that were registered",
    "keys": "committed offsets",
    "log_bytes": "bytes in the log",
}
