"""Sentences for people that name things, of which there may be very many."""

from collections.abc import Collection, Iterable
from itertools import islice


def some_of(
    things: Iterable[object], most: int = 5, *, count: int | None = None, between: str = ", "
) -> str:
    """Return the first of *things*, at most so many, and how many more there are.

    Args:
        things: What to name; what knows its length, where *count* isn't given.
        most: How many are named.
        count: How many there are.
        between: What separates them.
    """
    if count is None:
        things = things if isinstance(things, Collection) else list(things)
        count = len(things)
    named = between.join(map(str, islice(things, most)))
    return f"{named} and {count - most} more" if count > most else named
