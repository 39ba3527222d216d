"""What a screen reader, a keyboard or a weak eye would stumble over, found by axe."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # It has no types.
from playwright.sync_api import expect

from tests.browser import fake_api
from tests.browser.conftest import OpenPage

VIEWS = (
    ("#/", "table.groups tbody tr"),
    ("#/groups/billing", ".rebalances > li"),
    ("#/node", ".requests tbody tr"),
    ("#/groups/gone", ".empty:not([hidden])"),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A night with everything in it that has a colour."""
    api = fake_api.many(200)
    fake_api.eventful_night(api)
    with fake_api.serving(api) as address:
        yield address


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(opened: OpenPage, url: str, theme: str, width: int) -> None:
    """Contrast, names, roles and order, in each view as it is seen."""
    page = opened(url, width=width, theme=theme)
    expect(page.locator("#link-state")).to_have_text("live")
    for path, shown in VIEWS:
        page.goto(f"{url}/{path}")
        expect(page.locator(shown).first).to_be_visible()

        found = Axe().run(page).response["violations"]

        assert [(path, one["id"], one["nodes"][0]["target"]) for one in found] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_while_something_is_wrong(
    opened: OpenPage, theme: str, width: int
) -> None:
    """The page is looked at most when the node is not well, a group rebalances, or all is lost."""
    api = fake_api.many(20)
    fake_api.eventful_night(api)
    with fake_api.serving(api) as url:
        page = opened(f"{url}/#/groups/billing", width=width, theme=theme)
        expect(page.locator("#link-state")).to_have_text("live")
        checks = [{"part": "disk", "ok": False, "reason": "a flush takes 7 s", "since": None}]
        others = [{"node_id": 2, "address": "two:9310", "ready": True, "partitions": 17}]
        api.tell("node", {**fake_api.node(), "checks": checks, "others": others})
        fake_api.begin_rebalance(api, "billing")
        expect(page.locator("#notice")).to_be_visible()
        expect(page.locator("#elsewhere")).to_be_visible()
        expect(page.locator(".state")).to_have_text("Joining")
        looks = [Axe().run(page).response["violations"]]
        api.problem = (503, "the log is loaded just now")
        api.cut()
        expect(page.locator("#notice")).to_contain_text("What is shown is of")
        looks.append(Axe().run(page).response["violations"])

        found = [(one["id"], one["nodes"][0]["target"]) for look in looks for one in look]
        assert [] == found
