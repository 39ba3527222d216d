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


def test_a_statfs_of_the_kernel_that_fails_ends_nothing(tmp_path: Path) -> None:
    """Injected by strace, from the start on: the room is told as not seen, and commits go on."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    inject = "inject=statfs,fstatfs:error=ESTALE:when=1..12"
    traced = [strace, "-D", "-f", "-q", "-o", "/dev/null", "-e", "trace=statfs,fstatfs"]
    with daemon(tmp_path, prefix=[*traced, "-e", inject]) as one:
        until(lambda: one.events("ready") or one.process.poll() is not None, "start or end")
        if one.stray and "ptrace" in one.stray[0].lower():
            pytest.skip(f"no process may be traced here: {one.stray[0]}")
        with one.connect() as connection:
            assert commit(connection, 1) == 0
            until(lambda: one.events("health.recovered"), "a look that succeeds")
            assert commit(connection, 2) == 0
        assert len(one.events("health.problem")) == 1
        assert "can't be seen" in one.events("health.problem")[0]["problem"]
        assert one.stop() == 0


def test_a_manifest_for_which_no_descriptor_is_left_waits_for_one(tmp_path: Path) -> None:
    """Injected by strace, a few times in a row: at the start and at rolls, and commits go on."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    inject = "inject=openat:error=EMFILE:when=1..5"
    paths = ("-P", str(tmp_path / "manifest.tmp"))
    traced = [strace, "-D", "-f", "-q", "-o", "/dev/null", *paths, "-e", "trace=openat"]
    with daemon(tmp_path, SMALL_SEGMENTS, prefix=[*traced, "-e", inject]) as one:
        until(lambda: one.events("ready") or one.process.poll() is not None, "start or end")
        if one.stray and "ptrace" in one.stray[0].lower():
            pytest.skip(f"no process may be traced here: {one.stray[0]}")
        with one.connect() as connection:
            for offset in range(100):
                assert commit(connection, offset) == 0
        assert one.stop() == 0
    assert len([*tmp_path.glob("*.segment")]) > 1


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


@pytest.mark.parametrize("settings", [(), (SMALL_SEGMENTS,)])
def test_a_disk_that_is_filled_in_one_step_ends_nothing(
    small_disk: Path, settings: tuple[str, ...]
) -> None:
    """The flush or roll that finds no room gets that of the ballast; then commits are refused."""
    with daemon(small_disk / "data", "storage.reserve.bytes=1000000", *settings) as one:
        with one.ready().connect() as connection:
            assert commit(connection, 0) == 0
            for _ in range(3):
                last = fetched(connection)
                filler = fill(small_disk)
                error = 0
                while not error:
                    last += 1
                    error = commit(connection, last)
                assert error == ErrorCode.STORAGE_FULL
                assert fetched(connection) == last - 1
                filler.unlink()
                until(lambda: commit(connection, fetched(connection) + 1) == 0, "room")
                until((small_disk / "data" / "ballast").exists, "ballast")
        assert one.stop() == 0


def test_no_room_for_a_write_ends_it_and_the_restart_has_what_was_acknowledged(
    small_disk: Path,
) -> None:
    """ENOSPC of the write itself, with the reserve set to 0: status 74.

    A compaction could make room for ever.
    """
    data = small_disk / "data"
    settings = SMALL_SEGMENTS, "log.cleaner.enable=false"
    with daemon(data, *settings) as one, one.ready().connect() as connection:
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


def test_no_start_that_is_killed_on_a_full_disk_leaves_a_folder_that_is_refused(
    small_disk: Path,
) -> None:
    """Killed by strace at each call that changes a name or syncs: the mark is never missing."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    data = small_disk / "data"
    with daemon(data) as one, one.ready().connect() as connection:
        assert commit(connection, 7) == 0
        assert one.stop() == 0  # A clean stop cuts off the zeros, which would be room.
    (data / "ballast").unlink()
    fill(small_disk)
    origin = shutil.copytree(data, small_disk.parent / "origin")
    paths = (data, *(data / name for name in ("meta.tmp", "durable", "durable.tmp", "clean")))
    options = ["-D", "-f", "-q", "-o", "/dev/null", *(w for p in paths for w in ("-P", str(p)))]
    kills = noted = 0
    for call in ("unlink", "rename", "fsync"):
        for when in range(1, 100):
            shutil.rmtree(data)
            shutil.copytree(origin, data)
            inject = f"inject={call}:signal=SIGKILL:when={when}"
            with daemon(
                data, prefix=[strace, *options, "-e", f"trace={call}", "-e", inject]
            ) as one:
                until(lambda: one.events("ready") or one.process.poll() is not None, "an end")
                if one.stray and "ptrace" in one.stray[0].lower():
                    pytest.skip(f"no process may be traced here: {one.stray[0]}")
                assert not one.events("refused")
                if one.events("ready"):
                    break
            kills += 1
            noted += any(data.glob("durable-*"))
            with daemon(data) as again, again.ready().connect() as connection:
                assert fetched(connection) == 7
            assert ((data / "durable").stat().st_size, [*data.glob("durable-*")]) == (24, [])
    assert (kills > 10, noted > 3) == (True, True)


def test_a_damaged_mark_is_refused_until_a_repair_accepts_the_loss(tmp_path: Path) -> None:
    """The end of the log was cut off with it: acknowledged offsets would be gone unnoticed."""
    data = tmp_path / "data"
    with daemon(data) as one, one.ready().connect() as connection:
        for offset in (1, 2):
            assert commit(connection, offset) == 0
        one.process.kill()
    (newest,) = data.glob("*.segment")
    content = newest.read_bytes().rstrip(b"\0")
    newest.write_bytes(content[:-10])
    (data / "durable").write_bytes(b"?" * 12)
    with daemon(data) as refused:
        reason = refused.wait_for("refused")["reason"]
        assert (refused.wait(), "durable" in reason, "log repair" in reason) == (65, True, True)
    verified = run_cli("log", "verify", "--data-dir", str(data))
    assert (verified.returncode, "durable" in verified.stderr) == (65, True)
    asked = run_cli("log", "repair", "--data-dir", str(data))
    assert (asked.returncode, "may have been behind this" in asked.stdout) == (65, True)
    assert run_cli("log", "repair", "--accept-loss", "--data-dir", str(data)).returncode == 0
    with daemon(data) as again, again.ready().connect() as connection:
        assert fetched(connection) == 1


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
