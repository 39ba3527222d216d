"""SIGTERM and SIGINT at any moment of a start: an orderly end, and a folder that is whole."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.daemon import ROOT, WAIT_S, Daemon, daemon, until

pytestmark = pytest.mark.integration

# A start takes a quarter of a second where nothing else runs, and seconds where much does.
DELAYS_S = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2, 1.5]


def minds_signals(pid: int) -> bool:
    """Say whether a process does with SIGTERM something of its own."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (caught,) = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


def stopped(one: Daemon, number: int, delay_s: float) -> int:
    """Return the status of a daemon that gets a signal so long after it minds signals."""
    until(lambda: minds_signals(one.process.pid), "the first line of the daemon", pause_s=0.001)
    time.sleep(delay_s)
    one.process.send_signal(number)
    return one.wait()


# Sends itself a signal when a module is looked for.
AT_IMPORT = """
import os, sys

module, number = sys.argv[1:3]

class Finder:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Finder())
from coordinator.__main__ import main
sys.argv[1:3] = []
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", ["coordinator.cli.main", "coordinator.cli.serve", "re2"])
def test_a_signal_at_an_import_ends_the_start_before_anything_is_touched(
    module: str, number: int, tmp_path: Path
) -> None:
    """Imports take most of a start, and were the time in which SIGTERM ended it with -15."""
    serve = ["serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-c", AT_IMPORT, module, str(int(number)), *serve],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=WAIT_S,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_starts_ends_in_order_at_any_moment(number: int, tmp_path: Path) -> None:
    """A supervisor took the -15 for a failure, and the folder for one to be recovered."""
    for delay_s in DELAYS_S:
        with daemon(tmp_path / "data") as one:
            assert stopped(one, number, delay_s) == 0, (delay_s, one.lines, one.stray)
            assert not one.stray
    with daemon(tmp_path / "data") as one:
        one.ready()
        assert one.stop() == 0


def test_what_comes_before_the_first_line_ends_it_before_anything_was_touched(
    tmp_path: Path,
) -> None:
    """Nothing of ours runs yet, so the status is the system's."""
    for delay_s in (0.0, 0.005, 0.02):
        with daemon(tmp_path / "data") as one:
            time.sleep(delay_s)
            one.process.send_signal(signal.SIGTERM)
            assert one.wait() in {0, -signal.SIGTERM}
    with daemon(tmp_path / "data") as one:
        one.ready()


def test_a_second_signal_ends_a_start_at_once(tmp_path: Path) -> None:
    """A start may hang, on a disk that does: an impatient operator need not find out its pid."""
    with daemon(tmp_path / "data") as one:
        until(lambda: minds_signals(one.process.pid), "the first line", pause_s=0.001)
        while one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        assert one.wait() in {0, -signal.SIGTERM}


@pytest.mark.parametrize("options", [(), ("--nodes", "2")], ids=["a node", "its supervisor"])
def test_a_node_of_a_cluster_ends_in_order_at_any_moment(options: Sequence[str]) -> None:
    """ZooKeeper is away, which makes the start as long as it can be; so do nodes that start."""
    for delay_s in DELAYS_S[::2]:
        with daemon(None, "cluster.zookeeper=127.0.0.1:1/gc", options=options) as one:
            assert stopped(one, signal.SIGTERM, delay_s) == 0, (delay_s, one.lines, one.stray)
