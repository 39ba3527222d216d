"""The engine over a real ensemble: requests go to kazoo, replies and events to the event loop.

This module uses only kazoo's connection: its thread, the bytes of the protocol, the search for a
server that answers. It doesn't use kazoo's recipes. Their retries repeat requests that may have
been applied; their locks and elections tell a leader of the past, and are no fences.

From kazoo's thread to the event loop
=====================================

kazoo leaves threads, sockets and the delivery of results to a handler, here `_Handler`. The
connection's thread puts all answers, watches and states of the session at once into the mailbox of
the event loop, in the order of their arrival. This order fulfils the contract of `engine`, and
saves kazoo's own worker threads: two hops on the way of each request.

All state belongs to the event loop. Messages of the thread about a connection that the loop doesn't
know yet, or has given up, do no harm:

- A request submitted while the message of a broken connection is in the mailbox may lie in kazoo's
  queue, and be sent on the next connection. The message answers it LOST, so its answer is ignored.
  The contract of `engine` allows this: a LOST request may be applied later.
- kazoo loses some requests for good: those queued at the moment at which a session ends. They are
  answered LOST by the message, too.

Servers that don't answer
=========================

A hanging server, and a load balancer, accept connections and answer nothing. If only answers are
lost, each attempt to connect would prolong the session, and no other node may lead until it ends.
So before kazoo connects, all servers are queried (`srvr`) concurrently, and kazoo gets a connection
to one that has answered. A connection with an overdue answer is closed.

Replacing kazoo's client
========================

kazoo's thread ends at any error unknown to it, and at a refused log-in; and it may hang in a name
lookup. `ZooKeeper.run` then makes a new client. If the thread has ended, the new client resumes its
session: the old client can send nothing any more. The new client also starts from the last zxid
that the old one has seen, as a server that is behind could show it an older state.

A client is also replaced if no server has let it in for a while. A server refuses a client that has
seen a later state than its own: for ever, if the ensemble was restored from a backup. A client with
a new session has seen nothing, is let in, and detects the missing data. If each serving server has
refused the client twice, one session timeout is long enough: its session has ended by then, or can
never be resumed.
"""

import errno
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, TypeVar

import outcome
import trio
from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.hosts import collect_hosts
from kazoo.protocol import serialization as packets
from kazoo.protocol.states import Callback, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from coordinator.cluster import znodes
from coordinator.cluster.engine import Connected, Event, Expired, Fired, Reply, Request, Suspended
from coordinator.cluster.errors import ClusterRefused, EnsembleUnreachable
from coordinator.config import ConfigError, Settings

T = TypeVar("T")
Done = Callable[[outcome.Outcome[Any]], None]
# Calls a function in the event loop; callable from any thread.
Deliver = Callable[[Done, outcome.Outcome[Any]], None]
EmitEvent = Callable[[str, dict[str, Any]], None]

# Divisor of the session timeout: time limit of a server to accept a connection, and to answer.
_CONNECT_SHARE: Final = 3
# Delay between the queries of two servers, in seconds.
_HEAD_START_S: Final = 0.1
# Answers of `srvr` without a majority; the second one if readonlymode.enabled is set.
_SERVES_NOBODY: Final = ("not currently serving requests", "Mode: read-only")
# Delay between two rounds over all servers, in seconds.
_RETRY_S: Final = 0.05
_RETRY_MAX_S: Final = 0.5
# Session timeouts without an attempt to connect, after which a client counts as hanging.
_HANGS_AFTER: Final = 3
# Session timeouts without a connection, after which a client is replaced. An ensemble that lost
# its majority is usually back before that.
_GIVEN_UP_AFTER: Final = 5
_LOOK_S: Final = 0.5
# Delay before a client is replaced, in seconds.
_RENEWAL_S: Final = 1.0
_CLOSE_S: Final = 2.0
_VISIT_LOOK_S: Final = 0.05
_EPHEMERAL: Final = 1
_READ_BYTES: Final = 65_536

_LOG_IN: Final = "the server wants a log-in, and there was none, or it failed"
# Server errors of requests that certainly weren't applied; all others mean an unknown outcome.
_ODD: Final[dict[type[Exception], str]] = {
    zk.NoAuthError: "ZooKeeper's rules don't allow it",
    zk.InvalidACLError: "ZooKeeper knows nobody to give the rights of a new znode to",
    zk.QuotaExceededError: "the quota of ZooKeeper is used up",
    zk.NotEmptyError: "there are znodes below it",
    zk.NotReadOnlyCallError: "the server only reads",
    zk.BadArgumentsError: "ZooKeeper doesn't understand it",
    zk.MarshallingError: "ZooKeeper can't read it",
    zk.UnimplementedError: "ZooKeeper can't do it",
    zk.SessionClosedRequireSaslError: _LOG_IN,
}
# Warnings of kazoo that are no reason for a failure.
_NO_REASONS: Final = frozenset({"Transition to CONNECTING"})
_FAILURES: Final = {
    zk.NodeExistsError: znodes.Failure.NODE_EXISTS,
    zk.NoNodeError: znodes.Failure.NO_NODE,
    zk.BadVersionError: znodes.Failure.BAD_VERSION,
}
# Results of the changes before and after the failed one.
_BESIDE: Final = (zk.RolledBackError, zk.RuntimeInconsistency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Connection settings of an ensemble.

    Attributes:
        hosts: Servers as ``host:port``, separated by commas.
        chroot: Prefix of all paths; "" for none, else ``/`` and names.
        session_timeout_ms: Time without a message after which ZooKeeper ends the session.
        new_tls: Returns a TLS context, from files that may have changed; None for plain
            connections.
        user: User for the DIGEST-MD5 log-in; "" for no log-in.
        password: Password of *user*.
        is_owned: Only the user that creates a znode gets rights on it.
    """

    hosts: str
    chroot: str
    session_timeout_ms: int
    new_tls: Callable[[], ssl.SSLContext] | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    is_owned: bool = False


def access_of(settings: Settings) -> Access:
    """Return the connection settings of the ensemble from *settings*.

    Raises:
        ConfigError: No ensemble is set, or a file can't be used; the message names the setting.
    """
    ensemble = settings.zookeeper()
    if ensemble is None:
        raise ConfigError("cluster.zookeeper is not set: there is no cluster")
    new_tls = None
    if settings.cluster_zookeeper_ssl_client_enable:
        new_tls = partial(_new_tls, settings)
        new_tls()
    user, file = settings.cluster_zookeeper_sasl_username, "cluster.zookeeper.sasl.password.file"
    password = settings.cluster_zookeeper_sasl_password_file
    return Access(
        hosts=",".join(map(str, ensemble.servers)),
        chroot=ensemble.chroot,
        session_timeout_ms=settings.cluster_session_timeout_ms,
        new_tls=new_tls,
        user=user,
        password=_first_line(file, password) if user else "",
        is_owned=settings.cluster_zookeeper_set_acl,
    )


def _new_tls(settings: Settings) -> ssl.SSLContext:
    """Return the TLS context of a connection. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    path = settings.cluster_zookeeper_ssl_truststore_location
    name = "cluster.zookeeper.ssl.truststore.location"
    try:
        if path:
            context.load_verify_locations(path)
        else:
            context.load_default_certs()
        path = settings.cluster_zookeeper_ssl_keystore_location
        name = "cluster.zookeeper.ssl.keystore.location"
        if path:
            context.load_cert_chain(path, password=partial(_key_password, settings))
    except OSError as exc:
        raise ConfigError(f"{name}: {path} can't be used: {exc.strerror}") from None
    return context


def _key_password(settings: Settings) -> str:
    name = "cluster.zookeeper.ssl.key.password.file"
    if not (path := settings.cluster_zookeeper_ssl_key_password_file):
        raise ConfigError(f"the key is encrypted, and there is no {name}")
    return _first_line(name, path)


def _first_line(name: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{name}: {path} can't be read: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: {path} is no text") from None
    return text.partition("\n")[0].rstrip("\r")


# --- kazoo's seam --------------------------------------------------------------------------


class _Answer:
    """Result holder that kazoo fills in its thread; *open_* is called in the event loop."""

    __slots__ = ("_deliver", "_open")

    def __init__(self, deliver: Deliver, open_: Done) -> None:
        self._deliver = deliver
        self._open = open_

    def set(self, value: object = None) -> None:
        """Deliver the answer."""
        self._deliver(self._open, outcome.Value(value))

    def set_exception(self, exc: Exception) -> None:
        """Deliver an error: the server's, or a lost request."""
        self._deliver(self._open, outcome.Error(exc))


class _TimedOutError(Exception):
    """A wait of kazoo's connection timed out."""


class _Handler:
    """Handler for kazoo: makes threads and sockets, and delivers results to the event loop.

    Attributes:
        tried_s: Time of the last attempt to connect, by *clock_s*.
        heard_s: Time of the last data received, by *clock_s*.
        refusals: Connections made to servers that said they serve, since one was last used.
        server: Server of the latest connection, as ``host:port``.
    """

    name = "mailbox"
    timeout_exception = _TimedOutError
    sleep_func = staticmethod(time.sleep)
    running = False

    def __init__(
        self, access: Access, deliver: Deliver, ended: Done, clock_s: Callable[[], float]
    ) -> None:
        """Prepare; *ended* is called in the event loop when the connection's thread has ended."""
        self._deliver = deliver
        self._ended = ended
        self._clock_s = clock_s
        self._new_tls = access.new_tls
        self._servers = [Server(host, port, host) for host, port in collect_hosts(access.hosts)[0]]
        self._connect_s = access.session_timeout_ms / 1000 / _CONNECT_SHARE
        self._stream: _Stream | None = None
        self.tried_s = self.heard_s = clock_s()
        self.refusals = 0
        self.server = ""

    def start(self) -> None:
        """Do nothing: there are no workers."""

    def stop(self) -> None:
        """Do nothing: there are no workers."""

    def async_result(self) -> _Answer:
        """Return a holder whose result is dropped: kazoo's own requests need no result."""
        return _Answer(self._deliver, lambda _: None)

    def dispatch_callback(self, callback: Callback) -> None:
        """Call a watch in the event loop."""
        self._deliver(lambda _: callback.func(*callback.args), outcome.Value(None))

    event_object = staticmethod(threading.Event)
    lock_object = staticmethod(threading.Lock)
    rlock_object = staticmethod(threading.RLock)

    def spawn(self, function: Callable[[], None]) -> threading.Thread:
        """Run the connection in a daemon thread, so that it never keeps the process alive."""

        def run() -> None:
            with suppress(Exception):  # Logged already.
                function()
            self._deliver(self._ended, outcome.Value(None))

        thread = threading.Thread(target=run, name="zookeeper", daemon=True)
        thread.start()
        return thread

    def create_socket_pair(self) -> tuple[socket.socket, socket.socket]:
        """Return the pair that wakes the connection: its reading end, and the writing end."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)  # The event loop must not wait for a thread that hangs.
        return reader, writer

    def create_connection(self, address: tuple[str, int], hostname: str, **_: object) -> "_Stream":
        """Connect to this server, or to another that answers. Raises OSError if none does."""
        self.tried_s = self._clock_s()
        asked = Server(*address, hostname)
        others = [one for one in self._servers if (one.name, one.port) != (hostname, asked.port)]
        server = first_to_serve([asked, *others], self._new_tls, self._connect_s)
        self.server = f"{server.name}:{server.port}"
        sock = socket.create_connection((server.host, server.port), self._connect_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = encrypted(sock, server.name, self._new_tls)
        except Exception as exc:
            sock.close()
            # Any other exception would end kazoo's thread; kazoo logs the second argument.
            raise OSError(errno.ECONNABORTED, str(exc)) from exc
        self.refusals += 1  # Reset once a connection is used.
        self._stream = stream = _Stream(sock, self._connect_s, self._hear)
        return stream

    @property
    def is_refused(self) -> bool:
        """Whether there were at least two refused connections per server."""
        return self.refusals >= 2 * len(self._servers)

    def _hear(self) -> None:
        self.heard_s = self._clock_s()

    def hang_up(self) -> None:
        """Close the connection: an answer is overdue."""
        if self._stream is not None:
            self._stream.hang_up()

    def select(
        self,
        readers: Sequence["socket.socket | _Stream"],
        writers: Sequence["_Stream"],
        _: Sequence[object],
        timeout_s: float | None = None,
    ) -> tuple[Sequence[object], Sequence[object], Sequence[object]]:
        """Wait as the system call `select` does, but for descriptors of any number.

        Writers are always ready: `_Stream.send` waits itself. Data that a stream has read ahead
        doesn't make its descriptor readable, so such streams count as readable here.
        """
        if writers:
            return [], writers, []
        ahead = [s for s in readers if isinstance(s, _Stream) and s.pending()]
        poll = select.poll()
        for sock in readers:
            poll.register(sock, select.POLLIN)
        timeout_ms = 0 if ahead else None if timeout_s is None else timeout_s * 1000
        found = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
        return [sock for sock in readers if sock in ahead or sock.fileno() in found], [], []


class _Stream:
    """A connection that reads ahead.

    kazoo reads an answer in two parts, and waits on the socket for each. With TLS, that would wait
    for data from the network, though the answer may be decrypted already.
    """

    def __init__(
        self, sock: socket.socket, patience_s: float, hear: Callable[[], None] = lambda: None
    ) -> None:
        self._sock = sock
        self._hear = hear
        self._is_overdue = False
        self._patience_s = patience_s
        self._ahead = b""
        self.fileno = sock.fileno
        self.setblocking = sock.setblocking
        self.close = sock.close

    def hang_up(self) -> None:
        """Make the reader fail with a timeout; callable from any thread."""
        self._is_overdue = True
        with suppress(OSError):  # The connection is over already.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # Without the TLS closing alert.

    def pending(self) -> int:
        """Return the number of bytes readable without the socket."""
        decrypted = self._sock.pending() if isinstance(self._sock, ssl.SSLSocket) else 0
        return len(self._ahead) + decrypted

    def recv(self, size: int) -> bytes:
        """Return the next bytes, *size* at most. Raises OSError if an answer is overdue."""
        if not self._ahead:
            self._ahead = self._sock.recv(_READ_BYTES)
            if self._is_overdue:
                raise OSError(errno.ETIMEDOUT, "the server doesn't answer")
            self._hear()
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def send(self, data: bytes) -> int:
        """Send some bytes; return their number. Raises OSError if the server takes none in time."""
        while True:
            try:
                return self._sock.send(data)
            except (BlockingIOError, ssl.SSLWantWriteError):
                poll = select.poll()
                poll.register(self._sock, select.POLLOUT)
                if not poll.poll(self._patience_s * 1000):
                    raise TimeoutError("the server takes nothing") from None


def encrypted(
    sock: socket.socket, hostname: str, new_tls: Callable[[], ssl.SSLContext] | None
) -> socket.socket:
    """Return *sock*, wrapped in TLS unless *new_tls* is None; the certificate is checked."""
    return sock if new_tls is None else new_tls().wrap_socket(sock, server_hostname=hostname)


class Server(NamedTuple):
    """A server of an ensemble.

    Attributes:
        host: Host name or address.
        name: Host name in the certificate.
    """

    host: str
    port: int
    name: str


def srvr(server: Server, new_tls: Callable[[], ssl.SSLContext] | None, patience_s: float) -> str:
    """Return a server's answer to the command `srvr`. Raises OSError."""
    answer = bytearray()
    with (
        socket.create_connection((server.host, server.port), patience_s) as plain,
        encrypted(plain, server.name, new_tls) as sock,
    ):
        sock.sendall(b"srvr")
        with suppress(
            ConnectionError, ssl.SSLEOFError
        ):  # Servers close without the TLS closing alert.
            while data := sock.recv(_READ_BYTES):
                answer += data
    return answer.decode(errors="replace")


def serves(answer: str) -> bool:
    """Return whether a server with this answer to `srvr` lets clients write."""
    return not any(words in answer for words in _SERVES_NOBODY)


def first_to_serve(
    servers: Sequence[Server], new_tls: Callable[[], ssl.SSLContext] | None, patience_s: float
) -> Server:
    """Return the first server that answers and serves.

    Servers are queried `_HEAD_START_S` apart. Those that refuse, perhaps during an election, are
    queried again while others don't answer.

    Raises:
        OSError: No server serves within *patience_s*.
    """
    answers: SimpleQueue[tuple[Server, Exception | None]] = SimpleQueue()

    def ask(server: Server) -> None:
        try:
            answer = srvr(server, new_tls, patience_s)
            is_well = answer and serves(answer)
            answers.put((server, None if is_well else OSError(answer.strip() or "it hangs up")))
        except Exception as exc:  # noqa: BLE001 - a certificate that is none is no OSError
            answers.put((server, exc))

    last: Exception = TimeoutError("no server answers")
    unasked, refusing, silent = deque(servers), list[Server](), 0
    deadline_s = time.monotonic() + patience_s
    while (unasked or silent) and time.monotonic() < deadline_s:
        if unasked:
            threading.Thread(target=ask, args=(unasked.popleft(),), daemon=True).start()
            silent += 1
        try:
            server, problem = answers.get(timeout=_HEAD_START_S)
        except Empty:
            if not unasked:
                unasked.extend(refusing)
                refusing.clear()
            continue
        if problem is None:
            return server
        last, silent = problem, silent - 1
        refusing.append(server)
    raise OSError(errno.ECONNABORTED, str(last)) from last


class _LastWords(logging.Handler):
    """Keeps kazoo's last warning, instead of printing it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message with its exception, the only trace of a bug in kazoo's thread."""
        failed = record.exc_info and record.exc_info[1]
        if isinstance(failed, zk.SessionClosedRequireSaslError):
            self.text = _LOG_IN
        elif record.getMessage() not in _NO_REASONS:
            self.text = record.getMessage() + (f": {failed!r}" if failed else "")


def quiet_logger(words: logging.Handler) -> logging.Logger:
    """Return a logger for kazoo with *words* as its only handler."""
    logger = logging.Logger("kazoo", logging.WARNING)  # noqa: LOG001 - no other one knows of it
    logger.addHandler(words)
    return logger


# --- Operations as packets -----------------------------------------------------------------

_INT: Final = struct.Struct(">i")
# Header of each change and each result: kind, end mark, error code.
_HEADER: Final = struct.Struct(">i?i")
_ERROR: Final = -1
_END: Final = _HEADER.pack(_ERROR, True, -1)
_GET_DATA: Final = _HEADER.pack(packets.GetData.type, False, -1)
_CHANGE_HEADERS: Final = {
    znodes.Check: _HEADER.pack(packets.CheckVersion.type, False, -1),
    znodes.Make: _HEADER.pack(packets.Create.type, False, -1),
    znodes.Set: _HEADER.pack(packets.SetData.type, False, -1),
    znodes.Remove: _HEADER.pack(packets.Delete.type, False, -1),
}


@dataclass(frozen=True, slots=True)
class _MultiRead:
    """Many getData in one request: part of ZooKeeper since 3.6, but missing in kazoo."""

    type: ClassVar[int] = 22
    paths: tuple[str, ...]

    def serialize(self) -> bytes:
        gets = [_GET_DATA + packets.GetData(path, None).serialize() for path in self.paths]
        return b"".join((*gets, _END))

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[tuple[bytes, Any] | Exception]:
        """Return for each path the result of getData, or the error."""
        results: list[tuple[bytes, Any] | Exception] = []
        while True:
            kind, is_done, code = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            if is_done:
                return results
            if kind == _ERROR:
                results.append(zk.EXCEPTIONS[code]())
                offset += _INT.size
            else:
                content, stat = packets.GetData.deserialize(data, offset)
                results.append((content, stat))
                offset += _INT.size + len(content) + packets.stat_struct.size


class _Transaction:
    """A multi. kazoo's own is slower: it makes an object of each change and each result."""

    type: ClassVar[int] = 14

    def __init__(self, changes: Sequence[znodes.Change], root: str, acl: bytes) -> None:
        """Prepare *changes* under the chroot *root*; created znodes get *acl*, in encoded form."""
        self._changes = changes
        self._root = root
        self._acl = acl

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for change in self._changes:
            path = (self._root + change.path).encode()
            parts += _CHANGE_HEADERS[type(change)], _INT.pack(len(path)), path
            match change:
                case znodes.Check(_, version):
                    parts.append(_INT.pack(version))
                case znodes.Make(_, data):
                    flags = _EPHEMERAL if change.is_ephemeral else 0
                    parts += _INT.pack(len(data)), data, self._acl, _INT.pack(flags)
                case znodes.Set(_, data, version):
                    parts += _INT.pack(len(data)), data, _INT.pack(version)
                case znodes.Remove():
                    parts.append(_INT.pack(znodes.ANY_VERSION))
        return b"".join((*parts, _END))

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Exception]:
        """Return the errors, one for each change; nothing if all were applied."""
        errors: list[Exception] = []
        while True:
            kind, is_done, code = _HEADER.unpack_from(data, offset)
            if is_done or kind != _ERROR:
                return errors
            errors.append(zk.EXCEPTIONS[code]())
            offset += _HEADER.size + _INT.size


def _acl_bytes(acl: Sequence[Any]) -> bytes:
    rules = [
        _INT.pack(one.perms) + packets.write_string(one.id.scheme) + packets.write_string(one.id.id)
        for one in acl
    ]
    return _INT.pack(len(rules)) + b"".join(rules)


OPEN: Final = _acl_bytes(OPEN_ACL_UNSAFE)
OWNED: Final = _acl_bytes(CREATOR_ALL_ACL)


def packet(
    operation: znodes.Operation,
    root: str,
    acl: bytes,
    watcher: Callable[[WatchedEvent], None],
) -> Any:
    """Return kazoo's packet for *operation*, under the chroot *root*."""
    match operation:
        case znodes.Multi(changes):
            return _Transaction(changes, root, acl)
        case znodes.Get((path,), watches):
            return packets.GetData(root + path, watcher if watches else None)
        case znodes.Get(paths):
            return _MultiRead(tuple([root + path for path in paths]))
        case znodes.Look(path):
            return packets.Exists(root + path, watcher)
        case znodes.Children(path, watches):
            return packets.GetChildren(root + path, watcher if watches else None)


def result(operation: znodes.Operation, answer: outcome.Outcome[Any]) -> znodes.Result:
    """Return the result of *operation* from kazoo's answer."""
    try:
        value = answer.unwrap()
        match operation:
            case znodes.Multi():
                return _result_of_multi(value)
            case znodes.Get(paths):
                return znodes.Contents(
                    tuple([_znode(one) for one in ([value] if len(paths) == 1 else value)])
                )
            case znodes.Look():
                return znodes.Seen(value is not None)
            case znodes.Children():
                return znodes.Names(tuple(value))
    except zk.NoNodeError:
        if isinstance(operation, znodes.Get):
            return znodes.Contents((None,))
        return znodes.Names(None)
    except Exception as exc:  # noqa: BLE001 - kazoo's, of any kind
        words = _ODD.get(type(exc))
        return znodes.Lost() if words is None else znodes.Odd(words)


def _znode(read: tuple[bytes | None, Any] | Exception) -> znodes.Znode | None:
    if isinstance(read, zk.NoNodeError):
        return None
    if isinstance(read, Exception):
        raise read
    data, stat = read
    return znodes.Znode(data or b"", stat.version, stat.ephemeralOwner, stat.mtime)


def _result_of_multi(errors: Sequence[Exception]) -> znodes.Result:
    for at, exc in enumerate(errors):
        if not isinstance(exc, _BESIDE):
            if failure := _FAILURES.get(type(exc)):
                return znodes.Failed(at, failure)
            raise exc
    return znodes.Lost() if errors else znodes.Applied()


# --- The engine ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Watcher:
    """Watch callback for kazoo, which compares equal for equal requests.

    kazoo keeps a set of callbacks per path, so an equal watch isn't kept twice.
    """

    fired: Callable[[Request], None]
    request: Request

    def __call__(self, _: WatchedEvent) -> None:
        """Fire. kazoo calls all watches of a broken connection, but those are forgotten by then."""
        self.fired(self.request)


class Clients(Protocol):
    """Factory of kazoo clients; tests replace it."""

    def __call__(self, **options: Any) -> Any:
        """Return a client with kazoo's own options."""


class ZooKeeper:
    """An `Engine` over an ensemble.

    Attributes:
        session: Session of the current or last connection; 0 before the first.
    """

    def __init__(
        self,
        access: Access,
        deliver: Deliver,
        tell: Callable[[Event], None],
        emit_event: EmitEvent,
        *,
        clients: Clients = KazooClient,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `run` connects.

        Args:
            access: Connection settings of the ensemble.
            deliver: Calls a function in the event loop, from any thread.
            tell: Called in the event loop with each `Event`.
            emit_event: Logs an event.
            clients: Makes the clients.
            clock_s: Monotonic clock in seconds; callable from any thread.
        """
        self._access = access
        self._acl = OWNED if access.is_owned else OPEN
        self._deliver = deliver
        self._tell = tell
        self._emit_event = emit_event
        self._clients = clients
        self._clock_s = clock_s
        self._words = _LastWords()
        self._is_connected = False
        self._pending: dict[int, Callable[[outcome.Outcome[Any]], None]] = {}
        self._submitted = 0
        self._watched: set[Request] = set()
        self._client: Any = None
        self._handler: _Handler
        self._ended = trio.Event()
        self._resumable: tuple[int, bytes] | None = None
        self._seen_zxid = 0  # Of the session; kazoo forgets it when its thread ends.
        self.session = 0

    @property
    def server(self) -> str:
        """Server of the latest connection or attempt, as ``host:port``."""
        return self._handler.server

    def submit(self, request: Request, done: Callable[[Reply], None]) -> None:
        """Submit *request*; *done* is called with the reply."""
        operation = znodes.operation(request)
        self._submitted = number = self._submitted + 1
        self._pending[number] = partial(self._answer, request, operation, done)
        answer = _Answer(self._deliver, partial(self._open, number))
        if not self._is_connected:
            answer.set_exception(zk.ConnectionLoss())
            return
        watcher = _Watcher(self._fired, request)
        asked = packet(operation, self._access.chroot, self._acl, watcher)
        self._client._call(asked, answer)  # noqa: SLF001 - the one way for a packet of our own

    def _open(self, number: int, answer: outcome.Outcome[Any]) -> None:
        """Handle an answer, unless the request was answered LOST before."""
        if opened := self._pending.pop(number, None):
            opened(answer)

    def _answer(
        self,
        request: Request,
        operation: znodes.Operation,
        done: Callable[[Reply], None],
        answer: outcome.Outcome[Any],
    ) -> None:
        found = result(operation, answer)
        if _has_set_watch(operation, found):
            self._watched.add(request)
        done(znodes.reply(request, found))

    def _fired(self, request: Request) -> None:
        if request in self._watched:
            self._watched.remove(request)
            self._tell(Fired(request))

    # --- the session ---

    async def run(self) -> None:
        """Keep a client, and replace it when it fails, until cancelled.

        After cancellation no reply and no event comes any more.
        """
        try:
            while True:
                self._start()
                reason = await self._until_over()
                self._suspended(reason)
                self._emit_event("zookeeper.client_replaced", {"reason": reason})
                _dismiss(self._client)
                await trio.sleep(_RENEWAL_S)
        finally:
            self._is_connected = False
            self._pending.clear()
            self._watched.clear()
            # End the session, as other nodes wait for its end; but don't wait for a hanging server.
            with trio.CancelScope(deadline=trio.current_time() + _CLOSE_S, shield=True):
                await trio.to_thread.run_sync(_end, self._client, abandon_on_cancel=True)

    def _start(self) -> None:
        self._ended = ended = trio.Event()
        self._handler = _Handler(self._access, self._deliver, lambda _: ended.set(), self._clock_s)
        self._client = client = _client(
            self._clients, self._access, self._handler, self._words, self._resumable
        )
        if self._resumable is not None:
            client.last_zxid = self._seen_zxid
        client.add_listener(lambda _: self._note_state(client))
        client.start_async()

    def _note_state(self, client: Any) -> None:
        """Deliver a change of the state to the event loop; runs in kazoo's thread."""
        state, session, zxid = client.client_state, client.client_id, client.last_zxid
        changed = partial(self._changed, client, state, session, zxid)
        self._deliver(changed, outcome.Value(None))

    def _changed(
        self,
        client: Any,
        state: str,
        session: tuple[int, bytes] | None,
        zxid: int,
        _: outcome.Outcome[None],
    ) -> None:
        if client is not self._client:
            return
        self._seen_zxid = zxid
        if state == KeeperState.CONNECTED and session is not None:
            self._connected(session)
            return
        self._suspended(self._words.text)
        if state == KeeperState.EXPIRED_SESSION:
            self._resumable = None
            self._emit_event("zookeeper.session_expired", {"session": hex(self.session)})
            self._tell(Expired())

    def _connected(self, session: tuple[int, bytes]) -> None:
        self._is_connected = True
        self._resumable = session
        self.session, _ = session
        self._words.text = ""
        fields = {"server": self.server, "session": hex(self.session)}
        self._emit_event("zookeeper.connected", fields)
        self._tell(Connected(self.session))

    def _suspended(self, reason: str) -> None:
        """Answer all requests in flight LOST, and announce `Suspended`."""
        if not self._is_connected:
            return
        self._is_connected = False
        self._watched.clear()
        pending, self._pending = self._pending, {}
        for opened in pending.values():
            opened(outcome.Error(zk.ConnectionLoss()))
        self._emit_event("zookeeper.suspended", {"reason": reason})
        self._tell(Suspended(round((self._clock_s() - self._handler.heard_s) * 1000)))

    async def _until_over(self) -> str:
        """Wait until the client has failed; return the reason."""
        session_s = self._access.session_timeout_ms / 1000
        hangs_s, given_up_s = _HANGS_AFTER * session_s, _GIVEN_UP_AFTER * session_s
        connected_s = self._clock_s()
        seen, silent_looks = None, 0
        while True:
            with trio.move_on_after(_LOOK_S):
                await self._ended.wait()
                return self._words.text
            now_s = self._clock_s()
            if self._is_connected:
                connected_s, self._handler.refusals = now_s, 0
                last = self._handler.heard_s, next(iter(self._pending), None)
                silent_looks = silent_looks + 1 if last == seen and self._pending else 0
                seen = last
                # Count looks, not time: a process that was stopped hasn't read answers either.
                if silent_looks * _LOOK_S >= session_s / _CONNECT_SHARE:
                    self._handler.hang_up()
            elif self._handler.is_refused and now_s - connected_s > session_s:
                # The session has ended by now, or has seen a later state than the servers have.
                self._resumable = None
                return f"every server refuses us: {self._words.text}"
            elif now_s - self._handler.tried_s > hangs_s:
                # Use a new session: the old client may wake up later, and end its own.
                self._resumable = None
                return f"no server was tried for {hangs_s:.0f} s"
            elif now_s - connected_s > given_up_s:
                self._resumable = None
                return f"no server has let us in for {given_up_s:.0f} s: {self._words.text}"


def _has_set_watch(operation: znodes.Operation, found: znodes.Result) -> bool:
    match operation, found:
        case znodes.Look(), znodes.Seen(is_there):
            return not is_there
        case znodes.Get(_, watches), znodes.Contents((read, *_)):
            return watches and read is not None
        case znodes.Children(_, watches), znodes.Names(names):
            return watches and names is not None
    return False


def _client(
    clients: Clients,
    access: Access,
    handler: _Handler,
    words: logging.Handler,
    resumed: tuple[int, bytes] | None = None,
) -> Any:
    login = {"mechanism": "DIGEST-MD5", "username": access.user, "password": access.password}
    return clients(
        hosts=access.hosts,
        timeout=access.session_timeout_ms / 1000,
        client_id=resumed,
        handler=handler,
        sasl_options=login if access.user else None,
        connection_retry=KazooRetry(
            max_tries=-1, delay=_RETRY_S, max_delay=_RETRY_MAX_S, sleep_func=handler.sleep_func
        ),
        logger=quiet_logger(words),
    )


def _dismiss(client: Any) -> None:
    """End a client in a thread of its own, as kazoo blocks until its thread has ended."""
    threading.Thread(target=_end, args=(client,), name="zookeeper-end", daemon=True).start()


def _end(client: Any) -> None:
    with suppress(Exception):  # If the client hangs, its session times out.
        client.stop()
        client.close()


# --- Blocking sessions ---------------------------------------------------------------------


class Visit:
    """A blocking session for threads without an event loop: one operation at a time."""

    def __init__(self, access: Access, *, patience_s: float) -> None:
        """Connect.

        Args:
            access: Connection settings of the ensemble.
            patience_s: Time limit for the connection, and for each answer.

        Raises:
            ClusterRefused: The log-in is refused.
            EnsembleUnreachable: No connection within *patience_s*.
        """
        self._access = access
        self._patience_s = patience_s
        self._acl = OWNED if access.is_owned else OPEN
        self._words = _LastWords()
        self._ended = threading.Event()
        handler = _Handler(access, _at_once, lambda _: self._ended.set(), time.monotonic)
        self._client = _client(KazooClient, access, handler, self._words)
        try:
            self._connect()
        except (ClusterRefused, EnsembleUnreachable):
            self.close()
            raise

    def _connect(self) -> None:
        live = self._client.start_async()
        deadline_s = time.monotonic() + self._patience_s
        where = f"ZooKeeper at {self._access.hosts}"
        while time.monotonic() < deadline_s:
            # kazoo reports a connection before the log-in: only an answer proves that succeeded.
            found = self.do(znodes.Look("/")) if live.wait(_VISIT_LOOK_S) else znodes.Lost()
            if isinstance(found, znodes.Odd):
                raise ClusterRefused(f"{where} refuses us: {found.reason}")
            if not isinstance(found, znodes.Lost):
                return
            if self._ended.is_set():
                raise ClusterRefused(f"{where} refuses us: {self._words.text}")
        raise EnsembleUnreachable(f"{where} can't be reached: {self._words.text}")

    def do(self, operation: znodes.Operation) -> znodes.Result:
        """Do *operation*; return its result, `Lost` if no answer came in time."""
        box: SimpleQueue[outcome.Outcome[Any]] = SimpleQueue()
        asked = packet(operation, self._access.chroot, self._acl, lambda _: None)
        self._client._call(asked, _Answer(_at_once, box.put))  # noqa: SLF001 - as in `submit`
        try:
            return result(operation, box.get(timeout=self._patience_s))
        except Empty:
            return znodes.Lost()

    def ask(self, request: Request) -> Reply:
        """Do *request*; return its reply, LOST if none came in time."""
        return znodes.reply(request, self.do(znodes.operation(request)))

    def run(self, asking: Generator[Request, Reply, T]) -> T:
        """Do all requests that *asking* yields; return its result."""
        try:
            request = next(asking)
            while True:
                request = asking.send(self.ask(request))
        except StopIteration as end:
            result: T = end.value
            return result

    def close(self) -> None:
        _end(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _at_once(done: Done, answer: outcome.Outcome[Any]) -> None:
    done(answer)
