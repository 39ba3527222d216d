"""The matrix of rights in a running daemon: refused before any effect, and without a trace."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing
from msgspec import structs
from trio.testing import MockClock

from coordinator.group.acls import Rules
from coordinator.runtime.calls import Call, CallQueue
from coordinator.runtime.poller import SLICE_S
from coordinator.server.authorization import Authorizer
from protocol import messages as m
from protocol.acls import CLUSTER, Operation as Op, PatternType, ResourceType as T
from protocol.errors import ErrorCode as E
from protocol.scram import Mechanism
from tests.fakes.disk import Disk
from tests.server.test_authorization import ERRORS, MATRIX, REQUESTS, errors_of
from tests.server.test_log_ins import guarded, known, password_of, told
from tests.server.test_sockets import door, peers, until
from tests.server.test_turns import until_soon
from tests.server.world import Client, World, beat, commit, join

NAMES: Final = {T.CLUSTER: CLUSTER, T.GROUP: "*", T.TOPIC: "*"}


async def grant(admin: Client, *rights: tuple[Op, T] | tuple[Op, T, str]) -> None:
    """Let Alice do that."""
    acls = tuple(
        m.Acl(
            kind,
            name[0] if name else NAMES[kind],
            PatternType.LITERAL,
            "User:alice",
            "*",
            operation,
            3,
        )
        for operation, kind, *name in rights
    )
    answer: Any = await admin.ask(m.CreateAclsRequest(acls))
    assert m.first_error(answer) == 0


def denial(operation: Op, kind: T, name: str = "*") -> m.CreateAclsRequest:
    """Return the request that denies that to Alice."""
    acl = m.Acl(kind, name, PatternType.LITERAL, "User:alice", "*", operation, 2)
    return m.CreateAclsRequest((acl,))


def removal(user: str) -> m.AlterUserScramCredentialsRequest:
    """Return the request that takes away a user's password."""
    deletion = m.ScramDeletion(user, Mechanism.SCRAM_SHA_256)
    return m.AlterUserScramCredentialsRequest((deletion,), ())


async def both(here: World) -> tuple[Client, Client]:
    """Return connections of the administrator's and of Alice's, who may do nothing."""
    admin = await known(here)
    await admin.ask(password_of("alice", "a"))
    return admin, await known(here, "alice", "a")


def records(here: World) -> int:
    """Return how many entries the log has in all."""
    node = here.node
    partitions = [*(shard.partition for shard in node.shards), node.registry.partition]
    return sum(map(here.journal.end_offset, partitions))


@pytest.mark.parametrize("kind", [k for k in MATRIX if MATRIX[k]], ids=lambda k: k.__name__)
async def test_without_a_right_nothing_happens(
    kind: type[m.Request], tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The first right that is missing says which error; and the log has nothing new."""
    async with guarded(tmp_path) as here:
        _, alice = await both(here)
        before = records(here)
        answer = await alice.ask(REQUESTS[kind])
        assert errors_of(answer) - {0} == {ERRORS[MATRIX[kind][0][1]]}
        assert records(here) == before
        line = told(here, "access.refused")[-1]
        assert (line["principal"], line["peer"]) == ("User:alice", "192.0.2.1")


@pytest.mark.parametrize("kind", MATRIX, ids=lambda k: k.__name__)
async def test_with_its_rights_a_request_is_decided(
    kind: type[m.Request], tmp_path: Path, autojump_clock: MockClock
) -> None:
    """On a connection that was there before the rules were."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, *MATRIX[kind])
        answer = await alice.ask(REQUESTS[kind])
        assert not errors_of(answer) & {29, 30, 31}


async def test_the_topics_that_are_allowed_go_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each refused one in its place; and what is committed is nothing else."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC, "t"))
        topics = (m.TopicCommit("secret", commit().topics[0].partitions), *commit().topics)
        answer: Any = await alice.ask(m.OffsetCommitRequest("g", -1, "", None, topics))
        errors = [(t.topic, t.partitions[0].error) for t in answer.topics]
        assert errors == [("secret", 29), ("t", 0)]
        group = here.node.shard_of("g").core.groups["g"]
        assert list(group.offsets) == ["t"]


async def test_what_may_not_be_seen_is_in_no_list(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Neither groups nor topics; and a page has as many as it may, whatever was left out."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        for group_id in ("mine", "secret"):
            await admin.ask(commit(group_id=group_id))
        topics = tuple(m.TopicRegistration(t, 1, None) for t in ("a-secret", "b-secret", "mine"))
        await admin.ask(m.RegisterTopicsRequest(topics, is_observed=False))
        await grant(admin, (Op.DESCRIBE, T.GROUP, "mine"), (Op.DESCRIBE, T.TOPIC, "mine"))
        groups: Any = await alice.ask(m.ListGroupsRequest((), ()))
        assert [g.group_id for g in groups.groups] == ["mine"]
        lag: Any = await alice.ask(m.SummarizeGroupsRequest(None, (), b"", 2, 0))
        assert ([g.group_id for g in lag.groups], lag.cursor) == (["mine"], b"")
        for pattern in (None, ".*"):
            asked = m.DescribeTopicsRequest(None, pattern, False, "", 1)
            found: Any = await alice.ask(asked)
            assert [t.topic for t in found.topics] == ["mine"]
            assert not found.has_more


async def test_no_page_of_groups_ends_at_a_hidden_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Where the next one begins is told by the name of a group."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        for group_id in ("mine-1", "mine-2", *(f"secret-{n}" for n in range(20))):
            await admin.ask(commit(group_id=group_id))
        for name in ("mine-1", "mine-2"):
            await grant(admin, (Op.DESCRIBE, T.GROUP, name))
        seen, cursor, pages = set(), b"", 0
        while cursor or not pages:
            page: Any = await alice.ask(m.SummarizeGroupsRequest(None, (), cursor, 1, 0))
            seen |= {one.group_id for one in page.groups}
            cursor, pages = page.cursor, pages + 1
            assert b"secret" not in cursor
        assert seen == {"mine-1", "mine-2"}


async def test_of_a_group_only_topics_that_are_seen_are_shown(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its lag and its offsets, whether it is asked for alone or with others."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await admin.ask(commit())
        topics = (m.TopicCommit("secret", commit().topics[0].partitions),)
        await admin.ask(m.OffsetCommitRequest("g", -1, "", None, topics))
        await grant(admin, (Op.DESCRIBE, T.GROUP), (Op.DESCRIBE, T.TOPIC, "t"))
        lag: Any = await alice.ask(m.DescribeLagRequest("g"))
        assert [one.topic for one in lag.topics] == ["t"]
        for times in (1, 2):
            fetches = (m.GroupFetch("g", None),) * times
            found: Any = await alice.ask(m.OffsetFetchRequest(fetches, False))
            assert [[t.topic for t in g.topics] for g in found.groups] == [["t"]] * times


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("topics", [1, 2_000])
async def test_what_a_fetch_may_not_is_refused_in_its_place(
    groups: int, topics: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whether it is long or short, alone or with others; and the audit hears of it."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await admin.ask(commit(7))
        await grant(admin, (Op.DESCRIBE, T.GROUP, "g"), (Op.DESCRIBE, T.TOPIC, "t"))
        asked = (m.TopicPartitions("secret", (3,)), m.TopicPartitions("t", (0, 1))) * topics
        fetches = (m.GroupFetch("g", asked),) * groups
        found: Any = await alice.ask(m.OffsetFetchRequest(fetches, False))
        refused = m.TopicOffsets("secret", (m.PartitionOffset(3, -1, -1, "", 29),))
        shown = (m.PartitionOffset(0, 7, -1, "", 0), m.PartitionOffset(1, -1, -1, "", 0))

        assert (
            found.groups
            == (m.GroupOffsets("g", 0, (refused, m.TopicOffsets("t", shown)) * topics),) * groups
        )
        assert told(here, "access.refused")[-1]["why"] == "no right to all of it"
        counted = here.environment.telemetry.errors
        assert counted == {(m.ApiKey.OFFSET_FETCH, E.TOPIC_AUTHORIZATION_FAILED): 1}


@pytest.mark.parametrize("others", [0, 1, 150])
async def test_a_group_that_somebody_may_not_see_counts_in_a_fetch_whatever_others_it_names(
    others: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """docs/metrics.md says that what somebody may not is counted by its error."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        names = tuple(f"g{n}" for n in range(others))
        for group_id in names:
            await admin.ask(commit(1, group_id=group_id))
        await grant(admin, (Op.DESCRIBE, T.TOPIC), *((Op.DESCRIBE, T.GROUP, n) for n in names))
        for group_ids in (("secret", *names), (*names, "secret")):
            for topics in (None, (m.TopicPartitions("t", (0,)),)):
                fetches = tuple(m.GroupFetch(group_id, topics) for group_id in group_ids)
                await alice.ask(m.OffsetFetchRequest(fetches, False))

        counted = here.environment.telemetry.errors
        assert counted[m.ApiKey.OFFSET_FETCH, E.GROUP_AUTHORIZATION_FAILED] == 4


MANY: Final = tuple(f"t{n}" for n in range(5_000))


def make_rules_slow(clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it take 20 us to look up what somebody may do with something."""
    granted = Rules.granted

    def slowly(self: Rules, *of: Any) -> int:
        clock.jump(20e-6)
        return granted(self, *of)

    monkeypatch.setattr(Rules, "granted", slowly)


def many_commits(offset: int) -> m.OffsetCommitRequest:
    """Return a commit of many topics."""
    commits = (m.PartitionCommit(0, offset, -1, "", None),)
    topics = tuple(m.TopicCommit(topic, commits) for topic in MANY)
    return m.OffsetCommitRequest("g", -1, "", None, topics)


async def test_who_names_much_is_judged_behind_everybody_else_and_in_order(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client sends behind it is decided behind it: the offset that is later, say."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC))
        make_rules_slow(autojump_clock, monkeypatch)
        monkeypatch.setattr("coordinator.server.authorization.NAMES_KEPT", 100)
        later = structs.replace(many_commits(2), topics=many_commits(2).topics[:1])
        frames = [alice.frame(request) for request in (many_commits(1), later)]
        alice.transport.put(b"".join(frame for _, frame in frames))
        beats = 0
        while not alice.has(frames[1][0]):
            began_s, beats = trio.current_time(), beats + 1
            sent = admin.send(beat())
            await until_soon(partial(admin.has, sent))
            assert trio.current_time() - began_s <= 10 * SLICE_S
            await trio.sleep(SLICE_S / 10)

        assert beats >= 5
        assert alice.has(frames[0][0])
        stored = here.node.shard_of("g").core.groups["g"].offsets
        assert [2, 1] == [stored[topic].offsets[0].offset for topic in MANY[:2]]


async def test_what_is_judged_is_counted(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for its turns in memory; many of them were room that no limit saw."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC))
        make_rules_slow(autojump_clock, monkeypatch)
        sent, frame = alice.frame(many_commits(1))
        alice.transport.put(frame)
        await trio.sleep(5 * SLICE_S)
        held = here.server.sessions.held
        assert not alice.has(sent)
        assert held.bytes == len(frame) - 4
        await until_soon(partial(alice.has, sent))
        assert held.bytes == 0
        alice.send(many_commits(1))
        await trio.sleep(5 * SLICE_S)
        alice.transport.reset()
        await trio.sleep(1)
        assert held.bytes == 0


async def test_those_who_are_judged_have_one_slice_of_a_round(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had a turn of its own before everybody else, as the first one is quick to read."""

    def mask(_self: Authorizer, _principal: str, _host: str, _kind: T, name: str) -> int:
        if name.startswith("long"):
            mock_clock.jump(20e-6)
        return -1

    monkeypatch.setattr(Authorizer, "mask", mask)
    monkeypatch.setattr("coordinator.server.authorization.NAMES_KEPT", 1)
    topics = tuple(m.TopicPartitions(f"long{n:03d}{'x' * 40}", (0,)) for n in range(110))
    fetch = m.OffsetFetchRequest((m.GroupFetch("g", topics),), False)
    password = tmp_path / "password"
    password.write_text("x\n", encoding="utf-8")
    settings = (
        "listeners=PLAINTEXT://127.0.0.1:9310,SASL_PLAINTEXT://127.0.0.1:9311",
        "sasl.bootstrap.user=root",
        f"sasl.bootstrap.password.file={password}",
    )
    slices = []
    async with door(*settings) as here:
        with peers(here, 10) as (friend, *greedy):
            await until(lambda: len(here.sessions()) == 10)
            for number in range(1, 10):
                for peer in greedy:
                    peer.send(fetch)
                began_s = trio.current_time()
                friend.send(beat())
                await until(partial(friend.has, number))
                slices.append((trio.current_time() - began_s) / SLICE_S)
                await until(lambda: all(peer.has(number) for peer in greedy))  # noqa: B023 - called in this turn

    assert max(slices[1:]) < 3  # In the first turn nobody is known to ask for much.


async def denied_halfway(
    admin: Client, alice: Client, deletion: m.Request, kind: T, left: Callable[[], int]
) -> tuple[Any, int]:
    """Deny Alice to delete once some is gone; return her answer, and what was left at that time."""
    whole = left()
    sent = alice.send(deletion)
    await until_soon(lambda: left() < whole)
    denied = admin.send(denial(Op.DELETE, kind))
    await until_soon(partial(admin.has, denied))
    before = left()
    await until_soon(partial(alice.has, sent))
    return alice.answers()[sent].response, before


def registration(partitions: int, *names: str) -> m.RegisterTopicsRequest:
    """Return the registration of topics with so many partitions."""
    topics = tuple(m.TopicRegistration(name, partitions, None) for name in names)
    return m.RegisterTopicsRequest(topics)


def make_portions_slow(
    here: World, clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: type[m.Request]
) -> None:
    """Let each portion of such a request take longer than a slice."""
    decide = here.node.decide

    def slowly(request: Any, *rest: Any) -> None:
        decide(request, *rest)
        if isinstance(request, kind):
            clock.jump(2 * SLICE_S)

    monkeypatch.setattr(here.node, "decide", slowly)


async def test_topics_are_deleted_by_the_rules_of_that_moment(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A denial is in force from its answer on, also in the middle of a long request."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await admin.ask(registration(1, *MANY))
        await grant(admin, (Op.DELETE, T.TOPIC))
        make_portions_slow(here, autojump_clock, monkeypatch, m.DeleteTopicsRequest)
        registry = here.node.registry.core.registry

        def left() -> int:
            return len([name for name in MANY if registry.partition_count(name)])

        request = m.DeleteTopicsRequest(MANY)
        answer, before = await denied_halfway(admin, alice, request, T.TOPIC, left)

        assert left() == before > 0
        errors = [topic.error for topic in answer.topics]
        assert errors == [0] * (len(MANY) - before) + [E.TOPIC_AUTHORIZATION_FAILED] * before
        assert told(here, "access.refused")[0]["principal"] == "User:alice"


async def test_nothing_more_is_deleted_for_who_is_removed_halfway(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules would still allow it; a dismissed administrator could go on giving out rights."""
    async with guarded(tmp_path, "super.users=User:root;User:alice") as here:
        admin, alice = await both(here)
        await admin.ask(registration(1, *MANY))
        make_portions_slow(here, autojump_clock, monkeypatch, m.DeleteTopicsRequest)
        registry = here.node.registry.core.registry

        def left() -> int:
            return len([name for name in MANY if registry.partition_count(name)])

        sent = alice.send(m.DeleteTopicsRequest(MANY))
        await until_soon(lambda: left() < len(MANY))
        removed = admin.send(removal("alice"))
        await until_soon(partial(admin.has, removed))
        before = left()
        await until_soon(lambda: alice.transport.closed)

        assert left() == before > 0
        assert m.first_error(alice.answers()[sent].response) == E.ILLEGAL_SASL_STATE


LISTS: Final[tuple[m.Request, ...]] = (
    m.ListGroupsRequest((), ()),
    m.SummarizeGroupsRequest(None, (), b"", 100, 0),
    m.DescribeTopicsRequest(None, None, False, "", 100),
    m.DescribeTopicsRequest(None, ".*", False, "", 100),
    m.ScanOffsetsRequest(0, b"", 100, True, None, None),
    m.ReadOffsetChangesRequest(0, 0, 100),
    m.DescribeAclsRequest(1, None, 1, None, None, 1, 1),
    m.OffsetFetchRequest((m.GroupFetch("g", None), m.GroupFetch("h", None)), False),
)


@pytest.mark.parametrize("request_", LISTS, ids=lambda request: type(request).__name__)
async def test_a_removed_user_sees_nothing_in_an_answer_that_waits_for_its_turn(
    request_: m.Request, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules that name the user are still there, and would show everything."""
    may_go_on, take = trio.Event(), CallQueue.take

    async def take_late(queue: CallQueue[Any]) -> tuple[Any, Any]:
        found = await take(queue)
        await may_go_on.wait()
        return found

    monkeypatch.setattr(CallQueue, "take", take_late)
    async with guarded(tmp_path, "super.users=User:root;User:alice") as here:
        admin, alice = await both(here)
        await admin.ask(registration(1, "t"))
        await admin.ask(commit(1))
        here.node.slices.served = Call(request_)  # So all that takes long gets into the line.
        sent = alice.send(request_)
        await trio.testing.wait_all_tasks_blocked()
        assert not alice.has(sent)
        await admin.ask(removal("alice"))
        may_go_on.set()
        await until_soon(lambda: alice.transport.closed)

        answer: Any = alice.answers()[sent].response
        assert answer == m.error_response(request_, E.ILLEGAL_SASL_STATE)


@pytest.mark.parametrize("kind", [m.ListGroupsRequest, m.SummarizeGroupsRequest])
async def test_a_user_who_is_removed_halfway_through_a_list_gets_none_of_it(
    kind: type[m.Request],
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list of 100,000 groups is made for seconds, and its groups may come in that time."""
    async with guarded(tmp_path, "super.users=User:root;User:alice") as here:
        admin, alice = await both(here)
        looks = 0
        look = "list_groups" if kind is m.ListGroupsRequest else "summaries"

        def slowly(quickly: Callable[..., Iterator[Any]], *what: Any) -> Iterator[Any]:
            nonlocal looks
            for _ in range(50):
                looks += 1
                autojump_clock.jump(2 * SLICE_S)
                yield None
            yield from quickly(*what)

        for shard in here.node.shards:
            monkeypatch.setattr(shard.core, look, partial(slowly, getattr(shard.core, look)))
        (request,) = [one for one in LISTS if type(one) is kind]
        sent = alice.send(request)
        await until_soon(lambda: looks > 0)
        removed = admin.send(removal("alice"))
        await until_soon(partial(admin.has, removed))
        before = looks
        await until_soon(lambda: alice.transport.closed)

        assert 0 < before < 50 * len(here.node.shards)
        assert looks <= before + 1
        assert m.first_error(alice.answers()[sent].response) == E.ILLEGAL_SASL_STATE


@pytest.mark.parametrize("is_denied", [False, True])
async def test_who_joins_with_a_pattern_is_judged_when_it_is_matched(
    is_denied: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whoever joined meanwhile with the same instance id would lose its member."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await admin.ask(registration(1, *MANY))
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC))
        mine = structs.replace(join(), group_instance_id="one")
        waiting = alice.send(structs.replace(mine, topic_pattern="(?:[a-z0-9]?.?){20}b"))
        if is_denied:
            await admin.ask(denial(Op.READ, T.GROUP))
        else:
            admin.send(mine)
        await trio.sleep(4)

        answer: Any = alice.answers()[waiting].response
        assert answer.error == (E.GROUP_AUTHORIZATION_FAILED if is_denied else E.UNKNOWN_MEMBER_ID)
        group = here.node.shard_of("g").core.groups.get("g")
        owners = [] if group is None else [one.principal for one in group.members.values()]
        assert owners == ([] if is_denied else ["User:root"])
        assert [line["principal"] for line in told(here, "access.refused")] == ["User:alice"]


async def test_rules_are_shown_by_the_rules_of_that_turn(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind something long, say: who was denied meanwhile would see what denies him."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.DESCRIBE, T.CLUSTER))
        slices, may_go_on = here.node.slices, trio.Event()
        is_done = slices._is_done
        monkeypatch.setattr(slices, "_is_done", lambda steps: may_go_on.is_set() and is_done(steps))

        async def pause(_asker: object) -> None:
            await trio.sleep(SLICE_S)

        monkeypatch.setattr(slices._share, "pause_for", pause)
        sent = alice.send(m.DescribeAclsRequest(1, None, 1, None, None, 1, 1))
        await admin.ask(denial(Op.DESCRIBE, T.CLUSTER, CLUSTER))
        may_go_on.set()
        await until_soon(partial(alice.has, sent))

        assert m.first_error(alice.answers()[sent].response) == E.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("kind", [m.DescribeGroupsRequest, m.OffsetFetchRequest])
async def test_a_group_is_shown_by_the_rules_of_its_turn(
    kind: type[m.Request],
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what came to it after the denial was answered nothing is seen."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        group_ids = tuple(f"g{n}" for n in range(100))
        for group_id in group_ids:
            await admin.ask(commit(1, group_id=group_id))
        await grant(admin, (Op.DESCRIBE, T.GROUP), (Op.DESCRIBE, T.TOPIC))
        fetches = tuple(m.GroupFetch(one, None) for one in group_ids)
        is_fetch = kind is m.OffsetFetchRequest
        look = "fetch_in_slices" if is_fetch else "describe_group"

        def slowly(quickly: Any, *what: Any) -> Any:
            autojump_clock.jump(SLICE_S)
            return quickly(*what)

        for shard in here.node.shards:
            quickly = getattr(shard.core, look)
            monkeypatch.setattr(shard.core, look, partial(slowly, quickly))
        request = m.OffsetFetchRequest(fetches, False) if is_fetch else kind(group_ids)
        sent = alice.send(request)
        await trio.sleep(5 * SLICE_S)
        denied = admin.send(denial(Op.DESCRIBE, T.GROUP))
        await until_soon(partial(admin.has, denied))
        assert not alice.has(sent)
        await until_soon(partial(alice.has, sent))

        errors = [group.error for group in alice.answers()[sent].response.groups]  # type: ignore[attr-defined]  # of both
        assert (errors[0], errors[-1]) == (0, E.GROUP_AUTHORIZATION_FAILED)
        (key,) = [key for key, api in m.APIS.items() if api.request is kind]
        assert here.environment.telemetry.errors[key, E.GROUP_AUTHORIZATION_FAILED] == 1


async def test_groups_are_deleted_by_the_rules_of_that_moment(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likewise."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        group_ids = tuple(f"g{n}" for n in range(200))
        for group_id in group_ids:
            await admin.ask(commit(1, group_id=group_id))
        await grant(admin, (Op.DELETE, T.GROUP))
        for shard in here.node.shards:

            def slowly(group_id: str, now: Any, delete: Any = shard.core.delete_group) -> Any:
                autojump_clock.jump(SLICE_S)
                return delete(group_id, now)

            monkeypatch.setattr(shard.core, "delete_group", slowly)

        def left() -> int:
            return sum(len(shard.core.groups) for shard in here.node.shards)

        request = m.DeleteGroupsRequest(group_ids)
        answer, before = await denied_halfway(admin, alice, request, T.GROUP, left)

        assert left() == before > 0
        refused = [one.error for one in answer.groups if one.error]
        assert refused == [E.GROUP_AUTHORIZATION_FAILED] * before


async def test_a_topic_that_others_register_meanwhile_is_not_altered_without_the_right(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may create but not alter, and names it behind a thousand others."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.CREATE, T.TOPIC))
        make_portions_slow(here, autojump_clock, monkeypatch, m.RegisterTopicsRequest)
        registry = here.node.registry.core.registry
        sent = alice.send(registration(7, *MANY))
        await until_soon(lambda: bool(registry.partition_count(MANY[0])))
        first = admin.send(registration(3, MANY[-1]))
        await until_soon(partial(admin.has, first))
        await until_soon(partial(alice.has, sent))

        answer: Any = alice.answers()[sent].response
        assert [topic.error for topic in answer.topics[-2:]] == [0, E.TOPIC_AUTHORIZATION_FAILED]
        assert registry.partition_count(MANY[-1]) == 3


async def test_rules_that_change_while_it_is_judged_are_in_force(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for what it was allowed before; and of the rest all offsets are in force together."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC))
        make_rules_slow(autojump_clock, monkeypatch)
        sent = alice.send(many_commits(1))
        await trio.sleep(10 * SLICE_S)
        denied = admin.send(denial(Op.READ, T.TOPIC, "t0"))
        await until_soon(partial(admin.has, denied))
        assert not alice.has(sent)
        assert "g" not in here.node.shard_of("g").core.groups

        await until_soon(partial(alice.has, sent))
        errors = [t.partitions[0].error for t in alice.answers()[sent].response.topics]  # type: ignore[attr-defined]  # a commit's
        assert errors == [29] + [0] * (len(MANY) - 1)
        assert list(here.node.shard_of("g").core.groups["g"].offsets) == list(MANY[1:])


async def test_what_is_only_shown_less_of_is_no_refusal(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """All offsets of a group, say: whoever reads the audit would look for an attack."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC, "mine"))
        await admin.ask(commit(7))
        fetch = m.OffsetFetchRequest((m.GroupFetch("g", None),), False)
        answer: Any = await alice.ask(fetch)
        assert [(g.error, g.topics) for g in answer.groups] == [(0, ())]
        assert told(here, "access.refused") == []


async def test_a_member_that_may_not_read_its_only_topic_is_refused_beside_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The leader knows nothing of its rights and would give it nothing, without a word."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.DESCRIBE, T.TOPIC))
        leader = await admin.join_alone()
        group = here.node.shard_of("g").core.groups["g"]
        refused: Any = await alice.ask(join())
        line = told(here, "access.refused")[-1]

        assert (refused.error, refused.message) == (29, "no right to READ topic 't'")
        assert (line["api"], line["what"], line["error"]) == ("JoinGroup", "group_id: g", 29)
        assert line["why"] == "no right to READ topic 't'"
        assert (list(group.members), list(group.pending)) == ([leader], [])
        assert await admin.error(beat(leader)) == 0

        await grant(admin, (Op.READ, T.TOPIC, "t"))
        assert await alice.member_id()


async def test_who_leaves_takes_nobody_along_but_his_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """An operator may take out anybody, by ALTER; to others a member that isn't theirs is none."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC))
        theirs, own = await admin.join_alone(), await alice.member_id("g")
        leaving = [m.LeavingMember(name, None, "done") for name in (theirs, own)]

        mixed: Any = await alice.ask(m.LeaveGroupRequest("g", tuple(leaving)))
        assert [(one.member_id, one.error) for one in mixed.members] == [
            (theirs, E.UNKNOWN_MEMBER_ID),
            (own, 0),
        ]
        alone: Any = await alice.ask(m.LeaveGroupRequest("g", (leaving[0],)))
        assert (alone.error, [one.error for one in alone.members]) == (0, [E.UNKNOWN_MEMBER_ID])
        assert await admin.error(beat(theirs)) == 0

        await grant(admin, (Op.ALTER, T.GROUP))
        taken_out: Any = await alice.ask(m.LeaveGroupRequest("g", (leaving[0],)))
        assert [one.error for one in taken_out.members] == [0]
        line = told(here, "access.refused")[0]
        assert (line["principal"], line["error"]) == ("User:alice", E.UNKNOWN_MEMBER_ID)


async def test_a_commit_behind_a_long_deletion_that_is_allowed_in_part_comes_after_it(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session waits for the request as it came, whatever of it goes on."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await admin.ask(commit(1, *range(1_000)))
        await grant(admin, (Op.READ, T.GROUP), (Op.DELETE, T.GROUP), (Op.READ, T.TOPIC, "t"))
        monkeypatch.setattr(here.node.slices, "_is_done", lambda steps: next(steps, steps) is steps)
        topics = (m.TopicPartitions("secret", (0,)), m.TopicPartitions("t", tuple(range(1_000))))
        frames = [alice.frame(one) for one in (m.OffsetDeleteRequest("g", topics), commit(7, 999))]
        alice.transport.put(b"".join(frame for _, frame in frames))
        await trio.testing.wait_all_tasks_blocked()

        deleted: Any = alice.answers()[frames[0][0]].response
        assert [topic.partitions[0].error for topic in deleted.topics] == [29, 0]
        left = here.node.shard_of("g").core.groups["g"].offsets["t"]
        assert {partition: one.offset for partition, one in left.offsets.items()} == {999: 7}


def naming(member_id: str, instance_id: str | None) -> tuple[m.Request, ...]:
    """Return a request of each kind that names a member by these ids."""
    return (
        m.LeaveGroupRequest("g", (m.LeavingMember(member_id, instance_id, None),)),
        m.HeartbeatRequest("g", 0, member_id, instance_id),
        m.SyncGroupRequest("g", 0, member_id, instance_id, None, None, ()),
        structs.replace(commit(), member_id=member_id, group_instance_id=instance_id),
        structs.replace(join("g", member_id), group_instance_id=instance_id),
    )


async def test_no_pair_of_ids_reaches_a_member_or_an_id_of_another_principal(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """An own instance beside a pending id of somebody else's took that back, and its owner was
    told that the group knows no such member.
    """
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC))
        pending = await admin.member_id()
        for theirs in ("their-1", "their-2"):
            admin.send(structs.replace(join(), group_instance_id=theirs))
        await trio.testing.wait_all_tasks_blocked()
        group = here.node.shard_of("g").core.groups["g"]
        static = dict(group.static)
        member_ids = ("", "nobody", pending, *static.values(), "own", "own pending")
        for member_id, instance_id in product(member_ids, (None, "new", *static, "own")):
            for number in range(5):
                alice.send(structs.replace(join(), group_instance_id="own"))
                own_pending = await alice.member_id()
                named = {"own": group.static["own"], "own pending": own_pending}
                alice.send(naming(named.get(member_id, member_id), instance_id)[number])
                await trio.testing.wait_all_tasks_blocked()
                assert pending in group.pending, (member_id, instance_id, number)
                assert static.items() <= group.static.items(), (member_id, instance_id, number)


async def test_who_drains_takes_nothing_from_anybody_but_himself(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A client id is anybody's to choose; by ALTER an operator drains all that have it."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC))
        await admin.join_alone()
        members = here.node.shard_of("g").core.groups["g"].members
        (theirs,) = members.values()
        drain = m.DrainMemberRequest("g", theirs.client_id)

        assert await alice.ask(drain) == m.DrainMemberResponse(E.UNKNOWN_MEMBER_ID, ())
        assert not theirs.drained
        line = told(here, "access.refused")[0]
        assert (line["principal"], line["api"], line["error"]) == ("User:alice", "DrainMember", 25)

        alice.send(join("g", await alice.member_id("g")))
        await until_soon(lambda: len(members) == 2)
        answer: Any = await alice.ask(drain)
        own = [one for one in members.values() if one.principal == "User:alice"]
        assert [one.member_id for one in answer.members] == [one.member_id for one in own]
        assert not theirs.drained

        await grant(admin, (Op.ALTER, T.GROUP))
        answer = await alice.ask(drain)
        assert len(answer.members) == 2
        assert theirs.drained


async def test_of_many_who_leave_each_is_judged_as_his_turn_comes(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance may be somebody else's by then, and stays in the group."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC))
        await alice.member_id()
        shard = here.node.shard_of("g")
        handle, decided = shard.handle, 0

        def slowly(request: Any, *rest: Any) -> None:
            nonlocal decided
            handle(request, *rest)
            if isinstance(request, m.LeaveGroupRequest):
                decided += 1
                autojump_clock.jump(2 * SLICE_S)

        monkeypatch.setattr(shard, "handle", slowly)
        leaving = tuple(m.LeavingMember("", f"i{n}", None) for n in range(200))
        sent = alice.send(m.LeaveGroupRequest("g", leaving))
        await until_soon(lambda: decided > 0)
        admin.send(structs.replace(join(), group_instance_id="i199"))
        await until_soon(partial(alice.has, sent))
        answer: Any = alice.answers()[sent].response

        assert "i199" in shard.core.groups["g"].static
        assert [E.UNKNOWN_MEMBER_ID] * 200 == [one.error for one in answer.members]
        assert ["User:alice"] == [line["principal"] for line in told(here, "access.refused")]


async def test_an_instance_id_alone_does_not_take_over_a_member(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whoever joins by it, without a member id, would else get its partitions."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.READ, T.TOPIC))
        sent = admin.send(structs.replace(join(), group_instance_id="one"))
        await trio.sleep(3.1)
        member_id = (await admin.answer(sent)).response.member_id  # type: ignore[attr-defined]  # a JoinGroup's

        assert await alice.error(structs.replace(join(), group_instance_id="one")) == 25
        assert await admin.error(beat(member_id)) == 0


async def test_a_denial_is_in_force_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Also for who is connected, and in the middle of a group's life."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP, "g"), (Op.READ, T.TOPIC))
        member_id = await alice.join_alone()
        everything = m.AclFilter(*(1, None, 1, None, None, 1, 1))
        answer: Any = await admin.ask(m.DeleteAclsRequest((everything,)))
        assert m.first_error(answer) == 0
        assert await alice.error(m.HeartbeatRequest("g", 1, member_id, None)) == 30


async def test_a_rule_of_an_older_release_is_about_the_address_that_it_names(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of IPv4 were such addresses on a listener that takes both, and a denial would be
    about nobody now.
    """
    disk = Disk()
    with monkeypatch.context() as patch:
        patch.setattr("coordinator.group.acls.host_problem", lambda _host: None)
        async with guarded(tmp_path, disk=disk) as here:
            admin, _ = await both(here)
            await grant(admin, (Op.READ, T.GROUP))
            (everywhere,) = denial(Op.READ, T.GROUP).acls
            old = structs.replace(everywhere, host="::ffff:192.0.2.1")
            assert m.first_error(await admin.ask(m.CreateAclsRequest((old,)))) == 0
    disk.kill()
    async with guarded(tmp_path, disk=disk) as here:
        for peer, error in ("192.0.2.1", E.GROUP_AUTHORIZATION_FAILED), ("192.0.2.2", 25):
            alice = await known(here, "alice", "a", peer=peer)
            assert await alice.error(beat()) == error
        removal_of_old = m.AclFilter(1, None, 1, None, old.host, 1, 1)
        admin = await known(here)
        removed: Any = await admin.ask(m.DeleteAclsRequest((removal_of_old,)))
        assert [one.host for one in removed.results[0].acls] == ["::ffff:192.0.2.1"]
        assert await (await known(here, "alice", "a")).error(beat()) == 25


async def test_a_refusal_does_not_tell_whether_it_is_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The same answer for a group that is there and one that isn't, loading or not."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await admin.ask(commit(group_id="there"))
        answers = [
            await alice.ask(m.DescribeRebalancesRequest(group_id, 10))
            for group_id in ("there", "absent")
        ]
        assert structs.replace(answers[0], group_id="absent") == answers[1]


async def test_the_audit_counts_what_it_leaves_out(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A line a second, principal and address; nothing of a body in it."""
    async with guarded(tmp_path) as here:
        _, alice = await both(here)
        for _ in range(5):
            await alice.ask(join("g"))
        assert [line["left_out"] for line in told(here, "access.refused")] == [0]
        await trio.sleep(1.1)
        await alice.ask(join("g"))
        line = told(here, "access.refused")[-1]
        assert (line["left_out"], line["api"], line["what"]) == (4, "JoinGroup", "group_id: g")
        assert line["error"] == E.GROUP_AUTHORIZATION_FAILED
        elsewhere = await known(here, "alice", "a", peer="192.0.2.2")
        await elsewhere.ask(join("g"))
        assert told(here, "access.refused")[-1]["peer"] == "192.0.2.2"


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (m.DeleteGroupsRequest(("a", "b", "c", "d")), "group_ids: a, b, c and 1 more"),
        (m.DeleteTopicsRequest(("t",)), "topics: t"),
        (m.OffsetDeleteRequest("g", (m.TopicPartitions("t", (0,)),)), "group_id: g; topics: t"),
        (REQUESTS[m.AlterOffsetsRequest], "group_id: etl; topics: t"),
        (m.AlterGroupRetentionRequest("g", None), "group_id: g"),
    ],
    ids=lambda given: type(given).__name__,
)
async def test_who_takes_something_away_is_told(
    request_: m.Request, what: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What became of it is told without a name; and nobody fills the log with it."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, *MATRIX[type(request_)])
        for client in (admin, alice):
            for _ in range(3):
                await client.ask(request_)
        lines = [line for line in told(here, "access.used") if line["what"] == what]
        assert [line["principal"] for line in lines] == ["User:root", "User:alice"]
        assert {line["peer"] for line in lines} == {"192.0.2.1"}
        assert request_.__class__.__name__.startswith(lines[0]["api"])
        await trio.sleep(1.1)
        await alice.ask(request_)
        assert told(here, "access.used")[-1]["left_out"] == 2


async def test_who_takes_away_a_part_is_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Besides what he was refused."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.DELETE, T.GROUP, "mine"))
        await alice.ask(m.DeleteGroupsRequest(("secret", "mine")))
        assert told(here, "access.used")[-1]["what"] == "group_ids: mine"
        assert told(here, "access.refused")[-1]["what"] == "group_ids: secret, mine"


async def test_who_takes_out_anothers_member_is_told(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Whoever leaves himself is told by what the group says."""
    async with guarded(tmp_path) as here:
        admin, alice = await both(here)
        await grant(admin, (Op.READ, T.GROUP), (Op.ALTER, T.GROUP), (Op.READ, T.TOPIC))
        before = len(told(here, "access.used"))
        own = await alice.join_alone()
        (member,) = here.node.shard_of("g").core.groups["g"].members.values()
        drain = m.DrainMemberRequest("g", member.client_id)
        leave = m.LeaveGroupRequest("g", (m.LeavingMember(own, None, None),))

        await alice.ask(drain)
        assert len(told(here, "access.used")) == before
        await admin.ask(drain)
        await trio.sleep(1.1)
        await admin.ask(leave)
        lines = told(here, "access.used")[before:]
        whats = [f"group_id: g; client_id: {member.client_id}", f"group_id: g; members: {own}"]
        assert [line["what"] for line in lines] == whats
        assert {line["principal"] for line in lines} == {"User:root"}

        again = await alice.join_alone()
        own_leave = m.LeaveGroupRequest("g", (m.LeavingMember(again, None, None),))
        await alice.ask(own_leave)
        assert len(told(here, "access.used")) == before + 2


async def test_each_thing_that_only_administrators_may_is_told(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Also the second one within a second: it may be the one that somebody looks for."""
    async with guarded(tmp_path) as here:
        admin = await known(here)
        await admin.ask(password_of("alice", "a"))
        await grant(admin, (Op.READ, T.GROUP))
        lines = told(here, "access.used")
        assert [line["api"] for line in lines] == ["AlterUserScramCredentials", "CreateAcls"]
        assert {(line["principal"], line["peer"]) for line in lines} == {("User:root", "192.0.2.1")}
