"""How long to pause between attempts."""

import random
from typing import NamedTuple


class RetrySettings(NamedTuple):
    """Pauses and patience of the retry loop, in milliseconds."""

    backoff_ms: int = 100
    backoff_max_ms: int = 2_000
    # A node that has lost a partition may go on saying "loading"; after this long, ask who
    # coordinates the group now.
    loading_patience_ms: int = 10_000


def pause_ms(failures: int, settings: RetrySettings, rng: random.Random) -> float:
    """Return the pause after the *failures*-th failure in a row (from 1).

    Exponential, with jitter over the upper half: a restarted coordinator is not met by all of
    its clients in the same millisecond, and nobody retries without any pause at all.
    """
    # The exponent is bounded so that a long outage can't grow a huge integer.
    full = min(settings.backoff_max_ms, settings.backoff_ms * 2 ** min(failures - 1, 16))
    jittered: float = full * rng.uniform(0.5, 1.0)
    return jittered
