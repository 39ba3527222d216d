"""Blocking connection to an ensemble of ZooKeeper: the only module of the client to import kazoo.

kazoo transfers the bytes, in threads of its own, and connects to another server when one fails. Its
retries aren't used: a lost request returns `Status.LOST`, and the calling code decides whether to
repeat it. A client of kazoo that isn't connected in time is replaced by a new one, as its loop may
have ended or hang; its session owns no znodes, so nothing is lost with it.

One request of kazoo takes a few hundred microseconds. Many znodes are therefore read with one
request, ZooKeeper's multi-read (since 3.6). If the server doesn't support multi-read, the znodes
are requested one by one, without waiting for each answer.
"""

import errno
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, Final, NamedTuple, Self

from client.exceptions import AuthenticationFailed, CoordinatorUnavailable, FatalError
from client.security import resolved
from client.zookeeper.settings import ZooKeeper
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

# Most znodes, and most bytes of their paths, in one multi-read: far below jute.maxbuffer (1 MiB),
# and few enough not to delay the server's other requests.
_PATHS_PER_READ: Final = 500
_PATH_BYTES_PER_READ: Final = 128 * 1024
# Longest wait for a session to close, in seconds.
_CLOSE_S: Final = 2.0
# Longest pause between two attempts to connect, in seconds.
_RECONNECT_S_MAX: Final = 1.0

_INT: Final = Struct("!i")
_RESULT: Final = Struct("!iBi")  # Header of a result: operation, end flag, -1.
_STAT: Final = Struct("!qqqqiiiqiiq")
_VERSION: Final = 4  # Index of the znode's version in _STAT.
_NO_NODE: Final = -101
# Statuses for kazoo's exceptions, by name, as kazoo is imported late.
_STATUSES: Final = {
    "NoNodeError": Status.MISSING,
    "NodeExistsError": Status.EXISTS,
    "BadVersionError": Status.CHANGED,
    "UnimplementedError": Status.UNKNOWN,
    "ConnectionLoss": Status.LOST,
    "ConnectionClosedError": Status.LOST,
    "SessionExpiredError": Status.LOST,
    "OperationTimeoutError": Status.LOST,
    "KazooTimeoutError": Status.LOST,
}
LOST_ERRORS: Final = frozenset(name for name, one in _STATUSES.items() if one is Status.LOST)
_REFUSALS: Final = {
    "NoAuthError": "nobody has allowed it (the znode's ACL)",
    "ThrottledOpError": "it is throttled",
}

# Without the handler Python prints kazoo's warnings in programs that haven't set up logging.
_logger = logging.getLogger("client.zookeeper.kazoo")
_logger.addHandler(logging.NullHandler())


class Ensemble:
    """A connection to an ensemble. Methods may be called from several threads, and block.

    All raise, before they send a request:

    * `CoordinatorUnavailable`: no server could be reached in time;
    * `AuthenticationFailed`: the ensemble refuses the log-in;
    * `FatalError`: kazoo isn't installed, or the chroot doesn't exist.
    """

    def __init__(self, settings: ZooKeeper) -> None:
        """Take the settings; the first call connects."""
        self._settings = settings
        self._kazoo = _kazoo()
        self._errors = (
            self._kazoo.exceptions.KazooException,
            self._kazoo.handlers.threading.KazooTimeoutError,
        )
        self._opening = threading.Lock()
        self._client: Any = None
        self._live = threading.Event()  # Set while kazoo is connected.
        self._has_multi_read = True

    def __enter__(self) -> Self:
        """Return the ensemble."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Name of the ensemble in messages."""
        return f"ZooKeeper at {self._settings.connect}"

    def close(self) -> None:
        """End the session; unanswered requests are lost."""
        client, self._client = self._client, None
        if client is not None:
            ending = _in_background(lambda: close_client(client))
            ending.join(_CLOSE_S)

    def ask(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        """Send *requests* in their order, without waiting for each; return their replies.

        The reply to a request without an answer in time is `Status.LOST`; it may still be done.
        """
        end_s = time.monotonic() + timeout_s
        client = self._connected(end_s)
        return [self._reply(one, end_s) for one in [_submit(client, x) for x in requests]]

    def read(self, paths: Sequence[str], timeout_s: float) -> list[Found | Failed | Status]:
        """Return the contents of the znodes at *paths*, in the same order; any number of them."""
        return self._read(_DATA, paths, timeout_s)

    def children(
        self, paths: Sequence[str], timeout_s: float
    ) -> list[Sequence[str] | Failed | Status]:
        """Return the names of the children of each znode at *paths*, in no order."""
        return self._read(_CHILDREN, paths, timeout_s)

    def sync(self, timeout_s: float) -> None:
        """Make the connected server catch up with all earlier writes."""
        end_s = time.monotonic() + timeout_s
        self._reply(self._connected(end_s).sync_async("/"), end_s)

    def _read(self, kind: "_Kind", paths: Sequence[str], timeout_s: float) -> list[Any]:
        end_s = time.monotonic() + timeout_s
        client = self._connected(end_s)
        found: list[Any] = []
        if self._has_multi_read:
            chunks = list(_chunks([client.chroot + path for path in paths]))
            waiting = [_submit_multi_read(client, kind, chunk) for chunk in chunks]
            for chunk, one in zip(chunks, waiting, strict=True):
                reply = self._reply(one, end_s)
                if isinstance(reply, list):
                    found += [self._failed(x) if isinstance(x, int) else x for x in reply]
                elif reply is Status.UNKNOWN:
                    self._has_multi_read = False
                else:
                    found += [reply] * len(chunk)
        if not self._has_multi_read:
            waiting = [kind.submit(client, path) for path in paths]
            found = [self._reply(one, end_s) for one in waiting]
        return found

    def _reply(self, waiting: Any, end_s: float) -> Any:
        """Wait for kazoo's result, and convert it into a reply."""
        try:
            found = waiting.get(timeout=max(end_s - time.monotonic(), 0))
        except self._kazoo.exceptions.AuthFailedError:
            raise self._log_in_refused() from None
        except self._errors as exc:
            return _STATUSES.get(type(exc).__name__) or Failed(_words(exc))
        match found:
            case (bytes() | None, stat):
                return Found(found[0] or b"", stat.version)
            case list():  # Names of children, or the results of one multi-read.
                return found
            case str():  # Path of a znode that was created or synchronized.
                return Written(0)
            case _:
                return Written(found.version)

    def _failed(self, code: int) -> Failed | Status:
        if code == _NO_NODE:
            return Status.MISSING
        return Failed(_words(self._kazoo.exceptions.EXCEPTIONS[code]()))

    # --- Connecting ---------------------------------------------------------------------------

    def _connected(self, end_s: float) -> Any:
        """Return kazoo's client once it is connected; give it up if it isn't in time."""
        with self._opening:
            if is_new := self._client is None:
                self._open()
            client = self._client
            wait_s = min(end_s - time.monotonic(), self._settings.connection_timeout_ms / 1000)
            if not self._live.wait(max(wait_s, 0)):
                self._client = None
                state = client.client_state
                _in_background(lambda: close_client(client))
                if state == self._kazoo.client.KeeperState.AUTH_FAILED:
                    raise self._log_in_refused()
                raise CoordinatorUnavailable(f"{self.name}: no server answered in time")
            if is_new and client.chroot:
                self._check_chroot(client, end_s)
            return client

    def _open(self) -> None:
        self._client = new_client(self._settings)
        # Called only once: on a client that has lost its connection it would stop the threads.
        self._live = self._client.start_async()

    def _check_chroot(self, client: Any, end_s: float) -> None:
        if self._reply(client.get_async("/"), end_s) is Status.MISSING:
            self._client = None
            _in_background(lambda: close_client(client))
            raise FatalError(f"{self.name}: there is no znode {self._settings.chroot}")

    def _log_in_refused(self) -> AuthenticationFailed:
        return AuthenticationFailed(
            f"{self.name} doesn't take the log-in of {self._settings.username!r}"
        )


def new_client(settings: ZooKeeper) -> Any:
    """Return a client of kazoo for an ensemble, not started yet.

    Raises:
        FatalError: kazoo isn't installed.
    """
    log_in = settings.username and {
        "mechanism": "DIGEST-MD5",
        "username": settings.username,
        "password": resolved("zookeeper.sasl.password", settings.password),
    }
    return _kazoo().client.KazooClient(
        settings.hosts + settings.chroot,
        timeout=settings.session_timeout_ms / 1000,
        connection_retry={"max_tries": -1, "max_delay": _RECONNECT_S_MAX},
        logger=_logger,
        sasl_options=log_in or None,
        use_ssl=settings.uses_tls,
        check_hostname=settings.uses_tls,
        ca=settings.truststore or None,
        certfile=settings.keystore or None,
        keyfile=settings.keystore or None,
    )


def attend(client: Any, granted: Callable[[int], object]) -> None:
    """Make kazoo end a silent connection in time, and report the granted session timeout.

    The server may grant another session timeout than the requested one, and kazoo has no call for
    it. *granted* is called with it, in ms, at each connection, before kazoo reports the connection.
    """
    answers = Answers(client.handler.select, client._connection.ping_outstanding.is_set)  # noqa: SLF001 - Nothing public has it.
    invoke = client._connection._invoke  # noqa: SLF001 - as above

    def invoked(timeout_s: float, request: Any, *rest: Any) -> Any:
        reply = invoke(timeout_s, request, *rest)
        if isinstance(request, _kazoo().protocol.serialization.Connect):
            timeout_ms = reply[0].time_out
            answers.connected(timeout_ms / 1000)
            granted(timeout_ms)
        return reply

    client._connection._invoke = invoked  # noqa: SLF001 - as above
    client.handler.select = answers.select


class Answers:
    """Ends a connection that is silent for a third of its session's timeout after a request.

    kazoo's loop checks for an overdue answer only if it has sent nothing since its last ping, so on
    a dead connection each further request delays that check, without a limit. kazoo sends a ping
    when a third of the timeout has passed since the last request. With this class at most two
    thirds pass between the last bytes that the server received and the end of the connection.
    """

    def __init__(
        self,
        select: Callable[..., Any],
        is_ping_outstanding: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._select = select
        self._is_ping_outstanding = is_ping_outstanding
        self._clock = clock
        self._patience_s = math.inf
        self._asked_s: float | None = None  # Time of the first request since the last answer.

    def connected(self, timeout_s: float) -> None:
        """Start for a new connection, whose session has this timeout."""
        self._patience_s, self._asked_s = timeout_s / 3, None

    def select(self, reads: Sequence[Any], *rest: Any) -> Any:
        """Wait as kazoo's handler does, for the server and for requests to send.

        Raises:
            TimeoutError: An answer is overdue.
        """
        *others, timeout_s = rest
        if len(reads) != 2:  # Within a message, or during the log-in.
            return self._select(reads, *rest)
        if self._asked_s is None and self._is_ping_outstanding():
            self._asked_s = self._clock()
        left_s = math.inf
        if self._asked_s is not None:
            left_s = max(0.0, self._asked_s + self._patience_s - self._clock())
        found = self._select(reads, *others, min(timeout_s, left_s))
        server, requests = reads
        if server in found[0]:
            self._asked_s = None  # Even if late, as this process may have been frozen.
        elif left_s == 0:
            raise TimeoutError(errno.ETIMEDOUT, "an answer is overdue")
        if requests in found[0] and self._asked_s is None:
            self._asked_s = self._clock()
        return found


def _kazoo() -> Any:
    try:
        import kazoo.client  # noqa: PLC0415 - An extra.
        import kazoo.exceptions  # noqa: PLC0415 - likewise
        import kazoo.handlers.threading  # noqa: PLC0415 - likewise
    except ImportError as exc:
        raise FatalError("ZooKeeper needs kazoo: pip install group-coordinator[zookeeper]") from exc
    return kazoo


def _in_background(work: Callable[[], object]) -> threading.Thread:
    """Do *work* in a daemon thread, so that no caller has to wait for its end."""
    thread = threading.Thread(target=work, name="zookeeper-close", daemon=True)
    thread.start()
    return thread


def close_client(client: Any) -> None:
    """End a client of kazoo, and its session. Blocks."""
    with suppress(Exception):  # This client isn't used any more.
        client.stop()
        client.close()


def _words(error: Exception) -> str:
    """Return the text of an error of kazoo; many have only a class name."""
    return _REFUSALS.get(type(error).__name__) or f"{type(error).__name__} {error}".strip()


# --- Requests -------------------------------------------------------------------------------------


def _submit(client: Any, request: Request) -> Any:
    match request:
        case Read(path):
            return client.get_async(path)
        case Set(path, data, version):
            return client.set_async(path, data, version)
        case Create(path, data):
            return client.create_async(path, data, makepath=True)


def _submit_multi_read(client: Any, kind: "_Kind", paths: Sequence[str]) -> Any:
    waiting = client.handler.async_result()
    # kazoo has no public method for a kind of request that it doesn't know.
    client._call(_MultiRead(kind, paths), waiting)  # noqa: SLF001 - as above
    return waiting


class _Kind(NamedTuple):
    """A kind of read: contents, or names of children.

    Attributes:
        operation: ZooKeeper's number of the operation.
        decoded: Decodes the result at an index of an answer; returns it, and the index of its end.
        submit: Sends one read by kazoo.

    """

    operation: int
    decoded: Callable[[bytes, int], tuple[Any, int]]
    submit: Callable[[Any, str], Any]


def _found(data: bytes, at: int) -> tuple[Found, int]:
    (size,) = _INT.unpack_from(data, at)
    start = at + _INT.size
    end = start + max(size, 0)  # -1 stands for no data.
    stat = _STAT.unpack_from(data, end)
    return Found(bytes(data[start:end]), stat[_VERSION]), end + _STAT.size


def _names(data: bytes, at: int) -> tuple[tuple[str, ...], int]:
    (count,) = _INT.unpack_from(data, at)
    at += _INT.size
    names = []
    for _ in range(count):
        (size,) = _INT.unpack_from(data, at)
        start, at = at + _INT.size, at + _INT.size + size
        names.append(bytes(data[start:at]).decode("utf-8", "surrogateescape"))
    return tuple(names), at


_DATA: Final = _Kind(4, _found, lambda client, path: client.get_async(path))
_CHILDREN: Final = _Kind(8, _names, lambda client, path: client.get_children_async(path))


class _MultiRead(NamedTuple):
    """ZooKeeper's multi-read, in the form that kazoo sends; paths include the chroot.

    The answer has a result for each path, or the number of an error in its place.
    """

    kind: _Kind
    paths: Sequence[str]
    type: int = 22

    def serialize(self) -> bytes:
        """Return the bytes to send."""
        parts: list[bytes] = []
        for path in self.paths:
            name = path.encode()
            parts += (_RESULT.pack(self.kind.operation, 0, -1), _INT.pack(len(name)), name, b"\0")
        return b"".join(parts) + _RESULT.pack(-1, 1, -1)

    def deserialize(self, data: bytes, at: int) -> list[Any]:
        """Decode an answer into its results."""
        results: list[Any] = []
        while True:
            operation, is_end, _ = _RESULT.unpack_from(data, at)
            at += _RESULT.size
            if is_end:
                return results
            if operation == self.kind.operation:
                result, at = self.kind.decoded(data, at)
            else:
                (result,) = _INT.unpack_from(data, at)
                at += _INT.size
            results.append(result)


def _chunks(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide *paths* into parts for one request each."""
    start, size = 0, 0
    for at, path in enumerate(paths):
        length = len(path.encode())
        if at > start and (at - start >= _PATHS_PER_READ or size + length > _PATH_BYTES_PER_READ):
            yield paths[start:at]
            start, size = at, 0
        size += length
    if paths:
        yield paths[start:]
