"""Callbacks and stored offsets in ordinary threads."""

import threading
from typing import Any

import pytest

from client import ClientClosed, OffsetAndMetadata, TopicPartition
from client.blocking import BlockingClient
from protocol import messages as m
from tests.client.threads import T0, T1, connect_to, in_threads
from tests.fakes.scripted_server import ScriptedServer, group_requests


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
