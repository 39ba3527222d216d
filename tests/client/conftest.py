"""A network with one scripted node, and a client connected to it."""

import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio

from client import Client, connect
from tests.fakes.scripted_server import Network, ScriptedServer


class World:
    """Servers, the network between, and a way to connect."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.server = ScriptedServer()
        self.other = ScriptedServer(("node2", 9310))
        self.network = Network(nursery, [self.server, self.other])

    def connect(
        self, address: str | list[str] = "node1:9310", **options: Any
    ) -> AbstractAsyncContextManager[Client]:
        """Connect over the in-memory network, jitter seeded."""
        options.setdefault("rng", random.Random(7))
        options.setdefault("client_id", "client")
        return connect(address, open_stream=self.network.open_stream, **options)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Servers without a script."""
    async with trio.open_nursery() as nursery:
        yield World(nursery)
        nursery.cancel_scope.cancel()
