"""The daemon as an operator has it: a process, a folder, signals and exit statuses."""

import re
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from protocol.connection import REQUEST_HEADER
from protocol.messages import (
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CompactLogRequest,
    CompactLogResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupFetch,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    TopicCommit,
)
from tests import kill_loop
from tests.integration.daemon import Connection, Daemon, daemon, run_cli, until

pytestmark = pytest.mark.integration

EXIT_REFUSED = 78
EXIT_WRITE_FAILED = 74
OF_EPOCH_1 = Path(__file__).parents[1] / "fixtures" / "previous_release" / "clean"
HELLO = ApiVersionsRequest("test", "test", "1")


def commit(offset: int, group_id: str = "g") -> OffsetCommitRequest:
    """Return a commit without a member."""
    partitions = (PartitionCommit(0, offset, -1, "", None),)
    return OffsetCommitRequest(group_id, -1, "", None, (TopicCommit("t", partitions),))


def fetched(connection: Connection, group_id: str = "g") -> int:
    """Return the committed offset of t-0."""
    answer = connection.ask(OffsetFetchRequest((GroupFetch(group_id, None),), False))
    assert isinstance(answer, OffsetFetchResponse)
    offset: int = answer.groups[0].topics[0].partitions[0].offset
    return offset


def committed(connection: Connection, offset: int) -> bool:
    """Commit and say whether it was acknowledged."""
    answer = connection.ask(commit(offset))
    assert isinstance(answer, OffsetCommitResponse)
    return answer.error == 0


def test_it_says_where_it_listens_and_when_it_is_ready(tmp_path: Path) -> None:
    """Scripts wait for these lines, and port 0 is only told here."""
    with daemon(tmp_path / "made" / "by it") as one:
        listening = one.wait_for("listening")
        ready = one.wait_for("ready")

        assert listening["host"] == "127.0.0.1"
        assert listening["port"] > 0
        assert listening["leader_epoch"] >= 0
        assert ready["entries"] == 0
        with one.connect() as connection:
            hello = connection.ask(HELLO)
            assert isinstance(hello, ApiVersionsResponse)
            assert hello.cluster_id == listening["cluster_id"]
        assert one.stray == []


def test_ping_says_whether_it_is_there(tmp_path: Path) -> None:
    """A container's health check."""
    with daemon(tmp_path) as one:
        address = f"127.0.0.1:{one.ready().port}"
        there = run_cli("ping", "--at", address)
        assert (there.returncode, there.stdout) == (0, "ok\n")
        one.stop()
        gone = run_cli("ping", "--at", address)

        assert gone.returncode == 1
        assert address in gone.stderr


def test_sigterm_ends_it_cleanly(tmp_path: Path) -> None:
    """Status 0, everything on disk, and the next start has nothing to recover."""
    with daemon(tmp_path) as one:
        one.ready()
        with one.connect() as connection:
            assert committed(connection, 41)
            assert one.stop() == 0
            assert connection.closed_by_server()
        assert one.events("stopped")[0]["clean"] is True
    with daemon(tmp_path) as again:
        again.ready()
        assert [line for line in again.lines if line["event"].startswith("log.")] == []
        with again.connect() as connection:
            assert fetched(connection) == 41
            assert committed(connection, 42)


def test_who_joins_behind_a_long_leave_of_the_same_connection_stays(tmp_path: Path) -> None:
    """The LeaveGroup is decided a portion at a time, and took out who had joined behind it."""
    instances = (*(f"gone-{n}" for n in range(5_000)), "here")
    leaving = tuple(LeavingMember("", instance, None) for instance in instances)
    protocols = (JoinProtocol("range", b""),)
    join = JoinGroupRequest("g", 10_000, 60_000, "", "here", "consumer", protocols, None)
    with daemon(tmp_path, "group.initial.rebalance.delay.ms=0") as one:
        one.ready()
        with one.connect() as connection:
            assert committed(connection, 41)
            connection.send(LeaveGroupRequest("g", leaving))
            joined = connection.ask(join)
            described = connection.ask(DescribeGroupsRequest(("g",)))

    assert isinstance(joined, JoinGroupResponse)
    assert joined.error == 0
    assert isinstance(described, DescribeGroupsResponse)
    members = described.groups[0].members
    assert [member.group_instance_id for member in members] == ["here"]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_that_mean_something_to_other_daemons_end_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Whoever rotates logs sends one; it must not cut off the clients."""
    with daemon(tmp_path) as one:
        one.wait_for("listening")
        one.process.send_signal(number)
        one.ready()
        with one.connect() as connection:
            one.process.send_signal(number)
            assert committed(connection, 41)
            assert one.stop() == 0


def test_sigterm_under_load_loses_no_acknowledged_commit(tmp_path: Path) -> None:
    """What was acknowledged while it drained is there too."""
    acknowledged = -1
    with daemon(tmp_path) as one:
        one.ready()
        with one.connect() as connection:
            killer = threading.Timer(0.3, one.process.send_signal, [signal.SIGTERM])
            killer.start()
            try:
                for offset in range(1_000_000):
                    if not committed(connection, offset):
                        break
                    acknowledged = offset
            except OSError:
                pass
            killer.join()
        assert one.wait() == 0
    with daemon(tmp_path) as again:
        again.ready()
        with again.connect() as connection:
            assert fetched(connection) >= acknowledged >= 0


def test_a_second_process_on_the_folder_is_refused(tmp_path: Path) -> None:
    """Two writers would destroy the log."""
    with daemon(tmp_path) as one:
        one.ready()
        with daemon(tmp_path) as second:
            assert second.wait() == EXIT_REFUSED
            assert "in use" in second.wait_for("refused")["reason"]
        with one.connect() as connection:
            assert committed(connection, 1)


def test_who_lost_the_folder_to_a_second_process_acknowledges_nothing_more(tmp_path: Path) -> None:
    """The lock file was removed, by a cleaning script: both would acknowledge, one for nothing."""
    with daemon(tmp_path) as one:
        one.ready()
        with one.connect() as connection:
            assert committed(connection, 1)
            (tmp_path / "lock").unlink()
            with suppress(OSError):
                assert not committed(connection, 2)
        assert one.wait() == EXIT_WRITE_FAILED
        (failed,) = one.events("log.failed")
        assert "lock file" in failed["reason"]
        assert not one.events("stopped")


def test_a_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    """A disk in the wrong machine must not serve as if it were its own."""
    with daemon(tmp_path) as one:
        one.ready()
        one.stop()
    with daemon(tmp_path, "node.id=2") as other:
        assert other.wait() == EXIT_REFUSED
        assert "node" in other.wait_for("refused")["reason"]


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--set", "group.max.sise=5"], {}, ["group.max.sise"]),
        (["--set", "group.max.size=0"], {}, ["group.max.size", "between 1"]),
        (["--set", "group.max.size=many"], {}, ["group.max.size", "whole number"]),
        (["--listen", "0.0.0.0:0"], {}, ["wildcard", "advertised.listeners"]),
        (["--listen", "nowhere"], {}, ["host:port"]),
        (["--config", "missing.toml"], {}, ["missing.toml"]),
        ([], {"GROUP_COORDINATOR_GROUP_MAX_SISE": "5"}, ["GROUP_COORDINATOR_GROUP_MAX_SISE"]),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], words: list[str]
) -> None:
    """Status 78, one line that names the setting, and nothing made on disk."""
    folder = tmp_path / "data"
    done = run_cli("serve", "--data-dir", str(folder), *arguments, **environment)

    assert done.returncode == EXIT_REFUSED
    assert [word for word in words if word not in done.stderr] == []
    assert "Traceback" not in done.stderr
    assert not folder.exists()


def test_a_port_that_is_taken_ends_it(tmp_path: Path) -> None:
    """A restart by a supervisor may help, hence another status than 78."""
    with daemon(tmp_path / "a") as one:
        address = f"127.0.0.1:{one.ready().port}"
        done = run_cli("serve", "--data-dir", str(tmp_path / "b"), "--listen", address)

        assert done.returncode == 75
        assert "listen" in done.stdout
        assert not (tmp_path / "b").exists()


def test_a_paused_process_evicts_nobody_and_goes_on(tmp_path: Path) -> None:
    """SIGSTOP stands for a machine that swaps, or a suspended laptop."""
    with daemon(tmp_path) as one:
        one.ready()
        with one.connect() as connection:
            assert committed(connection, 1)
            one.process.send_signal(signal.SIGSTOP)
            sent = connection.send(commit(2))
            one.process.send_signal(signal.SIGCONT)
            assert sent == 1
            assert committed(connection, 3)


# The log has one line per address and second: theirs is not hidden by those who never read.
_IDLER: Final = "127.0.0.2"


def slow_loris(port: int, stop: threading.Event) -> None:
    """Send a large frame a byte at a time."""
    connection = Connection(port, source=_IDLER)
    frame = REQUEST_HEADER.pack(100_000, ApiKey.HEARTBEAT, 0, 1) + bytes(100)
    try:
        for byte in frame:
            connection.socket.send(bytes([byte]))
            if stop.wait(0.05):
                break
    except OSError:
        pass
    finally:
        connection.close()


def test_a_good_client_is_served_beside_slow_and_silent_ones(tmp_path: Path) -> None:
    """Test 49: half-sent frames and answers nobody reads cost the others nothing."""
    settings = (
        "request.read.timeout.ms=1000",
        "first.request.timeout.ms=1000",
        "send.timeout.ms=1000",
        "send.buffer.max.bytes=65536",
    )
    stop = threading.Event()
    with daemon(tmp_path, *settings) as one:
        port = one.ready().port
        at_rest = sockets_of(one)
        with one.connect() as setup:
            for number in range(500):
                setup.ask(commit(1, group_id=f"group-{number:04}" + "x" * 200))
        until(lambda: sockets_of(one) == at_rest, "end of the first connection")
        lorises = [threading.Thread(target=slow_loris, args=(port, stop)) for _ in range(20)]
        silent = [Connection(port, source=_IDLER) for _ in range(20)]
        never_read = [Connection(port) for _ in range(5)]
        for thread in lorises:
            thread.start()
        for connection in never_read:
            connection.socket.setblocking(False)
            _fill(connection)
        took_s = []
        with one.connect() as good:
            for offset in range(200):
                began = time.perf_counter()
                assert committed(good, offset)
                took_s.append(time.perf_counter() - began)
        # Nobody but the server ends these.
        until(lambda: sockets_of(one) == at_rest, "end of the bad connections")
        for connection in [*silent, *never_read]:
            connection.close()
        stop.set()
        for thread in lorises:
            thread.join()

        assert sorted(took_s)[len(took_s) // 2] < 0.5
        reasons = {
            line["reason"] for line in one.events("connection.closed") if line["peer"] == _IDLER
        }
        assert reasons & {"it is idle", "it stopped in the middle of a request"}
        with one.connect() as good:
            assert committed(good, 1_000)


def sockets_of(one: Daemon) -> int:
    """Return how many sockets the process has, trio's own included."""
    number = 0
    for link in Path(f"/proc/{one.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # Closed since it was listed.
            number += link.readlink().name.startswith("socket:")
    return number


def _fill(connection: Connection) -> None:
    """Ask for large answers until the server reads no more."""
    _, frame = connection._protocol.send(ListGroupsRequest((), ()))
    try:
        for _ in range(2_000):
            connection.socket.send(frame)
    except OSError:
        pass


def test_it_lives_on_few_descriptors(tmp_path: Path) -> None:
    """Test 51: connections over what the limit allows are closed, and the log keeps its own."""
    with daemon(tmp_path, limit="--nofile=64") as one:
        port = one.ready().port
        many = [Connection(port) for _ in range(80)]
        alive = 0
        for connection in many:
            try:
                connection.ask(HELLO)
                alive += 1
            except OSError:
                pass
        assert 0 < alive <= 64 - 32
        for connection in many:
            connection.close()

        def served() -> bool:
            try:
                with Connection(port) as connection:
                    return committed(connection, 5)
            except OSError:
                return False

        until(served, "room for a connection")


def test_too_few_descriptors_refuse_the_start_and_one_more_serves(tmp_path: Path) -> None:
    """A limit that would end it at the first roll, or with no traceback, is said at once."""
    with daemon(tmp_path / "data", limit="--nofile=12") as refused:
        assert refused.wait() == EXIT_REFUSED
    (said,) = refused.stray
    assert "this process may open 12 files (ulimit -n)" in said
    assert not (tmp_path / "data").exists()

    (least,) = re.findall(r"so (\d+) at least", said)
    segments = "offsets.topic.segment.bytes=4096"
    with daemon(tmp_path / "data", segments, limit=f"--nofile={least}") as one:
        one.ready()
        with one.connect() as connection:
            others = [one.connect() for _ in range(40)]
            one.wait_for("connection.refused")
            for offset in range(100):
                assert committed(connection, offset)
            done = connection.ask(CompactLogRequest())
            assert isinstance(done, CompactLogResponse)
            assert done.error == 0
            for other in others:
                other.close()
        assert one.events("accept.paused") == []
        assert one.stop() == 0


def test_the_log_rolls_while_there_is_no_room_for_a_connection(tmp_path: Path) -> None:
    """Connections that take all descriptors must not take the log's, which would end it with 74."""
    settings = "offsets.topic.segment.bytes=4096", "max.connections=1000"
    with daemon(tmp_path, *settings, limit="--nofile=64") as one:
        port = one.ready().port
        with one.connect() as first:
            assert committed(first, 0)
            others = [Connection(port) for _ in range(80)]
            one.wait_for("connection.refused")
            for offset in range(1, 100):
                assert committed(first, offset)
            assert len(list(tmp_path.glob("*.segment"))) > 1
            assert one.events("accept.paused") == []
            for other in others:
                other.close()
        assert one.stop() == 0


def test_a_write_that_fails_ends_it_with_74(tmp_path: Path) -> None:
    """Row 40 with a real kernel: files may not grow past 64 KiB, and every write there is EFBIG."""
    acknowledged = -1
    with daemon(tmp_path, limit="--fsize=65536") as one:
        one.ready()
        with one.connect() as connection:
            try:
                for offset in range(10_000):
                    assert committed(connection, offset)
                    acknowledged = offset
            except OSError:
                pass
        assert one.wait() == EXIT_WRITE_FAILED
        assert one.events("log.failed")
    assert acknowledged > 0
    with daemon(tmp_path) as again:
        again.ready()
        with again.connect() as connection:
            assert fetched(connection) in {acknowledged, acknowledged + 1}


def test_nothing_acknowledged_is_lost_by_kills_under_load(tmp_path: Path) -> None:
    """The short version of `python -m tests.kill_loop`."""
    assert "none lost" in kill_loop.run(tmp_path / "data", cycles=4)


def test_the_loop_would_notice_a_loss(tmp_path: Path) -> None:
    """A check that can't fail proves nothing."""
    committer = kill_loop.Committer(0)
    with daemon(tmp_path) as one:
        one.ready()
        with one.connect() as connection:
            committer.sent = committer.acknowledged = 3
            with pytest.raises(kill_loop.Violation, match="acknowledged"):
                committer.check(connection)
    joiner = kill_loop.Joiner()
    joiner._note(5)
    with pytest.raises(kill_loop.Violation, match="generation 5"):
        joiner._note(5)


def test_settings_are_printed() -> None:
    """An operator looks up a default here."""
    done = run_cli("settings")

    assert done.returncode == 0
    assert "group.max.size = 10000" in done.stdout


def test_help_names_the_commands() -> None:
    """The first thing anybody tries."""
    done = run_cli("--help")

    assert done.returncode == 0
    assert "serve" in done.stdout
    assert "ping" in done.stdout


def test_a_process_that_is_killed_restarts_with_a_higher_epoch(tmp_path: Path) -> None:
    """Clients refuse answers of a lower one."""
    epochs = []
    for _ in range(3):
        one = Daemon(tmp_path).ready()
        epochs.append(one.wait_for("listening")["leader_epoch"])
        one.kill()

    assert epochs == sorted(set(epochs))


def test_a_restored_folder_a_copy_and_an_empty_one_begin_at_the_minutes_of_the_clock(
    tmp_path: Path,
) -> None:
    """Epochs begin above all that was announced before; nothing has to tell the folders apart."""
    folders = [tmp_path / name for name in ("restored", "copy", "empty")]
    for folder in folders[:2]:
        shutil.copytree(OF_EPOCH_1, folder)
    for folder in folders:
        minutes = int(time.time() // 60)
        with daemon(folder, "offsets.topic.num.partitions=4") as one:
            epoch = one.ready().wait_for("listening")["leader_epoch"]
        assert minutes <= epoch <= int(time.time() // 60)
