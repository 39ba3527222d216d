"""How HTTP leaves the event loop to commits.

Theory of operation
===================

Whatever works for HTTP does so in pieces: a round of its poller, or a stretch of a handler between
two calls of `Pace.pause`. After `PIECE_S` of work by all of them together, whoever is next passes
through one turnstile, first come, first served. There everybody else has a turn. So each pass of
trio's loop has one such piece in it, however many handlers there are, and a request of a client
waits for one piece.

While clients ask something, the loop is theirs. A flood of HTTP gets a fifth of it: after each
piece there is a rest that is four times as long. But most of the time nobody asks over HTTP for
long, and then somebody scrapes. A commit waits for one piece as often whether a scrape takes
one second or five; so the fifth that was not used is saved up, to `CREDIT_S`, and who has that need
not rest.

Nobody holds anything while working: a handler may wait for something else, or end, without a word.
"""

from collections.abc import Callable
from typing import Final

import trio

PIECE_S: Final = 0.00025
REST: Final = 4
CREDIT_S: Final = 1.0
# What came between two pauses without a `begin` may have been others' work: count no more of it.
PIECE_MAX_S: Final = 0.002


class Pace:
    """The turnstile; see above."""

    def __init__(
        self,
        requests: Callable[[], int],
        clock_s: Callable[[], float],
        credit_s: float = CREDIT_S,
    ) -> None:
        """Make it.

        Args:
            requests: A number that grows whenever clients ask something.
            clock_s: How work is measured: the processor's time of this thread, best.
            credit_s: How much work was saved up so far.
        """
        self._requests = requests
        self._clock_s = clock_s
        self._seen = requests()
        self._since_s = clock_s()
        self._worked_s = 0.0
        self._credit_s = credit_s
        self._credited_s = trio.current_time()
        self._turnstile = trio.Lock()

    def begin(self) -> None:
        """Begin to work after a wait for something else than `pause`."""
        self._since_s = self._clock_s()

    def end(self) -> None:
        """End the work without a `pause`."""
        now_s = self._clock_s()
        self._worked_s += min(now_s - self._since_s, PIECE_MAX_S)
        self._since_s = now_s

    async def pause(self) -> None:
        """Return when more may be done; call it after each tenth of a millisecond of work."""
        self.end()
        if self._worked_s >= PIECE_S or self._turnstile.locked():
            async with self._turnstile:  # Taking it lets everybody else have a turn already.
                worked_s, self._worked_s = self._worked_s, 0.0
                seen, self._seen = self._seen, self._requests()
                if seen != self._seen and not self._has_credit(worked_s):
                    await trio.sleep(REST * worked_s)
            self.begin()

    def _has_credit(self, worked_s: float) -> bool:
        """Take so much work off; say whether it may go without a rest, which would earn it anew."""
        now_s = trio.current_time()
        saved_s = (now_s - self._credited_s) / (1 + REST)
        self._credited_s = now_s
        self._credit_s = min(self._credit_s + saved_s, CREDIT_S) - worked_s
        return self._credit_s >= 0
