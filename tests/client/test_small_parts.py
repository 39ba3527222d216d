"""Addresses, the order of commits, and codes in words."""

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from client.api import parse_addresses
from client.exceptions import CommitRefused, FatalError, code_text
from client.offsets import CommitOrder
from protocol.partition import TopicPartition


def test_addresses_as_people_write_them() -> None:
    """One or several, with IPv6 in brackets."""
    assert parse_addresses("localhost:9310") == [("localhost", 9310)]
    assert parse_addresses(["a:1", "[::1]:65535"]) == [("a", 1), ("::1", 65535)]


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "h:x", "h:²"])
def test_what_is_no_address_is_named(text: str) -> None:
    """A typo in a setting must not become a connection timeout."""
    with pytest.raises(ValueError, match="host:port"):
        parse_addresses(text)


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
    refused = CommitRefused({TopicPartition("t", 1): 12, TopicPartition("t", 0): 4711})
    assert str(refused).startswith("the commit was refused for t-0: unknown error code 4711, t-1: ")
    assert FatalError("x", code=82).code == 82
