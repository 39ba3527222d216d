"""Who is reading the journal, so that no file is removed under anybody."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Mark:
    """One read that is going on: until the last reference to this is gone."""

    def __init__(self, reading: set[int], number: int) -> None:
        self._reading = reading
        self._number = number
        reading.add(number)

    def __del__(self) -> None:
        """Count no more."""
        self._reading.discard(self._number)


class Readers:
    """The reads that are going on, in any thread.

    A read takes a mark before it looks at the manifest, so whoever has replaced the manifest and
    then asks for `now` gets every read that may still need an old file. A generator keeps
    its mark in a local variable: then it is gone when it has ended, or nobody wants more of it.
    """

    def __init__(self) -> None:
        # Whose methods are atomic, each by itself.
        self._reading: set[int] = set()
        self._numbers = count()

    def mark(self) -> Mark:
        """Count as a reader as long as what is returned is kept."""
        return Mark(self._reading, next(self._numbers))

    def now(self) -> frozenset[int]:
        """Return the reads that are going on."""
        return frozenset(self._reading.copy())

    def any_left(self, of: frozenset[int]) -> bool:
        """Return whether one of these is still going on."""
        return not of.isdisjoint(self._reading.copy())


class _HasReaders(Protocol):
    readers: Readers


S = TypeVar("S", bound=_HasReaders)
P = ParamSpec("P")
T = TypeVar("T")


def counted(
    read: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[S, P], Iterator[T]]:
    """Let a method that yields count as a reader, from its first item until it is closed."""

    def reading(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        mark = self.readers.mark()
        yield from read(self, *args, **kwargs)
        del mark

    reading.__name__, reading.__doc__ = read.__name__, read.__doc__
    return reading
