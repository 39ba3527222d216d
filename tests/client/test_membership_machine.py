"""The membership machine under any order of events."""

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from client.exceptions import CoordinatorError, CoordinatorUnavailable, FatalError
from client.membership import (
    Action,
    Assigned,
    Change,
    Compute,
    GaveUp,
    Membership,
    MembershipConfig,
    Resolve,
    Send,
    State,
    Step,
)
from protocol import consumer
from protocol.errors import ErrorCode
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.partition import TopicPartition

CODES = st.sampled_from([0, 0, 0, 22, 25, 27, 79, 1007]) | st.sampled_from([*ErrorCode, 4711])
BYTES = [
    consumer.encode_assignment(consumer.Assignment(partitions, b""))
    for partitions in ((), (TopicPartition("t", 0),), (TopicPartition("t", 1),))
]


class MembershipMachine(RuleBasedStateMachine):
    """Answers come late, twice refused, or never; the user asks, rejoins and leaves at will."""

    config = MembershipConfig("g", ("t",), ("range",), 6_000, 60_000)

    def __init__(self) -> None:
        super().__init__()
        self.machine = Membership(self.config)
        self.in_flight: list[Send] = []
        self.newest_join: Send | None = None  # Or its SyncGroup.
        self.resolving: list[Resolve] = []
        self.computing: list[Compute] = []
        self.waiting = False
        self.holds: set[TopicPartition] = set()
        self.has_left = False
        self.generation = 0
        self.now_ms = 0

    def do(self, actions: list[Action]) -> None:
        """Do what the driver does."""
        for action in actions:
            match action:
                case Send():
                    self.in_flight.append(action)
                    if isinstance(action.request, JoinGroupRequest | SyncGroupRequest):
                        self.newest_join = action
                case Compute():
                    self.computing.append(action)
                case Resolve():
                    self.resolving.append(action)
                case Assigned():
                    assert self.machine.state is State.STABLE
                    assert self.machine.generation == action.assignment.generation
                    # What was lost before is gone until the user was told.
                    assert self.machine.lost == self.machine.hand_over.gone
                    self.waiting = False
                case GaveUp():
                    self.waiting = False

    def answer(self, sent: Send, code: int, *, leads: bool) -> None:
        """Answer *sent* as a coordinator may."""
        request = sent.request
        ok = code == 0
        match request:
            case JoinGroupRequest():
                if ok:
                    self.generation += 1
                name = "range" if ok else None
                leader = "me" if leads else "other"
                self.do(
                    self.machine.answered(
                        request,
                        JoinGroupResponse(
                            code, self.generation, "consumer", name, leader, False, "me", ()
                        ),
                        self.now_ms,
                    )
                )
            case SyncGroupRequest():
                response = SyncGroupResponse(
                    code, None, None, BYTES[self.generation % 3] if ok else b""
                )
                self.do(self.machine.answered(request, response, self.now_ms))
            case HeartbeatRequest():
                self.do(self.machine.answered(request, HeartbeatResponse(code), self.now_ms))
            case _:
                pass

    @rule()
    def the_user_asks(self) -> None:
        """As before every batch."""
        machine = self.machine
        if (step := machine.due()) is not None:
            self.told(step)
            return
        if machine.state is not State.STABLE or machine.rebalance_needed:
            self.waiting = True
        self.do(machine.want_assignment())

    def told(self, step: Step) -> None:
        """Tell the user, who has what it was given and neither lost nor gave back."""
        self.machine.told(step)
        if step.change is Change.GIVEN:
            assert not self.holds & set(step.partitions)
            self.holds |= set(step.partitions)
        else:
            assert set(step.partitions) <= self.holds
            self.holds -= set(step.partitions)
        assert sorted(self.holds) == list(self.machine.owned)

    @rule()
    def the_user_wants_a_rebalance(self) -> None:
        """At any time."""
        self.machine.request_rejoin("test")

    @rule(ms=st.integers(0, 5_000))
    def time_passes(self, ms: int) -> None:
        """Heartbeats come due."""
        self.now_ms += ms
        self.do(self.machine.tick(self.now_ms))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), code=CODES, leads=st.booleans())
    def an_answer_comes(self, data: st.DataObject, code: int, *, leads: bool) -> None:
        """In any order, with any code."""
        position = data.draw(st.integers(0, len(self.in_flight) - 1))
        self.answer(self.in_flight.pop(position), code, leads=leads)

    @precondition(lambda self: self.in_flight)
    @rule(fatal=st.booleans())
    def an_answer_fails_to_come(self, *, fatal: bool) -> None:
        """The retries gave up."""
        error: CoordinatorError = FatalError("x") if fatal else CoordinatorUnavailable("x")
        self.do(self.machine.unanswered(self.in_flight.pop().request, error, self.now_ms))

    @precondition(lambda self: self.resolving)
    @rule(fails=st.booleans())
    def the_pattern_is_resolved(self, *, fails: bool) -> None:
        """Or nobody could be asked."""
        number = self.resolving.pop().number
        if fails:
            self.do(self.machine.resolve_failed(number, CoordinatorUnavailable("x")))
        else:
            self.do(self.machine.resolved(number, ("t", "u")))

    @precondition(lambda self: self.computing)
    @rule(fails=st.booleans())
    def the_computation_ends(self, *, fails: bool) -> None:
        """With a result or the caller's exception."""
        generation = self.computing.pop().generation
        if fails:
            self.do(self.machine.compute_failed(generation, LookupError()))
        else:
            self.do(self.machine.computed(generation, ()))

    @rule(code=CODES, age=st.integers(0, 2), member_id=st.sampled_from(["me", "", "old"]))
    def a_commit_is_answered(self, code: int, age: int, member_id: str) -> None:
        """Of this generation, or late."""
        self.do(self.machine.observe(code, self.machine.generation - age, member_id))

    @precondition(lambda self: self.now_ms > 8_000)
    @rule()
    def the_user_leaves(self) -> None:
        """Late in the run, so that most runs see more than that."""
        self.has_left = True
        self.do(self.machine.leave(None))

    @invariant()
    def whoever_waits_has_something_under_way(self) -> None:
        """Otherwise `assignment()` would wait for ever."""
        if self.has_left:
            assert self.machine.state is State.LEFT
        if self.waiting:
            assert self.machine.state in (State.JOINING, State.SYNCING)
            under_way = any(sent is self.newest_join for sent in self.in_flight)
            computing = any(c.generation == self.machine.generation for c in self.computing)
            resolving = bool(self.resolving) and self.machine.state is State.JOINING
            assert under_way or computing or resolving

    @invariant()
    def one_heartbeat_at_a_time(self) -> None:
        """A coordinator that is slow must not get more and more of them."""
        current = (self.machine.generation, self.machine.member_id)
        beats = [
            sent.request
            for sent in self.in_flight
            if isinstance(sent.request, HeartbeatRequest)
            and (sent.request.generation_id, sent.request.member_id) == current
        ]
        assert len(beats) <= 1

    @invariant()
    def who_is_not_stable_owns_nothing(self) -> None:
        """And who owns something has a member id and an assignment of this generation."""
        machine = self.machine
        if machine.lost:
            return
        assert machine.member_id
        assert machine.assignment is not None
        if machine.state is State.STABLE:
            assert machine.assignment.generation == machine.generation

    @invariant()
    def an_eager_member_joins_with_nothing(self) -> None:
        """Whoever gets its partitions may begin at once."""
        if not self.config.cooperative and self.machine.is_changing:
            assert self.machine.owned == ()

    @property
    def is_settled(self) -> bool:
        """Whether the user has nothing to ask for."""
        machine = self.machine
        stands = machine.state is State.STABLE and not machine.rebalance_needed
        return stands and machine.due() is None

    def teardown(self) -> None:
        """From wherever it got to, a healthy coordinator gives it an assignment."""
        if self.machine.state in (State.FAILED, State.LEFT):
            return
        while not self.waiting and not self.is_settled:
            self.the_user_asks()
        for _ in range(10):
            while self.resolving:
                self.do(self.machine.resolved(self.resolving.pop().number, ("t",)))
            while self.computing:
                self.do(self.machine.computed(self.computing.pop().generation, ()))
            in_flight, self.in_flight = self.in_flight, []
            for sent in in_flight:
                self.answer(sent, 0, leads=False)

        assert self.machine.state is State.STABLE
        assert not self.waiting


class CooperativeMachine(MembershipMachine):
    """The same, with partitions that stay, and a pattern."""

    config = MembershipMachine.config._replace(cooperative=True, topic_pattern="t|u", topics=())


SETTINGS = settings(max_examples=80, stateful_step_count=40)

TestMembershipMachine = MembershipMachine.TestCase
TestMembershipMachine.settings = SETTINGS
TestCooperativeMachine = CooperativeMachine.TestCase
TestCooperativeMachine.settings = SETTINGS
