"""The quotas of a principal, in force over all its sessions.

Theory of operation
===================

Each answer takes one request, and the bytes of both, out of the buckets of its principal
(`coordinator.group.buckets`). Once more was taken than there is, the answer says how long to wait,
and goes out at once; the session is *muted*, which means that it isn't read until all of that is
paid. So somebody who asks too fast is slowed down by what he has asked, and nobody else is. Another
session of the same principal is muted when it next gets an answer: what a principal takes beyond
its rate is one burst, and of each of its sessions the requests that were decided in between.

One alarm for each principal wakes all of its sessions that are muted. It looks again first, as
others may have taken more meanwhile. A change of quotas wakes them at once, under the new rates.

Who has no session is remembered while he owes, so that nobody is quicker by connecting anew.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from coordinator.group.buckets import Bucket
from coordinator.group.quotas import Quotas
from protocol.partition import INT32_MAX
from protocol.quotas import BYTE_RATE, CONNECTIONS, REQUEST_RATE

# Beyond so many principals those are forgotten who have no session and owe nothing.
_KEPT: Final = 10_000


class Muted(Protocol):
    """A session, as far as it is to be quiet."""

    def mute(self) -> None:
        """Read no more from it."""

    def unmute(self) -> None:
        """Read on."""


class Throttle:
    """What one principal takes.

    Attributes:
        sessions: How many it has.
    """

    def __init__(self, throttles: "Throttles", principal: str) -> None:
        """Use `Throttles.enter` instead."""
        self._throttles = throttles
        self._principal = principal
        self.sessions = 0
        self._version = -1  # Of the quotas that the rates are from.
        self._requests: tuple[Bucket, int] | None = None  # With its rate a second.
        self._bytes: tuple[Bucket, int] | None = None
        self._muted: dict[Muted, None] = {}
        self._alarm = 0  # The number of the one that counts.

    def take(self, session: Muted, size_bytes: int) -> int:
        """Take a request of *session* with its answer; return how long it has to wait, in ms."""
        self._refresh()
        if self._requests is None and self._bytes is None:  # Every request comes here.
            return 0
        now_ms = self._throttles.now_ms()
        if self._requests is not None:
            bucket, rate = self._requests
            bucket.take(1, rate, now_ms)
        if self._bytes is not None:
            bucket, rate = self._bytes
            bucket.take(size_bytes, rate, now_ms)
        wait_ms = self.wait_ms(now_ms)
        if wait_ms and session not in self._muted:
            if not self._muted:
                self._set_alarm(wait_ms)
            self._muted[session] = None
            session.mute()
        return wait_ms

    def wait_ms(self, now_ms: int) -> int:
        """Return when all is paid."""
        self._refresh()
        waits = [b.wait_ms(rate, now_ms) for b, rate in filter(None, (self._requests, self._bytes))]
        return min(max(waits, default=0), INT32_MAX)

    def leave(self, session: Muted) -> None:
        """*session* has ended."""
        self.sessions -= 1
        self._muted.pop(session, None)

    def wake(self) -> None:
        """Let those go on that are muted, if all is paid."""
        if not self._muted:
            return
        wait_ms = self.wait_ms(self._throttles.now_ms())
        if wait_ms:
            self._set_alarm(wait_ms)
            return
        muted, self._muted = self._muted, {}
        for session in muted:
            session.unmute()

    def _set_alarm(self, wait_ms: int) -> None:
        self._alarm += 1
        self._throttles.do_later(wait_ms, partial(self._ring, self._alarm))

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self.wake()

    def _refresh(self) -> None:
        quotas = self._throttles.quotas
        if self._version == quotas.version:
            return
        self._version = quotas.version
        now_ms = self._throttles.now_ms()
        rates = [quotas.limit(self._principal, key) for key in (REQUEST_RATE, BYTE_RATE)]
        self._requests, self._bytes = (
            _at(rate, bucket, now_ms)
            for rate, bucket in zip(rates, (self._requests, self._bytes), strict=True)
        )


def _at(
    rate: int | None, before: tuple[Bucket, int] | None, now_ms: int
) -> tuple[Bucket, int] | None:
    """Return a bucket with its rate; what is owed at another rate is forgiven."""
    if rate is None:
        return None
    return before if before is not None and before[1] == rate else (Bucket(now_ms), rate)


class Throttles:
    """The throttles of all principals that have sessions, or owe something."""

    def __init__(
        self,
        quotas: Quotas,
        now_ms: Callable[[], int],
        do_later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        """Make it; *do_later* calls what it is given after so many ms."""
        self.quotas = quotas
        self.now_ms = now_ms
        self.do_later = do_later
        self._of: dict[str, Throttle] = {}

    def has_place(self, principal: str) -> bool:
        """Say whether *principal* may have one more session."""
        limit = self.quotas.limit(principal, CONNECTIONS)
        throttle = self._of.get(principal)
        return limit is None or (0 if throttle is None else throttle.sessions) < limit

    def enter(self, principal: str) -> Throttle:
        """Count a session of *principal*, and return its throttle."""
        throttle = self._of.get(principal)
        if throttle is None:
            if len(self._of) >= _KEPT:
                self._forget()
            throttle = self._of[principal] = Throttle(self, principal)
        throttle.sessions += 1
        return throttle

    def changed(self) -> None:
        """Quotas are others now."""
        for throttle in list(self._of.values()):
            throttle.wake()

    def _forget(self) -> None:
        now_ms = self.now_ms()
        self._of = {
            name: throttle
            for name, throttle in self._of.items()
            if throttle.sessions or throttle.wait_ms(now_ms)
        }
