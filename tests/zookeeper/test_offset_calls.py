"""Commits and fetches by each storage, against a whole daemon and znodes in memory."""

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import pytest
import trio

from client import (
    AuthenticationFailed,
    Client,
    CommitRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    OffsetAndMetadata,
    OutcomeUnknown,
)
from client.api import REQUEST_TIMEOUT_MS
from client.zookeeper import offset_calls
from client.zookeeper.settings import ZooKeeper
from client.zookeeper.storage import COORDINATOR, ZOOKEEPER, OffsetStorage
from client.zookeeper.znodes import Create, Read, Reply, Request, offsets_path
from protocol.partition import TopicPartition
from tests.client.served import Served, served
from tests.fakes.znodes import Znodes

T = TypeVar("T")

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
N0, N1 = offsets_path("g", *P0), offsets_path("g", *P1)
ENSEMBLE = ZooKeeper("zk:2181")
OLD = OffsetStorage(ZOOKEEPER, zookeeper=ENSEMBLE)
DUAL = OffsetStorage(COORDINATOR, is_dual=True, zookeeper=ENSEMBLE)
NEW = OffsetStorage(COORDINATOR, zookeeper=ENSEMBLE)


@pytest.fixture
def znodes(monkeypatch: pytest.MonkeyPatch) -> Znodes:
    """Return the znodes that all clients find; what blocks is done at once."""
    found = Znodes()

    async def at_once(work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return work()

    monkeypatch.setattr(offset_calls, "Ensemble", lambda _settings: found)
    monkeypatch.setattr(offset_calls, "_in_thread", at_once)
    return found


def joined(daemon: Served, storage: OffsetStorage) -> AbstractAsyncContextManager[Client]:
    """Connect with offsets in *storage*."""
    return daemon.connect(offset_storage=storage)


async def stored(daemon: Served) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what the coordinator itself has."""
    async with daemon.connect("looks") as client:
        return await client.fetch_offsets("g")


async def test_a_dual_commit_is_in_both_places(znodes: Znodes, autojump_clock: object) -> None:
    """Metadata only where there is room for it."""
    async with served() as daemon, joined(daemon, DUAL) as client:
        await client.commit("g", {P0: OffsetAndMetadata(7, "m"), P1: 8})

        assert (znodes.text(N0), znodes.text(N1)) == ("7", "8")
        assert (await stored(daemon))[P0] == OffsetAndMetadata(7, "m")
    assert znodes.is_closed


async def test_only_what_the_coordinator_took_is_written(
    znodes: Znodes, autojump_clock: object
) -> None:
    """A znode ahead of it would be the larger offset, and so what is fetched."""
    async with served() as daemon, joined(daemon, DUAL) as client:
        with pytest.raises(CommitRefused) as refused:
            await client.commit("g", {P0: 7, P1: 8}, expected={P0: 5})

        assert set(refused.value.errors) == {P0}
        assert (znodes.text(N0), znodes.text(N1)) == (None, "8")


async def test_a_crash_between_the_two_commits_is_no_loss(
    znodes: Znodes, autojump_clock: object
) -> None:
    """The coordinator has it, says the error, and a fetch finds it."""
    async with served() as daemon:
        async with joined(daemon, DUAL) as client:
            await client.commit("g", {P0: 7})
            znodes.is_away = True
            with pytest.raises(OutcomeUnknown, match="the coordinator has it, but not ZooKeeper"):
                await client.commit("g", {P0: 9})
        znodes.is_away = False
        assert znodes.text(N0) == "7"

        async with joined(daemon, DUAL) as client:
            assert await client.fetch_offsets("g", [P0]) == {P0: OffsetAndMetadata(9)}
        async with joined(daemon, OLD) as client:
            assert await client.fetch_offsets("g", [P0]) == {P0: OffsetAndMetadata(7)}


@pytest.mark.parametrize(
    ("coordinator", "znode", "fetched"),
    [
        (5, 9, OffsetAndMetadata(9)),
        (9, 5, OffsetAndMetadata(9, "m")),
        (5, 5, OffsetAndMetadata(5, "m")),
        (None, 5, OffsetAndMetadata(5)),
        (5, None, OffsetAndMetadata(5, "m")),
        (None, None, None),
    ],
)
async def test_the_larger_offset_is_fetched(
    coordinator: int | None,
    znode: int | None,
    fetched: OffsetAndMetadata | None,
    znodes: Znodes,
    autojump_clock: object,
) -> None:
    """By name, and as all of the group; where there is none there is none."""
    if znode is not None:
        znodes.put(N0, b"%d" % znode)
    async with served() as daemon, joined(daemon, DUAL) as client:
        if coordinator is not None:
            async with daemon.connect("before") as before:
                await before.commit("g", {P0: OffsetAndMetadata(coordinator, "m")})
        expected = {} if fetched is None else {P0: fetched}

        assert await client.fetch_offsets("g", [P0]) == expected
        assert await client.fetch_offsets("g") == expected


async def test_a_condition_is_about_what_was_fetched(
    znodes: Znodes, autojump_clock: object
) -> None:
    """The coordinator has a smaller one; that it still has that is what is checked."""
    znodes.put(N0, b"9")
    async with (
        served() as daemon,
        joined(daemon, DUAL) as client,
        daemon.connect("before") as before,
    ):
        await before.commit("g", {P0: 5})
        assert await client.fetch_offsets("g") == {P0: OffsetAndMetadata(9)}
        await client.commit("g", {P0: 10}, expected={P0: 9})
        assert await before.fetch_offsets("g") == {P0: OffsetAndMetadata(10)}
        znodes.put(N0, b"20")
        await client.fetch_offsets("g")
        await before.commit("g", {P0: 11})
        with pytest.raises(CommitRefused):
            await client.commit("g", {P0: 21}, expected={P0: 20})


async def test_an_owner_makes_both_places_the_same(znodes: Znodes, autojump_clock: object) -> None:
    """A partition without new rows may not be committed before one of the places is given up."""
    znodes.put(N0, b"9")
    znodes.put(N1, b"3")
    async with served() as daemon:
        async with daemon.connect("before") as before:
            await before.commit("g", {P0: 5, P1: OffsetAndMetadata(8, "m")})
        async with joined(daemon, DUAL) as client, client.join("g", ["t"], {"t": 2}) as member:
            await member.assignment()
            await member.fetch()

            assert (znodes.text(N0), znodes.text(N1)) == ("9", "8")
            found = {P0: OffsetAndMetadata(9), P1: OffsetAndMetadata(8, "m")}
            assert await stored(daemon) == found


async def test_a_look_changes_nothing(znodes: Znodes, autojump_clock: object) -> None:
    """Who owns nothing has nothing to put in order."""
    znodes.put(N0, b"9")
    async with served() as daemon, joined(daemon, DUAL) as client:
        await client.fetch_offsets("g")

        assert await stored(daemon) == {}
        assert znodes.asked == [Read(N0)]


async def test_an_owner_that_cannot_make_them_the_same_warns_and_goes_on(
    znodes: Znodes, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The larger one is right all the same, but who reads one place alone may read the smaller."""
    znodes.put(N0, b"3")
    async with served() as daemon:
        async with daemon.connect("before") as before:
            await before.commit("g", {P0: 5})
        async with joined(daemon, DUAL) as client, client.join("g", ["t"], {"t": 1}) as member:
            await member.assignment()
            rounds = iter([False])  # The first look is answered.
            znodes.before = lambda: setattr(znodes, "is_away", next(rounds, True))

            with caplog.at_level(logging.WARNING, "client.commits"):
                assert await member.fetch([P0]) == {P0: OffsetAndMetadata(5)}
            assert znodes.text(N0) == "3"
    (told,) = [one.getMessage() for one in caplog.records]
    assert "group 'g'" in told
    assert "no server answered in time" in told


async def test_offsets_of_old_are_only_in_zookeeper(znodes: Znodes, autojump_clock: object) -> None:
    """The first restart changes the program, and not where its offsets are."""
    async with served() as daemon, joined(daemon, OLD) as client:
        async with client.join("g", ["t"], {"t": 1}) as member:
            await member.assignment()
            assert await member.fetch() == {}
            await member.commit({P0: OffsetAndMetadata(4, "m")})

            assert await member.fetch() == {P0: OffsetAndMetadata(4)}
        assert znodes.text(N0) == "4"
        assert await stored(daemon) == {}


async def test_a_member_that_was_removed_writes_no_znode(
    znodes: Znodes, autojump_clock: object
) -> None:
    """A znode can't know, so the coordinator is asked."""
    async with served() as daemon, joined(daemon, OLD) as client:
        async with client.join("g", ["t"], {"t": 1}) as member:
            await member.assignment()
            await client.remove_members("g", [member.member_id])
            with pytest.raises(MemberLost):
                await member.commit({P0: 4})

        assert znodes.text(N0) is None


async def test_conditions_are_refused_where_nobody_could_check_them(
    znodes: Znodes, autojump_clock: object
) -> None:
    """A condition that is not looked at is worse than none."""
    async with served() as daemon, joined(daemon, OLD) as client:
        with pytest.raises(FatalError, match="can't be checked in ZooKeeper"):
            await client.commit("g", {P0: 4}, expected={P0: -1})


async def test_a_znode_without_an_offset_stops_a_fetch(
    znodes: Znodes, autojump_clock: object
) -> None:
    """Whoever would begin anywhere else would lose rows, or read all of them again."""
    znodes.put(N0, b"abc")
    async with served() as daemon, joined(daemon, DUAL) as client:
        with pytest.raises(FatalError, match=f"{N0} in ZooKeeper at fake is 'abc', and no offset"):
            await client.fetch_offsets("g")


@pytest.mark.parametrize("storage", [OLD, DUAL])
async def test_while_zookeeper_is_away_nothing_is_fetched(
    storage: OffsetStorage, znodes: Znodes, autojump_clock: object
) -> None:
    """The coordinator's alone may be the smaller one, or none at all."""
    znodes.is_away = True
    async with served() as daemon, joined(daemon, storage) as client:
        with pytest.raises(CoordinatorUnavailable, match="no server answered in time"):
            await client.fetch_offsets("g", [P0])


async def test_zookeeper_has_an_end_where_a_member_waits_without_one(
    znodes: Znodes, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waited for ever would hold up the end of the program."""
    allowed_s: list[float] = []
    ask = znodes.ask

    def noted(requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        allowed_s.append(timeout_s)
        return ask(requests, timeout_s)

    monkeypatch.setattr(znodes, "ask", noted)
    async with (
        served() as daemon,
        joined(daemon, DUAL) as client,
        client.join("g", ["t"], {"t": 1}) as member,
    ):
        await member.assignment()
        await member.commit({P0: 4})
        assert await member.fetch([P0]) == {P0: OffsetAndMetadata(4)}
    assert len(allowed_s) >= 2
    assert max(allowed_s) <= REQUEST_TIMEOUT_MS / 1000


async def test_nothing_was_stored_where_nothing_was_sent(
    znodes: Znodes, autojump_clock: object
) -> None:
    """Only in ZooKeeper, an ensemble that can't be reached has surely not stored it."""
    znodes.is_away = True
    async with served() as daemon, joined(daemon, OLD) as client:
        with pytest.raises(CoordinatorUnavailable):
            await client.commit("g", {P0: 4})


async def test_a_lost_reply_is_looked_up(znodes: Znodes, autojump_clock: object) -> None:
    """The caller hears of it only if that fails, too."""
    async with served() as daemon, joined(daemon, DUAL) as client:
        await client.commit("g", {P0: 4})
        znodes.lost = 1
        await client.commit("g", {P0: 5})
        assert znodes.text(N0) == "5"

        def gone() -> None:
            znodes.is_away = bool(znodes.asked) and not znodes.lost

        znodes.lost, znodes.before = 1, gone
        znodes.asked.clear()
        with pytest.raises(OutcomeUnknown):
            await client.commit("g", {P0: 6})


async def test_a_write_that_is_refused_is_told_with_its_path_and_what_is_stored_where(
    znodes: Znodes, autojump_clock: object
) -> None:
    """An ACL is somebody's mistake, and the path says whose; the rest is known, and no guess."""
    znodes.refused[N1] = "nobody has allowed it (the znode's ACL)"
    at_zookeeper = (
        r"ZooKeeper at fake refuses /consumers/g/offsets/t/1: nobody has allowed it .*; "
        r"it has stored 1 of 2 offsets"
    )
    for storage, said in [
        (DUAL, f"the coordinator has it, but not ZooKeeper: {at_zookeeper}"),
        (OLD, at_zookeeper),
    ]:
        async with served() as daemon, joined(daemon, storage) as client:
            with pytest.raises(FatalError, match=f"^{said}"):
                await client.commit("g", {P0: 4, P1: 5})

            assert znodes.text(N0) == "4"
            assert len(await stored(daemon)) == (2 if storage is DUAL else 0)


async def test_what_both_places_refuse_is_told_of_both(
    znodes: Znodes, autojump_clock: object
) -> None:
    """The coordinator refuses one offset, and ZooKeeper the one that is stored there."""
    znodes.refused[N1] = "nobody has allowed it (the znode's ACL)"
    async with served() as daemon, joined(daemon, DUAL) as client:
        with pytest.raises(FatalError) as caught:
            await client.commit("g", {P0: 7, P1: 8}, expected={P0: 5})

        assert set(await stored(daemon)) == {P1}
    said = str(caught.value)
    assert said.startswith("the commit was refused for t-0: OFFSET_CONFLICT")
    assert "; the coordinator has the rest, but not ZooKeeper: ZooKeeper at fake refuses" in said


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (FatalError("ZooKeeper at fake: there is no znode /typo"), FatalError),
        (AuthenticationFailed("ZooKeeper at fake doesn't take the log-in"), AuthenticationFailed),
        (CoordinatorUnavailable("ZooKeeper at fake: no server answered in time"), OutcomeUnknown),
    ],
)
async def test_a_dual_commit_that_never_gets_to_zookeeper_says_who_has_it(
    failure: CoordinatorError,
    kind: type[CoordinatorError],
    znodes: Znodes,
    autojump_clock: object,
) -> None:
    """A wrong chroot, a refused log-in, nobody there: the coordinator has it all the same."""

    def fails() -> None:
        raise failure

    znodes.before = fails
    async with served() as daemon, joined(daemon, DUAL) as client:
        with pytest.raises(kind) as caught:
            await client.commit("g", {P0: 4})

        assert type(caught.value) is kind
        said = f"the coordinator has it, but not ZooKeeper: {failure}"
        assert str(caught.value) == said
        assert await stored(daemon) == {P0: OffsetAndMetadata(4)}


async def test_a_dual_commit_in_doubt_says_that_the_coordinator_has_it(
    znodes: Znodes, autojump_clock: object
) -> None:
    """Only ZooKeeper is in doubt."""
    async with served() as daemon, joined(daemon, DUAL) as client:
        znodes.lost = 10**9
        with pytest.raises(OutcomeUnknown, match="the coordinator has it, and perhaps ZooKeeper: "):
            await client.commit("g", {P0: 4}, timeout_ms=50)


@pytest.mark.parametrize("name", ["a/b", "..", "\U0001f600", "\x7f"])
async def test_what_no_znode_can_have_for_a_name_is_stored_nowhere(
    name: str, znodes: Znodes, autojump_clock: object
) -> None:
    """The coordinator would take it, and then nobody could say how to have it in both places."""
    async with served() as daemon, joined(daemon, DUAL) as client:
        with pytest.raises(FatalError, match=r"can't be in ZooKeeper: .*; nothing was stored"):
            await client.commit("g", {P0: 4, TopicPartition(name, 0): 5})
        with pytest.raises(FatalError, match=r"can't be in ZooKeeper: .*; nothing was stored"):
            await client.commit(name, {P0: 4})

        assert await stored(daemon) == {}
        assert znodes.asked == []


@pytest.mark.parametrize("storage", [OLD, DUAL])
async def test_a_znode_that_is_put_forward_under_a_member_is_told_of_once(
    storage: OffsetStorage,
    znodes: Znodes,
    autojump_clock: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its commits store nothing there until they are past it, and each returns without an error."""
    async with (
        served() as daemon,
        joined(daemon, storage) as client,
        client.join("g", ["t"], {"t": 2}) as member,
    ):
        await member.assignment()
        await member.commit({P0: 100, P1: 100})
        znodes.put(N0, b"900")
        with caplog.at_level(logging.WARNING, "client.zookeeper"):
            for offset in range(101, 141):
                await member.commit({P0: offset, P1: offset})

            (told,) = [one.getMessage() for one in caplog.records]
            assert "ahead of the commits of group 'g'" in told
            assert f"{N0} has 900, 799 more than the 101 of the commit" in told
            assert "restart" in told
            assert (znodes.text(N0), znodes.text(N1)) == ("900", "140")

            await member.commit({P0: 950})  # Past it: the next time is another story.
            znodes.put(N0, b"2000")
            await member.commit({P0: 951})
            assert len(caplog.records) == 2
            assert znodes.text(N0) == "2000"


async def test_an_operator_sets_both_places_back(znodes: Znodes, autojump_clock: object) -> None:
    """Otherwise the larger one would undo it."""
    async with served() as daemon, joined(daemon, DUAL) as client:
        await client.commit("g", {P0: 9})
        znodes.put(N0, b"12")
        await client.commit("g", {P0: 2})

        assert await client.fetch_offsets("g") == {P0: OffsetAndMetadata(2)}


async def test_a_name_that_no_znode_can_have_is_refused(
    znodes: Znodes, autojump_clock: object
) -> None:
    """It would be another group's znode, or nobody's."""
    async with served() as daemon, joined(daemon, OLD) as client:
        with pytest.raises(FatalError, match=r"'a/b' can't be in ZooKeeper"):
            await client.commit("a/b", {P0: 1})
        with pytest.raises(FatalError, match=r"'\.\.' can't be in ZooKeeper"):
            await client.fetch_offsets("g", [TopicPartition("..", 0)])


async def test_groups_of_others_are_left_to_the_coordinator(
    znodes: Znodes, autojump_clock: object
) -> None:
    """A reader keeps notes in groups of its own, which nobody in ZooKeeper knows."""
    for storage in (OLD, DUAL):
        only = OffsetStorage(storage.storage, storage.is_dual, ENSEMBLE, frozenset({"g"}))
        async with served() as daemon, joined(daemon, only) as client:
            await client.commit("notes", {P0: 3})

            assert await client.fetch_offsets("notes") == {P0: OffsetAndMetadata(3)}
    assert znodes.asked == []


async def test_the_first_commit_makes_the_znodes(znodes: Znodes, autojump_clock: object) -> None:
    """Without a fetch before it nothing is known of them, and so they are looked at."""
    async with served() as daemon, joined(daemon, DUAL) as client:
        await client.commit("g", {P0: 1})
        await client.commit("g", {P0: 2})
        kinds = [type(one).__name__ for one in znodes.asked]

    assert kinds == ["Read", "Create", "Read", "Set"]  # An operator's: it knows nothing for sure.
    assert Create(N0, b"1") in znodes.asked


async def test_a_commit_without_a_znode_in_the_way_costs_one_request(
    znodes: Znodes, autojump_clock: object
) -> None:
    """A member knows the version that it has written, or fetched."""
    async with (
        served() as daemon,
        joined(daemon, DUAL) as client,
        client.join("g", ["t"], {"t": 1}) as member,
    ):
        await member.assignment()
        await member.commit({P0: 1})
        znodes.asked.clear()
        await member.commit({P0: 2})
        await member.commit({P0: 3})

        assert [type(one).__name__ for one in znodes.asked] == ["Set", "Set"]


async def test_after_the_last_restart_nobody_asks_zookeeper(
    znodes: Znodes, autojump_clock: object
) -> None:
    """The address may stand in the properties for a while."""
    async with served() as daemon, joined(daemon, NEW) as client:
        await client.commit("g", {P0: 1})

        assert await client.fetch_offsets("g") == {P0: OffsetAndMetadata(1)}
    assert znodes.asked == []


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"offsets.storage": "broker"}, "offsets.storage is 'broker': coordinator or zookeeper"),
        ({"offsets.storage": "zookeeper"}, "zookeeper.connect is missing, which offsets.storage"),
        ({"dual.commit.enabled": "true"}, "zookeeper.connect is missing, which dual.commit"),
        ({"dual.commit.enabled": "yes"}, "dual.commit.enabled is 'yes': it must be true or false"),
        ({"offset.storage": "zookeeper"}, "there is no property 'offset.storage'"),
        ({"zookeeper.connect": "a:b"}, "HOST:PORT,…"),
        ({"zookeeper.connect": "zk:99999"}, "HOST:PORT,…"),
        ({"zookeeper.connect": "zk", "zookeeper.session.timeout.ms": "0"}, "milliseconds"),
        ({"zookeeper.session.timeout.ms": "6000"}, "zookeeper.connect is missing: "),
        ({"zookeeper.connect": "zk", "zookeeper.sasl.username": "u"}, "belong together"),
        (
            {
                "zookeeper.connect": "zk",
                "offsets.storage": "zookeeper",
                "dual.commit.enabled": True,
            },
            "dual.commit.enabled is for offsets.storage=coordinator",
        ),
    ],
)
def test_properties_that_make_no_sense_are_refused(
    properties: dict[str, object], problem: str
) -> None:
    """A migration with a misspelt property would be none."""
    with pytest.raises(ValueError, match=re.escape(problem)):
        OffsetStorage.of(properties)


def test_properties_are_read_as_kafka_has_them() -> None:
    """With several servers, an IPv6 address and a chroot."""
    storage = OffsetStorage.of(
        {
            "offsets.storage": "coordinator",
            "dual.commit.enabled": "true",
            "zookeeper.connect": "zk1,[::1]:2182/old/kafka/",
            "zookeeper.session.timeout.ms": "4000",
            "zookeeper.sasl.username": "u",
            "zookeeper.sasl.password": "secret",
        }
    )

    assert storage.zookeeper is not None
    assert storage.zookeeper.hosts == "zk1:2181,[::1]:2182"
    assert storage.zookeeper.chroot == "/old/kafka"
    assert storage.zookeeper.session_timeout_ms == 4000
    assert "secret" not in repr(storage)
