"""An ensemble of ZooKeeper in memory, as far as the log of a cluster needs one.

What it promises, and no more: transactions are atomic, ordered and checked by versions; requests of
one connection are done in order, and so are its answers; what a session reads never goes back, but
may lag behind what others wrote, until it writes itself; sessions end, and their ephemeral nodes
with them; watches are told once, before anything newer is read. A connection that breaks loses the
answers on its way, and the requests that were not done yet are dropped, or done later.

Nothing happens by itself: whoever holds an `Ensemble` and its `Line`s decides what does, and when.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from coordinator.cluster import znodes
from coordinator.cluster.engine import (
    Code,
    Connected,
    Event,
    Expired,
    Fired,
    Register,
    Reply,
    Request,
    Suspended,
)
from coordinator.cluster.znodes import (
    ANY_VERSION,
    Applied,
    Change,
    Check,
    Children,
    Contents,
    Failed,
    Failure,
    Get,
    Look,
    Make,
    Multi,
    Names,
    Odd,
    Operation,
    Remove,
    Result,
    Seen,
    Set,
    Znode,
)

_LOST = Reply(Code.LOST)
CLUSTER_ID: Final = "A" * 22


def cluster(partitions: int, journals: int, cluster_id: str = CLUSTER_ID) -> Iterator[Make]:
    """Yield all that a new cluster has, in order."""
    yield from znodes.founding(partitions, journals)
    yield Make(znodes.CLUSTER_ID, f'{{"version":1,"id":"{cluster_id}"}}'.encode())


def _nothing() -> None:
    pass


_FIRST_SESSION = 0x1000


class _Refused(Exception):
    def __init__(self, failure: Failure | None) -> None:  # None: there are znodes below it.
        super().__init__(failure)
        self.failure = failure


@dataclass
class Session:
    """One client's.

    Attributes:
        number: As the engine tells it.
        seen: How many of the transactions it has seen.
        begun_at: How many transactions there were when it began.
        ended_at: How many transactions there were when it ended, with its ephemeral nodes.
        watches: By path, the requests that are to be told.
    """

    number: int
    seen: int
    begun_at: int = 0
    ended_at: int | None = None
    data_watches: dict[str, dict[Request, None]] = field(default_factory=dict)
    child_watches: dict[str, dict[Request, None]] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self.ended_at is not None


@dataclass(frozen=True)
class _Step:
    """What one transaction did to one path; `kind` as a watch asks for it."""

    path: str
    is_made_or_removed: bool


class Ensemble:
    """The tree, as it was after each transaction.

    Attributes:
        sessions: All that there were.
        writers: Of each transaction, the number of the session.
        stirred: Called whenever there is a transaction, or a session ends.
    """

    def __init__(self, made: Iterable[Make] = ()) -> None:
        """Begin with what *made* makes."""
        # Path -> (number of the transaction, what it left), in order.
        self._histories: dict[str, list[tuple[int, Znode | None]]] = {"": [(0, Znode(b"", 0))]}
        self._children: dict[str, dict[str, None]] = {"": {}}
        self._steps: list[tuple[_Step, ...]] = []  # Of each transaction.
        self.writers: list[int] = []
        self._ephemerals: dict[int, set[str]] = {}
        self._shown_from = 0  # No server shows the tree as it was before that transaction.
        self.sessions: list[Session] = []
        self.stirred: Callable[[], None] = _nothing
        founder = self.connect()
        for make in made:
            assert self.do(founder, Multi((make,)), None) == Applied()

    @property
    def transactions(self) -> int:
        """How many there were."""
        return len(self._steps)

    def connect(self, seen: int | None = None) -> Session:
        """Begin a session that has seen so many transactions, or all."""
        number = _FIRST_SESSION + len(self.sessions)
        seen = self.transactions if seen is None else max(seen, self._shown_from)
        session = Session(number, seen, self.transactions)
        self.sessions.append(session)
        return session

    def end(self, session: Session) -> None:
        """End a session, and remove its ephemeral nodes."""
        session.ended_at = self.transactions
        paths = sorted(self._ephemerals.pop(session.number, ()))
        removed = tuple([Remove(path, {}) for path in paths if self.at(path)])
        if removed:
            self._apply(removed, session)
        self.stirred()

    def set_back(self, transactions: int) -> None:
        """Have everything as it was after *transactions*: all servers have a copy of then.

        The change is one more transaction; sessions of then live again. No client is connected.
        """
        then = {path: self.at(path, transactions) for path in self._histories}
        changed = {path: znode for path, znode in then.items() if znode != self.at(path)}
        self._steps.append(())
        self.writers.append(0)
        self._shown_from = self.transactions
        self._ephemerals.clear()
        for path, znode in changed.items():
            self._histories[path].append((self.transactions, znode))
        for path, znode in then.items():
            if znode is not None and znode.owner:
                self._ephemerals.setdefault(znode.owner, set()).add(path)
        for session in self.sessions:
            session.seen = self.transactions
            if session.begun_at > transactions:
                session.ended_at = session.ended_at or self.transactions
            elif session.ended_at is not None and session.ended_at >= transactions:
                session.ended_at = None

    def wipe(self, choose: Callable[[list[str]], str]) -> bool:
        """Remove one znode without children, which *choose* names; False if there is none."""
        paths = [path for path in self._histories if path and self.at(path) is not None]
        if paths:
            leaves = [path for path in paths if not self.names(path)]
            self._apply((Remove(choose(leaves), {}),), self.connect())
        return bool(paths)

    def at(self, path: str, seen: int | None = None) -> Znode | None:
        """Return what *path* is after so many transactions, or all; None if it isn't there."""
        history = self._histories.get(path, [])
        if seen is None:
            return history[-1][1] if history else None
        for number, znode in reversed(history):
            if number <= seen:
                return znode
        return None

    def data(self, path: str, seen: int) -> bytes:
        """Return what is in *path* after so many transactions; nothing if it isn't there."""
        znode = self.at(path, seen)
        return b"" if znode is None else znode.data

    def session(self, number: int) -> Session:
        """Return the session that is told as *number*."""
        return self.sessions[number - _FIRST_SESSION]

    def names(self, path: str, seen: int | None = None) -> tuple[str, ...] | None:
        """Return the names of its children, None if it isn't there."""
        if self.at(path, seen) is None:
            return None
        names = self._children.get(path, {})
        return tuple([name for name in names if self.at(f"{path}/{name}", seen) is not None])

    def catch_up(self, session: Session, seen: int) -> list[Request]:
        """Have a session see more; return whose watches that fires, in order."""
        fired: dict[Request, None] = {}
        while session.seen < seen:
            for step in self._steps[session.seen]:
                fired |= session.data_watches.pop(step.path, {})
                if step.is_made_or_removed:
                    parent = step.path.rpartition("/")[0]
                    fired |= session.child_watches.pop(parent, {})
            session.seen += 1
        return list(fired)

    def do(self, session: Session, operation: Operation, request: Request | None) -> Result:
        """Do one operation; what it watches is noted for *request*. Writes see everything after."""
        match operation:
            case Multi(changes):
                try:
                    self._apply(changes, session)
                except _FailedAt as failed:
                    if failed.failure is None:
                        return Odd("there are znodes below it")
                    return Failed(failed.at, failed.failure)
                return Applied()
            case Get(paths, watches):
                found = tuple([self.at(path, session.seen) for path in paths])
                if watches and found[0] is not None and request is not None:
                    session.data_watches.setdefault(paths[0], {})[request] = None
                return Contents(found)
            case Look(path):
                is_there = self.at(path, session.seen) is not None
                if not is_there and request is not None:
                    session.data_watches.setdefault(path, {})[request] = None
                return Seen(is_there)
            case Children(path, watches):
                if watches and request is not None:
                    session.child_watches.setdefault(path, {})[request] = None
                return Names(self.names(path, session.seen))

    def _apply(self, changes: tuple[Change, ...], session: Session) -> None:
        """Do all *changes* as one transaction, or raise _FailedAt and do none."""
        after: dict[str, Znode | None] = {}
        steps: list[_Step] = []
        self.writers.append(session.number)
        ephemerals: list[str] = []
        for at, change in enumerate(changes):
            try:
                steps += self._changed(change, after, session)
            except _Refused as refused:
                # A transaction that fails is one, too: whoever sent it sees all before it.
                self._steps.append(())
                self.stirred()
                raise _FailedAt(at, refused.failure) from None
            if isinstance(change, Make) and change.is_ephemeral:
                ephemerals.append(change.path)
        self._steps.append(tuple(steps))
        for path, znode in after.items():
            self._histories.setdefault(path, []).append((self.transactions, znode))
            if znode is not None:
                parent, _, name = path.rpartition("/")
                self._children.setdefault(parent, {})[name] = None
        if ephemerals:
            self._ephemerals.setdefault(session.number, set()).update(ephemerals)
        self.stirred()

    def _changed(
        self, change: Change, after: dict[str, Znode | None], session: Session
    ) -> list[_Step]:
        path = change.path
        now = after[path] if path in after else self.at(path)
        if isinstance(change, Make):
            parent = path.rpartition("/")[0]
            if now is not None:
                raise _Refused(Failure.NODE_EXISTS)
            if (after[parent] if parent in after else self.at(parent)) is None:
                raise _Refused(Failure.NO_NODE)
            owner = session.number if change.is_ephemeral else 0
            after[path] = Znode(change.data, 0, owner)
            return [_Step(path, is_made_or_removed=True)]
        if now is None:
            raise _Refused(Failure.NO_NODE)
        if isinstance(change, Remove):
            below = [f"{path}/{name}" for name in self._children.get(path, ())]
            if any(after[one] if one in after else self.at(one) for one in below):
                raise _Refused(None)
            after[path] = None
            return [_Step(path, is_made_or_removed=True)]
        if change.version not in (ANY_VERSION, now.version):
            raise _Refused(Failure.BAD_VERSION)
        if isinstance(change, Check):
            return []
        assert isinstance(change, Set)
        after[path] = Znode(change.data, now.version + 1, now.owner)
        return [_Step(path, is_made_or_removed=False)]


@dataclass(frozen=True)
class Undone:
    """A request of a connection that broke before it was done."""

    session: Session
    request: Request

    def do(self, ensemble: Ensemble) -> None:
        """Have it done now; nobody hears of it."""
        operation = znodes.operation(self.request)
        needs_session = isinstance(self.request, Register)
        if isinstance(operation, Multi) and not (needs_session and self.session.has_ended):
            ensemble.do(self.session, operation, None)


class _FailedAt(Exception):
    def __init__(self, at: int, failure: Failure | None) -> None:
        super().__init__(at, failure)
        self.at, self.failure = at, failure


@dataclass
class _Asked:
    request: Request
    done: Callable[[Reply], None]


class Line:
    """An `Engine`: a client's line to the ensemble, over connections that come and go.

    Attributes:
        session: The one in use, None before the first.
        is_connected: Whether requests go anywhere.
        stirred: Called when there is something to serve or to deliver that wasn't there before.
    """

    def __init__(self, ensemble: Ensemble, told: Callable[[Event], None]) -> None:
        """Make it, without a connection; *told* hears the events."""
        self.session: Session | None = None
        self.is_connected = False
        self.stirred: Callable[[], None] = _nothing
        self._ensemble = ensemble
        self._told = told
        self._requests: deque[_Asked] = deque()
        # Answers and events on their way back, each as what is to be called.
        self._answers: deque[tuple[_Asked | None, Callable[[], None]]] = deque()

    # --- the client's side --------------------------------------------------------------

    def submit(self, request: Request, done: Callable[[Reply], None]) -> None:
        """Have *request* done, and *done* called with the answer."""
        asked = _Asked(request, done)
        if self.is_connected:
            self._requests.append(asked)
        else:
            self._answers.append((asked, lambda: done(_LOST)))
        self.stirred()

    async def run(self) -> None:
        """Do nothing: whoever holds it decides what happens."""

    # --- what may happen ----------------------------------------------------------------

    @property
    def has_requests(self) -> bool:
        """Whether `serve` has something to do."""
        return bool(self._requests)

    def is_asked(self, kind: type[Request]) -> bool:
        """Whether a request of this kind waits for `serve`."""
        return any(isinstance(asked.request, kind) for asked in self._requests)

    @property
    def has_answers(self) -> bool:
        """Whether `deliver` has something to do."""
        return bool(self._answers)

    @property
    def is_over(self) -> bool:
        """Whether its session has ended: the server closes the connection."""
        return self.session is not None and self.session.has_ended

    @property
    def lags(self) -> bool:
        """Whether `see` has something to do."""
        return self._session().seen < self._ensemble.transactions

    def serve(self) -> None:
        """Have the next request done; its answer is on its way."""
        session, asked = self._session(), self._requests.popleft()
        if session.has_ended:
            self._requests.appendleft(asked)
            return
        operation = znodes.operation(asked.request)
        result = self._ensemble.do(session, operation, asked.request)
        if isinstance(operation, Multi):
            self.see(self._ensemble.transactions)
        reply = znodes.reply(asked.request, result)
        self._answers.append((asked, lambda: asked.done(reply)))
        self.stirred()

    def see(self, transactions: int) -> None:
        """Have the session see so many transactions, and what it watches told."""
        for request in self._ensemble.catch_up(self._session(), transactions):
            self._tell_fired(request)

    def _tell_fired(self, request: Request) -> None:
        self._answers.append((None, lambda: self._told(Fired(request))))
        self.stirred()

    def deliver(self) -> None:
        """Have the next answer, or event, reach the client."""
        self._answers.popleft()[1]()

    def drop(self, silent_ms: int = 0) -> list["Undone"]:
        """Break the connection, over which nothing had come for a while.

        Return the requests that were not done, which may be done later.
        """
        session = self._session()
        lost = [asked for asked, _ in self._answers if asked is not None]
        lost += self._requests
        undone = self.abandon()
        self.is_connected = False
        session.data_watches.clear()
        session.child_watches.clear()
        for asked in lost:
            asked.done(_LOST)
        self._told(Suspended(silent_ms))
        return undone

    def abandon(self) -> list["Undone"]:
        """Lose what is on its way, as nobody is there any more; return what was not done."""
        undone = [Undone(self._session(), asked.request) for asked in self._requests]
        self._requests.clear()
        self._answers.clear()
        return undone

    def connect(self, seen: int | None = None) -> None:
        """Connect in the session that there is, or if it has ended in a new one.

        Args:
            seen: How much a new session sees; all if None.
        """
        assert not self.is_connected
        while self._answers:  # Of requests without a connection.
            self.deliver()
        if self.session is None or self.session.has_ended:
            if self.session is not None:
                self._told(Expired())
            self.session = self._ensemble.connect(seen)
        self.is_connected = True
        self._told(Connected(self.session.number))

    def connect_anew(self, seen: int | None = None) -> None:
        """Connect in a new session, while the former one has not ended."""
        while self._answers:
            self.deliver()
        self.session = self._ensemble.connect(seen)
        self.is_connected = True
        self._told(Connected(self.session.number))

    def _session(self) -> Session:
        assert self.session is not None
        return self.session
