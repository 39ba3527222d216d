"""A consumer as its user has it, over an ensemble in memory."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from client.exceptions import (
    AuthenticationFailed,
    ClientClosed,
    CoordinatorUnavailable,
    FatalError,
    OutcomeUnknown,
    Rebalanced,
)
from client.zookeeper.consumer import Consumer, join, joined
from client.zookeeper.membership import HAND_OVER_MS, Answer, Config, Result
from client.zookeeper.registrations import (
    encode_registration,
    ids_path,
    named,
    owner_path,
    topic_path,
)
from client.zookeeper.session import Answered, Asked, Event, LogInRefused, Opened
from client.zookeeper.settings import ZooKeeper
from client.zookeeper.znodes import offsets_path
from protocol.partition import TopicPartition
from tests.fakes.registry import Ensemble, FakeSession

GROUP = "g"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SETTINGS = ZooKeeper("zk:2181")


class Group:
    """A group in an ensemble with one topic of two partitions."""

    def __init__(self) -> None:
        self.ensemble = Ensemble()
        self.ensemble.put(topic_path("t"), b'{"partitions":{"0":[0],"1":[0]}}')
        self.ensemble.watcher = self._tell
        self.sessions: dict[str, FakeSession] = {}

    @asynccontextmanager
    async def join(self, name: str) -> AsyncIterator[Consumer]:
        """Have a consumer join."""
        config = Config(GROUP, name, named({"t": 1}), 0)

        def opened(post: Callable[[Event], object]) -> FakeSession:
            self.sessions[name] = FakeSession(self.ensemble, GROUP, name, post)
            return self.sessions[name]

        async with joined(config, SETTINGS, opened) as consumer:
            yield consumer

    def committed(self, tp: TopicPartition) -> bytes | None:
        """Return what stands in the node of a partition's offset."""
        node = self.ensemble.nodes.get(offsets_path(GROUP, *tp))
        return node and node.data

    def _tell(self, session: int) -> None:
        for one in self.sessions.values():
            if one.registry.session == session:
                one.changed()


async def test_two_consumers_hand_over_when_the_user_is_ready(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A row is read by one of them, whoever joins."""
    group = Group()
    async with group.join("a") as a:
        assert (await a.assignment()).partitions == (T0, T1)
        assert not a.rebalance_needed
        async with group.join("b") as b:
            await a.wait_rebalance_needed()
            await a.commit({T0: 1, T1: 2})
            assert not a.lost
            assert (await a.assignment()).partitions == (T0,)
            assert (await b.assignment()).partitions == (T1,)
            assert await b.fetch([T0, T1]) == {T0: 1, T1: 2}
            with pytest.raises(Rebalanced, match="t-1"):
                await a.commit({T0: 9, T1: 9})
            assert group.committed(T0) == b"1"
        await a.wait_rebalance_needed()
        assert (await a.assignment()).partitions == (T0, T1)


async def test_who_works_too_long_loses_what_others_wait_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Consumers of old give up when nobody lets go in time."""
    group = Group()
    async with group.join("a") as a:
        await a.assignment()
        async with group.join("b") as b:
            began_s = trio.current_time()
            assert (await b.assignment()).partitions == (T1,)
            assert trio.current_time() - began_s == pytest.approx(HAND_OVER_MS / 1000)
        assert a.lost
        with pytest.raises(Rebalanced):
            await a.commit({T1: 1})
        await a.commit({T0: 1})


async def test_a_session_that_ends_is_followed_by_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The user learns that it had lost everything, and goes on."""
    group = Group()
    async with group.join("a") as a:
        first = await a.assignment()
        group.sessions["a"].expire()
        await a.wait_rebalance_needed()
        assert a.lost
        with pytest.raises(Rebalanced):
            await a.commit({T0: 1})

        second = await a.assignment()

        assert second.partitions == first.partitions
        assert second.generation == first.generation + 1
        await a.commit({T0: 1})


async def test_a_session_shorter_than_asked_for_counts_and_is_told_of_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Else two read one partition, from the end of what was granted to the end of what was not."""
    group = Group()
    group.ensemble.session_timeout_ms = 3_000
    with caplog.at_level(logging.WARNING, "client.zookeeper"):
        async with group.join("a") as a:
            await a.assignment()
            session = group.sessions["a"]
            for _ in range(2):
                session.cut_off()
                cut_s = trio.current_time()
                await a.wait_rebalance_needed()
                assert a.lost
                assert trio.current_time() - cut_s == pytest.approx(3 / 6)
                session.resume()
                await a.assignment()
            session.expire()  # The next session has the same.
            await a.wait_rebalance_needed()
            await a.assignment()

    (told,) = [one.getMessage() for one in caplog.records]
    assert "zk:2181 grants sessions of 3000 ms, and not the 6000 ms of zookeeper.session" in told
    assert "lost in 2500 ms" in told


async def test_a_commit_without_an_answer_is_in_doubt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It may be read back; to tell it as refused would be a lie."""
    group = Group()
    async with group.join("a") as a:
        await a.assignment()
        session = group.sessions["a"]
        session.cut_off()
        with pytest.raises(OutcomeUnknown):
            await a.commit({T0: 1}, timeout_ms=500)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.commit, {T0: 2})
            await trio.testing.wait_all_tasks_blocked()
            session.resume()
        assert group.committed(T0) == b"2"


async def test_a_frozen_consumer_commits_nothing_once_its_session_has_ended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It doesn't know; its node among the members does."""
    group = Group()
    async with group.join("a") as a:
        await a.assignment()
        group.sessions["a"].end()

        with pytest.raises(Rebalanced, match="session"):
            await a.commit({T0: 1})
        assert group.committed(T0) is None


async def test_an_ensemble_that_is_not_there_is_told_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A wrong address should not hang for ever."""
    config = Config(GROUP, "a", named({"t": 1}), 0)
    with pytest.raises(CoordinatorUnavailable, match="zk:2181"):
        async with joined(config, SETTINGS, Silent):
            raise AssertionError("it is not connected")
    # The clock jumps over the closing, which is given up after two seconds.
    assert trio.current_time() <= SETTINGS.connection_timeout_ms / 1000 + 2


class Silent:
    """A session that nothing comes of."""

    def __init__(self, post: Callable[[Event], object]) -> None:
        self.post = post

    def send(self, request: Asked) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class Refusing(Silent):
    """A session without the right to anything."""

    def send(self, request: Any) -> None:
        """Refuse."""
        self.post(Answered(request, Answer(Result.REFUSED, why="NoAuthError")))


async def test_what_the_ensemble_refuses_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nobody should look for the reason in a debugger."""
    config = Config(GROUP, "a", named({"t": 1}), 0)

    def refused(post: Callable[[Event], object]) -> Silent:
        post(LogInRefused())
        return Silent(post)

    with pytest.raises(AuthenticationFailed, match="log-in"):
        async with joined(config, SETTINGS, refused):
            pass
    sessions: list[Refusing] = []

    def refusing(post: Callable[[Event], object]) -> Silent:
        post(Opened(SETTINGS.session_timeout_ms))
        sessions.append(Refusing(post))
        return sessions[-1]

    with pytest.raises(FatalError, match="NoAuthError"):
        async with joined(config, SETTINGS, refusing) as consumer:
            await consumer.assignment()


async def test_what_keeps_a_session_from_being_made_comes_out_as_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Such as that kazoo isn't installed: with what to type."""

    def fails(post: Callable[[Event], object]) -> Silent:
        raise FatalError("ZooKeeper needs kazoo")

    config = Config(GROUP, "a", named({"t": 1}), 0)
    with pytest.raises(FatalError, match="kazoo"):
        async with joined(config, SETTINGS, fails):
            pass


async def test_what_is_raised_in_the_block_comes_out_as_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A group of exceptions with one in it would be missed by who waits for that one."""
    group = Group()
    with pytest.raises(KeyError):
        async with group.join("a") as a:
            raise KeyError(a.consumer_id)
    assert not group.ensemble.children(ids_path(GROUP))


async def test_nothing_works_after_the_block(autojump_clock: trio.testing.MockClock) -> None:
    """Its partitions are with others."""
    group = Group()
    async with group.join("a") as a:
        await a.assignment()
    for call in (a.assignment(), a.commit({T0: 1}), a.fetch([T0])):
        with pytest.raises(ClientClosed):
            await call


async def test_a_member_that_makes_no_sense_is_told_of_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out of account, which nobody else may do."""
    group = Group()
    group.ensemble.put(ids_path(GROUP, "odd"), b"t", 99)
    with caplog.at_level(logging.WARNING, "client.zookeeper"):
        async with group.join("a") as a, group.join("b") as b:
            await a.assignment()
            await b.assignment()
            await a.assignment()

    assert [one.message.partition(" is ")[0] for one in caplog.records] == [
        "group 'g': consumer 'odd'",
        "group 'g': consumer 'odd'",
    ]


async def test_an_owners_node_that_stays_for_ever_is_told_of_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that waits for it in silence looks as if it hung."""
    group = Group()
    paths = [owner_path(GROUP, tp) for tp in (T0, T1)]
    for path in paths:
        group.ensemble.put(path, b"g_dead-0")
    async with group.join("a") as a:
        with trio.move_on_after(60):
            await a.assignment()
            raise AssertionError("both are somebody else's")
        group.ensemble.put(ids_path(GROUP, "b"), encode_registration(named({"u": 1}), 0), 99)
        with trio.move_on_after(60):
            await a.assignment()
        told = [one.getMessage() for one in caplog.records if one.name == "client.zookeeper"]
        assert [one.partition(" is ")[0] for one in told] == [
            f"group 'g': {path}" for path in paths
        ]
        assert all("Delete it" in one and "ZooKeeper at zk:2181" in one for one in told)
        for path in paths:
            group.ensemble.delete(path)
        assert (await a.assignment()).partitions == (T0, T1)


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ({}, "reads topics"),
        ({"topics": ["t"], "white_list": "t"}, "reads topics"),
        ({"topics": "t"}, "sequence"),
        ({"topics": []}, "at least one"),
        ({"topics": {"t": 0}}, "threads"),
        ({"topics": ["a/b"]}, "a/b"),
        ({"white_list": "("}, "no regular"),
        ({"black_list": r"\p{L}"}, "alike"),
        ({"topics": ["t"], "group": "a/b"}, "a/b"),
        ({"topics": ["t"], "zookeeper": "zk:port"}, "zookeeper.connect"),
        ({"topics": ["t"], "zookeeper": {"zookeeper.conect": "zk"}}, "conect"),
    ],
)
async def test_arguments_that_make_no_sense_are_refused(what: dict[str, Any], wrong: str) -> None:
    """Before anything is connected, and in words."""
    given: dict[str, Any] = {"zookeeper": "zk:2181", "group": "g", **what}
    with pytest.raises(ValueError, match=wrong):
        async with join(**given):
            pass


async def test_an_offset_that_is_none_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """Consumers of old would stop at it."""
    group = Group()
    async with group.join("a") as a:
        await a.assignment()
        wrong: Any
        for wrong in (-1, 2**63, True, "7"):
            with pytest.raises(ValueError, match="no offset"):
                await a.commit({T0: wrong})
        group.ensemble.put(offsets_path(GROUP, *T0), b"seven")
        with pytest.raises(FatalError, match="seven"):
            await a.fetch([T0])
