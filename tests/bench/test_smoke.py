"""Each tool runs on tiny input, answers rightly and prints its tables; its numbers mean nothing."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ensemble import needs_zookeeper

ROOT = Path(__file__).parents[2]


def run(module: str, *options: str) -> str:
    """Run a tool to its end, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        env=os.environ | {"QUICK": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def quick_run(module: str, folder: Path, *options: str) -> dict[str, Any]:
    """Run a benchmark as a smoke test, and return its result after a look at its page."""
    work, results = folder / "work", folder / "results"
    places = (f"--work-dir={work}", f"--results={results}", "--name=smoke")
    printed = run(module, *places, *options)
    assert "A smoke run" in printed
    page = (results / "smoke.md").read_text(encoding="utf-8")
    raw = (results / "smoke.json").read_text(encoding="utf-8")
    for secret in (str(folder), str(Path.cwd()), socket.gethostname(), sys.prefix):
        assert secret not in page + raw
    assert not list(work.iterdir())
    content: dict[str, Any] = json.loads(raw)
    for row in content["rows"].values():
        for sample in row["samples"]:
            wrong = [sample.get(field) or 0 for field in ("wrong", "unanswered", "differences")]
            assert sum(wrong) == 0, row
    for aim in content["aims"]:
        assert aim["title"] in page
    return content


def unjudged(content: dict[str, Any]) -> set[str]:
    """Return the aims that could not be judged."""
    return {aim["name"] for aim in content["aims"] if aim["reached"] is None}


@pytest.mark.integration
def test_a_quick_run_of_the_clients_forms_judges_its_aims(tmp_path: Path) -> None:
    """Each form commits, and what it was told is what is stored."""
    assert unjudged(quick_run("bench.clients", tmp_path)) == set()


@pytest.mark.integration
def test_a_quick_run_judges_every_aim_that_needs_no_peer(tmp_path: Path) -> None:
    """A row that is missing, or misspelt, would leave its aims unjudged."""
    content = quick_run("bench.run", tmp_path)

    assert {"Python", "calibration"} <= set(content["environment"])
    assert content["rows"]["rebalancing_64"]["samples"][0]["rebalances_per_s"] > 0
    peers = ("kafka", "zookeeper")
    assert unjudged(content) == {
        aim["name"] for aim in content["aims"] if any(peer in aim["name"] for peer in peers)
    }


@pytest.mark.integration
@pytest.mark.nightly
@needs_zookeeper
def test_a_peer_that_is_installed_is_measured_along(tmp_path: Path) -> None:
    """With one real peer, and only with it."""
    content = quick_run("bench.run", tmp_path, "--only=commit", "--peer=zookeeper")

    assert content["rows"]["zookeeper_commit_64"]["samples"][0]["requests"] > 0
    assert content["environment"]["kafka"] == "skipped: not asked for"
    assert not [row for row in content["rows"] if "kafka" in row or "fetch" in row]
    assert content["repeat"].endswith("--quick --only commit --peer zookeeper")


@pytest.mark.integration
def test_a_quick_run_of_groups_judges_every_aim(tmp_path: Path) -> None:
    """Rebalances, heartbeats, memory and the assignor."""
    assert unjudged(quick_run("bench.groups", tmp_path)) == set()


@pytest.mark.integration
def test_a_quick_run_of_the_command_line_judges_every_aim(tmp_path: Path) -> None:
    """A command that fails would be a quick one."""
    assert unjudged(quick_run("bench.command_line", tmp_path)) == set()


@pytest.mark.integration
@needs_zookeeper
def test_a_quick_run_of_imports_judges_every_aim(tmp_path: Path) -> None:
    """An import that fails would be a quick one."""
    assert unjudged(quick_run("bench.zookeeper", tmp_path)) == set()


@pytest.mark.integration
@pytest.mark.nightly
@needs_zookeeper
def test_a_quick_run_of_a_cluster_judges_every_aim_that_needs_no_peer(tmp_path: Path) -> None:
    """Nodes are killed and come back, and the load finds who answers for each group."""
    content = quick_run("bench.cluster", tmp_path)

    assert all("kafka" in aim for aim in unjudged(content))


@pytest.mark.integration
def test_a_quick_run_of_security_judges_every_aim(tmp_path: Path) -> None:
    """The load speaks TLS, too."""
    assert unjudged(quick_run("bench.security", tmp_path)) == set()


@pytest.mark.integration
def test_a_quick_run_of_telemetry_judges_every_aim(tmp_path: Path) -> None:
    """It runs the listener that everything else leaves off."""
    assert unjudged(quick_run("bench.telemetry", tmp_path)) == set()


@pytest.mark.integration
def test_a_quick_run_of_operators_judges_every_aim(tmp_path: Path) -> None:
    """The table must show the worst of as many groups as there are."""
    assert unjudged(quick_run("bench.operators", tmp_path)) == set()


@pytest.mark.integration
@pytest.mark.spark
@pytest.mark.nightly
def test_a_quick_run_of_spark_judges_every_aim_but_that_of_kafka(tmp_path: Path) -> None:
    """Three sessions start for it, which every run of the tests has no time for."""
    content = quick_run("bench.spark", tmp_path)

    assert unjudged(content) == {"kafka_log/spark_kafka"}
    assert content["environment"]["pyspark"]


@pytest.mark.integration
def test_a_daemon_is_profiled_under_load(tmp_path: Path) -> None:
    """From start to stop, with functions of the daemon in the table."""
    printed = run("bench.hot_spots", "commit_8x64", "--seconds=0.5", f"--work-dir={tmp_path}")

    assert "us of CPU each" in printed
    assert "MainThread" in printed
    assert ".py:" in printed


@pytest.mark.integration
def test_two_checkouts_are_compared_row_by_row(tmp_path: Path) -> None:
    """Here one with itself: the other one need not be on this machine."""
    only = "--only=commit_1,commit_64,load"
    printed = run("bench.compare", "--quick", only, f"--work-dir={tmp_path}", str(ROOT))

    assert "new/old" in printed
    assert "commit, 64 connections, us" in printed
    assert "commit, 1 connection, p50 us" in printed
    assert "load alone, s" in printed
    assert not list(tmp_path.iterdir())


def test_an_unknown_part_or_peer_is_refused() -> None:
    """A misspelt part would measure nothing and say that all is well."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", "--only=comit"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "not one of" in done.stderr
