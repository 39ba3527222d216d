"""`/readyz` and events of a real daemon whose disk, compaction or process fails."""

import http.client
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.daemon import Daemon, daemon, until
from tests.integration.test_compaction_processes import SETTINGS, made_log, the_child
from tests.integration.test_disk_faults import (
    SMALL_SEGMENTS,
    commit,
    fill,
    small_disk,
)
from tests.integration.test_http import http_port

pytestmark = pytest.mark.integration

__all__ = ["small_disk"]  # A fixture.

HTTP: Final = "http.listeners=127.0.0.1:0"
# Who asks every few seconds must see it the next time.
FLIPS_WITHIN_S: Final = 5.0


def asked(one: Daemon, path: str) -> tuple[int, Any]:
    """Return the status of an answer, and what it says."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port(one), timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def wrong_parts(one: Daemon) -> list[str]:
    """Return the parts that are not well; the status of the answer says the same."""
    status, told = asked(one, "/readyz")
    wrong = [check["part"] for check in told["checks"] if not check["ok"]]
    assert status == (503 if wrong else 200)
    return wrong


def flips_to(one: Daemon, *wrong: str) -> None:
    """Wait until just these parts are not well, which must not take long."""
    began_s = time.monotonic()
    until(lambda: wrong_parts(one) == list(wrong), f"{wrong} not to be well")
    assert time.monotonic() - began_s < FLIPS_WITHIN_S


def test_a_full_disk_is_told_and_its_room_too(small_disk: Path) -> None:
    """The one fault that an operator can mend without looking at the daemon."""
    with daemon(small_disk / "data", "storage.reserve.bytes=1000000", SMALL_SEGMENTS, HTTP) as one:
        one.ready()
        flips_to(one)
        filler = fill(small_disk, leave_bytes=500_000)
        flips_to(one, "storage")
        assert asked(one, "/readyz?exclude=storage")[0] == 200
        assert asked(one, "/livez")[0] == 200
        filler.unlink()
        flips_to(one)
        assert one.stop() == 0


def test_a_disk_that_hangs_is_told_while_it_does(tmp_path: Path) -> None:
    """Held up by strace for some seconds, longer than commits may wait."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    with daemon(tmp_path) as one:
        one.ready()
        assert one.stop() == 0
    inject = "inject=pwritev2:delay_enter=6000000:when=10"
    traced = [strace, "-D", "-f", "-q", "-o", "/dev/null", "-e", "trace=pwritev2", "-e", inject]
    with daemon(tmp_path, HTTP, "offsets.commit.timeout.ms=500", prefix=traced) as one:
        until(lambda: one.events("ready") or one.process.poll() is not None, "start or end")
        if one.stray and "ptrace" in one.stray[0].lower():
            pytest.skip(f"no process may be traced here: {one.stray[0]}")
        with one.connect() as connection:
            errors = [commit(connection, 1)]
            while not errors[-1]:
                errors.append(commit(connection, len(errors)))
        # The commit was given up, so the flush has taken too long already.
        assert wrong_parts(one) == ["disk"]
        assert asked(one, "/livez")[0] == 200
        until(lambda: wrong_parts(one) == [], "the disk to go on")
        assert one.stop() == 0


def test_a_compaction_that_was_killed_is_told_until_another_one_is_done(tmp_path: Path) -> None:
    """The log grows meanwhile; nothing else is wrong."""
    made_log(tmp_path)
    with daemon(tmp_path, *SETTINGS, HTTP) as one:
        one.ready()
        pid = the_child(one)
        assert wrong_parts(one) == []
        os.kill(pid, signal.SIGKILL)
        flips_to(one, "compaction")
        one.wait_for("compaction.finished")
        flips_to(one)
        assert one.stop() == 0


def test_a_browser_of_before_the_restart_begins_anew(tmp_path: Path) -> None:
    """What it followed is gone with the process."""
    last = ""
    for _ in range(2):
        with daemon(tmp_path, HTTP) as one:
            one.ready()
            stream = http.client.HTTPConnection("127.0.0.1", http_port(one), timeout=20)
            stream.request("GET", "/api/v1/events", headers={"Last-Event-ID": last})
            answer = stream.getresponse()
            head = [answer.readline().decode().strip() for _ in range(5)]
            stream.close()
            assert one.stop() == 0

        assert answer.headers["Content-Type"] == "text/event-stream"
        assert head[:2] == ["retry: 1000", ""]
        assert head[3] == "event: hello"
        assert head[2] != f"id: {last}"
        last = head[2].removeprefix("id: ")
