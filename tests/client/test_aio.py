"""The client in an asyncio program, under either event loop: calls, cancellation, callbacks."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any

import pytest
import trio
import uvloop
from hypothesis import given, settings, strategies as st

import client as trio_form
from client import (
    ClientClosed,
    CoordinatorUnavailable,
    FatalError,
    OffsetAndMetadata,
    Rebalanced,
    TopicPartition,
    aio,
)
from client.thread import THREAD_NAME
from protocol import messages as m
from tests.client.threads import T0, T1
from tests.fakes.log_server import LogServer
from tests.fakes.offsets_log import OffsetsLog
from tests.fakes.scan_pages import page_of
from tests.fakes.scripted_server import Answer, Hang, ScriptedServer, group_requests

Run = Callable[[Coroutine[Any, Any, None]], None]
CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return what runs an asyncio program."""
    runner: Run = request.param
    return runner


def connect_to(server: ScriptedServer, **options: Any) -> AbstractAsyncContextManager[aio.Client]:
    """Connect with the server in the client's own trio run: no sockets, no other process."""

    async def open_stream(_host: str, _port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if server.unreachable:
            raise ConnectionRefusedError
        ours, theirs = trio.testing.memory_stream_pair()
        trio.lowlevel.spawn_system_task(server.serve, theirs)
        return ours

    return aio.connect("node1:9310", client_id="client", open_stream=open_stream, **options)


def joined(client: aio.Client, **callbacks: Any) -> aio.Member:
    """Join a group whose only member leads it and reads two partitions."""
    return client.join("g", ["t"], {"t": 2}, **callbacks)


async def until(condition: Callable[[], bool]) -> None:
    """Let the other tasks, and the client's thread, go on until *condition* is true."""
    while not condition():  # noqa: ASYNC110 - the other thread sets no event of this loop.
        await asyncio.sleep(0)


def no_thread_is_left() -> bool:
    """Return whether all clients' threads have ended."""
    return THREAD_NAME not in [thread.name for thread in threading.enumerate()]


def test_a_member_lives_its_life(run: Run) -> None:
    """The same calls with the same meaning as under trio."""
    server = ScriptedServer()

    async def main() -> None:
        async with connect_to(server) as client:
            assert client.cluster_id == "scripted-cluster"
            async with joined(client) as member:
                async with asyncio.timeout(60):
                    assignment = await member.assignment()

                assert assignment.partitions == (T0, T1)
                assert (member.group_id, member.member_id) == ("g", assignment.member_id)
                assert (member.rebalance_needed, member.lost) == (False, False)

                await member.commit({T0: 3}, expected={T0: -1})

                assert {T0: OffsetAndMetadata(3)} == await member.fetch([T0, T1])

                await member.request_rejoin("more partitions")
                await member.wait_rebalance_needed()

                assert (await member.assignment()).generation == member.generation == 2
            assert member.has_left

    run(main())

    assert len(server.requests(m.LeaveGroupRequest)) == 1
    assert no_thread_is_left()


def test_tasks_of_a_group_share_a_client(run: Run) -> None:
    """Each task gets its own answers, and none is lost."""

    async def main() -> None:
        async with connect_to(ScriptedServer()) as client:

            async def work(number: int) -> None:
                tp = TopicPartition("t", number)
                for offset in range(20):
                    await client.commit("g", {tp: offset})
                    assert {tp: OffsetAndMetadata(offset)} == await client.fetch_offsets("g", [tp])

            async with asyncio.TaskGroup() as tasks:
                for number in range(8):
                    tasks.create_task(work(number))

            assert {TopicPartition("t", n): OffsetAndMetadata(19) for n in range(8)} == (
                await client.fetch_offsets("g")
            )

    run(main())


def test_an_error_is_raised_in_the_task_that_called(run: Run) -> None:
    """With its class and its code, so that `except` works as under trio."""
    server = ScriptedServer()

    async def main() -> None:
        async with connect_to(server) as client, joined(client) as member:
            await member.assignment()
            server.script(m.OffsetCommitRequest, 22)
            with pytest.raises(Rebalanced):
                await member.commit({T0: 1})
            await client.register_topics({"t": 2})
            server.script(m.ReportEndOffsetsRequest, 42)
            with pytest.raises(FatalError) as caught:
                await client.report_end_offsets({T0: 1})
            assert caught.value.code == 42
            with pytest.raises(ValueError, match="is no offset"):
                await client.commit("g", {T0: -5})

    run(main())


def test_nobody_there_is_raised_where_it_connects(run: Run) -> None:
    """And the thread has ended by then."""
    server = ScriptedServer()
    server.unreachable = True

    async def main() -> None:
        with pytest.raises(CoordinatorUnavailable, match="could not be connected"):
            async with connect_to(server, request_timeout_ms=1):
                pass
        with pytest.raises(ValueError, match="host:port"):
            async with aio.connect("nowhere"):
                pass

    run(main())

    assert no_thread_is_left()


def test_a_timeout_around_connecting_ends_the_thread(run: Run) -> None:
    """A program that gives up must not go on connecting behind its own back."""

    async def open_stream(_host: str, _port: int) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), aio.connect("node1:9310", open_stream=open_stream):
                pass

    run(main())

    assert no_thread_is_left()


def test_a_timeout_stops_the_waiting_and_not_the_joining(run: Run) -> None:
    """As `assignment` promises: call it again."""
    server = ScriptedServer()

    async def main() -> None:
        async with connect_to(server) as client, joined(client) as member:
            server.script(m.JoinGroupRequest, Hang())
            asking = asyncio.create_task(member.assignment())
            await until(lambda: bool(server.requests(m.JoinGroupRequest)))
            asking.cancel()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await member.assignment()
            with pytest.raises(asyncio.CancelledError):
                await asking

        assert len(server.requests(m.JoinGroupRequest)) == 1

    run(main())


def test_a_cancelled_program_leaves_the_group(run: Run) -> None:
    """Cancelled anywhere, it is out of the group before it is over."""
    server = ScriptedServer()

    async def program() -> None:
        async with connect_to(server) as client, joined(client) as member:
            await member.assignment()
            await member.wait_rebalance_needed()

    async def main() -> None:
        task = asyncio.create_task(program())
        await until(lambda: bool(server.requests(m.SyncGroupRequest)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())

    assert len(server.requests(m.LeaveGroupRequest)) == 1
    assert no_thread_is_left()


@settings(max_examples=25, deadline=None)
@given(turns=st.integers(0, 60))
def test_cancellation_at_any_moment_leaves_nothing_behind(turns: int) -> None:
    """Whatever was under way: no thread, no member, and no exception but the cancellation."""
    server = ScriptedServer()

    async def program() -> None:
        async with (
            connect_to(server) as client,
            joined(client, on_revoked=lambda _: None) as member,
        ):
            await member.assignment()
            for offset in range(3):
                await member.commit({T0: offset})
            await member.request_rejoin("again")
            await member.assignment()

    async def main() -> None:
        task = asyncio.create_task(program())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert result is None or isinstance(result, asyncio.CancelledError)

    asyncio.run(main())

    assert no_thread_is_left()
    joined_ids = bool(server.requests(m.SyncGroupRequest))
    assert len(server.requests(m.LeaveGroupRequest)) >= joined_ids
    assert server.open_connections == 0


def test_a_cancelled_commit_is_over_when_it_returns(run: Run) -> None:
    """Nothing of it goes on in the other thread, so a later commit can't be overtaken by it."""
    server = ScriptedServer()

    async def main() -> None:
        async with connect_to(server) as client:
            server.script(m.OffsetCommitRequest, Hang())
            first = asyncio.create_task(client.commit("g", {T0: 1}))
            await until(lambda: bool(server.requests(m.OffsetCommitRequest)))
            first.cancel()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first

            await client.commit("g", {T0: 2})  # Would wait for its turn behind the first.

            assert {T0: OffsetAndMetadata(2)} == await client.fetch_offsets("g")
            assert len(server.requests(m.OffsetCommitRequest)) == 2  # And was not repeated.

    run(main())


def test_a_client_that_is_closed_ends_the_calls_of_other_tasks(run: Run) -> None:
    """A task that waits for an answer must not wait for ever."""
    server = ScriptedServer()

    async def main() -> None:
        async with connect_to(server) as client, joined(client) as member:
            await member.assignment()
            server.script(m.OffsetCommitRequest, Hang())
            waiting: list[asyncio.Task[None]] = [
                asyncio.create_task(member.commit({T0: 1})),
                asyncio.create_task(member.wait_rebalance_needed()),
            ]
            await until(lambda: bool(server.requests(m.OffsetCommitRequest)))
        for task in waiting:
            with pytest.raises(ClientClosed):
                await task
        with pytest.raises(ClientClosed):
            await client.list_groups()
        with pytest.raises(ClientClosed):
            member.store({T0: 1})

    run(main())


def test_callbacks_run_in_the_event_loop_with_the_callers_context(run: Run) -> None:
    """They may use what belongs to the loop, await, and call the member that calls them."""
    server = ScriptedServer()
    told: list[object] = []
    here = threading.get_ident()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def assigned(partitions: tuple[TopicPartition, ...]) -> None:
            assert (threading.get_ident(), asyncio.get_running_loop()) == (here, loop)
            told.append(("assigned", CALLER.get(), await member.fetch(partitions)))

        async def revoked(partitions: tuple[TopicPartition, ...]) -> None:
            await member.commit(dict.fromkeys(partitions, 7))
            told.append(("revoked", CALLER.get(), partitions))

        async with connect_to(server) as client:
            member = joined(client, on_assigned=assigned, on_revoked=revoked)
            async with member:
                CALLER.set("the program")
                await member.assignment()
        assert told == [
            ("assigned", "the program", {}),
            ("revoked", "the program", (T0, T1)),
        ]

    run(main())

    assert group_requests(server)[-2:] == ["OffsetCommit", "LeaveGroup"]


def test_an_ordinary_function_is_a_callback_too(run: Run) -> None:
    """And so is one that tells which partitions there are, async or not."""

    async def slow(_topic: str) -> list[int]:
        await asyncio.sleep(0)
        return [0, 1]

    async def main() -> None:
        told: list[object] = []
        async with connect_to(ScriptedServer()) as client:
            for partitions in (slow, lambda _topic: range(2)):
                member = client.join("g", ["t"], partitions, on_assigned=told.append)
                async with member:
                    await member.assignment()
        assert told == [(T0, T1), (T0, T1)]

    run(main())


def test_what_a_callback_raises_comes_out_of_the_assignment(run: Run) -> None:
    """A bug in the caller's own function must not vanish in another thread."""

    def assigned(_partitions: tuple[TopicPartition, ...]) -> None:
        raise LookupError("no such folder")

    async def main() -> None:
        async with (
            connect_to(ScriptedServer()) as client,
            joined(client, on_assigned=assigned) as member,
        ):
            with pytest.raises(LookupError, match="no such folder"):
                await member.assignment()
            assert (await member.assignment()).partitions == (T0, T1)

    run(main())


def test_a_callback_that_asks_for_the_assignment_is_told_not_to(run: Run) -> None:
    """It would wait for itself, for ever. A task that it began, and that goes on, may ask."""
    later: list[asyncio.Task[object]] = []

    async def ask() -> object:
        await asyncio.sleep(0)
        return await member.assignment()

    async def assigned(_partitions: tuple[TopicPartition, ...]) -> None:
        with pytest.raises(RuntimeError, match="can't call assignment"):
            await member.assignment()
        later.append(asyncio.create_task(ask()))

    member: aio.Member

    async def main() -> None:
        nonlocal member
        async with connect_to(ScriptedServer()) as client:
            member = joined(client, on_assigned=assigned)
            async with member:
                assignment = await member.assignment()
                assert assignment == await later[0]

    run(main())


def test_a_callback_is_cancelled_with_the_assignment_and_called_again(run: Run) -> None:
    """As under trio: it was not told if it was cut off."""
    calls: list[str] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def assigned(_partitions: tuple[TopicPartition, ...]) -> None:
            calls.append("begun")
            begun.set()
            if len(calls) == 1:
                await asyncio.Event().wait()
            calls.append("done")

        async with (
            connect_to(ScriptedServer()) as client,
            joined(client, on_assigned=assigned) as member,
        ):
            asking = asyncio.create_task(member.assignment())
            await begun.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert (await member.assignment()).partitions == (T0, T1)

    run(main())

    assert calls == ["begun", "begun", "done"]


def test_the_end_of_the_block_commits_what_was_stored(run: Run) -> None:
    """With auto-commit nothing that was processed is done again after a planned stop."""
    server = ScriptedServer()

    async def main() -> None:
        async with (
            connect_to(server) as client,
            joined(client, auto_commit_interval_ms=3_600_000) as member,
        ):
            await member.assignment()
            member.store({T0: 5})
            with pytest.raises(Rebalanced):
                member.store({TopicPartition("other", 0): 1})

    run(main())

    assert [5] == [entry.offset for entry in server.offsets.values()]


def test_a_scan_is_for_async_for(run: Run) -> None:
    """With the position where its changes begin."""
    server = ScriptedServer()
    columns = page_of([m.ScannedOffset("g", "t", 0, 5, -1, "", 1, -1)])
    server.script(m.ScanOffsetsRequest, Answer(m.ScanOffsetsResponse(0, 4, (), b"", (columns,))))
    server.script(m.ReadOffsetChangesRequest, Answer(m.ReadOffsetChangesResponse(0, (), 6, 6)))

    async def main() -> None:
        async with connect_to(server) as client:
            scan = client.scan_offset_columns(7)
            assert [5] == [one.offset async for one in scan]
            assert (await client.offset_changes(7, scan.position, 3)).next_position == 6

    run(main())


def test_what_happens_to_offsets_is_for_async_for(run: Run) -> None:
    """A loop that is left, or times out, is gone on with by the next one."""
    log = OffsetsLog()
    log.commit("g", "t", 0, 5)

    async def main() -> None:
        async with connect_to(LogServer(log)) as client:
            watch = client.watch_offsets(["g"], from_beginning=True)
            async for event in watch:
                assert event.kind == "scan"
                break
            assert [5] == [(await anext(watch)).offset]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await watch.page()
            log.remove("g", "t", 0)
            assert ["removed"] == [event.kind for event in await watch.page()]

    run(main())


@pytest.mark.parametrize(
    ("form", "inner"), [(aio.Client, trio_form.Client), (aio.Member, trio_form.Member)]
)
def test_all_of_the_api_is_there(form: type, inner: type) -> None:
    """With the same signatures, which help() and editors show."""
    names = {name for name in dir(inner) if not name.startswith("_")}

    for name in names - {"aclose", "start_soon"}:  # Of the trio run.
        own, theirs = getattr(form, name), getattr(inner, name)
        assert own.__doc__, name
        if callable(theirs):
            assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(theirs), name
            assert [*inspect.signature(own).parameters] == [
                *inspect.signature(theirs).parameters
            ], name


def test_a_client_is_of_one_event_loop(run: Run) -> None:
    """The call isn't made, instead of made without anybody who gets its answer."""
    server = ScriptedServer()

    async def main() -> None:
        async with connect_to(server) as client:
            with pytest.raises(RuntimeError, match="belongs to the event loop it was made in"):
                await asyncio.to_thread(asyncio.run, client.commit("g", {T0: 1}))

    run(main())

    assert server.requests(m.OffsetCommitRequest) == []


async def test_the_asyncio_form_says_so_in_a_trio_program() -> None:
    """Instead of asyncio's own "no running event loop"."""
    with pytest.raises(RuntimeError, match=r"use client\.connect with trio"):
        async with aio.connect("node1:9310"):
            pass


def test_the_trio_form_names_the_other_ones_in_an_asyncio_program(run: Run) -> None:
    """One clear error, and no hanging."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"use client\.aio\.connect with asyncio"):
            async with trio_form.connect("node1:9310"):
                pass

    run(main())
