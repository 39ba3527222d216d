"""The commands that ask a running coordinator, against an in-memory one that answers as told."""

import socket
from collections.abc import Callable
from typing import Any, Self

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
        self._server = ServerConnection()
        self._ready = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        """Take requests."""
        for event in self._server.receive(data):
            assert type(event) is RequestEvent
            response = self._answer(event.request)
            if type(response) is m.BareError:
                self._ready += encode_error(event.correlation_id, response.error)
                continue
            self._ready += encode_response(
                event.correlation_id,
                response,
                api_key=event.api_key,
                api_version=event.api_version,
            )

    def recv(self, _size: int) -> bytes:
        """Hand the answers over, then the end."""
        data, self._ready = self._ready, b""
        return data


def run(monkeypatch: pytest.MonkeyPatch, answers: dict[type, Any], *arguments: str) -> Result:
    """Run a command against a coordinator with these *answers*."""

    def answer(request: m.Request) -> m.Response:
        if type(request) is m.ApiVersionsRequest:
            return m.ApiVersionsResponse(0, (), "s", "c", 1, 1)
        response: m.Response = answers[type(request)]
        return response

    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: FakeSocket(answer))
    return CliRunner().invoke(main, [*arguments, "--at", "127.0.0.1:1"])


MEMBER = m.DescribedMember("c-1", "i", "driver", "192.0.2.1", b"", b"")
DESCRIBED = m.DescribeGroupsResponse(
    (m.DescribedGroup(0, None, "g", "Stable", "consumer", "range", 7, (MEMBER,), 60_000),)
)


def test_groups_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question of everybody."""
    groups = (m.ListedGroup("b", "", "Empty", "classic"), m.ListedGroup("a", "x", "Stable", "c"))
    result = run(
        monkeypatch, {m.ListGroupsRequest: m.ListGroupsResponse(0, groups)}, "groups", "list"
    )

    lines = [line.split() for line in result.output.splitlines()]
    assert [["a", "c", "Stable", "x"], ["b", "classic", "Empty", "-"]] == lines[1:]


def test_a_group_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """State and members in one look."""
    result = run(monkeypatch, {m.DescribeGroupsRequest: DESCRIBED}, "groups", "describe", "g")

    assert 0 == result.exit_code
    assert ["g", "Stable", "7", "range", "1", "60000"] == result.output.splitlines()[1].split()
    assert ["c-1", "i", "192.0.2.1", "driver"] == result.output.splitlines()[-1].split()


def test_lag_that_is_not_known_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 0 would say that all is well."""
    partitions = (m.PartitionLag(0, 5, 9, 4, 1, 1, "c-1"), m.PartitionLag(1, -1, 9, -1, -1, 1, ""))
    lag = m.DescribeLagResponse(0, None, "g", (m.TopicLag("t", partitions),))
    answers = {m.DescribeLagRequest: lag, m.DescribeGroupsRequest: DESCRIBED}
    lines = run(monkeypatch, answers, "groups", "lag", "g").output.splitlines()

    assert ["g", "t", "0", "5", "9", "4", "c-1", "192.0.2.1", "driver"] == lines[1].split()
    assert ["g", "t", "1", "-", "9", "-", "-", "-", "-"] == lines[2].split()


def test_rebalances_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question that Kafka's tools leave open."""
    late = (m.LateMember("c-2", "d", "h", "join", 900, True),)
    why = m.Rebalance(
        3, 0, "session expired", "c-1", None, "d", "h", "no heartbeat for 10.2 s", 4, 5, 10, 20, 2,
        "stable", late,
    )  # fmt: skip
    answer = m.DescribeRebalancesResponse(0, None, "g", (why,))
    result = run(
        monkeypatch, {m.DescribeRebalancesRequest: answer}, "groups", "rebalances", "g"
    ).output

    for part in ("1970-01-01T00:00:00+00:00", "4->5", "c-2", "no heartbeat for 10.2 s"):
        assert part in result


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (m.DescribeRebalancesResponse(69, "Group g not found.", "g", ()), "Group g not found."),
        (m.DescribeRebalancesResponse(14, None, "g", ()), "is being loaded"),
        (m.BareError(1006), "RESPONSE_TOO_LARGE"),
    ],
)
def test_an_error_ends_with_1_and_words(
    response: m.Response, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For people and for scripts."""
    result = run(monkeypatch, {m.DescribeRebalancesRequest: response}, "groups", "rebalances", "g")

    assert 1 == result.exit_code
    assert words in result.output


def test_topics_are_registered_listed_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, where no program knows the source."""
    registered = m.RegisterTopicsResponse(0, (m.RegisteredTopic("t", 0, None, 6),))
    shrunk = m.RegisterTopicsResponse(0, (m.RegisteredTopic("t", 37, "can't shrink", 6),))
    listed = m.DescribeTopicsResponse(0, None, (m.DescribedTopic("t", 0, 6, (), ()),), False)
    gone = m.DeleteTopicsResponse(0, (m.DeletedTopic("t", 0),))
    register = ("topics", "register", "t")

    assert "ok\n" == run(monkeypatch, {m.RegisterTopicsRequest: registered}, *register, "6").output
    refused = run(monkeypatch, {m.RegisterTopicsRequest: shrunk}, *register, "3")
    assert (1, True) == (refused.exit_code, "can't shrink" in refused.output)
    output = run(monkeypatch, {m.DescribeTopicsRequest: listed}, "topics", "list").output
    assert ["t", "6", "0"] == output.splitlines()[-1].split()
    assert "ok\n" == run(monkeypatch, {m.DeleteTopicsRequest: gone}, "topics", "delete", "t").output


def test_nobody_there_is_said_in_words() -> None:
    """The most frequent of all failures."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    result = CliRunner().invoke(main, ["groups", "list", "--at", f"127.0.0.1:{port}"])

    assert 1 == result.exit_code
    assert "refused" in result.output
