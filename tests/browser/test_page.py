"""The page over invented groups: what it shows, by mouse, by keyboard and without a connection."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations

import pytest
from playwright.sync_api import Page, expect

from tests.browser import fake_api
from tests.browser.conftest import OpenPage, set_hidden
from tests.browser.fake_api import FakeApi

ROWS = "table.groups tbody tr"
LINES = ".rebalances > li"


@pytest.fixture
def served() -> Iterator[ExitStack]:
    """What is served until the end of the test."""
    with ExitStack() as stack:
        yield stack


def night(served: ExitStack) -> tuple[FakeApi, str]:
    """Serve 41 groups, one of which has had an eventful night."""
    api = fake_api.many(40)
    fake_api.eventful_night(api)
    return api, served.enter_context(fake_api.serving(api))


def names(page: Page) -> list[str]:
    """Return the groups in the order in which they are shown."""
    return page.locator(f"{ROWS} th").all_inner_texts()


def test_the_worst_of_2000_groups_stands_on_top(opened: OpenPage, served: ExitStack) -> None:
    """It is what somebody opens the page for."""
    api = fake_api.many(2_000)
    page = opened(served.enter_context(fake_api.serving(api)))
    worst = max(api.groups.values(), key=lambda group: group["lag"])

    expect(page.locator(ROWS)).to_have_count(2_000)
    expect(page.locator(ROWS).first).to_contain_text(worst["id"])
    expect(page.locator(ROWS).first).to_contain_text(f"{worst['lag']:,}")
    # A curve is drawn for what is in sight only.
    assert 10 < page.locator(f"{ROWS} svg").count() < 200


def test_the_filter_leaves_what_matches_and_says_how_many(
    opened: OpenPage, served: ExitStack
) -> None:
    """Somebody who can't see the table has to hear what became of it."""
    page = opened(served.enter_context(fake_api.serving(fake_api.many(2_000))))
    expect(page.locator(ROWS)).to_have_count(2_000)

    page.get_by_label("Filter groups by name").fill("FRAUD-sink")
    expect(page.locator(ROWS)).to_have_count(31)
    expect(page.get_by_role("status")).to_have_text("31 groups match")
    page.keyboard.press("Escape")
    expect(page.locator(ROWS)).to_have_count(2_000)

    page.get_by_label("Filter groups by name").fill("no such group")
    expect(page.locator("main")).to_contain_text("No group has “no such group” in its name.")


def test_those_that_are_behind_without_a_member_are_one_key_away(
    opened: OpenPage, served: ExitStack
) -> None:
    """The few that are wrong must not be searched for among 2,000."""
    api = fake_api.many(2_000)
    page = opened(served.enter_context(fake_api.serving(api)))
    abandoned = [g for g in api.groups.values() if g["state"] == "Empty"]
    expect(page.locator(ROWS)).to_have_count(2_000)

    page.get_by_role("button", name=f"Empty and behind {len(abandoned)}").press("Enter")

    expect(page.locator(ROWS)).to_have_count(len(abandoned))
    assert {g["id"] for g in abandoned} == set(names(page))


def test_the_page_is_used_without_a_mouse(opened: OpenPage, served: ExitStack) -> None:
    """Filter, go down, open, look, go back to where one was, ask for the keys."""
    _, url = night(served)
    page = opened(url)
    expect(page.locator(ROWS)).to_have_count(41)
    second, third = names(page)[1:3]

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    expect(page.locator(":focus")).to_have_text(third)
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(second)
    expect(page.locator(":focus")).to_have_text(second)
    page.keyboard.press("g")
    expect(page.locator(":focus")).to_have_text(second)

    page.keyboard.press("/")
    page.keyboard.type("billing")
    expect(page.locator(ROWS)).not_to_have_count(41)
    page.keyboard.press("ArrowDown")
    expect(page.locator(":focus")).to_have_attribute("href", re.compile("^#/groups/billing"))

    page.keyboard.press("n")
    expect(page.get_by_role("heading", level=1)).to_have_text("Node")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).not_to_be_visible()


def test_the_head_of_a_column_sorts_by_it(opened: OpenPage, served: ExitStack) -> None:
    """By name, to find one; by members, to find the large ones."""
    _, url = night(served)
    page = opened(url)
    expect(page.locator(ROWS)).to_have_count(41)

    page.get_by_role("button", name="Group", exact=True).click()

    expect(page.get_by_role("columnheader", name="Group")).to_have_attribute(
        "aria-sort", "ascending"
    )
    assert sorted(names(page)) == names(page)


def test_the_order_stands_still_under_the_pointer(opened: OpenPage, served: ExitStack) -> None:
    """Otherwise somebody clicks on a group that was not there a moment ago."""
    api, url = night(served)
    page = opened(url)
    expect(page.locator(ROWS)).to_have_count(41)

    page.locator(ROWS).nth(3).hover()
    last = page.locator(ROWS).last.get_attribute("data-key")
    assert last is not None
    api.change(last, lag=9_000_000)
    expect(page.locator(ROWS).last).to_contain_text("9,000,000")
    api.change(last, lag=9_000_001)
    expect(page.locator(ROWS).last).to_contain_text("9,000,001")
    page.mouse.move(5, 5)

    expect(page.locator(ROWS).first).to_contain_text(last)


@pytest.mark.parametrize("width", [390, 1280])
def test_why_it_rebalanced_is_told_in_a_sentence_each(
    opened: OpenPage, served: ExitStack, width: int
) -> None:
    """The question at night, asked of a phone."""
    _, url = night(served)
    page = opened(f"{url}/#/groups/billing", width=width)
    lines = page.locator(".rebalances > li")

    expect(lines).to_have_count(8)
    expect(lines.nth(0).locator("p.cause")).to_have_text(
        "Topics changed: topic orders grew from 8 to 12 partitions."
    )
    expect(lines.nth(5).locator("p.cause")).to_have_text(
        "loader-2 (10.0.0.7) fell silent and was removed: "
        "no heartbeat for 45.0 s, session timeout 45.0 s.",
        use_inner_text=True,
    )
    expect(lines.nth(5).locator(".late")).to_contain_text(
        "loader-3 (10.0.0.8) came to join after 13 s.", use_inner_text=True
    )
    expect(lines.nth(3)).to_contain_text("did not sync within 60 s, and is no longer a member")


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_of_a_partition_and_a_member_nothing_is_left_out_where_it_is_narrow(
    opened: OpenPage, served: ExitStack, width: int
) -> None:
    """Whose the one is that stands still is asked on a phone, too."""
    _, url = night(served)
    page = opened(f"{url}/#/groups/billing", width=width)
    partition, member = (page.locator(f".{one} tbody tr").last for one in ("partitions", "members"))
    expect(partition).to_be_visible()

    for row, said in (
        (partition, {"loader-4", "refunds", "3", "1,862,907", "0", "0 s"}),
        (member, {"loader-4 static rack-4", "10.0.0.9", "2"}),
    ):
        row.scroll_into_view_if_needed()
        for text in said:  # A row that comes into sight is rendered a moment later.
            expect(row).to_contain_text(text, use_inner_text=True)
        cells = [cell for cell in row.locator("th, td").all() if cell.is_visible()]
        assert said <= {cell.inner_text() for cell in cells}
        boxes = [box for cell in cells if (box := cell.bounding_box()) is not None]
        overlap = [
            (a, b)
            for a, b in combinations(boxes, 2)
            if a["x"] < b["x"] + b["width"] - 1
            and b["x"] < a["x"] + a["width"] - 1
            and a["y"] < b["y"] + b["height"] - 1
            and b["y"] < a["y"] + a["height"] - 1
        ]
        assert [] == overlap
        assert max(box["x"] + box["width"] for box in boxes) <= width


def test_a_bar_is_as_long_as_its_phase_took(opened: OpenPage, served: ExitStack) -> None:
    """The eye finds the slow one; a scale for each line would lie."""
    _, url = night(served)
    page = opened(f"{url}/#/groups/billing")

    def width(line: int, phase: str) -> float:
        bar = page.locator(".rebalances > li").nth(line).locator(f".head .bar-{phase}")
        bar.wait_for(state="attached")
        box = bar.bounding_box()
        assert box is not None
        return box["width"]

    assert width(3, "sync") / width(5, "join") == pytest.approx(60_000 / 12_950, rel=0.05)


def test_a_rebalance_is_followed_as_it_goes_on(opened: OpenPage, served: ExitStack) -> None:
    """Who waits for whom is known while it can still be helped."""
    api, url = night(served)
    page = opened(f"{url}/#/groups/billing")
    lines = page.locator(".rebalances > li")
    expect(lines).to_have_count(8)
    expect(page.locator("#link-state")).to_have_text("live")

    fake_api.begin_rebalance(api, "billing")
    expect(page.locator(".state")).to_have_text("Joining")
    expect(lines).to_have_count(9)
    expect(lines.first).to_contain_text("loader-1 (10.0.0.4) left: shut down to be updated.")
    expect(lines.first).to_contain_text("waits for loader-3")
    expect(page.get_by_role("status")).to_contain_text("It rebalances: loader-1 left")

    fake_api.end_rebalance(api, "billing")
    expect(page.locator(".state")).to_have_text("Stable")
    expect(lines).to_have_count(9)
    expect(lines.first).to_contain_text("1.9 s")


def test_a_lost_connection_is_told_and_what_was_missed_is_read_again(
    opened: OpenPage, served: ExitStack
) -> None:
    """A number that stands still is worse than none, unless the page says so."""
    api, url = night(served)
    page = opened(url)
    expect(page.locator("#link-state")).to_have_text("live")

    api.problem = (503, "the log is loaded just now")
    api.cut()
    expect(page.locator("#notice")).to_contain_text(
        re.compile(r"What is shown is of \d\d:\d\d:\d\d")
    )
    expect(page.get_by_role("status")).to_have_text("Connection lost")
    expect(page.locator(ROWS)).to_have_count(41)
    api.groups["billing"]["lag"] = 12_345_678
    api.problem = None

    expect(page.locator("#link-state")).to_have_text("live")
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.get_by_role("status")).to_have_text("Connected again")
    expect(page.locator(ROWS).first).to_contain_text("12,345,678")


def test_a_connection_that_falls_silent_is_lost(opened: OpenPage, served: ExitStack) -> None:
    """A machine without power says no goodbye; what it said last must not look as if it held."""
    api, url = night(served)
    page = opened(url)
    expect(page.locator(ROWS)).to_have_count(41)
    page.clock.install()
    api.change("billing", lag=12_345_678)  # The page's clock is ours from what it hears next.
    expect(page.locator(ROWS).first).to_contain_text("12,345,678")
    page.clock.fast_forward(9_000)
    expect(page.locator("#link-state")).to_have_text("live")

    api.flowing.clear()
    page.clock.fast_forward(2_000)
    page.clock.fast_forward(1_000)
    expect(page.locator("#link-state")).to_have_text("not connected")
    expect(page.locator("#notice")).to_contain_text("can’t be reached")  # noqa: RUF001 - as it stands on the page.
    api.flowing.set()
    expect(page.locator("#link-state")).to_have_text("live")
    expect(page.locator("#notice")).to_be_hidden()


def test_a_coordinator_that_loads_is_asked_until_it_is_there(
    opened: OpenPage, served: ExitStack
) -> None:
    """Whoever opened the page in the minute of the restart is not left with an empty one."""
    api, url = night(served)
    api.problem = (503, "the log is loaded just now")
    page = opened(url)
    expect(page.locator("#notice")).to_be_visible()
    expect(page.locator("main")).to_contain_text("No groups are known yet.")

    api.problem = None

    expect(page.locator(ROWS)).to_have_count(41)
    expect(page.locator("#notice")).to_be_hidden()


def test_the_frame_is_there_before_the_first_answer(opened: OpenPage, served: ExitStack) -> None:
    """A white page looks broken."""
    api, url = night(served)
    api.flowing.clear()
    page = opened(url)

    expect(page.get_by_role("navigation")).to_be_visible()
    expect(page.locator("main")).to_contain_text("Asking the coordinator for its groups")
    api.flowing.set()
    expect(page.locator(ROWS)).to_have_count(41)


def test_no_group_is_no_empty_table(opened: OpenPage, served: ExitStack) -> None:
    """The first thing that a new user sees."""
    page = opened(served.enter_context(fake_api.serving(FakeApi())))

    expect(page.locator("main")).to_contain_text("There are no groups.")
    expect(page.locator("table")).to_be_hidden()


def test_a_group_that_is_not_there_is_said_to_be_missing(
    opened: OpenPage, served: ExitStack
) -> None:
    """An address that somebody sent may be old."""
    _, url = night(served)
    page = opened(f"{url}/#/groups/gone")

    expect(page.locator("main")).to_contain_text("There is no")


def test_a_new_group_comes_in_and_a_deleted_one_goes(opened: OpenPage, served: ExitStack) -> None:
    """Without a reload."""
    api, url = night(served)
    page = opened(url)
    expect(page.locator(ROWS)).to_have_count(41)
    expect(page.locator("#link-state")).to_have_text("live")

    api.groups["new-one"] = fake_api.group("new-one", [], seconds=None)
    api.change("new-one")
    expect(page.locator(ROWS)).to_have_count(42)
    del api.groups["new-one"]
    api.tell("groups", {"changed": [], "removed": ["new-one"]})
    expect(page.locator(ROWS)).to_have_count(41)
    # It is gone already, as where the list that is asked for anew comes before the event.
    api.tell("groups", {"changed": [], "removed": ["new-one"]})
    api.groups["last"] = fake_api.group("last", [], seconds=None)
    api.change("last")
    expect(page.locator(ROWS)).to_have_count(42)
    expect(page.get_by_role("button", name="All 42", exact=True)).to_be_visible()


def test_a_name_is_only_ever_text(opened: OpenPage, served: ExitStack) -> None:
    """Whoever may commit must not get a program into the operator's browser, nor fool the eye."""
    page = opened(served.enter_context(fake_api.serving(fake_api.hostile())))
    links = page.locator(f"{ROWS} a")
    expect(links).to_have_count(len(fake_api.HOSTILE))
    shown = links.all_inner_texts()

    assert not [name for name in shown if re.search("[\u0000-\u001f\u200b\u202e]", name)]
    assert [] == [name for name in shown if name != name.strip("\u3164 ") or "\u00a0" in name]
    assert max(map(len, shown)) <= 90
    assert len(set(shown)) == len(fake_api.HOSTILE)

    for at in range(len(fake_api.HOSTILE)):
        links.nth(at).click()
        expect(page.locator(".rebalances > li")).to_have_count(2)
        expect(page.locator(".members tbody tr")).to_have_count(1)
        expect(page.locator(".partitions tbody tr")).to_have_count(1)
        assert page.title().endswith("· group coordinator")
        assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        facts = "[...document.querySelectorAll('.facts > div')]"
        assert page.evaluate(f"{facts}.every(one => one.scrollWidth <= one.clientWidth)")
        page.keyboard.press("g")
        expect(links).to_have_count(len(fake_api.HOSTILE))


def test_an_address_may_name_what_no_path_can(opened: OpenPage, served: ExitStack) -> None:
    """It was sent by somebody, and cut or encoded by what is in between."""
    _, url = night(served)
    for name in ("50%", "a%2Fb", "%00", "%FF"):
        page = opened(f"{url}/#/groups/{name}")
        expect(page.locator("main")).to_contain_text("There is no")


def test_what_is_filtered_stands_in_the_address(opened: OpenPage, served: ExitStack) -> None:
    """It is sent to somebody else, and is what one comes back to."""
    api, url = night(served)
    for group in api.groups.values():
        group["lag_seconds"] = 90
    page = opened(url)
    expect(page.locator(ROWS)).to_have_count(41)

    page.get_by_label("Filter groups by name").fill("a")
    page.get_by_role("button", name="Over a minute behind").click()
    page.get_by_role("button", name="Members", exact=True).click()
    page.get_by_role("button", name="Members", exact=True).click()
    shown = names(page)
    assert 0 < len(shown) < 41
    assert page.url.endswith("/#/?q=a&show=behind&sort=-members")

    page.locator(f"{ROWS} a").first.click()
    expect(page.locator(LINES).or_(page.get_by_text("It has not rebalanced")).first).to_be_visible()
    page.go_back()
    expect(page.locator(ROWS)).to_have_count(len(shown))
    other = opened(page.url)
    expect(other.locator(ROWS)).to_have_count(len(shown))
    assert shown == names(other)
    expect(other.get_by_label("Filter groups by name")).to_have_value("a")
    expect(other.get_by_role("columnheader", name="Members")).to_have_attribute(
        "aria-sort", "ascending"
    )
    other.keyboard.press("g")
    expect(other.locator(ROWS)).to_have_count(41)


def test_an_address_that_says_nonsense_shows_all_groups(
    opened: OpenPage, served: ExitStack
) -> None:
    """It may be of another release, or mistyped."""
    _, url = night(served)
    page = opened(f"{url}/#/?show=constructor&sort=-toString&x=1")

    expect(page.locator(ROWS)).to_have_count(41)
    expect(page.get_by_role("columnheader", name="Lag")).to_have_attribute(
        "aria-sort", "descending"
    )


def test_what_is_shown_is_asked_for_once(opened: OpenPage, served: ExitStack) -> None:
    """The stream's hello is no reason to ask again for what was just asked for."""
    _, url = night(served)
    page = opened(f"{url}/page/icon.svg")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(url)))
    page.goto(url)
    expect(page.locator(ROWS)).to_have_count(41)
    expect(page.locator("#link-state")).to_have_text("live")
    page.get_by_role("link", name="billing", exact=True).click()
    expect(page.locator(LINES)).to_have_count(8)
    expect(page.locator(".partitions tbody tr").first).to_be_visible()

    questions = [path.split("?")[0] for path in asked if "/api/" in path and "events" not in path]
    assert [
        "/api/v1/group",
        "/api/v1/group/partitions",
        "/api/v1/group/rebalances",
        "/api/v1/groups",
        "/api/v1/session",
    ] == sorted(questions)


def test_what_is_wrong_with_the_node_is_told_on_every_view(
    opened: OpenPage, served: ExitStack
) -> None:
    """Numbers that stand still because the disk hangs look as if all were well."""
    api, url = night(served)
    page = opened(f"{url}/#/groups/billing")
    expect(page.locator("#link-state")).to_have_text("live")
    node = fake_api.node()
    disk = {"part": "disk", "ok": False, "reason": "a flush takes 7 s", "since": None}

    api.tell("node", {**node, "checks": [disk]})
    expect(page.locator("#notice")).to_have_text("Disk: a flush takes 7 s.")
    expect(page.get_by_role("status")).to_have_text("The coordinator is not well")
    api.tell("node", {**node, "checks": [{**disk, "ok": True}]})
    expect(page.locator("#notice")).to_be_hidden()


def test_a_commit_that_changes_no_lag_is_seen_too(opened: OpenPage, served: ExitStack) -> None:
    """Of a group without members, and without ends, no event tells; it looked as if it stood."""
    api, url = night(served)
    detail = api.details["billing"]
    detail["alone"]["members"] = []
    (one,) = detail["partitions"] = [
        {**detail["partitions"][0], "end": None, "lag": None, "committed": 4_711}
    ]
    page = opened(f"{url}/#/groups/billing")
    committed = page.locator(".partitions tbody .c-committed")
    expect(committed).to_be_visible()
    expect(committed).to_have_text("4,711")
    expect(page.locator("#link-state")).to_have_text("live")

    streams = [*api.streams]
    for event, offset, shown in (("node", 5_000, "5,000"), ("beat", 6_000, "6,000")):
        one["committed"] = offset
        api.tell(event, fake_api.node())
        expect(committed).to_have_text(shown)
    assert streams == api.streams  # It was no new stream that had everything read again.


@pytest.mark.parametrize(
    ("status", "detail", "shown"),
    [
        (404, "there is no group bill. Did you mean billing?", "bill. Did you mean billing?"),
        (404, "there is no group nope.", "There is no group nope."),
        (400, "group has more than 255 characters", "Group has more than 255 characters."),
    ],
)
def test_what_can_be_no_group_is_said_once_and_not_asked_for_again(
    opened: OpenPage, served: ExitStack, status: int, detail: str, shown: str
) -> None:
    """Whoever mistyped an address waits for nothing; the page said that it can't be told yet."""
    api, url = night(served)
    page = opened(f"{url}/#/groups/ledger")
    expect(page.locator("#link-state")).to_have_text("live")
    api.problem = (status, detail)

    page.goto(f"{url}/#/groups/bill")
    said = page.locator("article > .empty")
    expect(said).to_have_text(re.compile(re.escape(shown) + "$"))
    expect(said).not_to_have_class(re.compile("slow"))


def test_what_is_rare_or_never_was_is_not_told_as_nothing(
    opened: OpenPage, served: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.0 errors a second reads as none, and 0 s as a compaction that took no time."""
    rare = {"api": "LeaveGroup", "per_second": 0.02, "p50_ms": 1, "p99_ms": 1}
    node = {**fake_api.node(), "requests": [{**rare, "errors_per_second": 0.0}]}
    node["compaction"].update(done=0, last_ms=None)
    monkeypatch.setattr(fake_api, "node", lambda: node)
    _, url = night(served)
    page = opened(f"{url}/#/node")

    row = page.locator(".requests tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator(".c-rate")).to_have_text("< 0.1")
    expect(row.locator(".c-errors")).to_have_text("0")
    took = page.locator("dl div").filter(has_text="The last took")
    expect(took.locator("dd")).to_have_text("–")  # noqa: RUF001 - as it stands on the page.


def test_a_group_without_an_end_of_its_offsets_or_its_lag_is_told_so(
    opened: OpenPage, served: ExitStack
) -> None:
    """Kept for ever was shown as 1 ms; a number that is cut stands in full behind it."""
    api, url = night(served)
    api.details["billing"]["alone"]["retention_ms"] = -1
    api.details["billing"]["partitions"][0]["lag"] = 2**62
    page = opened(f"{url}/#/groups/billing")

    expect(page.locator(".facts")).to_contain_text("offsets kept for ever")
    lag = page.locator(".partitions tbody .c-lag").first
    expect(lag).to_have_attribute("title", re.compile("^4,611,686,018,427,38"))  # JSON's numbers.


def test_a_lag_that_is_known_in_part_is_at_least_so_much(
    opened: OpenPage, served: ExitStack
) -> None:
    """Of five unknown partitions and one that is read, "0 s" says that nothing is left to do."""
    api, url = night(served)
    part = {"unknown_partitions": 5, "lag": 0, "lag_seconds": 0.0, "earlier_lag": 40}
    api.groups["billing"].update(part)
    api.details["billing"]["alone"].update(part)
    api.details["billing"]["alone"]["members"][0].update(unknown_partitions=1, lag=7)
    partition = api.details["billing"]["partitions"][0]
    partition.update(committed=9, end=5, lag=None, lag_seconds=None)
    page = opened(f"{url}/#/?q=billing")

    row = page.locator("tbody tr").filter(has=page.get_by_role("link", name="billing", exact=True))
    expect(row.locator(".c-lag")).to_have_text("≥ 0")
    expect(row.locator(".c-behind")).to_have_text("≥ 0 s")
    expect(row.locator(".c-change")).to_have_text("–")  # noqa: RUF001 - as it stands on the page.
    expect(row.locator(".c-behind")).to_have_attribute(
        "title", "without 5 partitions whose lag is not known"
    )

    page.goto(f"{url}/#/groups/billing")

    expect(page.locator(".facts")).to_contain_text("≥ 0 s")
    expect(page.locator(".members tbody .c-lag").first).to_have_text("≥ 7")
    beyond = page.locator(".c-lag[title^='committed beyond the reported end']")
    expect(beyond).to_have_text("–")  # noqa: RUF001 - as above.


def test_a_tab_that_was_opened_behind_another_is_of_now_when_it_is_seen(
    opened: OpenPage, served: ExitStack
) -> None:
    """It read its group when it was opened, which may be an hour ago."""
    api, url = night(served)
    page = opened(f"{url}/#/groups/billing")
    page.add_init_script(
        "Object.defineProperty(document, 'hidden', {value: 1, configurable: true})"
    )
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    expect(page.locator(".partitions tbody tr")).to_have_count(12)
    assert [] == [address for address in asked if "events" in address]

    api.change("billing", lag=4_711)
    set_hidden(page, False)
    expect(page.locator(".facts")).to_contain_text("4,711")
    expect(page.locator("#link-state")).to_have_text("live")


def test_who_has_the_other_groups_of_a_cluster_is_told(opened: OpenPage, served: ExitStack) -> None:
    """A list of some groups looks like a list of all."""
    api, url = night(served)
    page = opened(f"{url}/#/")
    expect(page.locator("#link-state")).to_have_text("live")
    expect(page.locator("#elsewhere")).to_be_hidden()
    others = [
        {"node_id": 2, "address": "two:9310", "ready": True, "partitions": 17},
        {"node_id": 3, "address": "three:9310", "ready": False, "partitions": 0},
    ]

    api.tell("node", {**fake_api.node(), "others": others})
    expect(page.locator("#elsewhere")).to_have_text(
        "This node shows the groups that it leads. Node 2 at two:9310 leads 17 partitions, "
        "node 3 at three:9310 is not ready."
    )


def test_of_very_many_groups_those_that_rebalance_are_all_found(
    opened: OpenPage, served: ExitStack
) -> None:
    """One without a lag is none of the worst 2,000."""
    api = fake_api.many(2_050)
    moving = [g for g in api.groups.values() if g["state"].endswith("Rebalance")]
    moving[0]["lag"] = 0
    page = opened(served.enter_context(fake_api.serving(api)))
    expect(page.locator(ROWS)).to_have_count(2_000)
    expect(page.get_by_role("button", name=f"Rebalancing ≥ {len(moving) - 1}")).to_be_visible()

    page.get_by_role("button", name="Rebalancing").click()
    expect(page.locator(ROWS)).to_have_count(len(moving))
    page.get_by_role("button", name="All").click()
    expect(page.locator(ROWS)).to_have_count(2_000)


def test_of_very_many_groups_the_filter_finds_also_what_is_not_shown(
    opened: OpenPage, served: ExitStack
) -> None:
    """The page shows the worst 2,000; somebody looks for one that is well."""
    api = fake_api.many(2_050)
    best = min(api.groups.values(), key=lambda group: (group["lag"], group["id"]))
    best["id"] = "the-best"
    api.groups["the-best"] = {**best, "lag": 0}
    page = opened(served.enter_context(fake_api.serving(api)))
    expect(page.locator(ROWS)).to_have_count(2_000)
    expect(page.locator("main")).to_contain_text("The worst 2,000 of")
    expect(page.locator(ROWS).filter(has_text="the-best")).to_have_count(0)

    page.get_by_label("Filter groups by name").fill("the-best")
    expect(page.locator(ROWS).first).to_contain_text("the-best")
    page.keyboard.press("Escape")
    expect(page.locator(ROWS)).to_have_count(2_000)
