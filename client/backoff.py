"""How long to pause between attempts: one rule for everything that is tried again."""

import random
from typing import NamedTuple


class RetrySettings(NamedTuple):
    """Pauses and patience of the retry loop, in milliseconds."""

    backoff_ms: int = 100
    backoff_max_ms: int = 2_000
    # A node that has lost a partition may go on saying "loading"; after this long, ask who
    # coordinates the group now.
    loading_patience_ms: int = 10_000

    def pause_s(self, failures: int, rng: random.Random) -> float:
        """Return the pause after the *failures*-th failure in a row; see `backoff`."""
        return backoff(failures, self.backoff_ms, self.backoff_max_ms, rng) / 1000


def backoff(failures: int, first: float, last: float, rng: random.Random | None = None) -> float:
    """Return the pause after the *failures*-th failure in a row (from 1).

    It doubles from *first* to *last*, in their unit. With *rng* it has jitter over the upper
    half: a restarted coordinator is not met by all of its clients in the same millisecond, and
    nobody retries without any pause at all.
    """
    # The exponent is bounded so that a long outage can't grow a huge integer.
    pause = min(last, first * 2.0 ** min(failures - 1, 30))
    return pause if rng is None else pause * rng.uniform(0.5, 1.0)
