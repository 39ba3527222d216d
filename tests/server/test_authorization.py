"""The matrix of rights: what each request needs, and what is answered where it is missing."""

from typing import Any, Final

import pytest
from hypothesis import given, strategies as st
from msgspec import Raw, structs

from coordinator.group.acls import Rule, RuleAdded, RuleRemoved, Rules
from coordinator.server.authorization import (
    IN_SLICES,
    NEEDS,
    Access,
    Authorizer,
    Verdict,
    at_once,
)
from protocol import messages as m
from protocol.acls import CLUSTER, Operation as Op, PatternType, ResourceType as T
from protocol.codec import encode
from protocol.consumer import Subscription, encode_subscription
from protocol.messages import APIS

ALICE: Final = "User:alice"
HOST: Final = "10.0.0.1"
Right = tuple[Op, T]

# What each request of `REQUESTS` needs, all of it, and the error without the first of them.
C, G, TP = T.CLUSTER, T.GROUP, T.TOPIC
MATRIX: Final[dict[type[m.Request], tuple[Right, ...]]] = {
    m.ApiVersionsRequest: (),
    m.FindCoordinatorRequest: ((Op.DESCRIBE, G),),  # Of groups: see below.
    m.DescribeClusterRequest: (),
    m.JoinGroupRequest: ((Op.READ, G), (Op.READ, TP)),
    m.SyncGroupRequest: ((Op.READ, G),),
    m.HeartbeatRequest: ((Op.READ, G),),
    m.LeaveGroupRequest: ((Op.READ, G),),
    m.DrainMemberRequest: ((Op.READ, G),),
    m.OffsetCommitRequest: ((Op.READ, G), (Op.READ, TP)),
    m.OffsetFetchRequest: ((Op.DESCRIBE, G), (Op.DESCRIBE, TP)),
    m.OffsetDeleteRequest: ((Op.DELETE, G), (Op.READ, TP)),
    m.AlterOffsetsRequest: ((Op.ALTER, G), (Op.READ, G), (Op.READ, TP)),
    m.DescribeGroupsRequest: ((Op.DESCRIBE, G),),
    m.ListGroupsRequest: (),  # Whoever makes the list leaves out what isn't seen.
    m.SummarizeGroupsRequest: (),  # Likewise.
    m.DeleteGroupsRequest: ((Op.DELETE, G),),
    m.AlterGroupRetentionRequest: ((Op.ALTER, G),),
    m.DescribeRebalancesRequest: ((Op.DESCRIBE, G),),
    m.DescribeLagRequest: ((Op.DESCRIBE, G),),  # Likewise, of topics.
    m.RegisterTopicsRequest: ((Op.CREATE, TP),),
    m.DeleteTopicsRequest: ((Op.DELETE, TP),),
    m.DescribeTopicsRequest: ((Op.DESCRIBE, TP),),
    m.ReportEndOffsetsRequest: ((Op.WRITE, TP),),
    m.ScanOffsetsRequest: ((Op.DESCRIBE, C),),
    m.ReadOffsetChangesRequest: ((Op.DESCRIBE, C),),
    m.DescribeNodeRequest: ((Op.DESCRIBE, C),),
    m.DescribeSettingsRequest: ((Op.DESCRIBE_CONFIGS, C),),
    m.CompactLogRequest: ((Op.ALTER, C),),
    m.ReloadPartitionRequest: ((Op.ALTER, C),),
    m.DescribeJournalsRequest: ((Op.DESCRIBE, C),),
    m.MoveJournalRequest: ((Op.ALTER, C),),
    m.DescribeAclsRequest: ((Op.DESCRIBE, C),),
    m.CreateAclsRequest: ((Op.ALTER, C),),
    m.DeleteAclsRequest: ((Op.ALTER, C),),
    m.DescribeUserScramCredentialsRequest: ((Op.DESCRIBE, C),),
    m.AlterUserScramCredentialsRequest: ((Op.ALTER, C),),
    m.DescribeClientQuotasRequest: ((Op.DESCRIBE_CONFIGS, C),),
    m.AlterClientQuotasRequest: ((Op.ALTER_CONFIGS, C),),
}
# What the examples of the declarations can't show.
REQUESTS: Final[dict[type[m.Request], m.Request]] = {
    **{api.request: api.example.request for api in APIS.values()},
    m.AlterOffsetsRequest: m.AlterOffsetsRequest(
        "etl", (m.AlteredTopic("t", (m.AlteredOffset(0, 5, -1, "", None),)),), True, None
    ),
    m.DescribeTopicsRequest: m.DescribeTopicsRequest(("t",), None, False, "", 0),
    m.ScanOffsetsRequest: m.ScanOffsetsRequest(0, b"", 5, True, None, None),
}
ERRORS: Final = {T.TOPIC: 29, T.GROUP: 30, T.CLUSTER: 31}


def rule(
    operation: Op,
    kind: T,
    name: str = "*",
    *,
    allow: bool = True,
    pattern: PatternType = PatternType.LITERAL,
) -> Rule:
    """Return a rule for Alice, about everything of a type if no name is given."""
    return Rule(kind, CLUSTER if kind is T.CLUSTER else name, pattern, ALICE, "*", operation, allow)


def rules_of(*rules: Rule) -> Rules:
    """Return *rules* in force."""
    found = Rules()
    for one in rules:
        found.replay(RuleAdded(one))
    return found


def access(*rules: Rule, registered: tuple[str, ...] = (), **options: Any) -> Access:
    """Return what Alice may do by *rules*."""
    authorizer = Authorizer(
        rules_of(*rules), is_on=True, is_registered=registered.__contains__, **options
    )
    return authorizer.access(ALICE, HOST)


def verdict_of(found: Access, request: m.Request) -> Verdict | None:
    """Return the verdict as a gate finds it; in slices it is the same."""
    found.refresh()
    if found.is_free:
        return None
    verdict = NEEDS[type(request)](found, request)
    in_slices = IN_SLICES.get(type(request))
    if in_slices is not None:
        same = at_once(in_slices(found, request))
        assert (same and same.request) == (verdict and verdict.request)
        assert (same is None) == (verdict is None)
    return verdict


def refused(found: Access, request: m.Request) -> Verdict:
    """Return the verdict on a request that is not allowed as it is."""
    verdict = verdict_of(found, request)
    assert verdict is not None
    return verdict


def errors_of(value: Any) -> set[int]:
    """Return all errors in an answer, at any depth."""
    if isinstance(value, tuple):
        return set().union(*map(errors_of, value)) if value else set()
    if not isinstance(value, m.Message):
        return set()
    fields = {f: getattr(value, f) for f in value.__struct_fields__}
    own = {fields.pop("error")} if "error" in fields else set()
    return own.union(*map(errors_of, fields.values()))


def test_every_request_has_a_row() -> None:
    """One that nobody thought of would be free for all, or for none."""
    log_in = {"SaslHandshake", "SaslAuthenticate"}  # They come before there is a principal.
    declared = {api.request for api in APIS.values() if api.name not in log_in}

    assert declared == set(MATRIX) == set(NEEDS)


@pytest.mark.parametrize("kind", MATRIX, ids=lambda kind: kind.__name__)
def test_a_request_needs_its_rights_and_no_others(kind: type[m.Request]) -> None:
    """With all of them it is allowed as it is; without any single one it isn't."""
    needs = MATRIX[kind]
    request = REQUESTS[kind]
    verdict = verdict_of(access(*(rule(*right) for right in needs)), request)
    assert verdict is None
    for left_out in needs:
        rest = [rule(*right) for right in needs if right != left_out]
        denied = rule(*left_out, allow=False)
        verdict = refused(access(*rest, rule(*left_out), denied), request)
        if (kind, left_out[1]) == (m.OffsetFetchRequest, T.TOPIC):  # Who looks refuses them.
            assert verdict.request == request
            continue
        assert verdict.request is None
        assert errors_of(verdict.complete(None)) - {0} == {ERRORS[left_out[1]]}


@pytest.mark.parametrize("kind", MATRIX, ids=lambda kind: kind.__name__)
def test_no_right_is_taken_for_another(kind: type[m.Request]) -> None:
    """All rights but the needed ones, and those that imply one, do not help."""
    needs = MATRIX[kind]
    if not needs:
        return
    operation, resource = needs[0]
    implying = {
        Op.DESCRIBE: {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER},
        Op.DESCRIBE_CONFIGS: {Op.ALTER_CONFIGS},
    }
    no_help = {Op.ALL, operation} | implying.get(operation, set())
    others = [rule(o, r) for o in Op for r in T if r is not resource or o not in no_help]
    if kind is m.RegisterTopicsRequest:
        others = [one for one in others if one.resource_type is not T.CLUSTER]

    assert verdict_of(access(*others), REQUESTS[kind]) is not None


def test_super_users_and_a_node_without_rules_are_asked_nothing() -> None:
    """Nor is there anything that they can't see."""
    for found in (
        Authorizer(Rules(), is_on=False, is_registered=bool).access(ALICE, HOST),
        access(super_users=[ALICE]),
        access(allow_everyone=True),
    ):
        assert [kind for kind in MATRIX if verdict_of(found, REQUESTS[kind])] == []
        assert found.sees_topic("t")


def test_where_a_rule_is_only_who_it_names_may() -> None:
    """``allow.everyone.if.no.acl.found`` is about resources without any rule."""
    bobs = Rule(T.GROUP, "etl", PatternType.LITERAL, "User:bob", "*", Op.READ, True)
    found = access(bobs, allow_everyone=True)

    assert found.groups["etl"] == 0
    assert found.groups["other"] & Op.READ.bit


def test_a_change_of_rules_counts_from_the_next_request_on() -> None:
    """Whoever is connected already included."""
    rules = rules_of()
    found = Authorizer(rules, is_on=True, is_registered=bool).access(ALICE, HOST)
    beat = m.HeartbeatRequest("etl", 1, "m", None)
    seen = [verdict_of(found, beat) is None]
    for record in (RuleAdded, RuleRemoved):
        rules.replay(record(rule(Op.READ, T.GROUP, "etl")))
        seen.append(verdict_of(found, beat) is None)

    assert seen == [False, True, False]


def test_what_is_kept_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may make up any number of them."""
    monkeypatch.setattr("coordinator.server.authorization.NAMES_KEPT", 3)
    found = access(rule(Op.READ, T.GROUP, "g7"))
    masks = [found.groups[f"g{n % 10}"] for n in range(30)]

    assert [bool(mask) for mask in masks] == [n % 10 == 7 for n in range(30)]


# --- answers in parts ---------------------------------------------------------------------


def commit(*topics: str) -> m.OffsetCommitRequest:
    """Return a commit of partitions 0 and 1 of each topic."""
    parts = tuple(m.PartitionCommit(p, 5, -1, "", None) for p in (0, 1))
    return m.OffsetCommitRequest(
        "etl", -1, "", None, tuple(m.TopicCommit(t, parts) for t in topics)
    )


def test_topics_of_a_commit_that_are_not_allowed_are_refused_in_their_place() -> None:
    """The others go on, as with Kafka."""
    found = access(rule(Op.READ, T.GROUP, "etl"), rule(Op.READ, T.TOPIC, "mine"))
    verdict = refused(found, commit("a", "mine", "b"))
    assert verdict.request == commit("mine")
    done = tuple(m.PartitionResult(p, 0) for p in (0, 1))
    answer = verdict.complete(m.OffsetCommitResponse(0, (m.TopicResult("mine", done),)))

    assert isinstance(answer, m.OffsetCommitResponse)
    assert [(t.topic, {p.error for p in t.partitions}) for t in answer.topics] == [
        ("a", {29}),
        ("mine", {0}),
        ("b", {29}),
    ]
    assert [p.partition for p in answer.topics[0].partitions] == [0, 1]
    for whole in (m.OffsetCommitResponse(25, ()), m.BareError(1006)):
        assert verdict.complete(whole) is whole


def test_an_answer_is_completed_by_the_rules_at_its_question() -> None:
    """Those that change while it is on its way must not mix up whose answer is whose."""
    rules = rules_of(rule(Op.READ, T.GROUP, "etl"), rule(Op.READ, T.TOPIC, "mine"))
    found = Authorizer(rules, is_on=True, is_registered=bool).access(ALICE, HOST)
    verdict = refused(found, commit("a", "mine"))
    rules.replay(RuleAdded(rule(Op.ALL, T.TOPIC)))
    verdict_of(found, commit("a"))
    done = m.TopicResult("mine", (m.PartitionResult(0, 0),))
    answer = verdict.complete(m.OffsetCommitResponse(0, (done,)))

    assert isinstance(answer, m.OffsetCommitResponse)
    assert [(t.topic, t.partitions[0].error) for t in answer.topics] == [("a", 29), ("mine", 0)]


def test_what_a_fetch_may_not_is_refused_in_its_place() -> None:
    """Groups here; a topic that is named by who looks, so that it asks for all of them."""
    found = access(rule(Op.DESCRIBE, T.GROUP, "etl"), rule(Op.DESCRIBE, T.TOPIC, "mine"))
    named = (m.TopicPartitions("x", (7,)), m.TopicPartitions("mine", (0,)))
    left = (m.GroupFetch("etl", named), m.GroupFetch("etl", None))
    verdict = refused(found, m.OffsetFetchRequest((m.GroupFetch("other", None), *left), False))
    assert verdict.request == m.OffsetFetchRequest(left, False)
    packed: Any = Raw(encode(m.GroupOffsets("etl", 0, ())))
    answer: Any = verdict.complete(m.OffsetFetchResponse((packed, packed)))
    assert answer.groups == (m.GroupOffsets("other", 30, ()), packed, packed)

    request = m.OffsetFetchRequest(left[:1], False)
    verdict = refused(found, request)
    assert verdict.request == request
    assert verdict.complete(answer) is answer


def test_a_long_answer_is_not_looked_through_again() -> None:
    """What is made in slices leaves out in these what may not be seen: 100,000 topics at once took
    a third of a second.
    """
    found = access(rule(Op.READ, T.GROUP, "etl"))
    for request in (
        m.OffsetFetchRequest((m.GroupFetch("etl", None),), False),
        m.DescribeLagRequest("etl"),
        REQUESTS[m.SummarizeGroupsRequest],
    ):
        assert verdict_of(found, request) is None


MANY: Final = tuple(f"t{n}" for n in range(1_000))
LONG: Final = (
    m.JoinGroupRequest(
        "etl",
        10_000,
        60_000,
        "",
        None,
        "consumer",
        (m.JoinProtocol("range", encode_subscription(Subscription(MANY))),),
        None,
    ),
    m.FindCoordinatorRequest(0, MANY),
    m.OffsetCommitRequest(
        "etl",
        -1,
        "",
        None,
        tuple(m.TopicCommit(t, (m.PartitionCommit(0, 5, -1, "", None),)) for t in MANY),
    ),
    m.OffsetFetchRequest(
        (m.GroupFetch("etl", tuple(m.TopicPartitions(t, (0,)) for t in MANY)),), False
    ),
    m.OffsetFetchRequest(tuple(m.GroupFetch(t, None) for t in MANY), False),
    m.OffsetDeleteRequest("etl", tuple(m.TopicPartitions(t, (0,)) for t in MANY)),
    m.AlterOffsetsRequest(
        "etl",
        tuple(m.AlteredTopic(t, (m.AlteredOffset(0, 5, -1, "", None),)) for t in MANY),
        False,
        None,
    ),
    m.DescribeGroupsRequest(MANY),
    m.DeleteGroupsRequest(MANY),
    m.RegisterTopicsRequest(
        tuple(m.TopicRegistration(t, 1, None) for t in MANY), is_observed=False
    ),
    m.DeleteTopicsRequest(MANY),
    m.DescribeTopicsRequest(MANY, None, False, "", 0),
    m.ReportEndOffsetsRequest(tuple(m.TopicEnds(t, ()) for t in MANY)),
    m.ScanOffsetsRequest(0, b"", 5, True, ("etl",), MANY),
    m.ScanOffsetsRequest(0, b"", 5, True, MANY, ("t1",)),
)


@pytest.mark.parametrize("request_", LONG, ids=lambda request: type(request).__name__)
@pytest.mark.parametrize("is_allowed", [True, False])
def test_many_names_are_judged_a_few_at_a_time(
    request_: m.Request, *, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look up the rights to 10,000 topics took 40 ms, in which nobody else was heard."""
    looks: list[str] = []
    mask = Authorizer.mask

    def counted(self: Authorizer, principal: str, host: str, kind: T, name: str) -> int:
        looks.append(name)
        return mask(self, principal, host, kind, name)

    monkeypatch.setattr(Authorizer, "mask", counted)
    kinds = (T.GROUP, T.TOPIC) if is_allowed else (T.GROUP,)
    found = access(*(rule(op, kind) for kind in kinds for op in Op))
    found.refresh()
    steps = IN_SLICES[type(request_)](found, request_)
    for _ in range(1_000):
        before = len(looks)
        if next(steps, ...) is ...:
            break
        assert len(looks) - before <= 55

    assert len(looks) - before <= 55
    assert set(MANY) <= set(looks) or not is_allowed


NAMES: Final = st.sampled_from(["a", "b", "c", "d", "x" * 250])


@given(
    subscribed=st.lists(st.lists(NAMES, max_size=4), min_size=1, max_size=3),
    readable=st.sets(NAMES),
    protocol_type=st.sampled_from(["consumer", "connect"]),
    has_group=st.booleans(),
    tail=st.binary(max_size=3),
)
def test_a_consumer_joins_if_it_may_read_each_topic_that_it_subscribes_to(
    subscribed: list[list[str]],
    readable: set[str],
    protocol_type: str,
    has_group: bool,
    tail: bytes,
) -> None:
    """Whatever it offers; a name that is too long for a topic is nobody's."""
    rules = [rule(Op.READ, T.TOPIC, name) for name in readable]
    rules += [rule(Op.READ, T.GROUP, "etl")] if has_group else []
    offered = tuple(
        m.JoinProtocol(f"p{n}", encode_subscription(Subscription(tuple(topics))) + tail)
        for n, topics in enumerate(subscribed)
    )
    request = m.JoinGroupRequest("etl", 10_000, 60_000, "m", None, protocol_type, offered, None)
    verdict = verdict_of(access(*rules), request)
    named = {name for topics in subscribed for name in topics if len(name) < 250}
    missing = named - readable if protocol_type == "consumer" else set()
    answer: Any = None if verdict is None else verdict.complete(None)

    if not has_group:
        assert answer == m.join_error(30, "m")
    elif missing:
        assert (answer.error, answer.member_id) == (29, "m")
        assert answer.message in {f"no right to READ topic '{name}'" for name in missing}
    else:
        assert verdict is None


def test_a_topic_that_somebody_registers_meanwhile_is_not_altered_without_a_right() -> None:
    """Who may create topics may not, by that, change those that are there."""
    registered: set[str] = set()
    authorizer = Authorizer(
        rules_of(rule(Op.CREATE, T.TOPIC)), is_on=True, is_registered=registered.__contains__
    )
    found = authorizer.access(ALICE, HOST)
    found.refresh()
    topics = tuple(m.TopicRegistration(t, 1, None) for t in MANY)
    request = m.RegisterTopicsRequest(topics, is_observed=False)
    steps = IN_SLICES[m.RegisterTopicsRequest](found, request)
    next(steps)
    registered.add("t0")
    verdict = at_once(steps)

    assert verdict is not None
    assert verdict.request == structs.replace(request, topics=topics[1:])


def test_groups_that_are_refused_have_their_place() -> None:
    """In the order asked; those that are deleted each once."""
    found = access(rule(Op.DELETE, T.GROUP, "mine"))
    verdict = refused(found, m.DeleteGroupsRequest(("a", "mine", "a", "mine")))
    assert verdict.request == m.DeleteGroupsRequest(("mine",))
    done = verdict.complete(m.DeleteGroupsResponse((m.DeletedGroup("mine", 0),)))

    assert [(g.group_id, g.error) for g in done.groups] == [("a", 30), ("mine", 0)]  # type: ignore[attr-defined]  # of a deletion
    found_ones = refused(found, m.FindCoordinatorRequest(0, ("a", "mine")))
    there = m.CoordinatorOfGroup("mine", 0, None, 1, "h", 9310, 3, 1)
    answer = found_ones.complete(m.FindCoordinatorResponse((there,)))
    assert [c.error for c in answer.coordinators] == [30, 0]  # type: ignore[attr-defined]  # of a search


def test_where_nodes_are_is_told_to_everybody() -> None:
    """Who may register a topic, say, must find out where; what is there isn't told by it."""
    for key_type in (m.KEY_TYPE_CLUSTER, m.KEY_TYPE_PARTITION):
        assert verdict_of(access(), m.FindCoordinatorRequest(key_type, ("0",))) is None


def test_nothing_tells_whether_a_group_is_there() -> None:
    """The answer is made without a look at it."""
    found = access()
    for kind in MATRIX:
        request = REQUESTS[kind]
        if not MATRIX[kind]:
            continue
        verdict = refused(found, request)
        assert verdict.request is None
        assert verdict.complete(None) == refused(found, request).complete(None)


def test_who_makes_topics_needs_more_for_those_that_are_there() -> None:
    """CREATE for new ones, ALTER for others; a consumer that tells what it reads needs READ."""
    found = access(rule(Op.CREATE, T.CLUSTER), rule(Op.ALTER, T.TOPIC, "t"), registered=("t", "u"))
    topics = tuple(m.TopicRegistration(name, 3, None) for name in ("new", "t", "u"))
    verdict = refused(found, m.RegisterTopicsRequest(topics))
    assert verdict.request == m.RegisterTopicsRequest(topics[:2])
    made = tuple(m.RegisteredTopic(name, 0, None, 3) for name in ("new", "t"))
    answer = verdict.complete(m.RegisterTopicsResponse(0, made))

    assert [(t.topic, t.error) for t in answer.topics] == [("new", 0), ("t", 0), ("u", 29)]  # type: ignore[attr-defined]  # of a registration
    reader = access(rule(Op.READ, T.TOPIC), registered=("t", "u"))
    assert verdict_of(reader, m.RegisterTopicsRequest(topics, is_observed=True)) is None


def test_an_operator_of_a_group_takes_members_out_and_a_reader_moves_offsets() -> None:
    """Only the former does what no commit could."""
    found = access(rule(Op.READ, T.GROUP), rule(Op.READ, T.TOPIC))
    request = REQUESTS[m.AlterOffsetsRequest]
    assert verdict_of(found, structs.replace(request, remove_owners=False)) is None

    assert refused(found, request).request is None


def test_a_scan_of_what_may_be_seen_needs_no_right_over_all() -> None:
    """All that is named must be seen; nothing is left out silently."""
    found = access(rule(Op.READ, T.GROUP, "etl"), rule(Op.READ, T.TOPIC, "t"))

    def errors(groups: tuple[str, ...] | None, topics: tuple[str, ...] | None) -> set[int]:
        verdict = verdict_of(found, m.ScanOffsetsRequest(0, b"", 5, True, groups, topics))
        return {0} if verdict is None else errors_of(verdict.complete(None))

    assert errors(("etl",), ("t",)) == {0}
    assert errors(("etl",), None) == errors(None, ("t",)) == {31}
    assert errors(("etl", "x"), ("t",)) == {30}
    assert errors(("etl",), ("t", "x")) == {29}
