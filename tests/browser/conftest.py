"""One Chromium for all tests; each test looks at a page of its own, which must stay clean."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from bench.chromium import executable, launched

HERE = Path(__file__).parent
OpenPage = Callable[..., Page]

# The machine may be busy with other tests.
expect.set_options(timeout=20_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts a browser: it is a real process."""
    for item in items:
        if HERE in item.path.parents and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.integration)


def set_hidden(page: Page, is_hidden: bool) -> None:
    """Have *page* believe that another tab is in front of it, or none: headless, none ever is."""
    page.evaluate(
        """(value) => {
          Object.defineProperty(document, "hidden", { value, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium, if the machine has one."""
    if executable() is None:
        pytest.skip("no Chromium: install the package chromium")
    with sync_playwright() as playwright:
        one = launched(playwright)
        yield one
        one.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[OpenPage]:
    """Open an address; at the end, nothing may have gone wrong, nor elsewhere."""
    wrong: list[str] = []
    contexts = []

    def open_page(url: str, *, width: int = 1280, theme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 844},
            color_scheme="dark" if theme == "dark" else "light",
            timezone_id="UTC",
        )
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        host = urlsplit(url).netloc

        def note_request(address: str) -> None:
            if urlsplit(address).netloc != host:
                wrong.append(f"asked for {address}")

        page.on("request", lambda request: note_request(request.url))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        # That an answer is missing is what some tests are about; the page says it in words.
        page.on(
            "console",
            lambda line: (
                wrong.append(f"console: {line.text}")
                if line.type in {"error", "warning"} and "Failed to load resource" not in line.text
                else None
            ),
        )
        page.goto(url)
        return page

    yield open_page

    for context in contexts:
        context.close()

    assert wrong == []
