"""What all groups take together is bounded, and counted in `Context.check` after every step."""

from collections.abc import Mapping

import pytest

from coordinator.group.core import GroupConfig
from coordinator.group.totals import NO_LIMIT, Totals
from protocol.errors import ErrorCode
from protocol.messages import AlteredOffset, AlteredTopic, AlterOffsetsRequest, AlterOffsetsResponse
from tests.group.context import Context

QUOTA = ErrorCode.QUOTA_EXCEEDED


def limited(**limits: int) -> Context:
    """Return a shard of a node with these limits."""
    context = Context(GroupConfig(group_initial_rebalance_delay_ms=0))
    context.shard.totals.limits = {**dict.fromkeys(Totals.RESOURCES, NO_LIMIT), **limits}
    return context


def test_no_group_is_made_beyond_the_limit() -> None:
    """Whoever may make one group may make a million; those that are there go on."""
    context = limited(groups=2)
    assert context.commit("", -1, "t-0", group="a") == 0
    (member,) = context.stable_group(1)
    assert context.commit("", -1, "t-0", group="b") == QUOTA
    assert context.commit("", -1, "t-1", group="a") == 0
    assert context.commit(member, 1) == 0
    joined = context.joined(context.join("", group="b"))
    assert (joined.error, joined.message) == (QUOTA, "there are 2 already, max.groups is 2")


def test_no_group_is_made_by_an_operator_either() -> None:
    """Altering offsets makes one, too."""
    context = limited(groups=0)
    topics = (AlteredTopic("t", (AlteredOffset(0, 1, -1, "", None),)),)
    token = context.send(AlterOffsetsRequest("g", topics, False, ""))
    assert context.answer(token, AlterOffsetsResponse).error == QUOTA
    assert not context.shard.groups


def test_offsets_have_a_limit_and_what_is_there_goes_on() -> None:
    """Of all groups; a partition that has one gets the next one."""
    context = limited(offsets=3)
    for partition in range(3):
        assert context.commit("", -1, f"t-{partition}", group=f"g{partition}") == 0
    assert context.commit("", -1, "t-1", group="g0") == QUOTA
    assert context.commit("", -1, "t-0", group="g0") == 0
    context.take(context.shard.delete_group("g1", context.now)[0])
    assert context.commit("", -1, "t-1", group="g0") == 0
    assert context.commit("", -1, "t-2", group="g0") == QUOTA


def test_members_have_a_limit_and_those_that_are_there_rejoin() -> None:
    """Ids that were given out count, as they keep their place."""
    context = limited(members=2)
    first = context.new_id()
    context.new_id()
    refused = context.joined(context.join(""))
    assert (refused.error, refused.message) == (QUOTA, "there are 2 already, max.members is 2")
    context.join(first)
    context.advance(1)
    assert context.state == "CompletingRebalance"
    context.advance(60_000)  # Nobody is heard of again.
    assert context.joined(context.join("")).error == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("way", ["unload", "crash"])
def test_what_is_loaded_is_counted_once(way: str) -> None:
    """The check of the context holds after each of these."""
    context = limited()
    context.stable_group(2)
    context.commit("", -1, "t-0", group="a")
    context.new_id()
    for _ in range(2):
        if way == "crash":
            context.crash()
        else:
            context.load_again()
        used = context.shard.totals.used
        assert (used("groups"), used("members"), used("offsets")) == (2, 2, 1)


def test_a_limit_names_its_setting() -> None:
    """An operator changes it at once, without a restart."""
    limits: Mapping[str, int] = dict.fromkeys(Totals.RESOURCES, 1)
    totals = Totals(limits)
    totals.share(None).count("topic_host_bytes", 1)

    assert totals.refusal("topic_host_bytes") == "there are 1 already, max.topic.host.bytes is 1"
    assert totals.refusal("topic_host_bytes", 0) is None
    assert totals.refusal("topics") is None
