"""Rules of access (ACLs), with Kafka's semantics.

Theory of operation
===================

A rule allows or denies a principal, from a host, an operation on the resources of a type that a
pattern names. Among all rules that match, one denial outweighs every permission
(`org.apache.kafka.metadata.authorizer.StandardAuthorizer`; prefixes: KIP-290):

- a principal matches its own rules and those of ``User:*``, a host its own and those of ``*``;
- a name matches the literal rules of that name and of ``*``, and every prefix of itself;
- a rule for ALL covers each operation;
- READ, WRITE, DELETE or ALTER implies DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS. A
  denial denies only its own operation.

Without a matching rule nothing is allowed. Super users, and the default for resources without
rules, are handled by the caller.

All rules of one principal for one pattern are two masks of operations per host. Authorizing one
resource therefore takes a few dict lookups, plus one for each different *length* of the principal's
prefixes, and gives all operations at once. Rules are read far more often than they change: a cached
result is kept together with `Rules.version`. The rules are kept sorted as well, because sorting
10,000 of them for each listing would block all other requests.
"""

import bisect
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from msgspec import structs

from coordinator.group.core import Handlers, Step, shown_in_slices
from coordinator.group.records import Reader, Writer
from protocol.acls import (
    ANY,
    CLUSTER,
    EVERY_HOST,
    EVERY_NAME,
    EVERYBODY,
    MATCH,
    OPERATIONS,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    canonical_address,
    host_problem,
    principal_problem,
)
from protocol.errors import ErrorCode
from protocol.messages import (
    Acl,
    AclFilter,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcls,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribedAcl,
)

RULE: Final = 1020
# Maximum number of rules; all of them fit one response, even with the longest texts.
RULES_MAX: Final = 10_000
# Maximum number of rules named in an event; a request may contain thousands.
NAMED_MAX: Final = 100

_ALL_BITS: Final = sum(operation.bit for operation in Operation)
_DESCRIBERS: Final = (
    Operation.READ.bit | Operation.WRITE.bit | Operation.DELETE.bit | Operation.ALTER.bit
)
_INVALID: Final = ErrorCode.INVALID_REQUEST.value


class Rule(NamedTuple):
    """One rule, compared by value."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    is_allow: bool

    def __str__(self) -> str:
        verb = "may" if self.is_allow else "must not"
        prefixed = self.pattern_type is PatternType.PREFIXED
        return (
            f"{self.principal} from {self.host} {verb} {self.operation.name} "
            f"{self.resource_type.name} {self.name}{'…' if prefixed else ''}"
        )

    def described(self) -> DescribedAcl:
        permission = Permission.ALLOW if self.is_allow else Permission.DENY
        return DescribedAcl(*self[:-1], permission)


class RuleAdded(NamedTuple):
    """A rule is in force from here on."""

    rule: Rule


class RuleRemoved(NamedTuple):
    """A rule is no longer in force."""

    rule: Rule


RuleRecord = RuleAdded | RuleRemoved


class _Masks:
    """Masks of the operations allowed and denied by rules that differ only in the operation."""

    __slots__ = ("allowed", "denied")

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0


# Masks by host, of rules that differ only in host and operation.
_ByHost = dict[str, _Masks]


class _OfPrincipal:
    """The rules of one principal for the resources of one type."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _ByHost] = {}
        self.prefixed: dict[str, _ByHost] = {}
        self.lengths: Counter[int] = Counter()  # Lengths of the prefixes.

    def about(self, name: str) -> Iterator[_ByHost]:
        """Yield the masks of all patterns that match *name*."""
        literal, prefixed = self.literal, self.prefixed
        if name in literal:
            yield literal[name]
        if EVERY_NAME in literal and name != EVERY_NAME:
            yield literal[EVERY_NAME]
        for length in self.lengths:
            found = prefixed.get(name[:length]) if length <= len(name) else None
            if found is not None:
                yield found

    def add(self, rule: Rule) -> None:
        where = self._place(rule)
        masks = where.setdefault(rule.name, {}).setdefault(rule.host, _Masks())
        if rule.is_allow:
            masks.allowed |= rule.operation.bit
        else:
            masks.denied |= rule.operation.bit
        if where is self.prefixed:
            self.lengths[len(rule.name)] += 1

    def remove(self, rule: Rule) -> None:
        where = self._place(rule)
        masks = where[rule.name][rule.host]
        if rule.is_allow:
            masks.allowed &= ~rule.operation.bit
        else:
            masks.denied &= ~rule.operation.bit
        if not (masks.allowed or masks.denied):
            del where[rule.name][rule.host]
            if not where[rule.name]:
                del where[rule.name]
        if where is self.prefixed:
            _count_off(self.lengths, len(rule.name))

    def _place(self, rule: Rule) -> dict[str, _ByHost]:
        return self.prefixed if rule.pattern_type is PatternType.PREFIXED else self.literal


class _OfType:
    """The rules for the resources of one type, by principal."""

    def __init__(self) -> None:
        self.of_principal: dict[str, _OfPrincipal] = {}
        # Number of rules per literal name, and per prefix, of all principals.
        self.names: Counter[str] = Counter()
        self.prefixes: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()  # Lengths of the prefixes.

    def has_any(self, name: str) -> bool:
        if name in self.names or EVERY_NAME in self.names:
            return True
        return any(name[:length] in self.prefixes for length in self.lengths)

    def masks(self, principal: str, host: str, name: str) -> tuple[int, int]:
        """Return the masks of the operations that rules allow and deny on a resource."""
        allowed = denied = 0
        for who in (principal, EVERYBODY):
            rules = self.of_principal.get(who)
            if rules is None:
                continue
            for by_host in rules.about(name):
                for masks in (by_host.get(host), by_host.get(EVERY_HOST)):
                    if masks is not None:
                        allowed |= masks.allowed
                        denied |= masks.denied
        return allowed, denied

    def add(self, rule: Rule) -> None:
        self.of_principal.setdefault(rule.principal, _OfPrincipal()).add(rule)
        self._counts(rule)[rule.name] += 1
        if rule.pattern_type is PatternType.PREFIXED:
            self.lengths[len(rule.name)] += 1

    def remove(self, rule: Rule) -> None:
        rules = self.of_principal[rule.principal]
        rules.remove(rule)
        if not (rules.literal or rules.prefixed):
            del self.of_principal[rule.principal]
        _count_off(self._counts(rule), rule.name)
        if rule.pattern_type is PatternType.PREFIXED:
            _count_off(self.lengths, len(rule.name))

    def _counts(self, rule: Rule) -> Counter[str]:
        return self.prefixes if rule.pattern_type is PatternType.PREFIXED else self.names


def _count_off(counts: Counter[Any], what: Any) -> None:
    counts[what] -= 1
    if not counts[what]:
        del counts[what]


class Rules:
    """All rules; only `replay` changes them.

    Attributes:
        version: Incremented by each change.
        handlers: Handlers of the requests that change rules, by request type.
    """

    def __init__(self) -> None:
        self.version = 0
        self.handlers: Handlers = {
            CreateAclsRequest: self._create,
            DeleteAclsRequest: self._delete,
        }
        self.reset()

    def reset(self) -> None:
        """Remove all rules; results cached under an older version become invalid."""
        self.version += 1
        self._rules: set[Rule] = set()
        self._spellings: Counter[Rule] = Counter()  # Rules by their `_usual` form.
        self._in_order: list[Rule] = []  # The same rules, sorted.
        self._of_type: dict[ResourceType, _OfType] = {kind: _OfType() for kind in ResourceType}

    def loaded(self) -> None:
        """Do nothing: rules are in force as soon as they are replayed."""

    def __len__(self) -> int:
        return len(self._rules)

    def replay(self, record: RuleRecord) -> None:
        """Apply one record; repeating it changes nothing. Never raises."""
        rule = record.rule
        is_new = type(record) is RuleAdded
        if is_new == (rule in self._rules):
            return
        self.version += 1
        usual = _usual(rule)
        if is_new:
            self._rules.add(rule)
            bisect.insort(self._in_order, rule)
            self._spellings[usual] += 1
            if self._spellings[usual] == 1:
                self._of_type[rule.resource_type].add(usual)
        else:
            self._rules.remove(rule)
            del self._in_order[bisect.bisect_left(self._in_order, rule)]
            _count_off(self._spellings, usual)
            if usual not in self._spellings:
                self._of_type[rule.resource_type].remove(usual)

    def hard_state(self) -> tuple[Rule, ...]:
        """Return all rules, sorted."""
        return tuple(self._in_order)

    # --- lookups ----------------------------------------------------------------------------

    def granted(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """Return the mask (see `Operation.bit`) of all operations allowed on a resource."""
        return _granted(*self._of_type[resource_type].masks(principal, host, name))

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        return bool(self.granted(principal, host, resource_type, name) & operation.bit)

    def has_any(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether any rule, of any principal, covers a resource."""
        return self._of_type[resource_type].has_any(name)

    def matching(self, wanted: AclFilter) -> list[Rule]:
        """Return the rules that match a filter, sorted; `filter_problem` must have accepted it."""
        resource_type, name, pattern_type, principal, host, operation, permission = structs.astuple(
            wanted
        )
        found = self._in_order.copy()
        # One field after the other, and only the given ones: ten times as fast as comparing all
        # fields of each rule.
        if resource_type != ANY:
            found = [rule for rule in found if rule.resource_type == resource_type]
        if principal is not None:
            found = [rule for rule in found if rule.principal == principal]
        if host is not None:
            found = [rule for rule in found if rule.host == host]
        if operation != ANY:
            found = [rule for rule in found if rule.operation == operation]
        if permission != ANY:
            is_allow = permission == Permission.ALLOW
            found = [rule for rule in found if rule.is_allow is is_allow]
        if pattern_type == MATCH and name is not None:
            return [rule for rule in found if _concerns(rule, name)]
        if pattern_type not in {ANY, MATCH}:
            found = [rule for rule in found if rule.pattern_type == pattern_type]
        if name is not None:
            found = [rule for rule in found if rule.name == name]
        return found

    # --- deciding ---------------------------------------------------------------------------

    def _create(self, request: CreateAclsRequest, step: Step) -> CreateAclsResponse:
        results = []
        added: list[Rule] = []
        for asked in request.acls:
            problem = rule_problem(asked)
            if problem is not None:
                results.append(CreatedAcl(_INVALID, problem))
                continue
            rule = _rule(asked)
            if rule not in self._rules:
                if step.storage_full:
                    message = "the disk is nearly full"
                    results.append(CreatedAcl(ErrorCode.STORAGE_FULL.value, message))
                    continue
                if len(self._rules) >= RULES_MAX:
                    message = f"there are {RULES_MAX} rules already"
                    results.append(CreatedAcl(ErrorCode.QUOTA_EXCEEDED.value, message))
                    continue
                self._emit(step, RuleAdded(rule))
                added.append(rule)
            results.append(CreatedAcl(ErrorCode.NONE.value, None))
        if added:
            step.event("acl.added", count=len(added), rules=_words(added), by=step.caller.principal)
        return CreateAclsResponse(ErrorCode.NONE.value, tuple(results))

    def _delete(self, request: DeleteAclsRequest, step: Step) -> DeleteAclsResponse:
        results = []
        removed: list[Rule] = []
        for wanted in request.filters:
            problem = filter_problem(wanted)
            if problem is not None:
                results.append(DeletedAcls(_INVALID, problem, ()))
                continue
            found = self.matching(wanted)
            for rule in found:
                self._emit(step, RuleRemoved(rule))
            removed += found
            shown = tuple(rule.described() for rule in found)
            results.append(DeletedAcls(ErrorCode.NONE.value, None, shown))
        if removed:
            step.event(
                "acl.removed", count=len(removed), rules=_words(removed), by=step.caller.principal
            )
        return DeleteAclsResponse(ErrorCode.NONE.value, tuple(results))

    def _emit(self, step: Step, record: RuleRecord) -> None:
        step.outcome.records.append(record)
        self.replay(record)

    def describe(
        self, request: DescribeAclsRequest, max_bytes: int
    ) -> Generator[None, None, DescribeAclsResponse | None]:
        """Return the rules that match at the start, packed, in steps; None: over *max_bytes*."""
        wanted = AclFilter(*structs.astuple(request))
        problem = filter_problem(wanted)
        if problem is not None:
            return DescribeAclsResponse(_INVALID, problem, ())
        shown = yield from shown_in_slices(self.matching(wanted), Rule.described, max_bytes)
        return None if shown is None else DescribeAclsResponse(ErrorCode.NONE.value, None, shown)


def _granted(allowed: int, denied: int) -> int:
    """Return the allowed operations with the implied ones, less the denied ones."""
    if denied & Operation.ALL.bit:
        return 0
    if allowed & Operation.ALL.bit:
        allowed = _ALL_BITS
    if allowed & _DESCRIBERS:
        allowed |= Operation.DESCRIBE.bit
    if allowed & Operation.ALTER_CONFIGS.bit:
        allowed |= Operation.DESCRIBE_CONFIGS.bit
    return allowed & ~denied


def _words(rules: list[Rule]) -> list[str]:
    return [str(rule) for rule in islice(rules, NAMED_MAX)]


def _usual(rule: Rule) -> Rule:
    """Return *rule* with its host spelled as the addresses of connections are.

    Earlier releases accepted any spelling, and reported IPv4 clients as ``::ffff:192.0.2.1``.
    """
    if ":" not in rule.host:
        return rule
    return rule._replace(host=canonical_address(rule.host) or rule.host)


def _rule(asked: Acl) -> Rule:
    return Rule(
        ResourceType(asked.resource_type),
        asked.resource_name,
        PatternType(asked.pattern_type),
        asked.principal,
        asked.host,
        Operation(asked.operation),
        asked.permission == Permission.ALLOW,
    )


# Valid numbers of each field, in rules and in filters. Built once: listing them takes longer than
# the rest of the check.
_OF_RULES: Final[Mapping[str, frozenset[int]]] = {
    "resource_type": frozenset(ResourceType),
    "pattern_type": frozenset(PatternType),
    "operation": frozenset(Operation),
    "permission": frozenset(Permission),
}
_OF_FILTERS: Final = {
    field: numbers | ({ANY, MATCH} if field == "pattern_type" else {ANY})
    for field, numbers in _OF_RULES.items()
}


def rule_problem(asked: Acl) -> str | None:
    """Return why *asked* is not a valid rule, None if it is valid."""
    for field, numbers in _OF_RULES.items():
        if getattr(asked, field) not in numbers:
            return f"{field} {getattr(asked, field)} is not known"
    kind = ResourceType(asked.resource_type)
    if asked.operation not in OPERATIONS[kind]:
        return f"{Operation(asked.operation).name} is nothing that is done with a {kind.name}"
    if kind is ResourceType.CLUSTER and (
        asked.resource_name != CLUSTER or asked.pattern_type != PatternType.LITERAL
    ):
        return f"the only CLUSTER is the literal {CLUSTER}"
    return principal_problem(asked.principal) or host_problem(asked.host)


def filter_problem(wanted: AclFilter) -> str | None:
    """Return why *wanted* is not a valid filter, None if it is valid."""
    for field, numbers in _OF_FILTERS.items():
        if getattr(wanted, field) not in numbers:
            return f"{field} {getattr(wanted, field)} of a filter is not known"
    return None


def _concerns(rule: Rule, name: str) -> bool:
    """Return whether a rule covers the resource *name*."""
    if rule.pattern_type is PatternType.PREFIXED:
        return name.startswith(rule.name)
    return rule.name in {name, EVERY_NAME}


# --- in the log -----------------------------------------------------------------------------


def _read(_scope: str, key: Any, value: Any) -> RuleRecord:
    resource_type, name, pattern_type, principal, host, operation, is_allow = key
    if {*map(type, (name, principal, host))} != {str} or type(is_allow) is not bool:
        raise ValueError("the key is no rule")
    rule = Rule(
        ResourceType(resource_type),
        name,
        PatternType(pattern_type),
        principal,
        host,
        Operation(operation),
        is_allow,
    )
    return RuleRemoved(rule) if value is None else RuleAdded(rule)


WRITERS: Final[Mapping[type, Writer]] = {
    RuleAdded: lambda record: (RULE, 0, "", tuple(record.rule), ()),
    RuleRemoved: lambda record: (RULE, 0, "", tuple(record.rule), None),
}
READERS: Final[Mapping[int, Reader]] = {RULE: Reader(_read)}
