"""The registry's nodes and its formula, as Kafka 0.8's consumers have them."""

import re
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from client.zookeeper.registrations import (
    Kind,
    Subscription,
    consumer_id,
    decode_partitions,
    decode_registration,
    encode_registration,
    java_expression,
    matched,
    named,
    share_of,
)
from protocol.partition import TopicPartition

# What a consumer of Kafka 0.8.2.2 has written.
WRITTEN = rb"""{"version":1,"subscription":{"t.*\\d?":1},"pattern":"white_list","timestamp":"1795423839288"}"""  # noqa: E501 - One line, as it is.


def test_a_registration_of_old_is_read_and_written_as_it_is() -> None:
    """All consumers of a group read each other's, and tools all of them."""
    subscription = decode_registration(WRITTEN)

    assert encode_registration(subscription, 1795423839288) == WRITTEN
    assert subscription.threads_by_topic(["t", "t1", "u", "t_x"]) == {"t": 1, "t1": 1, "t_x": 1}


def test_an_id_is_made_as_old_consumers_make_theirs() -> None:
    """Operators tell by it on which machine a consumer runs, and since when."""
    assert consumer_id("g", "vm", 1795423839095, 0x0392EB2) == "g_vm-1795423839095-00392eb2"


def test_a_registration_of_0_8_0_is_read_without_its_time() -> None:
    """Older ones have none, and nobody looks at it."""
    data = b'{"version":1,"subscription":{ "a": 2,"b": 1 },"pattern":"static"}'

    assert decode_registration(data).threads_by_topic([]) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"clicks",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"version":1}',
        b'{"subscription":{"t":1}}',
        b'{"subscription":["t"],"pattern":"static"}',
        b'{"subscription":{"t":0},"pattern":"static"}',
        b'{"subscription":{"t":true},"pattern":"static"}',
        b'{"subscription":{"t":"1"},"pattern":"static"}',
        b'{"subscription":{"t":1e3},"pattern":"static"}',
        b'{"subscription":{"t":10001},"pattern":"static"}',
        b'{"subscription":{"t":1},"pattern":7}',
        b'{"subscription":{"(":1},"pattern":"white_list"}',
    ],
)
def test_what_is_no_registration_is_told_from_one(data: bytes) -> None:
    """Other clients write what they like there, and one must not stop all the others."""
    with pytest.raises(ValueError, match=r"."):
        decode_registration(data)


@pytest.mark.parametrize(
    ("data", "partitions"),
    [
        (b'{"version":1,"partitions":{"10":[0],"9":[0],"0":[1,2]}}', (0, 9, 10)),
        (b'{"partitions":{}}', ()),
    ],
)
def test_partitions_are_sorted_by_number(data: bytes, partitions: tuple[int, ...]) -> None:
    """The formula deals them out in a row."""
    assert decode_partitions(data) == partitions


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b'{"version":1}', b'{"partitions":[0]}', b'{"partitions":{"a":[0]}}',
     b'{"partitions":{"-1":[0]}}', b'{"partitions":{"9999999999":[0]}}'],
)  # fmt: skip
def test_what_are_no_partitions_is_told(data: bytes) -> None:
    """A wrong count would give one partition to two."""
    with pytest.raises(ValueError, match=r"."):
        decode_partitions(data)


@pytest.mark.parametrize(
    ("kind", "text", "topics"),
    [
        (Kind.WHITE_LIST, "a, b", {"a", "b"}),
        (Kind.WHITE_LIST, " 'a.*' ", {"a", "ab"}),
        (Kind.WHITE_LIST, "a", {"a"}),
        (Kind.WHITE_LIST, r"[ab]{2}|\w\.\d", {"ab", "c.1"}),
        (Kind.WHITE_LIST, "(?!a).*", {"b", "c.1"}),
        (Kind.WHITE_LIST, "", set()),
        (Kind.BLACK_LIST, "a.*|b", {"c.1"}),
        (Kind.BLACK_LIST, "__.*", {"a", "ab", "b", "c.1"}),
    ],
)
def test_a_list_matches_whole_names_and_no_internal_topic(
    kind: Kind, text: str, topics: set[str]
) -> None:
    """As 0.8's `TopicFilter`: otherwise two would come to different shares."""
    there = ["a", "ab", "b", "c.1", "__consumer_offsets"]

    assert set(matched(kind, text, 1).threads_by_topic(there)) == topics


@pytest.mark.parametrize(
    "text",
    [r"\p{Alpha}+", r"\Qa.b\E", "[a-z&&[^b]]", "[[ab]c]", "(?i)a", "(?<n>a)", r"(a)\1", "a{2|3}",
     "a{", r"\z", r"\x41", "[a--b]", "(", "*", "a{99999999999}", "[]a]", "(" * 5_000 + ")" * 5_000],
)  # fmt: skip
def test_what_java_and_python_may_read_differently_is_refused(text: str) -> None:
    """One that reads it in its own way wants what another has, for ever."""
    with pytest.raises(ValueError, match=re.escape(repr(text)[:20])):
        java_expression(text)


@pytest.mark.parametrize(
    "text", [r"a\.b", "a|b", "[a-z_]+?", "(?:ab)*+", r"^\d{3}$", r"\-\/", "a(?=b)."]
)
def test_what_both_read_alike_is_taken(text: str) -> None:
    """Patterns of topics are mostly simple."""
    assert java_expression(text).pattern == text


@pytest.mark.parametrize("threads", [{}, {"t": 0}, {"t": -1}, {"t": 10_001}, {"t": True}], ids=str)
def test_a_subscription_without_threads_is_refused(threads: dict[str, int]) -> None:
    """0.8's consumers would stop at it, all of them."""
    with pytest.raises(ValueError, match=r"thread|topic"):
        named(threads)


def test_the_formula_deals_out_ranges_by_the_names_of_threads() -> None:
    """The example in Kafka's documentation, and ten threads, where names aren't numbers."""
    two = {"c1": named({"t": 2}), "c2": named({"t": 2})}
    five = {"t": tuple(range(5))}
    many = {"c": named({"t": 11})}

    assert _numbers(share_of("c1", two, [], five)) == {0: "c1-0", 1: "c1-0", 2: "c1-1"}
    assert _numbers(share_of("c2", two, [], five)) == {3: "c2-0", 4: "c2-1"}
    shared = _numbers(share_of("c", many, [], {"t": tuple(range(11))}))
    assert [shared[n] for n in range(4)] == ["c-0", "c-1", "c-10", "c-2"]


def test_a_topic_that_is_not_there_has_nothing_to_share() -> None:
    """Somebody may subscribe before the first row is written."""
    assert share_of("c", {"c": named({"t": 2})}, [], {}) == {}
    assert share_of("c", {"c": named({"t": 2})}, [], {"t": ()}) == {}


def _numbers(share: dict[TopicPartition, str]) -> dict[int, str]:
    return {tp.partition: thread for tp, thread in share.items()}


subscriptions = st.one_of(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 12), min_size=1).map(named),
    st.builds(
        matched,
        st.sampled_from([Kind.WHITE_LIST, Kind.BLACK_LIST]),
        st.sampled_from(["a", "a|b", ".*", "c"]),
        st.integers(1, 12),
    ),
)


@given(
    st.dictionaries(st.text("ab-1_\U0001f600\uffee", min_size=1), subscriptions, min_size=1),
    st.fixed_dictionaries({topic: st.integers(0, 40) for topic in "abc"}),
)
def test_all_shares_together_are_all_partitions_once(
    members: dict[str, Subscription], sizes: dict[str, int]
) -> None:
    """Each reads it alone, and nobody is asked whether it fits together."""
    partitions = {topic: tuple(range(size)) for topic, size in sizes.items()}
    shared = Counter(
        tp for one in members for tp in share_of(one, members, sorted(sizes), partitions)
    )

    read = {topic for one in members.values() for topic in one.threads_by_topic(sorted(sizes))}
    assert shared == Counter(TopicPartition(t, n) for t in read for n in partitions[t])
