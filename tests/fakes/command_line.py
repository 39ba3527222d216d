"""The command line against a coordinator in memory that answers as told."""

import io
import socket
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coordinator.cli.main import main
from protocol import messages as m
from protocol.connection import RequestEvent, ServerConnection, encode_error, encode_response

Answer = Callable[[m.Request], m.Response]


class FakeSocket:
    """The other end answers every request at once."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server = ServerConnection(RequestEvent)
        self._ready = b""

    def sendall(self, data: bytes) -> None:
        """Take requests."""
        for event in self._server.receive(data):
            assert type(event) is RequestEvent
            response = self._answer(event.request)
            if type(response) is m.BareError:
                self._ready += encode_error(event.correlation_id, response.error)
                continue
            self._ready += encode_response(event.dialect, event.correlation_id, response)

    def recv(self, _size: int) -> bytes:
        """Hand the answers over, then the end."""
        data, self._ready = self._ready, b""
        return data

    def settimeout(self, _: float) -> None:
        """Nothing takes time."""

    def close(self) -> None:
        """Nothing to do."""


class CommandLine:
    """Runs commands. *answers* says by type of request what comes back: a value or a function.

    An `OSError` among the answers is raised where the connection would break.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Mapping[type, Any]) -> None:
        self.answers = dict(answers)
        self.asked: list[Any] = []
        self.connections = 0
        monkeypatch.setattr(socket, "create_connection", self._connect)

    def _connect(self, *_: object, **__: object) -> FakeSocket:
        self.connections += 1
        return FakeSocket(self._answer)

    def _answer(self, request: m.Request) -> m.Response:
        if type(request) is m.ApiVersionsRequest:
            return m.ApiVersionsResponse(0, (), "s", "c", 1, 1)
        if request == m.FindCoordinatorRequest(m.KEY_TYPE_PARTITION, ()):
            return m.FindCoordinatorResponse(())  # One node, of an older release.
        self.asked.append(request)
        answer = self.answers[type(request)]
        if not isinstance(answer, tuple) and callable(answer):
            answer = answer(request)
        if isinstance(answer, OSError):
            raise answer
        response: m.Response = answer
        return response

    def run(self, *arguments: str) -> Result:
        """Run a command."""
        return CliRunner().invoke(main, [*arguments, "--at", "127.0.0.1:1"])

    def of_type(self, kind: type) -> list[Any]:
        """Return the requests of one kind."""
        return [request for request in self.asked if type(request) is kind]


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def cells(text: str) -> list[list[str]]:
    """Return the rows of a table without its head."""
    return [line.split() for line in text.splitlines()[1:]]


class Clock:
    """Time that passes while somebody waits.

    Attributes:
        at: What happens when it is so late.
    """

    def __init__(self) -> None:
        self.now_s = 100.0
        self.at: dict[float, Callable[[], object]] = {}

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
        for at_s in [one for one in self.at if one <= self.now_s]:
            self.at.pop(at_s)()
