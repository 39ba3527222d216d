"""All journals of one node, and the session that they share: who leads which, and who is there.

A pure machine, as the journals are. Events and answers of the engine go in here, and `Send`s come
out, here and from the journals' own methods (`write`, `end_round`, `stopped`, `install`,
`set_purged`, and `read` for whoever asks).

There is no controller. Each node sees the same znodes, works out the same plan, and claims what the
plan says is its own and nobody leads; the next one in the row does so a second later. Only a leader
itself hands over, one journal at a time, where the plan says that it has too many. Where nobody
leads anything yet, the first one waits for those who start with it, so that nothing has to move.

What a group knows of topics must not be ahead of what its node does. So a node that comes to lead a
journal is told so when it has read the journal of the topics, 0, to its end as of then.
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

# The next node in the row claims so much later, and the same one tries again after that.
CLAIM_AFTER_MS: Final = 1_000
# So long the first node of a cluster that starts waits for the others, before it claims all.
SETTLE_MS: Final = 1_000
BALANCE_EVERY_MS: Final = 10_000
DRAIN_AGAIN_MS: Final = 200
# So long a node that is to stop leads on until another one is ready.
SUCCESSOR_MS: Final = 5_000
# A format comes into use when all who are there have read it for so long: a node of an older
# release that has only lost its session must not come back to what it can't read.
FORMAT_AFTER_MS: Final = 60_000


class Present(NamedTuple):
    """A node that is registered, and its session."""

    registration: Registration
    session: int


class ClusterNode:
    """See the module.

    Attributes:
        journals: By number.
        nodes: The registered nodes, by id, as far as this one has seen.
        cluster_id: Of the cluster; "" for any.
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
        """Be a node that is about to start.

        Args:
            registration: Of this node, not ready yet.
            layout: Of the cluster.
            new_id: Returns 32 random hex digits.
            session_timeout_ms: As the engine was asked for.
            follow_interval_ms: How often a journal is read at most that another node leads.
            keep_bytes: So much of each log is kept for who follows the changes of offsets.
            wall_offset_ms: The time of day less the monotonic time, for epochs.
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
        self._strays: set[str] = set()  # That were told of.
        self._listed: frozenset[int] = frozenset()  # Nodes whose registration is known, or read.
        self._registration = registration
        self._session_timeout_ms = session_timeout_ms
        self._now_ms = 0
        self._out: list[Effect] = []
        self._session = 0  # Of the connection that there is.
        self._me: Member | None = None
        self._registered: Registration | None = None  # What the session's znode says.
        self._registered_session = 0
        self._waits_since_ms: int | None = None  # For the end of a former session's registration.
        self._is_last_try = False
        self._may_wait = True
        self._is_draining = False
        self._leads_on_until_ms = 0  # While it drains, and nobody is ready.
        self._claims_from_ms: int | None = None
        self._orphan_since_ms: dict[int, int] = {}
        self._claim_again_ms: dict[int, int] = {}
        self._hand_over_after_ms = 0
        self._format = 0  # In which new entries are written, and since when a newer one might be.
        self._newer_since_ms: int | None = None
        # Journals that are led from here once the topics are known: journal -> what is waited for.
        self._held: dict[int, _Held] = {}
        self._catch_up = 0
        self._work_at_ms: int | None = None

    # --- for whoever asks ---------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """Of this node."""
        return self._registration.node

    @property
    def formats(self) -> tuple[int, int]:
        """The lowest and the highest format of the log that it reads."""
        return self._registration.formats

    @property
    def is_connected(self) -> bool:
        """Whether there is a session in which this node is registered."""
        return self._me is not None

    @property
    def is_ready(self) -> bool:
        """Whether this node follows every journal, or leads it, and knows that in this session."""
        return all(journal.is_ready for journal in self.journals)

    @property
    def can_hand_over(self) -> bool:
        """Whether another node is ready, or may soon be, for which a drain waits a while."""
        if self._now_ms >= self._leads_on_until_ms:
            return self.is_connected and bool(self._ready() - {self.node_id})
        others = [p.registration for node, p in self.nodes.items() if node != self.node_id]
        return not all(other.is_stopping for other in others)

    def journal_of(self, partition: int) -> ReplicatedJournal:
        """Return the journal in which *partition* lies."""
        return self.journals[self._layout.journal_of(partition)]

    def leader_of(self, partition: int) -> tuple[Leader, Registration] | None:
        """Return who leads an offsets partition, None while nobody who is there does."""
        leader = self.journal_of(partition).leader
        if leader is None or self._live_leader(leader) is None:
            return None
        return leader, self.nodes[leader.node].registration

    def leading_node(self, journal: ReplicatedJournal) -> int:
        """Return which node leads a journal, -1 while nobody who is there does."""
        node = self._live_leader(journal.leader)
        return -1 if node is None else node

    # --- what the engine says -----------------------------------------------------------

    def told(self, event: Event, now_ms: int) -> list[Effect]:
        """Take note of what the engine tells."""
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
                # A new session may see the time before the founding, until its first write.
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
        """Take note of an answer."""
        self._now_ms = now_ms
        if reply.stray and reply.stray not in self._strays:
            self._strays.add(reply.stray)
            self._out.append(Stray(reply.stray))
        if what := self._found_instead(request, reply):
            # Further answers of this session are not about the cluster that was served.
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
        """Return what is there in place of the cluster's data; "" if that is there."""
        if reply.code is Code.GONE:
            return f"{reply.value} isn't there"
        is_read = isinstance(request, ReadCluster) and reply.code is Code.OK
        if is_read and self.cluster_id not in {"", reply.value}:
            return f"the cluster {reply.value} is there, not {self.cluster_id}"
        return ""

    def took(self, journal: int, now_ms: int) -> list[Effect]:
        """Go on reading *journal*: the batches of its oldest `Followed` are replayed."""
        self._now_ms = now_ms
        self._pass(self.journals[journal].took(now_ms))
        self._look_for_work()
        return self._done()

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, monotonic."""
        deadlines = [journal.next_deadline_ms() for journal in self.journals]
        return min([at for at in (*deadlines, self._work_at_ms) if at is not None], default=None)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due: claim what nobody leads, balance, read on."""
        self._now_ms = now_ms
        for journal in self.journals:
            self._pass(journal.tick(now_ms))
        since_ms = self._waits_since_ms
        if since_ms is not None and now_ms - since_ms >= 3 * self._session_timeout_ms:
            self._waits_since_ms, self._is_last_try = None, True
            self._register()
        self._look_for_work()
        return self._done()

    # --- what an operator asks ----------------------------------------------------------

    def drain(self, now_ms: int) -> list[Effect]:
        """Hand over everything, and claim nothing any more.

        `HandsOver` comes for each journal that it leads. It is over when no journal `is_leading`,
        or when nobody can take them (`can_hand_over`): a node that is registered may have only just
        come, and is waited for.
        """
        self._now_ms = now_ms
        self._is_draining, self._leads_on_until_ms = True, now_ms + SUCCESSOR_MS
        self._look_for_work()
        return self._done()

    def move(self, journal: int, to: int, now_ms: int) -> list[Effect]:
        """Hand one journal over to a ready node, as an operator asks.

        It stays there; if that node has too many then, another one leaves it.

        Raises:
            ValueError: This node does not lead it, or the other one is not ready.
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
        # Not ready: others may lead meanwhile what this node led, and it would have to load that.
        self._send(Register(self._registration))

    def _begin_session(self) -> None:
        """Go on: this node is registered in the session that there is."""
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
                    self._register()  # An ensemble that was set back knows the session alone.
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
            self._register()  # Somebody has removed it.
        elif reply.owner == self._session:
            self._registered = reply.value

    def _saw_stranger(self, node: int) -> None:
        """Somebody is registered who is no node: none that leads, and none to hand over to."""
        self.nodes.pop(node, None)
        self._listed -= {node}
        if node == self._registration.node:
            self._fail(f"who is registered as {node} is no node of this cluster")
        else:
            self._out.append(Stranger(node))

    def _saw_namesake(self, reply: Reply) -> None:
        """Somebody is registered as this node: a former session of its own, or another node."""
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
            self._waits_since_ms = self._now_ms  # The end of its session, of which a watch tells.

    def _check_formats(self, other: Registration) -> None:
        """Refuse to run beside a node, if neither reads what the other one writes.

        Whoever came first stays.
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
        """Return the newest format that every node has read for a while; else the oldest."""
        formats = [self.formats, *(one.registration.formats for one in self.nodes.values())]
        oldest = max(lowest for lowest, _ in formats)
        newest = max(oldest, min(highest for _, highest in formats))
        if not self._listed or self._listed - self.nodes.keys():
            return oldest  # Until all are known.
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

    # --- who leads what -----------------------------------------------------------------

    def _ready(self) -> set[int]:
        return {node for node, present in self.nodes.items() if present.registration.is_ready}

    def _live_leader(self, leader: Leader | None) -> int | None:
        """Return the node that leads, or is about to renew; None if there is none."""
        if leader is None or leader.node not in self.nodes:
            return None
        registration, session = self.nodes[leader.node]
        if session != leader.session and registration.run != leader.run:
            return None
        if leader.node == self._registration.node and session != leader.session:
            return None  # Handed over to a session that had ended: nobody else will claim it.
        return leader.node

    def _look_for_work(self) -> None:
        """Announce, claim, balance and hand over, as far as it is time for it."""
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
            self._claims_from_ms = self._now_ms  # The cluster is at work.
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
        """Hand one journal over if others have less; not while one is without a leader."""
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

    # --- what is known of topics --------------------------------------------------------

    def _pass(self, effects: list[Effect]) -> None:
        """Hand the effects of a journal on; what it leads only when the topics are known."""
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
        """Tell that *journal* is led here when the topics are known as of now."""
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
    """Why it is not told yet that a journal is led here.

    Attributes:
        confirmation: Of journal 0, which is led here, too; else 0.
        catch_up: Of journal 0, which another node leads; else 0.
        is_over: The confirmation came.
    """

    confirmation: int = 0
    catch_up: int = 0
    is_over: bool = False


def _hosts(registration: Registration) -> set[str]:
    """Return where a node is. Its ports may be others after a restart."""
    return {host for host, _ in registration.addresses}


def _standing(journal: ReplicatedJournal) -> tuple[object, ...]:
    """Return what the plan depends on."""
    return journal.leader, journal.role, journal.is_ready
