"""``config show``: what a daemon is set to, and what a start would take."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.config import ENV_PREFIX, SETTINGS
from protocol import messages as m
from tests.fakes.command_line import CommandLine, cells

SETTINGS_OF_A_NODE = (
    m.NodeSetting("group.max.size", "500", "10000", "file /etc/coordinator.toml"),
    m.NodeSetting("listeners", "127.0.0.1:1", "127.0.0.1:9310", "command line --listen"),
    m.NodeSetting("cluster.id", "", "", "default"),
)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return a command line with a coordinator."""
    answer = m.DescribeSettingsResponse(0, SETTINGS_OF_A_NODE)
    return CommandLine(monkeypatch, {m.DescribeSettingsRequest: answer})


def test_a_running_coordinator_says_what_it_is_set_to(line: CommandLine) -> None:
    """And where each setting comes from."""
    done = line.run("config", "show")

    assert done.exit_code == 0
    assert cells(done.stdout) == [
        ["group.max.size", "500", "file", "/etc/coordinator.toml", "10000"],
        ["listeners", "127.0.0.1:1", "command", "line", "--listen", "127.0.0.1:9310"],
        ["cluster.id", "-", "default", "-"],
    ]
    assert len(cells(line.run("config", "show", "--changed").stdout)) == 2
    (first, *_) = json.loads(line.run("config", "show", "--output", "json").stdout)
    assert first["origin"] == "file /etc/coordinator.toml"


def test_the_settings_that_are_named_are_shown_or_the_ones_that_were_meant(
    line: CommandLine,
) -> None:
    """As `settings` has it."""
    named = line.run("config", "show", "cluster.id", "listeners")
    misspelt = line.run("config", "show", "listners")

    assert [row[0] for row in cells(named.stdout)] == ["listeners", "cluster.id"]
    assert misspelt.exit_code == 2
    assert "there is no setting 'listners'. Did you mean 'listeners'?" in misspelt.stderr


def test_an_older_coordinator_is_told_as_such(line: CommandLine) -> None:
    """It doesn't know the question."""
    line.answers[m.DescribeSettingsRequest] = m.BareError(35)
    done = line.run("config", "show")

    assert done.exit_code == 1
    assert "UNSUPPORTED_VERSION" in done.stderr


def test_what_a_start_would_take_needs_no_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, the environment and the command line, as the daemon would read them."""
    path = tmp_path / "coordinator.toml"
    path.write_text('"group.max.size" = 500\n')
    monkeypatch.setenv(ENV_PREFIX + "NODE_ID", "7")
    arguments = ["config", "show", "--config", str(path), "--set", "max.connections=5"]
    done = CliRunner().invoke(main, [*arguments, "--listen", "127.0.0.1:1", "--changed"])

    assert done.exit_code == 0
    assert [row[:2] for row in cells(done.stdout)] == [
        ["listeners", "127.0.0.1:1"],
        ["node.id", "7"],
        ["group.max.size", "500"],
        ["max.connections", "5"],
    ]
    start = CliRunner().invoke(main, ["config", "show", "--start"])
    assert len(cells(start.stdout)) == len(SETTINGS)


def test_a_start_that_would_be_refused_is_refused(tmp_path: Path) -> None:
    """With the words and the status that the daemon would have."""
    done = CliRunner().invoke(main, ["config", "show", "--set", "group.max.siz=5"])
    missing = CliRunner().invoke(main, ["config", "show", "--config", str(tmp_path / "x.toml")])

    assert done.exit_code == 78
    assert "group.max.siz" in done.stderr
    assert "group.max.size" in done.stderr
    assert missing.exit_code == 78


def test_either_a_running_coordinator_or_a_start(line: CommandLine) -> None:
    """What would it be about otherwise?"""
    assert line.run("config", "show", "--start").exit_code == 2
    assert line.asked == []
