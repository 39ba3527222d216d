"""docs/metrics.md and the catalogue of /metrics say the same."""

import re
from collections.abc import Iterator
from typing import Final

from coordinator.http.series import CATALOGUE, LEVELS, Family
from coordinator.runtime.telemetry import Telemetry
from tests.guide import ROOT

PAGE: Final = ROOT / "docs/metrics.md"
_NAME: Final = re.compile("`([a-z_]+)`")


def documented() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield name, kind and labels of each series in the page's tables, but those of the client."""
    about_daemon, _, _ = PAGE.read_text(encoding="utf-8").partition("\n## The client\n")
    common: list[str] = []  # What the last line before the table says of labels.
    columns: list[str] = []
    for line in about_daemon.splitlines():
        if not line.startswith("|"):
            columns = []
            if line:
                common = _NAME.findall(line) if "label" in line else []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells
            continue
        row = dict(zip(columns, cells, strict=True))
        if columns[:2] != ["name", "type"] or cells[0].startswith("-"):
            continue
        own = row.get("labels", row.get("more labels", "")).partition(":")[0]
        labels = frozenset([*common, *_NAME.findall(own)])
        for name in _NAME.findall(row["name"]):
            yield name, row["type"], labels


def summary(family: Family) -> tuple[str, str, frozenset[str]]:
    """Return what the page says of *family*."""
    return family.name, family.kind, frozenset(family.labels)


def test_every_series_is_documented_and_every_documented_one_is_there() -> None:
    """Dashboards and alerts are written from the page."""
    assert sorted(map(summary, CATALOGUE), key=str) == sorted(documented(), key=str)


def test_no_name_is_there_twice() -> None:
    """A scrape in which a family comes twice is refused as a whole."""
    names = [family.name for family in CATALOGUE]

    assert len(names) == len(set(names))


def test_the_page_names_the_levels() -> None:
    """Who raises the bound reads there what is left out first."""
    text = PAGE.read_text(encoding="utf-8")

    assert "`level`: " + ", ".join(f"`{level}`" for level in LEVELS) in text


def test_each_documented_reason_is_there_from_the_start() -> None:
    """An alert on an increase would miss all that happened before the first scrape that has it."""
    telemetry = Telemetry()
    counted = {
        "requests_refused": telemetry.refused,
        "connections_closed": telemetry.connections_closed,
        "connections_refused": telemetry.connections_refused,
        "connections_failed": telemetry.connections_failed,
        "http_connections_closed": telemetry.http_connections_closed,
        "http_connections_refused": telemetry.http_connections_refused,
        "members_removed": telemetry.members_removed,
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, reasons in counted.items():
        (meaning,) = re.findall(rf"^\| `group_coordinator_{name}_total` .*", page, re.MULTILINE)
        no_reasons = {"counter", "reason", "work", "requests_total"}
        said = set(re.findall("`([a-z_ ]+)`", meaning)) - no_reasons

        assert {f"group_coordinator_{name}_total", *reasons} == said
        assert set(reasons.values()) == {0}
