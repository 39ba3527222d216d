"""The quotas of a principal, in force over all its sessions.

Theory of operation
===================

Each answer takes one request, the bytes of both, and the time that its session's turn has taken so
far, out of the buckets of its principal (`coordinator.group.buckets`). Once more was taken than
there is, the answer says how long to wait, and goes out at once; the session is *muted*, which
means that it isn't read until all of that is paid. So somebody who asks too fast is slowed down by
what he has asked, and nobody else is. Another session of the same principal is muted when it next
gets an answer: what a principal takes beyond its rate is one burst, and of each of its sessions the
requests that were decided in between.

What is taken is counted first, and taken out of the buckets now and then (`Rate`): the clock costs
more than most requests' share of this.

Nobody is muted for longer than `WAIT_MAX_MS`: what is owed beyond that is forgiven. A session that
isn't read sends no heartbeats, and its members would be taken for dead.

One alarm for each principal wakes all of its sessions that are muted. It looks again first, as
others may have taken more meanwhile. A change of quotas wakes them at once, under the new rates.

Time is measured only of whom a quota limits in it: his sessions are told to time their turns.
Requests over HTTP take of the same buckets, time included, whatever became of them; who owes
something is refused there until it is paid.

Who has no session is remembered while he owes, so that nobody is quicker by connecting anew.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from coordinator.group.buckets import Rate
from coordinator.group.quotas import Quotas
from coordinator.runtime.bulkhead import Owner, attempt
from coordinator.runtime.telemetry import Telemetry
from protocol.quotas import BYTE_RATE, CONNECTIONS, REQUEST_PERCENTAGE, REQUEST_RATE

# Beyond so many principals those are forgotten who have no session and owe nothing.
_KEPT: Final = 10_000
# Kafka bounds it by its quota window. The least session timeout is 6 s by default.
WAIT_MAX_MS: Final = 5_000
# What a percent of the time is in microseconds a second.
_PERCENT_US: Final = 10_000
# The rate where there is no quota: nobody gets near it.
_UNLIMITED: Final = 2**62


class Muted(Owner, Protocol):
    """A session, as far as it is to be quiet."""

    def mute(self) -> None:
        """Read no more from it."""

    def unmute(self) -> None:
        """Read on."""

    def time_turns(self, *, is_timed: bool) -> None:
        """Have `Throttle.spend` called with what each turn took, or no more."""

    def spent_us(self) -> int:
        """Return what its turn has taken since it was asked last; 0 outside of one."""


class Throttle:
    """What one principal takes."""

    def __init__(self, throttles: "Throttles", principal: str) -> None:
        """Use `Throttles.enter` instead."""
        self._throttles = throttles
        self._principal = principal
        self._sessions: dict[Muted, None] = {}
        self._version = -1  # Of the quotas that the rates are from.
        unlimited = Rate(_UNLIMITED, throttles.now_ms(), WAIT_MAX_MS)
        self._requests = self._bytes = self._time = unlimited
        self._is_timed = False  # Whether a quota limits its time.
        self._muted: dict[Muted, None] = {}
        self._alarm = 0  # The number of the one that counts.
        self.refresh()

    @property
    def sessions(self) -> int:
        """How many it has."""
        return len(self._sessions)

    def enter(self, session: Muted) -> None:
        """Let *session* be limited, too."""
        self._sessions[session] = None
        session.time_turns(is_timed=self._is_timed)

    def take(self, session: Muted, size_bytes: int) -> int:
        """Take a request of *session* with its answer; return how long it has to wait, in ms."""
        # Every request comes here, and goes on here.
        requests, sizes = self._requests, self._bytes
        requests.left -= 1
        sizes.left -= size_bytes
        if self._is_timed:
            self._time.left -= session.spent_us()
        elif requests.left >= 0 and sizes.left >= 0:
            return 0
        wait_ms = self.wait_ms(self._throttles.now_ms())
        if wait_ms:
            self._tell(wait_ms)
            self._mute(session, wait_ms)
        return wait_ms

    def spend(self, session: Muted, spent_us: int) -> None:
        """Take time that no answer of *session* has paid for."""
        if not self._is_timed:
            return
        self._time.left -= spent_us
        wait_ms = self.wait_ms(self._throttles.now_ms())
        if wait_ms and session in self._sessions:
            self._mute(session, wait_ms)

    def take_over_http(self, size_bytes: int, spent_us: int) -> None:
        """Take a request over HTTP, with its answer and the time of who has made that."""
        self._requests.left -= 1
        self._bytes.left -= size_bytes
        self._time.left -= spent_us

    def wait_over_http_ms(self) -> int:
        """Return for how long nothing is answered over HTTP, and count that it is refused."""
        wait_ms = self.wait_ms(self._throttles.now_ms())
        if wait_ms:
            self._tell(wait_ms)
        return wait_ms

    def _tell(self, wait_ms: int) -> None:
        self._throttles.telemetry.told_to_wait(self._principal, wait_ms)

    def _mute(self, session: Muted, wait_ms: int) -> None:
        if session not in self._muted:
            if not self._muted:
                self._set_alarm(wait_ms)
            self._muted[session] = None
            session.mute()

    def wait_ms(self, now_ms: int) -> int:
        """Return when all is paid."""
        rates = (self._requests, self._bytes, self._time)
        return max([rate.wait_ms(now_ms) for rate in rates])

    def leave(self, session: Muted) -> None:
        """*session* has ended."""
        self._sessions.pop(session, None)
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
            attempt(session, session.unmute)

    def _set_alarm(self, wait_ms: int) -> None:
        self._alarm += 1
        self._throttles.do_later(wait_ms, self, partial(self._ring, self._alarm))

    def fail(self, exception: str) -> None:
        """End the sessions that nobody would wake any more: see `Owner`."""
        for session in list(self._muted):
            session.fail(exception)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm:
            self.wake()

    def refresh(self) -> None:
        """Go by the quotas of now."""
        quotas = self._throttles.quotas
        if self._version == quotas.version:
            return
        self._version = quotas.version
        self._requests = self._rate(REQUEST_RATE, 1, self._requests)
        self._bytes = self._rate(BYTE_RATE, 1, self._bytes)
        self._time = self._rate(REQUEST_PERCENTAGE, _PERCENT_US, self._time)
        self._is_timed = self._time.rate != _UNLIMITED
        for session in list(self._sessions):
            attempt(session, partial(session.time_turns, is_timed=self._is_timed))

    def _rate(self, key: str, unit: int, before: Rate) -> Rate:
        """Return what a quota allows; what is owed at another rate is forgiven."""
        throttles = self._throttles
        quota = throttles.quotas.limit(self._principal, key)
        rate = _UNLIMITED if quota is None else quota * unit
        return before if before.rate == rate else Rate(rate, throttles.now_ms(), WAIT_MAX_MS)


class Throttles:
    """The throttles of all principals that have sessions, or owe something."""

    def __init__(
        self,
        quotas: Quotas,
        now_ms: Callable[[], int],
        do_later: Callable[[int, Owner, Callable[[], None]], None],
        telemetry: Telemetry,
    ) -> None:
        """Make it; *do_later* calls what it is given after so many ms."""
        self.quotas = quotas
        self.telemetry = telemetry
        self.now_ms = now_ms
        self.do_later = do_later
        self._of: dict[str, Throttle] = {}

    def has_place(self, principal: str) -> bool:
        """Say whether *principal* may have one more session."""
        limit = self.quotas.limit(principal, CONNECTIONS)
        throttle = self._of.get(principal)
        return limit is None or (0 if throttle is None else throttle.sessions) < limit

    def enter(self, principal: str, session: Muted) -> Throttle:
        """Return the throttle of *principal*, who has this session, too."""
        throttle = self.of(principal)
        throttle.enter(session)
        return throttle

    def of(self, principal: str) -> Throttle:
        """Return the throttle of *principal*."""
        throttle = self._of.get(principal)
        if throttle is None:
            if len(self._of) >= _KEPT:
                self._forget()
            throttle = self._of[principal] = Throttle(self, principal)
        return throttle

    def changed(self) -> None:
        """Quotas are others now."""
        for throttle in list(self._of.values()):
            throttle.refresh()
            throttle.wake()

    def _forget(self) -> None:
        now_ms = self.now_ms()
        self._of = {
            name: throttle
            for name, throttle in self._of.items()
            if throttle.sessions or throttle.wait_ms(now_ms)
        }
