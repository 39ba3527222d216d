"""One member's side of the group protocol. Pure: no sockets, no clock, no tasks."""

# Theory of operation
# ===================
#
# A member is always in one of six states:
#
#   OUTSIDE --want_assignment--> JOINING --answer--> SYNCING --answer--> STABLE
#      ^                            ^                                      |
#      |                            +---------want_assignment--------------+
#      +-- no answer in time             (once a rebalance is needed)
#
# and FAILED (an error that joining again would not cure) and LEFT, out of which nothing leads.
#
# Events go in by method calls, with the time as an argument; what to do about them comes out
# as a list of actions. At most one JoinGroup or SyncGroup is awaited. An answer counts only if
# it belongs to the very request that is awaited (joins and syncs) or to the generation and
# member id that are current (heartbeats and commits): a late 22 after a rejoin means nothing.
#
# A rebalance that a heartbeat reports is only noted. The partitions stay this member's, and
# commits go on being accepted, until the user asks for the assignment: handing over happens
# at a point that the user chose. Only 22, 25 and 82 say that they are gone already.
#
# What each error code means for a member stands in `client.reactions`, and nowhere else.

from typing import Final

from client.actions import (
    Action,
    Assigned,
    Compute,
    GaveUp,
    MemberRequest,
    MemberResponse,
    MembershipConfig,
    Send,
    State,
)
from client.exceptions import ClientClosed, CoordinatorError, FatalError, code_text
from client.reactions import Asked, Reaction, reaction
from client.types import Assignment
from protocol import consumer
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.types import NO_GENERATION

PROTOCOL_TYPE: Final = "consumer"
# The coordinator answers a JoinGroup at the latest when the rebalance timeout is over; the
# rest is for the way there and back, and for a disk that is slow (Kafka's clients: the same).
PARKED_SLACK_MS: Final = 5_000
REASON_CHARS_MAX: Final = 255


class Membership:
    """The machine. Feed it events; do what it returns, in any order.

    Attributes:
        assignment: The last assignment; None before the first.
        rebalance_needed: `want_assignment` would join (again).
        failure: Why the state is FAILED.

    """

    def __init__(self, config: MembershipConfig) -> None:
        """Begin outside, without a member id."""
        self.config = config
        self.state = State.OUTSIDE
        self.member_id = ""
        self.generation = NO_GENERATION
        self.assignment: Assignment | None = None
        self.rebalance_needed = True
        self.failure: FatalError | None = None
        self._gone = False
        self._leads = False
        self._protocol_name: str | None = None
        self._awaited: MemberRequest | None = None
        self._heartbeat: HeartbeatRequest | None = None
        self._heartbeat_due_ms = 0
        self._rejoins = 0
        self._reason = config.reason
        self._asked_rejoins = 0

    @property
    def lost(self) -> bool:
        """Whether ``assignment`` is no longer (or not yet) this member's to read and commit."""
        return self._gone or self.state is not State.STABLE

    # --- What the user does ---

    def want_assignment(self) -> list[Action]:
        """Join, or join again, unless the current assignment stands or a join is under way."""
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

    def request_rejoin(self, reason: str) -> None:
        """Make the next `want_assignment` cause a rebalance of the whole group."""
        self._asked_rejoins += 1
        self._reason = reason[:REASON_CHARS_MAX]
        self.rebalance_needed = True

    def leave(self, reason: str | None) -> list[Action]:
        """Say goodbye. Nothing that is still answered matters afterwards."""
        if self.state is State.LEFT:
            return []
        was_joining = self.state in (State.JOINING, State.SYNCING)
        self.state = State.LEFT
        self._awaited = self._heartbeat = None
        actions: list[Action] = []
        if was_joining:
            actions.append(GaveUp(ClientClosed("this member has left the group")))
        if self.member_id:
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
                return self.observe(response.error, request.generation_id, request.member_id)
            case _:
                return []  # Late: a newer join, or leaving, took its place.

    def unanswered(
        self, request: MemberRequest, error: CoordinatorError, now_ms: int
    ) -> list[Action]:
        """Take note that *request* got no answer, or one that retries could not cure, in time."""
        if isinstance(request, HeartbeatRequest):
            self._heartbeat_over(request, now_ms)
            if isinstance(error, FatalError) and self._is_current(request):
                return self._fail(error)
            return []  # The session may live on: the coordinator's word is what counts.
        if request is not self._awaited:
            return []
        self._awaited = None
        if isinstance(error, FatalError):
            return self._fail(error)
        return self._step_out(error)

    def observe(self, code: int, generation: int, member_id: str) -> list[Action]:
        """Judge an answer to a heartbeat or commit by what its request was sent with."""
        if self.state not in (State.JOINING, State.SYNCING, State.STABLE) or self._gone:
            return []
        if (generation, member_id) != (self.generation, self.member_id):
            return []
        match reaction(Asked.AS_MEMBER, code):
            case Reaction.ACCEPT:
                pass
            case Reaction.NOTE_REBALANCE:
                # While syncing, the parked SyncGroup is answered 27 as well and leads back.
                if self.state is State.STABLE:
                    self.rebalance_needed = True
            case Reaction.LOSE_GENERATION if self.state is State.STABLE:
                self._gone = self.rebalance_needed = True
            case Reaction.LOSE_MEMBERSHIP if self.state is State.STABLE:
                self._gone = self.rebalance_needed = True
                self.member_id = ""
            case Reaction.LOSE_GENERATION | Reaction.LOSE_MEMBERSHIP:
                pass  # The awaited answer will say the same, and carries the decision.
            case _:
                return self._fail(self._refused("The coordinator refused this member", code))
        return []

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
        user_data = b"" if not self._asked_rejoins else str(self._asked_rejoins).encode()
        # An unchanged follower's JoinGroup is answered without a rebalance; one whose
        # subscription bytes changed is not. So the count of rejoins asked for is part of them.
        subscription = consumer.encode_subscription(
            consumer.Subscription(self.config.topics, user_data, (), NO_GENERATION, None)
        )
        request = JoinGroupRequest(
            self.config.group_id,
            self.config.session_timeout_ms,
            self.config.rebalance_timeout_ms,
            self.member_id,
            self.config.group_instance_id,
            PROTOCOL_TYPE,
            tuple(JoinProtocol(name, subscription) for name in self.config.assignor_names),
            self._reason,
        )
        self.state = State.JOINING
        self.rebalance_needed = False
        self._awaited = request
        return [Send(request, self._parked_ms, self._rejoins)]

    def _rejoin(self) -> list[Action]:
        self._rejoins += 1
        return self._join()

    def _joined(self, response: JoinGroupResponse, now_ms: int) -> list[Action]:
        match reaction(Asked.JOIN, response.error):
            case Reaction.ACCEPT:
                pass
            case Reaction.JOIN_WITH_ID if response.member_id and not self.member_id:
                self.member_id = response.member_id
                return self._join()
            case Reaction.REJOIN:
                return self._rejoin()
            case Reaction.REJOIN_AS_NEW:
                self.member_id = ""
                return self._rejoin()
            case _:
                return self._fail(self._refused("Joining was refused", response.error))
        if response.protocol_name not in self.config.assignor_names:
            chosen = response.protocol_name
            return self._fail(FatalError(f"the group chose assignor {chosen!r}, never offered"))
        self.state = State.SYNCING
        self._gone = False
        self._heartbeat = None  # One of an older generation must not hold up this one's.
        self.generation = response.generation_id
        self.member_id = response.member_id
        self._protocol_name = response.protocol_name
        self._leads = response.leader == response.member_id
        self._reason = None
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
        return [Send(request, self._parked_ms)]

    def _synced(self, response: SyncGroupResponse) -> list[Action]:
        match reaction(Asked.SYNC, response.error):
            case Reaction.ACCEPT:
                pass
            case Reaction.REJOIN:
                return self._rejoin()
            case Reaction.REJOIN_AS_NEW:
                self.member_id = ""
                return self._rejoin()
            case _:
                return self._fail(self._refused("Synchronizing was refused", response.error))
        if response.protocol_name not in (None, self._protocol_name):
            message = (
                f"joined with assignor {self._protocol_name!r}, got {response.protocol_name!r}"
            )
            return self._fail(FatalError(message))
        # What a foreign leader wrote and nobody can read gives nothing, rather than anything.
        decoded = consumer.decode_assignment(response.assignment)
        partitions = () if decoded is None else tuple(sorted(set(decoded.partitions)))
        self.state = State.STABLE
        self._rejoins = 0
        self.assignment = Assignment(self.generation, self.member_id, partitions, self._leads)
        return [Assigned(self.assignment)]

    def _step_out(self, error: Exception) -> list[Action]:
        """Stop trying for this time. The member id stays, so the next join finds its place."""
        self.state = State.OUTSIDE
        self.rebalance_needed = True
        return [GaveUp(error)]

    def _fail(self, error: FatalError) -> list[Action]:
        self.state = State.FAILED
        self.failure = error
        self.rebalance_needed = True
        self._awaited = None
        return [GaveUp(error)]

    def _refused(self, what: str, code: int) -> FatalError:
        return FatalError(f"{what} in group {self.config.group_id!r}: {code_text(code)}", code=code)

    def _heartbeat_over(self, request: HeartbeatRequest, now_ms: int) -> None:
        if request is self._heartbeat:
            self._heartbeat = None
            self._heartbeat_due_ms = now_ms + self.config.heartbeat_interval_ms

    def _is_current(self, request: HeartbeatRequest) -> bool:
        return (request.generation_id, request.member_id) == (self.generation, self.member_id)

    @property
    def _parked_ms(self) -> int:
        return self.config.rebalance_timeout_ms + PARKED_SLACK_MS
