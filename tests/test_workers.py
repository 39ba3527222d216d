"""Tests that run beside each other must not each start a Spark session."""

import os
import subprocess
import sys
from pathlib import Path

SHARING = """
import os
import time
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def spark():
    Path(os.environ["STARTED"], os.environ["PYTEST_XDIST_WORKER"]).touch()


@pytest.mark.parametrize("number", range(6))
def test_alone(number):
    time.sleep(0.05)


@pytest.mark.parametrize("number", range(6))
def test_sharing(number, spark):
    time.sleep(0.05)
"""


def test_all_tests_of_the_session_run_in_one_process(tmp_path: Path) -> None:
    """Two of them would take more memory and time than one process has saved."""
    (tmp_path / "test_sharing.py").write_text(SHARING, encoding="utf-8")
    conftest = Path(__file__).parent / "conftest.py"
    (tmp_path / "conftest.py").write_text(conftest.read_text(encoding="utf-8"), encoding="utf-8")
    started = tmp_path / "started"
    started.mkdir()
    command = "-m pytest -q -p no:cacheprovider --rootdir=. -n 2 --dist loadgroup"
    ran = subprocess.run(
        [sys.executable, *command.split()],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "STARTED": str(started)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert ran.returncode == 0, ran.stdout
    assert "12 passed" in ran.stdout
    assert len(list(started.iterdir())) == 1
