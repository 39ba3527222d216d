"""What Spark shows of a query whose options have secrets: nothing of these, anywhere."""

import html
import json
import re
import time
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

import pytest

from tests.integration.daemon import daemon
from tests.integration.spark_support import ROWS_S, Driver, Feeder, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.spark]

PASSWORD: Final = "pa55-that-nobody-may-see"
LITERAL: Final = "l1teral-that-nobody-may-see"
_LINK: Final = re.compile(r"""(?:href|src)=["']([^"'#]+)["']""")
_PAGES_MAX: Final = 300
_PAGES_S: Final = 120
# Each of its plans is written down, several times.
_BATCH_S: Final = 2 * ROWS_S


def pages(ui: str) -> dict[str, str]:
    """Return all that the UI at *ui* shows, by address: its REST, and each page that is linked."""
    rest = f"{ui}/api/v1/applications"
    (application,) = json.loads(_page(rest))
    parts = ("environment", "jobs", "stages", "executors", "streaming/statistics")
    left = [ui, *(f"{rest}/{application['id']}/{part}" for part in parts)]
    left += [f"{rest}/{application['id']}/sql?details=true&planDescription=true&length=1000"]
    found: dict[str, str] = {}
    end_s = time.monotonic() + _PAGES_S
    while left and len(found) < _PAGES_MAX and time.monotonic() < end_s:
        address = left.pop(0)
        if address in found or urlsplit(address).netloc != urlsplit(ui).netloc:
            continue
        found[address] = _page(address)
        if "/static/" not in address:
            links = map(html.unescape, _LINK.findall(found[address]))
            left += [urljoin(address, link) for link in links if "kill" not in link]
    return found


def _page(address: str) -> str:
    try:
        with urlopen(address, timeout=30) as answer:
            text: str = answer.read().decode(errors="replace")
    except URLError as error:  # There is no such statistic, or a stage is gone.
        return str(error)
    return text


def test_spark_shows_no_secret_of_a_querys_options(tmp_path: Path) -> None:
    """Not in plans, the event log, the UI, the checkpoint, nor in any log of the driver."""
    password_file = tmp_path / "password"
    password_file.write_text(f"{PASSWORD}\n")
    events = tmp_path / "events"
    events.mkdir()
    settings = (
        "sasl.bootstrap.user=root",
        f"sasl.bootstrap.password.file={password_file}",
        "group.initial.rebalance.delay.ms=0",
        "group.min.session.timeout.ms=500",
        "storage.reserve.bytes=0",
    )
    listener = ("--listen", "SASL_PLAINTEXT://127.0.0.1:0")
    feeder = Feeder(tmp_path / "log")
    with daemon(tmp_path / "data", *settings, options=listener) as running:
        running.ready()
        feeder.append(20)
        port = running.events("listening")[1]["port"]
        driver = Driver(
            "one",
            tmp_path / "drivers",
            feeder.root,
            f"127.0.0.1:{port}",
            script="secret_driver.py",
            events=str(events),
            literal=LITERAL,
            options=json.dumps(
                {
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "SCRAM-SHA-256",
                    "sasl.username": "root",
                    "sasl.password": f"{{file:{password_file}}}",
                }
            ),
        )
        try:
            wait_until(
                "a batch", lambda: bool(driver.lines.named("ran")) or driver.ended(), _BATCH_S
            )
            assert driver.lines.named("ran"), driver.errors()[-4_000:]
            (ran,) = driver.lines.named("ran")
            assert driver.size()
            shown = pages(ran["ui"])
            driver.tell("stop")
            driver.lines.wait("stopped")
        finally:
            driver.kill()
            feeder.close()
        said = repr(driver.lines.events) + repr(running.lines) + repr(running.stray)
    kept = {
        str(path): path.read_text(errors="replace")
        for folder in (events, tmp_path / "drivers")
        for path in folder.rglob("*")
        if path.is_file()
    }
    (refused,) = driver.lines.named("refused")
    assert "sasl.password must say where" in refused["text"]
    # It was looked for where there is something to find.
    assert "sasl.username=root" in driver.errors()
    assert any("/SQL/execution" in address for address in shown), list(shown)
    assert any("/StreamingQuery/statistics" in address for address in shown), list(shown)
    assert any("coordinated" in text for path, text in kept.items() if str(events) in path)
    for secret in (PASSWORD, LITERAL):
        assert secret not in said
        assert not [where for where, text in {**shown, **kept}.items() if secret in text]
