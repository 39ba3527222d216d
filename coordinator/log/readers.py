"""Who is reading the journal, so that no file is removed under anybody."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Readers:
    """The reads that are going on, in any thread.

    A read enters before it looks at the manifest, so whoever has replaced the manifest and then
    asks for `now` gets every read that may still need an old file.
    """

    def __init__(self) -> None:
        self._reading: set[object] = set()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count as a reader as long as the block lasts."""
        mark = object()
        self._reading.add(mark)
        try:
            yield
        finally:
            self._reading.discard(mark)

    def now(self) -> frozenset[object]:
        """Return the reads that are going on."""
        return frozenset(self._reading.copy())

    def any_left(self, of: frozenset[object]) -> bool:
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
        with self.readers.one_more():
            yield from read(self, *args, **kwargs)

    update_wrapper(reading, read)
    return reading
