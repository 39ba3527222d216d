"""The blocking facade, from ordinary threads: calls, callbacks and stored offsets."""

import inspect
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from client import (
    Client,
    ClientClosed,
    CoordinatorUnavailable,
    FatalError,
    Member,
    OffsetAndMetadata,
    TopicPartition,
)
from client.blocking import BlockingClient, BlockingMember
from client.operators import Lag
from protocol import messages as m
from tests.client.threads import T0, T1, connect_to, in_threads
from tests.fakes.log_server import LogServer
from tests.fakes.offsets_log import OffsetsLog
from tests.fakes.scan_pages import page_of
from tests.fakes.scripted_server import Answer, Hang, Hold, ScriptedServer, group_requests


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
        hanging = client.run(_event)
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


async def _event() -> trio.Event:
    return trio.Event()


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
        lock = client._thread.token._reentry_queue.lock
        with lock:  # As if the signal came in the middle of run_sync_soon.
            done = queue.SimpleQueue[bool]()
            # Another thread, as an RLock lets its own thread through.
            thread = threading.Thread(target=lambda: done.put(member.leave_soon(wait_s=60)))
            thread.start()

            assert done.get(timeout=60)

            thread.join()


def test_a_fork_can_neither_use_nor_end_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would answer; and a pool's worker has its parent's handlers, and its sockets."""
    server = ScriptedServer()
    with connect_to(server) as client, client.join("g", ["t"], {"t": 2}) as member:
        member.assignment()
        with monkeypatch.context() as fork:
            fork.setattr(os, "getpid", lambda: -1)
            with pytest.raises(ClientClosed, match="forked"):
                client.list_groups()
            with pytest.raises(ClientClosed, match="forked"):
                member.commit({T0: 1})
            assert member.leave_soon()
        member.commit({T0: 2})

        assert server.requests(m.LeaveGroupRequest) == []

    assert [2] == [entry.offset for entry in server.offsets.values()]


def test_a_callers_interrupt_is_no_wrapped_exception() -> None:
    """`except Rebalanced` around the block must see Rebalanced, not a group around it."""
    with pytest.raises(ZeroDivisionError), connect_to(ScriptedServer()):
        raise ZeroDivisionError


def joined(client: BlockingClient, **callbacks: Any) -> Any:
    """Join a group whose only member leads it and reads two partitions."""
    return client.join("g", ["t"], {"t": 2}, **callbacks)


def test_callbacks_may_call_the_member_that_calls_them() -> None:
    """They run while another thread waits in `assignment`, so nothing here may wait for that."""
    server = ScriptedServer()
    told: list[object] = []
    here = threading.get_ident()

    def assigned(partitions: tuple[TopicPartition, ...]) -> None:
        told.append(("assigned", partitions, member.fetch(partitions)))
        assert threading.get_ident() != here

    def revoked(partitions: tuple[TopicPartition, ...]) -> None:
        member.commit(dict.fromkeys(partitions, 7))
        told.append(("revoked", partitions, client.fetch_offsets("g")))

    with (
        connect_to(server) as client,
        joined(client, on_assigned=assigned, on_revoked=revoked) as member,
    ):
        member.assignment()
        member.request_rejoin("again")
        member.assignment()
        seven = {T0: OffsetAndMetadata(7), T1: OffsetAndMetadata(7)}

        assert told == [
            ("assigned", (T0, T1), {}),
            ("revoked", (T0, T1), seven),
            ("assigned", (T0, T1), seven),
        ]

        server.offsets.clear()

    assert told[3:] == [("revoked", (T0, T1), seven)]
    assert group_requests(server)[-3:] == ["OffsetCommit", "OffsetFetch", "LeaveGroup"]


def test_a_callback_that_asks_for_the_assignment_is_told_not_to() -> None:
    """It would wait for itself, for ever."""

    def assigned(_partitions: tuple[TopicPartition, ...]) -> None:
        member.assignment()

    with (
        connect_to(ScriptedServer()) as client,
        joined(client, on_assigned=assigned) as member,
    ):
        with pytest.raises(RuntimeError, match="can't call assignment"):
            member.assignment()
        assert member.assignment().partitions == (T0, T1)


def test_what_several_threads_have_stored_is_committed() -> None:
    """A worker per partition is what `store` is for."""
    server = ScriptedServer()
    with connect_to(server) as client, joined(client) as member:
        member.assignment()

        def work(tp: TopicPartition) -> None:
            for offset in range(50):
                member.store({tp: offset})

        in_threads(lambda: work(T0), lambda: work(T1))
        assert member.fetch() == {}

        member.commit()

        assert member.fetch() == {T0: OffsetAndMetadata(49), T1: OffsetAndMetadata(49)}


def test_the_end_of_the_block_commits_what_was_stored() -> None:
    """With auto-commit nothing that was processed is done again after a planned stop."""
    server = ScriptedServer()
    with (
        connect_to(server) as client,
        joined(client, auto_commit_interval_ms=3_600_000) as member,
    ):
        member.assignment()
        member.store({T0: 5})

    assert [5] == [entry.offset for entry in server.offsets.values()]
    with pytest.raises(ClientClosed):
        member.store({T0: 6})


def test_a_callback_that_fails_in_a_signal_handler_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody waits for it there, and the group must be left all the same."""

    def revoked(_partitions: tuple[TopicPartition, ...]) -> None:
        raise LookupError("no such worker")

    server = ScriptedServer()
    with connect_to(server) as client, joined(client, on_revoked=revoked) as member:
        member.assignment()

        assert member.leave_soon(wait_s=60)

        assert len(server.requests(m.LeaveGroupRequest)) == 1
        assert client.list_groups()  # The client's thread has survived it.
    assert "no such worker" in caplog.text


@pytest.mark.parametrize(
    ("blocking", "inner"), [(BlockingClient, Client), (BlockingMember, Member)]
)
def test_every_call_is_there_without_await(blocking: type, inner: type) -> None:
    """Whoever registers topics or describes groups is seldom a trio program."""
    calls = {
        name: call
        for name, call in inspect.getmembers(inner, inspect.iscoroutinefunction)
        if not name.startswith("_") and name != "aclose"
    }

    assert len(calls) >= 5
    for name in calls:
        own = getattr(blocking, name)
        assert not inspect.iscoroutinefunction(own), name
        assert own.__doc__, name


def test_an_error_of_an_operators_call_is_raised_in_the_thread_that_made_it() -> None:
    """With its code, as without threads."""
    server = ScriptedServer()
    with connect_to(server) as client:
        client.register_topics({"t": 2})

        assert [topic.partition_count for topic in client.describe_topics(["t"])] == [2]

        server.script(m.ReportEndOffsetsRequest, 42)
        with pytest.raises(FatalError) as caught:
            client.report_end_offsets({T0: 1})

        assert caught.value.code == 42


def test_what_happens_to_offsets_is_for_an_ordinary_loop() -> None:
    """A loop that is left is gone on with by the next one; waiting can have an end."""
    log = OffsetsLog()
    log.commit("g", "t", 0, 5)
    with connect_to(LogServer(log)) as client:
        watch = client.watch_offsets(["g"], from_beginning=True)
        for event in watch:
            assert event.kind == "scan"
            break
        assert [5] == [next(watch).offset]
        with pytest.raises(TimeoutError):
            watch.page(timeout_s=0)
        log.remove("g", "t", 0)
        assert ["removed"] == [event.kind for event in watch.page()]


def test_insight_into_groups_is_there_too() -> None:
    """Each call reaches the coordinator with its arguments."""
    server = ScriptedServer()
    lag = m.DescribeLagResponse(
        0, None, "g", (m.TopicLag("t", (m.PartitionLag(0, 1, 3, 2, 0, 0, ""),)),)
    )
    columns = page_of([m.ScannedOffset("g", "t", 0, 5, -1, "", 1, -1)])
    page = m.ScanOffsetsResponse(0, 4, (), b"", (columns,))
    server.script(m.DescribeLagRequest, *[Answer(lag)] * 2)
    server.script(
        m.DescribeRebalancesRequest, Answer(m.DescribeRebalancesResponse(0, None, "g", ()))
    )
    server.script(m.OffsetDeleteRequest, Answer(m.OffsetDeleteResponse(0, ())))
    server.script(m.AlterGroupRetentionRequest, Answer(m.AlterGroupRetentionResponse(0)))
    server.script(m.LeaveGroupRequest, Answer(m.LeaveGroupResponse(0, (m.LeftMember("", "i", 0),))))
    server.script(m.ScanOffsetsRequest, Answer(page))
    server.script(m.ReadOffsetChangesRequest, Answer(m.ReadOffsetChangesResponse(0, (), 6, 6)))
    with connect_to(server) as client, client.join("g", ["t"], {"t": 1}) as member:
        assert member.lag() == client.lag("g") == {T0: Lag(1, 3, 2, None)}
        assert client.rebalances("g", 3) == []
        assert client.delete_offsets("g", [T0]) == {}
        client.set_offsets_retention("g", 5)
        assert client.remove_static_members("g", ["i"]) == {"i": 0}
        assert client.offsets_partition("g") == 0
        scan = client.scan_offset_columns(7)
        assert [offset.offset for offset in scan] == [5]
        assert client.offset_changes(7, scan.position, 3).next_position == 6

    assert server.requests(
        m.DescribeRebalancesRequest,
        m.AlterGroupRetentionRequest,
        m.ScanOffsetsRequest,
        m.ReadOffsetChangesRequest,
    ) == [
        m.DescribeRebalancesRequest("g", 3),
        m.AlterGroupRetentionRequest("g", 5),
        m.ScanOffsetsRequest(7, b"", 20_000, in_columns=True),
        m.ReadOffsetChangesRequest(7, 4, 3),
    ]
