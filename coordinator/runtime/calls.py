"""Requests that wait for their answer, as the runtime sees them.

The server makes a `Call` per request and hands it down; the core keeps it as an opaque
token. An answer is prepared when it is decided and sent, once, when it may be seen. A request
over several shards is split: each shard gets a `Part`, and the last one to be sent answers the
call. What takes long is done by a task, and waits for it in a `CallQueue`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, Generic, Protocol, TypeVar

import trio
from msgspec import Struct

from coordinator.group.core import Caller
from protocol import messages as m
from protocol.messages import error_response

T = TypeVar("T")

_NOBODY: Final = Caller("", "")


class Token(Protocol):
    """What the gate needs of whoever waits."""

    def prepare(self, answer: Any, leader_epoch: int, error: int | None = None) -> Any:
        """Return the answer in the form in which it can wait to be sent.

        *error* is the first one in it, None if nobody has looked.
        """

    def send(self, prepared: Any) -> None:
        """Send what `prepare` returned."""

    def fail(self, error: int, leader_epoch: int) -> None:
        """Answer with *error* in the request's full shape."""


class Call(Struct, eq=False):
    """One request that expects one answer. The server's sessions have their own kind."""

    request: m.Request

    @property
    def caller(self) -> Caller:
        """Who asks."""
        return _NOBODY

    def sees_topic(self, name: str) -> bool:  # noqa: ARG002  whoever asks
        """Say whether a topic may be shown in a list."""
        return True

    def prepare(self, answer: m.Response, leader_epoch: int, error: int | None = None) -> Any:
        """Return the answer packed."""
        raise NotImplementedError

    def send(self, prepared: Any) -> None:
        """Send what was packed."""
        raise NotImplementedError

    def attempt(self, decide: Callable[[], None]) -> None:
        """Call *decide*, which answers, unless nobody waits any more; a bug in it is answered."""
        raise NotImplementedError

    def resolve(self, answer: m.Response, leader_epoch: int) -> None:
        """Send the answer at once."""
        self.send(self.prepare(answer, leader_epoch))

    def fail(self, error: int, leader_epoch: int) -> None:
        """Send the request's full shape around *error*."""
        self.resolve(error_response(self.request, error), leader_epoch)


class Part:
    """One shard's share of a call; `fail` knows the shape of this share."""

    __slots__ = ("_failure", "_gather", "_index")

    def __init__(self, gather: "Gather", index: int, failure: Callable[[int], Any]) -> None:
        self._gather = gather
        self._index = index
        self._failure = failure

    def prepare(self, answer: Any, leader_epoch: int, _error: int | None = None) -> tuple[Any, int]:
        """Return the share as it is: the whole is packed when all of it is there."""
        return answer, leader_epoch

    def send(self, prepared: tuple[Any, int]) -> None:
        """Put the share in its place."""
        self._gather.put(self._index, *prepared)

    def fail(self, error: int, leader_epoch: int) -> None:
        """Put the failed share in its place."""
        self._gather.put(self._index, self._failure(error), leader_epoch)


class Gather:
    """Waits for all shares of a call, in the order asked."""

    def __init__(self, done: Callable[[list[Any], int], None]) -> None:
        self._done = done
        self._shares: list[Any] = []
        self._missing = 0
        self._epoch = -1
        self._sealed = False

    def part(self, failure: Callable[[int], Any]) -> Part:
        """Return the token for the next share; *failure* makes its answer out of an error."""
        self._shares.append(None)
        self._missing += 1
        return Part(self, len(self._shares) - 1, failure)

    def seal(self) -> None:
        """All parts are handed out; answer as soon as they are back."""
        self._sealed = True
        self._finish()

    def put(self, index: int, share: Any, leader_epoch: int) -> None:
        """Take one share."""
        self._shares[index] = share
        self._missing -= 1
        # The header's epoch speaks for one group only.
        self._epoch = leader_epoch if len(self._shares) == 1 else -1
        self._finish()

    def _finish(self) -> None:
        if self._sealed and self._missing == 0:
            self._done(self._shares, self._epoch)


def gather_lists(call: Call, answer: Callable[[tuple[Any, ...]], m.Response]) -> Gather:
    """Return what joins the lists of all shards; *answer* makes the response out of them.

    A share that is a number is an error, and the first one is the answer to all of *call*.
    """

    def done(shares: list[Any], _epoch: int) -> None:
        for share in shares:
            if isinstance(share, int):
                call.fail(share, -1)
                return
        call.resolve(answer(tuple(chain.from_iterable(shares))), -1)

    return Gather(done)


class CallQueue(Generic[T]):
    """Calls that wait for a task, which takes one after the other, each with what it needs."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Call, T]] = deque()
        self._wanted = trio.Event()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[tuple[Call, T]]:
        """Yield those that wait, the next one first."""
        return iter(self._waiting)

    def put(self, call: Call, item: T) -> None:
        """Have *call* wait behind the others."""
        self._waiting.append((call, item))
        self._wanted.set()

    async def take(self) -> tuple[Call, T]:
        """Return the next one, as soon as there is one."""
        while not self._waiting:
            self._wanted = trio.Event()
            await self._wanted.wait()
        return self._waiting.popleft()

    def refuse_all(self, error: int) -> None:
        """Answer what waits with *error*."""
        waiting, self._waiting = self._waiting, deque()
        for call, _ in waiting:
            call.fail(error, -1)
