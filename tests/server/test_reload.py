"""SIGHUP: what may change is read again, what can't be changes nothing."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio.testing

from coordinator.config import SETTINGS, ConfigError, Settings, load_settings
from coordinator.server.reload import Reload, open_log
from coordinator.server.terminal import LogOutput
from tests.server.world import world


class Operator:
    """Somebody with a file of settings, a log to read, and a daemon to be told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write()
        self.stream = io.StringIO()
        self.output = LogOutput(self.stream)
        self.settings = self.read()
        self.applied = 0
        self.reload = Reload(self.settings, self.read, self.output, self.apply)
        open_log(self.output, self.settings)

    def write(self, **values: str | int) -> None:
        """Have the file say this, with dots for underscores."""
        lines = [f'"{name.replace("_", ".")}" = {json.dumps(v)}' for name, v in values.items()]
        self.path.write_text("\n".join(lines), encoding="utf-8")

    def read(self) -> Settings:
        """Read as the start does."""
        return load_settings(toml_path=self.path, overrides=["max.connections=7"])

    def apply(self) -> None:
        """Count who is told."""
        self.applied += 1

    def said(self) -> dict[str, Any]:
        """Return the last line of the log."""
        line: dict[str, Any] = json.loads(self.stream.getvalue().splitlines()[-1])
        return line


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """One, whose log is put back afterwards."""
    one = Operator(tmp_path / "settings.toml")
    yield one
    one.output.close()
    structlog.reset_defaults()


def test_what_may_change_changes_and_the_rest_is_named(operator: Operator) -> None:
    """Who edits a file wants to know which lines of it hold."""
    operator.write(metrics_max_series=9, group_max_size=500)
    operator.reload()
    said = operator.said()

    assert (said["event"], said["changed"]) == ("settings.reloaded", ["metrics.max.series"])
    assert said["needs_restart"] == ["group.max.size"]
    assert operator.settings.metrics_max_series == 9
    assert operator.settings.group_max_size == 10_000
    assert operator.settings.origins == {
        "metrics.max.series": f"file {operator.path}",
        "max.connections": "command line --set",
    }
    assert operator.applied == 1


def test_a_line_that_is_gone_is_the_default_again(operator: Operator) -> None:
    """The file says how it is, and not how to change it."""
    operator.write(metrics_max_series=9)
    operator.reload()
    operator.write()
    operator.reload()

    assert operator.settings == load_settings(overrides=["max.connections=7"])
    assert "metrics.max.series" not in operator.settings.origins


def test_nothing_new_is_told_to_nobody(operator: Operator) -> None:
    """Whoever only rotates logs sends the signal every night."""
    operator.reload()

    assert operator.said()["changed"] == []
    assert operator.applied == 0


@pytest.mark.parametrize("name", ["no.such.setting", "metrics.max.series", "log.level"])
def test_a_file_that_cannot_be_changes_nothing(operator: Operator, name: str) -> None:
    """Half a change is one that nobody asked for."""
    operator.write(max_connections=3, **{name: "wrong"})
    operator.reload()

    assert operator.said()["event"] == "settings.refused"
    assert name in operator.said()["reason"]
    assert operator.settings == load_settings(overrides=["max.connections=7"])
    assert operator.applied == 0


def test_the_log_is_opened_anew_beside_a_file_that_cannot_be(
    operator: Operator, tmp_path: Path
) -> None:
    """A misspelt setting must not have the daemon write into a log that was rotated away."""
    path = tmp_path / "daemon.log"
    operator.write(log_file=str(path))
    operator.reload()
    path.rename(tmp_path / "old.log")
    operator.write(log_file=1)
    operator.reload()

    assert json.loads(path.read_text(encoding="utf-8"))["event"] == "settings.refused"


def test_a_log_that_cannot_be_opened_is_a_setting_that_cannot_be(
    operator: Operator, tmp_path: Path
) -> None:
    """The lines go on where they went, and say so; a start is refused."""
    operator.write(log_file=str(tmp_path / "no" / "daemon.log"), metrics_max_series=9)
    operator.reload()

    assert "No such file" in operator.said()["reason"]
    assert operator.settings.metrics_max_series == 50_000
    with pytest.raises(ConfigError, match=r"log\.file"):
        open_log(operator.output, operator.read())


def test_the_level_holds_from_the_next_line_on(operator: Operator) -> None:
    """At night one wants to know more without a restart."""
    operator.write(log_level="error")
    operator.reload()

    assert operator.stream.getvalue() == ""


def test_only_what_is_looked_at_each_time_is_live() -> None:
    """Another one would be told as changed, and would not be."""
    assert {setting.name for setting in SETTINGS if setting.live} == {
        "cluster.nodes",
        "cluster.state.max.bytes",
        "http.allowed.hosts",
        "log.file",
        "log.format",
        "log.level",
        "max.groups",
        "max.log.bytes",
        "max.members",
        "max.offsets",
        "max.topic.host.bytes",
        "max.topic.partitions",
        "max.topics",
        "max.connections",
        "max.connections.per.ip",
        "metrics.max.series",
        "partition.reload.min.interval.ms",
        "storage.reserve.bytes",
    }


async def test_another_reserve_holds_at_once() -> None:
    """Who is out of room for new offsets may lower it, and is served again."""
    async with world() as here:
        here.store.keep_free(2**60, 2**60)
        here.node.check_storage()
        full = list(here.event_names())
        here.store.keep_free(0, 2**60)
        here.node.check_storage()

    assert full[-1] == "storage.full"
    assert here.event_names()[-1] == "storage.has_room"


async def test_another_number_of_connections_holds_for_the_next_one() -> None:
    """Nobody who is there is thrown out."""
    async with world() as here:
        first = here.connect()
        await first.member_id()
        here.server.sessions.max_connections = 1
        second = here.connect()
        await trio.testing.wait_all_tasks_blocked()

        assert second.transport.closed
        assert not first.transport.closed
