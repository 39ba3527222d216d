"""Calls for operators, and for programs that register topics."""

import secrets
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec import structs

from client.exceptions import FatalError, OutcomeUnknown, code_text, codes_text, known_code, refusal
from client.offset_watch import OffsetWatch
from client.offsets import Offsets, by_topic, commit_request
from client.router import Router
from protocol import messages as m
from protocol.acls import (
    ANY,
    EVERY_HOST,
    MATCH,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from protocol.codec import scanned_offsets
from protocol.errors import ErrorCode, RemoteProtocolError
from protocol.offset_feed import log_ends, scan_request
from protocol.partition import INT64_MAX, TopicPartition
from protocol.scram import ITERATIONS, MECHANISMS, SALT_BYTES, Mechanism, keys_of

REBALANCES_MAX: Final = 100
# Largest number of elements in an array of a request.
PARTITIONS_PER_REQUEST: Final = 10_000
# Topics per page: with a few hundred partitions each they fit in an answer of 16 MiB.
TOPICS_PER_PAGE: Final = 1_000
_REGISTER: Final = (
    "Ends are kept of registered topics only: register these first (`register_topics`, or "
    "`group-coordinator topics register TOPIC PARTITIONS`)."
)
CHANGES_PER_PAGE: Final = 5_000
GROUPS_PER_PAGE: Final = 2_000
USERS_PER_PAGE: Final = 1_000
FOR_EVER: Final = -1
NO_POSITION: Final = -1

C = TypeVar("C", m.RegisterTopicsResponse, m.DeleteTopicsResponse, m.ReportEndOffsetsResponse)


class Lag(NamedTuple):
    """Lag of the group in one partition. An unknown value is None, never 0.

    ``end`` is the newest end offset that somebody reported. ``lag`` is ``end - committed``, and
    None unless both are known; likewise if the commit is beyond the end: the report is old, or the
    commit is wrong. ``owner`` is a member id, None for nobody.
    """

    committed: int | None
    end: int | None
    lag: int | None
    owner: str | None


class GroupSummary(NamedTuple):
    """Summary of a group. An unknown value is None, never 0.

    Attributes:
        group: The group id.
        state: One of Kafka's five names.
        protocol_type: E.g. "consumer"; "" for a group that nobody has joined.
        members: Number of members.
        partitions: Number of partitions that the group has committed, or owns.
        unknown: Number of those partitions whose lag is unknown.
        lag: Sum of the lags of all others; None if there are none.
        earlier_lag: The lag ``earlier_ms`` ago, if it was known of all partitions: the
            coordinator's memory of some minutes.
        earlier_ms: How long ago that was.
        samples: The lag of the last minutes, oldest first.
    """

    group: str
    state: str
    protocol_type: str
    members: int
    partitions: int
    unknown: int
    lag: int | None
    earlier_lag: int | None
    earlier_ms: int | None
    samples: tuple[int | None, ...]


async def group_lag(router: Router, group_id: str) -> dict[TopicPartition, Lag]:
    """Return the lag of each partition that the group has committed or assigned.

    Raises:
        CoordinatorUnavailable: Nobody could be reached in time.
        FatalError: Code 69: no such group.
    """
    response = await router.ask(m.DescribeLagRequest(group_id), m.DescribeLagResponse)
    _check(response.error, f"no lag of group {group_id!r}", response.message)
    return {
        TopicPartition(topic.topic, one.partition): Lag(
            _known(one.committed_offset),
            _known(one.end_offset),
            # Release 0.1.0 says 0 of a commit beyond the end.
            _known(one.lag) if one.committed_offset <= one.end_offset else None,
            one.member_id or None,
        )
        for topic in response.topics
        for one in topic.partitions
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _codes_of(topics: Iterable[m.TopicResult]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.topic, one.partition): known_code(one.error)
        for topic in topics
        for one in topic.partitions
    }


def _summary(group: m.GroupSummary) -> GroupSummary:
    return GroupSummary(
        group.group_id,
        group.state,
        group.protocol_type,
        group.members,
        group.partitions,
        group.unknown,
        _known(group.lag),
        _known(group.earlier_lag),
        _known(group.earlier_ms),
        tuple(map(_known, group.samples)),
    )


class TopicSource(NamedTuple):
    """A topic as its source has it: partitions 0 … *partition_count* - 1, and where they lie.

    ``hosts`` names the hosts that have the data of a partition close by; None leaves those
    that are registered as they are.
    """

    partition_count: int
    hosts: Mapping[int, Sequence[str]] | None = None


class TopicCalls:
    """The part of `client.Client` that knows topics: how many partitions, how far they reach.

    *timeout_ms* bounds a look at topics; None: the client's request timeout.
    """

    def __init__(self, router: Router, timeout_ms: float | None = None) -> None:
        self._router = router
        self._look_timeout_ms = timeout_ms

    async def describe_topics(
        self,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        *,
        with_end_offsets: bool = False,
    ) -> list[m.DescribedTopic]:
        """Return *topics* in their order, or by name those that match *pattern*, or all.

        A pattern is a regular expression of RE2's syntax for the whole name. A topic that isn't
        registered has error 3 and -1 partitions.

        Raises:
            FatalError: Code 128: *pattern* is no regular expression.
            ValueError: Both *topics* and *pattern* are given.
        """
        if topics is not None and pattern is not None:
            raise ValueError("describe topics by their names or by a pattern, not by both")
        names = None if topics is None else tuple(dict.fromkeys(names_of(topics, "topics")))
        found: list[m.DescribedTopic] = []
        size, has_more = TOPICS_PER_PAGE, names != ()
        while has_more:
            start_after = found[-1].topic if found and names is None else ""
            wanted = None if names is None else names[len(found) : len(found) + size]
            request = m.DescribeTopicsRequest(wanted, pattern, with_end_offsets, start_after, size)
            response = await self._router.ask(
                request, m.DescribeTopicsResponse, timeout_ms=self._look_timeout_ms
            )
            if response.error == ErrorCode.RESPONSE_TOO_LARGE and size > 1:
                size //= 2
                continue
            _check(response.error, "no list of topics", response.message)
            found += response.topics
            if names is None:
                has_more = response.has_more and bool(response.topics)
            else:
                has_more = len(found) < len(names) and bool(response.topics)
        return found

    async def register_topics(
        self, topics: Mapping[str, int | TopicSource], *, observed: bool = False
    ) -> None:
        """Tell which topics there are: their number of partitions, or also where they lie.

        Repeating it changes nothing. Of a topic that has grown, or that matches a group's
        pattern and is new, the groups concerned rebalance.

        Args:
            topics: The topics.
            observed: They are told as a consumer sees them, which may not be all. Then nothing
                that is registered gets smaller, which is no error either, and a topic that is
                known only so bounds no commits.

        Raises:
            FatalError: Some topics were refused, the others are registered. Code 37: a topic
                can't shrink; 42: no partitions; 1005: a limit is reached.
            RetriableError: A topic of that name is still being deleted, or the disk is full.
            OutcomeUnknown: No definite answer in time. Repeat the same call.
        """
        registrations = []
        for topic, value in sorted(topics.items()):
            source = value if isinstance(value, TopicSource) else TopicSource(value)
            hosts = None
            if source.hosts is not None:
                listed = sorted(source.hosts.items())
                hosts = tuple(m.PartitionHosts(p, tuple(names)) for p, names in listed if names)
            registrations.append(m.TopicRegistration(topic, source.partition_count, hosts))
        for start in range(0, len(registrations), TOPICS_PER_PAGE):
            page = tuple(registrations[start : start + TOPICS_PER_PAGE])
            request = m.RegisterTopicsRequest(page, observed)
            response = await self._change(request, m.RegisterTopicsResponse, "topics")
            _check_parts([(t.topic, t.error, t.message) for t in response.topics], "not registered")

    async def delete_topics(self, topics: Iterable[str]) -> dict[str, int]:
        """Remove topics from the registry; return the code per topic: 0 is done, 3 is not there.

        Offsets that groups have committed for the topics are removed in the background, and
        the groups that read them rebalance.

        Raises:
            OutcomeUnknown: No definite answer in time; describe the topics to find out.
        """
        names = tuple(dict.fromkeys(names_of(topics, "topics")))
        codes: dict[str, int] = {}
        for start in range(0, len(names), TOPICS_PER_PAGE):
            request = m.DeleteTopicsRequest(names[start : start + TOPICS_PER_PAGE])
            response = await self._change(request, m.DeleteTopicsResponse, "topics")
            codes |= {topic.topic: known_code(topic.error) for topic in response.topics}
        return codes

    async def report_end_offsets(self, ends: Mapping[TopicPartition, int]) -> None:
        """Tell how far partitions of registered topics reach, for `lag`.

        Each is the offset that the partition's next record will get.

        Raises:
            FatalError: Code 3: some are not registered; the others are stored.
            ValueError: An end offset is none.
        """
        entries = sorted(ends.items())
        for tp, end in entries:
            if type(end) is not int or not 0 <= end <= INT64_MAX:
                raise ValueError(f"{end!r} is no end offset (of {tp})")
        refused: dict[TopicPartition, int] = {}
        for start in range(0, len(entries), PARTITIONS_PER_REQUEST):
            topics: dict[str, list[m.PartitionEnd]] = {}
            for tp, end in entries[start : start + PARTITIONS_PER_REQUEST]:
                topics.setdefault(tp.topic, []).append(m.PartitionEnd(tp.partition, end))
            request = m.ReportEndOffsetsRequest(
                tuple(m.TopicEnds(topic, tuple(listed)) for topic, listed in topics.items())
            )
            response = await self._change(request, m.ReportEndOffsetsResponse, "end offsets")
            refused |= {
                TopicPartition(topic.topic, one.partition): known_code(one.error)
                for topic in response.topics
                for one in topic.partitions
                if one.error != ErrorCode.NONE
            }
        if refused:
            text = f"{len(refused)} of {len(entries)} end offsets were not taken: "
            text += codes_text(refused)
            if ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in refused.values():
                text += f" {_REGISTER}"
            raise refusal(text, next(iter(refused.values())))

    async def _change(self, request: m.Request, kind: type[C], what: str) -> C:
        response = await self._router.ask(request, kind, changes_state=True)
        _check(response.error, f"the change of {what} was refused")
        return response


class Acl(NamedTuple):
    """A rule of access: with which resources a principal may do what, or with *deny* must not.

    ``name`` "*" is every resource of the type, and with *prefix* what a name begins with.
    """

    principal: str
    operation: Operation
    resource_type: ResourceType
    name: str
    prefix: bool = False
    host: str = EVERY_HOST
    deny: bool = False


def _wire(acl: Acl) -> tuple[int, str, int, str, str, int, int]:
    pattern = PatternType.PREFIXED if acl.prefix else PatternType.LITERAL
    permission = Permission.DENY if acl.deny else Permission.ALLOW
    what = (acl.resource_type, acl.name, pattern)
    return (*what, acl.principal, acl.host, acl.operation, permission)


def _acl(shown: m.DescribedAcl) -> Acl:
    return Acl(
        shown.principal,
        Operation(shown.operation),
        ResourceType(shown.resource_type),
        shown.resource_name,
        shown.pattern_type == PatternType.PREFIXED,
        shown.host,
        shown.permission == Permission.DENY,
    )


class SecurityCalls:
    """The part of `client.Client` that says who may do what, and how much of it."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def describe_acls(
        self,
        principal: str | None = None,
        resource_type: ResourceType | None = None,
        name: str | None = None,
    ) -> list[Acl]:
        """Return the rules of *principal* (None: of all) that concern the resource *name*, or all.

        Raises:
            FatalError: They can't be shown.
        """
        kind = ANY if resource_type is None else resource_type
        pattern = ANY if name is None else MATCH
        request = m.DescribeAclsRequest(kind, name, pattern, principal, None, ANY, ANY)
        response = await self._router.ask(request, m.DescribeAclsResponse)
        _check(response.error, "no list of rules", response.message)
        return list(map(_acl, response.acls))

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add rules; one that is there already changes nothing.

        Raises:
            FatalError: Some were refused, the others are in force.
            OutcomeUnknown: No definite answer in time. Repeat the same call.
        """
        wanted = tuple(acls)
        request = m.CreateAclsRequest(tuple(m.Acl(*_wire(one)) for one in wanted))
        response = await self._router.ask(request, m.CreateAclsResponse, changes_state=True)
        _check(response.error, "no rules were added")
        _check_parts(
            [
                (str(one), r.error, r.message)
                for one, r in zip(wanted, response.results, strict=True)
            ]
        )

    async def delete_acls(self, acls: Iterable[Acl]) -> list[Acl]:
        """Remove exactly these rules; return those that were there.

        Raises:
            OutcomeUnknown: No definite answer in time. Repeat the same call.
        """
        filters = tuple(m.AclFilter(*_wire(one)) for one in acls)
        request = m.DeleteAclsRequest(filters)
        response = await self._router.ask(request, m.DeleteAclsResponse, changes_state=True)
        _check(response.error, "no rules were removed")
        _check_parts([("a rule", r.error, r.message) for r in response.results])
        return [_acl(one) for result in response.results for one in result.acls]

    async def describe_users(self) -> dict[str, dict[str, int]]:
        """Return who can log in with a password: the iterations by mechanism, by user."""
        found: dict[str, dict[str, int]] = {}
        after, has_more = "", True
        while has_more:
            request = m.DescribeUserScramCredentialsRequest(None, after, USERS_PER_PAGE)
            response = await self._router.ask(request, m.DescribeUserScramCredentialsResponse)
            _check(response.error, "no list of users", response.message)
            for user in response.users:
                infos = user.credentials
                found[user.user] = {Mechanism(c.mechanism).sasl_name: c.iterations for c in infos}
                after = user.user
            has_more = response.has_more and bool(response.users)
        return found

    async def set_password(
        self,
        user: str,
        password: str,
        mechanism: str = "SCRAM-SHA-256",
    ) -> None:
        """Let *user* log in with *password*, and no more with an older one.

        The password isn't sent: its keys are made here.

        Raises:
            FatalError: Refused, for instance 93: nobody can be called so.
            OutcomeUnknown: No definite answer in time. Repeat the same call.
            ValueError: The password can't be one, or there is no such mechanism.
        """
        kind = _mechanism(mechanism)
        salt = secrets.token_bytes(SALT_BYTES)
        keys = keys_of(password, kind, salt, ITERATIONS)
        wanted = m.ScramUpsertion(user, kind, ITERATIONS, salt, *keys)
        await self._alter_users(m.AlterUserScramCredentialsRequest((), (wanted,)))

    async def remove_password(self, user: str, mechanism: str = "SCRAM-SHA-256") -> None:
        """Let *user* log in no more with a password of this mechanism.

        Raises:
            FatalError: Code 91: there is none.
            OutcomeUnknown: No definite answer in time. Look who is there.
            ValueError: There is no such mechanism.
        """
        gone = m.ScramDeletion(user, _mechanism(mechanism))
        await self._alter_users(m.AlterUserScramCredentialsRequest((gone,), ()))

    async def _alter_users(self, request: m.AlterUserScramCredentialsRequest) -> None:
        response = await self._router.ask(
            request, m.AlterUserScramCredentialsResponse, changes_state=True
        )
        _check(response.error, "the user wasn't changed")
        _check_parts([(f"user {r.user!r}", r.error, r.message) for r in response.results])

    async def describe_quotas(self) -> dict[str | None, dict[str, int]]:
        """Return the quotas that are set, by principal; None is the default."""
        request = m.DescribeClientQuotasRequest(None)
        response = await self._router.ask(request, m.DescribeClientQuotasResponse)
        _check(response.error, "no list of quotas", response.message)
        return {
            entry.principal or None: {quota.key: quota.value for quota in entry.quotas}
            for entry in response.entries
        }

    async def alter_quotas(self, principal: str | None, quotas: Mapping[str, int | None]) -> None:
        """Set quotas of *principal* (None: the default), and remove those that are None.

        Raises:
            FatalError: Code 42: there is no such quota or principal; nothing was changed.
            OutcomeUnknown: No definite answer in time. Repeat the same call.
        """
        changes = tuple(m.QuotaChange(key, value) for key, value in quotas.items())
        entry = m.AlteredPrincipal(principal or "", changes)
        request = m.AlterClientQuotasRequest((entry,))
        response = await self._router.ask(request, m.AlterClientQuotasResponse, changes_state=True)
        _check(response.error, "no quotas were changed")
        _check_parts([(r.principal or "the default", r.error, r.message) for r in response.results])


def _mechanism(name: str) -> Mechanism:
    if name not in MECHANISMS:
        raise ValueError(f"there is no mechanism {name!r}, but {', '.join(MECHANISMS)}")
    return MECHANISMS[name]


def _check_parts(parts: Iterable[tuple[str, int, str | None]], problem: str = "refused") -> None:
    """Raise FatalError with all that was refused, behind *problem*."""
    refused = [(what, code, message) for what, code, message in parts if code != ErrorCode.NONE]
    if refused:
        words = "; ".join(f"{what}: {code_text(code, message)}" for what, code, message in refused)
        raise refusal(f"{problem}: {words}", refused[0][1])


class PositionTooOld(FatalError):
    """The changes from this position on are no longer there, or never were: scan anew."""


class AlteredOffsets(NamedTuple):
    """Result of an `alter_offsets`.

    ``codes`` has one code per partition: 0 done, 1009 owned by a member, 1003 committed offset not
    as expected, 3 no such partition. ``removed`` holds the ids of the removed members.
    """

    codes: dict[TopicPartition, int]
    removed: tuple[str, ...]


class OffsetChanges(NamedTuple):
    """Some changes in their order, and where to go on.

    ``next_position`` may have moved although nothing changed. It is ``end_position`` if there is
    nothing more to read at the moment.
    """

    changes: tuple[m.OffsetChange, ...]
    next_position: int
    end_position: int


class ColumnScan:
    """One pass over an offsets partition: ``async for`` yields offsets, `page` their columns.

    Attributes:
        position: First position of the changes that belong to this scan; -1 before the first page
            was read. The scan with all changes from this position on applied is exactly the
            committed state at the end of those changes. The scan alone is no state of any
            moment: commits go on between two pages.

    """

    def __init__(
        self,
        router: Router,
        offsets_partition: int,
        group_ids: Collection[str] | None,
        topics: Collection[str] | None,
    ) -> None:
        """Use `client.Client.scan_offset_columns` instead."""
        self.position = NO_POSITION
        self._router = router
        self._request: m.ScanOffsetsRequest | None = scan_request(
            offsets_partition,
            None if group_ids is None else names_of(group_ids, "group_ids"),
            None if topics is None else names_of(topics, "topics"),
        )

    async def __aiter__(self) -> AsyncIterator[m.ScannedOffset]:
        while page := await self.page():
            for offset in offsets_of_page(page):
                yield offset

    async def page(self) -> m.OffsetColumns | None:
        """Return the next offsets, in the order of (group, topic, partition); None at the end."""
        while self._request is not None:
            response = await self._router.ask(self._request, m.ScanOffsetsResponse)
            what = f"no scan of offsets partition {self._request.offsets_partition}"
            _check(response.error, what)
            if self.position == NO_POSITION:
                self.position = response.position
            following = structs.replace(self._request, cursor=response.cursor)
            self._request = following if response.cursor else None
            for columns in response.columns:
                if columns.counts:
                    return columns
        return None


def offsets_of_page(page: m.OffsetColumns) -> list[m.ScannedOffset]:
    """Return the offsets of a page one by one.

    Raises:
        FatalError: The page is not what the protocol says.
    """
    try:
        return scanned_offsets(page)
    except RemoteProtocolError as exc:
        raise FatalError(f"a page of a scan can't be read: {exc}") from exc


class OperatorCalls(TopicCalls, SecurityCalls):
    """The part of `client.Client` that joins no group."""

    # --- Groups ---

    async def describe_groups(self, groups: Iterable[str]) -> list[m.DescribedGroup]:
        """Return state and members of each group, in the order asked.

        A group that isn't there has error 69 and state "Dead".
        """
        described: list[m.DescribedGroup] = []
        for group in names_of(groups, "groups"):
            response = await self._router.ask(
                m.DescribeGroupsRequest((group,)), m.DescribeGroupsResponse
            )
            described.extend(response.groups)
        return described

    async def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[m.ListedGroup]:
        """Return all groups, or those in the given states and of the given types."""
        request = m.ListGroupsRequest(names_of(states, "states"), names_of(types, "types"))
        found: list[m.ListedGroup] = []
        for response in await self._router.ask_leaders(request, m.ListGroupsResponse):
            _check(response.error, "no list of groups")
            found += response.groups
        return found

    async def summarize_groups(
        self, pattern: str | None = None, *, states: Iterable[str] = (), samples: int = 0
    ) -> list[GroupSummary]:
        """Return all groups with their members, their lag, and what it was some minutes ago.

        Args:
            pattern: Only groups whose whole id matches this regular expression of RE2's syntax.
            states: Only groups in one of these states.
            samples: How many of the last lags to return of each group, at most: one a minute,
                for an hour.

        Raises:
            FatalError: Code 128: *pattern* is no regular expression; 35: the coordinator is too
                old for this.
        """
        wanted = names_of(states, "states")
        request = m.SummarizeGroupsRequest(pattern, wanted, b"", GROUPS_PER_PAGE, samples)
        found: list[GroupSummary] = []
        for response in await self._router.ask_leaders(request, m.SummarizeGroupsResponse):
            _check(response.error, "no summary of groups", response.message)
            found += map(_summary, response.groups)
        return found

    async def delete_groups(self, groups: Iterable[str]) -> dict[str, int]:
        """Delete groups without members, with their offsets; return the code per group.

        0 is done; 68 has members; 69 is not there.

        Raises:
            OutcomeUnknown: No definite answer in time; describe the group to find out.
        """
        codes: dict[str, int] = {}
        for group in dict.fromkeys(names_of(groups, "groups")):
            request = m.DeleteGroupsRequest((group,))
            response = await self._router.ask(request, m.DeleteGroupsResponse, changes_state=True)
            codes[group] = known_code(response.groups[0].error)
        return codes

    async def drain_member(
        self, group: str, client_id: str, *, timeout_ms: int | None = None
    ) -> list[m.DrainedMember]:
        """Take all partitions away from the members with *client_id*, before a planned stop.

        Repeat it until each is drained. It tries for *timeout_ms*, by default the client's
        request timeout.

        Raises:
            FatalError: Code 69: no such group; 25: no such member.
        """
        request = m.DrainMemberRequest(group, client_id)
        response = await self._router.ask(
            request, m.DrainMemberResponse, changes_state=True, timeout_ms=timeout_ms
        )
        _check(response.error, f"{client_id!r} in group {group!r} can't be drained")
        return list(response.members)

    async def remove_static_members(
        self, group: str, instance_ids: Iterable[str], reason: str | None = None
    ) -> dict[str, int]:
        """Remove static members by their instance ids, all in one rebalance; return the codes.

        For those that will not come back: a static member doesn't leave when it ends, and keeps
        its partitions until its session does. 0 is done; 25: the group has no such member.
        """
        names = dict.fromkeys(names_of(instance_ids, "instance_ids"))
        return await self._remove(group, {n: m.LeavingMember("", n, reason) for n in names})

    async def remove_members(
        self, group: str, member_ids: Iterable[str], reason: str | None = None
    ) -> dict[str, int]:
        """Remove members by their ids, all in one rebalance; return the codes.

        Those that live find out at their next heartbeat, and join again as new members, at what
        is committed by then. 0 is done; 25: the group has no such member (any more).
        """
        names = dict.fromkeys(names_of(member_ids, "member_ids"))
        return await self._remove(group, {n: m.LeavingMember(n, None, reason) for n in names})

    async def _remove(self, group: str, leaving: dict[str, m.LeavingMember]) -> dict[str, int]:
        if not leaving:
            return {}
        request = m.LeaveGroupRequest(group, tuple(leaving.values()))
        response = await self._router.ask(request, m.LeaveGroupResponse, changes_state=True)
        _check(response.error, f"members of group {group!r} can't be removed")
        codes = (known_code(left.error) for left in response.members)
        return dict(zip(leaving, codes, strict=False))

    async def rebalances(self, group: str, limit: int = REBALANCES_MAX) -> list[m.Rebalance]:
        """Return the newest *limit* rebalances of *group*, newest first: why, how long, who late.

        The coordinator keeps the last 100.

        Raises:
            FatalError: Code 69: no such group.
        """
        request = m.DescribeRebalancesRequest(group, limit)
        response = await self._router.ask(request, m.DescribeRebalancesResponse)
        _check(response.error, f"no rebalances of group {group!r}", response.message)
        return list(response.rebalances)

    # --- Offsets ---

    async def lag(self, group: str) -> dict[TopicPartition, Lag]:
        """Return how far *group* is behind, in each partition that it has committed or assigned.

        Raises:
            FatalError: Code 69: no such group.
        """
        return await group_lag(self._router, group)

    async def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Forget committed offsets of a group; return the code per partition.

        0 is done (or nothing was committed); 86: the group's members subscribe to the topic;
        3: the topic is registered and has no such partition.

        Raises:
            FatalError: Code 69: no such group; 68: it has members that are no consumers.
        """
        wanted = sorted(set(partitions))
        codes: dict[TopicPartition, int] = {}
        for start in range(0, len(wanted), PARTITIONS_PER_REQUEST):
            part = by_topic(wanted[start : start + PARTITIONS_PER_REQUEST])
            request = m.OffsetDeleteRequest(group, part)
            response = await self._router.ask(request, m.OffsetDeleteResponse, changes_state=True)
            _check(response.error, f"offsets of group {group!r} can't be deleted")
            codes |= _codes_of(response.topics)
        return codes

    async def alter_offsets(
        self,
        group: str,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None = None,
        *,
        remove_owners: bool = False,
        reason: str | None = None,
    ) -> AlteredOffsets:
        """Set the committed offsets of a group, also while it has members.

        A partition that a member owns, or is giving up, is left alone (1009). With
        *remove_owners* those members are removed in the same step: they join again by
        themselves, and the new owner of a partition begins at the new offset.

        Args:
            group: The group id; a missing group is created.
            offsets: The next offset to read of each partition, at most 10,000.
            expected: Only where this is committed, -1 for nothing; else 1003. It keeps a call
                that is repeated for a lost answer from undoing what was committed in between.
            remove_owners: See above.
            reason: Reason for the history of rebalances.

        Raises:
            FatalError: The group was refused as a whole; nothing was changed.
            OutcomeUnknown: No definite answer in time. Look at what is committed.
            ValueError: An offset is none.
        """
        asked = commit_request(group, -1, "", None, offsets, expected).topics
        topics = tuple(
            m.AlteredTopic(
                one.topic, tuple(m.AlteredOffset(*structs.astuple(p)) for p in one.partitions)
            )
            for one in asked
        )
        request = m.AlterOffsetsRequest(group, topics, remove_owners, reason)
        reply = await self._router.call(request, changes_state=True)
        response = reply.response
        assert isinstance(response, m.AlterOffsetsResponse)
        codes = _codes_of(response.topics)
        if reply.after_doubt and (response.error or any(codes.values())):
            # The refusal is about this attempt; an earlier one may well have been stored.
            raise OutcomeUnknown(f"offsets of group {group!r}: an earlier attempt was not answered")
        _check(response.error, f"offsets of group {group!r} can't be altered", response.message)
        return AlteredOffsets(codes, response.removed_members)

    async def set_offsets_retention(self, group: str, retention_ms: int | None) -> None:
        """Keep the group's offsets for *retention_ms* once nobody uses them; -1 is for ever.

        None is the server's setting offsets.retention.minutes again.

        Raises:
            FatalError: Code 69: no such group.
            ValueError: *retention_ms* is below -1.
        """
        if retention_ms is not None and retention_ms < FOR_EVER:
            raise ValueError(f"{retention_ms} ms is no time to keep offsets; -1 is for ever")
        request = m.AlterGroupRetentionRequest(group, retention_ms)
        response = await self._router.ask(
            request, m.AlterGroupRetentionResponse, changes_state=True
        )
        _check(response.error, f"the retention of group {group!r} can't be changed")

    async def offsets_partition(self, group: str) -> int:
        """Return the offsets partition that keeps *group*, for `scan_offset_columns`."""
        request = m.FindCoordinatorRequest(m.KEY_TYPE_GROUP, (group,))
        response = await self._router.ask(request, m.FindCoordinatorResponse)
        found = response.coordinators[0]
        _check(found.error, f"no coordinator for {group!r}", found.message)
        return found.offsets_partition

    async def offsets_partitions(self) -> list[int]:
        """Return all offsets partitions, for `scan_offset_columns` and `offset_changes`."""
        return list(await self.offsets_log_ends())

    async def offsets_log_ends(self) -> dict[int, int]:
        """Return where the log of each offsets partition ends, what isn't on disk yet included."""
        nodes = await self._router.ask_leaders(m.DescribeNodeRequest(), m.DescribeNodeResponse)
        for node in nodes:
            _check(node.error, "a node can't be described")
        return log_ends(nodes)

    def scan_offset_columns(
        self,
        offsets_partition: int,
        group_ids: Collection[str] | None = None,
        topics: Collection[str] | None = None,
    ) -> ColumnScan:
        """Return all offsets of one offsets partition, or those of some groups and topics.

        ``async for`` yields them one by one; `ColumnScan.page` returns them in columns, as they
        are on the wire, for those who read millions. At most 10,000 groups and 10,000 topics can
        be named, in at most a request's bytes.

        Commits go on meanwhile. For a state that was there at one moment, apply the changes from
        `ColumnScan.position` on; see `offset_changes`.

        Raises:
            FatalError: While reading, code 42: there is no such offsets partition; 35: the
                coordinator is too old for this.
        """
        return ColumnScan(self._router, offsets_partition, group_ids, topics)

    async def offset_changes(
        self, offsets_partition: int, position: int, max_changes: int = CHANGES_PER_PAGE
    ) -> OffsetChanges:
        """Return what was committed and removed from *position* on, in its order.

        Only what is on disk, and as much of it as the log still has: a compacted log skips
        changes that newer ones have overwritten. Doesn't wait for new ones.

        Raises:
            PositionTooOld: The log doesn't reach back so far, or not as far: scan anew.
            FatalError: Code 42: there is no such offsets partition.
        """
        request = m.ReadOffsetChangesRequest(offsets_partition, position, max_changes)
        response = await self._router.ask(request, m.ReadOffsetChangesResponse)
        what = f"no changes of offsets partition {offsets_partition} from {position} on"
        if response.error == ErrorCode.POSITION_TOO_OLD:
            raise PositionTooOld(f"{what}: {code_text(response.error)}", code=response.error)
        _check(response.error, what)
        return OffsetChanges(response.changes, response.next_position, response.end_position)

    def watch_offsets(
        self,
        groups: Iterable[str] | None = None,
        topics: Iterable[str] | None = None,
        *,
        from_beginning: bool = False,
    ) -> OffsetWatch:
        """Follow what is committed and removed, of some groups and topics or of all (None).

        ``async for`` yields events without end. It outlives restarts of the coordinator, and goes
        on where it was. Where the log no longer has what came meanwhile, or another cluster
        answers, that is logged, and an event "scan" comes: everything known of its
        ``offsets_partition`` is void, and what is there follows as "found".

        Args:
            groups: Only these.
            topics: Only these, and groups that are deleted.
            from_beginning: Such a scan of everything comes first; otherwise it begins now,
                which is when the first event is asked for.

        Raises:
            TypeError: *groups* or *topics* is one name.
        """
        return OffsetWatch(
            self._router,
            None if groups is None else names_of(groups, "groups"),
            None if topics is None else names_of(topics, "topics"),
            from_beginning=from_beginning,
        )


def names_of(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Return *names*.

    Raises:
        TypeError: They are one name, whose letters would be taken for names.
    """
    if isinstance(names, str):
        raise TypeError(f"{what} must be a sequence of names, not {names!r}")
    return tuple(names)


def _check(code: int, what: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise refusal(f"{what}: {code_text(code, message)}", code)
