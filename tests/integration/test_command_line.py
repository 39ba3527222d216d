"""The commands of operators, as processes against a daemon."""

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from protocol.messages import PartitionEnd, ReportEndOffsetsRequest, TopicEnds
from tests.integration.daemon import daemon, run_cli

pytestmark = pytest.mark.integration

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def at(port: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run one command against the daemon at *port*."""
    return run_cli(*arguments, "--at", f"127.0.0.1:{port}")


def test_a_group_from_its_first_offsets_to_its_end(tmp_path: Path) -> None:
    """What the unit tests tell a coordinator to answer, the real one does."""
    with daemon(tmp_path / "data") as one:
        run: Command = partial(at, one.ready().port)
        assert run("topics", "register", "t", "2").returncode == 0
        with one.connect() as connection:
            ends = (PartitionEnd(0, 100), PartitionEnd(1, 40))
            connection.ask(ReportEndOffsetsRequest((TopicEnds("t", ends),)))
        reset = partial(run, "groups", "reset-offsets", "g", "--topic", "t")
        assert "a reset makes it" in reset("--to-offset", "50").stderr
        assert run("groups", "describe", "g").returncode == 1
        assert reset("--to-offset", "50", "--execute").stdout.count("reset") == 2
        described = run("groups", "describe", "g")
        assert [line.split()[3:6] for line in described.stdout.splitlines()[1:]] == [
            ["50", "100", "50"],
            ["40", "40", "0"],
        ]
        assert "has no active members" in described.stderr
        assert run("groups", "retention", "g", "--set", "never").stdout == "g: never\n"
        assert "never" in run("groups", "describe", "g", "--state").stdout
        assert run("groups", "remove-static", "g", "--instance", "i").returncode == 1
        assert "deleted" in run("groups", "delete-offsets", "g", "--topic", "t:1").stdout
        assert run("groups", "delete", "g", "h").stdout == "g: deleted\n"
        assert run("groups", "list", "--state", "empty").stdout.count("\n") == 1
        one.stop()
        assert run("groups", "list").returncode == 69
