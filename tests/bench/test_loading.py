"""The load in a process of its own, small: so that it cannot rot."""

import subprocess
import sys

import pytest


@pytest.mark.integration
def test_a_small_log_is_loaded_and_told_in_parts() -> None:
    """The numbers are not looked at."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.loading", "--entries=400", "--rounds=1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first.startswith("400 entries in ")
    told = {line.split()[0] for line in lines}
    assert told == {"open_s", "load_s", "load_wall_s", "stall_ms", "floor_s", "ratio"}
