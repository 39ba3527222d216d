"""Kill the daemon under load again and again; no acknowledged commit is lost, no generation reused.

``python -m tests.kill_loop --cycles 50``
"""

import argparse
import random
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from protocol.errors import ErrorCode
from protocol.messages import (
    GroupFetch,
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
from tests.integration.daemon import Connection, Daemon

COMMITTERS: Final = 6
PARTITIONS: Final = 3
SETTINGS: Final = (
    "offsets.topic.num.partitions=4",
    "group.initial.rebalance.delay.ms=0",
    # Small, so that kills also hit the moments when a segment is sealed, or the log compacted.
    "offsets.topic.segment.bytes=8192",
)


class Violation(Exception):
    """The daemon broke a promise."""


class Committer:
    """Commits ever higher offsets of one group and remembers what was acknowledged."""

    def __init__(self, number: int) -> None:
        self.group_id = f"group-{number}"
        self.sent = -1
        self.acknowledged = -1
        self.commits = 0

    def run(self, connection: Connection, stop: threading.Event) -> None:
        """Commit until the connection breaks. Raises OSError."""
        while not stop.is_set():
            self.sent += 1
            partitions = tuple(
                PartitionCommit(p, self.sent, -1, "", None) for p in range(PARTITIONS)
            )
            commit = OffsetCommitRequest(
                self.group_id, -1, "", None, (TopicCommit("t", partitions),)
            )
            answer = connection.ask(commit)
            if not isinstance(answer, OffsetCommitResponse) or answer.error != 0:
                raise Violation(f"a commit got {answer}")
            if any(result.error for topic in answer.topics for result in topic.partitions):
                raise Violation(f"a commit got {answer}")
            self.acknowledged = self.sent
            self.commits += 1

    def check(self, connection: Connection) -> None:
        """Compare what is stored with what was acknowledged."""
        answer = connection.ask(OffsetFetchRequest((GroupFetch(self.group_id, None),), True))
        assert isinstance(answer, OffsetFetchResponse)
        (group,) = answer.groups
        stored = {o.partition: o.offset for t in group.topics for o in t.partitions}
        offsets = {stored.get(p, -1) for p in range(PARTITIONS)}
        if group.error or len(offsets) != 1:
            raise Violation(f"{self.group_id}: error {group.error}, half a commit: {stored}")
        (offset,) = offsets
        if not self.acknowledged <= offset <= self.sent:
            raise Violation(
                f"{self.group_id}: {offset} is stored, {self.acknowledged} was acknowledged, "
                f"{self.sent} was sent last"
            )


class Joiner:
    """Rebalances one group again and again, alone in it."""

    def __init__(self) -> None:
        self.member_id = ""
        self.generations: list[int] = []

    def run(self, connection: Connection, stop: threading.Event) -> None:
        """Join until the connection breaks. Raises OSError."""
        while not stop.is_set():
            join = JoinGroupRequest(
                "joined",
                6_000,
                6_000,
                self.member_id,
                None,
                "consumer",
                (JoinProtocol("range", b""),),
                None,
            )
            answer = connection.ask(join)
            assert isinstance(answer, JoinGroupResponse)
            if answer.error == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            elif answer.error == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            elif answer.error:
                raise Violation(f"a JoinGroup got {answer}")
            else:
                self._note(answer.generation_id)
                shares = (MemberAssignment(self.member_id, b"all"),)
                connection.ask(
                    SyncGroupRequest(
                        "joined", answer.generation_id, self.member_id, None, None, None, shares
                    )
                )

    def _note(self, generation: int) -> None:
        if self.generations and generation <= self.generations[-1]:
            raise Violation(f"generation {generation} came after {self.generations[-1]}")
        self.generations.append(generation)


class Load:
    """All the threads of one life of the daemon."""

    def __init__(self, port: int, workers: list[Committer | Joiner]) -> None:
        self._stop = threading.Event()
        self._violations: list[Violation] = []
        self._threads = [
            threading.Thread(target=self._run, args=(port, worker)) for worker in workers
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, port: int, worker: Committer | Joiner) -> None:
        try:
            with Connection(port) as connection:
                worker.run(connection, self._stop)
        except OSError:
            pass  # The kill.
        except Violation as exc:
            self._violations.append(exc)

    def end(self) -> None:
        """Wait for the threads. Raises Violation if one of them saw one."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._violations:
            raise self._violations[0]


def run(data_dir: Path, *, cycles: int, seed: int = 0) -> str:
    """Kill *cycles* times; return a line that says what was done. Raises Violation."""
    rng = random.Random(seed)
    committers = [Committer(number) for number in range(COMMITTERS)]
    joiner = Joiner()
    epochs = []
    for cycle in range(cycles + 1):
        daemon = Daemon(data_dir, SETTINGS).ready()
        try:
            epochs.append(daemon.wait_for("listening")["leader_epoch"])
            with daemon.connect() as connection:
                for committer in committers:
                    committer.check(connection)
            if cycle < cycles:
                load = Load(daemon.port, [*committers, joiner])
                threading.Event().wait(rng.uniform(0.05, 0.6))
                daemon.kill()
                load.end()
        finally:
            if daemon.process.poll() is None:
                daemon.kill()
    if epochs != sorted(set(epochs)):
        raise Violation(f"leader epochs did not rise: {epochs}")
    acknowledged = sum(committer.commits for committer in committers)
    return (
        f"{cycles} kills, {acknowledged} commits acknowledged and none lost, "
        f"{len(joiner.generations)} generations and none twice"
    )


def main() -> None:
    """Run the loop as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            said = run(Path(folder) / "data", cycles=arguments.cycles, seed=arguments.seed)
        except Violation as exc:
            sys.exit(f"violation: {exc}")
    sys.stdout.write(said + "\n")


if __name__ == "__main__":
    main()
