"""Children of the demo: real processes, and none of them left behind."""

import os
import time
from pathlib import Path

import pytest

from demo.processes import Child, Children

pytestmark = pytest.mark.integration

# A child with a child of its own, as a Spark driver has its JVM.
PARENT = (
    "import json, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
    "print('not an event', flush=True)\n"
    "print(json.dumps({'event': 'up', 'child': child.pid}), flush=True)\n"
    "print('gone', input(), file=sys.stderr)\n"
    "sys.exit(3)\n"
)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[
            0
        ] in ("Z", "X")
    except OSError:
        return True


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process."""
    deadline_s = time.monotonic() + 60
    while not gone(pid):
        assert time.monotonic() < deadline_s, f"process {pid} is still there"
        time.sleep(0.01)


def wait_for_exit(child: Child) -> int:
    """Wait for the exit status of a child."""
    deadline_s = time.monotonic() + 60
    while (status := child.exit_status()) is None:
        assert time.monotonic() < deadline_s, "the child is still there"
        time.sleep(0.01)
    return status


def test_leaving_the_block_ends_children_and_grandchildren(tmp_path: Path) -> None:
    """An error in the demo must not leave a JVM behind."""

    def fail_with_children() -> None:
        with Children(tmp_path) as children:
            children.start("parent", ["-c", PARENT])
            line = children.lines.get(timeout=60)
            pids.append(line.fields["child"])
            raise RuntimeError("the demo fails")

    pids: list[int] = []
    with pytest.raises(RuntimeError, match="the demo fails"):
        fail_with_children()

    wait_until_gone(pids[0])


def test_a_child_that_ended_is_reported_and_its_own_children_are_ended(tmp_path: Path) -> None:
    """A driver may end while its JVM lives on."""
    with Children(tmp_path) as children:
        child = children.start("parent", ["-c", PARENT])
        line = children.lines.get(timeout=60)
        assert os.getpgid(line.fields["child"]) == child.pid

        assert child.exit_status() is None
        child.tell("bye")
        assert wait_for_exit(child) == 3
        assert not gone(line.fields["child"])
        assert child.error_tail() == "gone bye"

        child.close()
        wait_until_gone(line.fields["child"])
        assert child.exit_status() == 3


def test_killing_a_group_leaves_nobody_of_it(tmp_path: Path) -> None:
    """The demo's kill must take a driver with all that it started."""
    with Children(tmp_path) as children:
        child = children.start("parent", ["-c", PARENT])
        line = children.lines.get(timeout=60)
        child.kill_group()

        assert wait_for_exit(child) == -9
        wait_until_gone(line.fields["child"])


def test_the_daemon_ends_when_the_demo_itself_is_killed(tmp_path: Path) -> None:
    """SIGKILL runs no ``with`` block, and nobody else would ever end the daemon."""
    serve = "'coordinator', 'serve', '--listen', '127.0.0.1:0', '--data-dir'"
    demo = (
        "from pathlib import Path\n"
        "from demo.processes import Children\n"
        f"with Children(Path({str(tmp_path)!r})) as children:\n"
        f"    arguments = ['-m', 'demo.guarded', {serve}, {str(tmp_path / 'data')!r}]\n"
        "    daemon = children.start('daemon', arguments)\n"
        "    while children.lines.get(timeout=60).event != 'ready':\n"
        "        pass\n"
        '    print(\'{"event": "up", "child": %d}\' % daemon.pid, flush=True)\n'
        "    input()\n"
    )
    with Children(tmp_path) as children:
        child = children.start("demo", ["-c", demo])
        pid = children.lines.get(timeout=60).fields["child"]
        assert not gone(pid)

        child.kill_group()

        wait_until_gone(pid)
