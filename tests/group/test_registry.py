"""The topic registry: what is registered, refused, shown, and left after a crash."""

import re

import pytest
from hypothesis import given, strategies as st

from coordinator.group.node_records import read_item
from coordinator.group.node_shard import NodeShard
from coordinator.group.records import MalformedRecord, UnknownRecord
from coordinator.group.registry import (
    CHANGES_SLACK,
    EndReported,
    EndsRepeated,
    Registry,
    RegistryChanged,
    TopicChange,
    TopicForgotten,
    TopicRecord,
    TopicRegistered,
)
from protocol.messages import (
    DescribeTopicsRequest,
    EndOffset,
    PartitionHosts,
    RegisterTopicsRequest,
    RegisterTopicsResponse,
    TopicRegistration,
)
from tests.group.node_context import last_per_key, roundtrip
from tests.group.topics_context import TopicsContext, replayed
from tests.packed import node_entry

RECORDS: list[TopicRecord] = [
    TopicRegistered("t", 2, (PartitionHosts(1, ("a", "b")),), False, 7),
    TopicRegistered("u", 2, (), False, 8, is_observed=True),
    TopicRegistered("v", 2, (), False, 8, owner="User:alice"),
    EndReported("t", 1, 2**63 - 1, 1_700),
    EndsRepeated("t", (0, 3), (1_700, 1_700)),
    EndsRepeated("t", (3,), (1_701,)),
    EndsRepeated("t", (0, 3), (1_700, 1_701)),
    RegistryChanged(9, 8),
    TopicForgotten("t"),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_from_the_log_as_it_was(record: TopicRecord) -> None:
    """Equal and of the same type, or replay would differ from what was live."""
    back = roundtrip(record)

    assert record == back
    assert type(record) is type(back)


def test_a_topic_is_the_scope_of_its_entries() -> None:
    """So one tombstone takes all of it. Types and keys are on disk for ever."""
    assert [node_entry(record)[:4] for record in RECORDS] == [
        (1010, 0, "t", ()),
        (1010, 1, "u", ()),
        (1010, 2, "v", ()),
        (1011, 0, "t", (1,)),
        (1013, 0, "t", ((0, 3),)),
        (1013, 0, "t", ((3,),)),
        (1013, 0, "t", ((0, 3),)),
        (1012, 0, "", ()),
        (1001, 0, "t", ()),
    ]


@pytest.mark.parametrize(
    ("type_", "version", "value"),
    [(1009, 0, ()), (1010, 3, ()), (1011, 1, ()), (1, 0, ())],
)
def test_an_unknown_type_or_version_is_refused(type_: int, version: int, value: object) -> None:
    """A newer release wrote it; skipping it would lose state silently."""
    with pytest.raises(UnknownRecord):
        read_item((0, type_, version, "t", (), value))


@pytest.mark.parametrize(
    ("type_", "key", "value"),
    [(1010, (), None), (1010, (), (1, (), False)), (1011, (), (1, 2)), (1012, (), (1,))],
)
def test_a_record_of_another_shape_is_refused(type_: int, key: object, value: object) -> None:
    """Damage that the checksum missed, or a bug: never guessed at."""
    with pytest.raises(MalformedRecord):
        read_item((0, type_, 0, "t", key, value))


def test_a_topic_is_registered_and_grows() -> None:
    """Each of the two is a new version; the same again is nothing."""
    context = TopicsContext()

    assert context.register({"flights": 2, "trains": 1}) == [0, 0]
    assert context.register({"flights": 3}) == [0]
    assert context.topics.registry.version == 3

    before = len(context.topic_records)

    assert context.register({"flights": 3}) == [0]
    assert len(context.topic_records) == before
    assert [(t.topic, t.partition_count) for t in context.described("flights").topics] == [
        ("flights", 3)
    ]


def test_a_topic_never_shrinks() -> None:
    """What would become of the offsets? The answer names the count that there is."""
    context = TopicsContext()
    context.register({"flights": 3})
    (topic,) = context.registered({"flights": 2}).topics

    assert (topic.error, topic.partition_count) == (37, 3)
    assert topic.message == "the topic has 3 partitions and can't shrink to 2"


@pytest.mark.parametrize(("count", "error"), [(0, 42), (1, 0), (100_000, 0), (100_001, 1005)])
def test_a_topic_has_one_to_100_000_partitions(count: int, error: int) -> None:
    """None has nothing to read, and each costs every group that reads it."""
    assert TopicsContext().register({"t": count}) == [error]


def test_there_is_a_limit_of_topics_their_partitions_and_the_names_of_hosts() -> None:
    """And what is there already may still grow, shrink and go."""
    context = TopicsContext()
    totals = context.topics.registry.totals
    totals.limits = {"topics": 2, "topic_partitions": 10, "topic_host_bytes": 5}

    assert context.register({"a": 1, "b": 1, "c": 1, "d": 0}) == [0, 0, 1005, 42]
    assert context.register({"a": 10}) == [1005]
    assert context.register({"a": 9}) == [0]
    assert context.register({"a": 9}, {0: ("1234", "56")}) == [1005]
    assert context.register({"a": 9}, {0: ("1234", "5")}) == [0]
    assert context.register({"b": 1}, {0: ("1",)}) == [1005]
    assert context.register({"a": 9}, {0: ("1",)}) == [0]
    assert tuple(map(totals.used, totals.limits)) == (2, 10, 1)

    (found,) = context.registered({"c": 1}).topics
    assert found.message == "there are 2 already, max.topics is 2"

    context.delete_topics("a", "b")
    context.advance(0)
    assert tuple(map(totals.used, totals.limits)) == (0, 0, 0)
    assert context.register({"c": 10}) == [0]


def test_hosts_are_kept_replaced_and_removed_by_request_only() -> None:
    """They are a hint, so a change of them alone is no new version."""
    context = TopicsContext()
    context.register({"t": 3}, {2: ("b",), 0: ("a", "c"), 1: ()})

    def hosts() -> dict[int, tuple[str, ...]]:
        return {one.partition: one.hosts for one in context.described("t").topics[0].hosts}

    assert hosts() == {0: ("a", "c"), 2: ("b",)}

    context.register({"t": 4})

    assert hosts() == {0: ("a", "c"), 2: ("b",)}

    version = context.topics.registry.version
    context.register({"t": 4}, {0: ("d",)})

    assert hosts() == {0: ("d",)}

    context.register({"t": 4}, {})

    assert (hosts(), context.topics.registry.version) == ({}, version)
    assert len(context.events_named("topics.changed")) == 2
    assert len(list(context.topics.registry.changes_since(0))) == 2


def test_hosts_of_a_partition_that_there_is_not_are_refused() -> None:
    """They would speak of nothing."""
    topic = TopicsContext().registered({"t": 1}, {1: ("a",)}).topics[0]

    assert (topic.error, topic.message) == (42, "the hosts name partition 1 of a topic with 1")


def test_hosts_of_many_stored_topics_do_not_make_a_batch_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record repeats the stored hosts, so growing many topics at once writes them all."""
    monkeypatch.setattr("coordinator.group.topics.REQUEST_HOSTS", 5)
    context = TopicsContext()
    for name in "abc":
        context.register({name: 1}, {0: ("x",)})

    assert context.register({"a": 2, "b": 2, "c": 2}) == [0, 0, 1005]
    assert context.register({"c": 2}) == [0]


def test_a_full_disk_refuses_what_is_new_and_takes_deletions() -> None:
    """A deletion makes room."""
    context = TopicsContext()
    context.register({"t": 1})
    context.report("t", {0: 5})
    context.topics.storage_full = True

    assert context.register({"t": 2, "u": 1}) == [1004, 1004]
    assert context.register({"t": 1}) == [0]
    assert (context.report("t", {0: 6}), context.report("t", {0: 5})) == ([1004], [0])
    assert context.delete_topics("t") == [0]


def test_a_deleted_topic_is_gone_at_once_and_its_name_is_free_after_the_purge() -> None:
    """Else offsets of the old one would be taken for the new one's."""
    context = TopicsContext()
    context.register({"t": 2})

    assert context.delete_topics("t", "nope") == [0, 3]
    assert context.delete_topics("t") == [3]
    assert (context.names(), context.described("t").topics[0].error) == ([], 3)
    assert context.register({"t": 1}) == [15]

    context.advance(0)

    assert context.register({"t": 1}) == [0]
    assert context.events[-2].name == "topics.forgotten"


def test_a_deletion_that_a_crash_interrupts_goes_on() -> None:
    """Its offsets are still there."""
    context = TopicsContext()
    context.register({"t": 2})
    context.commit("", -1, "t-0")
    context.delete_topics("t")
    context.crash()

    assert context.register({"t": 1}) == [15]

    context.advance(0)

    assert (context.offset("t-0").offset, context.register({"t": 1})) == (-1, [0])


def test_versions_never_go_back_though_topics_are_forgotten() -> None:
    """A group's record names a version of long ago."""
    context = TopicsContext()
    context.register({"t": 2})
    context.delete_topics("t")
    context.advance(0)
    context.crash()

    assert (context.topics.registry.version, context.topics.registry.last_deletion_version) == (
        2,
        2,
    )


def observe(context: TopicsContext, **counts: int) -> list[int]:
    """Tell of topics as a consumer sees them; return the registered numbers of partitions."""
    topics = tuple(TopicRegistration(name, count, None) for name, count in counts.items())
    response = context.ask(RegisterTopicsRequest(topics, is_observed=True), RegisterTopicsResponse)
    assert [0] * len(topics) == [topic.error for topic in response.topics]
    return [topic.partition_count for topic in response.topics]


def test_what_a_consumer_tells_of_a_topic_bounds_no_commits() -> None:
    """It may not know all of it, and others could commit before it said so."""
    context = TopicsContext()

    assert observe(context, t=2) == [2]
    assert context.commit("", -1, "t-7") == 0
    assert context.report("t", {1: 5, 2: 5}) == [0, 3]

    context.crash()

    assert context.commit("", -1, "t-8") == 0


def test_what_a_consumer_tells_of_a_topic_makes_nothing_smaller() -> None:
    """Neither what the source's owner said, nor what another consumer sees."""
    context = TopicsContext()
    context.register({"t": 6})

    assert observe(context, t=2, u=3) == [6, 3]
    assert observe(context, t=8, u=2) == [8, 3]

    written = len(context.topic_records)

    assert observe(context, t=1, u=3) == [8, 3]
    assert len(context.topic_records) == written
    assert (context.commit("", -1, "t-8"), context.commit("", -1, "u-8")) == (3, 0)


def test_the_owner_of_a_source_has_the_last_word() -> None:
    """From then on commits are checked, whoever told of the topic before and tells afterwards."""
    context = TopicsContext()
    observe(context, t=2)
    version = context.topics.registry.version

    assert context.register({"t": 1}) == [37]
    assert context.register({"t": 2}) == [0]
    assert (context.commit("", -1, "t-2"), context.topics.registry.version) == (3, version)
    assert observe(context, t=2) == [2]
    assert context.commit("", -1, "t-2") == 3


def test_a_topic_that_a_consumer_told_of_is_deleted_as_any_other() -> None:
    """Its offsets go, and nobody commits new ones meanwhile."""
    context = TopicsContext()
    observe(context, t=2)

    assert context.delete_topics("t") == [0]
    assert context.commit("", -1, "t-0") == 3

    context.advance(0)

    assert observe(context, t=1) == [1]


def test_end_offsets_may_go_back_and_the_same_one_writes_little() -> None:
    """A source that was made anew starts again; a reporter that repeats itself fills no disk."""
    context = TopicsContext()
    context.register({"t": 2})

    assert context.report("t", {0: 5, 1: 0, 2: 1}) == [0, 0, 3]
    assert context.report("nope", {0: 5}) == [3]
    assert context.report("t", {0: 4}) == [0]

    written = len(context.topic_records)
    context.wall_ms += 1

    assert context.report("t", {0: 4}) == [0]
    assert len(context.topic_records) == written
    assert context.described("t").topics[0].end_offsets == (
        EndOffset(0, 4, context.wall_ms),
        EndOffset(1, 0, context.wall_ms - 1),
    )

    for _ in range(60):
        context.advance(1_000)
        context.report("t", {0: 4, 1: 0})

    repeated = context.topic_records[written:]
    assert [type(record) for record in repeated] == [EndsRepeated] * 6
    context.topics.storage_full = True
    context.advance(10_000)
    assert context.report("t", {0: 4, 1: 0}) == [0, 0]
    assert len(context.topic_records) == written + 6


def test_end_offsets_of_a_forgotten_topic_are_not_those_of_the_next_one() -> None:
    """It would seem to be far behind."""
    context = TopicsContext()
    context.register({"t": 1})
    context.report("t", {0: 5})
    context.delete_topics("t")
    context.advance(0)
    context.register({"t": 1})

    assert context.described("t").topics[0].end_offsets == ()


def test_topics_come_by_page_in_the_order_of_names() -> None:
    """And a page says whether there is another."""
    context = TopicsContext()
    context.register(dict.fromkeys(("b", "d", "a", "c", "e"), 1))
    page = context.described(max_topics=2)

    assert ([t.topic for t in page.topics], page.has_more) == (["a", "b"], True)

    page = context.described(max_topics=3, start_after="b")

    assert ([t.topic for t in page.topics], page.has_more) == (["c", "d", "e"], False)
    assert [t.topic for t in context.described(start_after="bb").topics] == ["c", "d", "e"]
    assert context.described(max_topics=0).error == 42


def test_a_page_ends_before_its_topics_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than asked, but at least one."""
    monkeypatch.setattr("coordinator.group.topics.PAGE_ITEMS", 3)
    context = TopicsContext()
    context.register({"a": 2, "b": 2, "c": 2}, {0: ("x", "y", "z")})
    page = context.described()

    assert ([t.topic for t in page.topics], page.has_more) == (["a"], True)


def test_a_pattern_matches_the_whole_name() -> None:
    """As Kafka's own matching does, and with the dialect of RE2 only."""
    context = TopicsContext()
    context.register(dict.fromkeys(("flights", "flights-eu", "my-flights", "flüge"), 1))

    assert context.names("flights.*") == ["flights", "flights-eu"]
    assert context.names("fl.ge") == ["flüge"]
    assert context.names("flights|trains") == ["flights"]
    assert context.names("(?i)FLIGHTS") == ["flights"]


def test_a_pattern_forgets_a_topic_that_is_gone_also_if_no_change_tells_of_it() -> None:
    """Changes are folded to those of the topics that are there."""
    context = TopicsContext()
    context.register({"a": 1, "b": 1})

    assert context.names(".") == ["a", "b"]

    context.delete_topics("a")
    context.advance(0)
    context.topics.registry.fold_changes()

    assert context.names(".") == ["b"]


@pytest.mark.parametrize(
    "pattern", ["(", "a**", "(?=a)", r"(a)\1", r"\pL{999}", "(?:[a-z0-9]?.?){500}b"]
)
def test_an_invalid_pattern_is_refused_in_words(pattern: str) -> None:
    """Also those that a backtracking engine would take, and those that compile to too much."""
    context = TopicsContext()
    response = context.described(pattern=pattern)

    assert response.error == 128
    assert repr(pattern) in (response.message or "")
    assert context.topics.registry.pattern_problem(pattern)
    assert not context.topics.registry.matches(pattern, "a")


def test_a_long_list_of_names_is_a_pattern() -> None:
    """It compiles to much, and is cheap."""
    context = TopicsContext()
    context.register(dict.fromkeys(("17.topic", "18.topic", "18xtopic"), 1))

    names = "|".join(rf"{number}\.topic" for number in range(0, 800, 2))

    assert context.names(names) == ["18.topic"]
    assert context.described(pattern=names + "|x*").error == 128


def test_a_nasty_pattern_takes_no_time() -> None:
    """With backtracking this would last longer than the universe."""
    assert not Registry().matches("(a*)*b", "a" * 249)


def test_what_is_registered_while_a_pattern_is_matched_is_found_too() -> None:
    """Matching goes on for a while, and others are served between two names."""
    context = TopicsContext()
    context.register(dict.fromkeys(("a1", "a2", "a3", "b1"), 1))
    registry = context.topics.registry
    steps = registry.match("a.")
    assert next(steps) > 0
    context.register({"a0": 1})
    next(steps)
    context.delete_topics("a1")
    context.register({"a9": 1})
    assert not registry.is_up_to_date("a.")
    assert sum(1 for _ in steps) == 5  # Two names, and three that have changed.

    assert registry.is_up_to_date("a.")
    assert registry.matching("a.") == ["a0", "a2", "a3", "a9"]
    assert [registry.is_matched("a.", topic) for topic in ("a2", "b1")] == [True, False]


def test_what_is_kept_of_patterns_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client may send a thousand different ones."""
    monkeypatch.setattr("coordinator.group.registry.PATTERNS_KEPT", 3)
    monkeypatch.setattr("coordinator.group.registry.NAMES_KEPT", 5)
    context = TopicsContext()
    context.register(dict.fromkeys("abcd", 1))
    for n in range(9):
        assert context.names(f".|{n}") == ["a", "b", "c", "d"]
        assert len(context.topics.registry._kept) <= 1 + (n < 1)


def test_what_is_kept_of_changes_is_bounded() -> None:
    """A source that makes and deletes topics all day must not fill the memory."""
    context = TopicsContext()
    context.register({"stays": 1, "grows": 1})
    registry = context.topics.registry
    for n in range(CHANGES_SLACK + 10):
        registry.replay(TopicRegistered("grows", n + 2, (), False, n + 3))
        registry.replay(RegistryChanged(n + 3, 0))

    assert [c.topic for c in registry.changes_since(0)][:2] == ["stays", "grows"]
    assert registry.number_of_changes_since(0) <= CHANGES_SLACK
    assert context.names() == ["grows", "stays"]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (6, 8, "topic flights grew from 6 to 8"),
        (0, 8, "topic flights is new, with 8 partitions"),
        (-1, 8, "topic flights has 8 partitions now"),
        (6, 0, "topic flights was deleted"),
        (8, 6, "topic flights was deleted and made anew, with 6 partitions"),
        (6, 6, "topic flights was deleted and made anew, with 6 partitions"),
    ],
)
def test_a_change_reads_as_a_sentence(before: int, after: int, text: str) -> None:
    """It is the reason that operators see for a rebalance."""
    assert text == str(TopicChange(1, "flights", before, after))


def test_a_request_with_many_changes_is_one_event() -> None:
    """With their number, and the first of them in words."""
    context = TopicsContext()
    context.register({f"t{n:02}": 1 for n in range(30)})
    (event,) = context.events_named("topics.changed")

    assert (event["version"], event["count"]) == (30, 30)
    assert event["changes"] == [f"topic t{n:02} is new, with 1 partitions" for n in range(10)]

    context.register({"t00": 1})
    context.delete_topics("t00", "t01")

    assert context.events_named("topics.changed")[1:] == [
        {"version": 32, "count": 2, "changes": ["topic t00 was deleted", "topic t01 was deleted"]}
    ]


def test_an_unloaded_registry_knows_nothing() -> None:
    """What it knew is in the log, for whoever loads it next."""
    context = TopicsContext()
    context.register({"t": 1})
    context.is_held = True
    context.delete_topics("t")
    context.topics.unload(context.now)

    assert context.topics.hard_state() == NodeShard(Registry()).hard_state()
    assert context.topics.registry.durable_version == 0
    assert context.topics.take_changes(0) == []

    for record in context.topic_records:
        context.topics.replay(record)
    context.topics.caught_up()
    context.topics.take_changes(0)

    assert context.topics.registry.durable_version == 2  # Of the log, whose offsets are new.


def test_a_registry_has_the_shape_of_a_shard() -> None:
    """One runner serves both; nothing in it waits for time or a member."""
    context = TopicsContext()
    registry = NodeShard(Registry())

    assert registry.next_deadline_ms() is None
    assert registry.expire(context.now) == []
    assert registry.withdraw("token", context.now) is None
    assert registry.interrupted() is None
    registry.shift_deadlines(1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from("abc"), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("report"), st.sampled_from("abc"), st.integers(0, 3)),
        st.tuples(st.just("purge"), st.none(), st.none()),
        st.tuples(st.just("crash"), st.none(), st.none()),
        st.tuples(st.just("look"), st.sampled_from(["a|b", ".*", "[bc]", "x"]), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_registry_is_the_fold_of_its_log(steps: list[tuple[str, str, int]]) -> None:
    """Compacted or not (the context looks after each step), and patterns agree with `re`."""
    context = TopicsContext()
    model: dict[str, int] = {}
    for what, name, number in steps:
        if what == "register":
            (error,) = context.register({name: number}, {0: (f"h{number}",)})
            if not error:
                assert number >= model.get(name, 0)
                model[name] = number
        elif what == "delete":
            (error,) = context.delete_topics(name)
            assert (error == 0) == (model.pop(name, None) is not None)
        elif what == "report":
            (error,) = context.report(name, {number: number})
            assert (error == 0) == (number < model.get(name, 0))
        elif what == "purge":
            context.advance(0)
        elif what == "crash":
            context.crash()
        else:
            assert context.names(name) == sorted(t for t in model if re.fullmatch(name, t))
        shown = context.described().topics
        assert {topic.topic: topic.partition_count for topic in shown} == model
        records = context.topic_records
        assert replayed(records) == replayed(last_per_key(records))


def test_an_unknown_topic_of_a_list_is_named_with_its_error() -> None:
    """In the order asked, each once."""
    context = TopicsContext()
    context.register({"t": 1})
    response = context.ask_for_topics(DescribeTopicsRequest(("x", "t", "x"), None, False, "", 0))

    assert [(t.topic, t.error, t.partition_count) for t in response.topics] == [
        ("x", 3, -1),
        ("t", 0, 1),
    ]


@given(STEPS, st.integers(0, 40), st.integers(0, 5))
def test_a_log_tells_of_each_deletion_or_that_it_may_have_lost_some(
    steps: list[tuple[str, str, int]], compacted: int, leads: int
) -> None:
    """Any prefix of it may be compacted. A whole log has them all, however often it is led."""
    context = TopicsContext()
    deleted = []
    for what, name, number in steps:
        if what == "register":
            context.register({name: number}, {0: (f"h{number}",)})
        elif what == "delete" and context.delete_topics(name) == [0]:
            deleted.append((context.topics.registry.version, name))
        elif what == "purge":
            context.advance(0)
    records = context.topic_records
    for is_whole in (True, False):
        shard = NodeShard(Registry())
        log = records if is_whole else [*last_per_key(records[:compacted]), *records[compacted:]]
        for record in log:
            shard.replay(roundtrip(record))
        for _ in range(1 + leads):
            shard.loaded(context.now)
        registry = shard.registry
        assert registry.number_of_changes_since(0) == len(
            {change.version for change in registry.changes_since(0)}
        )
        for version in range(registry.version + 1):
            told = {c.topic for c in registry.changes_since(version) if not c.after}
            is_sure = not registry.may_miss_deletions_since(version)
            assert is_sure or not is_whole
            assert not is_sure or told >= {name for at, name in deleted if at > version}
