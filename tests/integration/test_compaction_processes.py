"""Compaction with real processes: the daemon, its child, and whoever ends them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Final

import pytest
import trio

from coordinator.log import compact_child
from coordinator.log.child import NICE
from coordinator.log.compaction import Job
from coordinator.log.directory import OsDirectory
from coordinator.log.format import Entry
from coordinator.log.journal import Journal
from coordinator.log.swap import plan
from coordinator.runtime.children import CompactionFailed
from coordinator.runtime.compactor import compact_in_child
from protocol.group_ids import offsets_partition
from protocol.messages import (
    GroupFetch,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    TopicCommit,
)
from tests.integration.daemon import ROOT, Connection, Daemon, daemon, run_cli, until

pytestmark = pytest.mark.integration

NUM_PARTITIONS: Final = 50
SEGMENT_BYTES: Final = 1024 * 1024
SETTINGS: Final = (f"offsets.topic.segment.bytes={SEGMENT_BYTES}",)
MANUAL: Final = "log.cleaner.enable=false"
GROUPS: Final = 50
KEYS: Final = 200
ROUNDS: Final = 8
LIVE_BYTES: Final = 450_000  # With the headers and the index.


def make_log(path: Path, *, rounds: int = ROUNDS, groups: int = GROUPS) -> Journal:
    """Write what takes a child a second to compact, all of it overwritten but the last round."""
    journal = Journal(
        OsDirectory(path),
        num_partitions=NUM_PARTITIONS,
        segment_bytes=SEGMENT_BYTES,
        node_id=1,
        new_cluster_id=lambda: "A" * 22,
        new_secret=lambda: bytes(16),
    )
    for offset in range(rounds):
        for number in range(groups):
            group = f"group-{number}"
            entries = [
                Entry(1, 0, group, ("t", key), (offset, -1, "", 1_700_000_000_000, -1))
                for key in range(KEYS)
            ]
            journal.append(offsets_partition(group, NUM_PARTITIONS), entries, 1_700_000_000_000)
        flush = journal.take_flush()
        assert flush is not None
        journal.write_flush(flush)
    return journal


def made_log(path: Path) -> None:
    """Write it and stop."""
    make_log(path).close(clean=True)


def children(one: Daemon) -> list[int]:
    """Return the processes that the daemon has started and that are still there."""
    pids: list[int] = []
    for task in Path(f"/proc/{one.process.pid}/task").iterdir():
        pids += map(int, (task / "children").read_text(encoding="ascii").split())
    return pids


def is_begun(pid: int) -> bool:
    """Say whether a child runs its own program: until then it holds all that its parent has open.

    Stopped before, it would also keep the daemon waiting for it, and the pipe that the test reads.
    """
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return compact_child.__name__.encode("ascii") in command.split(b"\0")


def the_child(one: Daemon) -> int:
    """Return the process that compacts, once it is there, and let it stand still."""
    until(lambda: any(map(is_begun, children(one))), "child")
    (pid,) = children(one)
    os.kill(pid, signal.SIGSTOP)
    return pid


def is_gone(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def all_are_there(connection: Connection, offset: int = ROUNDS - 1) -> bool:
    """Return whether every group has what it committed last."""
    for number in range(GROUPS):
        request = OffsetFetchRequest((GroupFetch(f"group-{number}", None),), False)
        answer = connection.ask(request)
        assert isinstance(answer, OffsetFetchResponse)
        found = [p.offset for g in answer.groups for t in g.topics for p in t.partitions]
        if found != [offset] * KEYS:
            return False
    return True


def commit_all(connection: Connection, offset: int) -> None:
    """Commit every key of every group."""
    partitions = tuple(PartitionCommit(key, offset, -1, "", None) for key in range(KEYS))
    for number in range(GROUPS):
        topics = (TopicCommit("t", partitions),)
        connection.ask(OffsetCommitRequest(f"group-{number}", -1, "", None, topics))


def size_of(folder: Path) -> int:
    """Return the size of all files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def assert_is_tidy(folder: Path) -> None:
    """Nothing is left that a start would have to remove or move aside."""
    assert list(folder.glob("*.tmp")) == []
    assert not (folder / "aside").exists()


def test_a_daemon_under_overwrites_keeps_its_log_small(tmp_path: Path) -> None:
    """By itself, and the next start finds everything."""
    with daemon(tmp_path, *SETTINGS) as one:
        one.ready()
        with one.connect() as connection:
            offsets = count()
            for offset in islice(offsets, 160):
                commit_all(connection, offset)

            def three_were_made() -> bool:
                # The slower they are, the more each of them takes in: so the load goes on.
                commit_all(connection, next(offsets))
                return len(one.events("compaction.finished")) >= 3

            until(three_were_made, "compactions")
            newest = next(offsets)
            commit_all(connection, newest)
            assert all_are_there(connection, newest)
            # The load came faster than this machine compacts; what is due is made up for.
            until(lambda: size_of(tmp_path) < 2 * LIVE_BYTES + SEGMENT_BYTES, "a small log")
        last = one.events("compaction.finished")[-1]
        assert last["live_entries"] >= GROUPS * KEYS
        assert one.events("health.problem") == []
        assert one.stop() == 0
    assert_is_tidy(tmp_path)
    with daemon(tmp_path, *SETTINGS) as again, again.ready().connect() as connection:
        assert all_are_there(connection, newest)


def test_the_command_compacts_a_running_daemon(tmp_path: Path) -> None:
    """And says what that has saved."""
    made_log(tmp_path)
    before = size_of(tmp_path)
    with daemon(tmp_path, *SETTINGS, MANUAL) as one:
        address = f"127.0.0.1:{one.ready().port}"
        done = run_cli("compact", "--at", address)

        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("removed ")
        assert size_of(tmp_path) < before / 3
        with one.connect() as connection:
            assert all_are_there(connection)
        assert one.stop() == 0
    assert_is_tidy(tmp_path)
    with daemon(tmp_path, *SETTINGS) as again, again.ready().connect() as connection:
        assert [line for line in again.lines if line["event"].startswith("log.")] == []
        assert all_are_there(connection)


def test_the_command_says_when_nobody_is_there() -> None:
    """As the other commands do."""
    done = run_cli("compact", "--at", "127.0.0.1:1", "--timeout", "2")

    assert done.returncode == 69


def test_a_killed_child_is_noticed_and_another_one_started(tmp_path: Path) -> None:
    """Health says so until one has done it."""
    made_log(tmp_path)
    with daemon(tmp_path, *SETTINGS) as one:
        one.ready()
        pid = the_child(one)
        os.kill(pid, signal.SIGKILL)
        failed = one.wait_for("compaction.failed")
        problem = one.wait_for("health.problem")
        with one.connect() as connection:
            assert all_are_there(connection)
        one.wait_for("compaction.finished")
        one.wait_for("health.recovered")

        assert failed["reason"] == "the compaction process was killed by signal 9"
        assert problem["part"] == "compaction"
        assert failed["retry_in_ms"] == 1_000
        with one.connect() as connection:
            assert all_are_there(connection)
        until(lambda: children(one) == [], "end of the child")
        assert one.stop() == 0
    assert_is_tidy(tmp_path)


def test_a_stop_takes_the_child_with_it(tmp_path: Path) -> None:
    """Cleanly, and without waiting for the compaction to end."""
    made_log(tmp_path)
    with daemon(tmp_path, *SETTINGS) as one:
        one.ready()
        pid = the_child(one)
        assert one.stop() == 0
        assert one.events("stopped")[0]["clean"] is True
        assert is_gone(pid)
    assert_is_tidy(tmp_path)
    with daemon(tmp_path, *SETTINGS) as again, again.ready().connect() as connection:
        assert all_are_there(connection)


def test_a_child_whose_daemon_was_killed_ends_by_itself(tmp_path: Path) -> None:
    """It must not write into the folder of the daemon that comes next."""
    made_log(tmp_path)
    with daemon(tmp_path, *SETTINGS) as one:
        one.ready()
        pid = the_child(one)
        one.kill()
        os.kill(pid, signal.SIGCONT)
        until(lambda: is_gone(pid), "end of the child")
    with daemon(tmp_path, *SETTINGS) as again, again.ready().connect() as connection:
        again.wait_for("compaction.finished")
        assert all_are_there(connection)
        assert again.stop() == 0
    assert_is_tidy(tmp_path)


def test_a_child_that_cannot_tell_its_result_removes_it(tmp_path: Path) -> None:
    """Its daemon ended in the last moment, and the next one has looked for such files already."""
    journal = make_log(tmp_path, rounds=1, groups=1)
    journal.want_roll()
    flush = journal.take_flush()
    assert flush is not None
    journal.write_flush(flush)
    job = job_of(journal)
    journal.close(clean=True)
    with child_with(tmp_path, job) as child:
        assert child.stdout is not None
        child.stdout.close()
        child.wait(60)

    assert child.returncode != 0
    assert_is_tidy(tmp_path)


def test_a_child_leaves_the_core_often_and_stays_an_ordinary_process(tmp_path: Path) -> None:
    """On one core, flushes wait for a thread of the kernel's, and that for the child.

    An idle child (SCHED_IDLE) held that thread up for as long as half a second.
    """
    journal = make_log(tmp_path)
    job = job_of(journal)
    journal.close(clean=True)
    with child_with(tmp_path, job) as child:
        assert child.stdout is not None
        child.stdout.readline()
        policy, nice = os.sched_getscheduler(child.pid), os.getpriority(os.PRIO_PROCESS, child.pid)
        *_, last = child.stdout
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)

    assert b"done" in last
    assert (policy, nice) == (os.SCHED_OTHER, NICE)
    # Each source is read twice at least: once for what is live, once to copy it.
    read_bytes = 2 * sum(segment.data_bytes or 0 for segment in job.segments)
    assert used.ru_nvcsw > read_bytes / 32_768


@contextmanager
def child_with(path: Path, job: Job) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a child that has been told its job."""
    with subprocess.Popen(
        [sys.executable, "-m", compact_child.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    ) as child:
        assert child.stdin is not None
        child.stdin.write(compact_child.encode_job(str(path), job))
        child.stdin.flush()
        yield child


def job_of(journal: Journal) -> Job:
    """Return the compaction of everything that is sealed."""
    job = plan(journal, 1, segment_bytes=SEGMENT_BYTES, drop_before_ms=0, leave_free_bytes=0)
    assert job is not None
    return job


def outcome(path: Path, job: Job) -> CompactionFailed:
    """Run a child that comes to nothing."""
    with pytest.raises(CompactionFailed) as failure:
        trio.run(compact_in_child, path, job, lambda _: None)
    return failure.value


def test_a_child_tells_damage_from_other_ends(tmp_path: Path) -> None:
    """The one is not tried again, the others are."""
    journal = make_log(tmp_path)
    job = job_of(journal)
    journal.close(clean=True)
    segment = tmp_path / job.segments[1].name
    good = segment.read_bytes()
    segment.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    damaged = outcome(tmp_path, job)

    assert damaged.is_damage
    assert segment.name in str(damaged)

    segment.unlink()
    missing = outcome(tmp_path, job)

    assert not missing.is_damage
    assert "disk failed" in str(missing)

    segment.write_bytes(good)
    full = outcome(tmp_path, job._replace(leave_free_bytes=1 << 60))

    assert not full.is_damage
    assert "too little room" in str(full)

    wrong = outcome(tmp_path, job._replace(prefix="compaction-1-2", segment_bytes="x"))  # type: ignore[arg-type]  # that is the point

    assert "ended with status 1 TypeError" in str(wrong)
