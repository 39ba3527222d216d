"""Addresses, the order of commits, and codes in words."""

import asyncio
import math
import pickle
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from client.api import connect, parse_addresses
from client.exceptions import CommitRefused, CoordinatorUnavailable, FatalError, code_text
from client.offsets import CommitOrder
from protocol.partition import TopicPartition
from tests.client.conftest import World


def test_addresses_as_people_write_them() -> None:
    """One or several, with IPv6 in brackets."""
    assert parse_addresses("localhost:9310") == [("localhost", 9310)]
    assert parse_addresses(["a:1", "[::1]:65535"]) == [("a", 1), ("::1", 65535)]


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        b"host:1",
        ["a:1", 5],
        "",
        "host",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "h:x",
        "h:²",
    ],
)
def test_what_is_no_address_is_named(text: Any) -> None:
    """A typo in a setting must not become a connection timeout."""
    with pytest.raises(ValueError, match="host:port"):
        parse_addresses(text)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("client_id", ""),
        ("client_id", 5),
        ("request_timeout_ms", "30"),
        ("request_timeout_ms", math.nan),
        ("leave_timeout_ms", -1),
    ],
)
async def test_a_setting_that_makes_no_sense_is_named(argument: str, value: object) -> None:
    """Before anything is connected: a timeout that is no number was one without end."""
    with pytest.raises(ValueError, match=f"{argument} must be .*, not {value!r}"):
        async with connect("host:1", **{argument: value}):  # type: ignore[arg-type]  # Wrong.
            pass


def test_no_address_at_all() -> None:
    """An empty list is most likely an empty setting."""
    with pytest.raises(ValueError, match="at least one"):
        parse_addresses([])


async def test_a_commit_that_is_given_up_lets_the_next_one_wait_for_the_first(
    autojump_clock: MockClock,
) -> None:
    """Cancelling the middle of a line must not let its end overtake its head."""
    commits, order = CommitOrder(), list[str]()

    async def work(name: str, seconds: float) -> None:
        async with commits.turn(["t-0"], math.inf):
            await trio.sleep(seconds)
            order.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, "first", 10)
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(work, "middle", 1)
                await wait_all_tasks_blocked()
                nursery.start_soon(work, "last", 1)
                await wait_all_tasks_blocked()
                scope.cancel()

    assert order == ["first", "last"]


def test_codes_print_with_name_number_and_meaning() -> None:
    """Whoever reads a log should not need the table."""
    assert code_text(22).startswith("ILLEGAL_GENERATION (22): ")
    assert code_text(4711) == "unknown error code 4711"
    assert code_text(69, "there is no such group").lower().count("no such group") == 1
    assert code_text(69, "it was deleted").endswith("There is no such group. it was deleted")
    refused = CommitRefused({TopicPartition("t", 1): 12, TopicPartition("t", 0): 4711})
    assert str(refused).startswith("the commit was refused for t-0: unknown error code 4711, t-1: ")
    assert str(CommitRefused({TopicPartition("t", 1): 1005}, "its quota is 9")).endswith(" 9")
    assert FatalError("x", code=82).code == 82


def test_errors_survive_pickle() -> None:
    """A pool of processes hands them over so; one that can't be read breaks the pool."""
    refused = CommitRefused({TopicPartition("t", 0): 1003}, "it is at 7", maybe_stored=True)
    gone = CoordinatorUnavailable("gone", cause=ConnectionRefusedError(111, "refused"))
    read, read_too = pickle.loads(pickle.dumps((refused, gone)))

    assert (str(read), read.errors, read.maybe_stored) == (str(refused), refused.errors, True)
    assert (str(read_too), repr(read_too.cause)) == ("gone", repr(gone.cause))


async def test_a_client_outside_its_trio_program_says_so(
    autojump_clock: MockClock, world: World
) -> None:
    """Such as in a thread with an event loop of its own."""
    async with world.connect() as client:
        with pytest.raises(RuntimeError, match="in its trio program only"):
            await trio.to_thread.run_sync(asyncio.run, client.list_groups())
