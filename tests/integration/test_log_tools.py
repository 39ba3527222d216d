"""A damaged folder in the hands of an operator: refused, looked at, repaired, served again."""

import json
import subprocess
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages import (
    GroupFetch,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    SyncGroupRequest,
    TopicCommit,
)
from tests.integration.daemon import Connection, daemon, run_cli

pytestmark = pytest.mark.integration

EXIT_CORRUPT = 65
EXIT_REFUSED = 78
SETTINGS = (
    "offsets.topic.segment.bytes=4096",
    "offsets.topic.num.partitions=4",
    "group.initial.rebalance.delay.ms=0",
    # The tests count segments, so none may be compacted away meanwhile.
    "log.cleaner.enable=false",
)
GROUPS = [f"group-{number}" for number in range(10)]
OFFSETS = 20


def commit_all(connection: Connection) -> None:
    """Commit all offsets of all groups, one after the other."""
    for offset in range(OFFSETS):
        for group_id in GROUPS:
            topic = TopicCommit("t", (PartitionCommit(0, offset, -1, "", None),))
            answer = connection.ask(OffsetCommitRequest(group_id, -1, "", None, (topic,)))
            assert isinstance(answer, OffsetCommitResponse)
            assert answer.error == 0


def fetched(connection: Connection) -> dict[str, int]:
    """Return the committed offset of each group that has one."""
    wanted = tuple(GroupFetch(group_id, None) for group_id in GROUPS)
    answer = connection.ask(OffsetFetchRequest(wanted, False))
    assert isinstance(answer, OffsetFetchResponse)
    return {g.group_id: t.partitions[0].offset for g in answer.groups for t in g.topics}


def joined(connection: Connection, member_id: str = "") -> tuple[str, int]:
    """Join the group "members" alone; return the member id and the generation."""
    while True:
        protocols = (JoinProtocol("range", b""),)
        answer = connection.ask(
            JoinGroupRequest("members", 30_000, 30_000, member_id, None, "c", protocols, None)
        )
        assert isinstance(answer, JoinGroupResponse)
        member_id = answer.member_id
        if answer.error != ErrorCode.MEMBER_ID_REQUIRED:
            break
    assert answer.error == 0
    generation = answer.generation_id
    shares = (MemberAssignment(member_id, b"all"),)
    sync = SyncGroupRequest("members", generation, member_id, None, None, None, shares)
    connection.ask(sync)
    return member_id, generation


def made(path: Path, *, clean: bool) -> tuple[str, int]:
    """Fill a folder; return a member of it and its generation."""
    with daemon(path, *SETTINGS) as one:
        with one.ready().connect() as connection:
            member = joined(connection)
            commit_all(connection)
        if clean:
            assert one.stop() == 0
        else:
            one.kill()
    return member


def cli(command: str, path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run one of the tools."""
    return run_cli("log", command, "--data-dir", str(path), *options)


def segments(path: Path) -> list[Path]:
    """Return the segment files."""
    return sorted(path.glob("*.segment"))


def overwrite(file: Path, byte: int, count: int = 1) -> None:
    """Do what ``dd conv=notrunc`` does."""
    with file.open("r+b") as opened:
        opened.seek(byte)
        data = opened.read(count)
        opened.seek(byte)
        opened.write(bytes(value ^ 0xFF for value in data))


def refused(path: Path) -> str:
    """Start the daemon, and return why it doesn't."""
    with daemon(path, *SETTINGS) as one:
        assert one.wait() == EXIT_CORRUPT
        (event,) = [*one.events("refused"), *one.events("log.failed")]
        reason: str = event["reason"]
        return reason


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_folder_is_refused_and_repaired_and_served(
    tmp_path: Path, *, clean: bool
) -> None:
    """The whole story, with what an operator sees."""
    member_id, generation = made(tmp_path, clean=clean)
    assert len(segments(tmp_path)) > 2
    before = cli("dump", tmp_path, "--output", "json")
    assert before.returncode == 0
    entries = [json.loads(line) for line in before.stdout.splitlines()]
    harmed = segments(tmp_path)[1]
    overwrite(harmed, 200)
    original = harmed.read_bytes()
    reason = refused(tmp_path)
    assert harmed.name in reason

    verified = cli("verify", tmp_path)
    assert verified.returncode == EXIT_CORRUPT
    assert f"{harmed.name}, bytes " in verified.stdout
    assert "is lost" in verified.stdout
    assert "would refuse to start" in verified.stderr
    dry = cli("repair", tmp_path)
    assert dry.returncode == EXIT_CORRUPT
    assert "--accept-loss" in dry.stderr
    assert harmed.read_bytes() == original
    done = cli("repair", tmp_path, "--accept-loss")
    assert done.returncode == 0, done.stderr
    assert "Repaired" in done.stdout
    assert (tmp_path / "aside" / harmed.name).read_bytes() == original
    again = cli("verify", tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert "Nothing is wrong." in again.stdout

    kept = {(e["partition"], e["offset"]) for e in _dumped(tmp_path)}
    lost = [e for e in entries if (e["partition"], e["offset"]) not in kept]
    assert len(lost) == 1
    with daemon(tmp_path, *SETTINGS) as one, one.ready().connect() as connection:
        assert fetched(connection) == dict.fromkeys(GROUPS, OFFSETS - 1)
        beat = connection.ask(HeartbeatRequest("members", generation, member_id, None))
        assert isinstance(beat, HeartbeatResponse)
        assert beat.error == ErrorCode.REBALANCE_IN_PROGRESS
        _, newer = joined(connection, member_id)
        assert newer > generation + 1
        commit_all(connection)


def _dumped(path: Path) -> list[dict[str, object]]:
    done = cli("dump", path, "--output", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_killed_daemons_segment_that_was_emptied_is_not_served_as_empty(tmp_path: Path) -> None:
    """Without the marker of a clean stop, too: the mark knows how far it reached."""
    made(tmp_path, clean=False)
    newest = segments(tmp_path)[-1]
    newest.write_bytes(b"")
    assert "was on disk up to" in refused(tmp_path)
    assert cli("verify", tmp_path).returncode == EXIT_CORRUPT
    assert cli("repair", tmp_path, "--accept-loss").returncode == 0
    with daemon(tmp_path, *SETTINGS) as one, one.ready().connect() as connection:
        offsets = fetched(connection)
        assert offsets.keys() == set(GROUPS)
        assert min(offsets.values()) > 0


@pytest.mark.parametrize("name", ["manifest", "clean"])
def test_lost_state_files_are_made_anew(tmp_path: Path, name: str) -> None:
    """The segments have everything."""
    made(tmp_path, clean=True)
    overwrite(tmp_path / name, 10)
    assert name in refused(tmp_path)
    done = cli("repair", tmp_path, "--accept-loss")
    assert done.returncode == 0, done.stderr
    assert "Lost: nothing" in done.stdout
    with daemon(tmp_path, *SETTINGS) as one, one.ready().connect() as connection:
        assert fetched(connection) == dict.fromkeys(GROUPS, OFFSETS - 1)


def test_a_lost_meta_file_needs_what_it_said(tmp_path: Path) -> None:
    """A wrong number of partitions is noticed: groups lie where their names say."""
    made(tmp_path, clean=True)
    overwrite(tmp_path / "meta", 90)
    assert "meta" in refused(tmp_path)
    unknown = cli("repair", tmp_path, "--accept-loss")
    assert unknown.returncode == EXIT_REFUSED
    assert "--node-id, --partitions" in unknown.stderr
    wrong = cli("repair", tmp_path, "--accept-loss", "--node-id", "1", "--partitions", "7")
    assert wrong.returncode == EXIT_REFUSED
    assert "--partitions is wrong" in wrong.stderr
    done = cli("repair", tmp_path, "--accept-loss", "--node-id", "1", "--partitions", "4")
    assert done.returncode == 0, done.stderr
    with daemon(tmp_path, *SETTINGS) as one, one.ready().connect() as connection:
        assert fetched(connection) == dict.fromkeys(GROUPS, OFFSETS - 1)
        assert one.wait_for("listening")["leader_epoch"] > 25_000_000


def test_a_running_daemons_folder_is_not_touched(tmp_path: Path) -> None:
    """Each tool says that the daemon is to be stopped."""
    with daemon(tmp_path, *SETTINGS) as one:
        one.ready()
        for command in ("dump", "verify", "compact", "repair"):
            done = cli(command, tmp_path)
            assert (done.returncode, done.stdout) == (EXIT_REFUSED, "")
            assert "in use by another process" in done.stderr
        with one.connect() as connection:
            commit_all(connection)


def test_a_stopped_folder_is_compacted(tmp_path: Path) -> None:
    """What is left is what was live, and the daemon serves it."""
    made(tmp_path, clean=False)
    size = sum(file.stat().st_size for file in segments(tmp_path))
    done = cli("compact", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sum(file.stat().st_size for file in segments(tmp_path)) < size / 2
    assert cli("verify", tmp_path).returncode == 0
    with daemon(tmp_path, *SETTINGS) as one, one.ready().connect() as connection:
        assert fetched(connection) == dict.fromkeys(GROUPS, OFFSETS - 1)


def test_a_folder_that_is_none_is_not_made(tmp_path: Path) -> None:
    """A slip of the pen in --data-dir must leave nothing behind."""
    for command in ("dump", "verify", "compact", "repair"):
        done = cli(command, tmp_path / "typo")
        assert done.returncode == EXIT_REFUSED
        assert "isn't there" in done.stderr
    assert not (tmp_path / "typo").exists()
