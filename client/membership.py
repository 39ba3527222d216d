"""One member's side of the group protocol. Pure: no sockets, no clock, no tasks.

Theory of operation
===================

A member is always in one of six states:

  OUTSIDE --want_assignment--> JOINING --answer--> SYNCING --answer--> STABLE
     ^                            ^                                      |
     |                            +---------want_assignment--------------+
     +-- no answer in time             (once a rebalance is needed)

and FAILED (an error that joining again would not cure) and LEFT, out of which nothing leads.

Events go in by method calls, with the time as an argument; the calls return a list of actions.
At most one JoinGroup or SyncGroup is awaited. An answer counts only if it belongs to the very
request that is awaited (joins and syncs) or to the current generation and member id (heartbeats
and commits): a late 22 after a rejoin means nothing.

A rebalance reported by a heartbeat is only noted. This member keeps its partitions, and its
commits are accepted, until the user asks for the assignment: the user chooses the point of
handing over. Only the codes 22, 25 and 82 mean that the partitions are lost already.

Then an eager member gives up all its partitions and joins. A cooperative member keeps them while
joining and syncing; after the new assignment it gives up the partitions missing there (again at
a point that the user chose) and joins a second time, so that others get them. `HandOver` keeps
the user's partitions and the announced changes; use it through `due` and `told`. Losses are
announced before anything else.

`REACTIONS` is the only place that defines the reaction of a member to each error code.
"""

import struct
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from client.exceptions import ClientClosed, CoordinatorError, FatalError, code_text, refusal
from protocol import consumer
from protocol.errors import ErrorCode
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
    heartbeat_interval_ms,
)
from protocol.partition import NO_GENERATION, TopicPartition

# The coordinator answers a JoinGroup at the latest when the rebalance timeout is over; the
# rest is for the way there and back, and for a disk that is slow (Kafka's clients: the same).
PARKED_SLACK_MS: Final = 5_000
PROTOCOL_TYPE: Final = "consumer"
REASON_CHARS_MAX: Final = 255

# User data of an assignor for its group's leader, in bytes, made of (assignor's name, topics,
# partitions of the last assignment, its generation).
UserData = Callable[[str, tuple[str, ...], tuple[TopicPartition, ...], int], bytes | None]


class Assignment(NamedTuple):
    """Partitions that this member may read and commit in one generation, sorted."""

    generation: int
    member_id: str
    partitions: tuple[TopicPartition, ...]
    is_leader: bool


class MembershipConfig(NamedTuple):
    """Settings of a member.

    ``topics`` is empty if a pattern selects them. ``cooperative``: the member keeps partitions
    that stay while the group rebalances; all offered assignors must be cooperative.
    """

    group_id: str
    topics: tuple[str, ...]
    assignor_names: tuple[str, ...]
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    group_instance_id: str | None = None
    reason: str | None = None
    topic_pattern: str | None = None
    host: str | None = None
    cooperative: bool = False

    @property
    def heartbeat_interval_ms(self) -> int:
        """The pause between two heartbeats."""
        return heartbeat_interval_ms(self.session_timeout_ms)

    @property
    def parked_ms(self) -> int:
        """How long a JoinGroup or SyncGroup may stay unanswered."""
        return self.rebalance_timeout_ms + PARKED_SLACK_MS


class State(StrEnum):
    """Where a member is in its life."""

    OUTSIDE = "outside"  # Nothing is under way; may still have a member id.
    JOINING = "joining"  # A JoinGroup is on its way or parked.
    SYNCING = "syncing"  # In the new generation; computing, or a SyncGroup is on its way.
    STABLE = "stable"  # Has an assignment, though a rebalance may be needed by now.
    FAILED = "failed"
    LEFT = "left"


MemberRequest = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest
MemberResponse = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse


class Send(NamedTuple):
    """Send *request*, then call `Membership.answered` or `Membership.unanswered`.

    ``parked_ms``: how long one attempt may stay unanswered, as the coordinator parks it;
    None for a request that is answered at once. ``rejoins``: how many joins in a row came to
    nothing; from 2 on, pause before sending.
    """

    request: MemberRequest
    parked_ms: int | None
    rejoins: int = 0


class Resolve(NamedTuple):
    """Ask which topics match the pattern, then call `Membership.resolved`.

    ``number`` tells it from an older one; ``rejoins`` is as in `Send`.
    """

    number: int
    pattern: str
    rejoins: int


class Compute(NamedTuple):
    """This member leads: compute the assignments, then call `Membership.computed`."""

    generation: int
    assignor_name: str
    members: tuple[JoinGroupMember, ...]


class Assigned(NamedTuple):
    """The join that the user asked for came to its end."""

    assignment: Assignment


class GaveUp(NamedTuple):
    """The join that the user asked for failed."""

    error: Exception


Action = Send | Resolve | Compute | Assigned | GaveUp


Owned = tuple[TopicPartition, ...]


class Change(Enum):
    """Change of the ownership of partitions."""

    LOST = "they are somebody else's already; commits of them are refused"
    REVOKED = "they are given up next; until then commits of them count"
    GIVEN = "they are added; to an eager member, all that the assignment holds"


class Step(NamedTuple):
    """One thing that the caller must be told; ``partitions`` is sorted."""

    change: Change
    partitions: Owned


class Asked(Enum):
    """Which kind of request an error code answers."""

    JOIN = "join"
    SYNC = "sync"
    AS_MEMBER = "heartbeat or commit"


class Reaction(Enum):
    """Reaction of a member to an answer."""

    ACCEPT = "accept"
    JOIN_WITH_ID = "join at once with the id that the answer carries"
    REJOIN = "join again, keeping the member id"
    REJOIN_WITHOUT = "the partitions are gone; join again, keeping the member id"
    REJOIN_AS_NEW = "the partitions are gone; join again without a member id"
    NOTE_REBALANCE = "keep the partitions, rejoin when the user asks"
    LOSE_GENERATION = "the partitions are gone; rejoin with the same id when the user asks"
    LOSE_MEMBERSHIP = "the partitions and the member id are gone; rejoin when the user asks"
    FAIL = "tell the user"


_C, _R = ErrorCode, Reaction

REJOINS: Final = frozenset({_R.REJOIN, _R.REJOIN_WITHOUT, _R.REJOIN_AS_NEW})

REACTIONS: Final[Mapping[tuple[Asked, int], Reaction]] = {
    (Asked.JOIN, _C.NONE): _R.ACCEPT,
    (Asked.JOIN, _C.MEMBER_ID_REQUIRED): _R.JOIN_WITH_ID,
    (Asked.JOIN, _C.UNKNOWN_MEMBER_ID): _R.REJOIN_AS_NEW,
    (Asked.JOIN, _C.ILLEGAL_GENERATION): _R.REJOIN_WITHOUT,
    (Asked.JOIN, _C.REBALANCE_IN_PROGRESS): _R.REJOIN,
    (Asked.JOIN, _C.SUPERSEDED): _R.REJOIN,
    (Asked.SYNC, _C.NONE): _R.ACCEPT,
    (Asked.SYNC, _C.UNKNOWN_MEMBER_ID): _R.REJOIN_AS_NEW,
    # The group went on without this member, and may have given its partitions away.
    (Asked.SYNC, _C.ILLEGAL_GENERATION): _R.REJOIN_WITHOUT,
    (Asked.SYNC, _C.REBALANCE_IN_PROGRESS): _R.REJOIN,
    (Asked.SYNC, _C.SUPERSEDED): _R.REJOIN,
    (Asked.AS_MEMBER, _C.NONE): _R.ACCEPT,
    (Asked.AS_MEMBER, _C.REBALANCE_IN_PROGRESS): _R.NOTE_REBALANCE,
    (Asked.AS_MEMBER, _C.ILLEGAL_GENERATION): _R.LOSE_GENERATION,
    (Asked.AS_MEMBER, _C.UNKNOWN_MEMBER_ID): _R.LOSE_MEMBERSHIP,
    # Emptied of members and deleted meanwhile.
    (Asked.AS_MEMBER, _C.GROUP_ID_NOT_FOUND): _R.LOSE_MEMBERSHIP,
}


def reaction(asked: Asked, code: int) -> Reaction:
    """Return what to do; a code that is not in the table is never taken for success."""
    return REACTIONS.get((asked, code), Reaction.FAIL)


class Membership:
    """State machine of a member. Feed it events; do the returned actions, in any order.

    Attributes:
        assignment: The last assignment; None before the first.
        rebalance_needed: `want_assignment` would join (again).
        failure: Why the state is FAILED.
        gone_because: The coordinator's message when it fenced this member; None without one.
        hand_over: The user's partitions, and the changes announced to the user.

    """

    def __init__(self, config: MembershipConfig, user_data: UserData = lambda *_: None) -> None:
        """Begin outside, without a member id."""
        self.config = config
        self.state = State.OUTSIDE
        self.member_id = ""
        self.generation = NO_GENERATION
        self.assignment: Assignment | None = None
        self.rebalance_needed = True
        self.failure: FatalError | None = None
        self.gone_because: str | None = None
        self.hand_over = HandOver(cooperative=config.cooperative)
        self._join_requests = JoinRequests(config, user_data)
        self._gone = False
        self._leads = False
        self._protocol_name: str | None = None
        self._awaited: MemberRequest | None = None
        self._heartbeat: HeartbeatRequest | None = None
        self._heartbeat_due_ms = 0
        self._rejoins = 0

    @property
    def owned(self) -> tuple[TopicPartition, ...]:
        """Partitions of the user, as far as they were announced."""
        return self.hand_over.owned

    @property
    def usable(self) -> tuple[TopicPartition, ...]:
        """Partitions that the user may commit, also those being announced right now."""
        return self.hand_over.usable

    @property
    def lost(self) -> bool:
        """Whether ``assignment`` is no longer (or not yet) this member's to read and commit."""
        if self._gone or self.hand_over.gone or self.state in (State.FAILED, State.LEFT):
            return True
        return self.state is not State.STABLE and not (self.config.cooperative and self.owned)

    @property
    def is_changing(self) -> bool:
        """Whether a new generation, or word of it, is on its way."""
        return self.state in (State.JOINING, State.SYNCING)

    @property
    def news_waiting(self) -> bool:
        """Whether a cooperative member's new assignment waits for the user to take it."""
        return self.config.cooperative and self.hand_over.is_waiting

    # --- What the user does ---

    def due(self) -> Step | None:
        """Return what the user must be told, and do, before anything else; then call `told`."""
        gives_up = self.rebalance_needed and self.state is State.STABLE
        return self.hand_over.due(give_up_all=gives_up and not self.config.cooperative)

    def told(self, step: Step) -> None:
        """Take note that the user knows of *step* and did what it wanted to do about it."""
        self.hand_over.done(step)
        if self.config.cooperative and step.change is Change.REVOKED:
            # Others get them in the next generation, and not before all have let go.
            self.rebalance_needed = True
            gives = f"hands over {len(step.partitions)} partitions"
            self._join_requests.reason = self._join_requests.reason or gives

    def due_at_the_end(self) -> Step | None:
        """Return what the user must be told before this member leaves."""
        return self.hand_over.due(give_up_all=True) if self.owned else None

    def want_assignment(self) -> list[Action]:
        """Join, or join again, unless the current assignment stands or a join is under way.

        First do what is `due`.
        """
        match self.state:
            case State.OUTSIDE:
                return self._join()
            case State.STABLE if self.rebalance_needed:
                return self._join()
            case State.FAILED:
                assert self.failure is not None
                return [GaveUp(self.failure)]
            case State.LEFT:
                return [GaveUp(ClientClosed("this member has left the group"))]
            case _:
                return []

    def request_rejoin(self, reason: str, topics: tuple[str, ...] | None = None) -> None:
        """Make the next `want_assignment` cause a rebalance, to read *topics* from then on."""
        self._join_requests.ask_rejoin(reason, topics)
        self.rebalance_needed = True

    def leave(self, reason: str | None, *, remove: bool = False) -> list[Action]:
        """Say goodbye. Nothing that is still answered matters afterwards.

        A static member keeps its place in the group until its session ends, unless *remove*.
        """
        if self.state is State.LEFT:
            return []
        was_changing = self.is_changing
        self.state = State.LEFT
        self._awaited = self._heartbeat = None
        actions: list[Action] = []
        if was_changing:
            actions.append(GaveUp(ClientClosed("this member has left the group")))
        if self.member_id and (remove or self.config.group_instance_id is None):
            cut = None if reason is None else reason[:REASON_CHARS_MAX]
            leaving = LeavingMember(self.member_id, self.config.group_instance_id, cut)
            actions.append(Send(LeaveGroupRequest(self.config.group_id, (leaving,)), None))
        return actions

    # --- What the clock does ---

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do; None while there is nothing to wait for."""
        if self.state not in (State.SYNCING, State.STABLE) or self._gone or self._heartbeat:
            return None
        return self._heartbeat_due_ms

    def tick(self, now_ms: int) -> list[Action]:
        """Send a heartbeat if one is due."""
        due_ms = self.next_deadline_ms()
        if due_ms is None or now_ms < due_ms:
            return []
        self._heartbeat = HeartbeatRequest(
            self.config.group_id, self.generation, self.member_id, self.config.group_instance_id
        )
        return [Send(self._heartbeat, None)]

    # --- What the network does ---

    def answered(
        self, request: MemberRequest, response: MemberResponse, now_ms: int
    ) -> list[Action]:
        """Take the answer to a request of an earlier `Send`."""
        match request, response:
            case JoinGroupRequest(), JoinGroupResponse() if request is self._awaited:
                self._awaited = None
                return self._joined(response, now_ms)
            case SyncGroupRequest(), SyncGroupResponse() if request is self._awaited:
                self._awaited = None
                return self._synced(response)
            case HeartbeatRequest(), HeartbeatResponse():
                self._heartbeat_over(request, now_ms)
                return self.observe(
                    response.error, request.generation_id, request.member_id, response.message
                )
            case _:
                return []  # Late: a newer join, or leaving, took its place.

    def unanswered(
        self, request: MemberRequest, error: CoordinatorError, now_ms: int
    ) -> list[Action]:
        """Take note that *request* got no answer, or one that retries could not cure, in time."""
        if isinstance(request, HeartbeatRequest):
            self._heartbeat_over(request, now_ms)
            has_left = self.state is State.LEFT
            if isinstance(error, FatalError) and self._is_current(request) and not has_left:
                return self._fail(error)
            return []  # The session may live on: the coordinator's word is what counts.
        if request is not self._awaited:
            return []
        self._awaited = None
        if isinstance(error, FatalError):
            return self._fail(error)
        return self._step_out(error)

    def observe(
        self, code: int, generation: int, member_id: str, message: str | None = None
    ) -> list[Action]:
        """Judge an answer to a heartbeat or commit by what its request was sent with."""
        if self.state in (State.FAILED, State.LEFT) or self._gone:
            return []
        if (generation, member_id) != (self.generation, self.member_id):
            return []
        match reaction(Asked.AS_MEMBER, code):
            case Reaction.ACCEPT:
                pass
            case Reaction.FAIL:
                what = "The coordinator refused this member"
                return self._fail(self._refused(what, code, message))
            case _ if self.is_changing:
                pass  # The awaited answer will say the same, and carries the decision.
            case Reaction.NOTE_REBALANCE:
                self.rebalance_needed = True
            case Reaction.LOSE_GENERATION:
                self._lose(message)
            case Reaction.LOSE_MEMBERSHIP:
                self._lose(message)
                self.member_id = ""
        return []

    def resolved(self, number: int, topics: tuple[str, ...]) -> list[Action]:
        """Take the topics that match the pattern, sorted."""
        if not self._join_requests.is_answered(number) or self.state is not State.JOINING:
            return []
        self._join_requests.topics = topics
        return self._send_join(0)

    def resolve_failed(self, number: int, error: Exception) -> list[Action]:
        """Take note that nobody knows which topics match."""
        if not self._join_requests.is_answered(number) or self.state is not State.JOINING:
            return []
        return self._fail(error) if isinstance(error, FatalError) else self._step_out(error)

    # --- What the leader's computation does ---

    def computed(self, generation: int, assignments: tuple[MemberAssignment, ...]) -> list[Action]:
        """Take everybody's assignments, for the SyncGroup."""
        if self.state is not State.SYNCING or generation != self.generation or self._awaited:
            return []
        return self._sync(assignments)

    def compute_failed(self, generation: int, error: Exception) -> list[Action]:
        """Tell the user; the next `want_assignment` joins and computes again."""
        if self.state is not State.SYNCING or generation != self.generation or self._awaited:
            return []
        return self._step_out(error)

    # --- Inside ---

    def _join(self) -> list[Action]:
        self.state = State.JOINING
        self.rebalance_needed = False
        resolve = self._join_requests.resolve(self._rejoins)
        return self._send_join(self._rejoins) if resolve is None else [resolve]

    def _send_join(self, rejoins: int) -> list[Action]:
        self.rebalance_needed = False
        try:
            request = self._join_requests.request(
                self.member_id, self.hand_over.kept, self.assignment
            )
        except Exception as exc:  # noqa: BLE001 - it is the assignor's code.
            return self._step_out(exc)
        self._awaited = request
        return [Send(request, self.config.parked_ms, rejoins)]

    def _denied(
        self, why: Reaction, what: str, response: JoinGroupResponse | SyncGroupResponse
    ) -> list[Action]:
        """Join again, or never, after a JoinGroup or SyncGroup that was refused."""
        if why not in REJOINS:
            return self._fail(self._refused(what, response.error, response.message))
        if why is not Reaction.REJOIN:
            self._lose(response.message)
        if why is Reaction.REJOIN_AS_NEW:
            self.member_id = ""
        self._rejoins += 1
        return self._join()

    def _joined(self, response: JoinGroupResponse, now_ms: int) -> list[Action]:
        why = reaction(Asked.JOIN, response.error)
        if why is Reaction.JOIN_WITH_ID and response.member_id and not self.member_id:
            self.member_id = response.member_id
            return self._send_join(self._rejoins)
        if why is not Reaction.ACCEPT:
            return self._denied(why, "Joining was refused", response)
        if response.protocol_name not in self.config.assignor_names:
            chosen = response.protocol_name
            return self._fail(FatalError(f"the group chose assignor {chosen!r}, never offered"))
        self.state = State.SYNCING
        self._gone, self.gone_because = False, None
        self._heartbeat = None  # One of an older generation must not hold up this one's.
        self.generation = response.generation_id
        self.member_id = response.member_id
        self._protocol_name = response.protocol_name
        self._leads = response.leader == response.member_id
        self._join_requests.reason = None
        self._heartbeat_due_ms = now_ms + self.config.heartbeat_interval_ms
        if self._leads and not response.skip_assignment:
            return [Compute(self.generation, self._protocol_name, response.members)]
        return self._sync(())

    def _sync(self, assignments: tuple[MemberAssignment, ...]) -> list[Action]:
        request = SyncGroupRequest(
            self.config.group_id,
            self.generation,
            self.member_id,
            self.config.group_instance_id,
            PROTOCOL_TYPE,
            self._protocol_name,
            assignments,
        )
        self._awaited = request
        return [Send(request, self.config.parked_ms)]

    def _synced(self, response: SyncGroupResponse) -> list[Action]:
        if (why := reaction(Asked.SYNC, response.error)) is not Reaction.ACCEPT:
            return self._denied(why, "Synchronizing was refused", response)
        mine, its = self._protocol_name, response.protocol_name
        if its not in (None, mine):
            return self._fail(FatalError(f"joined with assignor {mine!r}, got {its!r}"))
        # An unreadable assignment of a foreign leader gives no partitions, never wrong ones.
        decoded = consumer.decode_assignment(response.assignment)
        partitions = () if decoded is None else tuple(sorted(set(decoded.partitions)))
        self.state = State.STABLE
        self._rejoins = 0
        self.assignment = Assignment(self.generation, self.member_id, partitions, self._leads)
        self.hand_over.assigned(partitions)
        return [Assigned(self.assignment)]

    def _step_out(self, error: Exception) -> list[Action]:
        """Stop trying for this time. The member id stays, so the next join finds its place."""
        self.state = State.OUTSIDE
        self.rebalance_needed = True
        return [GaveUp(error)]

    def _fail(self, error: FatalError) -> list[Action]:
        self.failure = error  # First: other threads look at the state.
        self.state = State.FAILED
        self.rebalance_needed = True
        self._awaited = None
        self.hand_over.lose()
        return [GaveUp(error)]

    def _lose(self, message: str | None) -> None:
        self._gone = self.rebalance_needed = True
        self.gone_because = message
        self.hand_over.lose()

    def _refused(self, what: str, code: int, message: str | None) -> FatalError:
        text = f"{what} in group {self.config.group_id!r}: {code_text(code, message)}"
        return refusal(text, code)

    def _heartbeat_over(self, request: HeartbeatRequest, now_ms: int) -> None:
        if request is self._heartbeat:
            self._heartbeat = None
            self._heartbeat_due_ms = now_ms + self.config.heartbeat_interval_ms

    def _is_current(self, request: HeartbeatRequest) -> bool:
        return (request.generation_id, request.member_id) == (self.generation, self.member_id)


class JoinRequests:
    """Content of a member's JoinGroup requests.

    Attributes:
        topics: Topics to read: those the caller named, or the last match of its pattern.
        reason: Reason of the join, for the coordinator's history; None once joined.

    """

    def __init__(self, config: MembershipConfig, user_data: UserData) -> None:
        """Take the caller's wishes and its assignors' code, which may raise anything."""
        self.topics = config.topics
        self.reason = config.reason
        self._config = config
        self._user_data = user_data
        self._asked_rejoins = 0
        self._resolve: Resolve | None = None
        self._resolves = 0

    def ask_rejoin(self, reason: str, topics: tuple[str, ...] | None = None) -> None:
        """Make the next request one that the group can't answer without a rebalance.

        With *topics* it subscribes to these and no others.
        """
        if topics is not None:
            self.topics = topics
        self._asked_rejoins += 1
        self.reason = reason[:REASON_CHARS_MAX]

    def resolve(self, rejoins: int) -> Resolve | None:
        """Return what must be asked first, None where the caller named the topics."""
        pattern = self._config.topic_pattern
        if pattern is not None:
            self._resolves += 1
            self._resolve = Resolve(self._resolves, pattern, rejoins)
        return self._resolve

    def is_answered(self, number: int) -> bool:
        """Say whether an answer belongs to the last `resolve`, which it ends."""
        if self._resolve is None or self._resolve.number != number:
            return False
        self._resolve = None
        return True

    def request(
        self, member_id: str, kept: tuple[TopicPartition, ...], last: Assignment | None
    ) -> JoinGroupRequest:
        """Return a JoinGroup that claims *kept*, which is left of the assignment *last*.

        An assignor hears of all of *last*, so that it can give the same again.
        """
        config = self._config
        generation = NO_GENERATION if last is None else last.generation
        before = () if last is None else last.partitions
        # An unchanged follower's JoinGroup is answered without a rebalance; one whose
        # subscription bytes changed is not. So the count of rejoins asked for stands behind
        # them: every reader of the format ignores what follows the fields that it knows.
        tail = struct.pack(">i", self._asked_rejoins) if self._asked_rejoins else b""
        protocols = []
        for name in config.assignor_names:
            subscription = consumer.Subscription(
                self.topics,
                self._user_data(name, self.topics, before, generation),
                kept,
                generation if kept else NO_GENERATION,
                config.host,
            )
            protocols.append(JoinProtocol(name, consumer.encode_subscription(subscription) + tail))
        return JoinGroupRequest(
            config.group_id,
            config.session_timeout_ms,
            config.rebalance_timeout_ms,
            member_id,
            config.group_instance_id,
            PROTOCOL_TYPE,
            tuple(protocols),
            self.reason,
            config.topic_pattern,
        )


class HandOver:
    """Partitions that the caller has, and changes that are due to be announced.

    Announce the step that `due` returns, as far as it is `untold`, then call `called`. For
    partitions given up, call `done` once their commit is finished, too.

    Attributes:
        owned: Partitions of the caller, sorted.
        gone: All of ``owned`` is lost, and the caller doesn't know it yet.

    """

    def __init__(self, *, cooperative: bool) -> None:
        """Begin with nothing."""
        self.owned: Owned = ()
        self.gone = False
        self._cooperative = cooperative
        self._next: Owned | None = None
        self._parting: Owned = ()  # Owned, but the caller was told already that they go.

    @property
    def is_waiting(self) -> bool:
        """Whether there is an assignment that the caller doesn't know of yet."""
        return self._next is not None

    @property
    def kept(self) -> Owned:
        """Partitions that a JoinGroup may claim."""
        return () if self.gone else self.owned

    @property
    def usable(self) -> Owned:
        """Partitions that the caller may commit, also those being announced right now."""
        return () if self.gone else (*self.owned, *_without(self._next or (), self.owned))

    def assigned(self, partitions: Owned) -> None:
        """Take a new assignment, sorted."""
        self._next = partitions

    def lose(self) -> None:
        """Take note that everything is somebody else's, what was just assigned as well."""
        self.owned = _without(self.owned, self._parting)
        self._parting = ()
        self.gone = bool(self.owned)
        self._next = None

    def due(self, *, give_up_all: bool) -> Step | None:
        """Return what the caller must be told next, None if nothing."""
        if self.gone:
            return Step(Change.LOST, self.owned)
        if give_up_all and self.owned:
            return Step(Change.REVOKED, self.owned)
        if self._next is None:
            return None
        if not self._cooperative:
            return Step(Change.GIVEN, self._next)
        if revoked := _without(self.owned, self._next):
            return Step(Change.REVOKED, revoked)
        return Step(Change.GIVEN, _without(self._next, self.owned))

    def untold(self, step: Step) -> Step | None:
        """Return what of *step* the caller must still be told of, None if nothing."""
        if step.change is not Change.REVOKED:
            return step
        partitions = _without(step.partitions, self._parting)
        return Step(step.change, partitions) if partitions else None

    def called(self, step: Step) -> None:
        """Take note that the caller was told."""
        if step.change is Change.REVOKED and not self.gone:
            self._parting = tuple(sorted({*self._parting, *step.partitions}))
        else:
            self.done(step)

    def done(self, step: Step) -> None:
        """Take note that the caller was told, and that nothing else is to be done about it."""
        if step.change is Change.GIVEN:
            # Fenced while it was told: then a loss comes next, and names these, too.
            self.owned = tuple(sorted({*self.owned, *step.partitions}))
            self.gone = self._next is None and bool(self.owned)
            self._next = None
        else:
            self.owned = _without(self.owned, step.partitions)
            self._parting = _without(self._parting, step.partitions)
            self.gone = self.gone and bool(self.owned)


def _without(partitions: Owned, others: Owned) -> Owned:
    if not partitions:
        return ()
    gone = frozenset(others)
    return tuple([tp for tp in partitions if tp not in gone])
