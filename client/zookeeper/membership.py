"""Membership of one consumer in a group of Kafka 0.8's consumers. Pure: no sockets, clock, threads.

Theory of operation
===================

Each member reads the list of members, their subscriptions and the partitions of its topics. It
computes its own share (`client.zookeeper.registrations`) and creates an ephemeral znode for each
partition of the share. ZooKeeper creates a znode only once, so a partition has one owner even if
members disagree. When a watch reports a change, the member starts again.

The member's knowledge decides the next step (`_next`); a step is over when all of its requests
are answered:

  register    this consumer has no znode among the members
  read        the view is stale: read the members, their subscriptions, the topics if a member has a
              pattern, and the partitions of our own topics. A change during this step restarts it
  hand over   the program has partitions outside our share: it agrees, or its time is over
  release     delete the znodes of partitions outside our share
  claim       create the missing znodes of our share
  rest        all partitions of the share are ours; or other members still have some: claim them
              again after a pause, or when a watch on their znodes reports a change

A member keeps the partitions that stay in its share. In Kafka 0.8 each member releases all
partitions in each rebalance. Both kinds can be in one group, as a member waits only for the znodes
that it wants.

An answer may be lost. `_held` therefore has all partitions that may be ours: a claim adds one when
it is sent, and only a definite answer removes one. Release and claim both check who owns the znode,
so they can be repeated.

All ephemeral znodes of a session disappear with it, at once. The ensemble ends a session when it
has received nothing for the granted session timeout, which may be shorter than the requested one.
kazoo sends a ping after a third of the timeout, and a connection that is silent for another third
is ended (`client.zookeeper.ensemble.Answers`). When the connection counts as lost, up to two thirds
may have passed since the ensemble last received anything. After one more sixth the partitions count
as lost; they may come back if the session survives. A frozen process can't notice any of this, so
each commit of offsets also checks that the znode among the members still exists.
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

# Default pause between attempts to claim partitions, in ms; that of `rebalance.backoff.ms` in
# Kafka 0.8, whose consumers give up after four attempts in a row.
BACKOFF_MS: Final = 2_000
# Default hand-over timeout, in ms; shorter than the about 8 s that consumers of 0.8 wait.
HAND_OVER_MS: Final = 4_000


class Assignment(NamedTuple):
    """The partitions that this consumer may read and commit.

    Attributes:
        generation: Number that grows with each new assignment. Only this consumer counts it; the
            group has no generation.
        consumer_id: This consumer's id in the group.
        partitions: The assigned partitions, sorted.
        threads: This consumer's thread for each partition, by the formula.
        awaited: Partitions of this consumer's share that other members haven't released yet.

    """

    generation: int
    consumer_id: str
    partitions: tuple[TopicPartition, ...]
    threads: Mapping[TopicPartition, str]
    awaited: tuple[TopicPartition, ...]


class Config(NamedTuple):
    """Settings of one consumer; ``registered_at_ms`` is of the wall clock."""

    group: str
    consumer_id: str
    subscription: Subscription
    registered_at_ms: int
    backoff_ms: int = BACKOFF_MS
    hand_over_ms: int = HAND_OVER_MS


# --- Requests to the ensemble, and answers ----------------------------------------------------

# Dataclasses, as named tuples of different types but equal values would be equal.


@dataclass(frozen=True, slots=True)
class Register:
    """Create this consumer's node among the members, with *data* in it."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ListMembers:
    """Return the names of all members, and leave a watch on them."""


@dataclass(frozen=True, slots=True)
class ReadMember:
    """Return the contents of a member's node."""

    name: str


@dataclass(frozen=True, slots=True)
class ListTopics:
    """Return the names of all topics, and leave a watch on them."""


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """Return the contents of a topic's node, and leave a watch on it, even if it is missing."""

    name: str


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the owner's node of a partition if this session has created it."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """Create the owner's node of a partition; if another session owns it, leave a watch on it."""

    tp: TopicPartition
    thread: str


Request = Register | ListMembers | ReadMember | ListTopics | ReadTopic | Release | Claim


class Result(Enum):
    """Outcome of a request.

    Attributes:
        DONE: Done, by this request or by an earlier one of the same session.
        TAKEN: The node belongs to another session.
        PERSISTENT: The node belongs to no session, so the end of a session doesn't delete it.
        MISSING: The node doesn't exist.
        UNKNOWN: The connection broke: the request was done, or not.
        REFUSED: The ensemble refuses the request; a repetition doesn't help.

    """

    DONE = auto()
    TAKEN = auto()
    PERSISTENT = auto()
    MISSING = auto()
    UNKNOWN = auto()
    REFUSED = auto()


class Answer(NamedTuple):
    """Answer to a request: names for a list, contents of the node, or why it was refused."""

    result: Result
    names: tuple[str, ...] = ()
    data: bytes = b""
    why: str = ""


class State(StrEnum):
    """State of a consumer."""

    MEMBER = "member"  # Or about to become one.
    FAILED = "failed"
    LEFT = "left"


class View:
    """The group and its topics, as far as they have been read."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] | None = None
        self.members: dict[str, Subscription] = {}
        self.topics: tuple[str, ...] | None = None
        self.partitions: dict[str, tuple[int, ...]] = {}
        # Reasons why a node can't be read, by its name. An unreadable member gets no share.
        self.unreadable: dict[str, str] = {}

    def unread_members(self) -> list[Request]:
        """Return the requests for the listed members that aren't read yet."""
        assert self.names is not None
        known = self.members.keys() | self.unreadable.keys()
        return [ReadMember(name) for name in self.names if name not in known]

    def take_member(self, name: str, answer: Answer) -> None:
        """Take the answer about a member's node."""
        assert self.names is not None
        if answer.result is Result.MISSING:  # The member has left since it was listed.
            self.names = tuple(one for one in self.names if one != name)
            return
        try:
            self.members[name] = decode_registration(answer.data)
        except ValueError as exc:
            self.unreadable[name] = f"consumer {name!r} is left out of account: {exc}"

    def take_topic(self, name: str, answer: Answer) -> None:
        """Take the answer about a topic's node."""
        self.partitions[name] = ()
        if answer.result is Result.DONE:
            try:
                self.partitions[name] = decode_partitions(answer.data)
            except ValueError as exc:
                self.unreadable[name] = f"topic {name!r} counts as without partitions: {exc}"

    def unread_topics(self, consumer: str) -> list[Request]:
        """Return the requests for this consumer's topics that aren't read yet."""
        own = self.members[consumer].threads_by_topic(self.topics or ())
        return [ReadTopic(name) for name in own if name not in self.partitions]


class Membership:
    """State machine of a member: takes events with the time, returns the requests to send.

    Call `answered` once for each request, except for those that `expired` ended. Times are in ms of
    a monotonic clock.

    Attributes:
        state: State of the consumer.
        failure: Why the state is FAILED.
        unreadable: Messages about invalid nodes of members and topics, by name.
        orphans: Messages about persistent owners' nodes without an owner, by path. This consumer
            waits for them, and only an operator can delete them.

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
        # Our nodes in the ensemble.
        self._is_registered = False
        self._held: dict[TopicPartition, str] = {}
        self._sure: set[TopicPartition] = set()
        # The view of the group, and our share.
        self._is_stale = True
        self._view = View()
        self._share: dict[TopicPartition, str] | None = None
        self._retry_at_ms: int | None = None
        # The program's partitions.
        self._usable: dict[TopicPartition, str] = {}
        self._hand_over_by_ms: int | None = None
        self._assignment: Assignment | None = None

    # --- The session ---

    def opened(self, timeout_ms: int, now_ms: int) -> list[Request]:
        """Begin in a new session, connected; *timeout_ms* is the granted session timeout."""
        self._is_open = True
        return self.resumed(timeout_ms, now_ms)

    def suspended(self, now_ms: int) -> None:
        """Note that the connection is lost; the session may survive."""
        if self._cut_off_at_ms is None:
            self._cut_off_at_ms = now_ms

    def resumed(self, timeout_ms: int, now_ms: int) -> list[Request]:
        """Go on in the session, which has survived without its watches."""
        # When kazoo reports a lost connection, at least a third of the timeout is left. Waiting a
        # sixth leaves the other sixth as a margin.
        self._grace_ms, self._cut_off_at_ms = timeout_ms // 6, None
        self._begin_anew()
        return self._next(now_ms)

    def expired(self) -> None:
        """Note that the session is over, and all of its ephemeral nodes are deleted."""
        self._is_open = self._is_registered = False
        self._cut_off_at_ms = None
        self._pending.clear()
        self._held.clear()
        self._sure.clear()
        self._usable.clear()
        self._begin_anew()

    def changed(self, now_ms: int) -> list[Request]:
        """Note that a watch has reported a change."""
        self._begin_anew()
        return self._next(now_ms)

    def _begin_anew(self) -> None:
        self._is_stale, self._retry_at_ms = True, None

    # --- The clock ---

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next `tick`; None if none is needed."""
        # Without a connection, the only thing that is due is the loss of the partitions.
        if self._cut_off_at_ms is not None:
            return self._cut_off_at_ms + self._grace_ms if self._usable else None
        if self.state is not State.MEMBER or not self._is_open or self._pending:
            return None
        return self._hand_over_by_ms if self._retry_at_ms is None else self._retry_at_ms

    def tick(self, now_ms: int) -> list[Request]:
        """Do the actions that are due."""
        if self._cut_off_at_ms is not None and now_ms >= self._cut_off_at_ms + self._grace_ms:
            self._usable.clear()
        return self._next(now_ms)

    # --- The user ---

    @property
    def assignment(self) -> Assignment | None:
        """The last assignment that the program got; None before the first."""
        return self._assignment

    @property
    def usable(self) -> Mapping[TopicPartition, str]:
        """The partitions that the program may read and commit now, and the thread of each."""
        return self._usable

    @property
    def lost(self) -> bool:
        """Whether a partition of the last assignment is lost; also true before the first."""
        told = self._assignment
        return told is None or any(tp not in self._usable for tp in told.partitions)

    @property
    def rebalance_needed(self) -> bool:
        """Whether the program should hand partitions over, or take a new assignment."""
        return self.lost or bool(self._given_up()) or self._is_news()

    def hand_over(self, now_ms: int) -> list[Request]:
        """Note that the program has ended its work on partitions outside the share."""
        for tp in self._given_up():
            self._usable.pop(tp, None)
        return self._next(now_ms)

    def take(self) -> Assignment | None:
        """Return the current assignment; None while the member is still computing or claiming."""
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
        """End. The caller then closes the session, which deletes all ephemeral nodes."""
        self.state = State.LEFT
        self._usable.clear()

    def _given_up(self) -> list[TopicPartition]:
        """Return the program's partitions outside the share."""
        if self._share is None:
            return []
        return [tp for tp, thread in self._usable.items() if self._share.get(tp) != thread]

    def _is_at_rest(self) -> bool:
        """Whether all steps are done, and the program can get an assignment."""
        if (
            self._is_stale
            or self._pending
            or self._share is None
            or self._cut_off_at_ms is not None
        ):
            return False
        # While other members have the whole share, the program has nothing to begin with.
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
                if not self._is_registered:  # Node of an earlier session of ours, still open.
                    self._retry_at_ms = now_ms + self.config.backoff_ms
            case ListMembers():
                self._view.names = tuple(sorted(answer.names))
                self._is_registered = self.config.consumer_id in answer.names
                # Our own node needn't be read.
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
        """Return the requests of the next step; none if no step is due now."""
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
