"""Start and stop the daemon: the logs outermost, sessions inside them, the door innermost.

Start: take the addresses, open and recover the log (the leader epoch rises and is on disk), open
the door ("listening"), load what is there, or find the cluster and read what is in it ("ready").
Stop: close the door, unload every shard, which answers what is parked, wait for the last flush,
write the marker of a clean stop. The clients that are still connected see their connection close
after their last answer.
"""

import base64
import gc
import resource
import secrets
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog
import trio

from coordinator.config import Address, ConfigError, Settings
from coordinator.group.core import GroupConfig
from coordinator.group.records import RecordError, UnknownRecord
from coordinator.group.totals import Totals
from coordinator.log.directory import OsDirectory
from coordinator.log.errors import EXIT_CORRUPT, EXIT_REFUSED, EXIT_UNREACHABLE, LogError
from coordinator.log.format import SECRET_BYTES, epoch_by_clock
from coordinator.log.journal import Journal
from coordinator.runtime import stop_signals
from coordinator.runtime.compactor import Compaction, RunChild, compact_in_child
from coordinator.runtime.coordination import Coordination, EmbeddedCoordination, Leader
from coordinator.runtime.environment import Environment, wall_clock_ms
from coordinator.runtime.flusher import DiskThread, Mailbox
from coordinator.runtime.folder import Folder
from coordinator.runtime.logs import Store
from coordinator.runtime.node import Node
from coordinator.runtime.poller import Poller
from coordinator.runtime.telemetry import Tee, Telemetry, count
from coordinator.server.authorization import Authorizer
from coordinator.server.descriptors import Room
from coordinator.server.dispatch import SERVER_SOFTWARE
from coordinator.server.gatekeeper import REFUSALS, LogIn
from coordinator.server.handshakes import Handshakes, TlsListener
from coordinator.server.reload import Reload
from coordinator.server.server import Server
from coordinator.server.service_manager import ServiceManager
from coordinator.server.session import NO_DESCRIPTORS, Sessions
from coordinator.server.terminal import Bar, LogOutput, log_event
from coordinator.server.transport import Listener, SocketListener, listen

if TYPE_CHECKING:
    from coordinator.http.entry import Entry
    from coordinator.security.log_ins import LogIns
    from coordinator.security.tls import Certificates

log: Final = structlog.get_logger()

# Replaced certificates, tokens and keys are in force after twice this long.
FILES_PERIOD_S: Final = 5.0
EXIT_CANNOT_LISTEN: Final = 75
GC_THRESHOLD: Final = 50_000
# Wait for the interpreter's lock until a thread asks for it, in seconds; the holder then waits
# until that thread has it. Each system call of the event loop gives the lock up and takes it
# back within microseconds: that wakes a waiting thread too late, and its wait begins anew. So a
# thread gets the lock only if the loop holds it for longer than this (and the kernel's timer slack,
# 50 us) between two calls. Beside HTTP the loop seldom holds it for 0.5 ms, and flushes starved.
SWITCH_INTERVAL_S: Final = 0.00005
# Requests that come closer than this are waited for without trio. It is the least that epoll waits.
STAY_S: Final = 0.001
_CLUSTER_ID_BYTES: Final = 16  # 22 characters of base64.


def new_cluster_id() -> str:
    """Return 22 characters of URL-safe base64, as Kafka's cluster ids."""
    return base64.urlsafe_b64encode(secrets.token_bytes(_CLUSTER_ID_BYTES)).rstrip(b"=").decode()


def real_environment(telemetry: Telemetry, emit_event: Tee) -> Environment:
    """Return the clock, the ids and the threads of the real world."""
    poller = Poller(STAY_S, clock_s=time.perf_counter)
    mailbox = Mailbox(poller.watch)
    disk = DiskThread("disk", mailbox.put)
    return Environment(
        poller=poller,
        wall_clock_ms=wall_clock_ms,
        new_uuid=lambda: str(uuid.uuid4()),
        emit_event=emit_event,
        run_blocking=disk.run,
        run_reading=DiskThread("log-reader", mailbox.put).run,
        submit=disk.submit,
        after_load=gc.freeze,
        metrics={
            "process_cpu_ms": lambda: time.process_time() * 1000,
            # Linux counts in KiB.
            "process_peak_memory_bytes": lambda: (
                1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            ),
        },
        telemetry=telemetry,
        clock_s=time.perf_counter,
    )


def make_folder(
    settings: Settings,
    journal: Journal,
    environment: Environment,
    run_child: RunChild,
) -> Folder:
    """Return what keeps *journal*, compacted by *run_child*."""
    return Folder(
        journal,
        environment,
        reserve_bytes=settings.storage_reserve_bytes,
        segment_bytes=settings.offsets_topic_segment_bytes,
        max_log_bytes=settings.max_log_bytes,
        compaction=Compaction(
            run_child,
            is_automatic=settings.log_cleaner_enable,
            min_cleanable_ratio=settings.log_cleaner_min_cleanable_ratio,
            delete_retention_ms=settings.log_cleaner_delete_retention_ms,
        ),
    )


def make_node(settings: Settings, store: Store, environment: Environment) -> Node:
    """Return the node whose logs *store* keeps."""
    return Node(
        store=store,
        environment=environment,
        group_config=group_config(settings),
        commit_timeout_ms=settings.offsets_commit_timeout_ms,
        reload_min_interval_ms=settings.partition_reload_min_interval_ms,
        totals=Totals(limits_of(settings), has_principals=settings.has_authentication),
    )


def limits_of(settings: Settings) -> dict[str, int]:
    """Return how much of each resource a node may have in all."""
    return {name: getattr(settings, f"max_{name}") for name in Totals.RESOURCES}


def group_config(settings: Settings) -> GroupConfig:
    """Return the part of the settings that groups live by."""
    minutes = settings.offsets_retention_minutes
    names = [field.name for field in fields(GroupConfig) if hasattr(settings, field.name)]
    return GroupConfig(
        **{name: getattr(settings, name) for name in names},
        offsets_retention_ms=-1 if minutes < 0 else minutes * 60_000,
        ownership_check=settings.group_commit_ownership_check,
        max_response_bytes=settings.response_max_bytes,
        max_assignments_bytes=settings.sync_request_max_bytes,
    )


class Console(NamedTuple):
    """What the daemon was started from, and where it tells how it goes.

    Attributes:
        read_settings: Reads the settings again, as the start did.
        room: Of the process, for connections.
    """

    bar: Bar
    output: LogOutput
    read_settings: Callable[[], Settings]
    manager: ServiceManager
    room: Room


class Logs(Protocol):
    """What keeps the logs of this process: a folder of its own, or a cluster.

    Attributes:
        store: The node's.
        coordination: Knows who leads what.
        leader_epoch: Of the whole node; None if each log has its own.
    """

    @property
    def store(self) -> Store:
        """See the class."""

    @property
    def coordination(self) -> Coordination:
        """See the class."""

    @property
    def leader_epoch(self) -> int | None:
        """See the class."""

    def on_secret(self, take: Callable[[bytes], None]) -> None:
        """Have *take* called with what nobody else knows, now or as soon as it is known."""

    def apply(self, settings: Settings) -> None:
        """Take over what may change."""

    def close(self, *, clean: bool) -> None:
        """The node is gone; *clean*: it was drained."""


class FolderLogs:
    """A data folder: see `Logs`."""

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        endpoints: tuple[tuple[str, int], ...],
        environment: Environment,
        leader_epoch_at_least: int,
    ) -> None:
        """Open and recover it. Raises LogError, OSError."""
        self._journal = journal = Journal(
            OsDirectory(data_dir, time.perf_counter, time.sleep),
            num_partitions=settings.offsets_topic_num_partitions,
            segment_bytes=settings.offsets_topic_segment_bytes,
            node_id=settings.node_id,
            new_cluster_id=new_cluster_id,
            new_secret=partial(secrets.token_bytes, SECRET_BYTES),
            leader_epoch_at_least=max(
                leader_epoch_at_least, epoch_by_clock(environment.wall_clock_ms())
            ),
            cluster_id=settings.cluster_id,
        )
        for name, details in journal.recovery_events:
            log_event(name, details)
        run_child = partial(compact_in_child, data_dir)
        self.store = make_folder(settings, journal, environment, run_child)
        leader = Leader(settings.node_id, endpoints, journal.leader_epoch)
        self.coordination = EmbeddedCoordination(leader)
        self.leader_epoch = journal.leader_epoch

    def on_secret(self, take: Callable[[bytes], None]) -> None:
        """Pass what is in the folder."""
        take(self._journal.key.secret)

    def apply(self, settings: Settings) -> None:
        """Keep so much room from now on."""
        self.store.keep_free(settings.storage_reserve_bytes, settings.max_log_bytes)

    def close(self, *, clean: bool) -> None:
        """Close it; the next start knows whether in good order."""
        with suppress(LogError):  # Nothing was lost: the next start recovers as after a crash.
            self._journal.close(clean=clean)


async def serve(
    settings: Settings, data_dir: Path | None, console: Console, *, leader_epoch_at_least: int = 0
) -> int:
    """Run the daemon until SIGTERM or SIGINT; return the process's exit status.

    A node of a cluster has no data folder.

    The addresses come first: a port that is taken must not leave a new data folder behind. A client
    that connects before a folder's log is open waits; before a cluster is found, it is answered 15.
    """
    try:
        certificates = load_certificates(settings)
        log_ins = load_log_ins(settings)
    except ConfigError as exc:
        log.critical("refused", reason=str(exc))
        return EXIT_REFUSED
    if unused := settings.unused():
        log.warning("settings.unused", names=list(unused))
    addresses = (*settings.listener_addresses(), *settings.http_addresses())
    listeners: list[SocketListener] = []
    telemetry = Telemetry()
    tee = Tee(log_event, telemetry.event)
    environment = real_environment(telemetry, tee)
    logs: Logs | int
    try:
        # One that fails leaves those before it in the list, to be closed.
        listeners.extend(listen(address.host, address.port) for address in addresses)
    except OSError as exc:
        failed = addresses[len(listeners)]
        log.critical("refused", reason=f"can't listen on {failed}: {exc}")
        logs = EXIT_CANNOT_LISTEN
    else:
        told = _addresses_told(settings, listeners)
        logs = _opened(settings, data_dir, told, environment, leader_epoch_at_least)
    if isinstance(logs, int):
        for listener in listeners:
            listener.close()
        return logs
    return await _serve_logs(
        settings, logs, listeners, certificates, log_ins, console, environment, tee
    )


def load_certificates(settings: Settings) -> "Certificates | None":
    """Return what listeners with TLS need, None without one. Raises ConfigError."""
    if not settings.has_tls:
        return None
    from coordinator.security.tls import Certificates  # noqa: PLC0415 - as with HTTP below

    return Certificates(settings, log_event, wall_clock_ms)


def load_log_ins(settings: Settings) -> "LogIns | None":
    """Return what clients log in by, None where nobody has to. Raises ConfigError."""
    if not any(address.has_log_in for address in settings.listener_addresses()):
        return None
    from coordinator.security.log_ins import LogIns  # noqa: PLC0415 - as with HTTP below

    return LogIns(settings, log_event)


def make_log_ins(log_ins: "LogIns | None", node: Node) -> Callable[[], LogIn] | None:
    """Return what begins the log-in of a connection, by what *node* knows of users."""
    return None if log_ins is None else log_ins.over(node.registry.core.users)


def make_authorizer(settings: Settings, node: Node) -> Authorizer:
    """Return what knows who may do what on *node*."""
    registry = node.registry.core
    return Authorizer(
        registry.rules,
        is_on=settings.has_authentication,
        super_users=settings.super_user_names(),
        allow_everyone=settings.allow_everyone_if_no_acl_found,
        is_registered=lambda topic: bool(registry.registry.partition_count(topic)),
    )


def _opened(
    settings: Settings,
    data_dir: Path | None,
    told: Sequence[Address],
    environment: Environment,
    leader_epoch_at_least: int,
) -> Logs | int:
    """Return the logs, or the exit status if they can't be opened."""
    try:
        if data_dir is None:
            from coordinator.server.cluster import ClusterLogs  # noqa: PLC0415 - as with HTTP

            return ClusterLogs(settings, told, environment, new_cluster_id)
        endpoints = tuple((address.host, address.port) for address in told)
        return FolderLogs(settings, data_dir, endpoints, environment, leader_epoch_at_least)
    except ConfigError as exc:
        log.critical("refused", reason=str(exc))
        return EXIT_REFUSED
    except LogError as exc:
        log.critical("refused", reason=str(exc))
        return exc.exit_status
    except OSError as exc:
        log.critical("refused", reason=f"the data folder {data_dir} can't be used: {exc.strerror}")
        return EXIT_REFUSED


async def _serve_logs(
    settings: Settings,
    logs: Logs,
    listeners: list[SocketListener],
    certificates: "Certificates | None",
    log_ins: "LogIns | None",
    console: Console,
    environment: Environment,
    tee: Tee,
) -> int:
    environment.metrics["log_lines_dropped_total"] = lambda: console.output.printer.dropped
    node = make_node(settings, logs.store, environment)
    server = Server(
        node=node,
        environment=environment,
        settings=settings,
        coordination=logs.coordination,
        max_connections=console.room.max_connections(settings),
        authorizer=make_authorizer(settings, node),
        begin_log_in=make_log_ins(log_ins, node),
    )
    if log_ins is not None:
        logs.on_secret(log_ins.take_secret)
    manager = console.manager
    addresses = (*settings.listener_addresses(), *settings.http_addresses())
    native = len(settings.listener_addresses())
    doors = list[Listener](listeners)
    watched = [files for files in (certificates, log_ins) if files is not None]

    def reload() -> None:
        manager.reloading()
        read_again()
        for files in watched:
            files.reload()
        if node.started:
            manager.ready()

    applied = partial(_apply, settings, logs, node, server, console.room)
    read_again = Reload(settings, console.read_settings, console.output, applied)
    clean = False
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run)
            nursery.start_soon(environment.telemetry.watch_stalls)
            nursery.start_soon(console.output.printer.watch)
            for files in watched:
                nursery.start_soon(_watch, files)
            if certificates is not None:
                doors = start_tls(
                    nursery,
                    addresses,
                    listeners,
                    native,
                    certificates,
                    server.sessions,
                    environment,
                    console.room.handshakes,
                )
            nursery.start_soon(server.run, doors[:native], with_log_in(doors, addresses))
            if doors[native:]:
                _start_http(
                    nursery,
                    settings,
                    doors[native:],
                    node,
                    server,
                    environment,
                    tee,
                    log_ins,
                    console.room.http,
                )
            _tell_listening(addresses, listeners, native, logs)
            nursery.start_soon(manager.feed)
            nursery.start_soon(_load, node, console)
            await _wait_for_stop_signal(reload)
            log.info("stopping")
            manager.stopping()
            clean = await _drain(node, server, listeners, settings.shutdown_timeout_ms)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        return _exit_status_of(failures)
    finally:
        logs.close(clean=clean)
    log.info("stopped", clean=clean)
    return 0


def _apply(settings: Settings, logs: Logs, node: Node, server: Server, room: Room) -> None:
    """Tell those who keep a copy of *settings* that may change."""
    logs.apply(settings)
    if node.started:
        node.check_storage()
    node.totals.limits = limits_of(settings)
    node.reloader.min_interval_ms = settings.partition_reload_min_interval_ms
    server.sessions.max_connections = room.max_connections(settings)


def start_tls(
    nursery: trio.Nursery,
    addresses: Sequence[Address],
    listeners: Sequence[Listener],
    native: int,
    certificates: "Certificates",
    sessions: Sessions,
    environment: Environment,
    at_most: int,
) -> list[Listener]:
    """Return the doors: the listeners themselves, or with TLS before them.

    The first *native* ones are the clients', the others HTTP's. *at_most* handshakes go on at a
    time.
    """
    handshakes = Handshakes(
        environment=environment,
        identities=certificates,
        warn=sessions.warn,
        at_most=at_most,
        clock_s=time.thread_time,
    )
    no_room_for_http = partial(
        count, environment.telemetry.http_connections_refused, NO_DESCRIPTORS
    )
    doors: list[Listener] = list(listeners)
    for number, address in enumerate(addresses):
        if address.is_tls:
            no_room = sessions.has_no_room if number < native else no_room_for_http
            doors[number] = TlsListener(listeners[number], handshakes, no_room)
    environment.metrics["certificate_left_ms"] = lambda: certificates.left_ms
    nursery.start_soon(handshakes.run, [door for door in doors if isinstance(door, TlsListener)])
    return doors


def _tell_listening(
    addresses: Sequence[Address], listeners: Sequence[SocketListener], native: int, logs: Logs
) -> None:
    """Log where clients find it; the first *native* listeners are theirs, the others HTTP's."""
    for number, (address, listener) in enumerate(zip(addresses, listeners, strict=True)):
        where = {"host": address.host, "port": listener.port, "tls": address.is_tls}
        if number >= native:
            log.info("http.listening", **where)
            continue
        log.info(
            "listening",
            **where,
            **({"cluster_id": found} if (found := logs.store.cluster_id) else {}),
            **({} if logs.leader_epoch is None else {"leader_epoch": logs.leader_epoch}),
            software=SERVER_SOFTWARE,
        )


def with_log_in(doors: Sequence[Listener], addresses: Sequence[Address]) -> list[Listener]:
    """Return those of *doors* where clients have to log in."""
    pairs = zip(doors, addresses, strict=True)
    return [door for door, address in pairs if address.has_log_in]


class _HasFiles(Protocol):
    def watch(self) -> None:
        """Take over files that have changed."""


async def _watch(files: _HasFiles) -> None:
    while True:
        files.watch()
        await trio.sleep(FILES_PERIOD_S)


def _start_http(
    nursery: trio.Nursery,
    settings: Settings,
    listeners: list[Listener],
    node: Node,
    server: Server,
    environment: Environment,
    tee: Tee,
    log_ins: "LogIns | None",
    max_connections: int,
) -> None:
    from coordinator.http.run import start_http  # noqa: PLC0415 - who has none pays nothing for it

    start_http(
        nursery,
        settings=settings,
        listeners=listeners,
        node=node,
        coordination=server.coordination,
        environment=environment,
        tee=tee,
        warn=server.sessions.warn,
        max_connections=max_connections,
        entry=make_entry(node, server, log_ins),
    )


def make_entry(node: Node, server: Server, log_ins: "LogIns | None") -> "Entry | None":
    """Return what asks over HTTP who somebody is, None where nobody is asked."""
    gatekeeper = server.gatekeeper
    if not gatekeeper.has_gates:
        return None
    from coordinator.http.entry import Entry  # noqa: PLC0415 - as above
    from coordinator.security.accounts import (  # noqa: PLC0415 - as above
        SECRET_BYTES,
        only_certificates,
    )

    def audit(event: str, peer: str, **fields: Any) -> None:
        if event in REFUSALS:
            gatekeeper.audit.tell(event, peer=peer, now_ms=node.now().mono_ms, **fields)
        else:
            log.info(event, peer=peer, **fields)

    new_secret = partial(secrets.token_bytes, SECRET_BYTES)
    return Entry(
        only_certificates() if log_ins is None else log_ins.accounts(new_secret),
        gatekeeper.authorizer,
        now=node.now,
        audit=audit,
        throttles=gatekeeper.throttles,
        attempts=gatekeeper.attempts,
        is_ready=lambda: node.registry.is_whole,
    )


async def _load(node: Node, console: Console) -> None:
    async with trio.open_nursery() as nursery:
        for follower in (console.bar, console.manager):
            nursery.start_soon(follower.follow, lambda: node.loader.progress)
        with collector_at_rest():
            await node.load()
        nursery.cancel_scope.cancel()
    console.manager.ready()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Let the garbage collector stand still while the log is loaded.

    Everything that comes is there to stay, and the collector would walk over it again and again:
    a load would take twice as long, and hold up the requests of other partitions.
    """
    gc.disable()
    try:
        yield
    finally:
        # What is loaded stays: the collector need not walk through it even once, and what comes
        # is mostly freed by counting.
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 100)
        gc.enable()


async def _drain(
    node: Node, server: Server, listeners: Sequence[Listener], timeout_ms: int
) -> bool:
    """Let nobody in any more; return whether all that was appended is on disk and answered.

    Until others lead what this node leads, clients are sent here, and new ones let in: for a half
    of the time at most.
    """
    flushed = False
    with trio.move_on_after(timeout_ms / 1000):
        if node.started:
            with trio.move_on_after(timeout_ms / 1000 / 2):
                await node.hand_over()
        for listener in listeners:
            listener.close()
        if node.started:
            await node.drain()
            flushed = True
            await server.wait_sent()
    return flushed


async def _wait_for_stop_signal(reload: Callable[[], None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        while not stop_signals.have_come():
            number = await anext(signals)
            if number != signal.SIGHUP:
                break
            reload()
    stop_signals.release()  # A second signal ends the process at once.


def _addresses_told(settings: Settings, listeners: Sequence[SocketListener]) -> tuple[Address, ...]:
    """Return what clients of each native listener are told; *listeners* begin with those."""
    pairs = zip(settings.addresses_told(), listeners, strict=False)  # Behind them are HTTP's.
    return tuple(told._replace(port=told.port or listener.port) for told, listener in pairs)


def _exit_status_of(failures: BaseExceptionGroup[BaseException]) -> int:
    """Log why the daemon ends and return its exit status; what is no known end is raised."""
    log_errors, rest = failures.split(LogError)
    if log_errors is not None:
        error = _first(log_errors)
        assert isinstance(error, LogError)
        is_refused = error.exit_status in {EXIT_REFUSED, EXIT_UNREACHABLE}
        log.critical("refused" if is_refused else "log.failed", reason=str(error))
        return error.exit_status
    bad_records, rest = failures.split(RecordError)
    if bad_records is not None:
        record_error = _first(bad_records)
        if isinstance(record_error, UnknownRecord):
            log.critical("refused", reason=f"the log is a newer release's: {record_error}")
            return EXIT_REFUSED
        log.critical("refused", reason=f"the log is damaged: {record_error}")
        return EXIT_CORRUPT
    assert rest is not None
    raise rest


def _first(failures: BaseException) -> BaseException:
    while isinstance(failures, BaseExceptionGroup):
        failures = failures.exceptions[0]
    return failures
