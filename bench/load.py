"""The load generator: a process of its own, on a core of its own.

    python -m bench.load '{"host": "127.0.0.1", "port": 9310, …}'

prints one line of JSON (`Measured`). The argument is a `Plan`. It is one thread around epoll with
non-blocking sockets and frames encoded beforehand, because it has to be faster than what it
measures; ``busy`` in the result says how much of its core it needed.

Closed loop: every connection keeps ``window`` requests in flight, and sends the next one when an
answer comes. Open loop: requests are meant to leave at a fixed rate, whatever the server does,
and their latency counts from that intended time; a closed loop would send nothing during a stall
and so measure it once instead of once per request. Either lasts until its rate is flat before
anything is measured.
"""

import gc
import json
import resource
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Final

from bench.dialect_kafka import KafkaDialect
from bench.dialect_zookeeper import ZooKeeperDialect
from bench.dialects import (
    UNIFORM,
    CoordinatorDialect,
    Dialect,
    DialectError,
    EchoDialect,
    Exchange,
    Load,
    Reader,
)
from bench.measures import NS_PER_S, NS_PER_US, due_count, intended_ns, latency_of, percentile
from bench.processes import cpu_ns
from protocol.connection import ClientConnection
from protocol.messages import CompactLogRequest

_READ_BYTES = 1 << 15
_POLL_S = 0.5
_DRAIN_S = 30
_CONNECT_S = 30
# The rate is flat when that of so many successive windows differs by no more than this share.
_FLAT_WINDOWS: Final = 3
_FLAT: Final = 0.05


DIALECTS: Final[Mapping[str, Callable[[Load], Dialect]]] = {
    "coordinator": CoordinatorDialect,
    "echo": EchoDialect,
    "kafka": KafkaDialect,
    "zookeeper": ZooKeeperDialect,
}


class LoadError(Exception):
    """The run is worthless; the message says why."""


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
        server_pid: Whose CPU time is to be measured along; None for nobody's.
        compact: Ask our daemon to compact its log when the measured time begins, and measure until
            it has; in an open loop only. ``duration_s`` is the shortest time then.
        sleeps: An open loop that has nothing to do leaves its core to others. Without, it sends
            more exactly in time.
        kind: What the commits or fetches are like, a name of `bench.dialects.KINDS`.
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
    server_pid: int | None = None
    compact: bool = False
    sleeps: bool = False
    kind: str = UNIFORM

    def at_rate(self, rate_per_s: float, run: str, *, compact: bool = False) -> "Plan":
        """Return the open loop at this rate."""
        return replace(self, rate_per_s=rate_per_s, run=run, compact=compact)


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it.

    Attributes:
        requests: Answered in the measured time.
        seconds: That time.
        warmup_s: How long the load lasted before.
        flat: Whether the rate was flat then.
        rate_per_s: The same, per second.
        wrong: Answers of the whole run that were not the expected ones.
        unanswered: Requests of the whole run without an answer.
        differences: Commits that were acknowledged and could not be read back afterwards.
        late_p99_us: How late the generator itself was (open loop; part of the latency).
        busy: Share of a core that the generator used; near 1 in an open loop, which spins.
        server_busy: The same of the server, all its threads.
        server_cpu_us: CPU time that the server used for a request; of all numbers the one that
            other processes on the machine disturb least.
    """

    requests: int
    seconds: float
    warmup_s: float
    flat: bool
    rate_per_s: float
    p50_us: float
    p99_us: float
    max_us: float
    wrong: int
    unanswered: int
    differences: int
    late_p99_us: float | None
    busy: float
    server_busy: float | None
    server_cpu_us: float | None


class Connection:
    """A non-blocking socket and the requests in flight on it.

    Attributes:
        since_ns: By slot, when its request was (meant to be) sent.
        free: Slots with nothing in flight, the longest free first.
        backlog: Intended times of requests that found no free slot.
    """

    __slots__ = ("_epoll", "_unsent", "backlog", "exchanges", "free", "reader", "since_ns", "sock")

    def __init__(
        self, sock: socket.socket, epoll: select.epoll, reader: Reader, exchanges: list[Exchange]
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
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._unsent += data[sent:]
            self._epoll.modify(self.sock, select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """The socket takes bytes again."""
        try:
            del self._unsent[: self.sock.send(self._unsent)]
        except BlockingIOError:
            return
        if not self._unsent:
            self._epoll.modify(self.sock, select.EPOLLIN)

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return len(self.exchanges) - len(self.free)


class Compaction:
    """The request to compact the log, on a connection of its own.

    Attributes:
        over: It was answered.
    """

    def __init__(self, plan: Plan, epoll: select.epoll) -> None:
        self.over = False
        self._epoll = epoll
        self._sock = socket.create_connection((plan.host, plan.port), timeout=_CONNECT_S)
        self._protocol = ClientConnection()
        _, frame = self._protocol.send(CompactLogRequest())
        self._sock.sendall(frame)
        epoll.register(self._sock, select.EPOLLIN)

    def close(self) -> None:
        """Ask no longer."""
        self._sock.close()

    def read(self) -> None:
        """Take what has arrived.

        Raises:
            LoadError: The daemon could not compact.
        """
        data = self._sock.recv(_READ_BYTES)
        if not data:
            raise LoadError("the server closed the connection that asked for a compaction")
        for event in self._protocol.receive(data):
            response = event.response
            if error := getattr(response, "error", 0):
                raise LoadError(f"the compaction was answered with error {error}")
            self.over = True
            self._epoll.unregister(self._sock)


class Generator:
    """Runs one plan over connections that are ready."""

    def __init__(self, plan: Plan, connections: Sequence[Connection], epoll: select.epoll) -> None:
        self._plan = plan
        self._connections = connections
        self._by_fd = {c.sock.fileno(): c for c in connections}
        self._epoll = epoll
        self._stopping = False
        self._compaction: Compaction | None = None
        self.latencies_ns: list[int] = []
        self.late_ns: list[int] = []
        self.measured = 0
        self.warmup_s = 0.0
        self.flat = False
        self._issued = 0

    def run(self) -> tuple[float, float, float | None]:
        """Warm up, measure, drain.

        Returns:
            Seconds measured, own CPU seconds in them, and the server's.
        """
        start_ns = time.perf_counter_ns()
        measure_ns = self._warm_up(start_ns)
        until_ns = measure_ns + int(self._plan.duration_s * NS_PER_S)
        self.latencies_ns.clear()
        self.late_ns.clear()
        cpu, began_ns = time.process_time(), time.perf_counter_ns()
        server = _cpu_seconds(self._plan.server_pid)
        with ExitStack() as stack:
            if self._plan.compact:
                self._compaction = Compaction(self._plan, self._epoll)
                stack.callback(self._compaction.close)
            self._loop(start_ns, until_ns)
            # In the instant that a smoke test measures, a busy machine may answer nothing.
            given_up_ns = until_ns + _DRAIN_S * NS_PER_S
            while not self.latencies_ns and until_ns < given_up_ns:
                until_ns = time.perf_counter_ns() + int(self._plan.duration_s * NS_PER_S)
                self._loop(start_ns, until_ns)
        seconds = (time.perf_counter_ns() - began_ns) / NS_PER_S
        busy = time.process_time() - cpu
        after = _cpu_seconds(self._plan.server_pid)
        server_busy = None if server is None or after is None else after - server
        measured = len(self.latencies_ns)
        self._drain()
        # An open loop's stall at the end must not vanish: what was meant to leave counts, however
        # late it was answered. What a closed loop had in flight is left out, as at the start.
        if self._plan.rate_per_s is None:
            del self.latencies_ns[measured:]
        self.measured = measured
        return seconds, busy, server_busy

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
        while (now_ns := clock()) < until_ns or self._compacting:
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

    @property
    def _compacting(self) -> bool:
        return self._compaction is not None and not self._compaction.over

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
                assert self._compaction is not None
                self._compaction.read()
                continue
            if mask & select.EPOLLOUT:
                connection.flush()
            if mask & ~select.EPOLLOUT:
                self._answered(connection)

    def _answered(self, connection: Connection) -> None:
        data = connection.sock.recv(_READ_BYTES)
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


def _cpu_seconds(pid: int | None) -> float | None:
    """Return the CPU time of a process and all its threads; None if there is none."""
    try:
        return None if pid is None else cpu_ns(pid) / NS_PER_S
    except OSError:
        return None


def _connect(
    plan: Plan, dialect: Dialect, number: int, stack: ExitStack
) -> tuple[socket.socket, list[Exchange]]:
    sock = stack.enter_context(socket.create_connection((plan.host, plan.port), timeout=_CONNECT_S))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock, dialect.prepare(sock, number)


def run(plan: Plan) -> Measured:
    """Connect, prepare, load, read back.

    Raises:
        LoadError: The server broke off, or there was nothing to measure.
        DialectError: The server refused what the load asks for.
        OSError: No connection.
    """
    allow_descriptors(plan.connections + 64)
    load = Load(plan.workload, plan.window, plan.partitions, plan.run, plan.kind)
    dialect = DIALECTS[plan.dialect](load)
    with ExitStack() as stack:
        ready = [_connect(plan, dialect, number, stack) for number in range(plan.connections)]
        epoll = stack.enter_context(select.epoll())
        connections = [
            Connection(sock, epoll, dialect.reader(exchanges), exchanges)
            for sock, exchanges in ready
        ]
        generator = Generator(plan, connections, epoll)
        gc.collect()
        gc.disable()  # The generator makes no cycles; a pause of its own would be the server's.
        stack.callback(gc.enable)
        times = generator.run()
        if not generator.latencies_ns:
            raise LoadError(f"nothing was answered in the measured time, nor in {_DRAIN_S} s more")
        differences = 0
        if not generator.unanswered:
            for number, connection in enumerate(connections):
                connection.sock.settimeout(_CONNECT_S)
                differences += dialect.differences(connection.sock, number, connection.exchanges)
        return _measured(generator, connections, times, differences)


def _measured(
    generator: Generator,
    connections: Sequence[Connection],
    times: tuple[float, float, float | None],
    differences: int,
) -> Measured:
    seconds, busy_s, server_s = times
    latency = latency_of(generator.latencies_ns)
    return Measured(
        requests=generator.measured,
        seconds=seconds,
        warmup_s=generator.warmup_s,
        flat=generator.flat,
        rate_per_s=generator.measured / seconds,
        p50_us=latency.p50_us,
        p99_us=latency.p99_us,
        max_us=latency.max_us,
        wrong=sum(connection.reader.wrong for connection in connections),
        unanswered=generator.unanswered,
        differences=differences,
        late_p99_us=(
            percentile(sorted(generator.late_ns), 0.99) / NS_PER_US if generator.late_ns else None
        ),
        busy=busy_s / seconds,
        server_busy=None if server_s is None else server_s / seconds,
        server_cpu_us=None if server_s is None else server_s * 1e6 / max(generator.measured, 1),
    )


def allow_descriptors(count: int) -> None:
    """Raise this process's limit of open files to *count*, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def main() -> int:
    """Run the plan of the command line."""
    try:
        measured = run(Plan(**json.loads(sys.argv[1])))
    except (LoadError, DialectError, OSError, ValueError) as exc:
        print(f"bench.load: {exc}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
