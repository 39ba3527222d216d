"""The part of a subscription that the server reads: its topics, whatever else the bytes are."""

import pytest
from hypothesis import given, settings, strategies as st

from protocol.consumer import (
    VERSION_MAX,
    Subscription,
    decode_subscription,
    encode_subscription,
    subscribed_topics,
)
from protocol.partition import TopicPartition
from tests.protocol import vectors

quick = settings(max_examples=200)

text = st.text(max_size=9)
subscriptions = st.builds(
    Subscription,
    st.lists(text, max_size=5).map(tuple),
    st.none() | st.binary(max_size=9),
    st.lists(st.builds(TopicPartition, st.just("t"), st.integers(0, 9)), max_size=3).map(tuple),
    st.integers(-1, 9),
    st.none() | text,
)


def prefix(subscription: Subscription) -> bytes:
    """Return what version 0 has of *subscription*."""
    return encode_subscription(subscription, 0)


@quick
@given(subscription=subscriptions, version=st.integers(0, VERSION_MAX))
def test_topics_come_back_as_they_were_written(subscription: Subscription, version: int) -> None:
    """Every version starts with them."""
    assert subscribed_topics(encode_subscription(subscription, version)) == subscription.topics


@quick
@given(subscription=subscriptions, version=st.integers(0, 2**15 - 1), tail=st.binary(max_size=20))
def test_what_follows_the_user_data_does_not_count(
    subscription: Subscription, version: int, tail: bytes
) -> None:
    """A broken or a newer tail must not hide what a member subscribes to."""
    data = version.to_bytes(2, "big") + prefix(subscription)[2:] + tail

    assert subscribed_topics(data) == subscription.topics


@quick
@given(subscription=subscriptions, data=st.data())
def test_a_prefix_that_ends_too_early_is_unreadable(
    subscription: Subscription, data: st.DataObject
) -> None:
    """Half a list of topics would let the offsets of the other half expire."""
    whole = prefix(subscription)
    cut = data.draw(st.integers(0, len(whole) - 1))

    assert subscribed_topics(whole[:cut]) is None


@quick
@given(noise=st.binary(max_size=40) | st.binary(max_size=30).map(b"\0\0\0\1".__add__))
def test_hostile_bytes_are_judged_as_by_the_whole_reader(noise: bytes) -> None:
    """Any client can send them; in version 0 the two readers agree on every byte."""
    data = b"\0\0" + noise
    whole = decode_subscription(data)

    assert subscribed_topics(data) == (None if whole is None else whole.topics)


@quick
@given(subscription=subscriptions, data=st.data())
def test_a_changed_byte_never_raises(subscription: Subscription, data: st.DataObject) -> None:
    """The function runs inside a decision for a whole group."""
    changed = bytearray(prefix(subscription))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    found = subscribed_topics(bytes(changed))

    assert found is None or all(type(topic) is str for topic in found)


@pytest.mark.parametrize("hexed", vectors.UNREADABLE)
def test_unreadable_bytes_have_no_known_topics(hexed: str) -> None:
    """Unknown, which isn't the same as none."""
    assert subscribed_topics(bytes.fromhex(hexed)) is None


FALSE_LENGTHS = {
    "a topic that is nil": "0000 00000001 ffff ffffffff",
    "a topic of a negative length": "0000 00000001 8000 ffffffff",
    "topics that are nil": "0000 ffffffff ffffffff",
    "more topics than there are bytes": "0000 7fffffff 0001 61",
    "user data of a negative length": "0000 00000000 fffffffe",
    "user data that is not there": "0000 00000000 00000001",
    "a negative version": "8000 00000000 ffffffff",
    "a topic that is no UTF-8": "0000 00000001 0001 ff ffffffff",
}


@pytest.mark.parametrize("hexed", FALSE_LENGTHS.values(), ids=FALSE_LENGTHS)
def test_false_lengths_are_unreadable(hexed: str) -> None:
    """Written by hand, each one field off."""
    assert subscribed_topics(bytes.fromhex(hexed)) is None


def test_no_topics_are_a_subscription_too() -> None:
    """A member may want nothing for now; that is known, and differs from unknown."""
    assert subscribed_topics(prefix(Subscription(()))) == ()
