"""How often an address may fail to say who it is, by whatever listener. Pure.

There are two bounds, and each failure counts for both. One who speaks the native protocol is told
late: each failure of an address 100 ms behind the one before, and whoever comes while the latest
that is allowed is taken isn't looked at. Over HTTP it is ten at once, and then one in six seconds.
There each attempt is paid for before it is looked at, so many at once are no way around it; one
that succeeds is paid back.
"""

from collections import OrderedDict
from typing import Final

from coordinator.group.buckets import Bucket
from coordinator.server.addresses import counted_as

# So many at once, and then one in six seconds.
ATTEMPTS: Final = 10
EVERY_S: Final = 6
# Between two failures of an address, and how late one is answered at most.
FAILURE_PACE_MS: Final = 100
FAILURE_DELAY_MAX_MS: Final = 1_000
# Whoever has more addresses than this pushes out those that were seen least lately.
ADDRESSES_MAX: Final = 10_000

_RATE: Final = 1
_BEFORE_ONE_MORE_MS: Final = (ATTEMPTS - 1) * EVERY_S * 1_000


class TooManyAttempts(Exception):
    """The address has to wait."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__("too many attempts to log in failed")
        self.wait_ms = wait_ms


class _Host:
    """What failed of one."""

    __slots__ = ("_bucket", "latest_ms")

    def __init__(self, now_ms: int) -> None:
        self._bucket = Bucket(now_ms)
        self.latest_ms = now_ms  # When its latest failure is answered.

    def wait_ms(self, now_ms: int) -> int:
        """Return until when none is looked at over HTTP."""
        return self._bucket.wait_ms(_RATE, now_ms, _BEFORE_ONE_MORE_MS)

    def pay(self, now_ms: int) -> None:
        """Take one of those over HTTP, if there is any."""
        if not self.wait_ms(now_ms):
            self._bucket.take(EVERY_S, _RATE, now_ms)

    def pay_back(self) -> None:
        self._bucket.give_back(EVERY_S)

    def is_late(self, now_ms: int) -> bool:
        """Say whether the latest answer that is allowed is taken."""
        return self.latest_ms + FAILURE_PACE_MS - now_ms > FAILURE_DELAY_MAX_MS

    def delay_ms(self, now_ms: int) -> int:
        """Count a failure; return how late it is answered."""
        self.latest_ms = max(now_ms, self.latest_ms) + FAILURE_PACE_MS
        return self.latest_ms - now_ms


class Attempts:
    """The attempts of all addresses."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, _Host] = OrderedDict()

    def __len__(self) -> int:
        """Return how many addresses are known."""
        return len(self._of)

    # --- of the native protocol -----------------------------------------------------------------

    def are_too_many(self, address: str, now_ms: int) -> bool:
        """Say whether an attempt of *address* isn't to be looked at."""
        host = self._of.get(counted_as(address))
        return host is not None and host.is_late(now_ms)

    def delay_ms(self, address: str, now_ms: int) -> int:
        """Count a failure, and return how late it is to be answered."""
        host = self._known(address, now_ms)
        host.pay(now_ms)
        return host.delay_ms(now_ms)

    # --- over HTTP ------------------------------------------------------------------------------

    def begin(self, address: str, now_ms: int) -> None:
        """Count an attempt.

        Raises:
            TooManyAttempts: It may not be looked at.
        """
        host = self._known(address, now_ms)
        wait_ms = host.wait_ms(now_ms) or (FAILURE_DELAY_MAX_MS if host.is_late(now_ms) else 0)
        if wait_ms:
            raise TooManyAttempts(wait_ms)
        host.pay(now_ms)

    def succeeded(self, address: str) -> None:
        """Pay one back."""
        host = self._of.get(counted_as(address))
        if host is not None:
            host.pay_back()

    def failed(self, address: str, now_ms: int) -> None:
        """Note that one, which has begun, has failed."""
        self._known(address, now_ms).delay_ms(now_ms)

    def _known(self, address: str, now_ms: int) -> _Host:
        key = counted_as(address)
        host = self._of.get(key)
        if host is None:
            host = self._of[key] = _Host(now_ms)
        self._of.move_to_end(key)
        if len(self._of) > ADDRESSES_MAX:
            self._of.popitem(last=False)
        return host
