"""From a request to the shards that decide it, and the answers that need no shard.

The order of the gates is Kafka's: group id syntax and session timeout are answered even while
loading, then the shard's status, then whatever the group says.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from coordinator.config import Settings
from coordinator.group import Caller, GroupShard, Now
from coordinator.runtime.calls import Call, Gather, Token
from coordinator.runtime.coordination import Coordination
from coordinator.runtime.describe import described
from coordinator.runtime.node import Node
from coordinator.runtime.shard import ShardRunner, Status
from coordinator.server.budget import Budget, NoGroup, WholeFetch, fitting
from coordinator.server.checks import (
    Problem,
    content_problem,
    group_id_problem,
    group_problem,
    partition_problem,
    refusal,
)
from protocol import messages as m
from protocol.apis import APIS
from protocol.body import array_header, pack
from protocol.errors import ErrorCode
from protocol.failures import describe_error, find_coordinator_error
from protocol.groups import group_id_error, offsets_partition

SERVER_SOFTWARE: Final = "group-coordinator/0.1.0"
GROUP_KEY_TYPE: Final = 0
# A check and a hash take a microsecond; remembering them takes up to 400 bytes a group.
PARTITIONS_KNOWN_MAX: Final = 131_072

_E = ErrorCode


class Dispatcher:
    """Knows which shard decides what, and how an answer over several is put together."""

    def __init__(
        self, *, node: Node, settings: Settings, coordination: Coordination, cluster_id: str
    ) -> None:
        self._node = node
        self._settings = settings
        self._coordination = coordination
        self._cluster_id = cluster_id
        # Of groups that were asked for: their ids are legal, and were looked at once.
        self._partitions: dict[str, int] = {}
        self._special: Mapping[type, Callable[[Call, Caller, Now], None]] = {
            m.ApiVersionsRequest: self._api_versions,
            m.FindCoordinatorRequest: self._find_coordinator,
            m.OffsetFetchRequest: self._offset_fetch,
            m.DescribeGroupsRequest: self._describe_groups,
            m.ListGroupsRequest: self._list_groups,
            m.DeleteGroupsRequest: self._delete_groups,
            m.DescribeLagRequest: self._look_into_group,
            m.DescribeRebalancesRequest: self._look_into_group,
            m.RegisterTopicsRequest: self._decide_topics,
            m.DeleteTopicsRequest: self._decide_topics,
            m.ReportEndOffsetsRequest: self._decide_topics,
            m.DescribeTopicsRequest: self._describe_topics,
            m.ScanOffsetsRequest: self._scan_offsets,
            m.ReadOffsetChangesRequest: self._read_changes,
            m.CompactLogRequest: self._compact_log,
            m.DescribeNodeRequest: self._describe_node,
            m.ReloadPartitionRequest: self._reload_partition,
        }

    def dispatch(self, call: Call, caller: Caller, now: Now) -> None:
        """Decide *call*; its answer may come at once or later."""
        request = call.request
        special = self._special.get(type(request))
        if special is not None:
            special(call, caller, now)
            return
        shard = self._shard_for(call)
        if shard is not None:
            shard.handle(request, call, caller, now)

    def _shard_for(self, call: Call) -> ShardRunner[GroupShard] | None:
        """Return the shard of the one group that *call* names, or None if it was refused."""
        request: Any = call.request
        partition = self._partition_of(request.group_id)
        problem: Problem | None
        if partition is None:
            problem = group_id_problem(request.group_id)
        else:
            problem = group_problem(request, self._settings)
        if partition is None or problem is not None:
            assert problem is not None
            call.resolve(refusal(request, problem), -1)
            return None
        if not self._coordination.is_leader(partition):
            call.fail(_E.NOT_COORDINATOR, -1)
            return None
        return self._node.shards[partition]

    def _partition_of(self, group_id: str) -> int | None:
        """Return the offsets partition of a group, None if its id isn't legal."""
        partition = self._partitions.get(group_id)
        if partition is None:
            if group_id_error(group_id) is not None:
                return None
            if len(self._partitions) >= PARTITIONS_KNOWN_MAX:
                self._partitions.clear()
            partition = offsets_partition(group_id, self._node.num_partitions)
            self._partitions[group_id] = partition
        return partition

    def withdraw(self, call: Call, now: Now) -> None:
        """The client behind a parked *call* is gone."""
        self._node.shard_of(call.request.group_id).withdraw(call, now)  # type: ignore[union-attr]  # only joins and syncs park

    # --- answers that need no shard -----------------------------------------------------

    def _api_versions(self, call: Call, _caller: Caller, _now: Now) -> None:
        apis = tuple(
            m.ApiVersionRange(int(key), 0, api.max_version) for key, api in sorted(APIS.items())
        )
        response = m.ApiVersionsResponse(
            _E.NONE,
            apis,
            SERVER_SOFTWARE,
            self._cluster_id,
            self._settings.node_id,
            self._settings.socket_request_max_bytes,
        )
        call.resolve(response, -1)

    def _find_coordinator(self, call: Call, _caller: Caller, _now: Now) -> None:
        request = call.request
        assert type(request) is m.FindCoordinatorRequest
        found = tuple(self._locate(request.key_type, g) for g in request.group_ids)
        epoch = found[0].leader_epoch if len(found) == 1 else -1
        call.resolve(m.FindCoordinatorResponse(found), epoch)

    def _locate(self, key_type: int, group_id: str) -> m.CoordinatorOfGroup:
        if key_type != GROUP_KEY_TYPE:
            message = f"key type {key_type} is not known; 0 is a group"
            return find_coordinator_error(group_id, _E.INVALID_REQUEST, message)
        problem = group_id_error(group_id)
        if problem is not None:
            return find_coordinator_error(group_id, _E.INVALID_GROUP_ID, problem)
        partition = offsets_partition(group_id, self._node.num_partitions)
        leader = self._coordination.leader_of(partition)
        if leader is None:
            message = f"offsets partition {partition} has no leader"
            return find_coordinator_error(group_id, _E.COORDINATOR_NOT_AVAILABLE, message)
        node_id, host, port, epoch = leader
        return m.CoordinatorOfGroup(group_id, _E.NONE, None, node_id, host, port, partition, epoch)

    def _describe_node(self, call: Call, _caller: Caller, _now: Now) -> None:
        call.resolve(described(self._node, self._settings.node_id), -1)

    # --- answers over several groups ----------------------------------------------------

    def _offset_fetch(self, call: Call, _caller: Caller, now: Now) -> None:
        request = call.request
        assert type(request) is m.OffsetFetchRequest
        if len(request.groups) == 1:
            self._fetch_one(call, request.groups[0], now)
            return

        def answer(shares: list[bytes], epoch: int) -> None:
            groups = array_header(len(shares)) + b"".join(shares)
            call.resolve(m.PackedResponse((groups,)), epoch)

        gather = Gather(answer)
        budget = Budget(self._settings.response_max_bytes)
        for fetch in request.groups:
            self._fetch_group(fetch, gather, budget, now)
            if budget.is_spent:
                break
        self._seal(call, gather, budget)

    def _fetch_one(self, call: Call, fetch: m.GroupFetch, now: Now) -> None:
        """Nearly every fetch: one group, nothing to gather."""
        group_id = fetch.group_id
        partition = self._partition_of(group_id)
        if partition is None:
            call.fail(_E.INVALID_GROUP_ID, -1)
            return
        shard = self._node.shards[partition]
        look = partial(shard.core.fetch_offsets, fetch, self._settings.response_max_bytes)
        shard.read(group_id, WholeFetch(call), look, now)

    def _seal(self, call: Call, gather: Gather, budget: Budget) -> None:
        """Answer with the shares, or with 1006 if they are too many; then they are dropped."""
        if budget.is_spent:
            call.resolve(m.BareError(_E.RESPONSE_TOO_LARGE), -1)
        else:
            gather.seal()

    def _fetch_group(self, fetch: m.GroupFetch, gather: Gather, budget: Budget, now: Now) -> None:
        group_id = fetch.group_id
        part = gather.part(lambda error: pack(m.GroupOffsets(group_id, error, ())))
        if not self._group_is_legal(group_id, part):
            return
        shard = self._node.shard_of(group_id)
        look = partial(shard.core.fetch_offsets, fetch, budget.left_bytes)
        shard.read(group_id, part, lambda: budget.for_offsets(look()), now)

    def _group_is_legal(self, group_id: str, part: Token) -> bool:
        if group_id_error(group_id) is None:
            return True
        part.fail(_E.INVALID_GROUP_ID, -1)
        return False

    def _describe_groups(self, call: Call, _caller: Caller, now: Now) -> None:
        request = call.request
        assert type(request) is m.DescribeGroupsRequest
        gather = Gather(lambda shares, e: call.resolve(m.DescribeGroupsResponse(tuple(shares)), e))
        budget = Budget(self._settings.response_max_bytes)
        for group_id in request.group_ids:
            self._describe_group(group_id, gather, budget, now)
            if budget.is_spent:
                break
        self._seal(call, gather, budget)

    def _describe_group(self, group_id: str, gather: Gather, budget: Budget, now: Now) -> None:
        part = gather.part(lambda error: describe_error(group_id, error, None)._replace(state=""))
        if not self._group_is_legal(group_id, part):
            return
        shard = self._node.shard_of(group_id)
        look = shard.core.describe_group
        shard.read(group_id, part, lambda: budget.for_members(look(group_id)), now)

    def _delete_groups(self, call: Call, _caller: Caller, now: Now) -> None:
        request = call.request
        assert type(request) is m.DeleteGroupsRequest
        group_ids = tuple(dict.fromkeys(request.group_ids))

        def answer(errors: list[int], epoch: int) -> None:
            pairs = zip(group_ids, errors, strict=True)
            results = tuple(m.DeletedGroup(group_id, error) for group_id, error in pairs)
            call.resolve(m.DeleteGroupsResponse(results), epoch)

        gather = Gather(answer)
        for group_id in group_ids:
            part = gather.part(lambda error: error)
            if self._group_is_legal(group_id, part):
                shard = self._node.shard_of(group_id)
                shard.decide(partial(shard.core.delete_group, group_id, now), part, now)
        gather.seal()

    def _list_groups(self, call: Call, _caller: Caller, now: Now) -> None:
        request = call.request
        assert type(request) is m.ListGroupsRequest
        if any(shard.status is Status.LOADING for shard in self._node.shards):
            call.fail(_E.COORDINATOR_LOAD_IN_PROGRESS, -1)
            return

        def answer(shares: list[tuple[m.ListedGroup, ...] | int], _epoch: int) -> None:
            failed = [share for share in shares if isinstance(share, int)]
            if failed:
                call.fail(failed[0], -1)
                return
            groups = tuple(g for share in shares if not isinstance(share, int) for g in share)
            call.resolve(m.ListGroupsResponse(_E.NONE, groups), -1)

        gather = Gather(answer)
        budget = Budget(self._settings.response_max_bytes)
        for shard in self._node.shards:
            if shard.status is Status.ACTIVE and not budget.is_spent:
                part = gather.part(lambda error: error)
                shard.read(None, part, partial(self._list_shard, shard, request, budget), now)
        self._seal(call, gather, budget)

    @staticmethod
    def _list_shard(
        shard: ShardRunner[GroupShard], request: m.ListGroupsRequest, budget: Budget
    ) -> tuple[m.ListedGroup, ...]:
        return budget.for_groups(shard.core.list_groups(request))

    def _look_into_group(self, call: Call, _caller: Caller, now: Now) -> None:
        request = call.request
        shard = self._shard_for(call)
        if shard is None:
            return
        look: Callable[[], Any]
        if type(request) is m.DescribeLagRequest:
            look = partial(shard.core.describe_lag, request.group_id)
        else:
            assert type(request) is m.DescribeRebalancesRequest
            look = partial(shard.core.describe_rebalances, request)
        look = fitting(look, self._settings.response_max_bytes)
        shard.read(request.group_id, call, look, now)

    # --- topics -------------------------------------------------------------------------

    def _decide_topics(self, call: Call, caller: Caller, now: Now) -> None:
        problem = content_problem(call.request)
        if problem is not None:
            call.resolve(refusal(call.request, problem), -1)
        else:
            self._node.decide_topics(call.request, NoGroup(call), caller, now)

    def _describe_topics(self, call: Call, _caller: Caller, now: Now) -> None:
        request = call.request
        assert type(request) is m.DescribeTopicsRequest
        problem = content_problem(request)
        if problem is not None:
            call.resolve(refusal(request, problem), -1)
            return
        self._node.registry.read(None, NoGroup(call), partial(self._topics, request), now)

    def _topics(self, request: m.DescribeTopicsRequest) -> m.Response:
        """Look at the topics; those of a list one by one, as each may be large."""
        describe = self._node.registry.core.describe
        budget = Budget(self._settings.response_max_bytes)
        if request.topics is None:
            page = describe(request)
            for topic in page.topics:
                budget.for_topic(topic)
        else:
            page = m.DescribeTopicsResponse(_E.NONE, None, (), has_more=False)
            found: list[m.DescribedTopic] = []
            for name in dict.fromkeys(request.topics):
                found += map(budget.for_topic, describe(request._replace(topics=(name,))).topics)
                if budget.is_spent:
                    break
            page = page._replace(topics=tuple(found))
        return m.BareError(_E.RESPONSE_TOO_LARGE) if budget.is_spent else page

    # --- whole offsets partitions -------------------------------------------------------

    def _partition_is_here(self, call: Call) -> bool:
        request: Any = call.request
        problem = partition_problem(request, self._node.num_partitions)
        if problem is not None:
            call.resolve(refusal(request, problem), -1)
            return False
        if not self._coordination.is_leader(request.offsets_partition):
            call.fail(_E.NOT_COORDINATOR, -1)
            return False
        return True

    def _scan_offsets(self, call: Call, _caller: Caller, now: Now) -> None:
        request = call.request
        assert type(request) is m.ScanOffsetsRequest
        if self._partition_is_here(call):
            shard = self._node.shards[request.offsets_partition]
            position = self._node.journal.end_offset(shard.partition)
            shard.read(None, NoGroup(call), partial(shard.core.scan, request, position), now)

    def _read_changes(self, call: Call, _caller: Caller, _now: Now) -> None:
        if self._partition_is_here(call):
            self._node.read_changes(call)

    # --- the log ------------------------------------------------------------------------

    def _compact_log(self, call: Call, _caller: Caller, _now: Now) -> None:
        self._node.compact(call)

    def _reload_partition(self, call: Call, _caller: Caller, _now: Now) -> None:
        if self._partition_is_here(call):
            self._node.reloader.submit(call)
