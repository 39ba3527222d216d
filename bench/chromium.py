"""Where Chromium is, and how it is started: without asking anybody anything."""

import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

ARGUMENTS: Final = (
    "--no-sandbox",  # Tests run as root in containers, too.
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def executable() -> str | None:
    """Return the path of the system's Chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def missing() -> str | None:
    """Return why there is no browser to start, None if there is one."""
    if executable() is None:
        return "no Chromium: install the package chromium"
    return None if find_spec("playwright") else "no playwright: install the extra dev"


def launched(playwright: "Playwright") -> "Browser":
    """Start it."""
    return playwright.chromium.launch(executable_path=executable(), args=list(ARGUMENTS))
