"""The blocking facade, from ordinary threads."""

import queue
import threading
from collections.abc import Callable

import pytest
import trio

from client import ClientClosed, CoordinatorUnavailable, OffsetAndMetadata, TopicPartition
from client.blocking import BlockingClient
from protocol import messages as m
from tests.client.threads import T0, T1, connect_to, in_threads
from tests.fakes.scripted_server import Hang, Hold, ScriptedServer


def test_a_member_lives_its_life_without_await() -> None:
    """The facade has the same calls with the same meaning."""
    server = ScriptedServer()
    with connect_to(server) as client:
        assert client.cluster_id == "scripted-cluster"

        with client.join("g", ["t"], lambda _topic: range(2)) as member:
            assignment = member.assignment(timeout_s=60)

            assert assignment.partitions == (T0, T1)
            assert (member.rebalance_needed, member.lost) == (False, False)

            member.commit({T0: 3}, expected={T0: -1})

            assert {T0: OffsetAndMetadata(3)} == member.fetch([T0, T1])

            member.request_rejoin("more partitions")

            assert member.rebalance_needed
            assert member.assignment().generation == 2

    assert len(server.requests(m.LeaveGroupRequest)) == 1


def test_several_threads_share_a_client() -> None:
    """Each thread gets its own answers, and none is lost."""
    server = ScriptedServer()
    with connect_to(server) as client:

        def work(number: int) -> None:
            tp = TopicPartition("t", number)
            for offset in range(20):
                client.commit("g", {tp: offset})
                assert {tp: OffsetAndMetadata(offset)} == client.fetch_offsets("g", [tp])

        in_threads(*(lambda n=number: work(n) for number in range(8)))

        assert {TopicPartition("t", n): OffsetAndMetadata(19) for n in range(8)} == (
            client.fetch_offsets("g")
        )


def test_an_assignment_that_takes_too_long_can_be_asked_for_again() -> None:
    """A timeout stops the waiting, not the joining."""
    server = ScriptedServer()
    server.script(m.JoinGroupRequest, Hang())
    with (
        connect_to(server) as client,
        client.join("g", ["t"], {"t": 1}) as member,
        pytest.raises(TimeoutError),
    ):
        member.assignment(timeout_s=0)


def test_a_callback_that_raises_reaches_the_caller() -> None:
    """A bug in the caller's own function must not vanish in a background thread."""

    def partitions(_topic: str) -> list[int]:
        raise LookupError("no such folder")

    with (
        connect_to(ScriptedServer()) as client,
        client.join("g", ["t"], partitions) as member,
        pytest.raises(LookupError, match="no such folder"),
    ):
        member.assignment()


def test_nobody_there_is_an_exception_in_the_thread_that_connects() -> None:
    """And the background thread ends."""
    server = ScriptedServer()
    server.unreachable = True
    with pytest.raises(CoordinatorUnavailable), connect_to(server, request_timeout_ms=1):
        pass

    assert [t for t in threading.enumerate() if t.name == "group-client"] == []


def test_closing_ends_calls_that_are_under_way() -> None:
    """A thread that waits for an answer must not wait for ever."""
    server = ScriptedServer()
    client: BlockingClient
    with connect_to(server) as client, client.join("g", ["t"], {"t": 1}) as member:
        member.assignment()
        hanging = client.run_sync(trio.Event)
        server.script(m.OffsetCommitRequest, Hold(hanging))

        def commit() -> None:
            with pytest.raises(ClientClosed):
                member.commit({T0: 1})

        def wait() -> None:
            with pytest.raises(ClientClosed):
                member.wait_rebalance_needed()

        def close() -> None:
            client.run(lambda: _until(lambda: bool(server.requests(m.OffsetCommitRequest))))
            client.close()

        in_threads(commit, wait, close)

        with pytest.raises(ClientClosed):
            client.list_groups()
        assert not member.leave()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


def test_leave_soon_leaves_from_a_signal_handler() -> None:
    """A handler may interrupt the main thread anywhere, a second time as well."""
    server = ScriptedServer()
    with connect_to(server) as client, client.join("g", ["t"], {"t": 1}) as member:
        member.assignment()

        assert member.leave_soon(wait_s=60)
        assert member.leave_soon(wait_s=60)
        assert len(server.requests(m.LeaveGroupRequest)) == 1
        with pytest.raises(ClientClosed):
            member.assignment()

    assert member.leave_soon(wait_s=0)


def test_leave_soon_does_not_need_the_lock_that_another_thread_holds() -> None:
    """The handler may run while the interrupted thread is inside any call of the client."""
    server = ScriptedServer()
    with connect_to(server) as client, client.join("g", ["t"], {"t": 1}) as member:
        member.assignment()
        lock = client.run_sync(trio.lowlevel.current_trio_token)._reentry_queue.lock
        with lock:  # As if the signal came in the middle of run_sync_soon.
            done = queue.SimpleQueue[bool]()
            # Another thread, as an RLock lets its own thread through.
            thread = threading.Thread(target=lambda: done.put(member.leave_soon(wait_s=60)))
            thread.start()

            assert done.get(timeout=60)

            thread.join()


def test_a_callers_interrupt_is_no_wrapped_exception() -> None:
    """`except Rebalanced` around the block must see Rebalanced, not a group around it."""
    with pytest.raises(ZeroDivisionError), connect_to(ScriptedServer()):
        raise ZeroDivisionError
