"""Questions to a running coordinator over one connection, for the command line."""

import socket
from types import TracebackType
from typing import Any, Final, Self

from protocol.connection import ClientConnection
from protocol.errors import ERRORS, Applied, ErrorCode, LocalProtocolError, ProtocolError
from protocol.messages import ApiVersionsRequest, BareError, Request, Response

_IN_DOUBT: Final = {code for code, info in ERRORS.items() if info.applied is Applied.UNKNOWN}


class AskFailed(Exception):
    """There is no useful answer; the message says why."""


class GroupRefused(AskFailed):
    """One group can't be served; the message names it."""


class InDoubt(AskFailed):
    """The coordinator answered that it doesn't know what became of the request."""


class Unreachable(AskFailed):
    """Nobody answered, or somebody who is no coordinator."""


class Coordinator:
    """Where the questions go. It is connected at the first one, and anew after a failure."""

    def __init__(self, host: str, port: int, *, timeout_ms: int) -> None:
        self._host = host
        self._port = port
        self._timeout_s = timeout_ms / 1000
        self._socket: socket.socket | None = None
        self._protocol = ClientConnection()

    def __enter__(self) -> Self:
        """Return it; nothing is connected yet."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self._close()

    def ask(self, request: Request) -> Any:
        """Return the answer to *request*.

        Raises:
            AskFailed: The coordinator refuses the request as a whole, or it can't be sent.
        InDoubt: It may have been applied.
            Unreachable: It can't be reached or doesn't answer in time.
        """
        try:
            return _checked(self._exchange(request))
        except LocalProtocolError as exc:
            raise AskFailed(str(exc)) from exc
        except (OSError, ProtocolError) as exc:
            self._close()
            raise Unreachable(f"{self._host}:{self._port}: {exc}") from exc

    def _exchange(self, request: Request) -> Response:
        sock = self._socket
        hello = b""
        if sock is None:
            self._protocol = ClientConnection()
            name = "group-coordinator"
            _, hello = self._protocol.send(ApiVersionsRequest(name, name, ""))
        wanted, frame = self._protocol.send(request)
        if sock is None:
            sock = socket.create_connection((self._host, self._port), timeout=self._timeout_s)
            self._socket = sock
        sock.sendall(hello + frame)
        while data := sock.recv(65536):
            for event in self._protocol.receive(data):
                if event.correlation_id == wanted:
                    return event.response
        raise ConnectionResetError("it closed the connection without an answer")

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _checked(response: Response) -> Response:
    error = getattr(response, "error", 0)
    if type(response) is BareError or error:
        text = describe_error(error, getattr(response, "message", None))
        raise InDoubt(text) if error in _IN_DOUBT else AskFailed(text)
    return response


def describe_error(error: int, message: str | None = None) -> str:
    """Return *error* in words: the server's own, or what the code means."""
    try:
        code = ErrorCode(error)
    except ValueError:
        return f"error {error}"
    return f"{message or ERRORS[code].meaning} ({code.name})"
