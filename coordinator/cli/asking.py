"""One question to a running coordinator over a connection of its own, for the command line."""

import socket

from protocol.connection import ClientConnection
from protocol.errors import ERRORS, ErrorCode, ProtocolError
from protocol.messages import ApiVersionsRequest, BareError, Request, Response


class AskFailed(Exception):
    """There is no useful answer; the message says why."""


def ask(host: str, port: int, request: Request, *, timeout_s: float) -> Response:
    """Return the answer to *request* from the coordinator at *host*:*port*.

    Raises:
        AskFailed: It can't be reached, doesn't answer, or refuses the request as a whole.
    """
    connection = ClientConnection()
    _, hello = connection.send(ApiVersionsRequest("group-coordinator", "group-coordinator", ""))
    try:
        wanted, frame = connection.send(request)
        with socket.create_connection((host, port), timeout=timeout_s) as sock:
            sock.sendall(hello + frame)
            while data := sock.recv(65536):
                for event in connection.receive(data):
                    if event.correlation_id == wanted:
                        return _checked(event.response)
    except OSError as exc:
        raise AskFailed(f"{host}:{port}: {exc}") from exc
    except ProtocolError as exc:
        raise AskFailed(f"{host}:{port}: {exc}") from exc
    raise AskFailed(f"{host}:{port} closed the connection")


def _checked(response: Response) -> Response:
    error = getattr(response, "error", 0)
    if type(response) is BareError or error:
        raise AskFailed(describe_error(error, getattr(response, "message", None)))
    return response


def describe_error(error: int, message: str | None = None) -> str:
    """Return *error* in words: the server's own, or what the code means."""
    try:
        code = ErrorCode(error)
    except ValueError:
        return f"error {error}"
    return f"{message or ERRORS[code].meaning} ({code.name})"
