"""The quotas that a principal can have; each is a whole number from 1, and limits from then on."""

from collections.abc import Mapping
from typing import Final

# Of everybody who has none of his own.
DEFAULT: Final = ""

REQUEST_RATE: Final = "request_rate"
BYTE_RATE: Final = "byte_rate"
CONNECTIONS: Final = "connections"

QUOTAS: Final[Mapping[str, str]] = {
    REQUEST_RATE: "requests a second",
    BYTE_RATE: "bytes of requests and answers a second",
    CONNECTIONS: "connections at a time",
}
