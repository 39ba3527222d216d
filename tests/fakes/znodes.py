"""Znodes in memory, in place of `client.zookeeper.ensemble.Ensemble`."""

from collections.abc import Callable, Sequence

from client.exceptions import CoordinatorUnavailable
from client.zookeeper.znodes import (
    Create,
    Failed,
    Found,
    Read,
    Reply,
    Request,
    Set,
    Status,
    Written,
)


def carried_out(nodes: dict[str, tuple[bytes, int]], request: Request) -> Reply:
    """Do one request as ZooKeeper does it, and return what it says."""
    there = nodes.get(request.path)
    match request:
        case Create(path, data):
            if there is not None:
                return Status.EXISTS
            nodes[path] = data, 0
            return Written(0)
        case _ if there is None:
            return Status.MISSING
        case Read():
            return Found(*there)
        case Set(path, data, version):
            if there[1] != version:
                return Status.CHANGED
            nodes[path] = data, version + 1
            return Written(version + 1)


class Znodes:
    """Any number of clients may use it, each under `Ensemble`'s methods.

    Attributes:
        nodes: What is there: data and version by path.
        asked: Every request, in order.
        before: Called before each round of requests; it may change anything, or raise.
        lost: Of so many of the next requests the reply is lost, after they were done.
        refused: Why a path is refused.
        is_away: Nobody answers.

    """

    name = "ZooKeeper at fake"

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self.asked: list[Request] = []
        self.before: Callable[[], object] = lambda: None
        self.lost = 0
        self.refused: dict[str, str] = {}
        self.is_away = False
        self.is_closed = False

    def put(self, path: str, data: bytes) -> None:
        """Have somebody else write a znode."""
        _, version = self.nodes.get(path, (b"", -1))
        self.nodes[path] = data, version + 1

    def text(self, path: str) -> str | None:
        """Return what is in a znode, None if there is none."""
        return self.nodes[path][0].decode() if path in self.nodes else None

    def ask(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        """Do them all."""
        self._begin()
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        self.asked.append(request)
        if request.path in self.refused:
            return Failed(self.refused[request.path])
        reply = carried_out(self.nodes, request)
        if self.lost:
            self.lost -= 1
            return Status.LOST
        return reply

    def read(self, paths: Sequence[str], timeout_s: float) -> list[Found | Failed | Status]:
        """Return what is there."""
        replies = self.ask([Read(path) for path in paths], timeout_s)
        return [reply for reply in replies if not isinstance(reply, Written)]

    def children(
        self, paths: Sequence[str], timeout_s: float
    ) -> list[Sequence[str] | Failed | Status]:
        """Return the names below."""
        self._begin()
        found: list[Sequence[str] | Failed | Status] = []
        for path in paths:
            below = [one for one in self.nodes if one.startswith(f"{path}/")]
            names = sorted({one.removeprefix(f"{path}/").split("/")[0] for one in below})
            refusal = self.refused.get(path)
            found.append(Failed(refusal) if refusal else names or Status.MISSING)
        return found

    def sync(self, timeout_s: float) -> None:
        """Nothing lags here."""
        self._begin()

    def close(self) -> None:
        """Note it."""
        self.is_closed = True

    def _begin(self) -> None:
        self.before()
        if self.is_away:
            raise CoordinatorUnavailable(f"{self.name}: no server answered in time")
