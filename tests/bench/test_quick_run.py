"""The whole benchmark, small: so that it cannot rot."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.group_rows import GROUP_AIMS, TITLES
from bench.rows import AIMS, FLOOR, IDLE_MEMORY, LOADED_MEMORY, ROWS


def quick_run(module: str, folder: Path) -> dict[str, Any]:
    """Run *module* as a smoke test, and return what it wrote, after a look at what it must not."""
    folders = {"--work-dir": folder / "work", "--results": folder / "results"}
    arguments = [f"{option}={path}" for option, path in folders.items()] + ["--name=smoke"]
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"QUICK": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (folder / "results/smoke.md").read_text(encoding="utf-8")
    raw = (folder / "results/smoke.json").read_text(encoding="utf-8")
    for secret in (str(folder), str(Path.cwd()), socket.gethostname(), sys.prefix):
        assert secret not in page
        assert secret not in raw
    assert not list((folder / "work").iterdir())
    content: dict[str, Any] = json.loads(raw)
    return content


@pytest.mark.integration
def test_a_quick_run_fills_every_row_and_judges_every_aim(tmp_path: Path) -> None:
    """Everything runs and answers rightly; its numbers are not looked at."""
    content = quick_run("bench.run", tmp_path)
    assert set(content["rows"]) == {FLOOR, IDLE_MEMORY, LOADED_MEMORY, *(row.name for row in ROWS)}
    for row in ROWS:
        (sample,) = content["rows"][row.name]["samples"]
        assert sample["requests"] > 0
        assert (sample["wrong"], sample["unanswered"], sample["differences"]) == (0, 0, 0)
    assert [aim["name"] for aim in content["aims"]] == [aim.name for aim in AIMS]
    assert all(aim["reached"] is not None for aim in content["aims"])


@pytest.mark.integration
def test_a_quick_run_of_groups_fills_every_row_and_judges_every_aim(tmp_path: Path) -> None:
    """The same, for rebalances, heartbeats, memory and the assignor."""
    content = quick_run("bench.groups", tmp_path)
    assert set(content["rows"]) == set(TITLES)
    for row in content["rows"].values():
        (sample,) = row["samples"]
        assert (sample.get("wrong", 0), sample.get("unanswered", 0)) == (0, 0)
    assert [aim["name"] for aim in content["aims"]] == [aim.name for aim in GROUP_AIMS]
    assert all(aim["reached"] is not None for aim in content["aims"])
