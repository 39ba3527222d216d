"""One consumer's place in a group of Kafka 0.8's consumers. Pure: no sockets, clock or threads.

Theory of operation
===================

Each member reads who is in the group, what they read, and what partitions there are; it computes
its own share (`client.zookeeper.registrations`) and makes an ephemeral node for each partition of
it. ZooKeeper makes a node once, so a partition has one owner, whatever anybody believes. All of
it begins anew when a watch says that something has changed.

What to do next follows from what is known (`_next`), one step at a time; a step is over when all
of its requests are answered:

  register    no node of ours is among the members
  read        the view is old: members, what each reads, topics if anybody has a pattern, and the
              partitions of our own topics. A change meanwhile begins it anew
  hand over   the user has something that is no longer ours: it agrees, or its time is over
  release     delete the nodes that aren't of our share
  claim       make those that are missing
  rest        all is ours; or somebody still has a part of it, so try again after a while, or when
              a watch on its node tells

Nothing is released that stays ours, unlike in 0.8, where each member gives up everything in each
rebalance. To the others that is no difference: they wait for just those nodes that they want.

An answer may be lost. So `_held` is what may be ours: it grows when a claim is sent, and shrinks
when a definite answer says that it isn't. Releasing and claiming both look whose the node is, so
they can be repeated.

Everything ephemeral is gone with its session, at one stroke. The ensemble ends a session that it
hasn't heard of for the session timeout: the one that it has granted, within bounds of its own,
which may be shorter than the one that was asked for. kazoo sends a ping after a third of that, and
a connection that is silent for another one is ended (`client.zookeeper.ensemble.Answers`): so two
thirds may have passed since the ensemble has heard of the session. Its partitions count as lost
when another sixth has. They may come back, if the session lives on. A process that is frozen can't
notice; so offsets are committed together with a check that its node among the members is still
there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

from client.zookeeper.registrations import (
    Subscription,
    decode_partitions,
    decode_registration,
    encode_registration,
    owner_path,
    share_of,
)
from protocol.partition import TopicPartition

# As 0.8's `rebalance.backoff.ms`. Its consumers give up after four tries in a row.
BACKOFF_MS: Final = 2_000
# Within the patience of the others, who wait for what is handed over.
HAND_OVER_MS: Final = 4_000


class Assignment(NamedTuple):
    """What this consumer may read and commit.

    Attributes:
        generation: Grows with each assignment that differs from the last one. It is this
            consumer's own; the group has none.
        consumer_id: Its id in the group.
        partitions: What it has, sorted.
        threads: The thread that has each, as the formula shares them among this consumer's.
        awaited: What the formula gives to it, too, and somebody else hasn't let go of yet.

    """

    generation: int
    consumer_id: str
    partitions: tuple[TopicPartition, ...]
    threads: Mapping[TopicPartition, str]
    awaited: tuple[TopicPartition, ...]


class Config(NamedTuple):
    """What a consumer brings; ``now_ms`` of its registration is the wall clock's."""

    group: str
    consumer_id: str
    subscription: Subscription
    registered_at_ms: int
    backoff_ms: int = BACKOFF_MS
    hand_over_ms: int = HAND_OVER_MS


# --- What is asked of the ensemble, and what comes back ---------------------------------------

# No tuples: two of different kinds are never equal.


@dataclass(frozen=True, slots=True)
class Register:
    """Make this consumer's node among the members, with *data* in it."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ListMembers:
    """Return the names of all members, and leave a watch on them."""


@dataclass(frozen=True, slots=True)
class ReadMember:
    """Return what is in a member's node."""

    name: str


@dataclass(frozen=True, slots=True)
class ListTopics:
    """Return the names of all topics, and leave a watch on them."""


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """Return what is in a topic's node, and leave a watch on it, also if it isn't there."""

    name: str


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the owner's node of a partition if this session has made it."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """Make the owner's node of a partition; if another session has, leave a watch on it."""

    tp: TopicPartition
    thread: str


Request = Register | ListMembers | ReadMember | ListTopics | ReadTopic | Release | Claim


class Result(Enum):
    """What came of a request.

    Attributes:
        DONE: It is so now, by this request or by an earlier one of the same session.
        TAKEN: The node is another session's.
        PERSISTENT: The node is no session's; no end of a session deletes it.
        MISSING: There is no such node.
        UNKNOWN: The connection broke: it was done, or not.
        REFUSED: The ensemble refuses it, and will again.

    """

    DONE = auto()
    TAKEN = auto()
    PERSISTENT = auto()
    MISSING = auto()
    UNKNOWN = auto()
    REFUSED = auto()


class Answer(NamedTuple):
    """The answer to a request: names to a list, data of what was read or is there, a reason."""

    result: Result
    names: tuple[str, ...] = ()
    data: bytes = b""
    why: str = ""


class State(StrEnum):
    """Where a consumer is in its life."""

    MEMBER = "member"  # Or on the way there.
    FAILED = "failed"
    LEFT = "left"


class View:
    """The group and its topics as they were read, or as far as they are."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] | None = None
        self.members: dict[str, Subscription] = {}
        self.topics: tuple[str, ...] | None = None
        self.partitions: dict[str, tuple[int, ...]] = {}
        # What can't be read, and why. A member like that counts for none.
        self.unreadable: dict[str, str] = {}

    def unread_members(self) -> list[Request]:
        """Return the requests for what is listed and not read yet."""
        assert self.names is not None
        known = self.members.keys() | self.unreadable.keys()
        return [ReadMember(name) for name in self.names if name not in known]

    def take_member(self, name: str, answer: Answer) -> None:
        """Take what is in a member's node."""
        assert self.names is not None
        if answer.result is Result.MISSING:  # It has left since.
            self.names = tuple(one for one in self.names if one != name)
            return
        try:
            self.members[name] = decode_registration(answer.data)
        except ValueError as exc:
            self.unreadable[name] = f"consumer {name!r} is left out of account: {exc}"

    def take_topic(self, name: str, answer: Answer) -> None:
        """Take what is in a topic's node."""
        self.partitions[name] = ()
        if answer.result is Result.DONE:
            try:
                self.partitions[name] = decode_partitions(answer.data)
            except ValueError as exc:
                self.unreadable[name] = f"topic {name!r} counts as without partitions: {exc}"

    def unread_topics(self, consumer: str) -> list[Request]:
        """Return the requests for the topics that this consumer reads."""
        own = self.members[consumer].threads_by_topic(self.topics or ())
        return [ReadTopic(name) for name in own if name not in self.partitions]


class Membership:
    """The machine. Feed it events with the time; send the requests that it returns.

    Each request of a session is answered once, with `answered`, or not at all once `expired` was
    told.

    Attributes:
        state: Where it is in its life.
        failure: Why the state is FAILED.
        unreadable: What was found in the group that makes no sense, in words, by name.
        orphans: Owners' nodes that this consumer awaits, and nobody will delete, in words, by path.

    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.state = State.MEMBER
        self.failure = ""
        self.unreadable: Mapping[str, str] = {}
        self.orphans: dict[str, str] = {}
        self._own = config.subscription
        # The session.
        self._is_open = False
        self._grace_ms = 0
        self._cut_off_at_ms: int | None = None
        self._pending: set[Request] = set()
        # What the ensemble has of ours.
        self._is_registered = False
        self._held: dict[TopicPartition, str] = {}
        self._sure: set[TopicPartition] = set()
        # What should be ours.
        self._is_stale = True
        self._view = View()
        self._share: dict[TopicPartition, str] | None = None
        self._retry_at_ms: int | None = None
        # What the user has.
        self._usable: dict[TopicPartition, str] = {}
        self._hand_over_by_ms: int | None = None
        self._assignment: Assignment | None = None

    # --- The session ---

    def opened(self, timeout_ms: int, now_ms: int) -> list[Request]:
        """Begin in a new session, connected; *timeout_ms* is what the ensemble has granted."""
        self._is_open = True
        return self.resumed(timeout_ms, now_ms)

    def suspended(self, now_ms: int) -> None:
        """Take note that the connection is lost; the session may live on."""
        if self._cut_off_at_ms is None:
            self._cut_off_at_ms = now_ms

    def resumed(self, timeout_ms: int, now_ms: int) -> list[Request]:
        """Go on: the session has lived on. Its watches are gone."""
        # When kazoo says that the connection is lost, a third of it is left; this leaves a sixth.
        self._grace_ms, self._cut_off_at_ms = timeout_ms // 6, None
        self._begin_anew()
        return self._next(now_ms)

    def expired(self) -> None:
        """Take note that the session is over, and with it all that is ephemeral."""
        self._is_open = self._is_registered = False
        self._cut_off_at_ms = None
        self._pending.clear()
        self._held.clear()
        self._sure.clear()
        self._usable.clear()
        self._begin_anew()

    def changed(self, now_ms: int) -> list[Request]:
        """Take note that a watch has told of something."""
        self._begin_anew()
        return self._next(now_ms)

    def _begin_anew(self) -> None:
        self._is_stale, self._retry_at_ms = True, None

    # --- The clock ---

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, None while there is nothing to wait for."""
        if self._cut_off_at_ms is not None:  # It can do nothing but lose.
            return self._cut_off_at_ms + self._grace_ms if self._usable else None
        if self.state is not State.MEMBER or not self._is_open or self._pending:
            return None
        return self._hand_over_by_ms if self._retry_at_ms is None else self._retry_at_ms

    def tick(self, now_ms: int) -> list[Request]:
        """Do what is due."""
        if self._cut_off_at_ms is not None and now_ms >= self._cut_off_at_ms + self._grace_ms:
            self._usable.clear()
        return self._next(now_ms)

    # --- The user ---

    @property
    def assignment(self) -> Assignment | None:
        """What the user was told last; None before."""
        return self._assignment

    @property
    def usable(self) -> Mapping[TopicPartition, str]:
        """What the user may read and commit at this moment, with the thread of each."""
        return self._usable

    @property
    def lost(self) -> bool:
        """Whether something of the last assignment is no longer ours (also before the first)."""
        told = self._assignment
        return told is None or any(tp not in self._usable for tp in told.partitions)

    @property
    def rebalance_needed(self) -> bool:
        """Whether the user should hand something over, or take a new assignment."""
        return self.lost or bool(self._given_up()) or self._is_news()

    def hand_over(self, now_ms: int) -> list[Request]:
        """Take note that the user is through with all that is no longer its own."""
        for tp in self._given_up():
            self._usable.pop(tp, None)
        return self._next(now_ms)

    def take(self) -> Assignment | None:
        """Return the assignment that stands, None while one is on its way."""
        if self._given_up():
            return None
        if self._is_news() or (self.lost and self._is_at_rest()):
            self._usable = {tp: self._held[tp] for tp in sorted(self._sure)}
            share = self._share or {}
            self._assignment = Assignment(
                generation=self._assignment.generation + 1 if self._assignment else 1,
                consumer_id=self.config.consumer_id,
                partitions=tuple(self._usable),
                threads=dict(self._usable),
                awaited=tuple(sorted(share.keys() - self._sure)),
            )
        return None if self.lost else self._assignment

    def leave(self) -> None:
        """End. The session is closed next, which takes everything that is ephemeral with it."""
        self.state = State.LEFT
        self._usable.clear()

    def _given_up(self) -> list[TopicPartition]:
        """Return what the user has and the share has not."""
        if self._share is None:
            return []
        return [tp for tp, thread in self._usable.items() if self._share.get(tp) != thread]

    def _is_at_rest(self) -> bool:
        """Whether this round is over, and there is something to tell of it."""
        if (
            self._is_stale
            or self._pending
            or self._share is None
            or self._cut_off_at_ms is not None
        ):
            return False
        # While others hold all of it, there is nothing that a user could begin with.
        return bool(self._sure) or not self._share

    def _is_news(self) -> bool:
        return self._is_at_rest() and self._sure != self._usable.keys()

    # --- The ensemble ---

    def answered(self, request: Request, answer: Answer, now_ms: int) -> list[Request]:
        """Take the answer to a request of this session."""
        self._pending.discard(request)
        match answer.result:
            case Result.REFUSED:
                self._fail(answer.why)
            case Result.UNKNOWN:
                self._begin_anew()
                self._retry_at_ms = now_ms + self.config.backoff_ms
            case _:
                self._take(request, answer, now_ms)
        return self._next(now_ms)

    def _take(self, request: Request, answer: Answer, now_ms: int) -> None:
        match request:
            case Register():
                self._is_registered = answer.result is Result.DONE
                if not self._is_registered:  # An earlier session of ours, which has yet to end.
                    self._retry_at_ms = now_ms + self.config.backoff_ms
            case ListMembers():
                self._view.names = tuple(sorted(answer.names))
                self._is_registered = self.config.consumer_id in answer.names
                # Whatever stands in its node, this consumer knows what it reads.
                self._view.members[self.config.consumer_id] = self._own
            case ReadMember(name):
                self._view.take_member(name, answer)
            case ListTopics():
                self._view.topics = tuple(sorted(answer.names))
            case ReadTopic(name):
                self._view.take_topic(name, answer)
            case Release(tp):
                self._held.pop(tp, None)
                self._sure.discard(tp)
            case Claim(tp):
                self._take_claim(tp, answer, now_ms)

    def _take_claim(self, tp: TopicPartition, answer: Answer, now_ms: int) -> None:
        path = owner_path(self.config.group, tp)
        self.orphans.pop(path, None)
        if answer.result is Result.DONE:
            self._sure.add(tp)
            return
        self._held.pop(tp, None)
        self._retry_at_ms = now_ms + self.config.backoff_ms
        thread = answer.data.decode(errors="replace")
        owner = thread.rpartition("-")[0]
        if answer.result is Result.PERSISTENT and owner not in (self._view.names or ()):
            self.orphans[path] = (
                f"{path} is persistent, and names {thread!r}, of which there is no consumer in the "
                f"group: {tp} is awaited until somebody deletes the znode. Delete it, unless a "
                "program that still runs has made it"
            )

    def _fail(self, why: str) -> None:
        self.state, self.failure = State.FAILED, why
        self._usable.clear()

    def _next(self, now_ms: int) -> list[Request]:
        """Return the requests of the next step, if there is one to be taken now."""
        if self.state is not State.MEMBER or not self._is_open or self._cut_off_at_ms is not None:
            return []
        if self._pending:
            return []
        if self._retry_at_ms is not None:
            if now_ms < self._retry_at_ms:
                return []
            self._retry_at_ms = None
        requests = self._step(now_ms)
        self._pending.update(requests)
        return requests

    def _step(self, now_ms: int) -> list[Request]:
        if not self._is_registered:
            self._is_stale = True
            return [Register(encode_registration(self._own, self.config.registered_at_ms))]
        if self._is_stale:
            self._is_stale, self._view, self._share = False, View(), None
        if self._share is None:
            if requests := self._read():
                return requests
            self._share = self._compute()
        if not self._may_release(now_ms):
            return []
        return self._release(self._share) or self._claim(self._share)

    def _read(self) -> list[Request]:
        view = self._view
        if view.names is None:
            return [ListMembers()]
        if requests := view.unread_members():
            return requests
        if view.topics is None and any(one.is_pattern for one in view.members.values()):
            return [ListTopics()]
        return view.unread_topics(self.config.consumer_id)

    def _compute(self) -> dict[TopicPartition, str]:
        view = self._view
        self.unreadable = view.unreadable
        share = share_of(self.config.consumer_id, view.members, view.topics or (), view.partitions)
        awaited = {owner_path(self.config.group, tp) for tp in share}
        self.orphans = {path: words for path, words in self.orphans.items() if path in awaited}
        return share

    def _may_release(self, now_ms: int) -> bool:
        given_up = self._given_up()
        if not given_up:
            self._hand_over_by_ms = None
            return True
        if self._hand_over_by_ms is None:
            self._hand_over_by_ms = now_ms + self.config.hand_over_ms
        if now_ms < self._hand_over_by_ms:
            return False
        self._hand_over_by_ms = None
        for tp in given_up:
            del self._usable[tp]
        return True

    def _release(self, share: Mapping[TopicPartition, str]) -> list[Request]:
        return [Release(tp) for tp, thread in self._held.items() if share.get(tp) != thread]

    def _claim(self, share: Mapping[TopicPartition, str]) -> list[Request]:
        missing = {tp: thread for tp, thread in share.items() if tp not in self._sure}
        self._held.update(missing)
        return [Claim(tp, thread) for tp, thread in missing.items()]
