"""Logging in and out by the page, at a listener that asks who somebody is."""

import threading
from collections.abc import Iterator
from typing import Self

import pytest
import trio
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # It has no types.
from playwright.sync_api import Page, Route, expect

from coordinator.group.acls import Rule, RuleAdded
from coordinator.http.entry import Entry
from coordinator.http.run import start_http
from coordinator.server.attempts import Attempts
from coordinator.server.authorization import Authorizer
from coordinator.server.transport import listen
from protocol.acls import Operation, PatternType, ResourceType
from tests.browser.conftest import OpenPage
from tests.security.test_accounts import People, tokens
from tests.server.world import commit, world

GROUP = Rule(
    ResourceType.GROUP,
    "billing",
    PatternType.LITERAL,
    "User:alice",
    "*",
    Operation.DESCRIBE,
    is_allow=True,
)


class Place:
    """A daemon in memory behind a real port, in a thread of its own.

    Attributes:
        url: Where its page is.
    """

    def __init__(self) -> None:
        self.people = People()
        self.people.tokens = tokens(("alice", "t0ken", ""))
        self.url = ""
        self._is_ready = threading.Event()
        self._is_over: trio.Event | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._run,))

    def __enter__(self) -> Self:
        """Start it."""
        self._thread.start()
        assert self._is_ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        assert self._token is not None
        assert self._is_over is not None
        self._token.run_sync_soon(self._is_over.set)
        self._thread.join(20)

    async def _run(self) -> None:
        self._is_over = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        async with world() as w, trio.open_nursery() as nursery:
            rules = w.node.registry.core.rules
            rules.replay(RuleAdded(GROUP))
            entry = Entry(
                self.people.accounts,
                Authorizer(rules, is_on=True, is_registered=lambda _topic: True),
                now=w.environment.now,
                audit=lambda *_args, **_fields: None,
                throttles=w.server.gatekeeper.throttles,
                attempts=Attempts(),
            )
            for group_id in ("billing", "secret"):
                await w.connect().ask(commit(10, group_id=group_id))
            door = listen("127.0.0.1", 0)
            start_http(
                nursery,
                settings=w.settings,
                listeners=[door],
                node=w.node,
                coordination=w.server.coordination,
                environment=w.environment,
                tee=w.tee,
                warn=lambda *_args, **_fields: None,
                max_connections=100,
                entry=entry,
            )
            self.url = f"http://127.0.0.1:{door.port}"
            self._is_ready.set()
            await self._is_over.wait()
            door.close()
            nursery.cancel_scope.cancel()


@pytest.fixture
def place() -> Iterator[Place]:
    """One with alice's token and group."""
    with Place() as one:
        yield one


def log_in(page: Page) -> None:
    """Log in by the keyboard alone: the cursor is where it begins."""
    expect(page.get_by_label("User")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("t0ken")
    page.keyboard.press("Enter")


def test_one_logs_in_and_out_by_the_keyboard(opened: OpenPage, place: Place) -> None:
    """And comes to the view that was asked for, which shows what one may see."""
    page = opened(f"{place.url}/#/groups/billing")
    log_in(page)

    expect(page.locator("h1")).to_have_text("billing")
    expect(page.locator("#who")).to_have_text("User:alice")
    assert page.url == f"{place.url}/#/groups/billing"
    page.keyboard.press("g")
    expect(page.locator("table.groups tbody tr")).to_have_count(1)
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert page.evaluate("document.cookie") == ""

    page.get_by_role("button", name="Log out").focus()
    page.keyboard.press("Enter")

    expect(page.get_by_label("User")).to_be_focused()
    assert page.context.cookies() == []
    page.goto(f"{place.url}/")
    expect(page.get_by_label("User")).to_be_focused()


def test_nothing_is_sent_before_the_page_can_send_it(opened: OpenPage, place: Place) -> None:
    """Who is quick, and far away, pressed Enter in vain: the browser may not send a form itself."""
    page = opened(f"{place.url}/#/groups/billing")
    expect(page.get_by_label("User")).to_be_focused()
    held: list[Route] = []
    page.route("**/login.js", lambda route: held.append(route))  # noqa: PLW0108 - Playwright asks what it takes
    page.reload(wait_until="commit")
    page.get_by_label("Password or token").fill("t0ken")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button")).to_be_disabled()
    held[0].continue_()
    expect(page.get_by_role("button")).to_be_enabled()
    page.keyboard.press("Enter")

    expect(page.locator("h1")).to_have_text("billing")


def test_what_is_wrong_is_said_and_another_try_is_at_hand(opened: OpenPage, place: Place) -> None:
    """By a screen reader, too; and a password isn't sent where anybody can read along."""
    page = opened(place.url)
    expect(page.get_by_label("User")).to_be_focused()
    page.get_by_label("Password or token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not right: nobody is known by this.")
    expect(page.get_by_label("Password or token")).to_be_focused()

    page.get_by_label("User").fill("alice")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("over TLS only")


def test_who_is_removed_comes_back_to_the_log_in(opened: OpenPage, place: Place) -> None:
    """What he looked at doesn't stay as if it still moved."""
    page = opened(place.url)
    log_in(page)
    expect(page.locator("#link-state")).to_have_text("live")

    place.people.tokens = tokens(("bob", "other", ""))

    expect(page.get_by_label("User")).to_be_focused()


def test_what_one_may_not_see_is_said(opened: OpenPage, place: Place) -> None:
    """The node is for those who look after it; nobody should wait for it to appear."""
    page = opened(f"{place.url}/#/node")
    log_in(page)

    expect(page.locator("#notice")).to_contain_text("This is not shown to you")
    page.goto(f"{place.url}/#/")
    expect(page.locator("table.groups tbody tr")).to_have_count(1)
    expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(opened: OpenPage, place: Place, theme: str, width: int) -> None:
    """Before the log-in, after one that failed, and with its owner's name on the page."""
    page = opened(place.url, width=width, theme=theme)
    expect(page.get_by_label("User")).to_be_focused()
    looks = [Axe().run(page).response["violations"]]
    page.get_by_label("Password or token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).not_to_be_empty()
    looks.append(Axe().run(page).response["violations"])
    page.get_by_label("Password or token").fill("t0ken")
    page.keyboard.press("Enter")
    expect(page.locator("#link-state")).to_have_text("live")
    looks.append(Axe().run(page).response["violations"])

    assert [[(one["id"], one["nodes"][0]["target"]) for one in look] for look in looks] == [[]] * 3
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
