"""ZooKeeper in memory, as far as consumers of old and `client.zookeeper` use it.

Each request is done at once and whole, in the order in which it comes. What is ephemeral goes with
its session. A watch fires once.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

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
from client.zookeeper.session import (
    Answered,
    Asked,
    Changed,
    CommitOffsets,
    Event,
    Expired,
    FetchOffsets,
    OffsetsAnswered,
    OffsetsRequest,
    Opened,
    PrepareOffsets,
    Resumed,
    Suspended,
)
from client.zookeeper.znodes import offsets_path
from protocol.partition import TopicPartition

DONE, TAKEN, MISSING = Answer(Result.DONE), Answer(Result.TAKEN), Answer(Result.MISSING)
UNKNOWN = Answer(Result.UNKNOWN)


class Node(NamedTuple):
    """A znode; *session* is its maker's where it is ephemeral."""

    data: bytes
    session: int | None = None


class Ensemble:
    """The znodes, and how long a session lives. *watcher* is told of each watch that fires."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.watcher: Callable[[int], object] = lambda _session: None
        self.session_timeout_ms = 6_000  # What it grants, whatever was asked for.
        self._sessions = 0
        self._watches: defaultdict[str, set[int]] = defaultdict(set)

    def open_session(self) -> int:
        """Return the number of a new session."""
        self._sessions += 1
        return self._sessions

    def end_session(self, session: int) -> None:
        """Delete what the session has made."""
        for watchers in self._watches.values():
            watchers.discard(session)
        for path in [path for path, node in self.nodes.items() if node.session == session]:
            self.delete(path)

    def create(self, path: str, data: bytes, session: int | None = None) -> bool:
        """Make a node; return whether there was none."""
        if path in self.nodes:
            return False
        self.put(path, data, session)
        return True

    def put(self, path: str, data: bytes, session: int | None = None) -> None:
        """Make a node, or overwrite it."""
        is_new = path not in self.nodes
        self.nodes[path] = Node(data, session)
        self._fire(path)
        if is_new:
            self._fire(path.rpartition("/")[0])

    def delete(self, path: str) -> None:
        """Delete a node if it is there."""
        if self.nodes.pop(path, None) is not None:
            self._fire(path)
            self._fire(path.rpartition("/")[0])

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the nodes in a directory."""
        return tuple(one.rpartition("/")[2] for one in self.nodes if one.rpartition("/")[0] == path)

    def watch(self, path: str, session: int) -> None:
        """Tell the session once of the next change of a node, or of what is in a directory."""
        self._watches[path].add(session)

    def owner(self, group: str, tp: TopicPartition) -> Node | None:
        """Return the owner's node of a partition."""
        return self.nodes.get(owner_path(group, tp))

    def _fire(self, path: str) -> None:
        for session in sorted(self._watches.pop(path, ())):
            self.watcher(session)


class Registry:
    """One session, as what carries a member's requests."""

    def __init__(self, ensemble: Ensemble, group: str, consumer_id: str) -> None:
        self.ensemble = ensemble
        self.session = ensemble.open_session()
        self._group = group
        self._own_path = ids_path(group, consumer_id)

    def do(self, request: Request) -> Answer:
        """Do what is asked."""
        match request:
            case Register(data):
                return self._make(self._own_path, data)
            case ListMembers():
                return self._list(ids_path(self._group))
            case ReadMember(name):
                return self._read(ids_path(self._group, name))
            case ListTopics():
                return self._list(TOPICS)
            case ReadTopic(name):
                self.ensemble.watch(topic_path(name), self.session)
                return self._read(topic_path(name))
            case Release(tp):
                path = owner_path(self._group, tp)
                if self._is_own(path):
                    self.ensemble.delete(path)
                return DONE
            case Claim(tp, thread):
                path = owner_path(self._group, tp)
                answer = self._make(path, thread.encode())
                if answer is not DONE:
                    self.ensemble.watch(path, self.session)
                return answer

    def is_member(self) -> bool:
        """Say what a fenced commit checks: this session's node is among the members."""
        return self._is_own(self._own_path)

    def _is_own(self, path: str) -> bool:
        node = self.ensemble.nodes.get(path)
        return node is not None and node.session == self.session

    def _make(self, path: str, data: bytes) -> Answer:
        if self.ensemble.create(path, data, self.session):
            return DONE
        node = self.ensemble.nodes[path]
        if node.session is None:
            return Answer(Result.PERSISTENT, data=node.data)
        return DONE if node == Node(data, self.session) else TAKEN

    def _read(self, path: str) -> Answer:
        node = self.ensemble.nodes.get(path)
        return MISSING if node is None else Answer(Result.DONE, data=node.data)

    def _list(self, path: str) -> Answer:
        self.ensemble.watch(path, self.session)
        return Answer(Result.DONE, names=self.ensemble.children(path))


class FakeSession:
    """A session whose answers come at once, or not at all while its connection is lost."""

    def __init__(
        self, ensemble: Ensemble, group: str, consumer_id: str, post: Callable[[Event], object]
    ) -> None:
        self.registry = Registry(ensemble, group, consumer_id)
        self._group = group
        self._post = post
        self._waiting: list[Asked] = []
        self._is_cut_off = False
        post(Opened(ensemble.session_timeout_ms))

    def send(self, request: Asked) -> None:
        """Do it, and answer."""
        if self._is_cut_off:
            self._waiting.append(request)
        elif isinstance(request, CommitOffsets | FetchOffsets | PrepareOffsets):
            self._post(self._offsets(request))
        else:
            self._post(Answered(request, self.registry.do(request)))

    def changed(self) -> None:
        """Tell of a watch that fired."""
        if not self._is_cut_off:
            self._post(Changed())

    def cut_off(self) -> None:
        """Lose the connection."""
        self._is_cut_off = True
        self._post(Suspended())

    def resume(self) -> None:
        """Be connected again, with the same session; what was sent meanwhile is lost."""
        self._is_cut_off = False
        for request in self._waiting:
            if isinstance(request, CommitOffsets | FetchOffsets | PrepareOffsets):
                self._post(OffsetsAnswered(request, UNKNOWN))
            else:
                self._post(Answered(request, UNKNOWN))
        self._waiting.clear()
        self._post(Resumed(self.registry.ensemble.session_timeout_ms))

    def expire(self) -> None:
        """Have the ensemble end the session, and tell of it."""
        self.end()
        self._post(Expired())

    def end(self) -> None:
        """Have the ensemble end the session, of which nobody is told."""
        self.registry.ensemble.end_session(self.registry.session)

    async def close(self) -> None:
        """End the session."""
        self.end()

    def _offsets(self, request: OffsetsRequest) -> OffsetsAnswered:
        nodes = self.registry.ensemble.nodes
        if isinstance(request, CommitOffsets):
            return OffsetsAnswered(request, self._commit(request))
        found = [nodes.get(offsets_path(self._group, *tp)) for tp in request.partitions]
        return OffsetsAnswered(request, DONE, tuple(node and node.data for node in found))

    def _commit(self, commit: CommitOffsets) -> Answer:
        if not self.registry.is_member():
            return MISSING
        ensemble = self.registry.ensemble
        paths = {offsets_path(self._group, *tp): tp for tp in commit.offsets}
        if any((path in ensemble.nodes) == (tp in commit.new) for path, tp in paths.items()):
            return TAKEN
        for path, tp in paths.items():
            ensemble.put(path, commit.offsets[tp])
        return DONE
