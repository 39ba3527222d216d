"""The load that lasts as long as a compaction."""

import socket
from dataclasses import replace
from struct import unpack_from
from threading import Event

import msgpack
import pytest

from bench import load
from bench.compacting import COMPACT_REQUEST
from bench.dialects import COMMIT
from bench.load import LoadError, Plan
from protocol.frames import RESPONSE_HEADER
from protocol.messages import Request, Response
from tests.bench.test_dialects import Shop
from tests.bench.test_fill import listening

PLAN = Plan(
    host="127.0.0.1",
    port=0,
    dialect="coordinator",
    workload=COMMIT,
    connections=3,
    window=2,
    partitions=1,
    warmup_s=0.02,
    duration_s=0.05,
    run="test",
)
COMMITS = 300


class Compactor(Shop):
    """A shop that has compacted when it has seen so many requests since it was asked."""

    def __init__(self, *, error: int = 0) -> None:
        super().__init__()
        self.error = error
        self.asked_at: int | None = None
        self.answered_at = 0
        self._over = Event()

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        response = super().answer(request)
        if self.asked_at is not None and len(self.seen) >= self.asked_at + COMMITS:
            self._over.set()
        return response

    def serve(self, sock: socket.socket) -> None:
        """Answer until the other end closes."""
        head = sock.recv(6, socket.MSG_PEEK)
        if len(head) == 6 and unpack_from(">h", head, 4) == (1011,):
            assert sock.recv(1 << 16) == COMPACT_REQUEST
            self.asked_at = len(self.seen)
            assert self._over.wait(60)
            self.answered_at = len(self.seen)
            body = msgpack.packb([self.error, None, 1, 2, 3])
            sock.sendall(RESPONSE_HEADER.pack(12 + len(body), 1, 0, -1) + body)
        else:
            super().serve(sock)


def run(shop: Compactor) -> load.Measured:
    """Measure while the shop compacts."""
    with listening(shop.serve) as port:
        plan = PLAN.at_rate(500.0, "while", compact=True)
        return load.run(replace(plan, port=port))


def test_the_load_lasts_until_the_compaction_is_over() -> None:
    """Its p99 is that of a log being compacted, all of the time and nothing but."""
    shop = Compactor()
    measured = run(shop)
    assert measured.seconds > PLAN.duration_s
    assert measured.requests >= COMMITS - 6
    assert shop.asked_at is not None
    assert (measured.wrong, measured.unanswered, measured.differences) == (0, 0, 0)


def test_a_compaction_that_failed_stops_the_run() -> None:
    """A quick error would be a short and easy compaction."""
    with pytest.raises(LoadError, match="error 1000"):
        run(Compactor(error=1000))
