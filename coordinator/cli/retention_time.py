"""For how long offsets are kept, as people write it: 14d, 36h, never."""

import re
from typing import Final

from protocol.types import INT64_MAX

FOR_EVER: Final = -1

_UNITS_MS: Final = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_TIME: Final = re.compile(r"([0-9]{1,19})(ms|[smhdw])")


def parse(text: str) -> int:
    """Return the milliseconds in *text*, -1 for "never".

    Raises:
        ValueError: It is neither, or no time at all.
    """
    if text == "never":
        return FOR_EVER
    match = _TIME.fullmatch(text)
    kept_ms = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 0 < kept_ms <= INT64_MAX:
        raise ValueError(f"{text!r} is none of 14d, 36h, 90m (also w, s, ms), never, default")
    return kept_ms


def in_words(kept_ms: int) -> str:
    """Return the time in the largest unit that gives a whole number; a week stays 7d."""
    if kept_ms < 0:
        return "never"
    if kept_ms:
        for unit in ("d", "h", "m", "s"):
            if kept_ms % _UNITS_MS[unit] == 0:
                return f"{kept_ms // _UNITS_MS[unit]}{unit}"
    return f"{kept_ms}ms"
