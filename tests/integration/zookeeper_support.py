"""One real ZooKeeper, and what tests put there."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.peers import ZOOKEEPER, missing, peer_serving
from client.zookeeper.ensemble import Ensemble
from client.zookeeper.settings import ZooKeeper
from client.zookeeper.znodes import Create, Found, Set

ANSWER_S = 30.0

needs_zookeeper = pytest.mark.skipif(
    missing("zookeeper") is not None, reason=f"no ZooKeeper: {missing('zookeeper')}"
)


class Server:
    """A server that listens at *address*; `ensemble` is a connection of the test's own."""

    def __init__(self, address: str, pid: int, ensemble: Ensemble) -> None:
        self.address = address
        self.ensemble = ensemble
        self._pid = pid

    def put(self, nodes: Mapping[str, bytes]) -> None:
        """Write znodes, whatever was there."""
        found = self.ensemble.read(list(nodes), ANSWER_S)
        requests = [
            Set(path, data, there.version) if isinstance(there, Found) else Create(path, data)
            for (path, data), there in zip(nodes.items(), found, strict=True)
        ]
        self.ensemble.ask(requests, ANSWER_S)

    def text(self, path: str) -> str | None:
        """Return what is in a znode, None if there is none."""
        (found,) = self.ensemble.read([path], ANSWER_S)
        return found.data.decode() if isinstance(found, Found) else None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have it answer nobody."""
        os.kill(self._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._pid, signal.SIGCONT)


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[Server]:
    """Run a server."""
    with peer_serving(ZOOKEEPER, folder, core=None) as running:
        settings = ZooKeeper(running.address, 30_000, 30_000)
        with Ensemble(settings) as ensemble:
            yield Server(running.address, running.pid, ensemble)
