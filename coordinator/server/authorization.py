"""Who may ask what: for each request the rights that it needs, decided before it has any effect.

The matrix is Kafka's where Kafka has the request. `NEEDS` holds it; docs/security.md prints it.

An answer never tells whether something is there that its asker may not see: a group or topic that
is refused is refused alike whether it exists or not, and is not in any list. A request about
several things is answered for those that are allowed: a `Verdict` says what is left to ask, and
puts the refusals into the answer, each in its place.

A session keeps one `Access`, its principal's from its host. What that may do with a group or topic
is looked up in the rules once, and kept as a mask of operations until rules change.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import compress
from typing import Any, Final, NamedTuple

from msgspec import structs

from coordinator.group.acls import Rules
from protocol import messages as m
from protocol.acls import ANONYMOUS, CLUSTER, Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.messages import error_response

# Resources of each type that one `Access` keeps; then it begins anew.
NAMES_KEPT: Final = 10_000

_E = ErrorCode
_EVERYTHING: Final = sum(operation.bit for operation in Operation)
_REFUSALS: Final[Mapping[ResourceType, int]] = {
    ResourceType.TOPIC: _E.TOPIC_AUTHORIZATION_FAILED.value,
    ResourceType.GROUP: _E.GROUP_AUTHORIZATION_FAILED.value,
    ResourceType.CLUSTER: _E.CLUSTER_AUTHORIZATION_FAILED.value,
}
_TOPIC_REFUSED: Final = _REFUSALS[ResourceType.TOPIC]
_GROUP_REFUSED: Final = _REFUSALS[ResourceType.GROUP]
_READ: Final = Operation.READ.bit
_DESCRIBE: Final = Operation.DESCRIBE.bit


class Verdict(NamedTuple):
    """A request that is not allowed as it is.

    Attributes:
        request: What of it is allowed; None if nothing is.
        complete: Makes the answer to the whole request of the one to `request` (of None, if there
            is none). It must be sent in the place of that.
    """

    request: m.Request | None
    complete: Callable[[Any], m.Response]


class Authorizer:
    """What is allowed on this node, for whoever asks.

    Attributes:
        is_on: Whether anything is refused at all.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        is_on: bool,
        super_users: Collection[str] = (),
        allow_everyone: bool = False,
        is_registered: Callable[[str], bool],
    ) -> None:
        """Make it.

        Args:
            rules: Those in force.
            is_on: If not, everybody may do everything.
            super_users: Principals who may do everything.
            allow_everyone: Everybody may do everything with resources that no rule is about
                (``allow.everyone.if.no.acl.found``).
            is_registered: Says whether there is a topic of a name.
        """
        self.rules = rules
        self.allow_everyone = allow_everyone
        self.is_registered = is_registered
        self.is_on = is_on
        self._super_users = frozenset(super_users)

    def sees_topic(self, principal: str | None, host: str, topic: str) -> bool:
        """Say whether a topic may be shown to *principal*; None has not said who he is."""
        return self.access(principal or ANONYMOUS, host).sees_topic(topic)

    def access(self, principal: str, host: str) -> "Access":
        """Return what *principal* may do from *host*, for as long as it is connected."""
        is_free = not self.is_on or principal in self._super_users
        return Access(self, principal, host, is_free=is_free)

    def mask(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """Return the mask of what *principal* may do with a resource."""
        if self.allow_everyone and not self.rules.has_any(resource_type, name):
            return _EVERYTHING
        return self.rules.granted(principal, host, resource_type, name)


class _Kept(dict[str, int]):
    """Masks that were looked up. A hit, which nearly every look is, calls nothing of ours."""

    def __init__(self, look: Callable[[str], int]) -> None:
        self._look = look

    def __missing__(self, name: str) -> int:
        if len(self) >= NAMES_KEPT:
            self.clear()
        mask = self[name] = self._look(name)
        return mask


class Access:
    """What one principal may do from one host.

    Attributes:
        is_free: It may do everything.
        version: Of the rules whose masks are kept; call `refresh` when there are newer ones.
    """

    def __init__(self, authorizer: Authorizer, principal: str, host: str, *, is_free: bool) -> None:
        """Use `Authorizer.access` instead."""
        self._authorizer = authorizer
        self._rules = authorizer.rules
        self._principal = principal
        self._host = host
        self.is_free = is_free
        self.version = -1
        # By name, the masks of what is allowed with groups and topics.
        self.groups = _Kept(partial(authorizer.mask, principal, host, ResourceType.GROUP))
        self.topics = _Kept(partial(authorizer.mask, principal, host, ResourceType.TOPIC))

    def refresh(self) -> None:
        """Forget what older rules said."""
        if self.version != self._rules.version:
            self.version = self._rules.version
            self.groups.clear()
            self.topics.clear()

    def cluster(self) -> int:
        """Return the mask of what is allowed with the coordinator itself."""
        return self._authorizer.mask(self._principal, self._host, ResourceType.CLUSTER, CLUSTER)

    def is_registered(self, topic: str) -> bool:
        """Say whether there is a topic of this name."""
        return self._authorizer.is_registered(topic)

    def sees_cluster(self) -> bool:
        """Say whether the coordinator itself, and all groups in a list, are shown."""
        return self.is_free or bool(self.cluster() & _DESCRIBE)

    def sees_group(self, name: str) -> bool:
        """Say whether a group is shown, now."""
        self.refresh()
        return self.is_free or bool(self.groups[name] & _DESCRIBE)

    def sees_topic(self, name: str) -> bool:
        """Say whether a topic is in the lists that are shown, now."""
        self.refresh()
        return self.is_free or bool(self.topics[name] & _DESCRIBE)

    @property
    def sight(self) -> tuple[str, str, int]:
        """What decides what is shown; another one after each change of rules."""
        return self._principal, self._host, self._rules.version

    def may_with_group(self, group_id: str, operation: Operation) -> bool:
        """Say whether *operation* is allowed with a group."""
        return self.is_free or bool(self.groups[group_id] & operation.bit)


Check = Callable[[Access, Any], Verdict | None]


# --- refusals, whole and in parts -----------------------------------------------------------


def _refused(request: m.Request, resource_type: ResourceType) -> Verdict:
    return Verdict(None, lambda _: error_response(request, _REFUSALS[resource_type]))


def in_parts(
    request: m.Request,
    parts: Iterable[Any],
    is_allowed: Callable[[Any], bool],
    refused: Callable[[Any], Any],
    *,
    asked: str,
    answered: str,
) -> Verdict | None:
    """Ask for the parts that are allowed, which are answered in their order.

    Args:
        request: What is asked.
        parts: All of it that has an answer of its own.
        is_allowed: Says so of a part.
        refused: The answer to one that isn't.
        asked: The field of the request that has the parts.
        answered: The field of the response that has their answers.
    """
    parts = list(parts)
    flags = [is_allowed(part) for part in parts]  # As it is now: rules may change meanwhile.
    if all(flags):
        return None
    left = tuple(compress(parts, flags))

    def complete(response: Any) -> m.Response:
        if response is None:
            response = error_response(structs.replace(request, **{asked: ()}), _E.NONE)
        elif getattr(response, "error", None):  # A `BareError`, or one of the whole answer.
            found: m.Response = response
            return found
        merged = _merged(parts, flags, getattr(response, answered), refused)
        whole: m.Response = structs.replace(response, **{answered: merged})
        return whole

    return Verdict(structs.replace(request, **{asked: left}) if left else None, complete)


def _merged(
    parts: Iterable[Any],
    flags: Iterable[bool],
    answers: Iterable[Any],
    refused: Callable[[Any], Any],
) -> tuple[Any, ...]:
    """Return an answer for each part: the next of *answers* where its flag is set."""
    left = iter(answers)
    return tuple(
        next(left) if is_allowed else refused(part)
        for part, is_allowed in zip(parts, flags, strict=True)
    )


# --- what requests of one kind need ---------------------------------------------------------


def _nothing(_access: Access, _request: m.Request) -> None:
    """Need nothing."""


def _cluster(operation: Operation) -> Check:
    def check(access: Access, request: m.Request) -> Verdict | None:
        if access.cluster() & operation.bit:
            return None
        return _refused(request, ResourceType.CLUSTER)

    return check


def _group(operation: Operation) -> Check:
    bit = operation.bit

    def check(access: Access, request: Any) -> Verdict | None:
        if access.groups[request.group_id] & bit:
            return None
        return _refused(request, ResourceType.GROUP)

    return check


def _groups(
    operation: Operation, refused: Callable[[str], Any], answered: str, *, once: bool = False
) -> Check:
    """Need *operation* with each group that is named; those named twice answered *once*."""

    def check(access: Access, request: Any) -> Verdict | None:
        named = request.group_ids
        return in_parts(
            request,
            dict.fromkeys(named) if once else named,
            lambda group_id: bool(access.groups[group_id] & operation.bit),
            refused,
            asked="group_ids",
            answered=answered,
        )

    return check


def _no_partitions(topic: Any) -> m.TopicResult:
    """Refuse all partitions of a topic that a request names."""
    numbers = [p if type(p) is int else p.partition for p in topic.partitions]
    refused = tuple(m.PartitionResult(number, _TOPIC_REFUSED) for number in numbers)
    return m.TopicResult(topic.topic, refused)


def _topics(access: Access, request: Any, bit: int) -> Verdict | None:
    """Need an operation with each topic whose partitions are named."""
    for named in request.topics:
        if not access.topics[named.topic] & bit:
            break
    else:
        return None
    return in_parts(
        request,
        request.topics,
        lambda named: bool(access.topics[named.topic] & bit),
        _no_partitions,
        asked="topics",
        answered="topics",
    )


def _group_and_topics(operation: Operation) -> Check:
    """Need *operation* with the group, and READ with each topic."""
    bit = operation.bit

    def check(access: Access, request: Any) -> Verdict | None:
        if not access.groups[request.group_id] & bit:
            return _refused(request, ResourceType.GROUP)
        return _topics(access, request, _READ)

    return check


_reads_group_and_topics: Final = _group_and_topics(Operation.READ)


def _commit(access: Access, request: m.OffsetCommitRequest) -> Verdict | None:
    """READ with the group and with each topic; every commit comes here, so all at once."""
    if access.groups[request.group_id] & _READ:
        topics = access.topics
        for named in request.topics:
            if not topics[named.topic] & _READ:
                break
        else:
            return None
    return _reads_group_and_topics(access, request)


def _alter_offsets(access: Access, request: m.AlterOffsetsRequest) -> Verdict | None:
    """As a commit; and ALTER for what a commit can't do: take members out."""
    operation = Operation.ALTER if request.remove_owners else Operation.READ
    verdict = _group(operation)(access, request) or _group(Operation.READ)(access, request)
    return verdict or _topics(access, request, _READ)


def _no_offsets(fetch: m.GroupFetch) -> m.GroupOffsets:
    return m.GroupOffsets(fetch.group_id, _GROUP_REFUSED, ())


def _offset_fetch(access: Access, request: m.OffsetFetchRequest) -> Verdict | None:
    """DESCRIBE with each group, and with each topic that is named.

    Topics are refused, or left out where none are named, by who looks the offsets up: to look
    through what is packed already would take long at once.
    """
    topics = access.topics
    for fetch in request.groups:  # Every fetch comes here, and nearly all of them end here.
        if not access.groups[fetch.group_id] & _DESCRIBE:
            break
        if not all([topics[named.topic] & _DESCRIBE for named in fetch.topics or ()]):  # noqa: C419 - quicker
            break
    else:
        return None
    verdict = in_parts(
        request,
        request.groups,
        lambda fetch: bool(access.groups[fetch.group_id] & _DESCRIBE),
        _no_offsets,
        asked="groups",
        answered="groups",
    )
    return verdict or Verdict(request, lambda response: response)


def _register_topics(access: Access, request: m.RegisterTopicsRequest) -> Verdict | None:
    """CREATE with the topic or the cluster, and ALTER with one that is there.

    A consumer that tells what it reads, which makes nothing smaller and bounds nothing, needs READ.
    """
    creates_all = bool(access.cluster() & Operation.CREATE.bit)

    def is_allowed(asked: m.TopicRegistration) -> bool:
        mask = access.topics[asked.topic]
        if request.is_observed and mask & _READ:
            return True
        if access.is_registered(asked.topic):
            return bool(mask & Operation.ALTER.bit)
        return creates_all or bool(mask & Operation.CREATE.bit)

    return in_parts(
        request,
        request.topics,
        is_allowed,
        lambda asked: m.RegisteredTopic(asked.topic, _TOPIC_REFUSED, None, -1),
        asked="topics",
        answered="topics",
    )


def _delete_topics(access: Access, request: m.DeleteTopicsRequest) -> Verdict | None:
    """DELETE with each topic."""
    return in_parts(
        request,
        dict.fromkeys(request.topics),
        lambda name: bool(access.topics[name] & Operation.DELETE.bit),
        lambda name: m.DeletedTopic(name, _TOPIC_REFUSED),
        asked="topics",
        answered="topics",
    )


def _describe_topics(access: Access, request: m.DescribeTopicsRequest) -> Verdict | None:
    """DESCRIBE with each topic.

    Where none are named, `Topics.describe` is given `Access.sees_topic`: whoever cuts a list into
    pages must know what is not in it.
    """
    if request.topics is None:
        return None
    return in_parts(
        request,
        dict.fromkeys(request.topics),
        access.sees_topic,
        lambda name: m.DescribedTopic(name, _TOPIC_REFUSED, -1, (), ()),
        asked="topics",
        answered="topics",
    )


def _report_ends(access: Access, request: m.ReportEndOffsetsRequest) -> Verdict | None:
    """WRITE with each topic: who reports is its source."""
    return _topics(access, request, Operation.WRITE.bit)


def _scan(access: Access, request: m.ScanOffsetsRequest) -> Verdict | None:
    """DESCRIBE with the cluster, or with all groups and topics that are named."""
    if access.cluster() & _DESCRIBE:
        return None
    if request.group_ids is None or request.topics is None:
        return _refused(request, ResourceType.CLUSTER)
    if not all(access.groups[name] & _DESCRIBE for name in request.group_ids):
        return _refused(request, ResourceType.GROUP)
    if not all(map(access.sees_topic, request.topics)):
        return _refused(request, ResourceType.TOPIC)
    return None


def _no_coordinator(group_id: str) -> m.CoordinatorOfGroup:
    return m.find_coordinator_error(group_id, _GROUP_REFUSED, None)


_describes_groups: Final = _groups(Operation.DESCRIBE, _no_coordinator, "coordinators")


def _find_coordinator(access: Access, request: m.FindCoordinatorRequest) -> Verdict | None:
    """DESCRIBE with each group; nothing where no groups are asked about."""
    is_about_groups = request.key_type == m.KEY_TYPE_GROUP
    return _describes_groups(access, request) if is_about_groups else None


def _no_description(group_id: str) -> m.DescribedGroup:
    return m.describe_error(group_id, _GROUP_REFUSED, None, state="")


def _no_deletion(group_id: str) -> m.DeletedGroup:
    return m.DeletedGroup(group_id, _GROUP_REFUSED)


_sees_cluster: Final = _cluster(Operation.DESCRIBE)
_alters_cluster: Final = _cluster(Operation.ALTER)
_reads_group: Final = _group(Operation.READ)

NEEDS: Final[Mapping[type[m.Request], Check]] = {
    m.ApiVersionsRequest: _nothing,
    m.FindCoordinatorRequest: _find_coordinator,
    m.DescribeClusterRequest: _nothing,  # As FindCoordinator tells everybody where nodes are.
    m.JoinGroupRequest: _reads_group,
    m.SyncGroupRequest: _reads_group,
    m.HeartbeatRequest: _reads_group,
    m.LeaveGroupRequest: _reads_group,
    # A driver drains its own reader, and who may leave in another's name may ask it to give up.
    m.DrainMemberRequest: _reads_group,
    m.OffsetCommitRequest: _commit,
    m.OffsetFetchRequest: _offset_fetch,
    m.OffsetDeleteRequest: _group_and_topics(Operation.DELETE),
    m.AlterOffsetsRequest: _alter_offsets,
    m.DescribeGroupsRequest: _groups(Operation.DESCRIBE, _no_description, "groups"),
    # Made in slices, which leave out what isn't seen (`Asker`): no page ends at a hidden name.
    m.ListGroupsRequest: _nothing,
    m.SummarizeGroupsRequest: _nothing,
    m.DeleteGroupsRequest: _groups(Operation.DELETE, _no_deletion, "groups", once=True),
    m.AlterGroupRetentionRequest: _group(Operation.ALTER),
    m.DescribeRebalancesRequest: _group(Operation.DESCRIBE),
    m.DescribeLagRequest: _group(Operation.DESCRIBE),  # Likewise, of its topics.
    m.RegisterTopicsRequest: _register_topics,
    m.DeleteTopicsRequest: _delete_topics,
    m.DescribeTopicsRequest: _describe_topics,
    m.ReportEndOffsetsRequest: _report_ends,
    m.ScanOffsetsRequest: _scan,
    m.ReadOffsetChangesRequest: _sees_cluster,
    m.DescribeNodeRequest: _sees_cluster,
    m.DescribeSettingsRequest: _cluster(Operation.DESCRIBE_CONFIGS),
    m.CompactLogRequest: _alters_cluster,
    m.ReloadPartitionRequest: _alters_cluster,
    m.DescribeJournalsRequest: _sees_cluster,
    m.MoveJournalRequest: _alters_cluster,
    m.DescribeAclsRequest: _sees_cluster,
    m.CreateAclsRequest: _alters_cluster,
    m.DeleteAclsRequest: _alters_cluster,
    m.DescribeUserScramCredentialsRequest: _sees_cluster,
    m.AlterUserScramCredentialsRequest: _alters_cluster,
    m.DescribeClientQuotasRequest: _cluster(Operation.DESCRIBE_CONFIGS),
    m.AlterClientQuotasRequest: _cluster(Operation.ALTER_CONFIGS),
}
