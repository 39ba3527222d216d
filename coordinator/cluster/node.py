"""All journals of one node with their shared session: registered nodes, and leaders of journals.

A pure state machine, as the journals are. It takes the engine's events and replies, and returns
`Send`s, as do the journals' own methods (`write`, `end_round`, `stopped`, `install`, `set_purged`;
`read` yields requests).

There is no controller. Each node reads the same znodes, computes the same plan, and claims the
journals without a leader that the plan assigns to it; the next candidate claims a second later.
Only the leader itself hands over, one journal at a time, where the plan says that it has too many.
In a cluster without any leader, the first node waits for others that start with it, so that no
journal has to move later.

A group's state must never refer to topics that its node doesn't know yet. So `Leads` for a journal
is held back until the node has read journal 0, that of the topics, to its end as of then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from coordinator.cluster.effects import (
    Confirmed,
    Deposed,
    Effect,
    Failed,
    HandedOver,
    HandsOver,
    Leads,
    Purged,
    Renewed,
    Send,
    Stranger,
    Stray,
)
from coordinator.cluster.engine import (
    Announce,
    Code,
    Connected,
    Event,
    Expired,
    Fired,
    Leader,
    ListNodes,
    ReadCluster,
    ReadLeader,
    ReadNode,
    ReadPurged,
    ReadSnapshot,
    Register,
    Registration,
    Reply,
    Request,
    Suspended,
    WatchEntry,
)
from coordinator.cluster.errors import ClusterGone, ClusterRefused
from coordinator.cluster.journal import Member, ReplicatedJournal, Role
from coordinator.cluster.layout import Layout
from coordinator.cluster.plan import plan, rank

# Claim delay between two successive candidate nodes, and before a repeated claim, in ms.
CLAIM_AFTER_MS: Final = 1_000
# Wait for other nodes before the first claim in a cluster without any leader, in ms.
SETTLE_MS: Final = 1_000
BALANCE_EVERY_MS: Final = 10_000
DRAIN_AGAIN_MS: Final = 200
# Time for which a draining node leads on until another node is ready, in ms.
SUCCESSOR_MS: Final = 5_000
# Time for which all registered nodes must have read a format before it is used, in ms: a node of an
# older release that has only lost its session must not come back to a log that it can't read.
FORMAT_AFTER_MS: Final = 60_000


class Present(NamedTuple):
    """A node that is registered, and its session."""

    registration: Registration
    session: int


class ClusterNode:
    """State machine of one node: its registration, the plan, and all its journals.

    Attributes:
        journals: Journals, by number.
        nodes: Registered nodes seen by this one, by id.
        cluster_id: Expected id of the cluster; "" for any.
    """

    def __init__(
        self,
        *,
        registration: Registration,
        layout: Layout,
        new_id: Callable[[], str],
        session_timeout_ms: int,
        follow_interval_ms: int,
        keep_bytes: int = 0,
        wall_offset_ms: int = 0,
    ) -> None:
        """Start without a connection.

        Args:
            registration: Registration of this node, not ready yet.
            layout: Layout of the cluster.
            new_id: Returns 32 random hex digits.
            session_timeout_ms: Session timeout requested of the engine.
            follow_interval_ms: Minimum time between two reads of a journal led by another node.
            keep_bytes: Minimum size of each log kept for readers of the stream of changes.
            wall_offset_ms: Wall-clock time minus monotonic time, for epochs.
        """
        self._layout = layout
        self.journals: Sequence[ReplicatedJournal] = [
            ReplicatedJournal(
                number,
                partitions=layout.partitions_of(number),
                new_id=new_id,
                session_timeout_ms=session_timeout_ms,
                follow_interval_ms=follow_interval_ms,
                keep_bytes=keep_bytes,
                wall_offset_ms=wall_offset_ms,
            )
            for number in range(layout.journals)
        ]
        self.nodes: dict[int, Present] = {}
        self.cluster_id = ""
        self._strays: set[str] = set()  # Paths already announced.
        self._listed: frozenset[int] = frozenset()  # Listed nodes, less foreign ones.
        self._registration = registration
        self._session_timeout_ms = session_timeout_ms
        self._now_ms = 0
        self._out: list[Effect] = []
        self._session = 0  # Of the current connection; 0 without one.
        self._me: Member | None = None
        self._registered: Registration | None = None  # Content of our znode.
        self._registered_session = 0
        self._waits_since_ms: int | None = None  # For the end of a former session.
        self._is_last_try = False
        self._may_wait = True
        self._is_draining = False
        self._leads_on_until_ms = 0  # While draining without a ready node.
        self._claims_from_ms: int | None = None
        self._orphan_since_ms: dict[int, int] = {}
        self._claim_again_ms: dict[int, int] = {}
        self._hand_over_after_ms = 0
        self._format = 0  # Of new entries; below: since when all nodes read a newer one.
        self._newer_since_ms: int | None = None
        # Journals with a held-back `Leads`, until the topics are known.
        self._held: dict[int, _Held] = {}
        self._catch_up = 0
        self._work_at_ms: int | None = None

    # --- state --------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._registration.node

    @property
    def formats(self) -> tuple[int, int]:
        """Lowest and highest log format that this node reads."""
        return self._registration.formats

    @property
    def is_connected(self) -> bool:
        """Whether this node is registered in the session of the current connection."""
        return self._me is not None

    @property
    def is_ready(self) -> bool:
        """Whether every journal is ready: followed or led, and settled in this session."""
        return all(journal.is_ready for journal in self.journals)

    @property
    def can_hand_over(self) -> bool:
        """Whether another node is ready; for `SUCCESSOR_MS` of a drain, whether one may be soon."""
        if self._now_ms >= self._leads_on_until_ms:
            return self.is_connected and bool(self._ready() - {self.node_id})
        others = [p.registration for node, p in self.nodes.items() if node != self.node_id]
        return not all(other.is_stopping for other in others)

    def journal_of(self, partition: int) -> ReplicatedJournal:
        return self.journals[self._layout.journal_of(partition)]

    def leader_of(self, partition: int) -> tuple[Leader, Registration] | None:
        """Return the leader of an offsets partition, None while no registered node leads it."""
        leader = self.journal_of(partition).leader
        if leader is None or self._live_leader(leader) is None:
            return None
        return leader, self.nodes[leader.node].registration

    def leading_node(self, journal: ReplicatedJournal) -> int:
        """Return the id of the leader of *journal*, -1 while no registered node leads it."""
        node = self._live_leader(journal.leader)
        return -1 if node is None else node

    # --- input of the engine ------------------------------------------------------------

    def told(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event of the engine."""
        self._now_ms = now_ms
        match event:
            case Suspended():
                self._suspend(event)
            case Connected(session):
                self._session = session
                is_registered = session == self._registered_session
                if not is_registered:
                    self._registered = None
                    self._register()
                # After the first write: before it, a new session may read a state older than
                # the founding.
                self._send(ReadCluster())
                if is_registered:
                    self._begin_session()
            case Expired():
                self._registered_session = 0
            case Fired(request) if self._session:
                self._fired(request)
        self._look_for_work()
        return self._done()

    def _suspend(self, event: Suspended) -> None:
        self._session, self._me = 0, None
        self._waits_since_ms, self._is_last_try, self._may_wait = None, False, True
        for journal in self.journals:
            self._pass(journal.told(event, self._now_ms))

    def _fired(self, request: Request) -> None:
        if isinstance(request, ReadLeader | ReadSnapshot | WatchEntry):
            self._pass(self.journals[request.journal].fired(request, self._now_ms))
        elif self._me is not None or isinstance(request, ReadNode | ReadCluster):
            self._send(request)

    def replied(self, request: Request, reply: Reply, now_ms: int) -> list[Effect]:
        """Handle a reply of the engine."""
        self._now_ms = now_ms
        if reply.stray and reply.stray not in self._strays:
            self._strays.add(reply.stray)
            self._out.append(Stray(reply.stray))
        if what := self._found_instead(request, reply):
            # Ignore further replies of this session: they are about another cluster.
            self._suspend(Suspended())
            self._out.append(Failed(ClusterGone(what)))
            return self._done()
        match request:
            case (
                ReadCluster()
                | ReadNode(journal=-1)
                | Register()
                | Announce()
                | ListNodes()
                | ReadPurged()
            ):
                if reply.code is Code.REFUSED:
                    self._fail(str(reply.value))
                elif reply.code is not Code.LOST and self._session:
                    self._answered(request, reply)
                    self._look_for_work()
            case _:
                journal = self.journals[request.journal]
                before = _standing(journal)
                self._pass(journal.replied(request, reply, now_ms))
                if _standing(journal) != before:
                    self._look_for_work()
        return self._done()

    def _found_instead(self, request: Request, reply: Reply) -> str:
        """Describe what was found in place of the cluster's data; "" if the data is there."""
        if reply.code is Code.GONE:
            return f"{reply.value} isn't there"
        is_read = isinstance(request, ReadCluster) and reply.code is Code.OK
        if is_read and self.cluster_id not in {"", reply.value}:
            return f"the cluster {reply.value} is there, not {self.cluster_id}"
        return ""

    def took(self, journal: int, now_ms: int) -> list[Effect]:
        """Continue reading *journal*: its oldest `Followed` is replayed."""
        self._now_ms = now_ms
        self._pass(self.journals[journal].took(now_ms))
        self._look_for_work()
        return self._done()

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, in monotonic milliseconds; None if never."""
        deadlines = [journal.next_deadline_ms() for journal in self.journals]
        return min([at for at in (*deadlines, self._work_at_ms) if at is not None], default=None)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do all due work: claim journals without a leader, balance, read on."""
        self._now_ms = now_ms
        for journal in self.journals:
            self._pass(journal.tick(now_ms))
        since_ms = self._waits_since_ms
        if since_ms is not None and now_ms - since_ms >= 3 * self._session_timeout_ms:
            self._waits_since_ms, self._is_last_try = None, True
            self._register()
        self._look_for_work()
        return self._done()

    # --- requests of an operator --------------------------------------------------------

    def drain(self, now_ms: int) -> list[Effect]:
        """Hand over all journals, and claim none any more.

        `HandsOver` comes for each journal that this node leads. The drain is over when no journal
        `is_leading`, or when no node can take them (`can_hand_over`): a registered node may have
        just started, so the drain waits for it.
        """
        self._now_ms = now_ms
        self._is_draining, self._leads_on_until_ms = True, now_ms + SUCCESSOR_MS
        self._look_for_work()
        return self._done()

    def move(self, journal: int, to: int, now_ms: int) -> list[Effect]:
        """Hand one journal over to a ready node, at an operator's request.

        The journal stays there; if that node then has too many, balancing moves another one away.

        Raises:
            ValueError: This node doesn't lead the journal, or node *to* isn't ready.
        """
        self._now_ms = now_ms
        if not self.journals[journal].is_leading:
            raise ValueError(f"journal {journal} is not led here")
        if to not in self._ready() or to == self._registration.node:
            raise ValueError(f"node {to} is not ready to take a journal")
        self._hand_over(journal, to, is_move=True)
        return self._done()

    # --- being registered ---------------------------------------------------------------

    def _register(self) -> None:
        # Not ready: other nodes may lead this node's journals by now, so it must load them.
        self._send(Register(self._registration))

    def _begin_session(self) -> None:
        """Start work: this node is registered in the current session."""
        mine = self._registration
        self._me = Member(mine.node, mine.run, self._session)
        self._registered_session, self._waits_since_ms = self._session, None
        self._is_last_try = False
        self._send(ListNodes())
        for journal in self.journals:
            self._send(ReadPurged(journal.number))
            self._pass(journal.registered(self._me, self._now_ms))

    def _answered(self, request: Request, reply: Reply) -> None:
        match request:
            case Register(registration):
                if reply.code is Code.OK:
                    self._registered = registration
                    self._begin_session()
                else:
                    self._may_wait = not self._is_last_try
                    self._send(ReadNode(registration.node))
            case Announce(registration) if reply.code is Code.OK:
                self._registered = registration
            case ListNodes():
                self._listed = frozenset(reply.value)
                for node in self.nodes.keys() - self._listed:
                    del self.nodes[node]
                for node in reply.value:
                    self._send(ReadNode(node))
                if self._me is not None and self.node_id not in self._listed:
                    self._register()  # A restored ensemble may know only the session.
            case ReadNode(node):
                self._saw_node(node, reply)
            case ReadPurged(journal):
                self._out.append(Purged(journal, reply.value))

    def _saw_node(self, node: int, reply: Reply) -> None:
        if reply.code is Code.OK and reply.value is None:
            self._saw_stranger(node)
            return
        if reply.code is Code.OK:
            self.nodes[node] = Present(reply.value, reply.owner)
        else:
            self.nodes.pop(node, None)
        if node != self._registration.node:
            if reply.code is Code.OK:
                self._check_formats(reply.value)
            return
        if self._me is None:
            self._saw_namesake(reply)
        elif reply.code is Code.MISSING:
            self._register()  # The registration was removed.
        elif reply.owner == self._session:
            self._registered = reply.value

    def _saw_stranger(self, node: int) -> None:
        """Ignore a foreign registration, which can't lead; fail if it has this node's id."""
        self.nodes.pop(node, None)
        self._listed -= {node}
        if node == self._registration.node:
            self._fail(f"who is registered as {node} is no node of this cluster")
        else:
            self._out.append(Stranger(node))

    def _saw_namesake(self, reply: Reply) -> None:
        """Handle a registration with this node's id: by a former session of it, or another node."""
        mine = self._registration
        if reply.code is Code.MISSING:
            self._register()
        elif reply.value.run == mine.run and reply.owner == self._session:
            self._registered = reply.value
            self._begin_session()
        elif not (self._may_wait and _hosts(reply.value) & _hosts(mine)):
            where = ", ".join(reply.value.endpoints)
            self._fail(f"node {mine.node} is there already, at {where}; each needs its own node.id")
        elif self._waits_since_ms is None:
            self._waits_since_ms = self._now_ms  # A watch announces the end of its session.

    def _check_formats(self, other: Registration) -> None:
        """Fail if *other* and this node have no log format in common.

        Only the newer node fails: one that is ready already stays.
        """
        (lowest, highest), (their_lowest, their_highest) = self.formats, other.formats
        is_new = self._registered is None or not self._registered.is_ready
        if is_new and (their_highest < lowest or highest < their_lowest):
            self._fail(
                f"node {other.node} reads formats {their_lowest} to {their_highest} of the log, "
                f"and this release {lowest} to {highest}: an upgrade has to go by a release that "
                "reads both"
            )

    def _common_format(self) -> int:
        """Return the newest format that all nodes read for `FORMAT_AFTER_MS`, else the oldest."""
        formats = [self.formats, *(one.registration.formats for one in self.nodes.values())]
        oldest = max(lowest for lowest, _ in formats)
        newest = max(oldest, min(highest for _, highest in formats))
        if not self._listed or self._listed - self.nodes.keys():
            return oldest  # Not all registrations are known yet.
        self._format = max(oldest, min(self._format, newest))
        if self._format == newest:
            self._newer_since_ms = None
            return newest
        if self._newer_since_ms is None:
            self._newer_since_ms = self._now_ms
        due_ms = self._newer_since_ms + FORMAT_AFTER_MS
        if self._now_ms < due_ms:
            self._work_at(due_ms)
        else:
            self._format = newest
        return self._format

    # --- leaders of journals ------------------------------------------------------------

    def _ready(self) -> set[int]:
        return {node for node, present in self.nodes.items() if present.registration.is_ready}

    def _live_leader(self, leader: Leader | None) -> int | None:
        """Return the registered node that leads, or is about to renew; None if there is none."""
        if leader is None or leader.node not in self.nodes:
            return None
        registration, session = self.nodes[leader.node]
        if session != leader.session and registration.run != leader.run:
            return None
        if leader.node == self._registration.node and session != leader.session:
            return None  # Handed over to our ended session: no other node claims it.
        return leader.node

    def _look_for_work(self) -> None:
        """Do all due announcements, claims, balancing and hand-overs."""
        self._work_at_ms = None
        self._release()
        if self._waits_since_ms is not None and self._session:
            self._work_at(self._waits_since_ms + 3 * self._session_timeout_ms)
        if self._now_ms < self._leads_on_until_ms:
            self._work_at(self._leads_on_until_ms)
        if self._me is None:
            return
        ready = self._ready()
        in_sync = tuple(sorted(ready))
        common = self._common_format()
        for journal in self.journals:
            journal.in_sync, journal.format = in_sync, common
        self._announce()
        leaders = {
            journal.number: self._live_leader(journal.leader)
            for journal in self.journals
            if not journal.is_frozen
        }
        moved = {j.number for j in self.journals if j.leader is not None and j.leader.is_moved}
        me = self._me.node
        if self._is_draining:
            self._hand_over_all(plan(ready - {me}, leaders, moved))
        elif self.is_ready and me in ready:
            planned = plan(ready, leaders, moved)
            self._claim_orphans(ready, leaders, planned)
            self._balance(leaders, planned)

    def _announce(self) -> None:
        is_stopping = self._is_draining
        is_ready = self.is_ready and not is_stopping
        registration = replace(self._registration, is_ready=is_ready, is_stopping=is_stopping)
        if self._registered is not None and self._registered != registration:
            self._registered = registration
            self._send(Announce(registration))

    def _claim_orphans(
        self, ready: set[int], leaders: Mapping[int, int | None], planned: Mapping[int, int]
    ) -> None:
        me = self._registration.node
        if any(leader is not None for leader in leaders.values()):
            self._claims_from_ms = self._now_ms  # The cluster has leaders: don't wait.
        elif self._claims_from_ms is None:
            self._claims_from_ms = self._now_ms + SETTLE_MS
        if self._now_ms < self._claims_from_ms:
            self._work_at(self._claims_from_ms)
            return
        for number, leader in leaders.items():
            if leader is not None or self.journals[number].is_leading:
                self._orphan_since_ms.pop(number, None)
                self._claim_again_ms.pop(number, None)
                continue
            since_ms = self._orphan_since_ms.setdefault(number, self._now_ms)
            due_ms = since_ms + rank(me, number, ready, planned[number]) * CLAIM_AFTER_MS
            due_ms = max(due_ms, self._claim_again_ms.get(number, due_ms))
            if due_ms <= self._now_ms:
                due_ms = self._claim_again_ms[number] = self._now_ms + CLAIM_AFTER_MS
                self._pass(self.journals[number].claim(self._now_ms))
            self._work_at(due_ms)

    def _balance(self, leaders: Mapping[int, int | None], planned: Mapping[int, int]) -> None:
        """Hand one surplus journal over, unless some journal has no leader."""
        surplus = [
            journal.number
            for journal in self.journals
            if journal.role is Role.LEADING
            and planned.get(journal.number, self._registration.node) != self._registration.node
        ]
        if not surplus or None in leaders.values():
            return
        if self._hand_over_after_ms <= self._now_ms:
            self._hand_over_after_ms = self._now_ms + BALANCE_EVERY_MS
            self._hand_over(surplus[0], planned[surplus[0]])
        self._work_at(self._hand_over_after_ms)

    def _hand_over_all(self, planned: Mapping[int, int]) -> None:
        for journal in self.journals:
            if journal.is_leading and journal.number in planned:
                self._work_at(self._now_ms + DRAIN_AGAIN_MS)
                self._hand_over(journal.number, planned[journal.number])

    def _hand_over(self, journal: int, to: int, *, is_move: bool = False) -> None:
        registration, session = self.nodes[to]
        successor = Member(to, registration.run, session)
        self._pass(self.journals[journal].hand_over(successor, is_move=is_move))

    # --- waiting for the topics ---------------------------------------------------------

    def _pass(self, effects: list[Effect]) -> None:
        """Pass the effects of a journal on; hold `Leads` back until the topics are known."""
        for effect in effects:
            match effect:
                case Leads(journal) if journal:
                    self._hold(journal)
                    continue
                case Renewed(journal) if journal in self._held:
                    continue
                case Deposed(journal) | HandsOver(journal):
                    self._held.pop(journal, None)
                case Confirmed(0, number):
                    for held in self._held.values():
                        held.is_over |= 0 < held.confirmation <= number
            self._out.append(effect)
            if isinstance(effect, Leads | Deposed | HandedOver) and not effect.journal:
                for held_journal in tuple(self._held):
                    self._hold(held_journal)

    def _hold(self, journal: int) -> None:
        """Hold back `Leads` of *journal* until the topics are known as of now."""
        topics = self.journals[0]
        if topics.is_leading:
            self._held[journal] = _Held(confirmation=topics.confirm())
            self._pass(topics.end_round())
        else:
            self._catch_up += 1
            self._held[journal] = _Held(catch_up=self._catch_up)
            self._pass(topics.catch_up(self._catch_up, self._now_ms))

    def _release(self) -> None:
        caught_up = self.journals[0].caught_up
        for number, held in tuple(self._held.items()):
            journal = self.journals[number]
            is_over = held.is_over or 0 < held.catch_up <= caught_up
            if is_over and journal.role is Role.LEADING:
                del self._held[number]
                self._out.append(Leads(number, journal.leader_epoch))

    # --- inside -------------------------------------------------------------------------

    def _send(self, request: Request) -> None:
        self._out.append(Send(request))

    def _fail(self, reason: str) -> None:
        self._out.append(Failed(ClusterRefused(reason)))

    def _work_at(self, at_ms: int) -> None:
        self._work_at_ms = min(at_ms, self._work_at_ms or at_ms)

    def _done(self) -> list[Effect]:
        self._release()
        out, self._out = self._out, []
        return out


@dataclass(slots=True)
class _Held:
    """Condition for a held-back `Leads`.

    Attributes:
        confirmation: Awaited number of `confirm` if this node leads journal 0; else 0.
        catch_up: Awaited number of `catch_up` if another node leads journal 0; else 0.
        is_over: The confirmation came.
    """

    confirmation: int = 0
    catch_up: int = 0
    is_over: bool = False


def _hosts(registration: Registration) -> set[str]:
    """Return the hosts of a node, without ports: a restart may change those."""
    return {host for host, _ in registration.addresses}


def _standing(journal: ReplicatedJournal) -> tuple[object, ...]:
    """Return the state of *journal* that the plan depends on."""
    return journal.leader, journal.role, journal.is_ready
