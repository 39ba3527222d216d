"""Ask a coordinator whether it is there: one ApiVersions over one connection."""

import socket

from protocol.connection import ClientConnection
from protocol.errors import RemoteProtocolError
from protocol.messages import ApiVersionsRequest


def ping(host: str, port: int, *, timeout_s: float) -> str | None:
    """Return None if a coordinator answers at *host*:*port*, else what is wrong."""
    connection = ClientConnection()
    _, frame = connection.send(ApiVersionsRequest("ping", "group-coordinator", ""))
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as sock:
            sock.sendall(frame)
            while data := sock.recv(65536):
                if connection.receive(data):
                    return None
    except (OSError, ValueError) as exc:  # The latter for a timeout that is none.
        return f"{host}:{port}: {exc}"
    except RemoteProtocolError as exc:
        return f"{host}:{port} is no coordinator: {exc}"
    return f"{host}:{port} closed the connection"
