"""The load of whole groups, against a server that says what the test wants."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.group_load import BenchGroup
from bench.load import LoadError
from bench.processes import cpu_ns
from bench.wires import Wires
from protocol.connection import RequestEvent, ServerConnection, encode_response
from protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    Response,
    SyncGroupRequest,
    SyncGroupResponse,
)

Answer = Callable[[Any], Response]


class Obedient:
    """Answers each request at once, as a group in which everybody is always in time."""

    def __init__(self) -> None:
        self.ids = 0
        self.generation = 0
        self.shares: dict[str, bytes] = {}

    def __call__(self, request: Any) -> Response:
        """Answer *request*."""
        match request:
            case ApiVersionsRequest():
                return ApiVersionsResponse(0, (), "obedient", "c", 1, 1_048_576)
            case JoinGroupRequest(member_id=""):
                self.ids += 1
                return JoinGroupResponse(79, -1, None, None, "", False, f"m-{self.ids}", ())
            case JoinGroupRequest(member_id=member_id):
                self.generation += member_id == "m-1"
                return JoinGroupResponse(
                    0, self.generation, "consumer", "range", "m-1", False, member_id, ()
                )
            case SyncGroupRequest(member_id=member_id, assignments=assignments):
                self.shares |= {share.member_id: share.assignment for share in assignments}
                return SyncGroupResponse(0, "consumer", "range", self.shares[member_id])
            case LeaveGroupRequest(members=members):
                gone = tuple(LeftMember(one.member_id, None, 0) for one in members)
                return LeaveGroupResponse(0, gone)
        raise AssertionError(request)


def serve(listener: socket.socket, answer: Answer) -> None:
    """Serve one connection."""
    sock, _ = listener.accept()
    connection = ServerConnection()
    with sock:
        while data := sock.recv(1 << 16):
            for event in connection.receive(data):
                assert isinstance(event, RequestEvent)
                frame = encode_response(
                    event.correlation_id,
                    answer(event.request),
                    api_key=event.api_key,
                    api_version=event.api_version,
                )
                sock.sendall(frame)


@contextmanager
def wires(answer: Answer) -> Iterator[Wires]:
    """Connect to a server that answers so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, answer), daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        one = Wires("127.0.0.1", port, connections=1)
        try:
            yield one
        finally:
            for sock in one.socks:
                sock.close()
            one.epoll.close()
            thread.join(10)


def test_a_group_comes_and_shrinks() -> None:
    """One after another joins, and each round has one less."""
    timed: list[str] = []

    def note(run: Callable[[], None]) -> None:
        timed.append("round")
        run()

    with wires(Obedient()) as connected:
        group = BenchGroup(connected, "g")
        group.come(3)
        group.leave(note)

    assert group.members == ["m-1", "m-2"]  # The leader stays.
    assert timed == ["round"]
    assert {beat.generation_id for beat in group.heartbeats()} == {group.generation}


def spoiled(what: str) -> Answer:
    """Return a server that errs once the group is there."""
    obedient = Obedient()

    def answer(request: Any) -> Response:
        response = obedient(request)
        is_later = obedient.ids == 3 and obedient.generation > 2
        if what == "generation" and is_later and isinstance(response, JoinGroupResponse):
            return response._replace(generation_id=1)
        if what == "assignment" and is_later and isinstance(response, SyncGroupResponse):
            return response._replace(assignment=b"")
        if what == "error" and is_later and isinstance(response, SyncGroupResponse):
            return response._replace(error=27)
        return response

    return answer


@pytest.mark.parametrize("what", ["generation", "assignment", "error"])
def test_a_wrong_answer_ends_the_run(what: str) -> None:
    """A server must not look fast because it does less."""
    with wires(spoiled(what)) as connected:
        group = BenchGroup(connected, "g")
        group.come(3)

        with pytest.raises(LoadError):
            group.leave()


def test_cpu_time_is_finer_than_a_tick() -> None:
    """A rebalance of ten members takes less than the 10 ms of /proc."""
    before = cpu_ns(os.getpid())
    sum(range(10_000))

    assert 0 < cpu_ns(os.getpid()) - before < 5_000_000_000
