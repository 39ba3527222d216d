"""The whole benchmark, small: so that it cannot rot."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import spark_rows
from bench.aims import AIMS
from bench.group_rows import GROUP_AIMS, TITLES
from bench.peers import missing
from bench.rows import (
    BEFORE_COMPACTION,
    FILLED_MEMORY,
    FLOOR,
    IDLE_MEMORY,
    LOADED_MEMORY,
    ROWS,
    START,
    START_FLOOR,
    WHILE_COMPACTING,
    Target,
)

OURS = (Target.DAEMON, Target.FILLED, Target.ECHO, Target.ECHO_SOCKET)


def quick_run(module: str, folder: Path, *options: str) -> dict[str, Any]:
    """Run *module* as a smoke test, and return what it wrote, after a look at what it must not."""
    folders = {"--work-dir": folder / "work", "--results": folder / "results"}
    arguments = [f"{option}={path}" for option, path in folders.items()] + [
        "--name=smoke",
        *options,
    ]
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"QUICK": "1"},
        capture_output=True,
        text=True,
        timeout=600,
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
    rows = [row.name for row in ROWS if row.target in OURS]
    others = {FLOOR, IDLE_MEMORY, LOADED_MEMORY, FILLED_MEMORY, START, START_FLOOR}
    assert set(content["rows"]) == others.union(rows, {BEFORE_COMPACTION, WHILE_COMPACTING})
    for row in rows:
        (sample,) = content["rows"][row]["samples"]
        assert sample["requests"] > 0
        assert (sample["wrong"], sample["unanswered"], sample["differences"]) == (0, 0, 0)
    assert [aim["name"] for aim in content["aims"]] == [aim.name for aim in AIMS]
    peers = ("kafka", "zookeeper", "redis")
    for aim in content["aims"]:
        with_peer = any(peer in aim["name"] for peer in peers)
        assert with_peer or aim["reached"] is not None, aim["name"]


@pytest.mark.integration
@pytest.mark.skipif(missing("redis") is not None, reason="there is no redis-server")
def test_a_peer_that_is_installed_is_measured_along(tmp_path: Path) -> None:
    """With one real peer, and only with it."""
    content = quick_run("bench.run", tmp_path, "--only=commit", "--peer=redis")
    for row in ("redis_commit_64", "redis_commit_8x64_p100", "commit_64"):
        (sample,) = content["rows"][row]["samples"]
        assert sample["requests"] > 0
        assert (sample["wrong"], sample["unanswered"], sample["differences"]) == (0, 0, 0)
    assert content["environment"]["kafka"] == "skipped: not asked for"
    assert content["environment"]["redis"]
    assert not [row for row in content["rows"] if "kafka" in row or "fetch" in row]
    assert content["repeat"].endswith("--quick --only commit --peer redis")


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


@pytest.mark.integration
@pytest.mark.spark
@pytest.mark.nightly
def test_a_quick_run_of_spark_fills_every_row_but_those_of_kafka(tmp_path: Path) -> None:
    """Three sessions start for it, which every run of the tests has no time for."""
    content = quick_run("bench.spark", tmp_path)
    with_kafka = {spark_rows.KAFKA_LOG, spark_rows.SPARK_KAFKA}
    assert set(content["rows"]) == set(spark_rows.TITLES) - with_kafka
    for row in content["rows"].values():
        assert not any(sample.get("wrong", 0) for sample in row["samples"])
    assert [aim["name"] for aim in content["aims"]] == [aim.name for aim in spark_rows.SPARK_AIMS]
    for aim in content["aims"]:
        assert (aim["reached"] is None) == ("kafka" in aim["name"])
    assert content["environment"]["pyspark"]
