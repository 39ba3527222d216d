"""The membership machine under any order of events; many cooperative ones and a naive group."""

import itertools

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from client.assignors import CooperativeStickyAssignor, read_subscriptions, write_assignments
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
    JoinGroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
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
ASSIGNOR = CooperativeStickyAssignor()
PARTITIONS = {"t": [0, 1, 2, 3, 4]}
CONFIG = MembershipConfig("g", ("t",), (ASSIGNOR.name,), 6_000, 60_000, cooperative=True)


class Group:
    """A coordinator in its simplest form: two barriers and a generation."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, bytes] = {}
        self.phase = "stable"  # Or "joining" or "syncing".
        self.joining: dict[str, JoinGroupRequest] = {}
        self.syncing: dict[str, SyncGroupRequest] = {}
        self.assignments: dict[str, bytes] = {}
        self.answers: list[tuple[str, object, object]] = []  # (member, request, response)

    def join(self, name: str, request: JoinGroupRequest) -> None:
        """Take a JoinGroup; member ids are the members' names."""
        known = name in self.members
        if request.member_id and not known:
            self._refuse(name, request, 25)
            return
        metadata = request.protocols[0].metadata
        if known and self.phase == "stable" and metadata == self.members[name]:
            leader = min(self.members)
            if name != leader:
                self._join_answer(name, request, leader, ())
                return
        self.members[name] = metadata
        self.rebalance()
        self.joining[name] = request
        self._complete_join()

    def sync(self, name: str, request: SyncGroupRequest) -> None:
        """Take a SyncGroup."""
        if name not in self.members:
            self._refuse(name, request, 25)
        elif request.generation_id != self.generation:
            self._refuse(name, request, 22)
        elif self.phase == "joining":
            self._refuse(name, request, 27)
        elif self.phase == "stable":
            self._sync_answer(name, request)
        else:
            self.syncing[name] = request
            if request.assignments:
                self.assignments = {one.member_id: one.assignment for one in request.assignments}
                self.phase = "stable"
                parked, self.syncing = self.syncing, {}
                for who, what in parked.items():
                    self._sync_answer(who, what)

    def heartbeat(self, name: str, request: HeartbeatRequest) -> int:
        """Return the code."""
        if name not in self.members:
            return 25
        if request.generation_id != self.generation:
            return 22
        return 27 if self.phase == "joining" else 0

    def remove(self, name: str) -> None:
        """Evict *name*, or let it go."""
        if self.members.pop(name, None) is None:
            return
        for parked in (self.joining.pop(name, None), self.syncing.pop(name, None)):
            if parked is not None:
                self._refuse(name, parked, 25)
        self.rebalance()
        self._complete_join()

    def rebalance(self) -> None:
        """Begin the join phase."""
        if self.phase != "joining":
            self.phase = "joining"
            parked, self.syncing = self.syncing, {}
            for name, request in parked.items():
                self._refuse(name, request, 27)

    def _complete_join(self) -> None:
        if not self.members or self.joining.keys() != self.members.keys():
            return
        self.generation += 1
        self.phase = "syncing"
        self.assignments = {}
        leader = min(self.members)
        everyone = tuple(
            JoinGroupMember(name, None, metadata) for name, metadata in self.members.items()
        )
        parked, self.joining = self.joining, {}
        for name, request in parked.items():
            self._join_answer(name, request, leader, everyone if name == leader else ())

    def _join_answer(
        self,
        name: str,
        request: JoinGroupRequest,
        leader: str,
        everyone: tuple[JoinGroupMember, ...],
    ) -> None:
        response = JoinGroupResponse(
            0, self.generation, "consumer", ASSIGNOR.name, leader, False, name, everyone
        )
        self.answers.append((name, request, response))

    def _sync_answer(self, name: str, request: SyncGroupRequest) -> None:
        mine = self.assignments.get(name, b"")
        self.answers.append((name, request, SyncGroupResponse(0, "consumer", ASSIGNOR.name, mine)))

    def _refuse(self, name: str, request: object, code: int) -> None:
        response: object = SyncGroupResponse(code, None, None, b"")
        if isinstance(request, JoinGroupRequest):
            response = JoinGroupResponse(code, -1, None, None, "", False, "", ())
        self.answers.append((name, request, response))


class CooperativeGroup(RuleBasedStateMachine):
    """Members come, work, are evicted and go; requests and answers take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.machines: dict[str, Membership] = {}
        self.requests: list[tuple[str, object]] = []
        self.computing: list[tuple[str, Compute]] = []
        self.names = (f"m{number}" for number in itertools.count())

    def do(self, name: str, actions: list[Action]) -> None:
        """Do what a machine asks for, later."""
        for action in actions:
            if isinstance(action, Send):
                self.requests.append((name, action.request))
            elif isinstance(action, Compute):
                self.computing.append((name, action))

    def machine(self, data: st.DataObject) -> tuple[str, Membership]:
        """Pick one."""
        name = data.draw(st.sampled_from(sorted(self.machines)))
        return name, self.machines[name]

    @initialize(count=st.integers(1, 3))
    def some_begin(self, count: int) -> None:
        """A group of none shows nothing."""
        for _ in range(count):
            self.one_comes()

    @precondition(lambda self: len(self.machines) < 4)
    @rule()
    def one_comes(self) -> None:
        """And asks for its assignment."""
        name = next(self.names)
        self.machines[name] = Membership(CONFIG)
        self.do(name, self.machines[name].want_assignment())

    @precondition(lambda self: self.machines)
    @rule(data=st.data(), steps=st.integers(0, 3))
    def one_asks(self, data: st.DataObject, steps: int) -> None:
        """As `assignment()` does, cut off after some steps."""
        name, machine = self.machine(data)
        for _ in range(steps):
            step = machine.due()
            if step is None:
                self.do(name, machine.want_assignment())
                return
            machine.told(step)
            if step.change is Change.GIVEN and not machine.rebalance_needed:
                return

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def one_hears_from_the_group(self, data: st.DataObject) -> None:
        """A heartbeat there and back."""
        self.beat(*self.machine(data))

    def beat(self, name: str, machine: Membership) -> None:
        """Let time pass, and answer the heartbeats."""
        for action in machine.tick(1_000_000_000):
            assert isinstance(action, Send)
            request = action.request
            assert isinstance(request, HeartbeatRequest)
            code = self.group.heartbeat(name, request)
            self.do(name, machine.answered(request, HeartbeatResponse(code), 0))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def a_request_arrives(self, data: st.DataObject) -> None:
        """In any order."""
        name, request = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        match request:
            case JoinGroupRequest():
                self.group.join(name, request)
            case SyncGroupRequest():
                self.group.sync(name, request)
            case LeaveGroupRequest():
                self.group.remove(name)
            case _:
                raise AssertionError(request)

    @precondition(lambda self: self.group.answers)
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        """In any order, too."""
        answers = self.group.answers
        name, request, response = answers.pop(data.draw(st.integers(0, len(answers) - 1)))
        if name in self.machines:
            machine = self.machines[name]
            self.do(name, machine.answered(request, response, 0))  # type: ignore[arg-type]  # of the machine's kinds

    @precondition(lambda self: self.computing)
    @rule()
    def a_leader_has_computed(self) -> None:
        """With the real assignor, of what the members claim."""
        name, compute = self.computing.pop(0)
        if name in self.machines:
            members = read_subscriptions(compute.members)
            made = write_assignments(ASSIGNOR.assign(members, PARTITIONS, {}))
            self.do(name, self.machines[name].computed(compute.generation, made))

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def one_is_evicted(self, data: st.DataObject) -> None:
        """Its session ended; what it still has, it may not commit."""
        name, _ = self.machine(data)
        self.group.remove(name)

    @precondition(lambda self: len(self.machines) > 1)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        """And says so."""
        name, machine = self.machine(data)
        while (step := machine.due_at_the_end()) is not None:
            machine.told(step)
        # With its connection goes what the group has not read yet.
        self.requests = [(who, what) for who, what in self.requests if who != name]
        self.do(name, machine.leave(None))
        del self.machines[name]
        self.group.remove(name)

    @invariant()
    def nobody_has_what_another_one_has(self) -> None:
        """Of those that the group knows: who was evicted is fenced, and told so soon."""
        holders: dict[TopicPartition, str] = {}
        for name, machine in self.machines.items():
            if name not in self.group.members or machine.lost:
                continue
            for tp in machine.owned:
                assert holders.setdefault(tp, name) == name, (tp, name, holders)

    @invariant()
    def who_is_not_lost_has_what_it_was_told(self) -> None:
        """The caller goes by what it was told, so that must not change behind its back."""
        for machine in self.machines.values():
            if machine.owned and not machine.lost:
                assert machine.assignment is not None
                assert machine.member_id

    def teardown(self) -> None:
        """Left alone, everybody gets to a balanced assignment of everything."""
        for _ in range(40):
            for name, machine in self.machines.items():
                self.beat(name, machine)
                while (step := machine.due()) is not None:
                    machine.told(step)
                self.do(name, machine.want_assignment())
            self._flow()
        held = [machine.owned for machine in self.machines.values()]
        if held:
            everything = [TopicPartition("t", number) for number in PARTITIONS["t"]]
            assert sorted(itertools.chain(*held)) == everything
            assert all(m.state is State.STABLE for m in self.machines.values())
            assert max(map(len, held)) - min(map(len, held)) <= 1

    def _flow(self) -> None:
        while self.requests or self.group.answers or self.computing:
            requests, self.requests = self.requests, []
            for name, request in requests:
                if isinstance(request, JoinGroupRequest):
                    self.group.join(name, request)
                elif isinstance(request, SyncGroupRequest):
                    self.group.sync(name, request)
                else:
                    self.group.remove(name)
            answers, self.group.answers = self.group.answers, []
            for name, request, response in answers:
                if name in self.machines:
                    machine = self.machines[name]
                    self.do(name, machine.answered(request, response, 0))  # type: ignore[arg-type]  # of the machine's kinds
            if self.computing:
                self.a_leader_has_computed()


TestCooperativeGroup = CooperativeGroup.TestCase
TestCooperativeGroup.settings = settings(max_examples=100, stateful_step_count=50)
