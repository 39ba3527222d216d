"""How often an address may fail to say who it is. Pure.

Each attempt is paid for before it is looked at, so many at once are no way around it; one that
succeeds is paid back. An address of IPv6 stands for its /64, which is what one host has.
"""

import ipaddress
from collections import OrderedDict
from typing import Final

from coordinator.group.buckets import Bucket

# So many at once, and then one in six seconds.
ATTEMPTS: Final = 10
EVERY_S: Final = 6
# Whoever has more addresses than this pushes out those that were seen least lately.
ADDRESSES_MAX: Final = 10_000

_RATE: Final = 1
_BEFORE_ONE_MORE_MS: Final = (ATTEMPTS - 1) * EVERY_S * 1_000


class TooManyAttempts(Exception):
    """The address has to wait."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__("too many attempts to log in failed")
        self.wait_ms = wait_ms


class Attempts:
    """The attempts of all addresses."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        """Return how many addresses are known."""
        return len(self._of)

    def begin(self, address: str, now_ms: int) -> None:
        """Count an attempt.

        Raises:
            TooManyAttempts: It may not be looked at.
        """
        key = _host(address)
        bucket = self._of.setdefault(key, Bucket(now_ms))
        self._of.move_to_end(key)
        if len(self._of) > ADDRESSES_MAX:
            self._of.popitem(last=False)
        wait_ms = bucket.wait_ms(_RATE, now_ms, _BEFORE_ONE_MORE_MS)
        if wait_ms:
            raise TooManyAttempts(wait_ms)
        bucket.take(EVERY_S, _RATE, now_ms)

    def succeeded(self, address: str) -> None:
        """Pay one back."""
        bucket = self._of.get(_host(address))
        if bucket is not None:
            bucket.give_back(EVERY_S)


def _host(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))
