"""What is shown to whom: the rules that hold for clients hold for whoever looks."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from coordinator.group.acls import Rule, RuleAdded, RuleRemoved
from coordinator.http.viewer import Viewer
from coordinator.server.authorization import Authorizer
from protocol import messages as m
from protocol.acls import CLUSTER, Operation, PatternType, ResourceType
from tests.http.asking import Site, site
from tests.http.test_api import report
from tests.http.test_events import Browser

ALICE = "User:alice"
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


def sees(resource_type: ResourceType, name: str, *, is_prefix: bool = False) -> Rule:
    """Return the rule that alice sees the resources of this name."""
    pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    return Rule(resource_type, name, pattern, ALICE, "*", Operation.DESCRIBE, is_allow=True)


SEES_CLUSTER = sees(ResourceType.CLUSTER, CLUSTER)


class Rights:
    """The rules of a site that a test changes, and alice, who is bound by them."""

    def __init__(self, here: Site, *rules: Rule) -> None:
        self.rules = here.w.node.registry.core.rules
        self.is_known = self.are_loaded = True
        self.add(*rules)
        authorizer = Authorizer(self.rules, is_on=True, is_registered=lambda _topic: True)
        self.alice = Viewer(
            ALICE,
            "token",
            authorizer.access(ALICE, "192.0.2.1"),
            lambda: self.is_known,
            lambda: self.are_loaded,
        )

    def add(self, *rules: Rule) -> None:
        """Have them in force."""
        for rule in rules:
            self.rules.replay(RuleAdded(rule))

    def remove(self, *rules: Rule) -> None:
        """Have them in force no more."""
        for rule in rules:
            self.rules.replay(RuleRemoved(rule))


def commit(offset: int, *, topic: str, group_id: str) -> m.OffsetCommitRequest:
    """Return a commit of partition 0 without a member."""
    partitions = (m.PartitionCommit(0, offset, -1, "", None),)
    return m.OffsetCommitRequest(group_id, -1, "", None, (m.TopicCommit(topic, partitions),))


async def two_groups(here: Site) -> None:
    """Have a group of alice's, which reads a topic of hers and one that isn't, and another."""
    client = here.w.connect()
    await report(client, "mine", 100)
    await report(client, "theirs", 100)
    for group_id, topic in (("mine", "mine"), ("mine", "theirs"), ("other", "theirs")):
        await client.ask(commit(10, topic=topic, group_id=group_id))


MINE = (sees(GROUP, "mine"), sees(TOPIC, "mine"))


async def test_lists_have_only_what_their_viewer_sees(autojump_clock: MockClock) -> None:
    """The number of the others is a secret, too."""
    async with site() as here:
        await two_groups(here)
        alice = Rights(here, *MINE).alice

        for path, name in (("groups", "id"), ("topics", "topic")):
            told = await here.get(f"/api/v1/{path}", alice)
            assert (["mine"], 1) == ([one[name] for one in told["items"]], told["total"])
            searched = await here.get(f"/api/v1/{path}?q=t", alice)
            assert ([], 0) == (searched["items"], searched["total"])


async def test_of_a_group_only_topics_that_are_seen_are_shown(autojump_clock: MockClock) -> None:
    """A group may read what its viewer must not know of."""
    async with site() as here:
        await two_groups(here)
        alice = Rights(here, *MINE).alice

        alone = await here.get("/api/v1/groups/mine", alice)
        parts = await here.get("/api/v1/groups/mine/partitions", alice)
        by_name = await here.get("/api/v1/groups/mine/partitions?topic=theirs", alice)

        assert ["mine"] == [one["topic"] for one in alone["topics"]]
        assert (["mine"], 1) == ([one["topic"] for one in parts["items"]], parts["total"])
        assert 0 == by_name["total"]


HIDDEN = [
    "/api/v1/group?group={}",
    "/api/v1/group/partitions?group={}",
    "/api/v1/group/rebalances?group={}",
    "/api/v1/groups/{}",
    "/api/v1/groups/{}/partitions",
    "/api/v1/groups/{}/rebalances",
    "/api/v1/topic?topic={}",
    "/api/v1/topics/{}",
]


@pytest.mark.parametrize("path", HIDDEN)
async def test_what_is_hidden_is_answered_like_what_is_not_there(
    path: str, autojump_clock: MockClock
) -> None:
    """To the letter: a hint at a name that is like it would tell that there is one."""
    async with site() as here:
        await two_groups(here)
        await here.w.connect().ask(commit(10, topic="theirs", group_id="theirs"))
        alice = Rights(here, *MINE).alice
        said = []
        for name in ("theirs", "thei"):
            refused = await here.refused(path.format(name), alice)
            said.append((refused.status, refused.detail.replace(name, "…"), refused.headers))

        assert said[0] == said[1]
        assert (404, ".") == (said[0][0], said[0][1][-1])


@pytest.mark.parametrize("path", HIDDEN)
async def test_what_is_hidden_is_not_even_looked_for(path: str, autojump_clock: MockClock) -> None:
    """How long the disk takes, or that a partition is loaded, would tell where it is."""
    async with site() as here:
        await two_groups(here)
        alice = Rights(here, *MINE).alice
        here.w.slow_disk.hold()
        here.w.connect().send(commit(11, topic="theirs", group_id="other"))
        await trio.sleep(0.1)

        with trio.fail_after(1):
            refused = await here.refused(path.format("other"), alice)

        assert 404 == refused.status


async def test_who_sees_all_groups_in_the_list_is_told_what_he_lacks(
    autojump_clock: MockClock,
) -> None:
    """He knows already that they are there."""
    async with site() as here:
        await two_groups(here)
        alice = Rights(here, SEES_CLUSTER).alice

        assert 2 == (await here.get("/api/v1/groups", alice))["total"]
        for path in HIDDEN[:6]:
            refused = await here.refused(path.format("other"), alice)
            assert (403, "User:alice needs DESCRIBE of group other for this") == (
                refused.status,
                refused.detail,
            )


async def test_the_node_needs_the_cluster(autojump_clock: MockClock) -> None:
    """It tells how many groups there are, and what everybody asks."""
    async with site() as here:
        rights = Rights(here, *MINE)

        refused = await here.refused("/api/v1/node", rights.alice)
        assert 403 == refused.status
        assert "User:alice needs DESCRIBE of the cluster" in refused.detail

        rights.add(SEES_CLUSTER)
        assert 1 == (await here.get("/api/v1/node", rights.alice))["node_id"]


async def test_a_list_is_not_kept_for_somebody_else(autojump_clock: MockClock) -> None:
    """Pages are kept for whoever asks the same; what they may see is a part of it."""
    async with site() as here:
        await two_groups(here)
        rights = Rights(here, *MINE)
        all_of_it = await here.answer("/api/v1/groups")
        hers = await here.answer("/api/v1/groups", viewer=rights.alice)

        assert hers.etag != all_of_it.etag
        assert (await here.get("/api/v1/groups", rights.alice))["total"] == 1
        rights.add(sees(GROUP, "oth", is_prefix=True))
        assert (await here.get("/api/v1/groups", rights.alice))["total"] == 2


async def test_a_tag_does_not_tell_that_something_hidden_has_changed(
    autojump_clock: MockClock,
) -> None:
    """Who polls it would see others at work."""
    async with site() as here:
        await two_groups(here)
        alice = Rights(here, *MINE).alice
        before = (await here.answer("/api/v1/topics", viewer=alice)).etag
        groups = (await here.get("/api/v1/groups", alice))["items"]

        await here.w.connect().ask(commit(90, topic="theirs", group_id="other"))
        await report(here.w.connect(), "theirs", 500)

        assert before == (await here.answer("/api/v1/topics", viewer=alice)).etag
        assert groups[0]["id"] == "mine"


# --- streams ----------------------------------------------------------------------------


async def followed(here: Site, viewer: Viewer, query: str = "") -> Browser:
    """Return a browser of *viewer*'s, after the first look."""
    browser = Browser()
    await browser.follow(here, query, viewer=viewer)
    await trio.sleep(2.5)
    return browser


async def test_a_stream_tells_only_of_what_its_viewer_sees(autojump_clock: MockClock) -> None:
    """Neither a group nor the node, nor by a number that something was told to others."""
    async with site() as here:
        await two_groups(here)
        browser = await followed(here, Rights(here, *MINE).alice)
        client = here.w.connect()

        await client.ask(commit(60, topic="theirs", group_id="other"))
        await trio.sleep(1.5)
        assert [] == browser.of("groups")
        await client.ask(commit(60, topic="mine", group_id="mine"))
        await trio.sleep(1.5)

        assert ["mine"] == [one["id"] for told in browser.of("groups") for one in told["changed"]]
        assert [] == browser.of("node")
        assert [{}, {}] == browser.of("beat")[:2]  # Silence would be a lost connection.
        assert b"id: " not in browser.received
        assert b"other" not in browser.received


async def test_whoever_comes_back_is_not_told_what_others_were(autojump_clock: MockClock) -> None:
    """What is kept for those who come back is everything, and its numbers are easily guessed."""
    async with site() as here:
        await two_groups(here)
        other = Browser()
        await other.follow(here)
        await trio.sleep(2.5)
        number = other.last
        await here.w.connect().ask(commit(60, topic="theirs", group_id="other"))
        await trio.sleep(1.5)
        assert other.of("groups")

        alice = Browser()
        await alice.follow(here, last=number, viewer=Rights(here, *MINE).alice)

        assert ["hello"] == [name for name, _ in alice.events()]


async def test_a_hidden_group_is_followed_like_one_that_is_not_there(
    autojump_clock: MockClock,
) -> None:
    """Neither is told anything of."""
    async with site() as here:
        await two_groups(here)
        alice = Rights(here, *MINE).alice
        hidden = await followed(here, alice, "?group=other")
        missing = await followed(here, alice, "?group=none")
        mine = await followed(here, alice, "?group=mine")

        assert [] == hidden.of("group") == missing.of("group")
        assert ["mine"] == [one["topic"] for one in mine.of("group")[0]["topics"]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rights: rights.remove(MINE[0]), "the rules of access have changed"),
        (lambda rights: setattr(rights, "is_known", False), "the log-in behind it has ended"),
    ],
)
async def test_a_stream_ends_when_its_viewer_may_not_go_on(
    change: Callable[[Rights], Any], reason: str, autojump_clock: MockClock
) -> None:
    """Before anything more is told; and soon, even if there is nothing to tell."""
    async with site() as here:
        await two_groups(here)
        rights = Rights(here, *MINE)
        quiet, busy = await followed(here, rights.alice), await followed(here, rights.alice)
        change(rights)
        await here.w.connect().ask(commit(60, topic="mine", group_id="mine"))
        await trio.sleep(2.5)

        for browser in (quiet, busy):
            assert reason == browser.ended_because
            assert [] == browser.of("groups")


async def test_a_stream_waits_while_rules_are_loaded(autojump_clock: MockClock) -> None:
    """A browser could not come back before that, and half of them may show what others deny."""
    async with site() as here:
        await two_groups(here)
        rights = Rights(here, *MINE)
        browser = await followed(here, rights.alice)
        rights.are_loaded = False
        rights.rules.reset()
        rights.add(sees(GROUP, "other"))
        for group_id in ("mine", "other"):
            await here.w.connect().ask(commit(60, topic="mine", group_id=group_id))
        await trio.sleep(2.5)
        assert browser.is_open
        assert [] == browser.of("groups")

        rights.are_loaded = True
        await trio.sleep(2.5)
        assert "the rules of access have changed" == browser.ended_because


async def test_others_go_on_when_rules_change(autojump_clock: MockClock) -> None:
    """Whoever sees everything sees it still."""
    async with site() as here:
        rights = Rights(here)
        browser = Browser()
        await browser.follow(here)
        rights.add(*MINE)
        await trio.sleep(2.5)

        assert browser.is_open
        assert browser.of("node")
