"""As which address a peer counts."""

import socket
from typing import Any

import pytest
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from coordinator.server.addresses import counted_as, named
from coordinator.server.audit import AUDIT_PERIOD_MS, Audit
from coordinator.server.transport import SocketTransport, listen
from protocol.acls import ANONYMOUS, canonical_address, host_problem
from protocol.messages import DescribeGroupsRequest, DescribeGroupsResponse
from tests.server.world import world


@pytest.mark.parametrize(
    ("peer", "counts_as"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1::1", "2001:db8:0:1::"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::"),
        ("2001:db8:0:2::1", "2001:db8:0:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
        ("spark-1", "spark-1"),
        ("no:address", "no:address"),
    ],
)
def test_a_host_is_one_address(peer: str, counts_as: str) -> None:
    """It has 2^64 of IPv6, and would have a share for each."""
    assert counted_as(peer) == counts_as


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("::192.0.2.1", "::c000:201"),
        ("2001:db8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("no:address", "no:address"),
    ],
)
def test_an_address_has_one_name(peer: str, name: str) -> None:
    """A rule that denies it would not be about it by another one."""
    assert named(peer) == name
    assert canonical_address(name) == (name if host_problem(name) is None else None)


async def test_a_client_of_ipv4_is_itself_where_a_socket_takes_both() -> None:
    """It was denied by its address, and came in as another one."""
    try:
        listener = listen("::", 0)
    except OSError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    with socket.create_connection(("127.0.0.1", listener.port)):
        transport = await listener.accept()
        transport.close()
    listener.close()

    assert ("127.0.0.1", "127.0.0.1") == (transport.peer, transport.counts_as)


def test_a_connection_knows_both() -> None:
    """Whoever counts, and whoever tells, looks there."""
    with socket.socket() as sock:
        transport = SocketTransport(sock, "2001:db8::7")

        assert ("2001:db8::7", "2001:db8::") == (transport.peer, transport.counts_as)


async def test_a_host_fills_no_log(autojump_clock: MockClock) -> None:
    """Each of its addresses would have a line a second; the line names the one that it came by."""
    async with world(max_connections=1) as w:
        with capture_logs() as lines:
            for number in range(3):
                w.connect(f"2001:db8::{number}")
            await trio.testing.wait_all_tasks_blocked()

        assert ["2001:db8::1"] == [line["peer"] for line in lines]


def test_a_host_fills_no_audit() -> None:
    """As little by refusals."""
    told: list[dict[str, Any]] = []
    audit = Audit(lambda _event, fields: told.append(fields))
    for number in range(3):
        audit.tell("login.refused", ANONYMOUS, f"2001:db8::{number}", 0)
    audit.tell("login.refused", ANONYMOUS, "2001:db8::3", AUDIT_PERIOD_MS)

    assert [("2001:db8::0", 0), ("2001:db8::3", 2)] == [(t["peer"], t["left_out"]) for t in told]


async def test_a_group_shows_the_address_itself(autojump_clock: MockClock) -> None:
    """Of the hosts of one network an operator has to find the one."""
    async with world() as w:
        client = w.connect("2001:db8::7")
        await client.join_alone()
        described = await client.ask(DescribeGroupsRequest(("g",)))

        assert isinstance(described, DescribeGroupsResponse)
        assert ["2001:db8::7"] == [one.client_host for one in described.groups[0].members]
