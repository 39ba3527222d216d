"""The whole benchmark, small: so that it cannot rot."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.rows import AIMS, FLOOR, IDLE_MEMORY, LOADED_MEMORY, ROWS


@pytest.mark.integration
def test_a_quick_run_fills_every_row_and_judges_every_aim(tmp_path: Path) -> None:
    """Everything runs and answers rightly; its numbers are not looked at."""
    folders = {"--work-dir": tmp_path / "work", "--results": tmp_path / "results"}
    arguments = [f"{option}={folder}" for option, folder in folders.items()] + ["--name=smoke"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", *arguments],
        env=os.environ | {"QUICK": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "results/smoke.md").read_text(encoding="utf-8")
    raw = (tmp_path / "results/smoke.json").read_text(encoding="utf-8")
    content = json.loads(raw)
    assert set(content["rows"]) == {FLOOR, IDLE_MEMORY, LOADED_MEMORY, *(row.name for row in ROWS)}
    for row in ROWS:
        (sample,) = content["rows"][row.name]["samples"]
        assert sample["requests"] > 0
        assert (sample["wrong"], sample["unanswered"], sample["differences"]) == (0, 0, 0)
    assert [aim["name"] for aim in content["aims"]] == [aim.name for aim in AIMS]
    assert all(aim["reached"] is not None for aim in content["aims"])
    for secret in (str(tmp_path), str(Path.cwd()), socket.gethostname(), sys.prefix):
        assert secret not in page
        assert secret not in raw
    assert not list((tmp_path / "work").iterdir())
