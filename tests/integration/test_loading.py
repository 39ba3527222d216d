"""Loading in the real daemon: requests while it goes on, partitions alone, and how it is."""

import json
import threading
import time
from pathlib import Path

import pytest

from coordinator.log.directory import OsDirectory
from coordinator.log.format import Entry
from coordinator.log.journal import Journal
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.group_ids import offsets_partition
from tests.integration.daemon import Connection, Daemon, daemon, run_cli, until

pytestmark = pytest.mark.integration

PARTITIONS = 4
SETTING = f"offsets.topic.num.partitions={PARTITIONS}"
# Generous: what the figure really is, the bench says.
ANSWER_S = 5.0


def write_log(folder: Path, *, groups: int, offsets: int) -> int:
    """Write a folder with so many offsets of each group; return the offsets."""
    folder.mkdir()
    journal = Journal(
        OsDirectory(folder),
        num_partitions=PARTITIONS,
        segment_bytes=1 << 20,
        node_id=1,
        new_cluster_id=lambda: "A" * 22,
        new_secret=lambda: bytes(16),
    )
    for number in range(groups):
        group_id = f"g{number}"
        value = (7, -1, "", 1_700_000_000_000, -1)
        entries = [Entry(1, 0, group_id, ("t", p), value) for p in range(offsets)]
        journal.append(offsets_partition(group_id, PARTITIONS), entries, 1)
        if number % 20 == 19:
            flush = journal.take_flush()
            assert flush is not None
            journal.write_flush(flush)
    journal.close(clean=True)
    return groups * offsets


def error_of_commit(connection: Connection, group_id: str, offset: int) -> int:
    """Commit, and return the error."""
    topics = (m.TopicCommit("new", (m.PartitionCommit(0, offset, -1, "", None),)),)
    answer = connection.ask(m.OffsetCommitRequest(group_id, -1, "", None, topics))
    assert type(answer) is m.OffsetCommitResponse
    return answer.error


def described(connection: Connection) -> m.DescribeNodeResponse:
    """Return how the node is."""
    answer = connection.ask(m.DescribeNodeRequest())
    assert type(answer) is m.DescribeNodeResponse
    return answer


def health(one: Daemon, *options: str) -> tuple[int, str]:
    """Return exit status and output of the command."""
    done = run_cli("health", "--at", f"127.0.0.1:{one.port}", *options)
    return done.returncode, done.stdout


def test_a_daemon_answers_while_it_loads_and_says_how_far_it_is(tmp_path: Path) -> None:
    """14 for the groups, progress for whoever asks, and then everything is there."""
    entries = write_log(tmp_path / "data", groups=2_000, offsets=100)
    with daemon(tmp_path / "data", SETTING) as one, one.connect() as connection:
        states = []
        errors = []
        while not one.events("ready"):
            started = time.monotonic()
            states.append(described(connection))
            errors.append(error_of_commit(connection, "g0", 1))
            assert time.monotonic() - started < ANSWER_S
        assert set(errors) <= {0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        loaded = [sum(p.loaded_offset for p in s.partitions) for s in states]
        assert loaded == sorted(loaded)
        assert one.events("ready")[0]["entries"] == entries

        status, told = health(one, "--output", "json")
        assert status == 0
        metrics = json.loads(told)["metrics"]
        assert metrics["groups"] == 2_000
        assert metrics["offsets"] - entries in {0, 1}
        assert metrics["connections"] == 2
        assert metrics["process_cpu_ms"] > 0
        assert one.stop() == 0
        assert run_cli("health", "--at", f"127.0.0.1:{one.port}").returncode == 69


class Commits:
    """Commits to one partition without end, and what was wrong with the answers."""

    moving = -1  # The partition that is being loaded again.
    ended = threading.Event()

    def __init__(self, one: Daemon, partition: int, group_id: str) -> None:
        self.partition = partition
        self.group_id = group_id
        self.acknowledged = 0
        self.problems: list[str] = []
        self._daemon = one
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        offset = 0
        with self._daemon.connect() as connection:
            while not Commits.ended.is_set():
                offset += 1
                before, started = Commits.moving, time.monotonic()
                error = error_of_commit(connection, self.group_id, offset)
                may_fail = self.partition in (before, Commits.moving)
                if error == 0:
                    self.acknowledged = offset
                elif error not in {14, 16, 1000} or not may_fail:
                    self.problems.append(f"{error} while {before} is loaded")
                if time.monotonic() - started > ANSWER_S:
                    self.problems.append("a late answer")

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def wait_for_another(self) -> None:
        """Wait for one more commit."""
        acknowledged = self.acknowledged
        until(lambda: self.acknowledged > acknowledged, "a commit")


def test_partitions_are_loaded_alone_while_the_others_are_served(tmp_path: Path) -> None:
    """No commit is lost, and those of other partitions are answered as ever."""
    write_log(tmp_path / "data", groups=400, offsets=100)
    groups: dict[int, str] = {}
    for number in range(100):
        groups.setdefault(offsets_partition(f"g{number}", PARTITIONS), f"g{number}")

    with daemon(tmp_path / "data", SETTING, "partition.reload.min.interval.ms=0") as one:
        one.ready()
        commits = {p: Commits(one, p, group_id) for p, group_id in groups.items()}
        with one.connect() as operator:
            for number in range(20):
                Commits.moving = number % PARTITIONS
                answer = operator.ask(m.ReloadPartitionRequest(Commits.moving))
                assert type(answer) is m.ReloadPartitionResponse
                assert answer.error == 0
                assert answer.entries > 0
                commits[Commits.moving].wait_for_another()
        Commits.ended.set()
        for each in commits.values():
            each.join()
            assert not each.problems
        assert run_cli("reload", "1", "--at", f"127.0.0.1:{one.port}").stdout.startswith("ok: ")
        with one.connect() as connection:
            for each in commits.values():
                fetch = m.OffsetFetchRequest((m.GroupFetch(each.group_id, None),), False)
                found = connection.ask(fetch)
                assert type(found) is m.OffsetFetchResponse
                kept = {t.topic: t.partitions for t in found.groups[0].topics}
                assert len(kept["t"]) == 100
                assert kept["new"][0].offset >= each.acknowledged > 0
        assert one.stop() == 0
