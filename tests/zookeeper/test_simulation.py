"""Consumers of ours and of old in one group, over an ensemble in memory, through faults.

A number decides everything: who joins and leaves when, how long each request and each answer
takes, which connections break, and what became of what was on its way. The clock is virtual.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import pytest

from client.zookeeper.membership import (
    Answer,
    Config,
    Membership,
    Request,
    Result,
)
from client.zookeeper.registrations import (
    Kind,
    Subscription,
    decode_registration,
    ids_path,
    matched,
    named,
    share_of,
    topic_path,
)
from protocol.partition import TopicPartition
from tests.fakes.registry import Ensemble, Registry
from tests.zookeeper.old_consumers import Doing, OldConsumer

GROUP: Final = "etl"
HISTORIES: Final = 40
HISTORIES_NIGHTLY: Final = 2_000
# What was asked for isn't always granted, and a server that comes later may grant another one.
SESSIONS_MS: Final = (2_000, 6_000, 6_000, 9_000)
FAULTS_MS: Final = 60_000
# Then all connections hold. Sessions that nobody goes on with end, and who waits tries again.
CALM_MS: Final = 40_000
UNKNOWN: Final = Answer(Result.UNKNOWN)


class World:
    """The clock, the ensemble, and all consumers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.ensemble = Ensemble()
        self.ensemble.watcher = self._tell
        self.lines: dict[int, Line] = {}
        self.consumers: list[Ours | Old] = []
        self.commits = 0
        self._queue: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()

    def after(self, ms: int, call: Callable[[], object]) -> None:
        """Make a call in so many milliseconds."""
        heapq.heappush(self._queue, (self.now_ms + ms, next(self._order), call))

    def run_until(self, end_ms: int) -> None:
        """Let time pass; look at who has what after each event."""
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._queue)
            call()
            self.check()
        self.now_ms = end_ms

    def check(self) -> None:
        """No two have one partition. One of old that doesn't know of its end counts for none."""
        holders: dict[TopicPartition, str] = {}
        for one in self.consumers:
            for tp in one.reads():
                assert tp not in holders, f"{tp} is with {holders[tp]} and {one.consumer_id}"
                holders[tp] = one.consumer_id

    def _tell(self, session: int) -> None:
        line = self.lines.get(session)
        if line is not None:
            line.come(line.consumer.changed)


class Line:
    """A session and its connection: requests go in order, and what comes back keeps its order."""

    def __init__(self, world: World, consumer: "Ours | Old") -> None:
        self.world = world
        self.consumer = consumer
        self.registry = Registry(world.ensemble, GROUP, consumer.consumer_id)
        self.is_up = True
        self.is_over = False  # The ensemble has ended it.
        self.is_known_over = False
        self.granted_ms = world.rng.choice(SESSIONS_MS)
        self._heard_ms = world.now_ms
        self._number = 0  # Of the connection.
        self._sent: deque[Request] = deque()
        self._came: deque[Callable[[], object]] = deque()
        world.lines[self.registry.session] = self

    def send(self, request: Request) -> None:
        """Send a request over the present connection; without one it is lost at once."""
        if not self.is_up:
            self.world.after(0, partial(self._answer, request, UNKNOWN))
            return
        self._sent.append(request)
        self.world.after(self._way_ms(), partial(self._arrive, self._number))

    def come(self, call: Callable[[], object]) -> None:
        """Have something come to the consumer, after what comes already."""
        if self.is_up:
            self._came.append(call)
            self.world.after(self._way_ms(), partial(self._deliver, self._number))

    def cut(self) -> None:
        """Lose the connection, and what was on its way; the consumer learns of it later."""
        if not self.is_up:
            return
        self.is_up = False
        self._number += 1
        world, rng = self.world, self.world.rng
        lost = list(self._sent)
        for request in lost[: rng.randint(0, len(lost))]:
            self.registry.do(request)
        self._sent.clear()
        self._came.clear()
        cut_ms = world.now_ms
        # As late as kazoo may be: a ping after a third, and no answer to it.
        notice_ms = rng.choice([rng.randint(0, self.granted_ms * 2 // 3), self.granted_ms * 2 // 3])
        world.after(notice_ms, partial(self._notice, self.consumer.asked()))
        back_ms = notice_ms + rng.choice([1, 500, 2_000, 5_000, 9_000])
        world.after(self.granted_ms, partial(self._end_unless_back, cut_ms))
        world.after(back_ms, self._reconnect)

    def close(self) -> None:
        """End the session at once, as who leaves does; or as if its process were gone."""
        self.is_up, self.is_known_over = False, True
        self._number += 1
        self.end()

    def end(self) -> None:
        """Have the ensemble end the session."""
        if not self.is_over:
            self.is_over = True
            self.world.ensemble.end_session(self.registry.session)

    def _way_ms(self) -> int:
        return self.world.rng.choice([1, 1, 2, 5, 20])

    def _arrive(self, number: int) -> None:
        if number != self._number or not self._sent:
            return
        request = self._sent.popleft()
        answer = self.registry.do(request)
        self.come(partial(self._answer, request, answer))

    def _deliver(self, number: int) -> None:
        if number == self._number and self._came:
            self._came.popleft()()

    def _answer(self, request: Request, answer: Answer) -> None:
        if not self.is_known_over:
            self.consumer.answered(request, answer)

    def _notice(self, lost: list[Request]) -> None:
        if self.is_known_over:
            return
        for request in lost:
            self._answer(request, UNKNOWN)
        self.consumer.suspended()

    def _end_unless_back(self, cut_ms: int) -> None:
        if not self.is_up and self._heard_ms <= cut_ms:
            self.end()

    def _reconnect(self) -> None:
        if self.is_known_over:
            return
        if self.is_over:
            self.is_known_over = True
            self.consumer.expired()
            return
        self.is_up = True
        self.granted_ms = self.world.rng.choice(SESSIONS_MS)
        self._heard_ms = self.world.now_ms
        self.consumer.resumed()


class Ours:
    """A `Membership`, and a user that asks for its assignment now and then."""

    def __init__(self, world: World, consumer_id: str, subscription: Subscription) -> None:
        self.world = world
        self.consumer_id = consumer_id
        self.machine = Membership(Config(GROUP, consumer_id, subscription, 0))
        self.is_gone = False
        self._asked: list[Request] = []
        self._open()
        self._live()

    def _open(self) -> None:
        if not self.is_gone:
            self.line = Line(self.world, self)
            self._send(self.machine.opened(self.line.granted_ms, self.world.now_ms))

    def reads(self) -> set[TopicPartition]:
        """What it may read: also if its session has ended, and it doesn't know."""
        return set(self.machine.usable)

    def asked(self) -> list[Request]:
        """What has no answer yet."""
        return list(self._asked)

    def leave(self) -> None:
        """Close the session."""
        self.is_gone = True
        self.machine.leave()
        self.line.close()

    def answered(self, request: Request, answer: Answer) -> None:
        """Take an answer."""
        self._asked.remove(request)
        self._send(self.machine.answered(request, answer, self.world.now_ms))

    def changed(self) -> None:
        """Be told by a watch."""
        self._send(self.machine.changed(self.world.now_ms))

    def suspended(self) -> None:
        """Notice that the connection is gone."""
        self.machine.suspended(self.world.now_ms)
        self._wake()

    def resumed(self) -> None:
        """Be connected again."""
        self._send(self.machine.resumed(self.line.granted_ms, self.world.now_ms))

    def expired(self) -> None:
        """Learn that the session has ended, and open another one soon."""
        self._asked.clear()
        self.machine.expired()
        self.world.after(self.world.rng.randint(1, 500), self._open)

    def _send(self, requests: list[Request]) -> None:
        self._asked += requests
        for request in requests:
            self.line.send(request)
        self._wake()

    def _wake(self) -> None:
        due_ms = self.machine.next_deadline_ms()
        if due_ms is not None and not self.is_gone:
            self.world.after(max(0, due_ms - self.world.now_ms), self._tick)

    def _tick(self) -> None:
        due_ms = self.machine.next_deadline_ms()
        if not self.is_gone and due_ms is not None and due_ms <= self.world.now_ms:
            self._send(self.machine.tick(self.world.now_ms))

    def _live(self) -> None:
        """Take the assignment, commit now and then, and sometimes be long at it."""
        if self.is_gone:
            return
        machine, rng = self.machine, self.world.rng
        self._send(machine.hand_over(self.world.now_ms))
        machine.take()
        for tp in machine.usable:
            self._commit(tp)
        self.world.after(rng.choice([50, 200, 1_000, 6_000]), self._live)

    def _commit(self, tp: TopicPartition) -> None:
        if self.line.is_up and self.line.registry.is_member():
            self.world.commits += 1
            owner = self.world.ensemble.owner(GROUP, tp)
            assert owner is not None
            assert owner.session == self.line.registry.session, f"{tp}: a commit of a non-owner"


class Old:
    """An `OldConsumer`, driven through its line. Everything lost is asked again, as it does."""

    def __init__(self, world: World, consumer_id: str, subscription: Subscription) -> None:
        self.world = world
        self.consumer_id = consumer_id
        self.model = OldConsumer(consumer_id, subscription)
        self.is_gone = False
        self._open()

    def _open(self) -> None:
        if not self.is_gone:
            self.line = Line(self.world, self)
            self._asked: Request | None = None
            self._is_triggered = False
            self._doing: Doing | None = self.model.begin()
            self._go_on(None)

    def reads(self) -> set[TopicPartition]:
        """What it reads, as far as its session lives: it doesn't look at the clock."""
        return set() if self.line.is_over else set(self.model.has)

    def asked(self) -> list[Request]:
        """What has no answer yet."""
        return [] if self._asked is None else [self._asked]

    def leave(self) -> None:
        """Close the session."""
        self.is_gone = True
        self.model.has.clear()
        self.line.close()

    def answered(self, request: Request, answer: Answer) -> None:
        """Take an answer; what was lost is sent again with the next connection."""
        if answer.result is not Result.UNKNOWN:
            self._asked = None
            self._go_on(answer)
        elif self.line.is_up:
            self.line.send(request)

    def changed(self) -> None:
        """Be told by a watch: rebalance, or once more after this rebalance."""
        if self._doing is not None:
            self._is_triggered = True
        elif not self.is_gone:
            self._doing = self.model.rebalance()
            self._go_on(None)

    def suspended(self) -> None:
        """Do nothing about it."""

    def resumed(self) -> None:
        """Ask again what had no answer, and have a look at what has changed."""
        if self._asked is not None:
            self.line.send(self._asked)
        self.changed()

    def expired(self) -> None:
        """Begin anew in another session."""
        if self._doing is not None:
            self._doing.close()
        self.model.has.clear()
        self.world.after(self.world.rng.randint(1, 500), self._open)

    def _go_on(self, answer: Answer | None) -> None:
        line = self.line
        if self.is_gone or self._doing is None or line.is_known_over:
            return
        try:
            # A generator takes nothing at its beginning.
            doing = next(self._doing) if answer is None else self._doing.send(answer)
        except StopIteration:
            self._doing = None
            if self._is_triggered:
                self._is_triggered = False
                self.changed()
            return
        if isinstance(doing, int):
            self.world.after(doing, lambda: self._go_on(UNKNOWN) if self.line is line else None)
        else:
            self._asked = doing
            line.send(doing)


SUBSCRIPTIONS: Final = (
    named({"a": 1}),
    named({"a": 2, "b": 1}),
    named({"b": 11}),
    matched(Kind.WHITE_LIST, "a,b", 1),
    matched(Kind.BLACK_LIST, "b.*", 2),
)


class Play:
    """Consumers come, go and lose their connections; topics grow."""

    def __init__(self, seed: int, ours: int = 3, old: int = 3) -> None:
        self.world = World(seed)
        self.rng = self.world.rng
        self._names = count()
        self._sizes = {"a": 4, "b": 7}
        for topic in self._sizes:
            self._write(topic)
        for is_ours in [True] * ours + [False] * old:
            self.world.after(self.rng.randint(0, 3_000), partial(self._join, is_ours=is_ours))
        for _ in range(25):
            self.world.after(self.rng.randint(1_000, FAULTS_MS), self._fault)

    def run(self) -> None:
        """Live through it all, then have peace, and look who has what."""
        self.world.run_until(FAULTS_MS + CALM_MS)
        self._check_end()

    def _write(self, topic: str) -> None:
        listed = ",".join(f'"{n}":[0]' for n in range(self._sizes[topic]))
        text = f'{{"version":1,"partitions":{{{listed}}}}}'
        self.world.ensemble.put(topic_path(topic), text.encode())

    def _join(self, *, is_ours: bool) -> None:
        name = f"{GROUP}_host{self.rng.randint(0, 99)}-{next(self._names)}"
        kind = Ours if is_ours else Old
        self.world.consumers.append(kind(self.world, name, self.rng.choice(SUBSCRIPTIONS)))

    def _fault(self) -> None:
        there = [one for one in self.world.consumers if not one.is_gone]
        match self.rng.choice(["cut", "cut", "cut", "leave", "join", "grow"]):
            case "cut" if there:
                self.rng.choice(there).line.cut()
            case "leave" if len(there) > 2:
                self.rng.choice(there).leave()
            case "grow":
                topic = self.rng.choice(["a", "b", "c"])
                self._sizes[topic] = self._sizes.get(topic, 0) + 2
                self._write(topic)
            case _:
                self._join(is_ours=self.rng.choice([True, False]))

    def _check_end(self) -> None:
        there = [one for one in self.world.consumers if not one.is_gone]
        ensemble = self.world.ensemble
        names = ensemble.children(ids_path(GROUP))
        assert sorted(one.consumer_id for one in there) == sorted(names)
        members = {
            name: decode_registration(ensemble.nodes[ids_path(GROUP, name)].data) for name in names
        }
        partitions = {topic: tuple(range(size)) for topic, size in self._sizes.items()}
        for one in there:
            share = share_of(one.consumer_id, members, list(partitions), partitions)
            assert one.reads() == set(share), one.consumer_id
            for tp, thread in share.items():
                owner = ensemble.owner(GROUP, tp)
                assert owner is not None
                assert owner.data == thread.encode()


def _play(seeds: range) -> None:
    for seed in seeds:
        try:
            Play(seed).run()
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}: {exc}") from exc


def test_a_partition_has_one_owner_through_all_faults_and_each_has_one_in_the_end() -> None:
    """What two read is done twice; what nobody reads is not done at all."""
    _play(range(HISTORIES))


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(0, HISTORIES_NIGHTLY, 100))
def test_the_same_over_many_more_histories(start: int) -> None:
    """Some faults have to meet in one moment."""
    _play(range(start, start + 100))
