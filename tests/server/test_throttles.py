"""Quotas in force: who takes more than he may waits for it, and nobody else does."""

from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from coordinator.server.throttles import WAIT_MAX_MS
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
        await limit(admin, "", byte_rate=4_000)
        _, frame = alice.frame(commit(1, *range(1_000)))
        began_s = trio.current_time()
        asked = alice.send(commit(1, *range(1_000)))
        event = await alice.answer(asked)
        answer_bytes = len(alice.transport.received)
        assert event.throttle_time_ms >= (len(frame) - 4_000) / 4
        assert event.throttle_time_ms <= (len(frame) + answer_bytes - 4_000) / 4
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


def take_time(w: World, clock: MockClock, patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let each request about the group "long" take so long to decide."""
    dispatch = w.server.dispatcher.dispatch

    def slowly(call: Any, *rest: Any) -> None:
        if getattr(call.request, "group_id", "") == "long":
            clock.jump(seconds)
        dispatch(call, *rest)

    patch.setattr(w.server.dispatcher, "dispatch", slowly)


async def test_who_takes_too_much_time_gets_his_share_of_it(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth for alice, however few requests that is; bob's cost little, and wait for nothing."""
    async with guarded(tmp_path, EVERYBODY) as here:
        admin, alice, bob = await two_users(here)
        take_time(here, autojump_clock, monkeypatch, 0.05)
        await limit(admin, "User:alice", request_percentage=10)
        began_s = trio.current_time()
        sent = [alice.send(beat(group_id="long")) for _ in range(100)]
        while trio.current_time() - began_s < 10:
            await trio.sleep(0.5)
            assert (await bob.answer(bob.send(beat()))).throttle_time_ms == 0
        waits = waits_ms(alice, sent)
        assert 20 <= len(waits) <= 25
        assert set(waits[:2]) == {0}  # A burst, from when the quota was set.
        assert all(300 <= wait <= 500 for wait in waits[2:])

        await limit(admin, "User:alice", request_percentage=None)
        await trio.testing.wait_all_tasks_blocked()
        assert len(waits_ms(alice, sent)) == 100


async def test_time_that_no_answer_pays_for_is_taken_at_the_end_of_the_turn(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is that of what is answered in slices, when its session has no turn."""
    async with guarded(tmp_path, EVERYBODY) as here:
        admin, alice, _ = await two_users(here)
        await limit(admin, "User:alice", request_percentage=1)
        (session,) = [s for s in here.server.sessions if s.caller.principal == "User:alice"]
        session.spend(0.02)
        asked = alice.send(beat())
        await trio.testing.wait_all_tasks_blocked()
        assert asked not in alice.answers()
        await trio.sleep(1.01)
        assert asked in alice.answers()
        assert session.spent_us() == 0

        await trio.sleep(10)
        dispatch = here.server.dispatcher.dispatch

        def slowly(call: Any, *rest: Any) -> None:
            dispatch(call, *rest)
            autojump_clock.jump(0.02)

        monkeypatch.setattr(here.server.dispatcher, "dispatch", slowly)
        first, second = alice.send(beat()), alice.send(beat())
        await trio.testing.wait_all_tasks_blocked()
        assert first in alice.answers()
        assert second not in alice.answers() or alice.answers()[second].throttle_time_ms
        third = alice.send(beat())
        await trio.testing.wait_all_tasks_blocked()
        assert third not in alice.answers()


async def test_nobody_waits_longer_than_a_member_may_be_silent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A quota of a byte a second would have meant hours; who had a member lost it."""
    async with guarded(tmp_path, EVERYBODY) as here:
        admin, alice, _ = await two_users(here)
        await limit(admin, "User:alice", byte_rate=1)
        assert (await alice.answer(alice.send(beat()))).throttle_time_ms == WAIT_MAX_MS
        asked = alice.send(beat())
        await trio.sleep(WAIT_MAX_MS / 1000 - 0.1)
        assert asked not in alice.answers()
        await trio.sleep(0.2)
        assert alice.answers()[asked].throttle_time_ms == WAIT_MAX_MS
        assert here.settings.group_min_session_timeout_ms > WAIT_MAX_MS


async def test_answers_that_tell_to_wait_are_counted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Of all, and of each principal."""
    async with guarded(tmp_path, EVERYBODY) as here:
        admin, alice, bob = await two_users(here)
        await limit(admin, "User:alice", request_rate=2)
        for client in (alice, bob):
            for _ in range(4):
                client.send(beat())
        await trio.sleep(5)
        telemetry = here.environment.telemetry
        assert telemetry.throttled == (2, 1_000)
        assert telemetry.throttled_by == {"User:alice": (2, 1_000)}
