"""A real ZooKeeper with the registry of Kafka 0.8, and real consumers of 0.8 in it."""

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from bench.peer_jars import class_path
from bench.peers import missing
from client.zookeeper.consumer import Consumer
from client.zookeeper.registrations import decode_partitions, decode_registration, share_of
from protocol.partition import TopicPartition
from tests.integration.daemon import ROOT

GROUP: Final = "etl"
EXAMPLE: Final = ROOT / "examples" / "beside_old_consumers.py"
SOURCE: Final = Path(__file__).parent / "OldConsumers.java"
DEADLINE_S: Final = 90.0  # Consumers of 0.8 pause for seconds, several times in a row.
_numbers: Final = count()

Owners = Mapping[TopicPartition, str]


def missing_old() -> str | None:
    """Return why 0.8's consumers can't be run here, None if they can."""
    if why := missing("zookeeper"):
        return why
    return None if class_path("kafka-0.8") else "its jars aren't in build/peers: make peers"


class Registry:
    """A part of the ensemble that one test has for itself."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._chroot = f"/test{next(_numbers)}"
        outside = KazooClient(hosts)
        outside.start()
        outside.create(self._chroot)
        outside.stop()
        outside.close()
        self.kazoo = KazooClient(self.address)
        self.kazoo.start()
        # 0.8's consumers do nothing in a cluster without brokers.
        broker = {"version": 1, "host": "127.0.0.1", "port": 1, "jmx_port": -1, "timestamp": "0"}
        self.kazoo.create("/brokers/ids/0", json.dumps(broker).encode(), makepath=True)

    @property
    def address(self) -> str:
        """Where it is, as clients are told."""
        return f"{self._hosts}{self._chroot}"

    def address_at(self, port: int) -> str:
        """Return the same through another port, such as a wire's."""
        return f"127.0.0.1:{port}{self._chroot}"

    def put_topic(self, topic: str, num_partitions: int) -> None:
        """Make a topic, or give it more partitions."""
        partitions = {str(number): [0] for number in range(num_partitions)}
        data = json.dumps({"version": 1, "partitions": partitions}).encode()
        path = f"/brokers/topics/{topic}"
        if self.kazoo.exists(path):
            self.kazoo.set(path, data)
        else:
            self.kazoo.create(path, data, makepath=True)

    def registrations(self) -> dict[str, bytes]:
        """Return what stands in each member's node."""
        with suppress(NoNodeError):
            path = f"/consumers/{GROUP}/ids"
            return {one: self.kazoo.get(f"{path}/{one}")[0] for one in self._names(path)}
        return {}

    def sessions(self) -> set[int]:
        """Return whose nodes the members are."""
        path = f"/consumers/{GROUP}/ids"
        return {self.kazoo.get(f"{path}/{one}")[1].ephemeralOwner for one in self._names(path)}

    def owners(self) -> Owners:
        """Return the thread that has each partition."""
        owners = {}
        path = f"/consumers/{GROUP}/owners"
        for topic in self._names(path):
            for number in self._names(f"{path}/{topic}"):
                with suppress(NoNodeError):
                    data, _ = self.kazoo.get(f"{path}/{topic}/{number}")
                    owners[TopicPartition(topic, int(number))] = data.decode()
        return owners

    def shares(self) -> Owners:
        """Return the thread that is to have each partition, by the formula."""
        members = {name: decode_registration(data) for name, data in self.registrations().items()}
        topics = self._names("/brokers/topics")
        partitions = {
            topic: decode_partitions(self.kazoo.get(f"/brokers/topics/{topic}")[0])
            for topic in topics
        }
        shares: dict[TopicPartition, str] = {}
        for name in members:
            shares |= share_of(name, members, topics, partitions)
        return shares

    def end_session(self, consumer: Consumer) -> None:
        """End a consumer's session behind its back: another connection takes it over."""
        session: Any = consumer._driver._session
        other = KazooClient(self.address, client_id=session._client.client_id)
        other.start()
        other.stop()
        other.close()

    def remove(self, consumer: Consumer) -> None:
        """Delete a consumer's node, as a careless operator may."""
        self.kazoo.delete(f"/consumers/{GROUP}/ids/{consumer.consumer_id}")

    def close(self) -> None:
        """End the session that looks."""
        self.kazoo.stop()
        self.kazoo.close()

    def _names(self, path: str) -> list[str]:
        try:
            return list(self.kazoo.get_children(path))
        except NoNodeError:
            return []


class OldConsumers:
    """Consumers of Kafka 0.8.2 in a process of their own."""

    def __init__(self, process: "subprocess.Popen[str]", output: Path) -> None:
        self._process = process
        self._output = output
        self._answer()

    async def join(self, name: str, kind: str, what: str, threads: int = 1) -> None:
        """Have one join, and wait until it has its share."""
        await self._run(f"join {name} {kind} {what} {threads}")

    async def leave(self, name: str) -> None:
        """Have one leave."""
        await self._run(f"leave {name}")

    async def _run(self, line: str) -> None:
        def run() -> None:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            self._answer()

        with trio.fail_after(DEADLINE_S):
            await trio.to_thread.run_sync(run, abandon_on_cancel=True)

    def _answer(self) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        assert answer == "ok", answer + self._output.read_text()[-2_000:]


@contextmanager
def old_consumers(registry: Registry, folder: Path) -> Iterator[OldConsumers]:
    """Run the process in which 0.8's consumers live, until its input ends."""
    output = folder / "old_consumers"
    command = ["java", "-Xmx128m", "-cp", class_path("kafka-0.8"), str(SOURCE)]
    with (
        output.open("wb") as log,
        subprocess.Popen(
            [*command, registry.address, GROUP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield OldConsumers(process, output)
        finally:
            process.kill()


@contextmanager
def example(registry: Registry) -> Iterator["subprocess.Popen[str]"]:
    """Run the example, which reads the topic "t"."""
    with program(str(EXAMPLE), registry.address, GROUP, "t") as process:
        yield process


@contextmanager
def program(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a program of Python, which is given to it as *words*."""
    command = [sys.executable, *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so.

    Raises:
        TooSlowError: It never is.
    """
    with trio.fail_after(DEADLINE_S):
        while not await trio.to_thread.run_sync(condition):  # noqa: ASYNC110 - Of another process.
            await trio.sleep(0.05)


def owned_by(owners: Owners, names: Collection[str]) -> set[TopicPartition]:
    """Return what consumers have."""
    return {tp for tp, thread in owners.items() if thread.rpartition("-")[0] in names}
