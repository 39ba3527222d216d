"""Requests that wait for their answer, as the runtime sees them.

The server makes a `Call` per request and hands it down; the core keeps it as an opaque
token. An answer is prepared when it is decided and sent, once, when it may be seen. A request
over several shards is split: each shard gets a `Part`, and the last one to be sent answers the
call. What takes long is done by a task, and waits for it in a `CallQueue`.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from math import inf
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import trio
from msgspec import Struct

from coordinator.group.core import NOBODY, Caller
from coordinator.runtime.bulkhead import is_fatal
from protocol import messages as m
from protocol.messages import error_response

T = TypeVar("T")

# Of work that is put off; the clients' requests have twice as much at a time.
SLICE_S: Final = 0.001
# Times as long as a slice took: a fifth of the event loop is for such work while clients ask.
REST: Final = 4
# So long at most: a process that is stopped in a slice has not worked in that time.
REST_MAX_S: Final = 1.0
# How long to wait before another look at those who take no answers.
BLOCKED_S: Final = 0.02


class Asker(Protocol):
    """Who asks; his calls wait in one line."""

    @property
    def takes_answers(self) -> bool:
        """Whether he has taken enough of his answers to be given more."""

    @property
    def caller(self) -> Caller:
        """How groups know him."""

    @property
    def listener(self) -> int:
        """The number of the listener by which he came, from 0."""

    def spend(self, worked_s: float) -> None:
        """Note that his requests took so much of the event loop outside of his turns."""

    def refusal(self) -> int:
        """Return the error of all that is not decided yet, once the log-in has ended; 0 before."""

    def judge(self, request: m.Request) -> Any:
        """Return the `Verdict` on a part of what he asked, by the rules of now."""

    def sees_group(self, name: str) -> bool:
        """Say whether a group may be shown to him in a list."""

    def sees_topic(self, name: str) -> bool:
        """Say whether a topic may be shown to him in a list."""


class Token(Protocol):
    """What the gate needs of whoever waits."""

    def prepare(self, answer: Any, leader_epoch: int, error: int | None = None) -> Any:
        """Return the answer in the form in which it can wait to be sent.

        *error* is the first one in it, None if nobody has looked.
        """

    def renew(self, prepared: Any, leader_epoch: int) -> Any:
        """Return what `prepare` returned, as of another epoch of the same leader."""

    def send(self, prepared: Any) -> None:
        """Send what `prepare` returned."""

    def fail(self, error: int, leader_epoch: int) -> None:
        """Answer with *error* in the request's full shape."""


class Call(Struct, eq=False):
    """One request that expects one answer. The server's sessions have their own kind.

    Attributes:
        is_narrowed: Of the topics that it names `Asker.sees_topic` may refuse some.
    """

    is_narrowed: ClassVar[bool] = False
    request: m.Request

    @property
    def asker(self) -> Asker:
        """Who asks; by itself a call stands for somebody whom nobody restricts."""
        return self

    @property
    def takes_answers(self) -> bool:
        """Whoever asks, he takes them."""
        return True

    @property
    def caller(self) -> Caller:
        """Nobody that groups know."""
        return NOBODY

    @property
    def listener(self) -> int:
        """The first one."""
        return 0

    def spend(self, worked_s: float) -> None:
        """Nobody counts it."""

    def sees_group(self, name: str) -> bool:  # noqa: ARG002  whoever asks
        """Show him all."""
        return True

    def sees_topic(self, name: str) -> bool:  # noqa: ARG002  as above
        """Show him all."""
        return True

    def refusal(self) -> int:
        """Let everything be decided."""
        return 0

    def judge(self, request: m.Request) -> Any:  # noqa: ARG002  as above
        """Refuse him nothing."""
        return None

    def prepare(self, answer: m.Response, leader_epoch: int, error: int | None = None) -> Any:
        """Return the answer packed."""
        raise NotImplementedError

    def renew(self, prepared: Any, leader_epoch: int) -> Any:
        """Return what was packed, as of another epoch where it says one."""
        del leader_epoch
        return prepared

    def send(self, prepared: Any) -> None:
        """Send what was packed."""
        raise NotImplementedError

    def attempt(self, decide: Callable[[], object]) -> None:
        """Call *decide*, which answers, unless nobody waits any more; a bug in it is answered."""
        raise NotImplementedError

    def failed(self, exc: Exception) -> None:
        """Answer that work for this request had a bug."""
        raise NotImplementedError

    def hold_next(self) -> None:
        """Let the client's next requests wait until this is answered, unless it is already."""

    def is_refused(self) -> bool:
        """Say whether the client's log-in has ended; the call is then answered with that."""
        error = self.asker.refusal()
        if error:
            self.fail(error, -1)
        return bool(error)

    def drop(self) -> None:
        """Answer nobody: whoever decides ends the connection."""
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

    def renew(self, prepared: tuple[Any, int], leader_epoch: int) -> tuple[Any, int]:
        """Return the same share, as of another epoch."""
        return prepared[0], leader_epoch

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
    """Calls that wait for a task, which takes one after the other, each with what it needs.

    Who asks much waits for himself: every asker has a line of his own, and they take turns. Whom
    too many answers wait for gets no more of them until he has taken some.
    """

    def __init__(self) -> None:
        self._lines: dict[Asker, deque[tuple[Call, T]]] = {}  # The next one first.
        self._length = 0
        self._wanted = trio.Event()

    def __len__(self) -> int:
        """Return how many wait."""
        return self._length

    def __iter__(self) -> Iterator[tuple[Call, T]]:
        """Yield those that wait."""
        return chain.from_iterable(self._lines.values())

    def has(self, asker: Asker) -> bool:
        """Say whether a call of *asker* waits."""
        return asker in self._lines

    def is_full_for(self, call: Call, most: int) -> bool:
        """Say whether *most* wait; who has nothing here yet finds a place all the same."""
        return self._length >= most and call.asker in self._lines

    def put(self, call: Call, item: T) -> None:
        """Have *call* wait for its turn."""
        self._lines.setdefault(call.asker, deque()).append((call, item))
        self._length += 1
        self._wanted.set()

    async def take(self) -> tuple[Call, T]:
        """Return the next one, as soon as there is one."""
        while (asker := next((a for a in self._lines if a.takes_answers), None)) is None:
            self._wanted = trio.Event()
            # Nobody tells when a peer takes answers again.
            with trio.move_on_after(BLOCKED_S if self._lines else inf):
                await self._wanted.wait()
        line = self._lines.pop(asker)
        found = line.popleft()
        if line:
            self._lines[asker] = line
        self._length -= 1
        return found

    async def run(self, work: Callable[[Call, T], Awaitable[None]]) -> None:
        """Do *work* for one after the other until cancelled; what it raises ends that one.

        A call whose client has lost its log-in in the line is refused.
        """
        while True:
            call, item = await self.take()
            try:
                if not call.is_refused():
                    await work(call, item)
            except Exception as exc:
                if is_fatal(exc):
                    raise
                call.failed(exc)
            del call, item  # Don't keep them alive until the next one comes.

    def refuse_all(self, error: int) -> None:
        """Answer what waits with *error*."""
        waiting = list(self)
        self._lines.clear()
        self._length = 0
        for call, _ in waiting:
            call.fail(error, -1)


class Share:
    """Rests after work that is put off, for so much longer, while clients ask something."""

    def __init__(self, requests: Callable[[], int], clock_s: Callable[[], float]) -> None:
        """Make it.

        Args:
            requests: A number that grows whenever clients ask something.
            clock_s: It measures the work.
        """
        self._requests = requests
        self._clock_s = clock_s
        self._seen = requests()
        self._since_s = 0.0

    def begin(self) -> None:
        """Work begins."""
        self._since_s = self._clock_s()

    def worked_s(self) -> float:
        """Return for how long it has gone on."""
        return self._clock_s() - self._since_s

    async def pause(self) -> None:
        """Return when more may be done."""
        worked_s = self.worked_s()
        seen, self._seen = self._seen, self._requests()
        rest_s = min(REST * worked_s, REST_MAX_S)
        await trio.sleep(0 if seen == self._seen else rest_s)

    async def pause_for(self, asker: Asker) -> None:
        """Do the same, and let *asker* pay for the work."""
        asker.spend(self.worked_s())
        await self.pause()


class Slices:
    """Answers what takes long a slice at a time, so that everybody else has turns in between.

    One request is answered after the other, the askers in turn. What fits into one slice is
    answered at once while nothing else waits. Under a virtual clock that is everything. After each
    further slice it rests, if clients have asked something meanwhile.

    Attributes:
        served: The client whose request is being answered; None while none is.
    """

    def __init__(self, clock_s: Callable[[], float], requests: Callable[[], int]) -> None:
        """Make it.

        Args:
            clock_s: It measures the slices.
            requests: A number that grows whenever clients ask something.
        """
        self._clock_s = clock_s
        self._share = Share(requests, clock_s)
        self._queue: CallQueue[Iterator[None]] = CallQueue()
        self.served: Asker | None = None

    def submit(self, call: Call, steps: Iterator[None]) -> bool:
        """Take all *steps*, which answer *call* in the end; say whether that is done already."""
        if self.served is None and not self._queue and self._is_done(steps):
            return True
        self._queue.put(call, steps)
        return False

    def has(self, asker: Asker) -> bool:
        """Say whether a request of *asker* is not done yet."""
        return asker is self.served or self._queue.has(asker)

    def refuse_all(self, error: int) -> None:
        """Answer what waits with *error*."""
        self._queue.refuse_all(error)

    def _is_done(self, steps: Iterator[None]) -> bool:
        """Take steps for a slice; say whether there are no more."""
        until_s = self._clock_s() + SLICE_S
        return all(self._clock_s() < until_s for _ in steps)

    async def run(self) -> None:
        """Answer until cancelled."""
        await self._queue.run(self._answer)

    async def _answer(self, call: Call, steps: Iterator[None]) -> None:
        """Take all *steps*; those that nobody wants any more end here, with what they hold."""
        self.served, goes_on = call.asker, True

        def go_on() -> None:
            nonlocal goes_on
            goes_on = not self._is_done(steps)

        try:
            while goes_on:
                goes_on = False  # Stays so if the client is gone, or after a bug.
                self._share.begin()
                call.attempt(go_on)
                await self._share.pause_for(call.asker)
        finally:
            self.served = None
