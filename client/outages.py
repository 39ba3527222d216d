"""Logs when a coordinator stops answering, and when it answers again."""

import errno
import logging
import os
from dataclasses import dataclass, field
from typing import Final

logger = logging.getLogger("client.connection")  # The name in the guide.

# Longest text in a line of the log, in characters: foreign names and messages must not fill it.
CHARS_MAX: Final = 500


@dataclass(slots=True)
class _Outage:
    since_s: float
    callers: set[object] = field(default_factory=set)


class Outages:
    """Addresses that are away. The log gets one line when an outage begins, and one at its end.

    An outage begins with a failed attempt, whatever the reason. An answer ends it, once no caller
    is left whose attempts failed at the address: while a group is loading, answers about other
    groups don't end it, so no number of retries makes a second line.
    """

    def __init__(self) -> None:
        """Begin with nobody away."""
        self._open: dict[str, _Outage] = {}

    def failed(self, address: str, why: str, caller: object, now_s: float) -> None:
        """Take note that an attempt of *caller* at *address* failed; *why* names the address."""
        outage = self._open.get(address)
        if outage is None:
            outage = self._open[address] = _Outage(now_s)
            logger.warning("%s; trying again", one_line(why))
        outage.callers.add(caller)

    def answered(self, address: str, caller: object, now_s: float) -> None:
        """Take note that *address* answered *caller* for good."""
        if not self._open:
            return
        self.gone(caller)
        outage = self._open.get(address)
        if outage is not None and not outage.callers:
            del self._open[address]
            logger.info("%s answers again, after %.1f s", one_line(address), now_s - outage.since_s)

    def longest_s(self, now_s: float) -> float:
        """Return for how long the address has been away that is so longest; 0 if none is."""
        return max((now_s - one.since_s for one in list(self._open.values())), default=0.0)

    def gone(self, caller: object) -> None:
        """Take note that *caller* makes no more attempts."""
        for outage in self._open.values():
            outage.callers.discard(caller)


def one_line(text: str) -> str:
    """Return *text* for a line of people's: without control characters, and not too long."""
    shown = (
        text if text.isprintable() else "".join(c if c.isprintable() else _code(c) for c in text)
    )
    return shown if len(shown) <= CHARS_MAX else f"{shown[: CHARS_MAX - 1]}…"


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def refusals_of(error: BaseException) -> list[OSError]:
    """Return what the system said, for each address that a name stands for."""
    if isinstance(error, BaseExceptionGroup):
        return [one for inner in error.exceptions for one in refusals_of(inner)]
    if isinstance(error, OSError) and error.errno is not None:
        return [error]
    return [] if error.__cause__ is None else refusals_of(error.__cause__)


def in_words(refusals: list[OSError]) -> str:
    """Return why the system refused, such as "Connection refused", each reason once."""
    return "; ".join(dict.fromkeys(map(_words, refusals)))


def _words(error: OSError) -> str:
    # A name that can't be looked up has a code of its own, which strerror doesn't know.
    number = error.errno or 0
    return os.strerror(number) if number in errno.errorcode else error.strerror or str(error)
