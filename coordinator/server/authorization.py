"""Who may ask what: for each request the rights that it needs, decided before it has any effect.

The matrix is Kafka's where Kafka has the request. `NEEDS` holds it; docs/security.md prints it.

An answer never tells whether something is there that its asker may not see: a group or topic that
is refused is refused alike whether it exists or not, and is not in any list. A request about
several things is answered for those that are allowed: a `Verdict` says what is left to ask, and
puts the refusals into the answer, each in its place.

Where 10,000 may be named, these are judged a few at a time: such a check is a generator, and its
verdict is as of the moment of its last step if rules haven't changed since the first one.

A session keeps one `Access`, its principal's from its host. What that may do with a group or topic
is looked up in the rules once, and kept as a mask of operations until rules change.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import structs

from coordinator.group.acls import Rules
from coordinator.group.member import CONSUMER
from coordinator.names import quoted
from protocol import messages as m
from protocol.acls import ANONYMOUS, CLUSTER, Operation, ResourceType
from protocol.consumer import subscribed_topics
from protocol.errors import ErrorCode
from protocol.fields import TOPIC_BYTES_MAX
from protocol.messages import error_response

# Resources of each type that one `Access` keeps; then it begins anew.
NAMES_KEPT: Final = 10_000
# So many names are judged in a tenth of a millisecond, or ten where prefixes have many lengths.
_PARTS_AT_ONCE: Final = 50

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
        error: The error of parts that are refused only where they are looked up.
    """

    request: m.Request | None
    complete: Callable[[Any], m.Response]
    error: int = 0


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
Steps = Generator[None, None, Verdict | None]
Judging = Callable[[Access, Any], Steps]


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
) -> Steps:
    """Ask for the parts that are allowed, which are answered in their order.

    Args:
        request: What is asked.
        parts: All of it that has an answer of its own.
        is_allowed: Says so of a part.
        refused: The answer to one that isn't.
        asked: The field of the request that has the parts.
        answered: The field of the response that has their answers.
    """
    parts = tuple(parts)
    refusals: list[Any] = []  # Of each part; None: it is allowed, by the rules as they are now.
    for at in range(0, len(parts), _PARTS_AT_ONCE):
        if at:
            yield
        some = parts[at : at + _PARTS_AT_ONCE]
        refusals += [None if is_allowed(part) else refused(part) for part in some]
    if not any(refusals):
        return None
    left = tuple([part for part, no in zip(parts, refusals, strict=True) if no is None])

    def complete(response: Any) -> m.Response:
        if response is None:
            response = error_response(structs.replace(request, **{asked: ()}), _E.NONE)
        elif getattr(response, "error", None):  # A `BareError`, or one of the whole answer.
            found: m.Response = response
            return found
        answers = iter(getattr(response, answered))
        merged = tuple([next(answers) if no is None else no for no in refusals])
        whole: m.Response = structs.replace(response, **{answered: merged})
        return whole

    return Verdict(structs.replace(request, **{asked: left}) if left else None, complete)


def at_once(steps: Steps) -> Verdict | None:
    """Take all *steps*, which are few."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            verdict: Verdict | None = end.value
            return verdict


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
) -> Judging:
    """Need *operation* with each group that is named; those named twice answered *once*."""

    def judging(access: Access, request: Any) -> Steps:
        named = request.group_ids
        return in_parts(
            request,
            dict.fromkeys(named) if once else named,
            lambda group_id: bool(access.groups[group_id] & operation.bit),
            refused,
            asked="group_ids",
            answered=answered,
        )

    return judging


def _no_partitions(topic: Any) -> m.TopicResult:
    """Refuse all partitions of a topic that a request names."""
    numbers = [p if type(p) is int else p.partition for p in topic.partitions]
    refused = tuple(m.PartitionResult(number, _TOPIC_REFUSED) for number in numbers)
    return m.TopicResult(topic.topic, refused)


def _topics(access: Access, request: Any, bit: int) -> Steps:
    """Need an operation with each topic whose partitions are named."""
    return in_parts(
        request,
        request.topics,
        lambda named: bool(access.topics[named.topic] & bit),
        _no_partitions,
        asked="topics",
        answered="topics",
    )


def _group_and_topics(operation: Operation) -> Judging:
    """Need *operation* with the group, and READ with each topic."""
    bit = operation.bit

    def judging(access: Access, request: Any) -> Steps:
        if not access.groups[request.group_id] & bit:
            return _refused(request, ResourceType.GROUP)
        return (yield from _topics(access, request, _READ))

    return judging


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
    return at_once(_reads_group_and_topics(access, request))


def _join(access: Access, request: m.JoinGroupRequest) -> Steps:
    """READ with the group, and with each topic that a consumer subscribes to."""
    if not access.groups[request.group_id] & _READ:
        return _refused(request, ResourceType.GROUP)
    if request.protocol_type != CONSUMER:
        return None
    for metadata in dict.fromkeys(protocol.metadata for protocol in request.protocols):
        topics = subscribed_topics(metadata) or ()
        for at in range(0, len(topics), _PARTS_AT_ONCE):
            yield
            for name in topics[at : at + _PARTS_AT_ONCE]:
                # No topic has a longer name, and masks of such names would fill memory.
                if len(name) <= TOPIC_BYTES_MAX and not access.topics[name] & _READ:
                    return _no_join(request, name)
    return None


def _no_join(request: m.JoinGroupRequest, topic: str) -> Verdict:
    text = f"no right to READ topic {quoted(topic)}"
    return Verdict(None, lambda _: m.join_error(_TOPIC_REFUSED, request.member_id, text))


def _alter_offsets(access: Access, request: m.AlterOffsetsRequest) -> Steps:
    """As a commit; and ALTER for what a commit can't do: take members out."""
    operation = Operation.ALTER if request.remove_owners else Operation.READ
    verdict = _group(operation)(access, request) or _group(Operation.READ)(access, request)
    return verdict or (yield from _topics(access, request, _READ))


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
    return at_once(_fetches(access, request))


def _fetches(access: Access, request: m.OffsetFetchRequest) -> Steps:
    """Do the same for any number."""
    verdict = yield from in_parts(
        request,
        request.groups,
        lambda fetch: bool(access.groups[fetch.group_id] & _DESCRIBE),
        _no_offsets,
        asked="groups",
        answered="groups",
    )
    if verdict is not None:
        return verdict
    for fetch in request.groups:
        topics = [named.topic for named in fetch.topics or ()]
        if not (yield from _are_all(access.sees_topic, topics)):
            return Verdict(request, lambda response: response, _TOPIC_REFUSED)
    return None


def _are_all(is_seen: Callable[[str], bool], names: Sequence[str]) -> Generator[None, None, bool]:
    for at in range(0, len(names), _PARTS_AT_ONCE):
        yield
        if not all(map(is_seen, names[at : at + _PARTS_AT_ONCE])):
            return False
    return True


def _register_topics(access: Access, request: m.RegisterTopicsRequest) -> Steps:
    """CREATE with the topic or the cluster, and ALTER with one that is there.

    A consumer that tells what it reads, which makes nothing smaller and bounds nothing, needs READ.
    """
    creates_all = bool(access.cluster() & Operation.CREATE.bit)
    names = [asked.topic for asked in request.topics]

    def is_allowed(asked: m.TopicRegistration) -> bool:
        mask = access.topics[asked.topic]
        if request.is_observed and mask & _READ:
            return True
        if access.is_registered(asked.topic):
            return bool(mask & Operation.ALTER.bit)
        return creates_all or bool(mask & Operation.CREATE.bit)

    while True:
        registered = list(map(access.is_registered, names))
        verdict = yield from in_parts(
            request,
            request.topics,
            is_allowed,
            lambda asked: m.RegisteredTopic(asked.topic, _TOPIC_REFUSED, None, -1),
            asked="topics",
            answered="topics",
        )
        if registered == list(map(access.is_registered, names)):  # Else some came meanwhile.
            return verdict


def _delete_topics(access: Access, request: m.DeleteTopicsRequest) -> Steps:
    """DELETE with each topic."""
    return in_parts(
        request,
        dict.fromkeys(request.topics),
        lambda name: bool(access.topics[name] & Operation.DELETE.bit),
        lambda name: m.DeletedTopic(name, _TOPIC_REFUSED),
        asked="topics",
        answered="topics",
    )


def _describe_topics(access: Access, request: m.DescribeTopicsRequest) -> Steps:
    """DESCRIBE with each topic.

    Where none are named, `Topics.describe` is given `Access.sees_topic`: whoever cuts a list into
    pages must know what is not in it.
    """
    if request.topics is None:
        return None
    return (
        yield from in_parts(
            request,
            dict.fromkeys(request.topics),
            access.sees_topic,
            lambda name: m.DescribedTopic(name, _TOPIC_REFUSED, -1, (), ()),
            asked="topics",
            answered="topics",
        )
    )


def _report_ends(access: Access, request: m.ReportEndOffsetsRequest) -> Steps:
    """WRITE with each topic: who reports is its source."""
    return _topics(access, request, Operation.WRITE.bit)


def _scan(access: Access, request: m.ScanOffsetsRequest) -> Steps:
    """DESCRIBE with the cluster, or with all groups and topics that are named."""
    if access.cluster() & _DESCRIBE:
        return None
    if request.group_ids is None or request.topics is None:
        return _refused(request, ResourceType.CLUSTER)
    if not (yield from _are_all(access.sees_group, request.group_ids)):
        return _refused(request, ResourceType.GROUP)
    if not (yield from _are_all(access.sees_topic, request.topics)):
        return _refused(request, ResourceType.TOPIC)
    return None


def _no_coordinator(group_id: str) -> m.CoordinatorOfGroup:
    return m.find_coordinator_error(group_id, _GROUP_REFUSED, None)


_describes_groups: Final = _groups(Operation.DESCRIBE, _no_coordinator, "coordinators")


def _find_coordinator(access: Access, request: m.FindCoordinatorRequest) -> Steps:
    """DESCRIBE with each group; nothing where no groups are asked about."""
    is_about_groups = request.key_type == m.KEY_TYPE_GROUP
    return (yield from _describes_groups(access, request)) if is_about_groups else None


def _no_description(group_id: str) -> m.DescribedGroup:
    return m.describe_error(group_id, _GROUP_REFUSED, None, state="")


def _no_deletion(group_id: str) -> m.DeletedGroup:
    return m.DeletedGroup(group_id, _GROUP_REFUSED)


_sees_cluster: Final = _cluster(Operation.DESCRIBE)
_alters_cluster: Final = _cluster(Operation.ALTER)
_reads_group: Final = _group(Operation.READ)

# Of the requests that may name 10,000 groups or topics: to judge these takes a tenth of a second.
IN_SLICES: Final[Mapping[type[m.Request], Judging]] = {
    m.FindCoordinatorRequest: _find_coordinator,
    m.JoinGroupRequest: _join,
    m.OffsetCommitRequest: _reads_group_and_topics,
    m.OffsetFetchRequest: _fetches,
    m.OffsetDeleteRequest: _group_and_topics(Operation.DELETE),
    m.AlterOffsetsRequest: _alter_offsets,
    m.DescribeGroupsRequest: _groups(Operation.DESCRIBE, _no_description, "groups"),
    m.DeleteGroupsRequest: _groups(Operation.DELETE, _no_deletion, "groups", once=True),
    m.RegisterTopicsRequest: _register_topics,
    m.DeleteTopicsRequest: _delete_topics,
    m.DescribeTopicsRequest: _describe_topics,
    m.ReportEndOffsetsRequest: _report_ends,
    m.ScanOffsetsRequest: _scan,
}


def _few(judging: Judging) -> Check:
    return lambda access, request: at_once(judging(access, request))


NEEDS: Final[Mapping[type[m.Request], Check]] = {
    **{kind: _few(judging) for kind, judging in IN_SLICES.items()},
    m.ApiVersionsRequest: _nothing,
    m.DescribeClusterRequest: _nothing,  # As FindCoordinator tells everybody where nodes are.
    m.SyncGroupRequest: _reads_group,
    m.HeartbeatRequest: _reads_group,
    # These two are about the caller's own members, such as a driver's reader. For another's the
    # gate, which knows whose each is, asks for ALTER besides.
    m.LeaveGroupRequest: _reads_group,
    m.DrainMemberRequest: _reads_group,
    m.OffsetCommitRequest: _commit,
    m.OffsetFetchRequest: _offset_fetch,
    # Made in slices, which leave out what isn't seen (`Asker`): no page ends at a hidden name.
    m.ListGroupsRequest: _nothing,
    m.SummarizeGroupsRequest: _nothing,
    m.AlterGroupRetentionRequest: _group(Operation.ALTER),
    m.DescribeRebalancesRequest: _group(Operation.DESCRIBE),
    m.DescribeLagRequest: _group(Operation.DESCRIBE),  # Likewise, of its topics.
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
