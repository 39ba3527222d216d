"""The page of a real daemon, with real members."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # It has no types.
from playwright.sync_api import Page, expect

from bench.processes import free_port
from client import TopicPartition
from client.blocking import BlockingClient, BlockingMember, connect_blocking
from protocol.group_ids import group_id_error
from tests.browser.conftest import OpenPage, set_hidden
from tests.browser.fake_api import HOSTILE
from tests.integration.daemon import Daemon, daemon

ROWS = "table.groups tbody tr"
LINES = ".rebalances > li"


class Night:
    """A daemon that may be killed, its page's address, and a client."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._port = free_port()
        self._http_port = free_port()
        self.url = f"http://127.0.0.1:{self._http_port}"
        self.daemon = self.start()

    def start(self) -> Daemon:
        """Start it where it was."""
        http = f"http.listeners=127.0.0.1:{self._http_port}"
        self.daemon = self._stack.enter_context(daemon(self._folder, http, port=self._port))
        return self.daemon.ready()

    def client(self, name: str) -> BlockingClient:
        """Connect."""
        address = f"127.0.0.1:{self._port}"
        return self._stack.enter_context(connect_blocking(address, client_id=name))

    def member(self, name: str, reason: str | None = None) -> BlockingMember:
        """Join billing, which reads four partitions."""
        joining = self.client(name).join("billing", ["orders"], {"orders": 4}, reason=reason)
        return self._stack.enter_context(joining)


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    """A daemon with the page on."""
    with ExitStack() as stack:
        yield Night(tmp_path / "data", stack)


def live(page: Page) -> None:
    """Wait until it follows what happens."""
    expect(page.locator("#link-state")).to_have_text("live")


def test_a_group_is_followed_from_its_first_member_on(night: Night, opened: OpenPage) -> None:
    """Members, lag, owners, and why it rebalances, each without a reload."""
    page = opened(night.url)
    live(page)
    expect(page.locator("main")).to_contain_text("There are no groups.")

    first = night.member("loader-1")
    assert 4 == len(first.assignment(20).partitions)
    expect(page.locator(ROWS)).to_have_count(1)
    expect(page.locator(ROWS)).to_contain_text("Stable")
    orders = TopicPartition("orders", 0)
    night.client("reporter").report_end_offsets({orders: 1_500})
    first.commit({orders: 1_000})
    expect(page.locator(ROWS)).to_contain_text("500")

    page.get_by_role("link", name="billing").click()
    expect(page.locator(LINES)).to_have_count(1)
    expect(page.locator(LINES)).to_contain_text("loader-1 (127.0.0.1) joined")
    expect(page.locator(".partitions tbody tr").first).to_contain_text("loader-1")
    expect(page.locator(".partitions tbody tr").first).to_contain_text("1,500")

    second = night.member("loader-2", reason="more to read")
    with ThreadPoolExecutor() as pool:
        joining = pool.submit(second.assignment, 20)
        expect(page.locator(".state")).to_have_text("Joining")
        expect(page.locator(LINES).first).to_contain_text("waits for loader-1")
        expect(page.locator(LINES).first).to_contain_text("loader-2 (127.0.0.1) joined")
        first.wait_rebalance_needed(20)
        first.assignment(20)
        assert 2 == len(joining.result(20).partitions)

    expect(page.locator(".state")).to_have_text("Stable")
    expect(page.locator(LINES)).to_have_count(2)
    expect(page.locator(LINES).first).not_to_contain_text("waits for")
    expect(page.locator(".members tbody tr")).to_have_count(2)
    expect(page.locator(".partitions tbody")).to_contain_text("loader-2")


def test_the_page_comes_back_after_the_daemon(night: Night, opened: OpenPage) -> None:
    """What stands there meanwhile is said to be old; nobody has to reload."""
    night.client("loader").commit("billing", {TopicPartition("orders", 0): 7})
    page = opened(night.url)
    live(page)
    expect(page.locator(ROWS)).to_have_count(1)

    night.daemon.kill()
    expect(page.locator("#notice")).to_contain_text("can’t be reached")  # noqa: RUF001 - as it stands on the page.
    expect(page.locator(ROWS)).to_have_count(1)
    night.start()
    live(page)
    expect(page.locator("#notice")).to_be_hidden()

    night.client("loader").commit("ledger", {TopicPartition("orders", 0): 7})
    expect(page.locator(ROWS)).to_have_count(2)


def test_there_may_be_more_tabs_than_a_browser_has_connections(
    night: Night, opened: OpenPage
) -> None:
    """Six are what it has for one address; who opens each bad group in a tab has more."""
    orders = TopicPartition("orders", 0)
    client = night.client("loader")
    client.register_topics({"orders": 1})
    client.report_end_offsets({orders: 9_000})
    client.commit("billing", {orders: 4_711})
    first = last = opened(f"{night.url}/#/groups/billing")
    committed = first.locator(".partitions .c-committed").last
    expect(committed).to_have_text("4,711")
    for _ in range(7):
        set_hidden(last, True)
        last = first.context.new_page()
        last.goto(night.url)
        live(last)
        expect(last.locator(ROWS)).to_have_count(1)

    client.commit("billing", {orders: 5_000})
    set_hidden(last, True)
    set_hidden(first, False)
    expect(committed).to_have_text("5,000")
    client.commit("billing", {orders: 6_000})
    expect(committed).to_have_text("6,000")


def test_the_node_shows_its_numbers(night: Night, opened: OpenPage) -> None:
    """Each as the API has it, and none as undefined."""
    night.client("loader").commit("billing", {TopicPartition("orders", 0): 7})
    page = opened(f"{night.url}/#/node")
    live(page)

    expect(page.locator(".requests")).to_contain_text("OffsetCommit", timeout=15_000)
    expect(page.locator(".checks")).to_contain_text("The log is loaded")
    shown = page.locator("main").inner_text()
    assert not re.search("undefined|NaN|null|object", shown)
    assert [] == Axe().run(page).response["violations"]


def test_names_of_groups_survive_the_way_to_the_page(night: Night, opened: OpenPage) -> None:
    """With slashes, dots, quotes and markup: each that a group may have, by click and by link."""
    client = night.client("loader")
    names = [name for name in HOSTILE if group_id_error(name) is None]
    for name in names:
        client.commit(name, {TopicPartition("orders", 0): 7})
    page = opened(night.url)
    links = page.locator(f"{ROWS} a")
    expect(links).to_have_count(len(names))

    for at in range(len(names)):
        links.nth(at).click()
        expect(page.locator(".partitions tbody tr")).to_have_count(1)
        page.reload()
        expect(page.locator(".partitions tbody tr")).to_have_count(1)
        page.keyboard.press("g")
        expect(links).to_have_count(len(names))
