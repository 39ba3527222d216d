"""From a request to the shards that decide it, and the answers that need no shard.

The order of the gates is Kafka's: group id syntax and session timeout are answered even while
loading, then the shard's status, then whatever the group says.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from coordinator.config import Settings
from coordinator.group import Caller, Now
from coordinator.runtime.calls import Call, Gather, Token
from coordinator.runtime.coordination import Coordination
from coordinator.runtime.node import Node
from coordinator.runtime.shard import ShardRunner, Status
from protocol import messages as m
from protocol.apis import APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.failures import content_error, describe_error, find_coordinator_error
from protocol.groups import group_id_error, offsets_partition

SERVER_SOFTWARE: Final = "group-coordinator/0.1.0"
# Known to the protocol, not served by this release.
UNSERVED: Final = frozenset({ApiKey.OFFSET_DELETE})
GROUP_KEY_TYPE: Final = 0

_E = ErrorCode
# What an offset, a member or a group adds to an answer besides its names and bytes.
_ITEM_BYTES: Final = 24


class Budget:
    """The room that an answer has left, counted while it is made.

    A small request can ask for the same large group ten thousand times; the limit of a
    response must hold before the answer is in memory, not after it is packed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes

    @property
    def is_spent(self) -> bool:
        """Whether the answer would be too large."""
        return self._left_bytes < 0

    def for_offsets(self, offsets: m.GroupOffsets) -> m.GroupOffsets:
        """Count *offsets* and return them."""
        for _, partitions in offsets.topics:
            metadata_bytes = sum([len(partition.metadata) for partition in partitions])
            self._left_bytes -= metadata_bytes + _ITEM_BYTES * (1 + len(partitions))
        return offsets

    def for_members(self, group: m.DescribedGroup) -> m.DescribedGroup:
        """Count the members of *group* and return it."""
        for member in group.members:
            names_bytes = len(member.member_id) + len(member.client_id) + len(member.client_host)
            bytes_ = len(member.metadata) + len(member.assignment)
            self._left_bytes -= _ITEM_BYTES + names_bytes + bytes_
        self._left_bytes -= _ITEM_BYTES + len(group.group_id)
        return group

    def for_groups(self, groups: tuple[m.ListedGroup, ...]) -> tuple[m.ListedGroup, ...]:
        """Count *groups* and return them."""
        self._left_bytes -= sum([_ITEM_BYTES + len(group.group_id) for group in groups])
        return groups


class WholeFetch:
    """The token of an OffsetFetch for one group."""

    __slots__ = ("_call", "_limit_bytes")

    def __init__(self, call: Call, limit_bytes: int) -> None:
        self._call = call
        self._limit_bytes = limit_bytes

    def resolve(self, answer: m.GroupOffsets, leader_epoch: int) -> None:
        """Send the group's offsets, if they are not too many."""
        topics = answer.topics
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            self._call.resolve(m.OffsetFetchResponse((answer,)), leader_epoch)
            return
        budget = Budget(self._limit_bytes)
        budget.for_offsets(answer)
        if budget.is_spent:
            self._call.resolve(m.BareError(_E.RESPONSE_TOO_LARGE), -1)
        else:
            self._call.resolve(m.OffsetFetchResponse((answer,)), leader_epoch)

    def fail(self, error: int, leader_epoch: int) -> None:
        """Send the group with *error*."""
        self._call.fail(error, leader_epoch)


class Dispatcher:
    """Knows which shard decides what, and how an answer over several is put together."""

    def __init__(
        self, *, node: Node, settings: Settings, coordination: Coordination, cluster_id: str
    ) -> None:
        self._node = node
        self._settings = settings
        self._coordination = coordination
        self._cluster_id = cluster_id
        self._over_groups: Mapping[type, Callable[[Call, Now], None]] = {
            m.ApiVersionsRequest: self._api_versions,
            m.FindCoordinatorRequest: self._find_coordinator,
            m.OffsetFetchRequest: self._offset_fetch,
            m.DescribeGroupsRequest: self._describe_groups,
            m.ListGroupsRequest: self._list_groups,
            m.DeleteGroupsRequest: self._delete_groups,
            m.OffsetDeleteRequest: self._unsupported,
        }

    def dispatch(self, call: Call, caller: Caller, now: Now) -> None:
        """Decide *call*; its answer may come at once or later."""
        request = call.request
        over_groups = self._over_groups.get(type(request))
        if over_groups is not None:
            over_groups(call, now)
            return
        error = self._refusal(request)
        if error is _E.UNSUPPORTED_VERSION:
            call.resolve(m.BareError(error), -1)
        elif error is not None:
            call.fail(error, -1)
        else:
            shard = self._node.shard_of(request.group_id)  # type: ignore[union-attr]  # the others are in the table
            if not self._coordination.is_leader(shard.partition):
                call.fail(_E.NOT_COORDINATOR, -1)
            else:
                shard.handle(request, call, caller, now)

    def withdraw(self, call: Call, now: Now) -> None:
        """The client behind a parked *call* is gone."""
        self._node.shard_of(call.request.group_id).withdraw(call, now)  # type: ignore[union-attr]  # only joins and syncs park

    def _refusal(self, request: Any) -> ErrorCode | None:
        """Return what a request of one group is refused with before its group is looked at."""
        if group_id_error(request.group_id) is not None:
            return _E.INVALID_GROUP_ID
        if names_instance(request):
            return _E.UNSUPPORTED_VERSION
        if type(request) is m.JoinGroupRequest:
            low = self._settings.group_min_session_timeout_ms
            high = self._settings.group_max_session_timeout_ms
            if not low <= request.session_timeout_ms <= high:
                return _E.INVALID_SESSION_TIMEOUT
        content = content_error(request)
        return None if content is None else content[0]

    def _unsupported(self, call: Call, _now: Now) -> None:
        call.resolve(m.BareError(_E.UNSUPPORTED_VERSION), -1)

    # --- answers that need no shard -----------------------------------------------------

    def _api_versions(self, call: Call, _now: Now) -> None:
        apis = tuple(
            m.ApiVersionRange(int(key), 0, api.max_version)
            for key, api in sorted(APIS.items())
            if key not in UNSERVED
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

    def _find_coordinator(self, call: Call, _now: Now) -> None:
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

    # --- answers over several groups ----------------------------------------------------

    def _offset_fetch(self, call: Call, now: Now) -> None:
        request = call.request
        assert type(request) is m.OffsetFetchRequest
        if len(request.groups) == 1:
            self._fetch_one(call, request.groups[0], now)
            return
        gather = Gather(lambda shares, e: call.resolve(m.OffsetFetchResponse(tuple(shares)), e))
        budget = Budget(self._settings.response_max_bytes)
        for fetch in request.groups:
            self._fetch_group(fetch, gather, budget, now)
            if budget.is_spent:
                break
        self._seal(call, gather, budget)

    def _fetch_one(self, call: Call, fetch: m.GroupFetch, now: Now) -> None:
        """Nearly every fetch: one group, nothing to gather."""
        group_id = fetch.group_id
        token = WholeFetch(call, self._settings.response_max_bytes)
        if self._group_is_legal(group_id, token):
            shard = self._node.shard_of(group_id)
            shard.read(group_id, token, partial(shard.core.fetch_offsets, fetch), now)

    def _seal(self, call: Call, gather: Gather, budget: Budget) -> None:
        """Answer with the shares, or with 1006 if they are too many; then they are dropped."""
        if budget.is_spent:
            call.resolve(m.BareError(_E.RESPONSE_TOO_LARGE), -1)
        else:
            gather.seal()

    def _fetch_group(self, fetch: m.GroupFetch, gather: Gather, budget: Budget, now: Now) -> None:
        group_id = fetch.group_id
        part = gather.part(lambda error: m.GroupOffsets(group_id, error, ()))
        if not self._group_is_legal(group_id, part):
            return
        shard = self._node.shard_of(group_id)
        look = shard.core.fetch_offsets
        shard.read(group_id, part, lambda: budget.for_offsets(look(fetch)), now)

    def _group_is_legal(self, group_id: str, part: Token) -> bool:
        if group_id_error(group_id) is None:
            return True
        part.fail(_E.INVALID_GROUP_ID, -1)
        return False

    def _describe_groups(self, call: Call, now: Now) -> None:
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

    def _delete_groups(self, call: Call, now: Now) -> None:
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
                self._node.shard_of(group_id).delete_group(group_id, part, now)
        gather.seal()

    def _list_groups(self, call: Call, now: Now) -> None:
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
        shard: ShardRunner, request: m.ListGroupsRequest, budget: Budget
    ) -> tuple[m.ListedGroup, ...]:
        return budget.for_groups(shard.core.list_groups(request))


def names_instance(request: Any) -> bool:
    """Say whether *request* names a group instance id: static membership is not served yet."""
    if type(request) is m.LeaveGroupRequest:
        return any(member.group_instance_id is not None for member in request.members)
    return getattr(request, "group_instance_id", None) is not None
