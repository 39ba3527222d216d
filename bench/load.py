"""The load generator: a process of its own, on a core of its own.

    python -m bench.load '{"host": "127.0.0.1", "port": 9310, …}'

prints one line of JSON (see `run`). The argument is a `Plan`. It is one thread around epoll with
non-blocking sockets and frames encoded beforehand, because it has to be faster than what it
measures; ``busy`` in the result says how much of its core it needed.

Closed loop: every connection keeps ``window`` requests in flight, and sends the next one when an
answer comes. Open loop: requests are meant to leave at a fixed rate, whatever the server does,
and their latency counts from that intended time; a closed loop would send nothing during a stall
and so measure it once instead of once per request. Either lasts until its rate is flat before
anything is measured.
"""

import gc
import resource
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from bench.dialect_kafka import KafkaDialect
from bench.dialect_zookeeper import MultiDialect, ZooKeeperDialect
from bench.dialects import (
    UNIFORM,
    CoordinatorDialect,
    Dialect,
    EchoDialect,
    Exchange,
    Load,
    group_of,
)
from bench.measures import NS_PER_S, NS_PER_US, due_count, intended_ns, latency_of, percentile
from bench.processes import LoadError, cpu_ns, run_plan
from bench.talk import AnswerReader, Talk, accepted, connect, decoded, encoded
from protocol.messages import CompactLogRequest

_READ_BYTES = 1 << 15  # More than a record of TLS has, so that nothing of one is left behind.
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantWriteError)
_POLL_S = 0.5
_DRAIN_S = 30
# The rate is flat when that of so many successive windows differs by no more than this share.
_FLAT_WINDOWS: Final = 3
_FLAT: Final = 0.05


DIALECTS: Final[Mapping[str, Callable[[Load], Dialect]]] = {
    "coordinator": CoordinatorDialect,
    "echo": EchoDialect,
    "kafka": KafkaDialect,
    "zookeeper": ZooKeeperDialect,
    "zookeeper_multi": MultiDialect,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    Attributes:
        dialect: A name of `DIALECTS`.
        workload: ``commit``, ``fetch`` or ``heartbeat``.
        window: Requests in flight per connection (open loop: at most).
        partitions: How many partitions a commit or fetch names.
        window_s: The warm-up looks at the rates of windows of this length.
        warmup_s: The longest that it lasts, be the rate flat or not.
        rate_per_s: All connections together; None is a closed loop.
        run: Makes the names of the groups unique.
        server_pids: Whose CPU time is to be measured along, together.
        compact: Ask our daemon to compact its log when the measured time begins, and measure until
            it has; in an open loop only. ``duration_s`` is the shortest time then.
        sleeps: An open loop that has nothing to do leaves its core to others. Without, it sends
            more exactly in time.
        kind: What the commits or fetches are like, a name of `bench.dialects.KINDS`.
        authority: PEM file: speak TLS, to whom this one has certified; "" is without TLS.
        is_cluster: *host* and *port* are of any of its nodes: each connection goes to the one that
            answers for its group. It has one only.
        size_bytes: See `Load`.
    """

    host: str
    port: int
    dialect: str
    workload: str
    connections: int
    window: int
    partitions: int
    window_s: float
    warmup_s: float
    duration_s: float
    run: str
    rate_per_s: float | None = None
    server_pids: Sequence[int] = ()
    compact: bool = False
    sleeps: bool = False
    kind: str = UNIFORM
    authority: str = ""
    is_cluster: bool = False
    size_bytes: int = 0


class Connection:
    """A non-blocking socket and the requests in flight on it.

    Attributes:
        since_ns: By slot, when its request was (meant to be) sent.
        free: Slots with nothing in flight, the longest free first.
        backlog: Intended times of requests that found no free slot.
    """

    __slots__ = ("_epoll", "_unsent", "backlog", "exchanges", "free", "reader", "since_ns", "sock")

    def __init__(
        self,
        sock: socket.socket,
        epoll: select.epoll,
        reader: AnswerReader,
        exchanges: list[Exchange],
    ) -> None:
        self.sock = sock
        self.reader = reader
        self.exchanges = exchanges
        self.since_ns = [0] * len(exchanges)
        self.free = deque(range(len(exchanges)))
        self.backlog: deque[int] = deque()
        self._epoll = epoll
        self._unsent = bytearray()
        sock.setblocking(False)
        epoll.register(sock, select.EPOLLIN)

    def send(self, slots: Sequence[int]) -> None:
        """Send the next request of each slot, in one call."""
        exchanges = self.exchanges
        if len(slots) == 1:
            data = exchanges[slots[0]].next_request()
        else:
            data = bytearray().join([exchanges[slot].next_request() for slot in slots])
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self.sock.send(data)
        except _WOULD_BLOCK:
            sent = 0
        if sent < len(data):
            self._unsent += data[sent:]
            self._epoll.modify(self.sock, select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """The socket takes bytes again."""
        try:
            del self._unsent[: self.sock.send(self._unsent)]
        except _WOULD_BLOCK:
            return
        if not self._unsent:
            self._epoll.modify(self.sock, select.EPOLLIN)

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return len(self.exchanges) - len(self.free)


class Generator:
    """Runs one plan over connections that are ready."""

    def __init__(self, plan: Plan, connections: Sequence[Connection], epoll: select.epoll) -> None:
        self._plan = plan
        self._connections = connections
        self._by_fd = {c.sock.fileno(): c for c in connections}
        self._epoll = epoll
        self._stopping = False
        self._compaction: Talk | None = None
        self.latencies_ns: list[int] = []
        self.late_ns: list[int] = []
        self.warmup_s = 0.0
        self.flat = False
        self._issued = 0

    def run(self) -> dict[str, float | None]:
        """Warm up, measure, drain; return what came of it, see `run`.

        Raises:
            LoadError: There was nothing to measure.
        """
        gc.collect()
        gc.disable()  # The generator makes no cycles; a pause of its own would be the server's.
        plan, start_ns = self._plan, time.perf_counter_ns()
        measure_ns = self._warm_up(start_ns)
        duration_ns = int(plan.duration_s * NS_PER_S)
        until_ns = measure_ns + duration_ns
        self.latencies_ns.clear()
        self.late_ns.clear()
        cpu, began_ns = time.process_time(), time.perf_counter_ns()
        server_ns = sum(map(cpu_ns, plan.server_pids))
        if plan.compact:
            self._compaction = connect(plan.host, plan.port)
            self._compaction.send(encoded([CompactLogRequest()]))
            self._epoll.register(self._compaction.sock, select.EPOLLIN)
        self._loop(start_ns, until_ns)
        # In the instant that a smoke test measures, a busy machine may answer nothing.
        given_up_ns = until_ns + _DRAIN_S * NS_PER_S
        while not self.latencies_ns and until_ns < given_up_ns:
            until_ns = time.perf_counter_ns() + duration_ns
            self._loop(start_ns, until_ns)
        seconds = (time.perf_counter_ns() - began_ns) / NS_PER_S
        busy_s = time.process_time() - cpu
        server_s = None
        if plan.server_pids:
            server_s = (sum(map(cpu_ns, plan.server_pids)) - server_ns) / NS_PER_S
        measured = len(self.latencies_ns)
        self._drain()
        gc.enable()
        if not self.latencies_ns:
            raise LoadError(f"nothing was answered in the measured time, nor in {_DRAIN_S} s more")
        # An open loop's stall at the end must not vanish: what was meant to leave counts, however
        # late it was answered. What a closed loop had in flight is left out, as at the start.
        if plan.rate_per_s is None:
            del self.latencies_ns[measured:]
        late_ns = sorted(self.late_ns)
        return {
            "requests": measured,
            "seconds": seconds,
            "warmup_s": self.warmup_s,
            "flat": self.flat,
            "rate_per_s": measured / seconds,
            **latency_of(self.latencies_ns)._asdict(),
            "wrong": sum(connection.reader.wrong for connection in self._connections),
            "unanswered": self.unanswered,
            "late_p99_us": percentile(late_ns, 0.99) / NS_PER_US if late_ns else None,
            "busy": busy_s / seconds,
            "server_busy": None if server_s is None else server_s / seconds,
            "server_cpu_us": None if server_s is None else server_s * 1e6 / max(measured, 1),
        }

    def _warm_up(self, start_ns: int) -> int:
        """Load until the rate is flat; return when that was."""
        until_ns, rates = start_ns, list[float]()
        last_ns = start_ns + int(self._plan.warmup_s * NS_PER_S)
        while until_ns < last_ns and not self.flat:
            before, began_ns = len(self.latencies_ns), until_ns
            self._loop(start_ns, until_ns + int(self._plan.window_s * NS_PER_S))
            until_ns = time.perf_counter_ns()
            rates.append((len(self.latencies_ns) - before) / (until_ns - began_ns))
            self.flat = is_flat(rates)
        self.warmup_s = (until_ns - start_ns) / NS_PER_S
        return until_ns

    def _loop(self, start_ns: int, until_ns: int) -> None:
        if self._plan.rate_per_s is None:
            self._closed(until_ns)
        else:
            self._open(start_ns, self._plan.rate_per_s, until_ns)

    def _closed(self, until_ns: int) -> None:
        now_ns = time.perf_counter_ns()
        for connection in self._connections:
            if connection.free:
                slots = list(connection.free)
                connection.free.clear()
                self._send(connection, slots, now_ns)
        while now_ns < until_ns:
            self._round(_POLL_S)
            now_ns = time.perf_counter_ns()

    def _open(self, start_ns: int, rate_per_s: float, until_ns: int) -> None:
        connections, clock = self._connections, time.perf_counter_ns
        while (now_ns := clock()) < until_ns or self._compaction is not None:
            due = due_count(start_ns, rate_per_s, now_ns)
            for index in range(self._issued, due):
                meant_ns = intended_ns(start_ns, rate_per_s, index)
                connection = connections[index % len(connections)]
                if connection.free:
                    self.late_ns.append(now_ns - meant_ns)
                    self._send(connection, [connection.free.popleft()], meant_ns)
                else:
                    connection.backlog.append(meant_ns)
            # The index runs on from warm-up to measurement: one stream without a gap.
            self._issued = due
            # epoll's own timeout counts in milliseconds, which is far too coarse.
            if self._plan.sleeps:
                wait_ns = intended_ns(start_ns, rate_per_s, due) - clock()
                select.select([self._epoll], [], [], max(wait_ns, 0) / NS_PER_S)
            self._round(0)

    def _drain(self) -> None:
        self._stopping = True
        deadline_ns = time.perf_counter_ns() + _DRAIN_S * NS_PER_S
        while self.unanswered and time.perf_counter_ns() < deadline_ns:
            self._round(_POLL_S)

    @property
    def unanswered(self) -> int:
        """Requests in flight or waiting to be sent."""
        return sum(c.in_flight + len(c.backlog) for c in self._connections)

    def _send(self, connection: Connection, slots: Sequence[int], since_ns: int) -> None:
        for slot in slots:
            connection.since_ns[slot] = since_ns
        connection.send(slots)

    def _round(self, timeout_s: float) -> None:
        """Handle what is readable; ends at once when nothing is."""
        for fd, mask in self._epoll.poll(timeout_s):
            connection = self._by_fd.get(fd)
            if connection is None:
                self._compacted()
                continue
            if mask & select.EPOLLOUT:
                connection.flush()
            if mask & ~select.EPOLLOUT:
                self._answered(connection)

    def _compacted(self) -> None:
        talk, self._compaction = self._compaction, None
        assert talk is not None
        accepted(decoded([CompactLogRequest()], talk.read(1)))
        self._epoll.unregister(talk.sock)
        talk.close()

    def _answered(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
        except ssl.SSLWantReadError:  # The rest of a record has yet to come.
            return
        now_ns = time.perf_counter_ns()
        if not data:
            raise LoadError("the server closed a connection under load")
        slots = connection.reader.feed(data)
        since_ns, latencies_ns = connection.since_ns, self.latencies_ns
        for slot in slots:
            latencies_ns.append(now_ns - since_ns[slot])
        if self._plan.rate_per_s is None and not self._stopping:
            if slots:
                self._send(connection, slots, now_ns)
            return
        connection.free.extend(slots)
        while connection.backlog and connection.free:
            meant_ns = connection.backlog.popleft()
            self._send(connection, [connection.free.popleft()], meant_ns)


def is_flat(rates: Sequence[float]) -> bool:
    """Return whether the last of these rates differ by little, and are any."""
    last = rates[-_FLAT_WINDOWS:]
    return len(last) == _FLAT_WINDOWS and max(last) - min(last) < _FLAT * max(last)


def run(plan: Plan) -> dict[str, float | None]:
    """Connect, prepare, load, read back.

    Returns:
        ``requests`` answered in ``seconds`` that were measured, after ``warmup_s`` when the rate
        was ``flat`` or not; that rate per second, and latencies. Of the whole run, answers that
        were ``wrong``, requests ``unanswered``, and ``differences``: commits that were
        acknowledged and could not be read back. How late the generator itself was (open loop;
        part of the latency). The shares of a core that the generator (near 1 in an open loop,
        which spins) and the server used (all its threads), and the server's CPU time for a
        request: of all numbers the one that other processes on the machine disturb least.

    Raises:
        LoadError: The server broke off or refused the load, or there was nothing to measure.
        OSError: No connection.
    """
    allow_descriptors(plan.connections + 64)
    load = Load(plan.workload, plan.window, plan.partitions, plan.run, plan.kind, plan.size_bytes)
    dialect = DIALECTS[plan.dialect](load)
    trusting = ssl.create_default_context(cafile=plan.authority) if plan.authority else None
    with ExitStack() as stack:
        epoll = stack.enter_context(select.epoll())
        talks, connections = [], []
        for number in range(plan.connections):
            at = _home(plan, dialect, load, number) if plan.is_cluster else (plan.host, plan.port)
            talks.append(stack.enter_context(closing(connect(*at, trusting))))
            exchanges = dialect.prepare(talks[-1], number)
            reader = dialect.reader(exchanges)
            connections.append(Connection(talks[-1].sock, epoll, reader, exchanges))
        generator = Generator(plan, connections, epoll)
        found = generator.run()
        differences = 0
        for number, talk in enumerate([] if generator.unanswered else talks):
            talk.sock.settimeout(_DRAIN_S)
            differences += dialect.differences(talk, number, connections[number].exchanges)
        return {**found, "differences": differences}


def _home(plan: Plan, dialect: Dialect, load: Load, number: int) -> tuple[str, int]:
    """Return where the group of a connection is."""
    if plan.window != 1:
        raise LoadError("the groups of a connection may be on several nodes")
    with closing(connect(plan.host, plan.port)) as talk:
        return dialect.home(talk, group_of(load, number, 0))


def allow_descriptors(count: int) -> None:
    """Raise this process's limit of open files to *count*, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


if __name__ == "__main__":
    run_plan("bench.load", Plan, run)
