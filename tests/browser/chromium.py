"""Where Chromium is, and how it is started: without asking anybody anything."""

import shutil
from typing import Final

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


def launched(playwright: Playwright) -> Browser:
    """Start it."""
    return playwright.chromium.launch(executable_path=executable(), args=list(ARGUMENTS))
