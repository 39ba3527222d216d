"""The daemon as a service: SIGHUP, a rotated log, and what systemd is told."""

import json
import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from protocol.messages import RegisterTopicsRequest, RegisterTopicsResponse, TopicRegistration
from tests.deploy.support import DEPLOY, needs, run
from tests.integration.daemon import ALWAYS, Connection, ServiceManager, daemon, run_cli, until

pytestmark = pytest.mark.integration


def logged(path: Path, event: str) -> list[dict[str, object]]:
    """Return what a file has of *event*."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["event"] == event]


def test_a_hangup_opens_the_log_anew_and_takes_what_may_change(tmp_path: Path) -> None:
    """It is what logrotate sends each night, and whoever has edited the file."""
    path, config = tmp_path / "daemon.log", tmp_path / "coordinator.toml"
    config.write_text(f'"log.file" = {json.dumps(str(path))}\n', encoding="utf-8")
    settings = [f"--config={config}"]
    with daemon(tmp_path / "data", options=settings) as one:
        until(lambda: logged(path, "ready"), "ready in the file")
        port = logged(path, "listening")[0]["port"]
        path.rename(tmp_path / "old.log")
        with config.open("a", encoding="utf-8") as file:
            file.write('"metrics.max.series" = 9\n"group.max.size" = 500\n')
        one.process.send_signal(signal.SIGHUP)
        until(lambda: logged(path, "settings.reloaded"), "a reload")
        shown = run_cli(
            *("config", "show", "--changed", "--at", f"127.0.0.1:{port}", "--output", "json")
        )
        with config.open("a", encoding="utf-8") as file:
            file.write("nonsense\n")
        one.process.send_signal(signal.SIGHUP)
        until(lambda: logged(path, "settings.refused"), "a refusal")
        assert one.stop() == 0

    (told,) = logged(path, "settings.reloaded")
    assert (told["changed"], told["needs_restart"]) == (["metrics.max.series"], ["group.max.size"])
    in_force = {row["name"]: row["value"] for row in json.loads(shown.stdout)}
    assert in_force["metrics.max.series"] == "9"
    assert "group.max.size" not in in_force
    assert logged(path, "stopped")
    assert not logged(tmp_path / "old.log", "stopping")


def test_a_log_that_cannot_be_opened_refuses_the_start(tmp_path: Path) -> None:
    """A daemon that logs nowhere is one that nobody can ask."""
    refused = run_cli(
        *("serve", "--data-dir", str(tmp_path / "data")),
        *("--set", f"log.file={tmp_path / 'no' / 'daemon.log'}"),
    )

    assert refused.returncode == 78
    assert "No such file" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_systemd_is_told_from_the_start_to_the_end(tmp_path: Path) -> None:
    """It waits for READY, feeds others only then, and kills whoever feeds no watchdog."""
    with ServiceManager(tmp_path) as systemd:
        prefix = (*systemd.prefix, "WATCHDOG_USEC=200000")
        with daemon(tmp_path / "data", prefix=prefix) as one:
            systemd.hear("READY=1")
            systemd.hear("WATCHDOG=1")
            systemd.hear_reload_and_stop(one)
            assert one.events("settings.reloaded")[0]["changed"] == []


def test_systemd_names_the_folder_unless_something_else_does(tmp_path: Path) -> None:
    """Its unit fits one node with a folder, and a node of a cluster, which has none."""
    prefix = ("env", f"STATE_DIRECTORY={tmp_path / 'state'}")
    with daemon(None, *ALWAYS, prefix=prefix) as one:
        one.ready()
        assert one.stop() == 0
    with daemon(tmp_path / "data", prefix=prefix) as one:
        one.ready()
        assert (tmp_path / "data" / "meta").exists()
        assert one.stop() == 0
    with daemon(None, "cluster.zookeeper=127.0.0.1:1/gc", prefix=prefix) as one:
        assert "ZooKeeper can't be reached" in one.wait_for("health.problem")["problem"]
        assert one.stop() == 0

    assert (tmp_path / "state" / "meta").exists()


def test_a_hangup_while_the_daemon_starts_does_not_end_it(tmp_path: Path) -> None:
    """Logs are rotated whether somebody starts just then or not."""
    with daemon(tmp_path / "data") as one:
        until(lambda: ignores_hangups(one.process.pid), "a daemon that knows of the signal")
        one.process.send_signal(signal.SIGHUP)
        one.ready()
        assert one.stop() == 0


def test_a_standard_output_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    """The reader of the pipe may hang: a pager, a collector, a terminal that is halted."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDWR)
    into_pipe = ("sh", "-c", f'exec "$0" "$@" > {pipe}')
    try:
        with daemon(tmp_path / "data", prefix=into_pipe) as one:
            said = b""
            while b'"ready"' not in said:
                said += os.read(reading, 65_536)
            (port,) = re.findall(rb'"port": ([0-9]+)', said)
            with Connection(int(port)) as connection:
                for number in range(800):  # Some 2 KB of an event for each.
                    topics = [
                        TopicRegistration(f"{number}-{n}" + "x" * 150, 1, None) for n in range(10)
                    ]
                    answer = connection.ask(RegisterTopicsRequest(tuple(topics), False))
                    assert type(answer) is RegisterTopicsResponse
            shown = run_cli("health", "--at", f"127.0.0.1:{int(port)}", "--output", "json")
            assert json.loads(shown.stdout)["metrics"]["log_lines_dropped_total"] > 0
            assert one.stop() == 0
    finally:
        os.close(reading)


def ignores_hangups(pid: int) -> bool:
    """Say whether a process ignores or handles SIGHUP."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    masks = dict(line.split(":\t") for line in status if line.startswith("Sig"))
    taken = int(masks["SigIgn"], 16) | int(masks["SigCgt"], 16)
    return bool(taken & 1 << signal.SIGHUP - 1)


def allowed_by(word: str) -> set[str]:
    """Return the system calls that a word of SystemCallFilter stands for."""
    if not word.startswith("@"):
        return {word}
    listed = run(needs("systemd-analyze"), "syscall-filter", word).stdout.splitlines()[1:]
    words = [line.strip() for line in listed if not line.strip().startswith("#")]
    return {call for one in words if one for call in allowed_by(one)}


def test_the_unit_allows_every_system_call_that_the_daemon_makes(tmp_path: Path) -> None:
    """A call that its filter refuses would fail only where systemd runs it."""
    unit = (DEPLOY / "systemd/group-coordinator.service").read_text(encoding="utf-8")
    allowed: set[str] = set()
    for words in re.findall(r"^SystemCallFilter=(.*)$", unit, flags=re.MULTILINE):
        for word in words.removeprefix("~").split():
            if words.startswith("~"):
                allowed -= allowed_by(word)
            else:
                allowed |= allowed_by(word)
    trace = tmp_path / "trace"
    # With -D the tracer is the grandchild, and the daemon the child.
    tracer = (needs("strace"), "-D", "-f", "-qq", "-e", "signal=none", "-o", str(trace))
    http = "http.listeners=127.0.0.1:0"
    with daemon(tmp_path / "data", http, f"log.file={tmp_path / 'log'}", prefix=tracer) as one:
        until(lambda: logged(tmp_path / "log", "ready"), "ready in the file")
        at = f"127.0.0.1:{logged(tmp_path / 'log', 'listening')[0]['port']}"
        page = logged(tmp_path / "log", "http.listening")[0]["port"]
        for path in ("", "metrics", "readyz", "api/v1/groups"):
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/{path}", timeout=60) as answer:
                assert answer.status == 200
        assert run_cli("topics", "register", "t", "1", "--at", at).returncode == 0
        assert run_cli("compact", "--at", at).returncode == 0
        one.process.send_signal(signal.SIGHUP)
        until(lambda: logged(tmp_path / "log", "settings.reloaded"), "a reload")
        assert one.stop() == 0
    until(lambda: "exit_group(0)" in trace.read_text(errors="replace"), "the end of the trace")
    made = set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(errors="replace"), re.MULTILINE))

    assert {"fdatasync", "epoll_wait", "setpriority"} <= made
    assert sorted(made - allowed) == []
