"""Quotas in force: who takes more than he may waits for it, and nobody else does."""

from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol import messages as m
from tests.server.test_log_ins import guarded, known, log_in, password_of, told
from tests.server.world import Client, World, beat, commit, world

EVERYBODY: Final = "allow.everyone.if.no.acl.found=true"


async def limit(admin: Client, principal: str, **quotas: int | None) -> None:
    """Change quotas of a principal, "" for the default."""
    changes = tuple(m.QuotaChange(key, value) for key, value in quotas.items())
    entry = m.AlteredPrincipal(principal, changes)
    answer: Any = await admin.ask(m.AlterClientQuotasRequest((entry,)))
    assert [one.error for one in answer.results] == [0]


async def two_users(here: World) -> tuple[Client, Client, Client]:
    """Return root's connection, and alice's and bob's."""
    admin = await known(here)
    for name in ("alice", "bob"):
        await admin.ask(password_of(name, name))
    return admin, await known(here, "alice", "alice"), await known(here, "bob", "bob")


def waits_ms(client: Client, sent: list[int]) -> list[int]:
    """Return what the answers that came tell of waiting."""
    answers = client.answers()
    return [answers[one].throttle_time_ms for one in sent if one in answers]


async def test_who_asks_too_fast_gets_his_rate_and_nobody_else_waits(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Ten times as much as alice may, for ten seconds, all of it sent at once."""
    async with guarded(tmp_path, EVERYBODY) as here:
        admin, alice, bob = await two_users(here)
        await limit(admin, "User:alice", request_rate=20)
        sent = [alice.send(beat()) for _ in range(2_000)]
        for second in range(10):
            await trio.testing.wait_all_tasks_blocked()
            # One burst, and the one request after which she owes.
            assert abs(len(waits_ms(alice, sent)) - 20 * (second + 1)) <= 1
            for _ in range(10):
                asked = bob.send(beat())
                assert (await bob.answer(asked)).throttle_time_ms == 0
            await trio.sleep(1)
        waits = waits_ms(alice, sent)
        assert set(waits[:20]) == {0}
        assert all(40 <= wait <= 50 for wait in waits[20:])
        assert here.event_names().count("connection.closed") == 0


async def test_all_connections_of_a_principal_take_from_one_bucket(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """However many it has; and to connect anew takes nothing back."""
    async with guarded(tmp_path, EVERYBODY) as here:
        admin, alice, _ = await two_users(here)
        clients = [alice, *[await known(here, "alice", "alice") for _ in range(3)]]
        await limit(admin, "User:alice", request_rate=10)
        sent = [[client.send(beat()) for _ in range(200)] for client in clients]
        await trio.sleep(10.05)
        done = sum(len(waits_ms(*pair)) for pair in zip(clients, sent, strict=True))
        assert 95 <= done <= 115

        for client in clients:
            client.transport.end()
        again = await known(here, "alice", "alice")
        asked = again.send(beat())
        assert (await again.answer(asked)).throttle_time_ms > 0


async def test_bytes_of_requests_and_answers_are_counted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A long commit is answered at once, and paid for before the next request is read."""
    async with guarded(tmp_path, EVERYBODY) as here:
        admin, alice, bob = await two_users(here)
        await limit(admin, "", byte_rate=1_000)
        _, frame = alice.frame(commit(1, *range(1_000)))
        began_s = trio.current_time()
        asked = alice.send(commit(1, *range(1_000)))
        event = await alice.answer(asked)
        answer_bytes = len(alice.transport.received)
        assert event.throttle_time_ms >= len(frame) - 1_000
        assert event.throttle_time_ms <= len(frame) + answer_bytes - 1_000
        following = alice.send(beat())
        await trio.testing.wait_all_tasks_blocked()
        assert following not in alice.answers()
        assert (await bob.answer(bob.send(beat()))).throttle_time_ms == 0
        while following not in alice.answers():  # noqa: ASYNC110 - a fake tells nobody
            await trio.sleep(0.01)
        assert abs((trio.current_time() - began_s) * 1000 - event.throttle_time_ms) <= 20


@pytest.mark.parametrize("new_rate", [None, 1_000])
async def test_another_quota_is_in_force_at_once(
    tmp_path: Path, new_rate: int | None, autojump_clock: MockClock
) -> None:
    """Also for who waits under the one before, and has a minute to go."""
    async with guarded(tmp_path, EVERYBODY) as here:
        admin, alice, _ = await two_users(here)
        await limit(admin, "User:alice", request_rate=1)
        sent = [alice.send(beat()) for _ in range(60)]
        await trio.testing.wait_all_tasks_blocked()
        assert len(waits_ms(alice, sent)) == 2
        await limit(admin, "User:alice", request_rate=new_rate)
        await trio.testing.wait_all_tasks_blocked()
        assert len(waits_ms(alice, sent)) == 60

        await limit(admin, "User:alice", request_rate=1)
        sent = [alice.send(beat()) for _ in range(60)]
        await trio.testing.wait_all_tasks_blocked()
        assert len(waits_ms(alice, sent)) == 2


async def test_what_is_refused_counts_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A request of an unknown API costs what an answer costs."""
    async with guarded(tmp_path) as here:
        admin, alice, _ = await two_users(here)
        await limit(admin, "User:alice", request_rate=5)
        unknown = bytes([0, 0, 0, 8, 3, 231, 0, 0, 0, 0, 0, 9])
        before = len(alice.transport.received)
        alice.transport.put(unknown * 100)
        await trio.testing.wait_all_tasks_blocked()
        answer = alice.transport.received[before : before + 18]
        assert len(alice.transport.received) - before == 6 * len(answer)


async def test_who_waits_and_goes_is_forgotten(tmp_path: Path, autojump_clock: MockClock) -> None:
    """His alarm finds nobody; while he waits, nobody calls him idle."""
    async with guarded(tmp_path, EVERYBODY, "connections.max.idle.ms=10000") as here:
        admin, alice, bob = await two_users(here)
        for name in ("alice", "bob"):
            await limit(admin, f"User:{name}", request_rate=1)
        for client in (alice, bob):
            for _ in range(40):
                client.send(beat())
        await trio.sleep(5)
        bob.transport.reset()
        await trio.sleep(25)
        assert not alice.transport.closed
        assert bob.transport.closed


async def test_a_principal_has_so_many_connections(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """One more is closed instead of answered; who leaves makes room."""
    async with guarded(tmp_path) as here:
        admin, alice, _ = await two_users(here)
        await limit(admin, "User:alice", connections=2)
        await known(here, "alice", "alice")
        third = here.connect(peer="192.0.2.7")
        assert await log_in(third, "alice", "alice") is None
        assert third.transport.closed
        assert here.environment.telemetry.connections_refused["quota"] == 1
        assert (await log_in(alice, "alice", "alice")).error == 0

        alice.transport.end()
        await trio.testing.wait_all_tasks_blocked()
        await known(here, "alice", "alice")
        await known(here, "bob", "bob")
        assert told(here, "login.refused") == []


async def test_who_needs_no_log_in_has_so_many_connections_too(autojump_clock: MockClock) -> None:
    """The anonymous, as those whom a certificate names; under the default's quota here."""
    doors = "listeners=PLAINTEXT://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:2"
    async with world(doors, "super.users=User:ANONYMOUS") as here:
        first = here.connect()
        await limit(first, "", connections=2)
        second, third = here.connect(), here.connect()
        await trio.testing.wait_all_tasks_blocked()
        assert [client.transport.closed for client in (first, second, third)] == [
            False,
            False,
            True,
        ]
        assert here.environment.telemetry.connections_refused["quota"] == 1


async def test_where_nobody_says_who_he_is_nothing_is_limited(autojump_clock: MockClock) -> None:
    """A quota may lie in the log from other times."""
    async with world() as here:
        client = here.connect()
        await limit(client, "", request_rate=1, connections=1)
        other = here.connect()
        sent = [other.send(beat()) for _ in range(100)]
        await trio.testing.wait_all_tasks_blocked()
        assert waits_ms(other, sent) == [0] * 100
