"""Server-sent events: who is told what, when, and what a browser gets that comes back."""

from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from coordinator.http import views
from coordinator.http.events import (
    FRAME_GROUPS,
    KEPT_BYTES,
    NEWS_MAX,
    SENT_BYTES_MAX,
    SENT_MEMBERS_MAX,
    Journal,
)
from coordinator.http.overview import REST
from coordinator.http.viewer import EVERYBODY, Viewer
from protocol import messages as m
from tests.http.asking import Site, site
from tests.http.test_api import report
from tests.server.world import commit, join


class Browser:
    """One stream, and what came on it."""

    def __init__(self) -> None:
        self.received = b""
        self.is_open = True
        self.ended_because = ""
        self._end: Any = None

    def send(self, frame: bytes) -> None:
        """Take a frame."""
        assert self.is_open
        self.received += frame

    def fail(self, exception: str) -> None:
        """End, as the daemon had a bug."""
        self.end(exception)

    async def follow(
        self,
        here: Site,
        query: str = "",
        last: str | None = None,
        viewer: Viewer = EVERYBODY,
    ) -> None:
        """Begin, or come back."""
        headers = {} if last is None else {"last-event-id": last}
        streaming = await here.stream(f"/api/v1/events{query}", headers, viewer)
        self._end = streaming.end
        streaming.begin(self)

    def end(self, reason: str) -> None:
        """Be ended by the other side."""
        self.ended_because = reason
        self.leave()

    def leave(self) -> None:
        """End."""
        self.is_open = False
        self._end(self)

    def events(self) -> list[tuple[str, Any]]:
        """Return each event with its data."""
        found = []
        for block in self.received.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            if "event" in fields:
                found.append((fields["event"], msgspec.json.decode(fields["data"])))
        return found

    def of(self, event: str) -> list[Any]:
        """Return the data of all events of one kind."""
        return [data for name, data in self.events() if name == event]

    @property
    def last(self) -> str:
        """The number that it says when it comes back."""
        lines = [line for line in self.received.decode().splitlines() if line.startswith("id: ")]
        return lines[-1].removeprefix("id: ")


async def following(here: Site, query: str = "") -> Browser:
    """Return a browser that follows, after the first look."""
    browser = Browser()
    await browser.follow(here, query)
    await trio.sleep(1.5)
    return browser


async def test_a_stream_begins_with_hello(autojump_clock: MockClock) -> None:
    """Whatever was read before may have changed meanwhile."""
    async with site() as here:
        browser = await following(here)

        assert browser.received.startswith(b"retry: 1000\n\nid: ")
        name, data = browser.events()[0]
        assert ("hello", {"as_of", "version", "groups_as_of"}) == (name, set(data))


async def test_a_commit_is_told_within_a_second(autojump_clock: MockClock) -> None:
    """A lag is looked at once a second for all groups together."""
    async with site() as here:
        client = here.w.connect()
        await report(client, "t", 100)
        await client.ask(commit(10))
        browser = await following(here)
        await client.ask(commit(60))
        await trio.sleep(1.1)

        (told,) = browser.of("groups")
        assert [("g", 40)] == [(group["id"], group["lag"]) for group in told["changed"]]
        assert "samples" not in told["changed"][0]
        assert [] == told["removed"]


async def test_a_rebalance_is_told_at_once(autojump_clock: MockClock) -> None:
    """Whoever watches sees the group move while it does."""
    async with site() as here:
        client = here.w.connect()
        await client.join_alone("g")
        browser = await following(here)
        other = here.w.connect()
        second = await other.member_id("g")
        seen = len(browser.of("groups"))
        other.send(join("g", second))
        await trio.sleep(0.05)

        (told,) = browser.of("groups")[seen:]
        assert [("g", "PreparingRebalance")] == [(g["id"], g["state"]) for g in told["changed"]]


async def test_a_group_that_is_gone_is_told(autojump_clock: MockClock) -> None:
    """Else it would stay in the list for ever."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1))
        await client.ask(commit(1, group_id="other"))
        browser = await following(here)
        await client.ask(m.DeleteGroupsRequest(("g",)))
        await trio.sleep(0.05)

        assert [{"changed": [], "removed": ["g"]}] == browser.of("groups")


async def test_nothing_is_told_while_nothing_changes(autojump_clock: MockClock) -> None:
    """A lag in seconds that only grows with time is told as it adds up, not each second."""
    async with site() as here:
        client = here.w.connect()
        await report(client, "t", 100)
        await client.ask(commit(10))
        await trio.sleep(61)
        await report(client, "t", 200)
        browser = await following(here)
        await trio.sleep(50)
        told = len(browser.of("groups"))
        await trio.sleep(500)

        assert told <= 12
        assert len(browser.of("groups")) - told < 40


async def test_the_node_is_told_every_two_seconds(autojump_clock: MockClock) -> None:
    """That also shows that the connection is there."""
    async with site() as here:
        browser = await following(here)
        await trio.sleep(10)

        told = browser.of("node")
        assert 6 == len(told)
        assert [] == told[0]["flushes"]["samples"]


async def test_a_minute_is_told_once_everything_was_sampled(autojump_clock: MockClock) -> None:
    """Then there are new curves."""
    async with site() as here:
        await trio.sleep_until(10)
        browser = await following(here)
        await trio.sleep_until(61.9)
        assert [] == browser.of("minute")
        here.w.wall_ms += 62_100
        await trio.sleep_until(62.1)

        assert [{"at": "2023-11-14T22:14:20Z"}] == [
            {"at": one["at"][:19] + "Z"} for one in browser.of("minute")
        ]


async def test_one_group_is_followed_as_alone(autojump_clock: MockClock) -> None:
    """Its page shows each step."""
    async with site() as here:
        client = here.w.connect()
        await report(client, "t", 100)
        await client.join_alone("g")
        browser = await following(here, "?group=g")
        (first,) = browser.of("group")
        await client.ask(commit(60, group_id="else"))
        await trio.sleep(0.2)
        assert [first] == browser.of("group")
        other = here.w.connect()
        second = await other.member_id("g")
        other.send(join("g", second))
        await trio.sleep(0.1)

        *_, told = browser.of("group")
        assert "Stable" == first["state"]
        assert ("PreparingRebalance", 2) == (told["state"], len(told["members"]))
        assert "member joined" == told["rebalance"]["trigger"]


async def test_the_lag_of_a_group_that_is_followed_is_told_at_once(
    autojump_clock: MockClock,
) -> None:
    """Whoever looks at one group must not wait for the look at all of them."""
    async with site() as here:
        client = here.w.connect()
        await report(client, "t", 100)
        await client.ask(commit(10))
        browser = await following(here, "?group=g")
        await client.ask(commit(60))
        await trio.sleep(0.06)

        assert [90, 40] == [told["lag"] for told in browser.of("group")]


async def test_hello_says_how_new_a_list_of_groups_misses_nothing(
    autojump_clock: MockClock,
) -> None:
    """A page that asked for the list beside the stream need not ask again."""
    async with site() as here:
        first = Browser()
        await first.follow(here)
        await trio.sleep(1.5)
        listed = await here.get("/api/v1/groups")
        second = await following(here)

        assert None is first.of("hello")[0]["groups_as_of"]
        assert listed["as_of"] == second.of("hello")[0]["groups_as_of"]


async def test_a_second_follower_of_a_group_is_told_what_it_is(autojump_clock: MockClock) -> None:
    """The first one was told already, and nothing has changed."""
    async with site() as here:
        await here.w.connect().ask(commit(1))
        first, second = await following(here, "?group=g"), await following(here, "?group=g")

        assert [1, 1] == [len(browser.of("group")) for browser in (first, second)]


async def test_nobody_looks_at_a_group_that_nobody_follows(autojump_clock: MockClock) -> None:
    """A closed page costs nothing."""
    async with site() as here:
        await here.w.connect().ask(commit(1))
        browser = await following(here, "?group=g")
        browser.leave()
        await trio.sleep(5)
        pauses = here.pauses
        await trio.sleep(50)

        assert pauses == here.pauses
        assert browser.received.count(b"event: group\n") == 1


async def test_a_heartbeat_is_told_once_a_second_at_most(autojump_clock: MockClock) -> None:
    """The page counts by itself from the last one on."""
    async with site() as here:
        client = here.w.connect()
        member_id = await client.join_alone("g")
        browser = await following(here, "?group=g")
        seen = len(browser.of("group"))
        for _ in range(20):
            await client.ask(m.HeartbeatRequest("g", 1, member_id, None))
            await trio.sleep(0.2)

        told = browser.of("group")[seen:]
        assert 2 <= len(told) <= 5
        assert told[-1]["members"][0]["heartbeat_age_ms"] < 1_000


async def test_a_group_that_comes_later_is_told_when_it_does(autojump_clock: MockClock) -> None:
    """A page may be open before its group is there."""
    async with site() as here:
        browser = await following(here, "?group=g")
        assert [] == browser.of("group")
        await here.w.connect().ask(commit(1))
        await trio.sleep(1.1)

        assert ["g"] == [told["id"] for told in browser.of("group")]


async def test_a_browser_that_comes_back_gets_what_it_missed(autojump_clock: MockClock) -> None:
    """Without reading all lists anew, whenever the network blinks."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1))
        browser, witness = await following(here), await following(here)
        last = browser.last
        browser.leave()
        await client.ask(commit(1, group_id="new"))
        await trio.sleep(2)
        back = Browser()
        await back.follow(here, last=last)

        assert [] == back.of("hello")
        assert ["new"] == [group["id"] for told in back.of("groups") for group in told["changed"]]
        assert back.last == witness.last


async def test_what_changed_while_nobody_followed_is_told(autojump_clock: MockClock) -> None:
    """Its numbers say that it missed nothing, as nothing was looked at meanwhile."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1))
        browser = await following(here)
        last = browser.last
        browser.leave()
        await trio.sleep(2)
        await client.ask(commit(1, group_id="new"))
        await trio.sleep(2)
        back = Browser()
        await back.follow(here, last=last)
        await trio.sleep(1.5)

        assert [] == back.of("hello")
        assert ["new"] == [group["id"] for told in back.of("groups") for group in told["changed"]]


@pytest.mark.parametrize("last", ["", "x", "18bcfe56800-99", "1-1", "18bcfe56800-٣", "a-b-c"])
async def test_who_says_what_is_not_known_begins_anew(last: str, autojump_clock: MockClock) -> None:
    """It may have followed the daemon before the restart."""
    async with site() as here:
        browser = Browser()
        await browser.follow(here, last=last)

        assert 1 == len(browser.of("hello"))


async def test_very_much_news_is_to_be_read_from_the_lists(autojump_clock: MockClock) -> None:
    """Ten thousand groups in events would be more than the list of those that are shown."""
    async with site() as here:
        client = here.w.connect()
        browser = await following(here)
        for number in range(NEWS_MAX + 1):
            client.send(commit(1, group_id=f"g{number}"))
        await trio.sleep(3)

        told = browser.of("groups")
        assert 2 == len(browser.of("hello"))
        assert sum(len(one["changed"]) for one in told) < NEWS_MAX


async def test_much_news_comes_in_several_events(autojump_clock: MockClock) -> None:
    """A frame that is larger than what a stream may owe would end it."""
    async with site() as here:
        browser = await following(here)
        client = here.w.connect()
        for number in range(200):
            client.send(commit(1, group_id=f"g{number}"))
        await trio.sleep(2)

        sizes = [len(told["changed"]) for told in browser.of("groups")]
        assert 200 == sum(sizes)
        assert max(sizes) <= FRAME_GROUPS


async def test_a_stream_that_has_ended_is_left_out(autojump_clock: MockClock) -> None:
    """Others are told all the same, in the same turn."""
    async with site() as here:
        client = here.w.connect()
        gone, there = await following(here), await following(here)
        gone.is_open = False
        await client.ask(commit(1))
        await trio.sleep(1.1)

        assert 1 == len(there.of("groups"))


async def test_a_thousand_streams_are_told_in_turns(autojump_clock: MockClock) -> None:
    """Commits go first."""
    async with site() as here:
        browsers = [Browser() for _ in range(1_000)]
        for browser in browsers:
            await browser.follow(here)
        await trio.sleep(1.5)
        pauses = here.pauses
        await here.w.connect().ask(commit(1))
        await trio.sleep(1.1)

        assert {1} == {browser.received.count(b"event: groups") for browser in browsers}
        assert here.pauses - pauses > 250


async def test_what_is_sent_every_two_seconds_makes_no_lag_older(
    autojump_clock: MockClock,
) -> None:
    """Looks rest the longer, the more it costs to send what they find, and nothing else."""
    async with site() as here:
        busy_s = 0.0

        class Slow(Browser):
            def send(self, frame: bytes) -> None:
                nonlocal busy_s
                busy_s += 0.1

        here.hub._clock_s = lambda: busy_s
        await Slow().follow(here)
        await trio.sleep(30)
        idle_s = here.overview.rest_s
        await here.w.connect().ask(commit(1))
        await trio.sleep(1.1)

        assert idle_s == 1.0
        assert here.overview.rest_s == pytest.approx(REST * 0.1)


async def test_streams_are_there_while_the_log_is_loaded(autojump_clock: MockClock) -> None:
    """The page shows how far it is, and goes on by itself."""
    async with site(load=False) as here:
        browser = await following(here, "?group=g")
        assert "loading" == browser.of("node")[0]["status"]
        await here.w.node.load()
        await here.w.connect().ask(commit(1))
        await trio.sleep(2.1)

        assert "ready" == browser.of("node")[-1]["status"]
        assert ["g"] == [told["id"] for told in browser.of("group")]


async def test_a_partition_that_is_loaded_anew_takes_no_group_away(
    autojump_clock: MockClock,
) -> None:
    """Its groups are not gone, they can't be seen for a moment."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1))
        browser = await following(here)
        number = here.w.node.shard_of("g").partition
        here.w.node.unload(number)
        await trio.sleep(5)
        await here.w.node.load_partition(number)
        await trio.sleep(5)

        assert [] == [told["removed"] for told in browser.of("groups") if told["removed"]]


async def test_a_group_that_cannot_be_is_refused(autojump_clock: MockClock) -> None:
    """A stream for it would be silent for ever."""
    async with site() as here:
        assert 400 == (await here.refused("/api/v1/events?group=" + "g" * 250 + "%00")).status


def test_frames_are_kept_for_a_minute_and_not_too_many() -> None:
    """Who was away for longer reads the lists."""
    journal = Journal("b")
    first = journal.name
    journal.put("minute", views.Minute(views.moment(0)), 0)
    assert journal.since(first, 60_000) is not None
    assert journal.since(first, 60_001) is None
    assert [] == journal.since(journal.name, 10**9)
    large = views.GroupChanges([], ["x" * 50_000])
    for _ in range(100):
        journal.put("groups", large, 1)

    assert journal.since("b-98", 1) is None
    assert [50_000, 50_000] == [
        len(made) // 1_000 * 1_000 for made in journal.since("b-99", 1) or ()
    ]
    assert sum(len(made) for _, _, made in journal._kept) <= KEPT_BYTES


@pytest.mark.parametrize(
    ("members", "long"), [(SENT_BYTES_MAX // 300, "x" * 200), (SENT_MEMBERS_MAX + 1, "")]
)
async def test_a_group_that_is_too_large_for_an_event_is_to_be_read(
    members: int, long: str, autojump_clock: MockClock
) -> None:
    """A frame that ends the stream would come again with the next one, and the next.

    Of too many members none is made.
    """
    async with site() as here:
        client = here.w.connect()
        for number in range(members):
            protocols = (m.JoinProtocol("range", b""),)
            who = f"i{number:04}{long}"
            client.send(
                m.JoinGroupRequest("g", 300_000, 300_000, "", who, "consumer", protocols, None)
            )
        await trio.sleep(2)
        browser = await following(here, "?group=g")
        await trio.sleep(20)

        assert [] == browser.of("group")
        assert 2 <= len(browser.of("hello")) <= 6
        assert max(map(len, browser.received.split(b"\n\n"))) < SENT_BYTES_MAX
