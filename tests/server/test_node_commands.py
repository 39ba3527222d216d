"""`health` and `reload`, and what is on the terminal while the log is loaded."""

import io
import json
from collections.abc import Callable

import click
import pytest
import structlog
import trio
from msgspec import structs
from trio.testing import MockClock

from coordinator.cli.main import main
from coordinator.server.terminal import BAR_WIDTH, Bar, LogOutput
from protocol import messages as m
from tests.fakes.command_line import CommandLine
from tests.server.world import SlowDisk, world

METRICS = (m.NodeMetric("log_bytes", 5_000), m.NodeMetric("uptime_ms", -1))
PARTITIONS = (m.NodePartition(0, "active", 7, 7), m.NodePartition(65_535, "active", 0, 0))
READY = m.DescribeNodeResponse(0, 1, 3, "ready", (), PARTITIONS, METRICS)
LOADING = structs.replace(
    READY, status="loading", partitions=(m.NodePartition(0, "loading", 3, 7), PARTITIONS[1])
)
ILL = structs.replace(
    READY, status="unhealthy", problems=(m.NodeProblem("storage", "the disk is full"),)
)


def command_line(monkeypatch: pytest.MonkeyPatch, answer: object) -> CommandLine:
    """Return a command line to a node that says *answer*."""
    return CommandLine(
        monkeypatch, {m.DescribeNodeRequest: answer, m.ReloadPartitionRequest: answer}
    )


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (READY, 0),
        (ILL, 1),
        (LOADING, 3),
        (OSError("refused"), 69),
        (structs.replace(READY, error=-1), 1),
    ],
)
@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_the_exit_status_says_how_the_node_is(
    answer: object, status: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For health checks, which read nothing else."""
    line = command_line(monkeypatch, answer)

    assert line.run("health", "--output", form).exit_code == status


def test_health_tells_people_what_is_wrong_and_what_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is served as it should be is not listed."""
    ill = command_line(monkeypatch, ILL).run("health")
    assert ill.stdout.startswith("node 1, leader epoch 3: unhealthy\n")
    assert ill.stderr == "storage: the disk is full\n"
    assert "PARTITION" not in ill.stdout
    assert ["log_bytes", "5000"] in [line.split() for line in ill.stdout.splitlines()]

    loading = command_line(monkeypatch, LOADING).run("health")
    assert ["0", "loading", "3", "7"] in [line.split() for line in loading.stdout.splitlines()]
    assert "65535" not in loading.stdout


def test_health_tells_programs_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is on the wire, by name."""
    told = json.loads(command_line(monkeypatch, ILL).run("health", "--output", "json").stdout)

    assert told == {
        "node_id": 1,
        "leader_epoch": 3,
        "status": "unhealthy",
        "problems": {"storage": "the disk is full"},
        "partitions": [structs.asdict(p) for p in PARTITIONS],
        "metrics": {"log_bytes": 5_000, "uptime_ms": -1},
    }


def test_reload_says_what_was_read_or_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition is a number of the offsets log."""
    done = m.ReloadPartitionResponse(0, None, 20_000, 85)
    line = command_line(monkeypatch, done)
    told = line.run("reload", "7")
    assert (told.exit_code, told.stdout) == (0, "ok: 20000 entries in 85 ms\n")
    assert line.asked == [m.ReloadPartitionRequest(7)]

    failed = m.ReloadPartitionResponse(14, None, -1, -1)
    assert command_line(monkeypatch, failed).run("reload", "7").exit_code == 1
    assert command_line(monkeypatch, failed).run("reload", "65535").exit_code == 2


class Terminal(io.StringIO):
    """Keeps what is shown: the carriage return goes back, and CSI K clears."""

    def isatty(self) -> bool:
        """Say so."""
        return True

    def shown(self) -> list[str]:
        """Return the lines that a person sees."""
        return [line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n")]


class Half:
    """A load that is half done."""

    total_bytes = 1_000
    done_bytes = 500
    entries = 1_234
    partitions = 4


async def test_a_bar_shows_how_far_the_load_is_and_leaves_nothing(
    autojump_clock: MockClock,
) -> None:
    """Log lines stand above it, whole."""
    terminal = Terminal()
    bar = Bar(terminal)
    LogOutput(terminal, bar.around).configure()
    try:
        bar.draw(Half())  # type: ignore[arg-type]  # all of it that is looked at
        half = "#" * (BAR_WIDTH // 2) + "." * (BAR_WIDTH // 2)
        assert terminal.shown() == [f"loading [{half}]  50 %  1,234 entries"]

        structlog.get_logger().info("listening", port=9310)
        above, below = terminal.shown()
        assert "listening" in above
        assert "loading" not in above
        assert below == f"loading [{half}]  50 %  1,234 entries"

        bar.remove()
        structlog.get_logger().info("ready")
        _, ready, nothing = terminal.shown()
        assert "ready" in ready
        assert nothing == ""
    finally:
        structlog.reset_defaults()


async def test_without_a_terminal_there_is_no_bar(autojump_clock: MockClock) -> None:
    """A file of log lines has no use for it."""
    stream = io.StringIO()
    bar = Bar(stream)
    bar.draw(Half())  # type: ignore[arg-type]  # as above
    await bar.follow(lambda: None)
    bar.around(lambda: None)

    assert stream.getvalue() == ""


async def test_a_terminal_that_is_gone_ends_the_bar_and_nothing_else() -> None:
    """The daemon goes on."""

    class Gone(Terminal):
        def write(self, _: str) -> int:
            raise OSError("gone")

    bar = Bar(Gone())
    bar.draw(Half())  # type: ignore[arg-type]  # as above
    bar.draw(Half())  # type: ignore[arg-type]  # as above
    bar.remove()


async def test_a_long_load_is_told_about_once_a_second(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says how far it is, and not too often."""
    async with world("offsets.topic.segment.bytes=4096") as w:
        for number in range(40):
            client = w.connect()
            commit = m.PartitionCommit(number, 1, -1, "x" * 900, None)
            topics = (m.TopicCommit("t", (commit,)),)
            await client.ask(m.OffsetCommitRequest("g", -1, "", None, topics))
        await w.node.drain()
        w.journal.close(clean=True)
        disk = w.disk

    async def slowly(_disk: SlowDisk, work: Callable[[], None]) -> None:
        await trio.sleep(0.3)
        work()

    monkeypatch.setattr(SlowDisk, "run_read", slowly)
    async with world("offsets.topic.segment.bytes=4096", disk=disk, load=False) as w:
        await w.node.load()
        told = [fields for name, fields in w.events if name == "loading"]

    assert 1 <= len(told) <= 4
    assert [f["percent"] for f in told] == sorted(f["percent"] for f in told)
    assert told[0]["partitions"] == 5
    assert 0 < told[0]["bytes"] < told[0]["total_bytes"]
    assert 0 < told[0]["entries"] < 40


def test_the_commands_are_listed() -> None:
    """An operator looks for them in the help."""
    assert {"health", "reload"} <= set(main.list_commands(click.Context(main)))
