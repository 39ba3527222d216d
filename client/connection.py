"""One connection to one coordinator: many requests at a time, answers as they come.

Theory of operation
===================

Four tasks share a connection: one reads, one writes, one watches that the peer is alive, and one
logs in again before a log-in ends. A caller only leaves bytes in the outbox and waits for its own
answer. So a caller that is cancelled can't tear a frame that is half sent, and nobody waits for
anybody else's answer.

trio raises KeyboardInterrupt in whatever task runs when Ctrl-C is pressed. A task of the client's
own that died of it would take the connection away before the group is left. So those tasks, and
what must be undone in the caller's, are protected (`trio.lowlevel.enable_ki_protection`): the
caller gets it at the next checkpoint instead.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from client.exceptions import AuthenticationFailed, FatalError
from client.security import PLAINTEXT, LogIn, NotNow, Security, tls_refusal
from protocol.connection import ClientConnection, ResponseEvent, speaks_tls
from protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from protocol.messages import (
    APIS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BareError,
    JoinGroupRequest,
    OffsetCommitRequest,
    Request,
    Response,
    SyncGroupRequest,
    api_of,
)
from protocol.version import VERSION

SOFTWARE_NAME: Final = "group-coordinator-python"
RECEIVE_BYTES: Final = 64 * 1024
# A parked JoinGroup may be silent for minutes, so silence alone proves nothing. After this long
# without a byte while something is awaited, a harmless request is sent; after as long again
# without an answer to it, the connection counts as dead.
SILENCE_S: Final = 10.0
LAST_WORDS_S: Final = 1.0
# Of a log-in's lifetime. The rest is for an answer that takes long.
LOG_IN_AGAIN_AT: Final = 0.85

_STREAM_ERRORS: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class ConnectionLost(Exception):
    """The connection is unusable. Whether a request was applied is unknown.

    Internal: the retry loop turns it into the exceptions that users see.

    Attributes:
        address: "host:port"; empty if several addresses failed.
        maybe_sent: False if the request surely did not leave this machine.
        is_stranger: True if the other end has never spoken the protocol.
        cause: The system's error; None without one.

    """

    def __init__(
        self,
        message: str,
        address: str = "",
        *,
        maybe_sent: bool = True,
        is_stranger: bool = False,
        cause: OSError | None = None,
    ) -> None:
        """Take a message for people, which names the address."""
        self.address = address
        self.maybe_sent = maybe_sent
        self.is_stranger = is_stranger
        self.cause = cause
        super().__init__(message)

    def before_sending(self) -> "ConnectionLost":
        """Return the same, of a time at which the request itself was not sent yet."""
        return ConnectionLost(
            str(self),
            self.address,
            maybe_sent=False,
            is_stranger=self.is_stranger,
            cause=self.cause,
        )


class _Waiter:
    """A task that waits for one answer."""

    __slots__ = ("answer", "done", "lost")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: ResponseEvent | None = None
        self.lost: str | None = None


class Connection:
    """A stream to *address* with correlation ids. `run` must be started in a nursery.

    Attributes:
        address: "host:port", for messages.
        security: How `handshake` logs in, if it does.
        cluster_id: As the server said in `handshake`.

    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        address: str,
        protocol: ClientConnection | None = None,
        security: Security = PLAINTEXT,
    ) -> None:
        """Take over *stream*, which is encrypted already if it is to be; `run` closes it."""
        self.address = address
        self.security = security
        self.cluster_id = ""
        self._stream = stream
        self._protocol = protocol or ClientConnection()
        self._waiters: dict[int, _Waiter] = {}
        self._outbox = bytearray()
        self._outbox_filled = trio.Event()
        self._scope = trio.CancelScope()
        self._lost_because: str | None = None
        self._is_stranger = False
        self._refusal: AuthenticationFailed | None = None
        self._logged_in = trio.Event()
        self._lifetime_ms = 0
        self._has_heard = False
        self._versions: dict[int, tuple[int, int]] = {}
        self._server_software = "the server"
        self._max_request_bytes: int | None = None
        self._not_before_s = -float("inf")
        self._last_heard_s = trio.current_time()
        self._ping = ApiVersionsRequest("client", SOFTWARE_NAME, VERSION)

    @property
    def is_usable(self) -> bool:
        """Whether a request has a chance."""
        return self._lost_because is None

    def close(self, reason: str) -> None:
        """Give the connection up: everyone who waits gets `ConnectionLost`. Never blocks."""
        if self._lost_because is None:
            self._lost_because = reason
            waiters, self._waiters = self._waiters, {}
            for waiter in waiters.values():
                waiter.lost = reason
                waiter.done.set()
        self._scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Move bytes until the connection ends or is closed. Raises nothing."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guarded, self._read)
                    nursery.start_soon(self._guarded, self._write)
                    nursery.start_soon(self._watch)
                    nursery.start_soon(self._stay_logged_in)
        finally:
            self.close("the connection was closed")
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    async def handshake(self, client_id: str) -> None:
        """Say who is calling, learn which versions the server speaks, and log in.

        Raises:
            ConnectionLost: No answer.
            AuthenticationFailed: The server isn't sure who this client is, or the other way round.
            FatalError: The server doesn't want to talk to this client.
        """
        request = ApiVersionsRequest(client_id, SOFTWARE_NAME, VERSION)
        self._ping = request
        response = (await self._request(request, 0)).response
        if not isinstance(response, ApiVersionsResponse) or response.error != ErrorCode.NONE:
            raise FatalError(
                f"{self.address} refused ApiVersions", code=getattr(response, "error", None)
            )
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.apis}
        self._server_software = response.server_software or "the server"
        self._max_request_bytes = response.max_request_bytes
        self.cluster_id = response.cluster_id
        if self.security.logs_in:
            await self._log_in()

    async def _log_in(self) -> None:
        steps = self.security.log_in(self.address)
        request = await _in_thread(steps, None)
        while not isinstance(request, int):
            answer = await self._request(request, self._version_of(request))
            try:
                request = await _in_thread(steps, answer.response)
            except NotNow as exc:
                raise ConnectionLost(str(exc), self.address, maybe_sent=False) from None
        self._lifetime_ms = request
        self._logged_in.set()

    async def wait_for_turn(self) -> None:
        """Wait as long as the server's ``throttle_time_ms`` asked for."""
        await trio.sleep_until(self._not_before_s)

    async def request(self, request: Request) -> ResponseEvent:
        """Send *request* in the newest version that both ends speak; return its answer.

        Raises:
            ConnectionLost: It may have been applied or not.
            FatalError: It can't be sent at all, or the server didn't understand it.
        """
        return await self._request(request, self._version_of(request))

    async def _request(self, request: Request, version: int) -> ResponseEvent:
        if self._lost_because is not None:
            text = f"{self.address}: {self._lost_because}"
            raise ConnectionLost(text, self.address, maybe_sent=False)
        try:
            correlation_id, data = self._protocol.send(request, version)
        except LocalProtocolError as exc:
            raise FatalError(f"the request can't be sent: {exc}") from None
        if (
            self._max_request_bytes is not None
            and len(data) - 4 > self._max_request_bytes
            and not isinstance(request, SyncGroupRequest)
        ):
            raise FatalError(
                f"the request has {len(data)} bytes, {self.address} takes at most "
                f"{self._max_request_bytes}: send less at a time"
            )
        waiter = self._waiters[correlation_id] = _Waiter()
        self._outbox += data
        self._outbox_filled.set()
        try:
            await waiter.done.wait()
        finally:
            self._waiters.pop(correlation_id, None)
        if waiter.answer is None and self._refusal is not None:
            raise self._refusal
        if waiter.answer is None:
            raise ConnectionLost(
                f"{self.address}: {waiter.lost}", self.address, is_stranger=self._is_stranger
            )
        response = waiter.answer.response
        if isinstance(response, BareError) and response.error == ErrorCode.UNSUPPORTED_VERSION:
            raise FatalError(
                f"{self._server_software} at {self.address} does not support this "
                f"{api_of(request).name} request",
                code=response.error,
            )
        return waiter.answer

    def _version_of(self, request: Request) -> int:
        key = api_of(request)
        newest = APIS[key].max_version
        oldest = APIS[key].min_version
        if isinstance(request, OffsetCommitRequest) and any(
            one.expected_offset is not None for topic in request.topics for one in topic.partitions
        ):
            oldest = 1
        if isinstance(request, JoinGroupRequest) and request.topic_pattern is not None:
            oldest = 1  # Without it the group would not notice new topics that match.
        offered = self._versions.get(key)
        if offered is None or offered[0] > newest or offered[1] < oldest:
            spoken = "not at all" if offered is None else f"only in versions {offered}"
            raise FatalError(
                f"{self._server_software} at {self.address} answers {key.name} {spoken}; "
                f"this client needs version {oldest} to {newest}",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        return min(newest, offered[1])

    @trio.lowlevel.enable_ki_protection
    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except _STREAM_ERRORS as exc:
            # A server of TLS 1.3 judges a client's certificate only after the handshake.
            self._refusal = tls_refusal(exc, self.address)
            self.close(str(exc) or type(exc).__name__)
        except RemoteProtocolError as exc:
            self._is_stranger = not self._versions
            self.close(f"the server broke the protocol: {exc}")

    async def _read(self) -> None:
        while True:
            data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                self.close(self._why_closed())
                return
            # Only what comes first says what the other end speaks.
            if not self._has_heard and not self.security.uses_tls and speaks_tls(data):
                why = f"{self.address} speaks TLS: set security.protocol to SSL or SASL_SSL"
                self._refusal = AuthenticationFailed(why)
                self.close(why)
                return
            self._has_heard = True
            self._last_heard_s = trio.current_time()
            for event in self._protocol.receive(bytes(data)):
                self._take(event)

    def _why_closed(self) -> str:
        if self._has_heard or self.security.uses_tls:
            return "the server closed the connection"
        # OpenSSL says nothing to somebody who doesn't speak TLS.
        why = "maybe it speaks TLS: security.protocol; or it is a node that has just started"
        return f"the server closed the connection before it said anything ({why})"

    def _take(self, event: ResponseEvent) -> None:
        if event.throttle_time_ms > 0:
            until_s = trio.current_time() + event.throttle_time_ms / 1000
            self._not_before_s = max(self._not_before_s, until_s)
        # Without a waiter it is the answer to somebody who was cancelled meanwhile.
        waiter = self._waiters.pop(event.correlation_id, None)
        if waiter is not None:
            waiter.answer = event
            waiter.done.set()

    async def _write(self) -> None:
        while True:
            await self._outbox_filled.wait()
            self._outbox_filled = trio.Event()
            data = bytes(self._outbox)
            self._outbox.clear()
            try:
                await self._stream.send_all(data)
            except _STREAM_ERRORS:
                if self.security.uses_tls:
                    # Why the server closed is in what it sent before, and is read meanwhile.
                    await trio.sleep(LAST_WORDS_S)
                raise

    @trio.lowlevel.enable_ki_protection
    async def _watch(self) -> None:
        while True:
            await trio.sleep(SILENCE_S)
            if not self._waiters or trio.current_time() - self._last_heard_s < SILENCE_S:
                continue
            with trio.move_on_after(SILENCE_S) as scope:
                try:
                    await self._request(self._ping, 0)
                except (ConnectionLost, FatalError):
                    return
            if scope.cancelled_caught:
                self.close("the server went silent")

    @trio.lowlevel.enable_ki_protection
    async def _stay_logged_in(self) -> None:
        await self._logged_in.wait()
        while self._lifetime_ms:
            await trio.sleep(self._lifetime_ms / 1000 * LOG_IN_AGAIN_AT)
            try:
                await self._log_in()
            except ConnectionLost:
                return  # Or the server can't tell now: it will end the connection itself.
            except FatalError as exc:
                # The next request connects anew, and gets the error if that fails.
                self.close(f"the log-in could not be renewed: {exc}")


async def _in_thread(steps: LogIn, answer: Response | None) -> Request | int:
    """Return the next request of a log-in, or, at its end, how long it is good for."""

    def step() -> Request | int:
        try:
            return next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            lifetime_ms: int = end.value
            return lifetime_ms

    # Abandoned when there is no more time: what returns a token may take for ever.
    return await trio.to_thread.run_sync(step, abandon_on_cancel=True)
