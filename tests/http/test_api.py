"""The JSON API: what it shows, by page, with ETags, and when it refuses."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

import openapi_spec_validator
import pytest
import trio
import trio.testing
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from coordinator.http.routes import Answer, Refused
from protocol import messages as m
from protocol.consumer import Assignment, encode_assignment
from protocol.partition import TopicPartition
from tests.fakes.environment import answered_alike
from tests.http.asking import Site, body, site
from tests.server.world import Client, commit, join

NAMES = ["a/b", "ä ö", "…", "%2F", "<b>&", "\u202egroup", "g" * 255, " ", "a+b?c#d;e"]
STEPS = [".", "..", "%2e%2e", "a/../b", "//"]


async def report(client: Client, topic: str, *ends: int) -> None:
    """Tell how far the partitions of a topic reach, which is registered first."""
    await client.ask(m.RegisterTopicsRequest((m.TopicRegistration(topic, len(ends), None),)))
    named = tuple(m.PartitionEnd(number, end) for number, end in enumerate(ends))
    await client.ask(m.ReportEndOffsetsRequest((m.TopicEnds(topic, named),)))


async def all_pages(here: Site, path: str) -> list[Any]:
    """Return the items of all pages."""
    items: list[Any] = []
    following: str | None = path
    while following is not None:
        page = await here.get(following)
        items += page["items"]
        following = page["next"]
    return items


async def test_the_document_is_openapi_and_names_what_is_answered(
    autojump_clock: MockClock,
) -> None:
    """Who generates a client from it has no other description."""
    async with site() as here:
        told = await here.get("/api/v1/openapi.json")

        openapi_spec_validator.validate(told)
        assert "/api/v1/openapi.json" in told["paths"]
        for path in ("/api/v1/group/rebalances", "/api/v1/groups/{group}/rebalances"):
            asked = told["paths"][path]["get"]
            group = {"name": "group", "required": True}
            assert group.items() <= asked["parameters"][0].items()
            assert ("{" in path) == asked.get("deprecated", False)


async def test_a_group_is_shown_in_numbers(autojump_clock: MockClock) -> None:
    """What the list says is what a person looks at first."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(30, 0, 2, group_id="billing"))
        await report(client, "t", 100, 50)

        told = await here.get("/api/v1/groups")

        (group,) = told["items"]
        assert {
            "id": "billing",
            "type": "",
            "state": "Empty",
            "members": 0,
            "partitions": 2,
            "unknown_partitions": 1,
            "lag": 70,
        }.items() <= group.items()
        assert (1, None) == (told["total"], told["next"])
        assert "2023-11-14T22:13:20Z" == told["as_of"]


async def test_what_is_not_known_is_null(autojump_clock: MockClock) -> None:
    """Nobody mistakes it for 0."""
    async with site() as here:
        await here.w.connect().ask(commit(30))

        (group,) = (await here.get("/api/v1/groups"))["items"]

        assert [None] * 4 == [
            group[name] for name in ("lag", "lag_seconds", "earlier_lag", "earlier_ms")
        ]
        assert ([], None) == (group["samples"], group["sampled_at"])


async def test_a_commit_beyond_the_reported_end_has_no_lag(autojump_clock: MockClock) -> None:
    """Each level says null, or the rest, and how many partitions it can't tell of."""
    async with site() as here:
        client = here.w.connect()
        await report(client, "t", 60, 50)
        await client.ask(commit(60, 0, 1, group_id="part"))
        member_id = await client.join_alone("g")
        one = m.TopicCommit("t", (m.PartitionCommit(0, 61, -1, "", None),))
        await client.ask(m.OffsetCommitRequest("g", 1, member_id, None, (one,)))
        part = await here.get("/api/v1/groups/part")
        known, beyond = (await here.get("/api/v1/groups/part/partitions"))["items"]
        group = await here.get("/api/v1/groups/g")
        names = ("lag", "lag_seconds")

        assert [0, 0.0] == [known[name] for name in names]
        assert (60, 50, None, None) == (
            beyond["committed"],
            beyond["end"],
            *(beyond[name] for name in names),
        )
        for level in (part, *part["topics"]):
            assert (1, 0, 0.0) == (level["unknown_partitions"], *(level[name] for name in names))
        for level in (group, *group["topics"], *group["members"]):
            assert (1, None) == (level["unknown_partitions"], level["lag"])


async def test_a_group_alone_has_its_members_topics_and_what_it_waits_for(
    autojump_clock: MockClock,
) -> None:
    """Who is in it, and why it stands still."""
    async with site() as here:
        client, other = here.w.connect(), here.w.connect("192.0.2.9")
        await report(client, "t", 100)
        member_id = await client.join_alone("g")
        await client.ask(
            m.OffsetCommitRequest(
                "g",
                1,
                member_id,
                None,
                (m.TopicCommit("t", (m.PartitionCommit(0, 40, -1, "m", None),)),),
            )
        )
        stable = await here.get("/api/v1/groups/g")
        second = await other.member_id("g")
        other.send(join("g", second))
        await trio.sleep(0.5)
        moving = await here.get("/api/v1/groups/g")

        assert ("Stable", 1, "range", member_id) == (
            stable["state"],
            stable["generation"],
            stable["protocol"],
            stable["leader"],
        )
        assert [{"topic": "t", "partitions": 1, "unknown_partitions": 0, "lag": 60}.items()] == [
            {k: v for k, v in topic.items() if k != "lag_seconds"}.items()
            for topic in stable["topics"]
        ]
        (member,) = stable["members"]
        assert {
            "id": member_id,
            "instance_id": None,
            "host": "192.0.2.1",
            "is_leader": True,
            "session_timeout_ms": 10_000,
            "partitions": 1,
            "lag": 60,
            "drained": False,
            "waits": None,
        }.items() <= member.items()
        assert stable["rebalance"] is None
        assert "PreparingRebalance" == moving["state"]
        running = moving["rebalance"]
        assert [member_id] == running["waiting_for"]
        assert "member joined" == running["trigger"]
        assert second == running["by"]["id"]
        assert [{"phase": "join", "ms": 500}] == running["phases"]
        assert ["join"] == [one["waits"] for one in moving["members"] if one["id"] == second]


async def test_rebalances_say_who_caused_them(autojump_clock: MockClock) -> None:
    """The question at night."""
    async with site() as here:
        client = here.w.connect()
        await client.join_alone("g")
        await trio.sleep(11)  # Its session ends.

        told = await here.get("/api/v1/groups/g/rebalances?limit=1")

        (rebalance,) = told["items"]
        assert 2 == told["total"]
        assert ("session expired", "empty", 1, 2) == (
            rebalance["trigger"],
            rebalance["outcome"],
            rebalance["from_generation"],
            rebalance["to_generation"],
        )
        assert rebalance["by"]["host"] == "192.0.2.1"
        assert ["join"] == [phase["phase"] for phase in rebalance["phases"]]


async def test_the_partitions_of_a_group_come_by_page(autojump_clock: MockClock) -> None:
    """A group may have 100,000 of them."""
    async with site() as here:
        client = here.w.connect()
        await report(client, "t", *range(10, 20))
        await client.ask(commit(5, *range(10), group_id="g"))

        by_id = await all_pages(here, "/api/v1/groups/g/partitions?limit=3")
        by_lag = await all_pages(here, "/api/v1/groups/g/partitions?limit=3&sort=lag")
        none = await here.get("/api/v1/groups/g/partitions?topic=u")

        assert list(range(10)) == [one["partition"] for one in by_id]
        assert [14, 13, 12, 11, 10, 9, 8, 7, 6, 5] == [one["lag"] for one in by_lag]
        assert ([], 0) == (none["items"], none["total"])
        assert {
            "topic": "t",
            "partition": 0,
            "owner": None,
            "committed": 5,
            "end": 10,
            "lag": 5,
            "committed_at": "2023-11-14T22:13:20Z",
            "end_reported_at": "2023-11-14T22:13:20Z",
            "metadata": "",
            "samples": [],
        }.items() <= by_id[0].items()


async def test_samples_are_a_minute_apart(autojump_clock: MockClock) -> None:
    """The curve of the last hour."""
    async with site() as here:
        client = here.w.connect()
        await report(client, "t", 100)
        await client.ask(commit(30))
        for minute in (1, 2):
            await trio.sleep_until(60 * minute + 10)
            here.w.wall_ms = 1_700_000_000_000 + (60 * minute + 10) * 1000
            await client.ask(commit(30 + minute))
        await trio.sleep_until(190)
        here.w.wall_ms = 1_700_000_000_000 + 190_000

        (group,) = (await here.get("/api/v1/groups?samples=2"))["items"]
        (partition,) = (await here.get("/api/v1/groups/g/partitions?samples=60"))["items"]

        assert ([69, 68], "2023-11-14T22:16:20Z") == (group["samples"], group["sampled_at"])
        assert [70, 69, 68] == partition["samples"]


async def test_topics_come_by_name(autojump_clock: MockClock) -> None:
    """Also those that no group reads."""
    async with site() as here:
        client = here.w.connect()
        for topic in ("b", "a", "c/d"):
            await report(client, topic, 10, 20)
        await trio.sleep(2.1)

        told = await all_pages(here, "/api/v1/topics?limit=2")
        some = await here.get("/api/v1/topics?q=C%2F")
        one = await here.get("/api/v1/topics/c%2Fd")

        assert ["a", "b", "c/d"] == [topic["topic"] for topic in told]
        row = {
            "topic": "c/d",
            "partition_count": 2,
            "unknown_partitions": 0,
            "end_sum": 30,
            "end_age_ms": 2100,
        }
        assert [row] == some["items"]
        reported = {"end_reported_at": "2023-11-14T22:13:20Z", "hosts": []}
        assert {
            **row,
            "partitions": [
                {"partition": 0, "end": 10, **reported},
                {"partition": 1, "end": 20, **reported},
            ],
        } == one


async def test_a_topic_without_ends_says_so(autojump_clock: MockClock) -> None:
    """An end of 0 would be a lag of 0."""
    async with site() as here:
        hosts = (m.PartitionHosts(0, ("a",)),)
        registration = m.TopicRegistration("t", 1, hosts)
        await here.w.connect().ask(m.RegisterTopicsRequest((registration,)))

        told = await here.get("/api/v1/topics/t")

        assert (None, None) == (told["end_sum"], told["end_age_ms"])
        unknown = {"end": None, "end_reported_at": None}
        assert [{"partition": 0, "hosts": ["a"], **unknown}] == told["partitions"]


async def test_a_topic_tells_of_how_many_partitions_no_end_is_known(
    autojump_clock: MockClock,
) -> None:
    """The sum of one end of six looked like that of the whole topic."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(m.RegisterTopicsRequest((m.TopicRegistration("t", 6, ()),)))
        await client.ask(m.ReportEndOffsetsRequest((m.TopicEnds("t", (m.PartitionEnd(2, 1200),)),)))
        (listed,) = (await here.get("/api/v1/topics"))["items"]
        one = await here.get("/api/v1/topics/t")

        assert (1200, 5) == (listed["end_sum"], listed["unknown_partitions"])
        assert (1200, 5) == (one["end_sum"], one["unknown_partitions"])


async def test_the_node_tells_of_the_last_minute(autojump_clock: MockClock) -> None:
    """Whether it is busy, and whether its disk is slow."""
    async with site() as here:
        client = here.w.connect()
        answered_alike(here.w.environment.telemetry, 8, 0, 0.0004, 60)
        answered_alike(here.w.environment.telemetry, 8, 25, 0.0004, 3)
        await client.ask(commit(1))
        await trio.sleep(30)

        told = await here.get("/api/v1/node")
        await trio.sleep(90)
        later = await here.get("/api/v1/node")

        (commits,) = [one for one in told["requests"] if one["api"] == "OffsetCommit"]
        assert commits["errors_per_second"] == pytest.approx(0.1, abs=0.01)
        assert commits["per_second"] == pytest.approx(2.1, abs=0.1)
        assert 0 < commits["p50_ms"] < commits["p99_ms"] <= 0.5
        assert {"Empty": 1} == told["groups"]
        assert ("ready", 1) == (told["status"], told["connections"])
        assert (0, None) == (told["compaction"]["done"], told["compaction"]["last_ms"])
        assert {"max_series": 50_000, "left_out": 7} == told["metrics"]
        assert [] == later["requests"]


async def test_a_loading_node_is_shown_and_its_groups_are_not(autojump_clock: MockClock) -> None:
    """Part of the groups would look like all of them."""
    async with site(load=False) as here:
        node = await here.get("/api/v1/node")

        assert ("loading", {}) == (node["status"], node["groups"])
        paths = ["groups", "groups/g", "groups/g/partitions", "groups/g/rebalances", "topics"]
        for path in paths:
            refused = await here.refused(f"/api/v1/{path}")
            assert (503, 1) == (refused.status, refused.retry_after_s), path


@pytest.mark.parametrize(
    "path", ["groups/billing", "groups/billing/partitions", "groups/billing/rebalances"]
)
async def test_a_group_that_there_is_not_names_one_like_it(
    path: str, autojump_clock: MockClock
) -> None:
    """Most names that are not there are misspelled."""
    async with site() as here:
        await here.w.connect().ask(commit(1, group_id="billings"))

        refused = await here.refused(f"/api/v1/{path}")

        assert 404 == refused.status
        assert "there is no group billing. Did you mean billings?" == refused.detail


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("sortt=lag", "sort"),
        ("sort=size", "lag_seconds"),
        ("limit=0", "limit"),
        ("limit=2001", "limit"),
        ("limit=-1", "limit"),
        ("limit=٣", "limit"),
        ("limit=" + "9" * 5_000, "limit"),
        ("limit=5&limit=6", "limit"),
        ("state=stable", "state"),
        ("cursor=x", "cursor"),
        ("cursor=WzEsMiwz", "cursor"),
        ("q=" + "q" * 256, "q "),
        ("samples=61", "samples"),
    ],
)
async def test_a_parameter_that_cannot_be_is_refused_by_name(
    query: str, named: str, autojump_clock: MockClock
) -> None:
    """One that is ignored would be taken to hold."""
    async with site() as here:
        refused = await here.refused(f"/api/v1/groups?{query}")

        assert 400 == refused.status
        assert named in refused.detail
        assert len(refused.detail) < 300


@pytest.mark.parametrize("group_id", [*NAMES, *STEPS])
async def test_any_name_finds_its_group(group_id: str, autojump_clock: MockClock) -> None:
    """Names are made up by others; in a path, "." and ".." would be steps for whoever asks."""
    async with site() as here:
        client = here.w.connect()
        assert await client.error(commit(1, 0, 1, group_id=group_id)) == 0
        topic = group_id[:249]  # Its name is shorter at most.
        await report(client, topic, 7)
        named = urlencode({"group": group_id})

        told = await here.get(f"/api/v1/group?{named}")
        partitions = await all_pages(here, f"/api/v1/group/partitions?{named}&limit=1")
        read = await here.get(f"/api/v1/topic?{urlencode({'topic': topic})}")

        assert (group_id, topic) == (told["id"], read["topic"])
        assert [0, 1] == [one["partition"] for one in partitions]


@pytest.mark.parametrize("group_id", NAMES)
async def test_a_link_with_the_name_in_its_path_goes_on_working(
    group_id: str, autojump_clock: MockClock
) -> None:
    """It may stand in a runbook since before there was another one."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1, 0, 1, group_id=group_id))
        await report(client, group_id[:249], 7)
        name, topic = quote(group_id, safe=""), quote(group_id[:249], safe="")

        for link, asked in (
            (f"groups/{name}?", f"group?group={name}"),
            (f"groups/{name}/rebalances?limit=1", f"group/rebalances?group={name}&limit=1"),
            (f"groups/{name}/partitions?samples=1", f"group/partitions?group={name}&samples=1"),
            (f"topics/{topic}", f"topic?topic={topic}"),
        ):
            assert await here.get(f"/api/v1/{link}") == await here.get(f"/api/v1/{asked}")
        link = f"/api/v1/groups/{name}/partitions?limit=1"
        assert [0, 1] == [one["partition"] for one in await all_pages(here, link)]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("/api/v1/group", "group is missing: its id"),
        ("/api/v1/group/partitions?topic=t", "group is missing: its id"),
        ("/api/v1/topic", "topic is missing: its name"),
        ("/api/v1/group?group=a&group=b", "group is given 2 times"),
        ("/api/v1/groups/a?group=b", "group is given 2 times"),
    ],
)
async def test_a_question_about_no_group_or_two_is_refused(
    asked: str, said: str, autojump_clock: MockClock
) -> None:
    """Whichever was answered, it could be the other one that is meant."""
    async with site() as here:
        refused = await here.refused(asked)

        assert (400, said) == (refused.status, refused.detail)


async def test_the_list_is_asked_for_by_state_and_part_of_the_name(
    autojump_clock: MockClock,
) -> None:
    """Of 2,000 groups, one is looked for."""
    async with site() as here:
        client = here.w.connect()
        for group_id in ("Alpha", "alphabet", "beta"):
            await client.ask(commit(1, group_id=group_id))
        await client.join_alone("gamma")

        async def ids(query: str) -> list[str]:
            return [group["id"] for group in (await here.get(f"/api/v1/groups?{query}"))["items"]]

        assert ["Alpha", "alphabet"] == await ids("q=ALPHA&sort=id")
        assert ["gamma"] == await ids("state=Stable&state=PreparingRebalance")
        assert [] == await ids("q=alpha&state=Stable")
        assert "gamma" == (await ids("sort=members"))[0]


async def test_the_worst_comes_first_and_the_unknown_last(autojump_clock: MockClock) -> None:
    """A lag that isn't known is not the smallest."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1, 5, group_id="unknown"))
        await report(client, "t", 100)
        for group_id, offset in (("some", 50), ("none", 100), ("most", 0)):
            await client.ask(commit(offset, group_id=group_id))

        for order in ("lag", "lag_seconds"):
            told = await here.get(f"/api/v1/groups?sort={order}")
            assert ["most", "some", "none", "unknown"] == [one["id"] for one in told["items"]]


async def test_who_has_the_list_already_is_told_only_that(autojump_clock: MockClock) -> None:
    """Asking again costs nothing, until something changes."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1))
        await trio.sleep(5)
        first = await here.answer("/api/v1/groups")
        headers = {"if-none-match": first.etag}
        await trio.sleep(5)
        again = await here.answer("/api/v1/groups", headers)
        await client.ask(commit(1, group_id="another"))
        await trio.sleep(5)
        changed = await here.answer("/api/v1/groups", headers)

        assert ((), first.etag) == (again.body, again.etag)
        assert changed.body
        assert first.etag != changed.etag


async def test_other_answers_have_the_tag_of_what_they_say(autojump_clock: MockClock) -> None:
    """Two that are the same must not be sent twice."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1))
        for path in ("groups/g", "groups/g/partitions", "groups/g/rebalances", "topics"):
            one = await here.answer(f"/api/v1/{path}")
            assert one.etag == (await here.answer(f"/api/v1/{path}")).etag
        before = (await here.answer("/api/v1/groups/g/partitions")).etag
        await client.ask(commit(2))

        assert before != (await here.answer("/api/v1/groups/g/partitions")).etag


async def test_one_group_is_shown_once_it_is_on_disk(autojump_clock: MockClock) -> None:
    """A crash must not take back what somebody saw."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1))
        here.w.slow_disk.hold()
        client.send(commit(2))
        await trio.testing.wait_all_tasks_blocked()
        shown: list[Any] = []

        async def ask(path: str) -> None:
            shown.append(await here.get(path))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "/api/v1/groups/g")
            nursery.start_soon(ask, "/api/v1/groups/g/partitions")
            await trio.sleep(1)
            assert [] == shown
            here.w.slow_disk.let_go()

        assert 2 == len(shown)


async def test_a_disk_that_hangs_is_said_to(autojump_clock: MockClock) -> None:
    """Better than an answer that never comes."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(commit(1))
        here.w.slow_disk.hold()
        client.send(commit(2))
        await trio.testing.wait_all_tasks_blocked()

        refused = await here.refused("/api/v1/groups/g")
        here.w.slow_disk.let_go()

        assert 503 == refused.status
        assert "not on disk" in refused.detail


async def test_the_pages_of_a_list_are_of_one_snapshot(autojump_clock: MockClock) -> None:
    """Nobody is there twice, and nobody is missed, whatever happens in between."""
    async with site() as here:
        client = here.w.connect()
        await report(client, "t", 100)
        for offset in range(10):
            await client.ask(commit(offset, group_id=f"g{offset}"))
        first = await here.get("/api/v1/groups?limit=4")
        await trio.sleep(10)
        for offset in range(10):
            await client.ask(commit(100 - offset, group_id=f"g{offset}"))
        await client.ask(m.DeleteGroupsRequest(("g7",)))
        await here.get("/api/v1/groups?limit=4")
        rest = await all_pages(here, first["next"])

        ids = [group["id"] for group in [*first["items"], *rest]]
        assert [f"g{offset}" for offset in range(10)] == ids


async def test_a_page_of_a_snapshot_that_is_kept_no_more_goes_on_behind_the_last(
    autojump_clock: MockClock,
) -> None:
    """A slow reader comes to the end all the same."""
    async with site() as here:
        client = here.w.connect()
        for number in range(10):
            await client.ask(commit(1, group_id=f"g{number}"))
        first = await here.get("/api/v1/groups?limit=4&sort=id")
        await client.ask(commit(1, group_id="g35"))
        await trio.sleep(120)
        rest = await all_pages(here, first["next"])

        ids = [group["id"] for group in [*first["items"], *rest]]
        assert [*(f"g{n}" for n in range(4)), "g35", *(f"g{n}" for n in range(4, 10))] == ids


async def test_equal_questions_are_answered_with_the_same_bytes(autojump_clock: MockClock) -> None:
    """Five hundred pages that are open ask for one list, once a minute."""
    async with site() as here:
        for number in range(200):
            await here.w.connect().ask(commit(1, group_id=f"g{number}"))
        first = await here.answer("/api/v1/groups")
        pauses = here.pauses
        again = await here.answer("/api/v1/groups")
        other = await here.answer("/api/v1/groups?samples=0")

        assert first.body is again.body
        assert pauses < here.pauses
        assert other.body is not first.body


OPERATIONS = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from(["commit", "delete", "wait"])), max_size=30
)


@given(operations=OPERATIONS, limit=st.integers(1, 5))
@settings(max_examples=10)
def test_paging_by_id_shows_everybody_once(
    operations: Sequence[tuple[int, str]], limit: int
) -> None:
    """Groups come and go, snapshots end: who was there all along is there once."""

    async def run() -> None:
        async with site() as here:
            client = here.w.connect()
            for number in range(0, 20, 2):
                await client.ask(commit(1, group_id=f"g{number:02}"))
            touched: set[str] = set()
            left = iter(operations)
            seen: list[str] = []
            following: str | None = f"/api/v1/groups?sort=id&limit={limit}"
            while following is not None:
                page = await here.get(following)
                seen += [group["id"] for group in page["items"]]
                following = page["next"]
                number, what = next(left, (0, "wait"))
                group_id = f"g{number:02}"
                if what == "wait":
                    await trio.sleep(50)
                    continue
                touched.add(group_id)
                if what == "commit":
                    await client.ask(commit(1, group_id=group_id))
                else:
                    await client.ask(m.DeleteGroupsRequest((group_id,)))

            assert sorted(set(seen)) == seen
            there = {f"g{number:02}" for number in range(0, 20, 2)} - touched
            assert there <= set(seen)

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def test_much_is_shown_in_turns(autojump_clock: MockClock) -> None:
    """Commits go first: nothing here may hold the loop for long."""
    async with site() as here:
        client = here.w.connect()
        await report(client, "t", *[10] * 5_000)
        owned = Assignment(tuple(TopicPartition("t", number) for number in range(5_000)))
        await client.join_alone("g", assignment=encode_assignment(owned))
        for path in ("groups/g", "groups/g/partitions?limit=2000&sort=lag", "topics/t"):
            pauses = here.pauses
            await here.get(f"/api/v1/{path}")
            assert 4 < here.pauses - pauses, path


async def test_many_members_are_encoded_in_turns(autojump_clock: MockClock) -> None:
    """All of a group of 10,000 at once took 7 ms, in which no commit was answered."""
    async with site() as here:
        client = here.w.connect()
        await client.ask(m.ApiVersionsRequest('"members":[', "", ""))  # As an attacker would.
        for number in range(400):
            protocols = (m.JoinProtocol("range", b""),)
            client.send(
                m.JoinGroupRequest(
                    "g", 300_000, 300_000, "", f"i{number}", "consumer", protocols, None
                )
            )
        await trio.sleep(2)
        pauses = here.pauses

        told = await here.get("/api/v1/groups/g")

        assert [f"i{number}" for number in range(400)] == [
            member["instance_id"] for member in told["members"]
        ]
        assert {'"members":['} == {member["client_id"] for member in told["members"]}
        assert [] == told["topics"]
        assert 2 * 400 // 50 < here.pauses - pauses


def test_an_answer_without_a_body_is_none() -> None:
    """`body` in these tests reads parts."""
    assert {} == body(Answer(body=(b"{", b"}")))
    assert 400 == Refused(400, "x").status
