"""docs/operations.md names what a daemon has, and nothing else."""

import re
from pathlib import Path
from typing import Final

import pytest

from coordinator.config import SETTINGS
from protocol import messages as m
from tests.integration.daemon import ROOT, daemon

PAGE: Final = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
# A setting or an event: words with dots between them. A file of the project has an ending.
DOTTED: Final = re.compile(r"`([a-z]+(?:\.[a-z_]+)+)`")


def rows_of(header: str) -> str:
    """Return the first column of the table with this header."""
    lines = PAGE[PAGE.index(header) :].split("\n\n")[0].splitlines()[2:]
    return "\n".join(line.split("|")[1] for line in lines)


@pytest.mark.integration
def test_the_page_has_every_metric_of_a_daemon(tmp_path: Path) -> None:
    """Who sees one in `health` looks it up here."""
    with daemon(tmp_path / "data") as one:
        with one.ready().connect() as connection:
            answer = connection.ask(m.DescribeNodeRequest())
        assert type(answer) is m.DescribeNodeResponse
        assert one.stop() == 0

    listed = re.findall(r"`([a-z_]+)`", rows_of("| metric | |"))
    assert sorted(listed) == sorted(metric.name for metric in answer.metrics)


def test_the_page_has_no_setting_or_event_that_there_is_not() -> None:
    """A name that was changed in the code only would be searched for in vain."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("coordinator", "client")
        for path in (ROOT / folder).rglob("*.py")
    )
    names = {name for name in DOTTED.findall(PAGE) if not (ROOT / name).is_file()}
    settings = {setting.name for setting in SETTINGS}

    assert {"log.cleaner.enable", "compaction.failed"} <= names
    assert [name for name in sorted(names - settings) if f'"{name}"' not in code] == []
