"""From a request to the shards that decide it, and the answers that need no shard.

A request of one group goes to that group's shard, unless `Dispatcher` has a method of its own for
it. The order of refusals is Kafka's: group id syntax, session timeout and what the request says
about itself are answered even while loading, then the shard's status, then whatever the group
says. What is checked here the core doesn't check again.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from msgspec import Raw, structs

from coordinator.config import Settings, settings_in_force
from coordinator.group.core import Caller, Now
from coordinator.group.group import Group
from coordinator.group.shard import GroupShard
from coordinator.names import shortened
from coordinator.runtime.calls import Call, Gather, Token, gather_lists
from coordinator.runtime.coordination import Coordination, NotLed
from coordinator.runtime.node import Node
from coordinator.runtime.shard import ShardRunner, Status
from coordinator.server.audit import TAKES_AWAY, Audit
from coordinator.server.portions import Portion, portions, whole
from protocol import messages as m
from protocol.codec import PackedArray, encode
from protocol.errors import ErrorCode
from protocol.group_ids import NODE_PARTITION, group_id_error, offsets_partition
from protocol.messages import (
    APIS,
    describe_error,
    error_response,
    find_coordinator_error,
    first_error,
)
from protocol.version import VERSION

SERVER_SOFTWARE: Final = f"group-coordinator/{VERSION}"
# A group id is checked and hashed once; remembering that takes up to 400 bytes a group.
GROUPS_KNOWN_MAX: Final = 131_072

# What takes no more steps than this takes less than a slice.
_STEPS_AT_ONCE: Final = 100
# So does a fetch of so many offsets, of which a topic takes as long as ten.
_LOOKS_AT_ONCE: Final = 10_000
_TOPIC_LOOKS: Final = 10

# What an offset, a member or a group adds to an answer besides its names and bytes.
_ITEM_BYTES: Final = 24

_STARTING: Final = Status.STARTING
_IS_STARTING: Final = "this node starts, and has yet to find its cluster and to read what is in it"

_E = ErrorCode
_Refusal = tuple[ErrorCode, str]
_TOO_LARGE: Final = m.BareError(_E.RESPONSE_TOO_LARGE)
# An offsets partition, as a key of FindCoordinator.
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,4}")
# What a request is refused with for its content, if not with INVALID_REQUEST.
_ERROR_OF_CONTENT: Final = {m.JoinGroupRequest: _E.INVALID_SESSION_TIMEOUT}


class Dispatcher:
    """Knows which shard decides what, and how an answer over several is put together.

    Attributes:
        known_shards: Of groups that were asked for: their ids are legal.
        audit: Is told of what takes from groups and topics, also by clients without a name.
    """

    def __init__(
        self, *, node: Node, settings: Settings, coordination: Coordination, audit: Audit
    ) -> None:
        self.audit = audit
        self._node = node
        self._registry = node.registry
        self._settings = settings
        self._coordination = coordination
        self.known_shards: dict[str, ShardRunner[GroupShard]] = {}
        self._problem_of: dict[type, Callable[[Any], str | None]] = {
            api.request: api.problem for api in APIS.values() if api.problem is not None
        }
        self._problem_of[m.JoinGroupRequest] = self._session_problem
        self._partition_of: Mapping[int, Callable[[str], int | _Refusal]] = {
            m.KEY_TYPE_GROUP: self._partition_of_group,
            m.KEY_TYPE_CLUSTER: lambda _: NODE_PARTITION,
            m.KEY_TYPE_PARTITION: self._partition_of_number,
        }
        self._special: Mapping[type, Callable[[Call, Any, Now], None]] = {
            m.ApiVersionsRequest: self._api_versions,
            m.SaslHandshakeRequest: self._no_log_in,
            m.SaslAuthenticateRequest: self._no_log_in,
            m.FindCoordinatorRequest: self._find_coordinator,
            m.OffsetFetchRequest: self._offset_fetch,
            m.JoinGroupRequest: self._join_group,
            m.OffsetDeleteRequest: self._decide_for_group,
            m.LeaveGroupRequest: self._decide_for_group,
            m.DescribeGroupsRequest: self._describe_groups,
            m.ListGroupsRequest: self._list_groups,
            m.SummarizeGroupsRequest: self._summarize_groups,
            m.DeleteGroupsRequest: self._delete_groups,
            m.DescribeLagRequest: self._look_into_group,
            m.DescribeRebalancesRequest: self._look_into_group,
            m.RegisterTopicsRequest: self._decide_for_node,
            m.DeleteTopicsRequest: self._decide_for_node,
            m.ReportEndOffsetsRequest: self._decide_for_node,
            m.DescribeTopicsRequest: self._describe_topics,
            m.CreateAclsRequest: self._decide_for_node,
            m.DeleteAclsRequest: self._decide_for_node,
            m.AlterUserScramCredentialsRequest: self._decide_for_node,
            m.AlterClientQuotasRequest: self._decide_for_node,
            m.DescribeAclsRequest: self._look_into_node,
            m.DescribeUserScramCredentialsRequest: self._look_into_node,
            m.DescribeClientQuotasRequest: self._look_into_node,
            m.ScanOffsetsRequest: self._scan_offsets,
            m.ReadOffsetChangesRequest: self._read_changes,
            m.CompactLogRequest: self._compact_log,
            m.DescribeClusterRequest: self._describe_cluster,
            m.DescribeNodeRequest: self._describe_node,
            m.DescribeSettingsRequest: self._describe_settings,
            m.ReloadPartitionRequest: self._reload_partition,
            m.DescribeJournalsRequest: self._describe_journals,
            m.MoveJournalRequest: self._move_journal,
        }

    @property
    def is_starting(self) -> bool:
        """Whether nothing is known yet of the cluster's topics, users and rules."""
        return self._registry.status is _STARTING

    @property
    def has_cluster(self) -> bool:
        """Whether it is known which cluster this is."""
        return bool(self._node.cluster_id)

    def dispatch(self, call: Call, caller: Caller, now: Now) -> None:
        """Decide *call*; its answer may come at once or later."""
        request: Any = call.request
        if self._registry.status is _STARTING and type(request) is not m.ApiVersionsRequest:
            reason = self._coordination.why_unled(NODE_PARTITION)
            _refuse(call, _E.COORDINATOR_NOT_AVAILABLE, _because(_IS_STARTING, reason))
            return
        if type(request) in TAKES_AWAY and not self._drains_nobody_else(request, caller):
            self.audit.used(request, caller, now)
        special = self._special.get(type(request))
        if special is not None:
            special(call, request, now)
            return
        shard = self._shard_for(call, request)
        if shard is not None:
            shard.handle(request, call, caller, now)

    def _drains_nobody_else(self, request: Any, caller: Caller) -> bool:
        """Say whether *request* drains, and no members but the caller's own.

        Of members without a principal nobody knows that; but one that was drained already is
        asked about again and again until it has nothing left.
        """
        if type(request) is not m.DrainMemberRequest:
            return False
        group = self.group(request.group_id)
        members = () if group is None else group.members.values()
        return caller.only_own or all(
            one.drained if one.principal is None else one.principal == caller.principal
            for one in members
            if one.client_id == request.client_id
        )

    def _join_group(self, call: Call, request: m.JoinGroupRequest, now: Now) -> None:
        shard = self._shard_for(call, request)
        if shard is None:
            return
        asker = call.asker
        if request.topic_pattern is None:
            shard.handle(request, call, asker.caller, now)
            return

        def decide() -> None:
            """Do so by the rules, and the members, of when the pattern is matched."""
            now, verdict = self._node.now(), asker.judge(request)
            if verdict is None:
                shard.handle(request, call, asker.caller, now)
            else:
                self.answer_about(request.group_id, call, verdict.complete(None), now)

        self._node.patterns.submit(call, request.topic_pattern, decide)

    def _shard_for(self, call: Call, request: Any) -> ShardRunner[GroupShard] | None:
        """Return the shard of the one group that *call* names, or None if it was refused."""
        group_id = request.group_id
        shard = self.known_shards.get(group_id) or self._shard_of(group_id)
        if shard is None:
            reason = group_id_error(group_id)
            _refuse(call, _E.INVALID_GROUP_ID, f"the group id is not legal: {reason}")
            return None
        problem_of = self._problem_of.get(type(request))
        problem = None if problem_of is None else problem_of(request)
        if problem is None:
            return shard
        _refuse(call, _ERROR_OF_CONTENT.get(type(request), _E.INVALID_REQUEST), problem)
        return None

    def _session_problem(self, request: m.JoinGroupRequest) -> str | None:
        low = self._settings.group_min_session_timeout_ms
        high = self._settings.group_max_session_timeout_ms
        if low <= request.session_timeout_ms <= high:
            return None
        return (
            f"a session timeout of {request.session_timeout_ms} ms is not between "
            f"{low} (group.min.session.timeout.ms) and {high} (group.max.session.timeout.ms)"
        )

    def _content_is_sound(self, call: Call, request: Any) -> bool:
        problem_of = self._problem_of.get(type(request))
        problem = None if problem_of is None else problem_of(request)
        if problem is not None:
            _refuse(call, _E.INVALID_REQUEST, problem)
        return problem is None

    def _shard_of(self, group_id: str) -> ShardRunner[GroupShard] | None:
        """Return the shard of a group that isn't known yet, None if its id isn't legal."""
        if group_id_error(group_id) is not None:
            return None
        if len(self.known_shards) >= GROUPS_KNOWN_MAX:
            self.known_shards.clear()
        shard = self.known_shards[group_id] = self._node.shard_of(group_id)
        return shard

    def withdraw(self, call: Call, now: Now) -> None:
        """The client behind a parked *call* is gone."""
        self._node.shard_of(call.request.group_id).withdraw(call, now)  # type: ignore[attr-defined]  # only joins and syncs park

    def group(self, group_id: str) -> Group | None:
        """Return a group that is served here, to look at only."""
        shard = self.known_shards.get(group_id) or self._shard_of(group_id)
        return None if shard is None else shard.core.groups.get(group_id)

    def answer_about(self, group_id: str, call: Call, answer: m.Response, now: Now) -> None:
        """Give an answer about a group that is there, when what the group says could be given."""
        self._node.shard_of(group_id).read(group_id, call, lambda: answer, now)

    # --- answers that need no shard -----------------------------------------------------

    def _api_versions(self, call: Call, _request: m.ApiVersionsRequest, _now: Now) -> None:
        apis = tuple(
            m.ApiVersionRange(key, APIS[key].min_version, APIS[key].max_version)
            for key in sorted(APIS)
        )
        response = m.ApiVersionsResponse(
            _E.NONE,
            apis,
            SERVER_SOFTWARE,
            self._node.cluster_id,
            self._settings.node_id,
            self._settings.socket_request_max_bytes,
        )
        call.resolve(response, -1)

    def _no_log_in(self, call: Call, _request: m.Request, _now: Now) -> None:
        call.fail(_E.ILLEGAL_SASL_STATE, -1)

    def _find_coordinator(self, call: Call, request: m.FindCoordinatorRequest, _now: Now) -> None:
        keys = request.group_ids
        if request.key_type == m.KEY_TYPE_PARTITION and not keys:
            keys = tuple(map(str, range(self._node.num_partitions)))
        self._in_slices(call, self._locating(call, request.key_type, keys), len(keys))

    def _locating(self, call: Call, key_type: int, keys: Iterable[str]) -> Iterator[None]:
        listener = call.asker.listener
        found = []
        for key in keys:
            found.append(self._locate(key_type, key, listener))
            yield
        epoch = found[0].leader_epoch if len(found) == 1 else -1
        call.resolve(m.FindCoordinatorResponse(tuple(found)), epoch)

    def _locate(self, key_type: int, key: str, listener: int) -> m.CoordinatorOfGroup:
        partition_of = self._partition_of.get(key_type)
        if partition_of is None:
            message = f"key type {key_type} is not known; 0 is a group"
            return find_coordinator_error(key, _E.INVALID_REQUEST, message)
        partition = partition_of(key)
        if isinstance(partition, tuple):
            return find_coordinator_error(key, *partition)
        leader = self._coordination.leader_of(partition)
        if leader is None:
            is_node = partition == NODE_PARTITION
            what = (
                "the journal of topics and users" if is_node else f"offsets partition {partition}"
            )
            message = _because(f"{what} has no leader", self._coordination.why_unled(partition))
            return find_coordinator_error(key, _E.COORDINATOR_NOT_AVAILABLE, message)
        node_id, endpoints, epoch = leader
        # By another listener he may not get in, or not by what he knows.
        if listener >= len(endpoints):
            message = f"node {node_id}, which leads it, has no listener like this one"
            return find_coordinator_error(key, _E.COORDINATOR_NOT_AVAILABLE, message)
        host, port = endpoints[listener]
        return m.CoordinatorOfGroup(key, _E.NONE, None, node_id, host, port, partition, epoch)

    def _partition_of_group(self, group_id: str) -> int | _Refusal:
        problem = group_id_error(group_id)
        if problem is not None:
            return _E.INVALID_GROUP_ID, problem
        return offsets_partition(group_id, self._node.num_partitions)

    def _partition_of_number(self, number: str) -> int | _Refusal:
        count = self._node.num_partitions
        if _NUMBER.fullmatch(number) and int(number) < count:
            return int(number)
        return _E.INVALID_REQUEST, f"there is no offsets partition {shortened(number)} of {count}"

    def _describe_cluster(self, call: Call, _request: m.DescribeClusterRequest, _now: Now) -> None:
        listener = call.asker.listener
        nodes = tuple(
            m.ClusterNode(node.node_id, *node.endpoints[listener], node.is_ready)
            for node in self._coordination.nodes()
            if listener < len(node.endpoints)
        )
        call.resolve(m.DescribeClusterResponse(_E.NONE, self._node.cluster_id, nodes), -1)

    def _describe_node(self, call: Call, _request: m.DescribeNodeRequest, _now: Now) -> None:
        call.resolve(self._node.describe(self._settings.node_id), -1)

    def _describe_settings(
        self, call: Call, _request: m.DescribeSettingsRequest, _now: Now
    ) -> None:
        found = tuple(m.NodeSetting(*setting) for setting in settings_in_force(self._settings))
        call.resolve(m.DescribeSettingsResponse(_E.NONE, found), -1)

    def _describe_journals(
        self, call: Call, _request: m.DescribeJournalsRequest, _now: Now
    ) -> None:
        found = self._coordination.describe()
        if found is None:
            _refuse(call, _E.INVALID_REQUEST, "this node is in no cluster: it has a folder")
        else:
            call.resolve(found, -1)

    def _move_journal(self, call: Call, request: m.MoveJournalRequest, _now: Now) -> None:
        journal, to = request.journal, request.node_id

        def done(is_led: bool) -> None:
            if is_led:
                call.resolve(m.MoveJournalResponse(_E.NONE, None), -1)
            else:
                problem = f"journal {journal} did not go to node {to}"
                _refuse(call, _E.COORDINATOR_NOT_AVAILABLE, problem)

        try:
            self._coordination.move(journal, to, done)
        except NotLed as exc:
            _refuse(call, _E.NOT_COORDINATOR, str(exc))
        except ValueError as exc:
            _refuse(call, _E.INVALID_REQUEST, str(exc))

    # --- answers over several groups ----------------------------------------------------

    def _offset_fetch(self, call: Call, request: m.OffsetFetchRequest, now: Now) -> None:
        limit_bytes = self._settings.response_max_bytes
        if len(request.groups) == 1:  # Nearly every fetch: nothing to gather.
            (fetch,) = request.groups
            shard = self.known_shards.get(fetch.group_id) or self._shard_of(fetch.group_id)
            if shard is None:
                call.fail(_E.INVALID_GROUP_ID, -1)
            elif fetch.topics is None or _is_long(fetch.topics):
                looking = _fetching(call, shard, fetch, limit_bytes)
                self._look_in_slices(call, shard, fetch.group_id, _whole_group(looking))
            elif not shard.refuses(call):
                sees_named = call.asker.sees_topic if call.is_narrowed else None
                offsets = shard.core.fetch_offsets(fetch, sees_named, limit_bytes)
                if offsets is None:
                    shard.tell(fetch.group_id, call, _TOO_LARGE, now)
                else:
                    answer = m.OffsetFetchResponse((offsets,))
                    shard.tell(fetch.group_id, call, answer, now, error=0)
            return
        gather = Gather(
            lambda shares, epoch: call.resolve(m.OffsetFetchResponse(tuple(shares)), epoch)
        )
        budget = Budget(limit_bytes)
        fetches = (self._fetch_group(call, fetch, gather, budget) for fetch in request.groups)
        self._node.slices.submit(call, self._one_by_one(call, fetches, gather, budget))

    def _one_by_one(
        self,
        call: Call,
        shares: Iterable[Iterator[None]],
        gather: Gather,
        budget: "Budget",
    ) -> Iterator[None]:
        """Ask for all *shares* of the answer, and pause after each."""
        for share in shares:
            yield from share
            if budget.is_spent:
                break
            yield
        self._seal(call, gather, budget)

    def _in_slices(self, call: Call, steps: Iterator[None], count: int) -> bool:
        """Take all *steps*, at once if these are few; say whether that is done already.

        A short request doesn't wait in line.
        """
        if count > _STEPS_AT_ONCE:
            return self._node.slices.submit(call, steps)
        for _ in steps:
            pass
        return True

    def _look_in_slices(
        self,
        call: Call,
        shard: ShardRunner[GroupShard],
        group_id: str,
        looking: Generator[None, None, Any],
    ) -> None:
        self._node.slices.submit(
            call, shard.read_in_slices(group_id, call, looking, self._node.now)
        )

    def _seal(self, call: Call, gather: Gather, budget: "Budget") -> None:
        """Answer with the shares, or with 1006 if they are too many; then they are dropped."""
        if budget.is_spent:
            call.resolve(_TOO_LARGE, -1)
        else:
            gather.seal()

    def _fetch_group(
        self, call: Call, fetch: m.GroupFetch, gather: Gather, budget: "Budget"
    ) -> Iterator[None]:
        group_id = fetch.group_id
        part = gather.part(lambda error: m.GroupOffsets(group_id, error, ()))
        if not self._group_is_legal(group_id, part):
            return
        shard = self._node.shard_of(group_id)

        def looking() -> Generator[None, None, m.GroupOffsets | Raw | None]:
            found = yield from _fetching(call, shard, fetch, budget.left_bytes)
            return budget.for_offsets(found)

        yield from shard.read_in_slices(group_id, part, looking(), self._node.now)

    def _group_is_legal(self, group_id: str, part: Token) -> bool:
        if group_id_error(group_id) is None:
            return True
        part.fail(_E.INVALID_GROUP_ID, -1)
        return False

    def _describe_groups(self, call: Call, request: m.DescribeGroupsRequest, _now: Now) -> None:
        gather = Gather(lambda shares, e: call.resolve(m.DescribeGroupsResponse(tuple(shares)), e))
        budget = Budget(self._settings.response_max_bytes)
        names = request.group_ids
        groups = (self._describe_group(call, group_id, gather, budget) for group_id in names)
        self._node.slices.submit(call, self._one_by_one(call, groups, gather, budget))

    def _describe_group(
        self, call: Call, group_id: str, gather: Gather, budget: "Budget"
    ) -> Iterator[None]:
        part = gather.part(lambda error: describe_error(group_id, error, None, state=""))
        if not self._group_is_legal(group_id, part):
            return
        shard = self._node.shard_of(group_id)

        def looking() -> Generator[None, None, m.DescribedGroup]:
            yield
            error = _refusal(call, m.DescribeGroupsRequest((group_id,)))
            if error:
                return describe_error(group_id, error, None, state="")
            return budget.for_members(shard.core.describe_group(group_id))

        yield from shard.read_in_slices(group_id, part, looking(), self._node.now)

    def _delete_groups(self, call: Call, request: m.DeleteGroupsRequest, _now: Now) -> None:
        group_ids = tuple(dict.fromkeys(request.group_ids))

        def answer(errors: list[int], epoch: int) -> None:
            pairs = zip(group_ids, errors, strict=True)
            results = tuple(m.DeletedGroup(group_id, error) for group_id, error in pairs)
            call.resolve(m.DeleteGroupsResponse(results), epoch)

        def deleting() -> Iterator[None]:
            gather = Gather(answer)
            for group_id in group_ids:
                part = gather.part(lambda error: error)
                error = _refusal(call, m.DeleteGroupsRequest((group_id,)))
                if error:
                    part.fail(error, -1)
                elif self._group_is_legal(group_id, part):
                    now, shard = self._node.now(), self._node.shard_of(group_id)
                    shard.decide(partial(shard.core.delete_group, group_id, now), part, now)
                yield
            gather.seal()

        if not self._in_slices(call, deleting(), len(group_ids)):
            call.hold_next()

    def _decide_for_group(self, call: Call, request: m.Request, now: Now) -> None:
        """Have the group's shard decide about many things, each for itself.

        Behind a long one all later requests of its connection wait, whichever group they name.
        """
        shard = self._shard_for(call, request)
        if shard is None:
            return
        caller = call.asker.caller
        if not self._decide_in_portions(
            call, call, lambda asked, token, at: shard.handle(asked, token, caller, at), now
        ):
            call.hold_next()

    def _decide_in_portions(
        self,
        call: Call,
        token: Token,
        decide: Callable[[m.Request, Token, Now], None],
        now: Now,
        *,
        waits: bool = False,
    ) -> bool:
        """Have *decide* answer *call* through *token*, a portion at a time if it is long.

        Returns whether the whole request is decided already. If it *waits*, a short one gets into
        the line, too.
        """
        request = call.request
        cut = portions(request)
        first = next(cut)
        second = next(cut, None)
        if second is None and not waits:
            decide(request, token, now)
            return True
        begun = (first,) if second is None else (first, second)
        taken: list[Portion] = []

        def answer(answers: list[Any], epoch: int) -> None:
            token.send(token.prepare(whole(request, zip(taken, answers, strict=True)), epoch))

        def deciding() -> Iterator[None]:
            gather = Gather(answer)
            for portion in chain(begun, cut):
                taken.append(portion)
                part = gather.part(lambda error: error)
                verdict = call.asker.judge(portion.request)
                if verdict is None:
                    decide(portion.request, part, self._node.now())
                elif verdict.request is None:
                    part.send((verdict.complete(None), -1))
                else:
                    rest = _NarrowedPart(part, verdict.complete)
                    decide(verdict.request, rest, self._node.now())
                yield
            gather.seal()

        return self._node.slices.submit(call, deciding())

    def _list_groups(self, call: Call, request: m.ListGroupsRequest, _now: Now) -> None:
        shards = self._shards_asked_for(call, request.offsets_partitions)
        if shards is not None:
            self._node.slices.submit(call, self._listing(call, request, shards))

    def _shards_asked_for(
        self, call: Call, partitions: Sequence[int] | None
    ) -> Sequence[ShardRunner[GroupShard]] | None:
        """Return those of *partitions*, or all that are led here; None if *call* was refused."""
        shards = self._node.shards
        if partitions is None:
            return [one for one in shards if one.is_led or one.status is Status.LOADING]
        if any(number >= len(shards) for number in partitions):
            call.fail(_E.INVALID_REQUEST, -1)
            return None
        return [shards[number] for number in sorted(set(partitions))]

    def _listing(
        self, call: Call, request: m.ListGroupsRequest, shards: Iterable[ShardRunner[GroupShard]]
    ) -> Iterator[None]:
        packed = PackedArray()
        limit_bytes = self._settings.response_max_bytes
        sees_group = call.asker.sees_group

        def look(shard: ShardRunner[GroupShard]) -> Generator[None, None, tuple[()]]:
            for groups in shard.core.list_groups(request):
                seen = tuple([g for g in groups or () if sees_group(g.group_id)])
                if seen:
                    packed.extend(seen)
                yield
                if packed.size_bytes > limit_bytes:
                    break
            return ()

        gather = gather_lists(call, lambda _: m.ListGroupsResponse(_E.NONE, packed.whole()))
        for shard in shards:
            part = gather.part(lambda error: error)
            yield from shard.read_in_slices(None, part, look(shard), self._node.now)
            if packed.size_bytes > limit_bytes:
                call.resolve(_TOO_LARGE, -1)
                return
        gather.seal()

    def _summarize_groups(self, call: Call, request: m.SummarizeGroupsRequest, _now: Now) -> None:
        if not self._content_is_sound(call, request):
            return
        pattern = request.pattern
        topics = self._node.registry.core.registry
        problem = None if pattern is None else topics.pattern_problem(pattern)
        if problem is not None:
            _refuse(call, _E.INVALID_REGULAR_EXPRESSION, f"pattern {pattern!r}: {problem}")
        elif (shards := self._shards_asked_for(call, request.offsets_partitions)) is not None:
            self._node.group_lags.submit(call, shards)

    def _look_into_group(
        self,
        call: Call,
        request: m.DescribeLagRequest | m.DescribeRebalancesRequest,
        now: Now,
    ) -> None:
        shard = self._shard_for(call, request)
        if shard is None:
            return
        limit_bytes = self._settings.response_max_bytes
        if isinstance(request, m.DescribeLagRequest):
            sees_topic = call.asker.sees_topic
            looking = shard.core.describe_lag(request.group_id, sees_topic, limit_bytes)
            allowed = _if_allowed(call, request, _or_too_large(looking))
            self._look_in_slices(call, shard, request.group_id, allowed)
        else:
            look = fitting(partial(shard.core.describe_rebalances, request), limit_bytes)
            shard.read(request.group_id, call, look, now)

    # --- topics -------------------------------------------------------------------------

    def _decide_for_node(self, call: Call, request: m.Request, now: Now) -> None:
        """Have the node's shard decide about many things, each for itself.

        Behind a long one later changes by the same client wait in line. Its members and commits
        don't: a driver reports the ends of a thousand partitions every second.
        """
        if self._content_is_sound(call, request):
            caller = call.asker.caller
            self._decide_in_portions(
                call,
                NoGroup(call),
                lambda asked, token, at: self._node.decide(asked, token, caller, at),
                now,
                waits=self._node.slices.has(call.asker),
            )

    def _describe_topics(self, call: Call, request: m.DescribeTopicsRequest, _now: Now) -> None:
        if not self._content_is_sound(call, request):
            return
        registry = self._node.registry
        limit_bytes = self._settings.response_max_bytes
        looking = registry.core.describe(request, call.asker.sees_topic, limit_bytes)
        steps = registry.read_in_slices(None, NoGroup(call), _or_too_large(looking), self._node.now)
        length = registry.core.length(request)
        if request.pattern is None or registry.refusal() is not None:
            self._in_slices(call, steps, length)
        else:
            self._node.patterns.submit(
                call, request.pattern, lambda: self._in_slices(call, steps, length)
            )

    def _look_into_node(self, call: Call, request: Any, _now: Now) -> None:
        """Show rules, users or quotas."""
        if self._content_is_sound(call, request):
            registry = self._node.registry
            core = registry.core
            describe: Mapping[type, Callable[[Any, int], Generator[None, None, Any]]] = {
                m.DescribeAclsRequest: core.rules.describe,
                m.DescribeUserScramCredentialsRequest: core.users.describe,
                m.DescribeClientQuotasRequest: core.quotas.describe,
            }
            looking = describe[type(request)](request, self._settings.response_max_bytes)
            allowed = _if_allowed(call, request, _or_too_large(looking))
            steps = registry.read_in_slices(None, NoGroup(call), allowed, self._node.now)
            self._node.slices.submit(call, steps)

    # --- whole offsets partitions -------------------------------------------------------

    def _partition_is_here(self, call: Call) -> bool:
        request: Any = call.request
        partition, count = request.offsets_partition, self._node.num_partitions
        if partition >= count:
            message = f"there is no offsets partition {partition} of {count}"
            _refuse(call, _E.INVALID_REQUEST, message)
            return False
        return self._content_is_sound(call, request)

    def _scan_offsets(self, call: Call, request: m.ScanOffsetsRequest, _now: Now) -> None:
        if not request.in_columns:
            call.resolve(m.BareError(_E.UNSUPPORTED_VERSION), -1)
        elif self._partition_is_here(call):
            shard = self._node.shards[request.offsets_partition]
            looking = shard.core.scan(request, lambda: shard.log.end_offset(shard.partition))
            steps = shard.read_in_slices(None, NoGroup(call), looking, self._node.now)
            self._node.slices.submit(call, steps)

    def _read_changes(self, call: Call, _request: m.Request, _now: Now) -> None:
        if self._partition_is_here(call):
            self._node.read_changes(call)

    def _compact_log(self, call: Call, _request: m.Request, _now: Now) -> None:
        self._node.compact(call)

    def _reload_partition(self, call: Call, _request: m.Request, _now: Now) -> None:
        if self._partition_is_here(call):
            self._node.reloader.submit(call)


class Budget:
    """The room that an answer has left, counted while it is made.

    A small request can ask for the same large group ten thousand times; the limit of a
    response must hold before the answer is in memory, not after it is packed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.left_bytes = limit_bytes

    @property
    def is_spent(self) -> bool:
        """Whether the answer would be too large."""
        return self.left_bytes < 0

    def for_offsets(self, offsets: m.GroupOffsets | None) -> m.GroupOffsets | Raw | None:
        """Count *offsets* and return them packed; None: they were too large by themselves.

        Offsets with an error are not packed, as errors of answers are counted later.
        """
        if offsets is None:
            self.left_bytes = -1
            return None
        packed = encode(offsets)
        self.left_bytes -= len(packed)
        return offsets if offsets.error else Raw(packed)

    def for_members(self, group: m.DescribedGroup) -> m.DescribedGroup:
        """Count the members of *group* and return it."""
        for member in group.members:
            names_bytes = len(member.member_id) + len(member.client_id) + len(member.client_host)
            bytes_ = len(member.metadata) + len(member.assignment)
            self.left_bytes -= _ITEM_BYTES + names_bytes + bytes_
        self.left_bytes -= _ITEM_BYTES + len(group.group_id)
        return group


class _NarrowedPart:
    """The token of what is allowed of a portion."""

    def __init__(self, part: Token, complete: Callable[[Any], Any]) -> None:
        self._part = part
        self._complete = complete
        self.renew, self.send, self.fail = part.renew, part.send, part.fail

    def prepare(self, answer: Any, leader_epoch: int, _error: int | None = None) -> Any:
        """Return the share with the refusals."""
        return self._part.prepare(self._complete(answer), leader_epoch)


class NoGroup:
    """The token of a call that names no group: its header carries no leader epoch."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def prepare(self, answer: m.Response, _leader_epoch: int, error: int | None = None) -> Any:
        """Return the answer packed."""
        return self._call.prepare(answer, -1, error)

    def renew(self, prepared: Any, _leader_epoch: int) -> Any:
        """Return the answer as it is."""
        return prepared

    def send(self, prepared: Any) -> None:
        """Send the answer."""
        self._call.send(prepared)

    def fail(self, error: int, _leader_epoch: int) -> None:
        """Send the failure."""
        self._call.fail(error, -1)


def _is_long(topics: Sequence[m.TopicPartitions]) -> bool:
    """Say whether to look up all of them takes longer than a slice; those of one topic never do."""
    if len(topics) == 1:
        return False
    looks = sum([_TOPIC_LOOKS + len(named.partitions) for named in topics])
    return looks > _LOOKS_AT_ONCE


def _refusal(call: Call, request: m.Request) -> int:
    """Return why a part of what is asked is refused, by the rules of now; 0: it isn't."""
    verdict = call.asker.judge(request)
    return _E.NONE if verdict is None else first_error(verdict.complete(None))


def _fetching(
    call: Call, shard: ShardRunner[GroupShard], fetch: m.GroupFetch, limit_bytes: int
) -> Generator[None, None, m.GroupOffsets | None]:
    """Look up the offsets of a group, by the rules of when its turn comes."""
    group_id = fetch.group_id
    # Of its topics each is looked at when its own turn comes.
    error = _refusal(
        call, m.OffsetFetchRequest((m.GroupFetch(group_id, ()),), require_stable=False)
    )
    if error:
        return m.GroupOffsets(group_id, error, ())
    return (yield from shard.core.fetch_in_slices(fetch, call.asker.sees_topic, limit_bytes))


def _if_allowed(
    call: Call, request: m.Request, looking: Generator[None, None, Any]
) -> Generator[None, None, Any]:
    verdict = call.asker.judge(request)
    return (yield from looking) if verdict is None else verdict.complete(None)


def _or_too_large(looking: Generator[None, None, Any]) -> Generator[None, None, Any]:
    seen = yield from looking
    return _TOO_LARGE if seen is None else seen


def _whole_group(looking: Generator[None, None, Any]) -> Generator[None, None, Any]:
    offsets = yield from looking
    if offsets is None:
        return _TOO_LARGE
    return m.OffsetFetchResponse((offsets,))


def fitting(look: Callable[[], Any], limit_bytes: int) -> Callable[[], Any]:
    """Return *look*, which says RESPONSE_TOO_LARGE if what it sees takes more than the limit."""

    def look_and_count() -> Any:
        answer = look()
        if _least_bytes(answer, limit_bytes) > limit_bytes:
            return _TOO_LARGE
        return answer

    return look_and_count


def _least_bytes(value: Any, enough_bytes: int) -> int:
    """Return how many bytes *value* takes at least; it stops counting beyond *enough_bytes*."""
    if isinstance(value, str | bytes):
        return 1 + len(value)
    total = 1
    if isinstance(value, tuple | m.Message):
        for item in value if isinstance(value, tuple) else structs.astuple(value):
            total += _least_bytes(item, enough_bytes)
            if total > enough_bytes:
                break
    return total


def _because(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what


def _refuse(call: Call, error: ErrorCode, message: str) -> None:
    """Answer *call* with *error*, in words where the answer's shape has room for them."""
    response: Any = error_response(call.request, error)
    if "message" in response.__struct_fields__:
        response = structs.replace(response, message=message)
    elif isinstance(response, m.FindCoordinatorResponse):
        found = [structs.replace(one, message=message) for one in response.coordinators]
        response = m.FindCoordinatorResponse(tuple(found))
    call.resolve(response, -1)
