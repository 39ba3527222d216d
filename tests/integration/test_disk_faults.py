"""The real daemon on disks that fail, are full, or may not be written to."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages import (
    GroupFetch,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    TopicCommit,
)
from tests.integration.daemon import Connection, daemon, run_cli, until

pytestmark = pytest.mark.integration

EXIT_WRITE_FAILED = 74
EXIT_REFUSED = 78
DISK_BYTES = 4 * 1024 * 1024
SMALL_SEGMENTS = "offsets.topic.segment.bytes=4096"


def commit(connection: Connection, offset: int) -> int:
    """Commit t-0 of the group g; return the error."""
    topic = TopicCommit("t", (PartitionCommit(0, offset, -1, "", None),))
    answer = connection.ask(OffsetCommitRequest("g", -1, "", None, (topic,)))
    assert isinstance(answer, OffsetCommitResponse)
    return answer.error or answer.topics[0].partitions[0].error


def fetched(connection: Connection) -> int:
    """Return the committed offset, -1 for none."""
    answer = connection.ask(OffsetFetchRequest((GroupFetch("g", None),), False))
    assert isinstance(answer, OffsetFetchResponse)
    topics = answer.groups[0].topics
    return topics[0].partitions[0].offset if topics else -1


def committed_until_the_end(connection: Connection, first: int) -> int:
    """Commit ever higher offsets until the connection breaks; return the last acknowledged."""
    acknowledged = first - 1
    try:
        for offset in range(first, first + 20_000):
            assert commit(connection, offset) == 0
            acknowledged = offset
    except OSError:
        return acknowledged
    raise AssertionError("nothing failed")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", path],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def fill(path: Path, *, leave_bytes: int = 0) -> Path:
    """Make a file that takes all room of the disk but so much."""
    filler = path / "filler"
    status = os.statvfs(path)
    with filler.open("wb") as file:
        left = status.f_bavail * status.f_frsize - leave_bytes
        file.write(bytes(max(0, left)))
    return filler


@pytest.mark.parametrize(
    ("call", "when"), [("pwritev2", 5), ("pwritev2", 40), ("fdatasync", 3), ("fdatasync", 1)]
)
def test_a_failing_fsync_of_the_kernel_ends_it_with_74(
    tmp_path: Path, call: str, when: int
) -> None:
    """Injected by strace: of flushes, of a roll (the third fdatasync), or of the start."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    acknowledged = 0
    with daemon(tmp_path) as one, one.ready().connect() as connection:
        assert commit(connection, acknowledged) == 0
        assert one.stop() == 0
    inject = f"inject={call}:error=EIO:when={when}"
    traced = [strace, "-D", "-f", "-q", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject]
    with daemon(tmp_path, SMALL_SEGMENTS, prefix=traced) as one:
        until(
            lambda: one.events("ready") or one.process.poll() is not None,
            "start or end",
        )
        if one.process.poll() is None:
            with one.connect() as connection:
                acknowledged = committed_until_the_end(connection, 1)
        if one.stray and "ptrace" in one.stray[0].lower():
            pytest.skip(f"no process may be traced here: {one.stray[0]}")
        assert one.wait() == EXIT_WRITE_FAILED
        assert one.events("log.failed") or one.events("refused")
    assert acknowledged >= 3 or when == 1
    with daemon(tmp_path) as again, again.ready().connect() as connection:
        # What failed may be on the disk; what wasn't tried is not.
        assert fetched(connection) in {acknowledged, acknowledged + 1}
        assert commit(connection, 1_000_000) == 0


def test_a_disk_that_runs_full_refuses_commits_until_there_is_room(small_disk: Path) -> None:
    """Definitely not applied; reads go on, and nobody has to restart it."""
    data = small_disk / "data"
    with daemon(data, "storage.reserve.bytes=1000000", SMALL_SEGMENTS) as one:
        with one.ready().connect() as connection:
            assert commit(connection, 1) == 0
            filler = fill(small_disk, leave_bytes=500_000)
            until(lambda: one.events("storage.full"), "notice of the full disk")
            assert commit(connection, 2) == ErrorCode.STORAGE_FULL
            assert fetched(connection) == 1
            filler.unlink()
            until(lambda: one.events("storage.has_room"), "notice of the room")
            assert commit(connection, 3) == 0
            assert fetched(connection) == 3
        assert one.stop() == 0


def test_no_room_for_a_write_ends_it_and_the_restart_has_what_was_acknowledged(
    small_disk: Path,
) -> None:
    """ENOSPC of the write itself, with the reserve set to 0: status 74."""
    data = small_disk / "data"
    with daemon(data, SMALL_SEGMENTS) as one, one.ready().connect() as connection:
        assert commit(connection, 0) == 0
        filler = fill(small_disk)
        acknowledged = committed_until_the_end(connection, 1)
        assert one.wait() == EXIT_WRITE_FAILED
        assert "No space" in one.events("log.failed")[0]["reason"]
    for _ in range(3):
        # There is no room for the recovery either: it does without, and new data is refused.
        with daemon(data, SMALL_SEGMENTS, "storage.reserve.bytes=2000000") as still:
            with still.ready().connect() as connection:
                assert fetched(connection) == acknowledged
                assert commit(connection, acknowledged + 1) == ErrorCode.STORAGE_FULL
            still.process.kill()
    filler.unlink()
    with daemon(data, SMALL_SEGMENTS) as again, again.ready().connect() as connection:
        assert fetched(connection) == acknowledged
        assert commit(connection, acknowledged + 1) == 0


def test_a_read_only_folder_is_refused_and_can_be_verified(small_disk: Path) -> None:
    """A volume of a backup, or one that the kernel has remounted after an error."""
    data = small_disk / "data"
    with daemon(data) as one, one.ready().connect() as connection:
        assert commit(connection, 1) == 0
        assert one.stop() == 0
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with daemon(data) as refused:
        assert refused.wait() == EXIT_REFUSED
        assert "not readable and writable" in refused.wait_for("refused")["reason"]
    verified = run_cli("log", "verify", "--data-dir", str(data))

    assert (verified.returncode, verified.stderr) == (0, "")
    assert before == {path.name: path.read_bytes() for path in data.iterdir()}
    repaired = run_cli("log", "repair", "--accept-loss", "--data-dir", str(data))
    assert repaired.returncode == EXIT_REFUSED
