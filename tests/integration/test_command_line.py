"""The commands of operators, as processes against a daemon."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from client.blocking import connect_blocking
from protocol.messages import PartitionEnd, ReportEndOffsetsRequest, TopicEnds
from protocol.partition import TopicPartition
from tests.integration.daemon import ROOT, daemon, run_cli, until

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
        assert reset("--to-offset", "50", "--yes").stdout.count("reset") == 2
        described = run("groups", "describe", "g")
        assert [line.split()[3:6] for line in described.stdout.splitlines()[1:]] == [
            ["50", "100", "50"],
            ["40", "40", "0"],
        ]
        assert "has no active members" in described.stderr
        assert run("groups", "retention", "g", "--set", "never", "--yes").stdout == "g: never\n"
        assert "never" in run("groups", "describe", "g", "--state").stdout
        assert run("members", "remove", "g", "--instance", "i", "--yes").returncode == 1
        forget: Command = partial(run, "groups", "delete-offsets", "g", "--topic", "t:1")
        assert forget().returncode == 3
        assert "deleted" in forget("--yes").stdout
        assert run("groups", "delete", "g", "h", "--yes").stdout == "g: deleted\n"
        assert run("groups", "list", "--state", "empty").stdout.count("\n") == 1
        used = {(line["api"], line["what"]): line for line in one.events("access.used")}
        assert {
            ("AlterOffsets", "group_id: g; topics: t"),
            ("AlterGroupRetention", "group_id: g"),
            ("OffsetDelete", "group_id: g; topics: t"),
            ("DeleteGroups", "group_ids: g"),
        } <= used.keys()
        assert {line["peer"] for line in used.values()} == {"127.0.0.1"}
        assert {line["client_id"] for line in used.values()} == {"group-coordinator"}
        one.stop()
        assert run("groups", "list").returncode == 69


def test_the_lag_of_a_plain_consumer_is_there_without_registering_anything(tmp_path: Path) -> None:
    """Its leader has told of the topic; somebody reports ends, here by hand."""
    with daemon(tmp_path / "data", "group.initial.rebalance.delay.ms=0") as one:
        port = one.ready().port
        run: Command = partial(at, port)
        with (
            connect_blocking(f"127.0.0.1:{port}") as client,
            client.join("readers", ["flights"], {"flights": 2}) as member,
        ):
            partitions = member.assignment(timeout_s=60).partitions
            member.commit(dict.fromkeys(partitions, 10))
            assert run("topics", "report-end", "flights", "0", "1000").stdout == "ok\n"
            assert run("topics", "report-end", "flights", "2", "1000").returncode == 1
            top = run("groups", "top", "--pattern", "read.*")

            assert top.stdout.splitlines()[1].split() == [
                *("readers", "Stable", "1", "2", "1", "≥", "990", "-")
            ]
            (told,) = json.loads(run("groups", "list", "--output", "json").stdout)
            assert (told["lag"], told["unknown"]) == (990, 1)
            assert len(client.rebalances("readers")) == 1

            assert run("topics", "report-end", "flights", "1", "9").stdout == "ok\n"
            described = run("groups", "describe", "readers")
            assert described.stdout.splitlines()[2].split()[2:6] == ["1", "10", "9", "-"]
            assert "beyond the reported end" in described.stderr


def test_two_sources_of_one_topic_name_are_told_of(tmp_path: Path) -> None:
    """Each program is right about its own source; the log says that there are two."""
    with daemon(tmp_path / "data") as one:
        port = one.ready().port
        assert at(port, "topics", "register", "orders", "1").returncode == 0
        with (
            connect_blocking(f"127.0.0.1:{port}", client_id="folder") as folder,
            connect_blocking(f"127.0.0.1:{port}", client_id="kafka") as kafka,
        ):
            numbers = count()

            def is_told() -> bool:
                kafka.report_end_offsets({TopicPartition("orders", 0): 15_500 + next(numbers)})
                folder.report_end_offsets({TopicPartition("orders", 0): 2_500})
                return bool(one.events("topics.ends_disagree"))

            until(is_told, "a line about both")
        (line,) = one.events("topics.ends_disagree")
        assert (line["topic"], line["client_id"], line["other_client_id"]) == (
            "orders",
            "folder",
            "kafka",
        )
        assert line["client_host"] == line["other_client_host"] == "127.0.0.1"


MEMBER = """
import sys
from client.blocking import connect_blocking
with (
    connect_blocking(sys.argv[1], client_id="killed") as client,
    client.join("g", ["t"], {"t": 2}, session_timeout_ms=8_000) as member,
):
    print(member.assignment().member_id, flush=True)
    while True:
        member.wait_rebalance_needed()
        member.assignment()
"""


def test_a_killed_member_that_the_others_waited_for_is_in_the_history(tmp_path: Path) -> None:
    """Another one is started at once: what held that up is asked the next morning."""
    with (
        daemon(tmp_path / "data", "group.initial.rebalance.delay.ms=0") as one,
        ExitStack() as ends,
    ):
        address = f"127.0.0.1:{one.ready().port}"
        join = partial(ends.enter_context(connect_blocking(address)).join, "g", ["t"], {"t": 2})
        first = ends.enter_context(join())
        first.assignment(timeout_s=60)
        second = subprocess.Popen(
            [sys.executable, "-c", MEMBER, address], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        ends.enter_context(second)
        ends.callback(second.kill)
        first.wait_rebalance_needed(timeout_s=60)
        first.assignment(timeout_s=60)
        assert second.stdout is not None
        killed = second.stdout.readline().strip()
        second.kill()
        third = ends.enter_context(join())
        with ThreadPoolExecutor() as threads:
            joined = threads.submit(third.assignment, 60)
            first.wait_rebalance_needed(timeout_s=60)
            first.assignment(timeout_s=60)
            joined.result(60)
        row = at(one.port, "groups", "rebalances", "g", "--limit", "1").stdout.splitlines()[1]
        assert "member joined" in row
        assert killed in row
        late = one.events("group.rebalanced")[-1]["late"]
        removed = [(member["member_id"], member["phase"]) for member in late if member["removed"]]
        assert removed == [(killed, "join")]


def on_a_terminal(answer: str, *arguments: str) -> tuple[int, str]:
    """Run a command where somebody types *answer*; return its status and what was to be seen."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "coordinator", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    seen = b""
    try:
        while data := os.read(ours, 65_536):
            seen += data
    except OSError:  # Linux says so where the other end was closed.
        pass
    os.close(ours)
    return process.wait(60), seen.decode()


def test_a_person_on_a_terminal_is_asked_and_a_hostile_name_is_only_a_name(tmp_path: Path) -> None:
    """With a real terminal, which is what rich and the question look at."""
    with daemon(tmp_path / "data") as one:
        where = ("--at", f"127.0.0.1:{one.ready().port}")
        names = ("[bold]x[/bold]", "\u202eevil", "g")
        for name in names:
            reset = ("groups", "reset-offsets", name, "--topic", "t:0", "--to-offset", "1")
            assert run_cli(*reset, *where, "--yes").returncode == 0
        status, seen = on_a_terminal("n\n", "groups", "delete", *names, *where)
        assert status == 3
        assert "Delete 3 groups and what was committed there? [y/N]" in seen
        assert "[bold]x[/bold]" in seen
        assert "\\u202eevil" in seen
        assert "\u202e" not in seen
        status, seen = on_a_terminal("y\n", "groups", "delete", "--all-groups", *where)
        assert status == 0
        assert "g: deleted" in seen
        assert run_cli("groups", "list", *where).stdout.count("\n") == 1
        assert one.stop() == 0


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), ("groups", "--help"), ("ping",)]
)
def test_a_command_imports_only_what_it_needs(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A health check runs every few seconds, for as long as a container lives."""
    code = (
        "import sys\nfrom coordinator.cli.main import main\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )

    def imported(*words: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return set(done.stderr.split())

    if arguments == ("ping",):
        with daemon(tmp_path / "data") as one:
            found = imported(*arguments, "--at", f"127.0.0.1:{one.port}")
            assert one.stop() == 0
        assert "coordinator.cli.groups" not in found
    else:
        found = imported(*arguments)

    heavy = {"trio", "structlog", "re2", "rich", "msgpack", "asyncio", "difflib"}
    server = {f"coordinator.{part}" for part in ("server", "runtime", "group", "log")}
    assert found & (heavy | server) == set()
    assert "click" in found
