"""Write docs/images: python -m tests.browser.screenshots [folder].

The groups are invented and the same each time, so that the images change only if the page does,
or the system's font: `FONTCONFIG_FILE` names another one, such as Inter, where that is no nice one.
"""

import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import expect, sync_playwright

from bench.chromium import launched
from tests.browser import fake_api

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
# name: path, what has to be there, theme, width, height
SHOTS: Final = {
    "page-groups-light": ("#/", "table.groups tbody tr svg", "light", 1280, 800),
    "page-group-dark": ("#/groups/billing", ".partitions svg", "dark", 1280, 1340),
    "page-group-phone": ("#/groups/billing", ".rebalances > li", "light", 390, 844),
}


def main(folder: Path) -> None:
    """Write all of them into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    api = fake_api.many(1_999)
    fake_api.eventful_night(api)
    with fake_api.serving(api) as url, sync_playwright() as playwright:
        browser = launched(playwright)
        for name, (path, shown, theme, width, height) in SHOTS.items():
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if theme == "dark" else "light",
                timezone_id="UTC",
            )
            page.goto(f"{url}/{path}")
            expect(page.locator(shown).first).to_be_visible()
            expect(page.locator("#link-state")).to_have_text("live")
            page.screenshot(path=folder / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
