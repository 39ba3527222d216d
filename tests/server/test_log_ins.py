"""Listeners with SASL: nobody asks anything before he is known, and nobody guesses fast."""

import gc
import hashlib
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing
from scramp import ScramClient
from trio.testing import MockClock

from coordinator.config import ConfigError, load_settings
from coordinator.runtime.poller import SLICE_S
from coordinator.runtime.shard import Status
from coordinator.security.log_ins import LogIns
from coordinator.security.sasl import credential_of
from protocol import messages as m
from protocol.acls import Operation, PatternType, ResourceType
from protocol.errors import ErrorCode as E
from protocol.messages import APIS, ApiKey
from protocol.scram import SALT_BYTES, Mechanism
from tests.fakes.disk import Disk
from tests.fakes.transport import MemoryTransport
from tests.server.test_turns import until_soon
from tests.server.world import Client, World, answer_or_end, beat, commit, join, world

SCRAM: Final = "SCRAM-SHA-256"
SECRET: Final = "sesame-7f3a"


@asynccontextmanager
async def guarded(tmp_path: Path, *settings: str, disk: Disk | None = None) -> AsyncIterator[World]:
    """Run a daemon whose one listener has SASL; the first administrator is root."""
    password = tmp_path / "password"
    password.write_text(f"{SECRET}\n")
    async with world(
        "listeners=SASL_PLAINTEXT://127.0.0.1:9310",
        "sasl.bootstrap.user=root",
        f"sasl.bootstrap.password.file={password}",
        *settings,
        disk=disk,
    ) as here:
        yield here


async def log_in(client: Client, name: str, password: str, mechanism: str = SCRAM) -> Any:
    """Log in by SCRAM; return the last answer, None if the connection was closed."""
    answer = await answer_or_end(client, m.SaslHandshakeRequest(mechanism))
    if answer is None or answer.error:
        return answer
    ours = ScramClient([mechanism], name, password)
    answer = await answer_or_end(
        client, m.SaslAuthenticateRequest(ours.get_client_first().encode())
    )
    if answer is None or answer.error:
        return answer
    ours.set_server_first(answer.auth_bytes.decode())
    return await answer_or_end(client, m.SaslAuthenticateRequest(ours.get_client_final().encode()))


async def known(here: World, name: str = "root", password: str = SECRET, **where: Any) -> Client:
    """Return a connection that is logged in."""
    client = here.connect(**where)
    answer = await log_in(client, name, password)
    assert answer.error == 0
    return client


def password_of(user: str, password: str) -> m.AlterUserScramCredentialsRequest:
    """Return the request that gives a user a password."""
    fresh = f"{user} {password}".encode().ljust(SALT_BYTES)[:SALT_BYTES]
    salt, stored, server, iterations = credential_of(password, SCRAM, salt=fresh)
    mechanism = Mechanism.SCRAM_SHA_256
    upsertion = m.ScramUpsertion(user, mechanism, iterations, salt, stored, server)
    return m.AlterUserScramCredentialsRequest((), (upsertion,))


async def bob_of(here: World) -> Client:
    """Return a connection that is logged in as Bob, who has a password from here on."""
    admin = await known(here)
    await admin.ask(password_of("bob", "first"))
    return await known(here, "bob", "first")


def told(here: World, name: str) -> list[dict[str, Any]]:
    """Return what events of a name say."""
    return [fields for event, fields in here.events if event == name]


@pytest.mark.parametrize("key", [key for key in APIS if key not in {18, 17, 36}])
async def test_a_stranger_gets_34_and_is_cut_off(
    key: ApiKey, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whatever it asks, also what would be parked; only a hello is answered before."""
    async with guarded(tmp_path) as here:
        client = here.connect()
        hello: Any = await client.ask(m.ApiVersionsRequest("me", "test", "1"))
        assert hello.error == 0
        sent = client.send(APIS[key].example.request)
        answer: Any = (await client.answer(sent)).response
        assert m.first_error(answer) == E.ILLEGAL_SASL_STATE
        assert client.transport.closed
        (line,) = told(here, "access.refused")
        assert (line["principal"], line["peer"]) == ("User:ANONYMOUS", "192.0.2.1")
        assert (line["error"], line["why"]) == (E.ILLEGAL_SASL_STATE, "nobody has logged in")
        assert here.metrics["requests_parked"]() == 0


async def test_a_stranger_sends_only_little(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A frame of 4 KiB is enough for a log-in, and nothing larger is waited for."""
    async with guarded(tmp_path) as here:
        client = here.connect()
        client.transport.put((4_097).to_bytes(4))
        await trio.testing.wait_all_tasks_blocked()
        client.transport.put(bytes(14))
        await trio.testing.wait_all_tasks_blocked()
        assert client.transport.closed

        client = await known(here)
        answer: Any = await client.ask(commit(1, *range(1_000)))
        assert answer.error == 0


async def test_who_does_not_log_in_in_time_is_cut_off(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """However much it asks that it may."""
    async with guarded(tmp_path) as here:
        client = here.connect()
        for _ in range(3):
            await client.ask(m.ApiVersionsRequest("me", "test", "1"))
            await trio.sleep(3)
        assert not client.transport.closed
        await trio.sleep(3)
        assert client.transport.closed
        assert here.environment.telemetry.connections_closed["unauthenticated"] == 1


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_session_that_has_ended_is_gone(
    is_guarded: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """At once: the collector would let a thousand of them lie."""
    async with guarded(tmp_path) if is_guarded else world() as here:
        gc.collect()
        gc.disable()
        try:
            for end in (MemoryTransport.end, MemoryTransport.reset):
                client = await known(here) if is_guarded else here.connect()
                await client.ask(beat())
                session = next(iter(here.server.sessions))
                theirs: list[weakref.ref[Any]] = [weakref.ref(session)]
                gate: Any = session.gate
                if gate is not None:
                    theirs += [weakref.ref(gate), weakref.ref(gate._access)]
                del session, gate
                end(client.transport)
                del client
                await trio.sleep(1)
                # What was decided last is remembered until the next request.
                await (await known(here) if is_guarded else here.connect()).ask(beat())
                assert [None] * len(theirs) == [one() for one in theirs]
                for session in here.server.sessions:
                    session.close()
        finally:
            gc.enable()


async def test_failures_look_alike_and_come_late(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A wrong password and a user who isn't there: same answer, same delay; three tries."""
    async with guarded(tmp_path) as here:
        seen = []
        for number, (name, password) in enumerate([("root", "wrong"), ("nobody", SECRET)]):
            client = here.connect(peer=f"192.0.2.{number}")
            for failures in range(1, 4):
                began_s = trio.current_time()
                answer = await log_in(client, name, password)
                await trio.testing.wait_all_tasks_blocked()
                took_s = trio.current_time() - began_s
                seen.append((number, answer, took_s))
                assert client.transport.closed == (failures == 3)
                await trio.sleep(1)
        for (_, one, one_s), (_, other, other_s) in zip(seen[:3], seen[3:], strict=True):
            assert (one, abs(one_s - other_s) < 0.05) == (other, True)
        answer = seen[0][1]
        assert (answer.error, answer.message) == (58, "authentication failed")
        assert all(took_s >= 0.1 for _, _, took_s in seen)
        reasons = {line["reason"] for line in told(here, "login.refused")}
        assert any("no such user" in reason for reason in reasons)
        assert SECRET not in repr(here.events)


async def test_an_address_fails_ten_times_a_second_at_most(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """However many connections it has; another address is as quick as ever."""
    async with guarded(tmp_path) as here:
        clients = [here.connect() for _ in range(30)]
        counted = here.environment.telemetry.log_ins
        answered_s: list[float] = []

        async def guess(client: Client) -> None:
            answer = await log_in(client, "root", "guess")
            if answer is not None:
                answered_s.append(trio.current_time())

        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(guess, client)
            with trio.fail_after(0.1):  # Before the first one is answered.
                while sum(counted.values()) < 30:  # noqa: ASYNC110 - a counter tells nobody
                    await trio.sleep(0.01)
            assert (counted[SCRAM, "failed"], counted[SCRAM, "limited"]) == (10, 20)
            assert sum(client.transport.closed for client in clients) == 20
            await known(here, peer="192.0.2.99")
            assert trio.current_time() - began_s < 0.1
        took_s = [round(at_s - began_s, 1) for at_s in answered_s]
        assert took_s == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


@pytest.mark.parametrize("why", ["failures", "connections", "end"])
async def test_who_is_cut_off_for_what_he_asks_leaves_nothing_counted(
    why: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Else what all may have under way is used up by strangers, until nobody is heard any more."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"etl {hashlib.sha256(b'token').hexdigest()} 2023-11-14T22:13:30Z\n")
    bearer = ("sasl.enabled.mechanisms=SCRAM-SHA-256,OAUTHBEARER", f"sasl.tokens.file={tokens}")
    async with guarded(tmp_path, *bearer) as here:
        match why:
            case "failures":
                for _ in range(11):
                    client = here.connect()
                    client.send(m.SaslHandshakeRequest("none"))
                await trio.testing.wait_all_tasks_blocked()
            case "connections":
                admin = await known(here)
                await admin.ask(password_of("bob", "b"))
                only_one = m.AlteredPrincipal("User:bob", (m.QuotaChange("connections", 1),))
                await admin.ask(m.AlterClientQuotasRequest((only_one,)))
                first = await known(here, "bob", "b")
                client = here.connect()
                assert await log_in(client, "bob", "b") is None
                assert not first.transport.closed
            case _:
                client = here.connect()
                await answer_or_end(client, m.SaslHandshakeRequest("OAUTHBEARER"))
                said = m.SaslAuthenticateRequest(b"n,,\x01auth=Bearer token\x01\x01")
                assert (await answer_or_end(client, said)).error == 0
                here.wall_ms += 10_000
                client.send(beat())
                await trio.testing.wait_all_tasks_blocked()
        assert client.transport.closed
        await trio.sleep(2)  # Others are answered late.
        assert here.metrics["requests_waiting_bytes"]() == 0


async def test_who_came_by_one_listener_is_not_sent_to_another(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """There he would need what he hasn't shown, or could not log in; also where rules narrow."""
    async with guarded(
        tmp_path,
        "listeners=127.0.0.1:9311,SASL_PLAINTEXT://127.0.0.1:9310,127.0.0.2:9312",
        "advertised.listeners=SASL_PLAINTEXT://a.example:7",
        "allow.everyone.if.no.acl.found=true",
    ) as here:
        root = here.connect(listener=1)
        assert (await log_in(root, "root", SECRET)).error == 0
        denied = m.Acl(
            ResourceType.GROUP, "secret", PatternType.LITERAL, "User:*", "*", Operation.DESCRIBE, 2
        )
        await root.ask(m.CreateAclsRequest((denied,)))
        found = []
        for client in (root, here.connect(), here.connect(listener=2)):
            answer: Any = await client.ask(m.FindCoordinatorRequest(0, ("secret", "g")))
            found.append([(one.error, one.host, one.port) for one in answer.coordinators])
        assert found == [
            [(0, "a.example", 7)] * 2,
            [(30, "", -1), (0, "127.0.0.1", 9311)],
            [(30, "", -1), (0, "127.0.0.2", 9312)],
        ]


async def test_nothing_is_decided_by_a_password_once_it_is_gone(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much was asked by it before; what was decided is answered."""
    async with guarded(tmp_path) as here:
        admin = await known(here)
        await admin.ask(password_of("bob", "first"))
        await admin.ask(
            m.CreateAclsRequest(
                tuple(
                    m.Acl(kind, "*", PatternType.LITERAL, "User:bob", "*", Operation.READ, 3)
                    for kind in (ResourceType.GROUP, ResourceType.TOPIC)
                )
            )
        )
        bobs = [await known(here, "bob", "first") for _ in range(5)]
        dispatch, decided = here.server.dispatcher.dispatch, list[str]()

        def costing(call: Any, *rest: Any) -> None:
            dispatch(call, *rest)
            group_id = getattr(call.request, "group_id", "")
            if group_id.startswith("of-bob"):
                decided.append(group_id)
                autojump_clock.jump(SLICE_S / 4)

        monkeypatch.setattr(here.server.dispatcher, "dispatch", costing)
        for number, bob in enumerate(bobs):
            commits = [commit(1, group_id=f"of-bob-{number}-{n}") for n in range(100)]
            bob.transport.put(b"".join(bob.frame(one)[1] for one in commits))
        await trio.sleep(SLICE_S)
        changed = admin.send(password_of("bob", "second"))
        await until_soon(lambda: admin.has(changed))
        before = len(decided)
        await trio.sleep(3)

        assert 0 < before == len(decided) < 500
        assert all(bob.transport.closed for bob in bobs)
        assert sum(len(bob.answers()) for bob in bobs) >= before


async def test_a_log_in_ends_with_the_password(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A new password or none ends the connections that were made with the old one, at once."""
    async with guarded(tmp_path) as here:
        admin = await known(here)
        answer: Any = await admin.ask(password_of("bob", "first"))
        assert m.first_error(answer) == 0
        bob = await known(here, "bob", "first")
        other = await known(here, "bob", "first")
        await admin.ask(password_of("bob", "second"))
        assert (bob.transport.closed, other.transport.closed) == (True, True)
        assert (await log_in(here.connect(), "bob", "first")).error == 58
        bob = await known(here, "bob", "second")
        gone = m.AlterUserScramCredentialsRequest(
            (m.ScramDeletion("bob", Mechanism.SCRAM_SHA_256),), ()
        )
        await admin.ask(gone)
        assert bob.transport.closed
        assert not admin.transport.closed
        assert {line["by"] for line in told(here, "user.altered")} == {"User:root"}


async def test_sessions_outlive_a_time_in_which_users_are_not_known(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A node of a cluster may have to read them anew: then nobody would have a password."""
    async with guarded(tmp_path) as here:
        bob = await bob_of(here)
        here.node.registry.drop(here.node.now())
        assert not here.node.registry.core.users
        here.node.tell_changes(here.node.now())
        await trio.sleep(3)  # Every session is looked at once a second.

        assert not bob.transport.closed


async def test_a_session_ends_unless_it_logs_in_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """After connections.max.reauth.ms; on the same connection, as the same principal only."""
    async with guarded(tmp_path, "connections.max.reauth.ms=5000") as here:
        admin = await known(here)
        await admin.ask(password_of("bob", "first"))
        again, other, silent = [await known(here, "bob", "first") for _ in range(3)]
        answer = await log_in(again, "bob", "first")
        assert (answer.error, answer.session_lifetime_ms) == (0, 5_000)
        answer = await log_in(other, "root", SECRET)
        assert answer.error == 58
        await trio.testing.wait_all_tasks_blocked()
        assert other.transport.closed
        here.wall_ms += 5_000
        await trio.sleep(1.1)
        assert silent.transport.closed


async def test_who_fails_to_log_in_again_can_not_try_as_another(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Behind the failure, which is answered late: he would be past the other's quotas."""
    async with guarded(tmp_path) as here:
        bob = await bob_of(here)
        failed = bob.send(m.SaslAuthenticateRequest(b"x"))
        again = bob.send(m.SaslHandshakeRequest(SCRAM))
        await trio.sleep(2)

        assert (bob.has(failed), bob.has(again)) == (True, False)
        assert bob.transport.closed


async def test_a_token_ends_the_connection_with_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Static ones are in a file as hashes, with their end."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"etl {hashlib.sha256(b'token').hexdigest()} 2023-11-14T22:13:30Z\n")
    settings = ("sasl.enabled.mechanisms=OAUTHBEARER", f"sasl.tokens.file={tokens}")
    async with guarded(tmp_path, *settings, "super.users=User:etl") as here:
        client = here.connect()
        assert (await answer_or_end(client, m.SaslHandshakeRequest("OAUTHBEARER"))).error == 0
        first = b"n,,\x01auth=Bearer token\x01\x01"
        answer = await answer_or_end(client, m.SaslAuthenticateRequest(first))
        assert (answer.error, answer.session_lifetime_ms) == (0, 10_000)
        assert (await client.ask(commit())).topics[0].partitions[0].error == 0  # type: ignore[attr-defined]  # of a commit
        here.wall_ms += 10_000
        assert await answer_or_end(client, commit()) is None
        assert client.transport.closed


async def test_a_token_that_is_taken_out_of_its_file_ends_its_connections(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whoever takes it out, as it was stolen say, wants its bearer to be gone."""
    tokens = tmp_path / "tokens"
    hashes = [hashlib.sha256(word.encode()).hexdigest() for word in ("token", "other")]
    tokens.write_text(f"etl {hashes[0]}\nbob {hashes[1]}\n")
    settings = ("sasl.enabled.mechanisms=OAUTHBEARER", f"sasl.tokens.file={tokens}")
    async with guarded(tmp_path, *settings) as here:
        clients = [here.connect(), here.connect()]
        for client, word in zip(clients, ("token", "other"), strict=True):
            await answer_or_end(client, m.SaslHandshakeRequest("OAUTHBEARER"))
            said = m.SaslAuthenticateRequest(f"n,,\x01auth=Bearer {word}\x01\x01".encode())
            assert (await answer_or_end(client, said)).error == 0
        tokens.write_text(f"bob {hashes[1]}\n")
        assert here.log_ins is not None
        here.log_ins.watch()
        here.log_ins.watch()
        await trio.sleep(2)

        assert [client.transport.closed for client in clients] == [True, False]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.LOADING, E.COORDINATOR_LOAD_IN_PROGRESS),
        (Status.STARTING, E.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_while_users_are_not_known_yet_a_log_in_is_told_to_come_back(
    status: Status, error: E, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """To be refused would end a client for good that only came too early."""
    async with guarded(tmp_path) as here:
        here.node.registry.status = status
        client = here.connect()
        answer = await answer_or_end(client, m.SaslHandshakeRequest(SCRAM))
        assert answer.error == error
        here.node.registry.status = Status.ACTIVE
        assert (await log_in(client, "root", SECRET)).error == 0


def test_a_secret_that_is_known_later_makes_up_the_same_credentials(tmp_path: Path) -> None:
    """A node of a cluster has it from ZooKeeper; other salts would tell who is no user."""
    password = tmp_path / "password"
    password.write_text(SECRET)
    settings = load_settings(
        overrides=[
            "listeners=SASL_PLAINTEXT://127.0.0.1:9310",
            "sasl.bootstrap.user=root",
            f"sasl.bootstrap.password.file={password}",
        ]
    )

    def credentials(secret: bytes, *, is_late: bool) -> list[Any]:
        log_ins = LogIns(settings, lambda _name, _fields: None)
        log_ins.over(Nobody())
        if not is_late:
            log_ins.take_secret(secret)
        accounts = log_ins.accounts(lambda: b"")
        if is_late:
            log_ins.take_secret(secret)
        looks = accounts._credential, accounts._made_up
        return [look(name, SCRAM) for look in looks for name in ("root", "nobody")]

    at_once = credentials(b"secret", is_late=False)
    assert credentials(b"secret", is_late=True) == at_once
    assert credentials(b"another", is_late=True) != at_once


class Nobody:
    """The users of a cluster that has none."""

    def credential(self, name: str, mechanism: str) -> None:
        """Return None: there is no such user."""


async def test_a_listener_without_sasl_knows_no_log_in() -> None:
    """Kafka's answer to who tries: 34."""
    async with world() as here:
        client = here.connect()
        assert await client.error(m.SaslHandshakeRequest(SCRAM)) == E.ILLEGAL_SASL_STATE
        assert await client.error(beat()) == E.UNKNOWN_MEMBER_ID


async def test_beside_a_listener_with_sasl_the_others_refuse_too() -> None:
    """Who comes by another door is anonymous, and may nothing; a log-in there is Kafka's 34."""
    doors = "listeners=PLAINTEXT://127.0.0.1:1,SASL_PLAINTEXT://127.0.0.1:2"
    async with world(doors, "super.users=User:a") as here:
        client = here.connect()
        assert await client.error(m.SaslHandshakeRequest(SCRAM)) == E.ILLEGAL_SASL_STATE
        assert await client.error(beat()) == E.GROUP_AUTHORIZATION_FAILED


async def test_the_member_of_a_principal_is_bound_to_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Who knows a member id, or an instance id, can't speak for it; not after a restart either."""
    disk = Disk()
    everybody = "allow.everyone.if.no.acl.found=true"
    async with guarded(tmp_path, everybody, disk=disk) as here:
        admin = await known(here)
        await admin.ask(password_of("alice", "a"))
        await admin.ask(password_of("bob", "b"))
        alice, bob = await known(here, "alice", "a"), await known(here, "bob", "b")
        member_id = await alice.join_alone()
        stolen = m.OffsetCommitRequest("g", 1, member_id, None, commit().topics)
        for request in (
            beat(member_id),
            join("g", member_id),
            stolen,
            m.SyncGroupRequest("g", 1, member_id, None, None, None, ()),
        ):
            assert await bob.error(request) == E.UNKNOWN_MEMBER_ID
        assert await alice.error(beat(member_id)) == 0
        pending = await alice.member_id("other")
        assert await bob.error(join("other", pending)) == E.UNKNOWN_MEMBER_ID
        line = told(here, "access.refused")[0]
        assert (line["principal"], line["peer"], line["error"]) == ("User:bob", "192.0.2.1", 25)
    disk.kill()
    async with guarded(tmp_path, everybody, disk=disk) as here:
        alice, bob = await known(here, "alice", "a"), await known(here, "bob", "b")
        assert await bob.error(beat(member_id)) == E.UNKNOWN_MEMBER_ID
        assert await alice.error(beat(member_id)) == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ((), "name an administrator in super.users"),
        (("sasl.bootstrap.user=root",), "belong together"),
        (("sasl.bootstrap.user=*", "sasl.bootstrap.password.file=/p"), "nobody in particular"),
        (("super.users=alice",), "no principal such as User:alice"),
        (("super.users=User:a", "sasl.enabled.mechanisms=PLAIN"), "is not SCRAM-SHA-256"),
        (("super.users=User:a", "sasl.enabled.mechanisms=OAUTHBEARER"), "needs sasl.tokens.file"),
        (("super.users=User:a", "sasl.tokens.file=/t"), "has no OAUTHBEARER"),
    ],
)
def test_a_start_that_lets_nobody_in_is_refused(settings: tuple[str, ...], says: str) -> None:
    """It would look healthy, and serve nobody."""
    with pytest.raises(ConfigError, match=says):
        load_settings(overrides=["listeners=SASL_PLAINTEXT://127.0.0.1:0", *settings])
