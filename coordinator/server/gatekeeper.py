"""Before a request is decided: who asks, and may he?

Theory of operation
===================

Where nobody has to say who he is, there are no gates, and a session asks the dispatcher itself.
Otherwise each session has a `Gate` in the dispatcher's place. It has four things to find out.

*Who asks.* On a listener with SASL nobody is known before a log-in: until then a session takes what
the log-in needs, nothing else (34), and reads no second request before the first is answered. A
log-in that fails is answered late, and how late depends on how many failed from that address: so
nobody tries more than ten passwords a second from one address, however many connections he has.
Whoever comes while the latest that is allowed is taken isn't looked at, and is cut off.

*May he.* `NEEDS` says so. What is refused of a request never reaches the dispatcher: it
gets the rest (`Narrowed`), and the refusals are put into the answer to that. A request that may
name much is judged over several turns of its session, before it is dispatched (`has_judged`).

*Is he whose member id he names.* A member id, and a group instance id, belong to the principal who
joined with them. To others they are unknown; so are members by their client id, to who drains them.
Who may ALTER the group may take members out.

*How much he takes.* `coordinator.server.throttles` keeps it, for all sessions of a principal.

What somebody may ends with what he has shown: a session is closed when its log-in or certificate
is over, when its user has another password or none, or its static token is in no file any more.
While rules and users are loaded, everybody gets 14: to be called a stranger would end a client that
only came too early.
"""

import heapq
from collections.abc import Callable
from itertools import count as counter
from typing import Any, ClassVar, Final, Protocol

import trio
from msgspec import structs

from coordinator.group.core import Caller, Now
from coordinator.group.group import Group
from coordinator.group.quotas import Quotas
from coordinator.runtime.bulkhead import Owner, attempt
from coordinator.runtime.calls import Asker, Call
from coordinator.runtime.telemetry import Telemetry, count
from coordinator.server.attempts import Attempts
from coordinator.server.audit import asked, asker
from coordinator.server.authorization import (
    IN_SLICES,
    NEEDS,
    Access,
    Authorizer,
    Steps,
    Verdict,
    at_once,
    in_parts,
)
from coordinator.server.dispatch import Dispatcher
from coordinator.server.portions import are_many
from coordinator.server.throttles import Muted, Throttle, Throttles
from protocol import messages as m
from protocol.acls import ANONYMOUS, Operation
from protocol.errors import ErrorCode
from protocol.messages import error_response, first_error

TRIES_MAX: Final = 3
# Of everything before a log-in.
STRANGER_REQUEST_BYTES_MAX: Final = 4_096
# The events that others bring about, as fast as they like.
REFUSALS: Final = frozenset({"access.refused", "login.refused"})
_NEVER_MS: Final = 2**63

_E = ErrorCode
_LOG_IN: Final = frozenset({m.SaslHandshakeRequest, m.SaslAuthenticateRequest})
# What only an administrator may do is told each time.
PRIVILEGED: Final = frozenset(
    {
        m.CompactLogRequest,
        m.ReloadPartitionRequest,
        m.MoveJournalRequest,
        m.DescribeSettingsRequest,
        m.CreateAclsRequest,
        m.DeleteAclsRequest,
        m.AlterUserScramCredentialsRequest,
        m.AlterClientQuotasRequest,
    }
)
# They ask for nothing that somebody has to be allowed.
_BEFORE_RIGHTS: Final = _LOG_IN | {m.ApiVersionsRequest}
_RIGHTS: Final = {kind: check for kind, check in NEEDS.items() if kind not in _BEFORE_RIGHTS}
# They speak for the member whose id they name.
_SPEAKS_FOR_MEMBER: Final = frozenset(
    {m.OffsetCommitRequest, m.HeartbeatRequest, m.JoinGroupRequest, m.SyncGroupRequest}
)


class LogIn(Protocol):
    """The log-in of one connection: see `coordinator.security.sasl.LogIn`."""

    principal: str | None
    mechanism: str
    ends_wall_ms: int | None
    failures: int
    refused_because: str

    def handshake(self, request: m.SaslHandshakeRequest) -> m.SaslHandshakeResponse:
        """Begin a conversation."""

    def authenticate(
        self, request: m.SaslAuthenticateRequest, wall_ms: int
    ) -> m.SaslAuthenticateResponse:
        """Go on with it."""

    @property
    def is_done(self) -> bool:
        """Whether somebody is logged in, and not about to do it again."""

    def is_good(self) -> bool:
        """Say whether what was shown is still right."""


class Client(Muted, Protocol):
    """The session that a gate stands before.

    Attributes:
        throttle: What its principal takes, once that is known.
    """

    caller: Caller
    throttle: Throttle | None

    def may_ask_more(self) -> None:
        """The log-in is done: the limits are those of everybody."""

    def close_after_answers(self, why: str) -> None:
        """End the connection once its answers have left."""

    def take_no_more(self) -> None:
        """End the connection once all that it has asked is answered."""

    def close_because_over(self, reason: str) -> None:
        """Do the same, and say why in the log."""

    def refuse(self) -> None:
        """End the connection now, as its principal has too many."""


class Later:
    """What is done after a while."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Owner, Callable[[], None]]] = []
        self._numbers = counter()
        self._changed = trio.Event()

    def do(self, delay_ms: int, owner: Owner, act: Callable[[], None]) -> None:
        """Have *act* called for its *owner* when *delay_ms* have passed."""
        at_s = trio.current_time() + delay_ms / 1000
        heapq.heappush(self._heap, (at_s, next(self._numbers), owner, act))
        self._changed.set()

    async def run(self) -> None:
        """Do it, until cancelled."""
        while True:
            until_s = self._heap[0][0] if self._heap else float("inf")
            with trio.move_on_at(until_s):
                await self._changed.wait()
            self._changed = trio.Event()
            while self._heap and self._heap[0][0] <= trio.current_time():
                attempt(*heapq.heappop(self._heap)[2:])


class Gatekeeper:
    """What all gates of a process share.

    Attributes:
        has_gates: Whether anybody has to say who he is; there are no gates otherwise.
        emit: Takes the events of the audit.
        attempts: What failed, by address, over HTTP, too.
    """

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        authorizer: Authorizer,
        begin_log_in: Callable[[], LogIn] | None,
        telemetry: Telemetry,
        emit: Callable[[str, dict[str, Any]], None],
        knows_users: Callable[[], bool],
        quotas: Quotas,
        now_ms: Callable[[], int],
    ) -> None:
        """Make it.

        Args:
            dispatcher: Who decides what may be asked.
            authorizer: Who knows what that is.
            begin_log_in: Makes what a connection to a listener with SASL logs in by.
            telemetry: Counts log-ins.
            emit: Takes the events of the audit.
            knows_users: Says whether rules and users are loaded.
            quotas: Those in force.
            now_ms: Returns the monotonic time.
        """
        self.dispatcher = dispatcher
        self.authorizer = authorizer
        self.begin_log_in = begin_log_in
        self.telemetry = telemetry
        self.emit = emit
        self.audit = dispatcher.audit
        self.attempts = Attempts()
        self.later = Later()
        self.knows_users = knows_users
        self.throttles = Throttles(quotas, now_ms, self.later.do, telemetry)
        self.has_gates = authorizer.is_on

    @property
    def unready(self) -> ErrorCode:
        """Why a client is told to come back, as long as `knows_users` doesn't hold."""
        is_starting = self.dispatcher.is_starting
        return _E.COORDINATOR_NOT_AVAILABLE if is_starting else _E.COORDINATOR_LOAD_IN_PROGRESS

    def gate(self, client: Client, peer: str, principal: str, ends_wall_ms: int | None) -> "Gate":
        """Return the gate before *client*, whom its connection alone tells to be *principal*."""
        gate = Gate(self, client, peer)
        gate.open(principal, ends_wall_ms)
        return gate

    def closed_gate(self, client: Client, peer: str) -> "Gate":
        """Return the gate before *client*, who has to log in."""
        assert self.begin_log_in is not None
        return Gate(self, client, peer, self.begin_log_in())


class Gate:
    """Stands before the dispatcher, for one session.

    Attributes:
        is_closed: The client has to log in first.
    """

    def __init__(
        self, keeper: Gatekeeper, client: Client, peer: str, log_in: LogIn | None = None
    ) -> None:
        """Use `Gatekeeper` instead."""
        self._keeper = keeper
        self._dispatcher = keeper.dispatcher
        self._client = client
        self._peer = peer
        self._log_in = log_in
        self._access: Access | None = None
        self._rules = keeper.authorizer.rules
        self._ends_wall_ms = _NEVER_MS
        self._judging: _Judging | None = None

    @property
    def is_closed(self) -> bool:
        """Whether nobody is known yet."""
        return self._access is None

    def open(self, principal: str, ends_wall_ms: int | None) -> None:
        """Let *principal* ask, until then."""
        self._access = self._keeper.authorizer.access(principal, self._peer)
        self._ends_wall_ms = _NEVER_MS if ends_wall_ms is None else ends_wall_ms
        self._client.caller = self._client.caller._replace(principal=principal)
        if self._client.throttle is None:  # A later log-in is the same principal's.
            self._client.throttle = self._keeper.throttles.enter(principal, self._client)

    def leave(self) -> None:
        """The session has ended."""
        if self._client.throttle is not None:
            self._client.throttle.leave(self._client)
            self._client.throttle = None
        del self._client  # With no cycle left, nothing waits for the collector.

    def sees_group(self, name: str) -> bool:
        """Say whether a group is in the lists that are shown."""
        access = self._access
        return access is not None and (access.sees_cluster() or access.sees_group(name))

    def sees_topic(self, name: str) -> bool:
        """Say whether a topic is in the lists that are shown."""
        return self._access is not None and self._access.sees_topic(name)

    def over_because(self, wall_ms: int) -> str | None:
        """Say why the client isn't known any more, None if he is, or never was."""
        if self._access is None:
            return None
        if wall_ms >= self._ends_wall_ms:
            return "its log-in or certificate has ended"
        knows_users = self._keeper.knows_users()  # Else nobody would have a password.
        if self._log_in is not None and knows_users and not self._log_in.is_good():
            return "its password or token is in force no more"
        return None

    def refusal(self, wall_ms: int) -> int:
        """Return the error of all that is not decided yet, once the log-in has ended; 0 before."""
        has_ended = self._access is None or self.over_because(wall_ms) is not None
        return _E.ILLEGAL_SASL_STATE if has_ended else _E.NONE

    # --- requests -----------------------------------------------------------------------

    def has_judged(self, request: Any, is_over: Callable[[], bool]) -> bool:
        """Judge a long *request*, which is the next one, until *is_over*; say whether that is done.

        Then it must be dispatched at once. It is judged anew when the rules have changed meanwhile:
        what is decided is always what is allowed at that moment.
        """
        judging, self._judging = self._judging, None
        access, in_slices = self._access, IN_SLICES.get(type(request))
        if access is None or access.is_free or in_slices is None:
            return True
        if access.version != self._rules.version and not self._knows_rules(access):
            return True
        if judging is None or judging.request is not request or judging.version != access.version:
            judging = _Judging(request, access.version, in_slices(access, request))
        self._judging = judging
        return judging.go_on(is_over)

    def judge(self, request: Any, now: Now) -> Verdict | None:
        """Return what is refused of a request, or of a part of one, whose turn comes late.

        The log-in is in force (`refusal`).
        """
        access, caller = self._access, self._client.caller
        assert access is not None
        if access.version != self._rules.version and not self._knows_rules(access):
            return Verdict(None, lambda _: error_response(request, self._keeper.unready))
        verdict = None if access.is_free else NEEDS[type(request)](access, request)
        if verdict is not None:
            answer = verdict.complete(None) if verdict.request is None else None
            self._tell_refused(request, answer, caller, now)
        elif type(request) is m.LeaveGroupRequest:
            verdict = self._judge_leaving(access, request, caller, now)
        elif type(request) in _SPEAKS_FOR_MEMBER and self._is_anothers(request, caller):
            self._tell_anothers(request, caller, now)
            verdict = Verdict(None, lambda _: _unknown_member(request))
        return verdict

    def _judged(self, access: Access, request: Any) -> Verdict | None:
        judging, self._judging = self._judging, None
        if judging is not None and judging.request is request:
            return judging.verdict
        return NEEDS[type(request)](access, request)

    def dispatch(self, call: Call, caller: Caller, now: Now) -> None:
        """Have decided of *call* what is allowed."""
        access = self._access
        request: Any = call.request
        kind = type(request)
        verdict_on = _RIGHTS.get(kind) if self._judging is None else self._judged
        if access is None or verdict_on is None or now.wall_ms >= self._ends_wall_ms:
            self._dispatch_before_rights(call, request, caller, now)
        elif access.version != self._rules.version and not self._knows_rules(access):
            call.fail(self._keeper.unready, -1)
        elif not access.is_free and (verdict := verdict_on(access, request)) is not None:
            self._narrow(call, verdict, caller, now)
        elif (
            kind in _SPEAKS_FOR_MEMBER
            and (request.member_id or request.group_instance_id is not None)
            and self._is_anothers(request, caller)
        ):
            self._refuse_member(call, request, caller, now)
        elif kind is m.LeaveGroupRequest:
            self._leave(call, request, caller, now)
        elif kind is m.DrainMemberRequest:
            self._drain(call, request, caller, now)
        else:
            self._dispatch_allowed(call, request, caller, now)

    def _dispatch_allowed(self, call: Call, request: Any, caller: Caller, now: Now) -> None:
        """Have it decided, and tell the audit if only administrators may ask for it."""
        if type(request) in PRIVILEGED:
            self._keeper.emit("access.used", {**asker(caller), **asked(request)})
        self._dispatcher.dispatch(call, caller, now)

    def _dispatch_before_rights(self, call: Call, request: Any, caller: Caller, now: Now) -> None:
        """Have a log-in go on, or answer who is not known, or not any more."""
        if type(request) in _LOG_IN and self._log_in is not None:
            self._go_on_with_log_in(call, request, now)
        elif type(request) in _BEFORE_RIGHTS:
            self._dispatcher.dispatch(call, caller, now)
        elif self._access is None:
            stranger = caller._replace(principal=ANONYMOUS)  # Whatever its certificate says.
            why, error = "nobody has logged in", _E.ILLEGAL_SASL_STATE
            self._tell("access.refused", request, stranger, now, error=error, why=why)
            call.fail(error, -1)
            self._client.close_after_answers("unauthenticated")
        else:
            call.drop()
            self._client.close_because_over("its log-in or certificate has ended")

    def _knows_rules(self, access: Access) -> bool:
        """Say whether the rules are loaded; each load of them is a change of rules."""
        if not access.is_free and not self._keeper.knows_users():
            return False
        access.refresh()
        return True

    def _narrow(self, call: Call, verdict: Verdict, caller: Caller, now: Now) -> None:
        """Ask for what is allowed, if anything is."""
        if verdict.request is None:
            answer = verdict.complete(None)
            self._tell_refused(call.request, answer, caller, now)
            call.resolve(answer, -1)
            return
        request: Any = verdict.request
        narrowed = Narrowed(request, call, verdict.complete, verdict.error)
        self._tell_refused(call.request, None, caller, now)
        if type(request) in _SPEAKS_FOR_MEMBER and self._is_anothers(request, caller):
            self._refuse_member(narrowed, request, caller, now)
        else:
            self._dispatch_allowed(narrowed, request, caller, now)

    # --- members ------------------------------------------------------------------------

    def _is_anothers(self, request: Any, caller: Caller) -> bool:
        group = self._dispatcher.group(request.group_id)
        if group is None:
            return False
        return _is_anothers(group, request.member_id, request.group_instance_id, caller)

    def _refuse_member(self, call: Call, request: Any, caller: Caller, now: Now) -> None:
        self._tell_anothers(request, caller, now)
        self._dispatcher.answer_about(request.group_id, call, _unknown_member(request), now)

    def _leave(self, call: Call, request: m.LeaveGroupRequest, caller: Caller, now: Now) -> None:
        """Let members go that are the caller's; an administrator of the group may take any out."""
        access = self._access
        assert access is not None
        # Of many each portion is judged as its turn comes: who holds an instance may change.
        is_late = are_many(request)
        verdict = None if is_late else self._judge_leaving(access, request, caller, now)
        if verdict is None:
            self._dispatcher.dispatch(call, caller, now)
        elif verdict.request is None:
            whole = verdict.complete(None)
            self._dispatcher.answer_about(request.group_id, call, whole, now)
        else:
            narrowed = Narrowed(verdict.request, call, verdict.complete)
            self._dispatcher.dispatch(narrowed, caller, now)

    def _judge_leaving(
        self, access: Access, request: m.LeaveGroupRequest, caller: Caller, now: Now
    ) -> Verdict | None:
        """Return which members stay, as they are others'; tell the audit of these."""
        group = self._dispatcher.group(request.group_id)

        def is_own(one: m.LeavingMember) -> bool:
            ids = one.member_id, one.group_instance_id
            return group is None or not _is_anothers(group, *ids, caller)

        verdict = at_once(
            in_parts(
                request, request.members, is_own, _not_yours, asked="members", answered="members"
            )
        )
        if verdict is None:
            return None
        if access.may_with_group(request.group_id, Operation.ALTER):
            self._keeper.audit.used(request, caller, now)
            return None
        self._tell_anothers(request, caller, now)
        return verdict

    def _drain(self, call: Call, request: m.DrainMemberRequest, caller: Caller, now: Now) -> None:
        """Drain members that are the caller's; an administrator of the group may drain any."""
        group = self._dispatcher.group(request.group_id)
        access = self._access
        assert access is not None
        members = () if group is None else group.members.values()
        named = [one for one in members if one.client_id == request.client_id]
        others = [one for one in named if caller.is_anothers(one.principal)]
        if others and not access.may_with_group(request.group_id, Operation.ALTER):
            caller = caller._replace(only_own=True)
            if len(others) == len(named):
                self._tell_anothers(
                    request, caller, now, "all members with that client id are another principal's"
                )
        self._dispatcher.dispatch(call, caller, now)

    # --- logging in ---------------------------------------------------------------------

    def _go_on_with_log_in(
        self, call: Call, request: m.SaslHandshakeRequest | m.SaslAuthenticateRequest, now: Now
    ) -> None:
        keeper, log_in = self._keeper, self._log_in
        assert log_in is not None
        if not keeper.knows_users():
            call.fail(keeper.unready, -1)
            return
        if keeper.attempts.are_too_many(self._peer, now.mono_ms):
            count(keeper.telemetry.log_ins, (log_in.mechanism, "limited"))
            call.drop()
            self._client.close_because_over("too many log-ins have failed from its address")
            return
        answer: m.SaslHandshakeResponse | m.SaslAuthenticateResponse
        if isinstance(request, m.SaslHandshakeRequest):
            answer = log_in.handshake(request)
        else:
            answer = log_in.authenticate(request, now.wall_ms)
        if answer.error:
            self._log_in_failed(call, answer, log_in, now)
            return
        is_done = isinstance(answer, m.SaslAuthenticateResponse) and log_in.is_done
        is_first = self._client.throttle is None
        principal = log_in.principal or ANONYMOUS
        if is_done and is_first and not keeper.throttles.has_place(principal):
            count(keeper.telemetry.log_ins, (log_in.mechanism, "limited"))
            call.drop()
            self._client.refuse()
            return
        call.resolve(answer, -1)
        if is_done:
            count(keeper.telemetry.log_ins, (log_in.mechanism, "done"))
            self.open(principal, log_in.ends_wall_ms)
            if is_first:
                self._client.may_ask_more()

    def _log_in_failed(self, call: Call, answer: m.Response, log_in: LogIn, now: Now) -> None:
        """Answer late; and end the connection, unless there is another try."""
        keeper = self._keeper
        count(keeper.telemetry.log_ins, (log_in.mechanism, "failed"))
        was_known = self._access is not None
        principal = self._client.caller.principal if was_known else ANONYMOUS
        self._access = None
        keeper.audit.tell(
            "login.refused",
            principal,
            self._peer,
            now.mono_ms,
            mechanism=log_in.mechanism,
            reason=log_in.refused_because,
        )
        is_last = was_known or log_in.failures >= TRIES_MAX
        is_last = is_last or first_error(answer) == _E.ILLEGAL_SASL_STATE

        delay_ms = keeper.attempts.delay_ms(self._peer, now.mono_ms)
        keeper.later.do(delay_ms, self._client, lambda: call.resolve(answer, -1))
        if is_last:  # Whoever comes next on this connection would be counted as who was before.
            self._client.take_no_more()

    # --- the audit ----------------------------------------------------------------------

    def _tell_refused(
        self, request: m.Request, answer: m.Response | None, caller: Caller, now: Now
    ) -> None:
        error = 0 if answer is None else first_error(answer)
        why = "no right to all of it" if answer is None else "no right to it"
        why = getattr(answer, "message", None) or why
        self._tell("access.refused", request, caller, now, error=error or None, why=why)

    def _tell_anothers(
        self,
        request: m.Request,
        caller: Caller,
        now: Now,
        why: str = "the member id or instance id is another principal's",
    ) -> None:
        error = _E.UNKNOWN_MEMBER_ID
        self._tell("access.refused", request, caller, now, error=error, why=why)

    def _tell(
        self, event: str, request: m.Request, caller: Caller, now: Now, **fields: Any
    ) -> None:
        principal, now_ms = caller.principal, now.mono_ms
        self._keeper.audit.tell(event, principal, self._peer, now_ms, **asked(request), **fields)


class _Judging:
    """A request that is judged a few names at a time.

    Attributes:
        version: Of the rules.
        verdict: Once all are judged.
    """

    def __init__(self, request: m.Request, version: int, steps: Steps) -> None:
        self.request = request
        self.version = version
        self.verdict: Verdict | None = None
        self._steps = steps

    def go_on(self, is_over: Callable[[], bool]) -> bool:
        """Judge some more, until *is_over*; say whether all are judged."""
        try:
            next(self._steps)
            while not is_over():
                next(self._steps)
        except StopIteration as end:
            self.verdict = end.value
            return True
        return False


class Narrowed(Call, eq=False):
    """What is allowed of a request; the answer to it becomes that to the whole one."""

    is_narrowed: ClassVar[bool] = True
    whole: Call
    complete: Callable[[Any], m.Response]
    refused: int = 0  # The `Verdict.error`.

    @property
    def asker(self) -> Asker:
        """Who asks."""
        return self.whole.asker

    def prepare(self, answer: m.Response, leader_epoch: int, error: int | None = None) -> Any:
        """Return the whole answer packed."""
        del error  # Of a part.
        whole = self.complete(answer)
        return self.whole.prepare(whole, leader_epoch, first_error(whole) or self.refused)

    def renew(self, prepared: Any, leader_epoch: int) -> Any:
        """Return it as of another epoch."""
        return self.whole.renew(prepared, leader_epoch)

    def send(self, prepared: Any) -> None:
        """Send it."""
        self.whole.send(prepared)

    def attempt(self, decide: Callable[[], object]) -> None:
        """Call *decide*, unless nobody waits any more."""
        self.whole.attempt(decide)

    def hold_next(self) -> None:
        """Let the client's next requests wait."""
        self.whole.hold_next()

    def failed(self, exc: Exception) -> None:
        """Answer so."""
        self.whole.failed(exc)


def _is_anothers(group: Group, member_id: str, instance_id: str | None, caller: Caller) -> bool:
    """Say whether a member with either id, or the id that was given out, is another principal's."""
    named = group.members.get(member_id) or group.pending.get(member_id)
    if named is not None and caller.is_anothers(named.principal):
        return True
    holder = None if instance_id is None else group.members.get(group.static.get(instance_id, ""))
    return holder is not None and caller.is_anothers(holder.principal)


def _not_yours(one: m.LeavingMember) -> m.LeftMember:
    words = _no_member(one.member_id)
    return m.LeftMember(one.member_id, one.group_instance_id, _E.UNKNOWN_MEMBER_ID.value, words)


def _unknown_member(request: Any) -> m.Response:
    refused: Any = error_response(request, _E.UNKNOWN_MEMBER_ID)
    if "message" in refused.__struct_fields__:
        refused = structs.replace(refused, message=_no_member(request.member_id))
    answer: m.Response = refused
    return answer


def _no_member(member_id: str) -> str:
    return f"the group knows no member {member_id!r}"
