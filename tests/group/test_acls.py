"""Rules of access: what they allow, how they are changed, and how they lie in the log."""

from typing import Any, SupportsIndex

import pytest
from hypothesis import example, given, strategies as st
from msgspec import structs

from coordinator.group.acls import Rule, RuleAdded, RuleRemoved, Rules
from coordinator.group.node_records import read_item
from coordinator.group.records import MalformedRecord, UnknownRecord
from protocol.acls import (
    ANONYMOUS,
    ANY,
    CLUSTER,
    MATCH,
    OPERATIONS,
    Operation,
    PatternType,
    ResourceType,
)
from protocol.messages import (
    Acl,
    AclFilter,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from tests.group.context import returned
from tests.group.node_context import NodeContext, roundtrip
from tests.packed import node_entry

Op, T, P = Operation, ResourceType, PatternType
ALICE = "User:alice"
EVERYTHING = AclFilter(ANY, None, ANY, None, None, ANY, ANY)


def rule(
    name: str,
    operation: Operation = Op.READ,
    *,
    principal: str = ALICE,
    host: str = "*",
    kind: ResourceType = T.GROUP,
    pattern: PatternType = P.LITERAL,
    allow: bool = True,
) -> Rule:
    """Return a rule; without more said, one that allows Alice to read a group."""
    return Rule(kind, name, pattern, principal, host, operation, allow)


def rules_of(*rules: Rule) -> Rules:
    """Return *rules* in force."""
    found = Rules()
    for one in rules:
        found.replay(RuleAdded(one))
    return found


def acl(one: Rule) -> Acl:
    """Return *one* as a request names it."""
    return Acl(*structs.astuple(one.described()))


def may(found: Rules, operation: Operation, name: str = "etl", host: str = "h") -> bool:
    """Say whether Alice may do it with a group."""
    return found.allows(ALICE, host, operation, T.GROUP, name)


def test_without_a_rule_nothing_is_allowed() -> None:
    """Who was forgotten has no rights, not all of them."""
    found = rules_of()

    assert not any(may(found, operation) for operation in Op)
    assert not found.has_any(T.GROUP, "etl")


@pytest.mark.parametrize("operation", [Op.READ, Op.WRITE, Op.DELETE, Op.ALTER])
def test_who_may_use_a_thing_may_see_it(operation: Operation) -> None:
    """Kafka's: these imply DESCRIBE, and nothing else."""
    found = rules_of(rule("etl", operation))

    assert {o for o in Op if may(found, o)} == {operation, Op.DESCRIBE}


def test_who_may_change_settings_may_see_them() -> None:
    """And not the other way round."""
    kind = {"kind": T.CLUSTER}
    changer = rules_of(rule(CLUSTER, Op.ALTER_CONFIGS, **kind))  # type: ignore[arg-type]  # only that
    looker = rules_of(rule(CLUSTER, Op.DESCRIBE_CONFIGS, **kind))  # type: ignore[arg-type]  # likewise

    assert changer.allows(ALICE, "h", Op.DESCRIBE_CONFIGS, T.CLUSTER, CLUSTER)
    assert not looker.allows(ALICE, "h", Op.ALTER_CONFIGS, T.CLUSTER, CLUSTER)


def test_one_denial_outweighs_all_that_is_allowed() -> None:
    """Wherever it comes from: another pattern, everybody, ALL."""
    allowed = (rule("etl", Op.ALL), rule("*", Op.ALL), rule("e", Op.ALL, pattern=P.PREFIXED))
    for denied in (
        rule("etl", allow=False),
        rule("*", allow=False),
        rule("et", pattern=P.PREFIXED, allow=False),
        rule("etl", principal="User:*", allow=False),
        rule("etl", host="h", allow=False),
    ):
        found = rules_of(*allowed, denied)

        assert not may(found, Op.READ)
        assert may(found, Op.DELETE)
    assert not may(rules_of(*allowed, rule("etl", Op.ALL, allow=False)), Op.DESCRIBE)


def test_a_denied_use_hides_nothing() -> None:
    """DESCRIBE is implied by what is allowed, and a denial of READ says nothing of it."""
    found = rules_of(rule("etl", Op.DELETE), rule("etl", Op.READ, allow=False))

    assert {o for o in Op if may(found, o)} == {Op.DELETE, Op.DESCRIBE}


def test_rules_are_for_a_principal_from_a_host() -> None:
    """Those of others say nothing."""
    found = rules_of(rule("etl", host="10.0.0.1"), rule("logs", principal="User:bob"))

    assert may(found, Op.READ, host="10.0.0.1")
    assert not may(found, Op.READ, host="10.0.0.2")
    assert not may(found, Op.READ, "logs", host="10.0.0.1")


def test_a_prefix_is_no_name_and_a_name_no_prefix() -> None:
    """Nor is a type of resource another one."""
    found = rules_of(rule("etl"), rule("job-", pattern=P.PREFIXED))

    assert [may(found, Op.READ, name) for name in ("etl", "etl-1", "job-", "job-1", "job")] == [
        *(True, False, True, True, False),
    ]
    assert not found.allows(ALICE, "h", Op.READ, T.TOPIC, "etl")


def test_the_version_rises_with_each_change_and_with_nothing_else() -> None:
    """Whoever keeps an answer keeps it as long as the version stays."""
    found = rules_of()
    versions = [found.version]
    for record in (RuleAdded, RuleAdded, RuleRemoved, RuleRemoved):
        found.replay(record(rule("etl")))
        versions.append(found.version)
    found.reset()

    assert [v - versions[0] for v in [*versions, found.version]] == [0, 1, 1, 2, 2, 3]


# --- against a naive reading --------------------------------------------------------------

NAMES = ["*", "a", "ab", "abc", "b", "ba"]
# By how rules have it, the host as connections have it; releases before took any spelling.
USUAL = {
    "*": "*",
    "h": "h",
    "i": "i",
    "10.0.0.1": "10.0.0.1",
    "::ffff:10.0.0.1": "10.0.0.1",
    "::FFFF:a00:1": "10.0.0.1",
    "2001:DB8:0::1": "2001:db8::1",
}
PRINCIPALS = ["User:*", ALICE, "User:bob"]
RULES = st.builds(
    Rule,
    st.sampled_from([T.TOPIC, T.GROUP]),
    st.sampled_from(NAMES),
    st.sampled_from(list(P)),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(list(USUAL)),
    st.sampled_from([Op.ALL, Op.READ, Op.WRITE, Op.DELETE, Op.ALTER, Op.DESCRIBE]),
    st.booleans(),
)
IMPLIED = {
    Op.DESCRIBE: {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER},
    Op.DESCRIBE_CONFIGS: {Op.ALTER_CONFIGS},
}


def fits(one: Rule, principal: str, host: str, kind: ResourceType, name: str) -> bool:
    """Say whether a rule is about this, as one would read it aloud."""
    if one.pattern_type is P.PREFIXED:
        is_name = name.startswith(one.name)
    else:
        is_name = one.name in {name, "*"}
    is_who = one.principal in {principal, "User:*"} and USUAL[one.host] in {host, "*"}
    return one.resource_type is kind and is_name and is_who


def naive(
    rules: set[Rule], principal: str, host: str, operation: Operation, kind: ResourceType, name: str
) -> bool:
    """Say the same as `Rules.allows`, by a walk over all rules."""
    about = [one for one in rules if fits(one, principal, host, kind, name)]
    if any(not one.is_allow and one.operation in {operation, Op.ALL} for one in about):
        return False
    enough = {operation, Op.ALL} | IMPLIED.get(operation, set())
    return any(one.is_allow and one.operation in enough for one in about)


@given(st.lists(st.tuples(st.booleans(), RULES), max_size=14), st.data())
@example([(True, rule("a")), (True, rule("a", host="h")), (False, rule("a"))], None)
@example(
    [
        (True, rule("ab", host="::ffff:10.0.0.1", allow=False)),
        (True, rule("ab", host="10.0.0.1", allow=False)),
        (True, rule("ab")),
        (False, rule("ab", host="10.0.0.1", allow=False)),
    ],
    None,
)
@example(
    [
        (True, rule("a", pattern=P.PREFIXED)),
        (True, rule("b", pattern=P.PREFIXED)),
        (False, rule("b", pattern=P.PREFIXED)),
    ],
    None,
)
def test_rules_say_what_a_walk_over_all_of_them_says(
    changes: list[tuple[bool, Rule]], data: Any
) -> None:
    """Whatever was added and removed before: the index is only quicker."""
    found = Rules()
    model: set[Rule] = set()
    for is_added, one in changes:
        found.replay(RuleAdded(one) if is_added else RuleRemoved(one))
        (model.add if is_added else model.discard)(one)
    fresh = rules_of(*model)

    assert found.hard_state() == tuple(sorted(model)) == fresh.hard_state()
    names = ["a", "ab", "abc", "abcd", "b", "bab", "c", "*"]
    name = "ab" if data is None else data.draw(st.sampled_from(names))
    for principal in (ALICE, "User:carol"):
        for host in ("h", "j", "10.0.0.1", "2001:db8::1", "10.0.0.2"):
            for kind in (T.TOPIC, T.GROUP):
                assert found.has_any(kind, name) == any(
                    fits(one, one.principal, USUAL[one.host], kind, name) for one in model
                )
                for operation in Op:
                    assert found.allows(principal, host, operation, kind, name) == naive(
                        model, principal, host, operation, kind, name
                    )


def test_a_long_name_is_cut_once_for_each_length_of_prefixes() -> None:
    """Where rules bound nothing, whoever asked about 5,000 long names stalled all for 0.15 s."""

    class Name(str):
        __slots__ = ("cuts",)

        def __getitem__(self, at: SupportsIndex | slice) -> str:
            self.cuts = getattr(self, "cuts", 0) + 1
            return super().__getitem__(at)

    name = Name("x" * 250)
    rules = (Rule(T.GROUP, n, PatternType.PREFIXED, ALICE, "*", Op.READ, True) for n in ("a", "b"))

    assert not rules_of(*rules).has_any(T.GROUP, name)
    assert name.cuts == 1


# --- changing them ------------------------------------------------------------------------


def test_rules_are_added_shown_and_removed() -> None:
    """One that is there already is done, and writes nothing."""
    context = NodeContext()
    request = CreateAclsRequest((acl(rule("etl")), acl(rule("etl")), acl(rule("x", Op.DELETE))))
    assert [r.error for r in context.ask(request).results] == [0, 0, 0]
    before = len(context.records)
    context.ask(request)

    assert before == len(context.records) == 2
    context.crash()
    wanted = DescribeAclsRequest(*structs.astuple(EVERYTHING))
    shown = context.look(wanted)
    assert [a.resource_name for a in shown.acls] == ["etl", "x"]
    (removed,) = context.ask(DeleteAclsRequest((EVERYTHING,))).results
    assert removed.acls == shown.acls
    assert len(context.shard.rules) == 0


def test_rules_are_shown_as_they_are_when_the_look_at_them_begins() -> None:
    """To show 10,000 of them at once held up everybody; half of a change would mislead."""
    context = NodeContext()
    context.ask(CreateAclsRequest(tuple(acl(rule(f"t{n}")) for n in range(200))))
    everything = DescribeAclsRequest(*structs.astuple(EVERYTHING))
    looking = context.shard.rules.describe(everything, 1 << 30)
    next(looking)
    context.ask(DeleteAclsRequest((EVERYTHING,)))

    shown = returned(looking)
    assert shown is not None
    assert 200 == len(shown.acls)
    assert () == context.look(everything).acls


def test_rules_that_change_are_told_in_words() -> None:
    """Somebody has to answer for them."""
    context = NodeContext()
    context.ask(CreateAclsRequest((acl(rule("etl-", pattern=P.PREFIXED, allow=False)),)))
    context.ask(DeleteAclsRequest((EVERYTHING,)))

    words = ["User:alice from * must not READ GROUP etl-…"]
    assert context.told("acl.added") == [{"count": 1, "rules": words, "by": ANONYMOUS}]
    assert context.told("acl.removed") == [{"count": 1, "rules": words, "by": ANONYMOUS}]


@pytest.mark.parametrize(
    "changed",
    [
        {"resource_type": 5},
        {"resource_type": 1},
        {"pattern_type": 2},
        {"operation": 1},
        {"operation": 4},
        {"operation": 12},
        {"permission": 1},
        {"principal": "alice"},
        {"principal": "User:"},
        {"resource_type": 4, "resource_name": "*"},
        {"resource_type": 4, "resource_name": CLUSTER},
        {"host": "10.0.0.0/8"},
        {"host": "spark-1"},
        {"host": "2001:DB8::1"},
        {"host": "::ffff:10.0.0.1"},
    ],
)
def test_what_can_be_no_rule_is_refused_and_the_others_are_taken(changed: dict[str, Any]) -> None:
    """It would say nothing, and whoever wrote it would believe it did."""
    context = NodeContext()
    bad = structs.replace(acl(rule("etl")), **changed)
    answer = context.ask(CreateAclsRequest((bad, acl(rule("etl")))))

    assert [r.error for r in answer.results] == [42, 0]
    assert answer.results[0].message
    assert len(context.shard.rules) == 1


def test_a_host_in_another_spelling_is_refused_with_the_right_one() -> None:
    """A rule by it would be about nobody, also one that denies."""
    context = NodeContext()
    asked = [acl(rule("etl", host=host)) for host in ("2001:DB8:0::1", "::ffff:10.0.0.1")]
    answer = context.ask(CreateAclsRequest(tuple(asked)))
    right = ["2001:db8::1", "10.0.0.1"]

    assert [r.message for r in answer.results] == [f"a rule has this host as {h}" for h in right]
    known = context.ask(CreateAclsRequest(tuple(acl(rule("etl", host=host)) for host in right)))
    assert [r.error for r in known.results] == [0, 0]


def test_every_operation_of_a_resource_can_be_in_a_rule() -> None:
    """The table is what is documented."""
    context = NodeContext()
    asked = [
        acl(rule(CLUSTER if kind is T.CLUSTER else "x", operation, kind=kind))
        for kind, operations in OPERATIONS.items()
        for operation in sorted(operations)
    ]

    assert {r.error for r in context.ask(CreateAclsRequest(tuple(asked))).results} == {0}


def test_a_filter_takes_what_fits_in_everything() -> None:
    """As Kafka's; "match" finds what concerns one resource."""
    there = [
        rule("etl"),
        rule("*", Op.DELETE),
        rule("et", pattern=P.PREFIXED, allow=False),
        rule("etl", host="h", principal="User:bob"),
        rule("etl", kind=T.TOPIC),
    ]
    found = rules_of(*there)

    def names(**wanted: Any) -> list[Rule]:
        return found.matching(structs.replace(EVERYTHING, **wanted))

    assert names() == sorted(there)
    match = {"pattern_type": MATCH, "resource_name": "etl"}
    assert names(resource_type=T.GROUP, **match) == sorted(there[:4])
    assert names(resource_name="etl") == sorted([there[0], there[3], there[4]])
    assert names(principal="User:bob") == names(host="h") == [there[3]]
    assert names(pattern_type=P.PREFIXED) == names(permission=2) == [there[2]]
    assert names(operation=Op.DELETE) == [there[1]]


def test_a_rule_that_fits_two_filters_is_removed_once() -> None:
    """And a filter that can't be one says so, without harm to the others."""
    context = NodeContext()
    context.ask(CreateAclsRequest((acl(rule("etl")),)))
    bad = structs.replace(EVERYTHING, operation=99)
    answer = context.ask(DeleteAclsRequest((bad, EVERYTHING, EVERYTHING)))

    assert [(r.error, len(r.acls)) for r in answer.results] == [(42, 0), (0, 1), (0, 0)]


def test_a_full_disk_takes_no_more_rules_and_lets_them_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking rights away must always be possible."""
    context = NodeContext()
    context.ask(CreateAclsRequest((acl(rule("etl")),)))
    context.shard.storage_full = True
    again = CreateAclsRequest((acl(rule("etl")), acl(rule("x"))))

    assert [r.error for r in context.ask(again).results] == [0, 1004]
    (removed,) = context.ask(DeleteAclsRequest((EVERYTHING,))).results
    assert len(removed.acls) == 1
    context.shard.storage_full = False
    monkeypatch.setattr("coordinator.group.acls.RULES_MAX", 1)
    assert [r.error for r in context.ask(again).results] == [0, 1005]


# --- in the log ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        RuleAdded(rule("etl")),
        RuleRemoved(rule("e", Op.ALL)),
        RuleAdded(rule("etl", host="10.0.0.0/8")),  # Of before hosts were looked at.
    ],
)
def test_a_rule_comes_back_from_the_log_as_it_was(record: Any) -> None:
    """Its place there is for ever; no scope is named as a topic could be."""
    back = roundtrip(record)

    assert (back, type(back)) == (record, type(record))
    assert node_entry(record)[:3] == (1020, 0, "")
    assert isinstance(back.rule.operation, Operation)


@pytest.mark.parametrize(
    ("version", "key", "error"),
    [
        (1, tuple(rule("etl")), UnknownRecord),
        (0, (2, "a", 3), MalformedRecord),
        (0, (9, *rule("etl")[1:]), MalformedRecord),
        (0, (2, 7, *rule("etl")[2:]), MalformedRecord),
        (0, None, MalformedRecord),
    ],
)
def test_what_is_no_rule_is_not_loaded(version: int, key: Any, error: type[Exception]) -> None:
    """A right that is guessed at may be anybody's."""
    with pytest.raises(error):
        read_item((0, 1020, version, "", key, ()))
