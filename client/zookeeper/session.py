"""One session of ZooKeeper that carries a member's requests, over kazoo.

kazoo transfers the bytes in threads of its own. Its retries, locks, elections and self-renewing
watchers aren't used: the state machine (`client.zookeeper.membership`) decides what an answer
means, and what to do without one.

kazoo opens a new session by itself when the old one has ended. A request meant for the old session
would then create nodes in the new one, unknown to the machine. A `Session` is therefore exactly one
session: once it is over it sends nothing more, and its client is stopped. For a new session, make a
new `Session`.

One request of the machine may need several requests of ZooKeeper. Each is a generator here: it
yields kazoo's pending result, and is sent its outcome.
"""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from client.zookeeper.ensemble import LOST_ERRORS, attend, close_client
from client.zookeeper.membership import (
    Answer,
    Claim,
    ListMembers,
    ListTopics,
    ReadMember,
    ReadTopic,
    Register,
    Release,
    Request,
    Result,
)
from client.zookeeper.registrations import TOPICS, ids_path, owner_path, topic_path
from client.zookeeper.znodes import offsets_path
from protocol.partition import TopicPartition


class FetchOffsets(NamedTuple):
    """Return the contents of these partitions' offset nodes; None for a missing node."""

    partitions: tuple[TopicPartition, ...]


class PrepareOffsets(NamedTuple):
    """The same as `FetchOffsets`, after creating the directories of these partitions' topics."""

    partitions: tuple[TopicPartition, ...]


class CommitOffsets(NamedTuple):
    """Write these partitions' offsets, all or none, if this session's member node still exists.

    Nodes of *new* are created, the others overwritten. `Result.MISSING`: there is no member node.
    `Result.TAKEN`: a node of *new* exists already, or one of the others doesn't.
    """

    offsets: Mapping[TopicPartition, bytes]
    new: frozenset[TopicPartition]


OffsetsRequest = FetchOffsets | PrepareOffsets | CommitOffsets
Asked = Request | OffsetsRequest


class Opened(NamedTuple):
    """The session has begun.

    Attributes:
        timeout_ms: The granted session timeout, in ms.

    """

    timeout_ms: int


class Suspended(NamedTuple):
    """The connection is lost."""


class Resumed(NamedTuple):
    """The connection is back, and the session has survived; another server may grant less time."""

    timeout_ms: int


class Changed(NamedTuple):
    """A watch has reported a change."""


class Expired(NamedTuple):
    """The session is over. No event follows."""


class LogInRefused(NamedTuple):
    """The ensemble refuses the log-in. No event follows."""


class Answered(NamedTuple):
    """Answer to a request of the machine."""

    request: Request
    answer: Answer


class OffsetsAnswered(NamedTuple):
    """Answer to a request about offsets; *found* has the contents of their nodes."""

    request: OffsetsRequest
    answer: Answer
    found: tuple[bytes | None, ...] = ()


Event = Opened | Suspended | Resumed | Changed | Expired | LogInRefused | Answered | OffsetsAnswered

# Attempts to create a node that exists at the first look, and is gone at the next.
_TRIES: Final = 3


class _Outcome(NamedTuple):
    """Outcome of a request of kazoo: a value, or the name and the text of an error."""

    value: Any
    error: str = ""
    words: str = ""

    @classmethod
    def of(cls, found: Any) -> "_Outcome":
        error = found.exception
        if error is None:
            return cls(found.value)
        name = type(error).__name__
        return cls(None, name, f"{name} {error}".strip())

    def answer(self) -> Answer:
        """Return the answer that this outcome means for most requests."""
        if self.error == "NoNodeError":
            return Answer(Result.MISSING)
        if self.error in LOST_ERRORS:
            return Answer(Result.UNKNOWN)
        if self.error:
            return Answer(Result.REFUSED, why=self.words)
        match self.value:
            case list(names):
                return Answer(Result.DONE, names=tuple(names))
            case (bytes() | None as data, _):
                return Answer(Result.DONE, data=data or b"")
            case _:
                return Answer(Result.DONE)


# Generators: yield kazoo's pending results, are sent their outcomes, return the answer.
_Doing = Generator[Any, _Outcome, Answer]
_Whole = Generator[Any, _Outcome, Answered | OffsetsAnswered]
_Offsets = Generator[Any, _Outcome, OffsetsAnswered]


class Session:
    """One session, from its beginning to its end.

    Args:
        client: A client of kazoo that isn't started.
        group: The group whose nodes are read and written.
        consumer_id: This member's id.
        post: Called with each event, in threads of kazoo; the events of one thread are in order.

    """

    def __init__(
        self, client: Any, group: str, consumer_id: str, post: Callable[[Event], object]
    ) -> None:
        self._client = client
        self._group = group
        self._consumer_id = consumer_id
        self._post = post
        # Reentrant, as kazoo may call back at once, in the thread that holds it.
        self._sending = threading.RLock()
        self._is_over = False
        self._was_connected = False
        self._granted_ms = 0
        self._directories: dict[str, Any] = {}
        attend(client, self._take_granted)
        client.add_listener(self._state_changed)
        client.start_async()

    def send(self, request: Asked) -> None:
        """Send a request; an event with its answer follows, unless the session ends first."""
        doing = self._do(request)
        self._go_on(request, doing, None)

    async def close(self) -> None:
        """End the session and all threads of its client; no event follows.

        If the caller is cancelled, a thread finishes the work.
        """
        with self._sending:
            self._is_over = True
        await trio.to_thread.run_sync(close_client, self._client, abandon_on_cancel=True)

    # --- In threads of kazoo's ---

    def _take_granted(self, timeout_ms: int) -> None:
        self._granted_ms = timeout_ms

    def _state_changed(self, state: str) -> None:
        if state == "SUSPENDED":
            self._tell(Suspended())
        elif state == "CONNECTED":
            self._tell((Resumed if self._was_connected else Opened)(self._granted_ms))
            self._was_connected = True
        else:
            refused = self._client.client_state == "AUTH_FAILED"
            self._tell(LogInRefused() if refused else Expired(), is_last=True)

    def _tell(self, event: Event, *, is_last: bool = False) -> None:
        with self._sending:
            if not self._is_over:
                self._is_over = is_last
                self._post(event)

    def _watch(self, event: Any) -> None:
        if event.type != "NONE":  # "NONE": an event of the connection, not of a node.
            self._tell(Changed())

    def _go_on(self, request: Asked, doing: _Whole, done: _Outcome | None) -> None:
        """Take the last outcome, and send the next request, unless the session is over."""
        with self._sending:
            if self._is_over:
                return
            try:
                waiting = next(doing) if done is None else doing.send(done)
            except StopIteration as end:
                self._post(end.value)
                return
            waiting.rawlink(lambda found: self._go_on(request, doing, _Outcome.of(found)))

    # --- What each request takes ---

    def _do(self, request: Asked) -> _Whole:
        client = self._client
        match request:
            case FetchOffsets() | PrepareOffsets() | CommitOffsets():
                return (yield from self._do_offsets(request))
            case Register(data):
                answer = yield from self._register(data)
            case Claim(tp, thread):
                path = owner_path(self._group, tp)
                answer = yield from self._make(path, thread.encode(), watches=True)
            case Release(tp):
                answer = yield from self._delete(owner_path(self._group, tp))
            case ListMembers():
                path = ids_path(self._group)
                answer = yield from self._watched(client.get_children_async, path, Result.DONE)
            case ListTopics():
                answer = yield from self._watched(client.get_children_async, TOPICS, Result.DONE)
            case ReadMember(name):
                answer = (yield client.get_async(ids_path(self._group, name))).answer()
            case ReadTopic(name):
                path = topic_path(name)
                answer = yield from self._watched(client.get_async, path, Result.MISSING)
        return Answered(request, answer)

    def _do_offsets(self, request: OffsetsRequest) -> _Offsets:
        match request:
            case FetchOffsets(partitions):
                return (yield from self._fetch(request, partitions))
            case PrepareOffsets(partitions):
                for topic in sorted({tp.topic for tp in partitions}):
                    path = offsets_path(self._group, topic)
                    made = yield self._client.ensure_path_async(path)
                    if made.error:
                        return OffsetsAnswered(request, made.answer())
                return (yield from self._fetch(request, partitions))
            case CommitOffsets():
                return OffsetsAnswered(request, (yield from self._commit(request)))

    def _register(self, data: bytes) -> _Doing:
        # In a wrong chroot this consumer would be alone in its group, and never see a topic.
        top = yield self._client.exists_async("/")
        if top.error:
            return top.answer()
        if top.value is None:
            return Answer(Result.REFUSED, why=f"there is no znode {self._client.chroot}")
        path = ids_path(self._group, self._consumer_id)
        return (yield from self._make(path, data, watches=False))

    def _make(self, path: str, data: bytes, *, watches: bool) -> _Doing:
        for _ in range(_TRIES):
            made = yield self._client.create_async(path, data, ephemeral=True)
            if made.error == "NoNodeError":
                above = yield self._directory(path.rpartition("/")[0])
                if above.error:
                    return above.answer()
                continue
            if made.error != "NodeExistsError":
                return made.answer()
            answer = yield from self._compare(path, data, watches=watches)
            if answer.result is not Result.MISSING:
                return answer
        return Answer(Result.TAKEN)

    def _compare(self, path: str, data: bytes, *, watches: bool) -> _Doing:
        """Return who owns the existing node; `Result.MISSING` if it is gone."""
        found = yield self._client.get_async(path, self._watch if watches else None)
        if found.error:
            return found.answer()
        there, stat = found.value
        if there == data and self._is_own(stat):
            return Answer(Result.DONE)
        if not stat.ephemeralOwner:
            return Answer(Result.PERSISTENT, data=there or b"")
        return Answer(Result.TAKEN)

    def _directory(self, path: str) -> Any:
        """Create a directory, with one request for all partitions claimed at the same time."""
        making = self._directories.get(path)
        if making is None or making.ready():
            making = self._directories[path] = self._client.ensure_path_async(path)
        return making

    def _delete(self, path: str) -> _Doing:
        found = yield self._client.get_async(path)
        if found.error == "NoNodeError":
            return Answer(Result.DONE)
        if found.error:
            return found.answer()
        if not self._is_own(found.value[1]):
            return Answer(Result.DONE)
        gone = yield self._client.delete_async(path)
        return Answer(Result.DONE) if gone.error == "NoNodeError" else gone.answer()

    def _watched(self, read: Callable[..., Any], path: str, if_missing: Result) -> _Doing:
        """Read a node by *read*, and leave a watch on it, even if it is missing."""
        while True:
            found = yield read(path, self._watch)
            if found.error != "NoNodeError":
                return found.answer()
            there = yield self._client.exists_async(path, self._watch)
            if there.error:
                return there.answer()
            if there.value is None:
                return Answer(if_missing)

    def _fetch(self, request: OffsetsRequest, partitions: tuple[TopicPartition, ...]) -> _Offsets:
        waiting = [self._client.get_async(offsets_path(self._group, *tp)) for tp in partitions]
        found = []
        for one in waiting:
            outcome = yield one
            if outcome.error and outcome.error != "NoNodeError":
                return OffsetsAnswered(request, outcome.answer())
            found.append(None if outcome.error else outcome.value[0] or b"")
        return OffsetsAnswered(request, Answer(Result.DONE), tuple(found))

    def _commit(self, commit: CommitOffsets) -> _Doing:
        """Write all in one transaction, which also checks that the member node exists."""
        transaction = self._client.transaction()
        transaction.check(ids_path(self._group, self._consumer_id), 0)
        for tp, data in commit.offsets.items():
            write = transaction.create if tp in commit.new else transaction.set_data
            write(offsets_path(self._group, *tp), data)
        done = yield transaction.commit_async()
        if done.error:
            return done.answer()
        match _first_error(done.value):
            case None:
                return Answer(Result.DONE)
            case 0, "NoNodeError" | "BadVersionError":
                return Answer(Result.MISSING)
            case _, "NoNodeError" | "NodeExistsError":
                return Answer(Result.TAKEN)
            case _, error:
                return Answer(Result.REFUSED, why=error)

    def _is_own(self, stat: Any) -> bool:
        session, _ = self._client.client_id
        return bool(stat.ephemeralOwner == session)


# Errors that a transaction reports for the operations before and after the failed one.
_UNDONE: Final = frozenset({"RolledBackError", "RuntimeInconsistency"})


def _first_error(results: Sequence[Any]) -> tuple[int, str] | None:
    """Return the index and the error of a transaction's failed operation; None if none failed."""
    for at, result in enumerate(results):
        if isinstance(result, Exception) and (name := type(result).__name__) not in _UNDONE:
            return at, name
    return None
