"""Several nodes of a cluster on one machine: each a process of its own, started and watched over.

Theory of operation
===================

One process computes on one core, so a machine with several has several nodes. The supervisor is
to them what systemd is to a daemon, by the same means: each node has a datagram socket of its own
(NOTIFY_SOCKET), on which it says that it is ready and, again and again, that its event loop turns.
What all of them say comes to one word for the service manager of the supervisor itself.

`Supervisor` decides, and is told the time; `supervise` has the processes, sockets and signals:

    started -> ready -> ended -> (a while later) started
       |         |
       +---------+---> given up: it was refused, and the next start would find the same

A node that has said anything, also that it loads, is ended if nothing more comes for a minute; one
that has never said anything after five, as its event loop does not turn yet. One that ends is
started again, later and later. Its standard input ends with the supervisor, which it takes for
SIGTERM: no node is left behind by a supervisor that was killed. Nodes are process groups of their
own, so what is typed on a terminal reaches the supervisor alone.
"""

import math
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import trio

from coordinator.config import Address, ConfigError, Settings
from coordinator.log.errors import EXIT_CORRUPT, EXIT_REFUSED
from coordinator.runtime import stop_signals
from coordinator.runtime.children import open_program
from coordinator.server.service_manager import ServiceManager
from coordinator.server.terminal import log_event

# A wrong command line, a damaged log, refused settings: the next start would find the same.
FINAL_STATUSES: Final = frozenset({2, EXIT_CORRUPT, EXIT_REFUSED})
RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 60.0
# A node that was ready for so long has not failed in a row.
CALM_S: Final = 60.0
# An event loop that hangs so long is ended.
WATCHDOG_S: Final = 60.0
# Longest silence of a start, in seconds: all of its imports may come from a slow disk.
FIRST_WORD_S: Final = 300.0
# So much longer than its drain takes at most a node may need to end.
GRACE_S: Final = 10.0
_NOT_STARTED: Final = 1
_KILLED: Final = 128  # What a shell adds to the number of the signal.
_WORDS_BYTES: Final = 4_096


# --- what each node is set to --------------------------------------------------------------


def settings_of_nodes(settings: Settings, count: int) -> list[dict[str, str]]:
    """Return what differs from *settings* for each of *count* nodes: its id, and its ports.

    The first one has what is set; for each of the others all of that is one more. Port 0 stays 0.

    Raises:
        ConfigError: Two nodes would have the same port, or one none that can be.
    """
    found = []
    owner_of: dict[int, str] = {}
    for number in range(count):
        node_id = settings.node_id + number
        listeners = _counted_up(settings.listener_addresses(), number)
        advertised = _counted_up(settings.advertised_addresses(), number)
        http = _counted_up(settings.http_addresses(), number)
        for name, addresses in ("listeners", listeners), ("http.listeners", http):
            for address in addresses:
                _take(address.port, f"{name} of node {node_id}", owner_of)
        found.append(
            {
                "node.id": str(node_id),
                "listeners": _joined(listeners),
                "advertised.listeners": _joined(advertised),
                "http.listeners": _joined(http),
            }
        )
    return found


def _counted_up(addresses: Sequence[Address], number: int) -> list[Address]:
    return [one._replace(port=one.port + number if one.port else 0) for one in addresses]


def _take(port: int, owner: str, owner_of: dict[int, str]) -> None:
    if port > 0xFFFF:
        raise ConfigError(f"{owner}: there is no port {port}; each node's are one more")
    if port in owner_of:
        raise ConfigError(
            f"{owner}: port {port} is one of the {owner_of[port]} already; each node's ports are "
            "one more than those of the node before"
        )
    if port:
        owner_of[port] = owner


def _joined(addresses: Sequence[Address]) -> str:
    return ",".join(f"{address.scheme}://{address}" for address in addresses)


# --- what is to be done --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start the process of a node."""

    node: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a signal to the process of a node."""

    node: int
    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Log an event."""

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the service manager."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class End:
    """No node is left: end with this status."""

    status: int


Effect = Start | Send | Tell | Report | End


class _State(Enum):
    STARTED = auto()
    READY = auto()
    WAITING = auto()  # To be started again.
    OVER = auto()


_RUNS: Final = frozenset({_State.STARTED, _State.READY})


@dataclass(slots=True)
class _Node:
    """One of them.

    Attributes:
        since_s: When it came into its state.
        due_s: When something is to be done about it: to start it, or to end it.
        failures: Ends in a row.
        status: Of its last end.
    """

    state: _State = _State.WAITING
    since_s: float = 0.0
    due_s: float = 0.0
    failures: int = 0
    status: int = 0


class Supervisor:
    """Decides; see the module. Times are monotonic."""

    def __init__(self, nodes: Sequence[int], *, stop_timeout_s: float) -> None:
        """Watch over *nodes*, by their ids, none of which is started yet."""
        self._nodes = {node: _Node() for node in nodes}
        self._stop_timeout_s = stop_timeout_s
        self._stops = 0  # How often a stop was asked for.
        self._is_told_ready = False
        self._said = ""
        self._out: list[Effect] = []

    def next_due_s(self) -> float:
        """Return when `tick` has something to do."""
        return min((node.due_s for node in self._nodes.values()), default=math.inf)

    def tick(self, now_s: float) -> list[Effect]:
        """Do what is due: start nodes, and end those that hang."""
        for number, node in self._nodes.items():
            if node.due_s > now_s:
                continue
            if node.state is _State.WAITING:
                self._enter(node, _State.STARTED, now_s, FIRST_WORD_S)
                self._out.append(Start(number))
            elif node.state in _RUNS:
                node.due_s = math.inf  # Its end is what comes next.
                self._out += [Tell("node.hangs", {"node": number}), Send(number, signal.SIGKILL)]
        return self._done()

    def heard(self, number: int, words: Sequence[str], now_s: float) -> list[Effect]:
        """Take note of what a node says, as it would to systemd."""
        node = self._nodes[number]
        if node.state not in _RUNS:
            return []
        if not self._stops:
            if "READY=1" in words:
                self._enter(node, _State.READY, now_s)
            if "RELOADING=1" in words:
                self._enter(node, _State.STARTED, now_s)
            node.due_s = now_s + WATCHDOG_S  # A load goes on beside the loop that says so.
        self._out += [Report((word,)) for word in words if word.startswith("EXTEND_TIMEOUT_USEC=")]
        return self._done()

    def ended(
        self, number: int, status: int, now_s: float, reason: str | None = None
    ) -> list[Effect]:
        """Take note of the end of a process; a signal that killed it is below 0.

        With a *reason* there was none: it could not be started.
        """
        node = self._nodes[number]
        node.status = _KILLED - status if status < 0 else status
        if self._stops == 1 and status == -signal.SIGTERM:
            node.status = 0  # The node had not come to its first line.
        told: dict[str, Any] = {"node": number, "exit_status": node.status}
        if self._stops:
            self._enter(node, _State.OVER, now_s)
        elif node.status in FINAL_STATUSES:
            self._enter(node, _State.OVER, now_s)
            self._out.append(Tell("node.given_up", told))
        else:
            was_calm = node.state is _State.READY and now_s - node.since_s >= CALM_S
            node.failures = 0 if was_calm else node.failures
            wait_s = min(RETRY_FIRST_S * 2**node.failures, RETRY_LAST_S)
            node.failures += 1
            self._enter(node, _State.WAITING, now_s, wait_s)
            told["retry_in_ms"] = round(wait_s * 1000)
            if reason is not None:
                told["reason"] = reason
            self._out.append(Tell("node.ended", told))
        return self._done()

    def reload(self, now_s: float) -> list[Effect]:
        """Have all nodes read their settings again; they are ready when they say so."""
        self._is_told_ready = False
        for number, node in self._nodes.items():
            if node.state in _RUNS:
                self._enter(node, _State.STARTED, now_s, node.due_s - now_s)
                self._out.append(Send(number, signal.SIGHUP))
        return self._done()

    def stop(self, now_s: float) -> list[Effect]:
        """Have all nodes drain and end; a second time, at once."""
        self._stops += 1
        for number, node in self._nodes.items():
            if node.state in _RUNS:
                node.due_s = now_s + self._stop_timeout_s
                self._out.append(Send(number, signal.SIGTERM))
            else:
                self._enter(node, _State.OVER, now_s)
        return self._done()

    def _enter(self, node: _Node, state: _State, now_s: float, due_in_s: float = math.inf) -> None:
        if node.state is not state:
            node.since_s = now_s
        node.state, node.due_s = state, now_s + due_in_s

    def _done(self) -> list[Effect]:
        states = [node.state for node in self._nodes.values()]
        running = [state for state in states if state in _RUNS]
        if all(state is _State.OVER for state in states):
            self._out.append(End(max(node.status for node in self._nodes.values())))
        elif not self._stops:
            said = f"STATUS={states.count(_State.READY)} of {len(states)} nodes are ready"
            is_ready = bool(running) and set(running) == {_State.READY}
            words = ["READY=1"] if is_ready and not self._is_told_ready else []
            self._is_told_ready |= is_ready
            if words or said != self._said:
                self._out.append(Report((*words, said)))
            self._said = said
        out, self._out = self._out, []
        return out


# --- the processes -------------------------------------------------------------------------


@dataclass(slots=True)
class _Processes:
    """What the decisions are done to.

    Attributes:
        commands: By node, what follows ``group-coordinator``.
        early: By node, the signal for a process that is not there yet.
    """

    commands: Mapping[int, Sequence[str]]
    manager: ServiceManager
    folder: Path
    nursery: trio.Nursery
    supervisor: Supervisor
    running: dict[int, trio.Process] = field(default_factory=dict)
    early: dict[int, int] = field(default_factory=dict)
    status: int | None = None
    kick: trio.Event = field(default_factory=trio.Event)

    def do(self, effects: Sequence[Effect]) -> None:
        """Do all of it; a start is begun."""
        for effect in effects:
            match effect:
                case Start(node):
                    self.nursery.start_soon(self._run, node)
                case Send(node, number):
                    if node in self.running:
                        self.running[node].send_signal(number)
                    else:
                        self.early[node] = number
                case Tell(name, fields):
                    log_event(name, fields)
                case Report(words):
                    self.manager.tell(*words)
                case End(status):
                    self.status = status
        self.kick.set()

    async def _run(self, node: int) -> None:
        """Run the process of *node* to its end."""
        path = self.folder / str(node)
        with ExitStack() as files:
            try:
                path.unlink(missing_ok=True)
                bound = files.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                bound.bind(str(path))
                ear = trio.socket.from_stdlib_socket(bound)
                process = await self._started(node, str(path))
            except OSError as exc:  # Too little memory, too many files: the others go on.
                self.early.pop(node, None)
                self._ended(node, _NOT_STARTED, str(exc))
                return
            self.running[node] = process
            log_event("node.started", {"node": node, "pid": process.pid})
            if node in self.early:
                process.send_signal(self.early.pop(node))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, node, ear)
                try:
                    status = await process.wait()
                finally:
                    del self.running[node]
                    assert process.stdin is not None
                    await process.stdin.aclose()
                nursery.cancel_scope.cancel()
        self._ended(node, status)

    def _ended(self, node: int, status: int, reason: str | None = None) -> None:
        self.do(self.supervisor.ended(node, status, trio.current_time(), reason))

    async def _started(self, node: int, notify_socket: str) -> trio.Process:
        return await open_program(
            "coordinator",
            *self.commands[node],
            process_group=0,
            env={
                "NOTIFY_SOCKET": notify_socket,
                "WATCHDOG_USEC": str(round(WATCHDOG_S * 1e6)),
            },
        )

    async def _hear(self, node: int, ear: trio.socket.SocketType) -> None:
        while True:
            words = (await ear.recv(_WORDS_BYTES)).decode(errors="replace").splitlines()
            self.do(self.supervisor.heard(node, words, trio.current_time()))

    async def run_clock(self) -> int:
        """Do what is due, until no node is left; return the exit status."""
        while self.status is None:
            self.do(self.supervisor.tick(trio.current_time()))
            self.kick = trio.Event()
            with trio.move_on_at(self.supervisor.next_due_s()):
                await self.kick.wait()
        return self.status


async def supervise(
    commands: Mapping[int, Sequence[str]],
    manager: ServiceManager,
    read_again: Callable[[], None],
    stop_timeout_s: float,
) -> int:
    """Run nodes until all have ended, by SIGTERM or SIGINT; return the exit status.

    Args:
        commands: By the id of each node, what follows ``group-coordinator`` to serve it.
        manager: Of this process.
        read_again: Has this process take over new settings; at SIGHUP, which all nodes get, too.
        stop_timeout_s: So long a drain takes at most.
    """
    supervisor = Supervisor(list(commands), stop_timeout_s=stop_timeout_s + GRACE_S)
    with tempfile.TemporaryDirectory(prefix="group-coordinator-") as folder:
        async with trio.open_nursery() as nursery:
            processes = _Processes(commands, manager, Path(folder), nursery, supervisor)
            nursery.start_soon(manager.feed)
            nursery.start_soon(_obey_signals, processes, read_again)
            status = await processes.run_clock()
            nursery.cancel_scope.cancel()
    return status


async def _obey_signals(processes: _Processes, read_again: Callable[[], None]) -> None:
    supervisor, manager = processes.supervisor, processes.manager
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        if stop_signals.have_come():
            processes.do(supervisor.stop(trio.current_time()))
        async for number in signals:
            if number == signal.SIGHUP:
                manager.reloading()
                read_again()
                processes.do(supervisor.reload(trio.current_time()))
            else:
                manager.stopping()
                processes.do(supervisor.stop(trio.current_time()))
