"""The page in a real Chromium: ``python -m bench.page '{"host": …}'``, a `Visit`.

How long it takes until the first groups are painted, and until all of them are there; then how
long after a commit was answered the lag of a group that is looked at has changed on the screen.
Times of the first kind are the browser's, since the address was opened; what is painted is taken
in the frame after it was put into the document.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from bench.chromium import launched
from bench.dialects import TOPIC
from bench.fill import group_name, offsets_of
from bench.processes import LoadError, run_plan
from bench.talk import ask, connect
from protocol.messages import OffsetCommitRequest, PartitionCommit, TopicCommit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_WAIT_S: Final = 30.0
_POLL_MS: Final = 20
# Updates come at all times of a look every 50 ms.
_APART_MS: Final = 213

_NOTE_ROWS: Final = """
const rows = {};
const look = () => {
  const n = document.querySelectorAll("table.groups tbody tr").length;
  if (n > 0) rows.first ??= performance.now();
  if (n >= ROWS) rows.all ??= performance.now();
  if (rows.all === undefined) requestAnimationFrame(look);
};
requestAnimationFrame(look);
window.rowsSeen = rows;
"""
_NOTE_LAG: Final = """
window.lagsSeen = [];
new MutationObserver(() => requestAnimationFrame(() => {
  const text = document.querySelector(".facts .big")?.textContent;
  const seen = window.lagsSeen;
  if (text !== undefined && text !== seen.at(-1)?.text) {
    seen.push({ text, at: performance.timeOrigin + performance.now() });
  }
})).observe(document, { subtree: true, childList: true, characterData: true });
"""


@dataclass(frozen=True, slots=True)
class Visit:
    """What to look at: a daemon that `bench.fill` has filled with so many groups."""

    host: str
    port: int
    http_port: int
    groups: int
    updates: int


def visit(plan: Visit) -> dict[str, float]:
    """Return ``first_ms``, ``all_ms``, and of updates ``update_ms`` and ``slowest_ms``."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - it need not be installed.

    with sync_playwright() as playwright:
        browser = launched(playwright)
        try:
            return {**_painted(browser, plan), **_updated(browser, plan)}
        finally:
            browser.close()


def _opened(browser: "Browser", script: str, address: str) -> "Page":
    page = browser.new_page(viewport={"width": 1280, "height": 844})
    page.add_init_script(script)
    page.goto(address)
    return page


def _until(page: "Page", expression: str) -> None:
    # Not `wait_for_function`, which the page's own policy forbids.
    until_s = time.monotonic() + _WAIT_S
    while not page.evaluate(expression):
        if time.monotonic() > until_s:
            raise LoadError(f"not within {_WAIT_S:.0f} s: {expression}")
        page.wait_for_timeout(_POLL_MS)


def _painted(browser: "Browser", plan: Visit) -> dict[str, float]:
    script = _NOTE_ROWS.replace("ROWS", str(plan.groups))
    page = _opened(browser, script, f"http://{plan.host}:{plan.http_port}/")
    _until(page, "rowsSeen.all !== undefined")
    first_ms, all_ms = page.evaluate("[rowsSeen.first, rowsSeen.all]")
    page.close()
    return {"first_ms": first_ms, "all_ms": all_ms}


def _updated(browser: "Browser", plan: Visit) -> dict[str, float]:
    group_id = group_name(0)
    address = f"http://{plan.host}:{plan.http_port}/#/groups/{group_id}"
    took_ms = []
    with closing(connect(plan.host, plan.port)) as talk:
        page = _opened(browser, _NOTE_LAG, address)
        _until(page, "document.querySelector('#link-state').textContent === 'live'")
        _until(page, "lagsSeen.length > 0")
        page.wait_for_timeout(1_000)
        filled = offsets_of(1, 1)[0]
        for offset in range(filled + 1, filled + 1 + plan.updates):
            seen = page.evaluate("lagsSeen.length")
            commits = (TopicCommit(TOPIC, (PartitionCommit(0, offset, -1, "", None),)),)
            ask([talk], [OffsetCommitRequest(group_id, -1, "", None, commits)])
            answered_ms = time.time() * 1000
            _until(page, f"lagsSeen.length > {seen}")
            took_ms.append(page.evaluate("lagsSeen.at(-1).at") - answered_ms)
            page.wait_for_timeout(_APART_MS)
    return {"update_ms": median(took_ms), "slowest_ms": max(took_ms)}


if __name__ == "__main__":
    run_plan("bench.page", Visit, visit)
