"""Offsets in files and as a stream, and a daemon's settings: processes against a real daemon."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client import MemberLost, OffsetAndMetadata, TopicPartition
from client.blocking import connect_blocking
from tests.integration.daemon import ROOT, WAIT_S, daemon, run_cli
from tests.integration.test_command_line import Command, at

pytestmark = pytest.mark.integration

NO_DELAY = "group.initial.rebalance.delay.ms=0"
T0 = TopicPartition("t", 0)


@contextmanager
def watching(port: int, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Follow changes as JSON lines, in a process."""
    command = ["offsets", "watch", "--output", "json", "--at", f"127.0.0.1:{port}", *arguments]
    with subprocess.Popen(
        [sys.executable, "-m", "coordinator", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_of(process: "subprocess.Popen[str]", kind: str) -> dict[str, Any]:
    """Return the next event of a kind."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["kind"] == kind:
            return event
    raise AssertionError(f"no {kind}: {process.stderr and process.stderr.read()}")


def test_a_watch_outlives_the_daemon_and_ends_with_its_reader(tmp_path: Path) -> None:
    """What is committed after `kill -9` and a restart comes once, behind what was there."""
    file = tmp_path / "offsets.csv"

    def put(run: Command, offset: int) -> None:
        file.write_text(f"g,t,0,{offset}\n")
        assert run("offsets", "import", str(file), "--yes").returncode == 0

    with daemon(tmp_path / "data") as one:
        port = one.ready().port
        run: Command = partial(at, port)
        put(run, 5)
        with watching(port, "--from", "beginning", "--group", "g") as watch:
            assert next_of(watch, "found")["offset"] == 5
            one.kill()
            with daemon(tmp_path / "data", port=port) as two:
                two.ready()
                put(run, 6)
                assert next_of(watch, "committed")["offset"] == 6
                watch.send_signal(signal.SIGINT)
                assert watch.wait(WAIT_S) == 0
                assert watch.stderr is not None
                said = watch.stderr.read()
                assert said.count("trying again") == said.count("is back after") == 1
                assert "Traceback" not in said
                with watching(port, "--from", "beginning") as piped:
                    next_of(piped, "found")
                    assert piped.stdout is not None
                    piped.stdout.close()
                    assert piped.wait(WAIT_S) == 0
                    assert piped.stderr is not None
                    assert piped.stderr.read() == ""


def test_offsets_go_out_and_into_a_group_that_is_active(tmp_path: Path) -> None:
    """An import respects who owns what, or takes it, and the member goes on at the new offset."""
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    with (
        daemon(tmp_path / "data", NO_DELAY) as one,
        connect_blocking(f"127.0.0.1:{one.ready().port}", client_id="loader") as client,
        client.join("g", ["t"], {"t": 1}) as member,
    ):
        run: Command = partial(at, one.port)
        member.assignment()
        member.commit({T0: OffsetAndMetadata(5, 'a "b",\n', 3)})
        done = run("offsets", "export", "--all-groups", "--file", str(before))
        assert (done.returncode, done.stderr) == (0, f"1 offset of 1 group in {before}\n")
        member.commit({T0: 9})
        back = partial(run, "offsets", "import", str(before))
        refused = back("--yes")
        assert refused.returncode == 1
        assert "owned by loader" in refused.stdout
        assert back("--remove-owners").returncode == 3
        assert back("--remove-owners", "--yes").returncode == 0
        with pytest.raises(MemberLost, match="offsets altered on request"):
            member.commit({T0: 10})
        member.assignment()
        assert member.fetch() == {T0: OffsetAndMetadata(5, 'a "b",\n', 3)}
        assert run("offsets", "export", "g", "--file", str(after)).returncode == 0
        assert after.read_bytes() == before.read_bytes()
        assert "offsets altered" in run("groups", "rebalances", "g").stdout


def test_a_daemon_tells_what_it_is_set_to_and_a_start_what_it_would_be(tmp_path: Path) -> None:
    """The file, the environment and the command line are told apart."""
    with daemon(tmp_path / "data", NO_DELAY) as one:
        shown = at(one.ready().port, "config", "show", "--changed", "--output", "json")
        found = {row["name"]: row for row in json.loads(shown.stdout)}
        assert found["group.initial.rebalance.delay.ms"] == {
            "name": "group.initial.rebalance.delay.ms",
            "value": "0",
            "origin": "command line --set",
            "default": "3000",
        }
        assert set(found) == {
            "group.initial.rebalance.delay.ms", "listeners", "storage.reserve.bytes",
        }  # fmt: skip
    start = run_cli("config", "show", "--start", "--changed", GROUP_COORDINATOR_NODE_ID="7")
    assert "environment GROUP_COORDINATOR_NODE_ID" in start.stdout
